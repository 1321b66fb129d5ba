//! What becomes of a record that cannot be processed: the job stops, or the record goes to the dead-letter sink, or it is counted and left out.

use std::sync::Arc;

use serde_json::json;

use super::TaskError;
use super::route::SinkHandle;
use crate::manifest::OnError;
use crate::metrics::Counter;
use crate::record::{Batch, NO_TIME};

/// How many refused records a source or operator logs in full; the rest are only counted.
const LOGGED_MAX: u64 = 20;

/// How much of a key or value is shown to people.
const SHOWN_BYTES_MAX: usize = 80;

/// The rule of one source or operator.
#[derive(Debug, Clone)]
pub struct Refusals {
    /// `source` or `operator`.
    kind: &'static str,
    name: String,
    on_error: OnError,
    dead_letter: Option<SinkHandle>,
    refused: Arc<Counter>,
}

/// A record that cannot be processed.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its bytes.
    pub value: &'a [u8],
    /// Its event time, [`NO_TIME`] for none.
    pub time: i64,
    /// Where it lies in the input, if that is known.
    pub place: Option<&'a str>,
    /// What is wrong.
    pub error: &'a str,
}

impl Refused<'_> {
    /// Which record it is, for people; follows "a record".
    fn named(&self) -> String {
        match (self.place, self.key) {
            (Some(place), _) => format!("at {place}"),
            (None, b"") => format!("without a key, `{}`", shortened(self.value)),
            (None, key) => format!("with key `{}`", shortened(key)),
        }
    }
}

impl Refusals {
    /// The rule of `kind` `name`; `dead_letter` is the sink that the manifest names, if any.
    pub fn new(kind: &'static str, name: &str, on_error: OnError, dead_letter: Option<SinkHandle>) -> Self {
        Self { kind, name: name.to_owned(), on_error, dead_letter, refused: Arc::default() }
    }

    /// How many records were refused since the job started.
    pub fn counter(&self) -> Arc<Counter> {
        Arc::clone(&self.refused)
    }

    /// Applies the rule.
    ///
    /// # Errors
    /// With `on-error = "stop"`.
    pub fn refuse(&self, record: Refused<'_>) -> Result<(), TaskError> {
        if self.on_error == OnError::Stop {
            return Err(TaskError::Record {
                who: format!("{} `{}`", self.kind, self.name),
                which: record.named(),
                error: record.error.to_owned(),
            });
        }
        let before = self.refused.add(1);
        if before < LOGGED_MAX {
            let Refused { place, error, .. } = record;
            let key = (!record.key.is_empty()).then(|| shortened(record.key));
            let (by, name) = (self.kind, self.name.as_str());
            tracing::warn!(by, name, key, place, "record {} refused: {error}", record.named());
        } else if before == LOGGED_MAX {
            tracing::warn!(
                by = self.kind,
                name = self.name.as_str(),
                "further refused records are counted, not logged"
            );
        }
        if let Some(sink) = &self.dead_letter {
            let mut batch = Batch::default();
            batch.push(record.key, self.letter(record).to_string().as_bytes(), record.time);
            sink.send(batch);
        }
        Ok(())
    }

    /// The dead letter: who refused the record and why, and the record itself.
    fn letter(&self, record: Refused<'_>) -> serde_json::Value {
        let mut letter = json!({ self.kind: self.name, "error": record.error });
        let fields = letter.as_object_mut().expect("made as an object above");
        put_bytes(fields, "key", record.key);
        put_bytes(fields, "value", record.value);
        if record.time != NO_TIME {
            fields.insert("time".to_owned(), record.time.into());
        }
        if let Some(place) = record.place {
            fields.insert("place".to_owned(), place.into());
        }
        letter
    }
}

/// Adds bytes as a string where they are UTF-8, else in hexadecimal under `NAME_hex`, so that nothing is lost.
fn put_bytes(fields: &mut serde_json::Map<String, serde_json::Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => fields.insert(name.to_owned(), text.into()),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            fields.insert(format!("{name}_hex"), hex.into())
        }
    };
}

/// Bytes for people: text with its control characters escaped, other bytes as `\xNN`; only the first of many.
fn shortened(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    let mut shown = String::new();
    for chunk in start.utf8_chunks() {
        for char in chunk.valid().chars() {
            if char.is_control() { shown.extend(char.escape_default()) } else { shown.push(char) }
        }
        shown += &chunk.invalid().escape_ascii().to_string();
    }
    if start.len() < bytes.len() { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(value: &[u8]) -> Refused<'_> {
        Refused { key: b"k", value, time: NO_TIME, place: None, error: "bad" }
    }

    #[test]
    fn stop_names_who_and_which() {
        let error = Refusals::new("operator", "stats", OnError::Stop, None).refuse(refused(b"v")).unwrap_err();
        assert!(error.to_string().starts_with("operator `stats` failed on a record with key `k`: bad"), "{error}");
    }

    #[test]
    fn a_record_is_named_by_what_there_is_of_it() {
        let keyed = refused(b"v");
        assert_eq!(keyed.named(), "with key `k`");
        assert_eq!(Refused { key: b"", ..keyed }.named(), "without a key, `v`");
        assert_eq!(Refused { key: "grö\t\"ße".as_bytes(), ..keyed }.named(), "with key `grö\\t\"ße`");
        assert_eq!(Refused { key: b"\xff!", ..keyed }.named(), "with key `\\xff!`");
        assert_eq!(Refused { place: Some("in.txt:2, byte 9"), ..keyed }.named(), "at in.txt:2, byte 9");
    }

    #[test]
    fn skip_counts() {
        let refusals = Refusals::new("operator", "stats", OnError::Skip, None);
        refusals.refuse(refused(b"v")).unwrap();
        refusals.refuse(refused(b"w")).unwrap();
        assert_eq!(refusals.counter().get(), 2);
    }

    #[test]
    fn a_letter_holds_the_whole_record() {
        let letter = Refusals::new("source", "bids", OnError::DeadLetter, None).letter(refused(b"\xff\x00"));
        assert_eq!(letter, json!({ "source": "bids", "error": "bad", "key": "k", "value_hex": "ff00" }));
    }
}
