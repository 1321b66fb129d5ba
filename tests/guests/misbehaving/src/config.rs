//! What the function was told to do.

use serde::Deserialize;

/// The operator's `config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// What it does with good records.
    pub work: Work,
    /// What it does when a bad record comes.
    pub mode: Mode,
    /// Makes records bad by number.
    pub every: Option<u64>,
    /// What is wrong with the columns of [`Mode::BadColumns`].
    pub columns: BadColumns,
}

/// What the function does with good records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    #[default]
    Echo,
    Count,
}

/// What the function does when a bad record comes. Records before it in the batch have had their effects by then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Treats it like any other.
    #[default]
    Echo,
    /// The same, with `work = "count"`.
    Count,
    /// Traps, without saying which record was at fault.
    Trap,
    /// Names the record by `begin-record`, then traps.
    PanicMarked,
    /// Returns an error, without saying which record was at fault.
    Error,
    /// Does the work, then rejects the record by its index; a record that is counted is rejected without being counted.
    Reject,
    /// Never returns.
    Loop,
    /// Allocates until it may not.
    Memory,
    /// Emits each record, bad or not, a thousand times.
    Flood,
    /// Works on the first record of each call only, bad or not.
    FirstOnly,
    /// Emits columns that contradict themselves.
    BadColumns,
    /// Writes the state of a key that no record of the batch has.
    ForeignKey,
    /// Writes ten thousand lines to the log.
    LogFlood,
    /// Writes ten thousand lines to the log, then traps without saying which record was at fault.
    LogFloodAndTrap,
    /// Calls itself until the stack ends.
    DeepRecursion,
    /// Refuses to start.
    InitError,
}

/// What is wrong with the columns of [`Mode::BadColumns`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadColumns {
    /// An end lies before the one that precedes it.
    #[default]
    DecreasingEnds,
    /// The last end lies past the bytes.
    OverrunningEnds,
    /// The last end leaves bytes over.
    BytesLeftOver,
    /// One value fewer than keys.
    MissingValue,
    /// One time fewer than keys.
    MissingTime,
    /// One record index fewer than emitted records.
    MissingIndex,
    /// A record index past the batch.
    IndexOutside,
}

impl Config {
    /// Reads the JSON object that `init` is handed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut config: Self = serde_json::from_str(text).map_err(|error| format!("config: {error}"))?;
        if config.mode == Mode::Count {
            config.work = Work::Count;
        }
        Ok(config)
    }

    /// Whether a record of this value is bad.
    pub fn is_bad(&self, value: &[u8]) -> bool {
        let poisoned = value.windows(POISON.len()).any(|window| window == POISON);
        let due = |every: u64| first_number(value).is_some_and(|number| number.is_multiple_of(every));
        poisoned || self.every.is_some_and(due)
    }
}

const POISON: &[u8] = b"poison";

fn first_number(value: &[u8]) -> Option<u64> {
    let digits: Vec<u8> =
        value.iter().copied().skip_while(|byte| !byte.is_ascii_digit()).take_while(u8::is_ascii_digit).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_bad(config: &str, value: &str, bad: bool) {
        assert_eq!(Config::parse(config).unwrap().is_bad(value.as_bytes()), bad, "{config} {value}");
    }

    #[test]
    fn a_record_is_bad_by_its_word_or_its_number() {
        check_bad("{}", "a poisoned apple", true);
        check_bad("{}", "an apple", false);
        check_bad("{}", "1000", false);
        check_bad(r#"{"every":1000}"#, r#"{"n":3000,"m":1}"#, true);
        check_bad(r#"{"every":1000}"#, r#"{"n":3001,"m":1000}"#, false);
        check_bad(r#"{"every":1000}"#, "no number", false);
    }

    #[test]
    fn mode_count_counts() {
        assert_eq!(Config::parse(r#"{"mode":"count"}"#).unwrap().work, Work::Count);
        assert_eq!(Config::parse(r#"{"mode":"trap"}"#).unwrap().work, Work::Echo);
    }
}
