//! Records as requests, and values as bytes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::Values;

/// What a record's value says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The other key; the record's own where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The first key of a scan.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// A number.
    pub n: f64,
    /// What is expected; null stands for no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// Whatever else the record has.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

impl Request {
    /// Reads a record's value.
    pub fn parse(value: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(value).map_err(|error| format!("the record is no request: {error}"))
    }

    /// The record's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a request is JSON")
    }

    /// The other key, of a record whose own key is `key`.
    pub fn other<'a>(&'a self, key: &'a [u8]) -> &'a [u8] {
        self.to.as_ref().map_or(key, |to| to.as_bytes())
    }
}

impl Values {
    /// A number as a value.
    pub fn encode(self, number: f64) -> Vec<u8> {
        match self {
            Self::S64 => (number as i64).to_le_bytes().to_vec(),
            Self::F32 => (number as f32).to_le_bytes().to_vec(),
            Self::F64 => number.to_le_bytes().to_vec(),
            Self::Text => (number as i64).to_string().into_bytes(),
        }
    }

    /// A value as JSON; what does not fit is shown as bytes.
    pub fn decode(self, bytes: &[u8]) -> Value {
        let number = match self {
            Self::S64 => bytes.try_into().ok().map(|bytes| json!(i64::from_le_bytes(bytes))),
            Self::F32 => bytes.try_into().ok().map(|bytes| json!(f32::from_le_bytes(bytes))),
            Self::F64 => bytes.try_into().ok().map(|bytes| json!(f64::from_le_bytes(bytes))),
            Self::Text => texts(bytes),
        };
        number.unwrap_or_else(|| json!({ "bytes": bytes }))
    }
}

/// A text, or the texts that `append` has made a value of.
fn texts(bytes: &[u8]) -> Option<Value> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    if bytes.iter().all(u8::is_ascii_digit) {
        return text(bytes).map(Value::from);
    }
    let (mut items, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk()?;
        let (item, after) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        items.push(text(item)?);
        rest = after;
    }
    Some(items.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_what_they_do_not_know() {
        let request = Request::parse(br#"{"k":"a","n":-2,"to":"b"}"#).unwrap();
        assert_eq!((request.other(b"a"), request.n, request.expected), (b"b".as_slice(), -2.0, None));
        assert_eq!(Request::parse(&request.to_bytes()).unwrap(), request);
        assert_eq!(Request::parse(b"{}").unwrap().other(b"own"), b"own");
        assert!(Request::parse(b"[").is_err());
    }

    #[test]
    fn values_survive_their_encoding() {
        for values in [Values::S64, Values::F32, Values::F64] {
            assert_eq!(values.decode(&values.encode(-3.0)).as_f64(), Some(-3.0), "{values:?}");
        }
        assert_eq!(Values::Text.decode(b"17"), json!("17"));
        assert_eq!(Values::Text.decode(b"\x01\0\0\0a\x02\0\0\0bc"), json!(["a", "bc"]));
        assert_eq!(Values::S64.decode(b"abc"), json!({ "bytes": [97, 98, 99] }));
    }
}
