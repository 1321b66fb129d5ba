//! Numbers that people write with a unit.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A span of time, written with its unit: `"500ms"`, `"1s"`, `"2m 30s"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

/// A number of bytes, written with its unit: `"64MiB"`, `"1GB"`; a bare number is bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// Marks [`HumanDuration`] in the JSON Schema, for the checks that are made from it.
pub(super) const DURATION_FORMAT: &str = "human-duration";

/// Marks [`ByteSize`] in the JSON Schema.
pub(super) const BYTE_SIZE_FORMAT: &str = "byte-size";

impl std::str::FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|error| format!("`{text}` is not a span of time such as \"500ms\" or \"1s\": {error}"))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(formatter)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "format": DURATION_FORMAT,
            "description": "A span of time with its unit: `500ms`, `1s`, `2m 30s`.",
            "examples": ["500ms", "1s", "2m 30s"],
        })
    }
}

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<bytesize::ByteSize>().map(|size| Self(size.0)).map_err(|_| {
            format!(
                "`{text}` is not a number of bytes such as \"64MiB\" or \"1GB\" (units: B, KB, MB, GB, KiB, MiB, GiB)"
            )
        })
    }
}

impl fmt::Display for ByteSize {
    /// With the largest binary unit that leaves a whole number, so that it reads back as the same size.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.iter().find(|(bits, _)| self.0 > 0 && self.0.trailing_zeros() >= *bits) {
            Some((bits, unit)) => write!(formatter, "{}{unit}", self.0 >> bits),
            None => write!(formatter, "{}B", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["string", "integer"],
            "format": BYTE_SIZE_FORMAT,
            "minimum": 0,
            "description": "A number of bytes with its unit: `64MiB`, `1GB`; a bare number is bytes.",
            "examples": ["64MiB", "1GB"],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_shown_with_the_largest_whole_unit() {
        let check = |bytes: u64, shown: &str| assert_eq!(ByteSize(bytes).to_string(), shown);
        check(0, "0B");
        check(1, "1B");
        check(1024, "1KiB");
        check(1536, "1536B");
        check(256 * 1024 * 1024, "256MiB");
        check(5 << 40, "5TiB");
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        let check = |text: &str, bytes: Option<u64>| assert_eq!(text.parse().ok(), bytes.map(ByteSize), "{text}");
        check("64MiB", Some(67_108_864));
        check("1GB", Some(1_000_000_000));
        check("12", Some(12));
        check("64 XB", None);
        check("", None);
        check("-1B", None);
    }

    proptest! {
        #[test]
        fn a_shown_size_reads_back(bytes in prop_oneof![0..1u64 << 50, (0..1u64 << 13).prop_map(|mib| mib << 20)]) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn a_shown_duration_reads_back(nanoseconds in 0..1u64 << 60) {
            let duration = HumanDuration(Duration::from_nanos(nanoseconds));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }
}
