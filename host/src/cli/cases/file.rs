//! The file of cases.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::admin::render::{self, from_hex};
use crate::manifest::{json_of, listed};
use crate::plugin::Description;

/// Cases for a function.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cases {
    /// The `config` of cases without their own.
    #[serde(default)]
    pub config: toml::Table,
    /// Which of the tables that the function uses keep earlier values by event time.
    #[serde(default)]
    pub versioned: Vec<String>,
    /// The cases.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// One case: what the function finds and is given, and everything that it is to do with that.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub name: String,
    pub config: Option<toml::Table>,
    #[serde(default)]
    pub records: Vec<Record>,
    /// The function's own tables before.
    #[serde(default)]
    pub state: Values,
    /// The tables that it uses, by the names that it gives them.
    #[serde(default)]
    pub others: Values,
    #[serde(default)]
    pub expect: Expect,
}

/// Keys and values by table.
pub(super) type Values = BTreeMap<String, BTreeMap<String, Bytes>>;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    #[serde(default)]
    pub key: Bytes,
    #[serde(default)]
    pub value: Bytes,
    /// The event time, in milliseconds.
    #[serde(default)]
    pub time: i64,
}

/// What a function is to do: this, and nothing else.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    /// Emitted records by port.
    #[serde(default)]
    pub output: BTreeMap<String, Vec<Emitted>>,
    /// The values of its own tables that are others afterwards.
    #[serde(default)]
    pub state: Values,
    /// The keys of its own tables that have no value any more.
    #[serde(default)]
    pub deleted: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub updates: Vec<Update>,
    #[serde(default)]
    pub sends: Vec<Sent>,
    #[serde(default)]
    pub rejects: Vec<Reject>,
    /// A part of the error with which `init` or a call fails.
    pub fails: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Emitted {
    #[serde(default)]
    pub key: Bytes,
    #[serde(default)]
    pub value: Bytes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Update {
    pub table: String,
    pub key: String,
    /// `put`, `put-if-absent`, `delete`, `compare-and-put`, `add`, `min`, `max` or `append`.
    pub op: String,
    pub value: Option<Bytes>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sent {
    pub table: String,
    #[serde(default)]
    pub key: Bytes,
    #[serde(default)]
    pub value: Bytes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reject {
    /// The record, counted from 0.
    pub record: usize,
    /// A part of the reason.
    pub reason: String,
}

/// A key or a value: text as it is; `{ hex = "00ff" }` any bytes; `{ s64 = 3 }`, `{ f64 = [0.5, 1] }`, `{ f32 = … }` numbers as updates add them, with the lowest byte first; whatever
/// else as JSON, for which the form in which a function writes it does not matter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub(super) enum Bytes {
    Raw(Vec<u8>),
    Json(serde_json::Value),
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Raw(Vec::new())
    }
}

impl TryFrom<toml::Value> for Bytes {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        match &value {
            toml::Value::String(text) => Ok(Self::Raw(text.clone().into_bytes())),
            toml::Value::Table(table) if table.len() == 1 => {
                let raw = table.iter().next().and_then(|(form, value)| raw(form, value));
                raw.map_or_else(|| Ok(Self::Json(json_of(&value))), |bytes| Ok(Self::Raw(bytes?)))
            }
            value => Ok(Self::Json(json_of(value))),
        }
    }
}

/// Bytes that are written in a form of their own; `None` where it is none.
fn raw(form: &str, value: &toml::Value) -> Option<Result<Vec<u8>, String>> {
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let float = |item: &toml::Value| item.as_float().or_else(|| item.as_integer().map(|number| number as f64));
    let bytes: Option<Vec<Vec<u8>>> = match form {
        "hex" => value.as_str().and_then(from_hex).map(|bytes| vec![bytes]),
        "s64" => items.iter().map(|item| Some(item.as_integer()?.to_le_bytes().to_vec())).collect(),
        "f64" => items.iter().map(|item| Some(float(item)?.to_le_bytes().to_vec())).collect(),
        "f32" => items.iter().map(|item| Some((float(item)? as f32).to_le_bytes().to_vec())).collect(),
        _ => return None,
    };
    Some(bytes.map(|bytes| bytes.concat()).ok_or_else(|| match form {
        "hex" => "`hex` is text of two hexadecimal digits a byte".to_owned(),
        form => format!("`{form}` is a number or a list of numbers"),
    }))
}

impl Bytes {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Json(json) => json.to_string().into_bytes(),
        }
    }

    /// Whether these are the bytes, or the same JSON.
    pub(super) fn is(&self, found: &[u8]) -> bool {
        match self {
            Self::Raw(bytes) => bytes == found,
            Self::Json(json) => serde_json::from_slice::<serde_json::Value>(found).is_ok_and(|found| found == *json),
        }
    }

    pub(super) fn shown(&self) -> String {
        render::as_value(&self.bytes())
    }
}

/// The `config` as a function gets it.
pub(super) fn json_of_table(table: &toml::Table) -> serde_json::Value {
    json_of(&toml::Value::Table(table.clone()))
}

impl Cases {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// With the place in the text and what is wrong there.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    pub(super) fn names(&self) -> String {
        listed(self.cases.iter().map(|case| case.name.as_str()))
    }
}

impl Case {
    /// Whether the function has everything that the case names.
    ///
    /// # Errors
    /// With what it has not.
    pub(super) fn check(&self, description: &Description) -> Result<(), String> {
        let own: Vec<&str> = description.tables.iter().map(|(name, _)| name.as_str()).collect();
        let uses: Vec<&str> = description.uses.iter().map(String::as_str).collect();
        let ports: Vec<&str> = description.ports.iter().map(String::as_str).collect();
        let known = |what: &str, name: &str, known: &[&str]| match known.contains(&name) {
            true => Ok(()),
            false => {
                let there = if known.is_empty() { "none".to_owned() } else { listed(known.iter().copied()) };
                Err(format!("the function has no {what} `{name}`; it has {there}"))
            }
        };
        let Expect { output, state, deleted, updates, sends, rejects, .. } = &self.expect;
        let mut named = self.state.keys().chain(state.keys()).chain(deleted.keys());
        named.try_for_each(|name| known("table", name, &own))?;
        let used = updates.iter().map(|update| &update.table).chain(sends.iter().map(|sent| &sent.table));
        let mut used = self.others.keys().chain(used);
        used.try_for_each(|name| known("table of others", name, &uses))?;
        output.keys().try_for_each(|name| known("port", name, &ports))?;
        match rejects.iter().find(|reject| reject.record >= self.records.len()) {
            Some(reject) => Err(format!("there is no record {} to be rejected", reject.record)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<Bytes, String> {
        let table: toml::Table = text.parse().unwrap();
        Bytes::try_from(table["v"].clone())
    }

    #[test]
    fn values_are_written_as_text_as_bytes_as_numbers_and_as_json() {
        for (text, expected) in [
            ("v = \"1\"", &b"1"[..]),
            ("v = { hex = \"00fF\" }", b"\x00\xff"),
            ("v = { s64 = -2 }", &(-2i64).to_le_bytes()),
            ("v = { f32 = [1, 0.5] }", &[1f32.to_le_bytes(), 0.5f32.to_le_bytes()].concat()),
            ("v = { f64 = 1 }", &1f64.to_le_bytes()),
            ("v = { n = 1, by = [true] }", br#"{"by":[true],"n":1}"#),
            ("v = { n = 1 }", br#"{"n":1}"#),
            ("v = 7", b"7"),
        ] {
            assert_eq!(bytes(text).unwrap().bytes(), expected, "{text}");
        }
        assert!(bytes("v = { n = 1, by = 2 }").unwrap().is(br#"{ "by": 2, "n": 1 }"#));
        assert!(!bytes("v = \"{}\"").unwrap().is(b"{ }"));
        for wrong in ["v = { hex = \"0\" }", "v = { hex = 1 }", "v = { s64 = 0.5 }", "v = { f64 = \"1\" }"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_has_its_place() {
        let error = Cases::of("[[case]]\nname = \"a\"\nrecrods = []\n").unwrap_err();
        assert!(error.contains("line 3") && error.contains("recrods"), "{error}");
    }
}
