//! What a function has done in a case, and how that differs from what is expected.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::file::{Bytes, Emitted, Expect, Reject, Sent, Update};
use super::tables::Own;
use crate::admin::render;
use crate::plugin::{Description, Effects};
use crate::state::update::Op;

const NOTHING: &str = "nothing";

/// A key and a value.
type Pair = (Vec<u8>, Vec<u8>);

/// What a function has done.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Keys and values by port.
    output: BTreeMap<String, Vec<Pair>>,
    /// What has changed, by table.
    state: BTreeMap<String, BTreeMap<Vec<u8>, Option<Vec<u8>>>>,
    updates: Vec<FoundUpdate>,
    sends: Vec<(String, Vec<u8>, Vec<u8>)>,
    rejects: Vec<(usize, String)>,
    /// With what a call, or `init`, has failed.
    pub(super) failure: Option<String>,
}

#[derive(Debug)]
struct FoundUpdate {
    table: String,
    key: Vec<u8>,
    op: &'static str,
    operand: Option<Vec<u8>>,
}

/// One thing that is other than expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    pub(super) what: String,
    pub(super) expected: String,
    pub(super) found: String,
}

impl Outcome {
    /// Takes what a call has done whose first record is `first`.
    pub(super) fn take(&mut self, description: &Description, own: &Own, first: usize, effects: Effects) {
        effects.writes.iter().for_each(|writes| own.write(writes));
        for emitted in &effects.emitted {
            let port = self.output.entry(description.ports[emitted.port].clone()).or_default();
            let records = emitted.batch.keys.iter().zip(emitted.batch.values.iter());
            port.extend(records.map(|(key, value)| (key.to_vec(), value.to_vec())));
        }
        for of_table in &effects.updates {
            let table = &description.uses[of_table.table];
            self.updates.extend(of_table.updates.keys.iter().enumerate().map(|(index, key)| {
                FoundUpdate {
                    table: table.clone(),
                    key: key.to_vec(),
                    op: name_of(of_table.updates.op),
                    operand: (of_table.updates.op != Op::Delete)
                        .then(|| of_table.updates.operands.get(index).map(<[u8]>::to_vec))
                        .flatten(),
                }
            }));
        }
        for sent in &effects.sent {
            let records = sent.batch.keys.iter().zip(sent.batch.values.iter());
            let table = &description.uses[sent.table];
            self.sends.extend(records.map(|(key, value)| (table.clone(), key.to_vec(), value.to_vec())));
        }
        self.rejects.extend(effects.rejects.into_iter().map(|(record, reason)| (first + record as usize, reason)));
    }

    /// Notes what has become of the function's own tables.
    pub(super) fn note_state(&mut self, description: &Description, own: &Own) {
        for (table, (name, _)) in description.tables.iter().enumerate() {
            self.state.insert(name.clone(), own.changed(table));
        }
    }

    /// How that differs from what is expected.
    pub(super) fn differences(&self, expect: &Expect) -> Vec<Difference> {
        let mut differences = Differences(Vec::new());
        differences.compare_failure(expect.fails.as_deref(), self.failure.as_deref());
        if self.failure.is_some() {
            // Nothing else of the call has happened.
            return differences.0;
        }
        let ports = self.output.keys().chain(expect.output.keys()).collect::<BTreeSet<_>>();
        for port in ports {
            let expected = expect.output.get(port).map_or(&[][..], Vec::as_slice);
            let found = self.output.get(port).map_or(&[][..], Vec::as_slice);
            differences.compare_lists(
                &format!("output `{port}`"),
                expected,
                found,
                |Emitted { key, value }, (found_key, found_value)| key.is(found_key) && value.is(found_value),
                |Emitted { key, value }| record(&key.shown(), &value.shown()),
                |(key, value)| record(&shown(key), &shown(value)),
            );
        }
        for (table, found) in &self.state {
            differences.compare_state(table, expect, found);
        }
        differences.compare_lists(
            "update",
            &expect.updates,
            &self.updates,
            |expected, found| {
                let is_value = match (&expected.value, &found.operand) {
                    (Some(expected), Some(found)) => expected.is(found),
                    (None, None) => true,
                    _ => false,
                };
                let names = (expected.table.as_str(), expected.key.as_bytes(), expected.op.as_str());
                is_value && names == (found.table.as_str(), found.key.as_slice(), found.op)
            },
            |Update { table, key, op, value }| update(table, op, key, value.as_ref().map(Bytes::shown)),
            |found| {
                let operand = found.operand.as_ref().map(|operand| shown(operand));
                update(&found.table, found.op, &render::readable_key(&found.key), operand)
            },
        );
        differences.compare_lists(
            "send",
            &expect.sends,
            &self.sends,
            |expected, (table, key, value)| {
                expected.table == *table && expected.key.is(key) && expected.value.is(value)
            },
            |Sent { table, key, value }| format!("{table} {}", record(&key.shown(), &value.shown())),
            |(table, key, value)| format!("{table} {}", record(&shown(key), &shown(value))),
        );
        differences.compare_lists(
            "reject",
            &expect.rejects,
            &self.rejects,
            |Reject { record, reason }, (found, why)| record == found && why.contains(reason.as_str()),
            |Reject { record, reason }| format!("record {record}: … {reason} …"),
            |(record, reason)| format!("record {record}: {reason}"),
        );
        differences.0
    }
}

struct Differences(Vec<Difference>);

impl Differences {
    fn add(&mut self, what: String, expected: String, found: String) {
        self.0.push(Difference { what, expected, found });
    }

    fn compare_failure(&mut self, expected: Option<&str>, found: Option<&str>) {
        let is_expected = match (expected, found) {
            (Some(expected), Some(found)) => found.contains(expected),
            (None, None) => true,
            _ => false,
        };
        if !is_expected {
            let expected = expected.map_or_else(|| "success".to_owned(), |expected| format!("… {expected} …"));
            self.add("failure".to_owned(), expected, found.unwrap_or("success").to_owned());
        }
    }

    /// Compares in order.
    fn compare_lists<E, F>(
        &mut self,
        what: &str,
        expected: &[E],
        found: &[F],
        is: impl Fn(&E, &F) -> bool,
        show_expected: impl Fn(&E) -> String,
        show_found: impl Fn(&F) -> String,
    ) {
        for place in 0..expected.len().max(found.len()) {
            let (expected, found) = (expected.get(place), found.get(place));
            if !matches!((expected, found), (Some(expected), Some(found)) if is(expected, found)) {
                let nothing = || NOTHING.to_owned();
                self.add(
                    format!("{what}, {place} counted from 0"),
                    expected.map_or_else(nothing, &show_expected),
                    found.map_or_else(nothing, &show_found),
                );
            }
        }
    }

    fn compare_state(&mut self, table: &str, expect: &Expect, found: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        let mut expected = BTreeMap::<Vec<u8>, Option<&Bytes>>::new();
        let written = expect.state.get(table).into_iter().flatten();
        expected.extend(written.map(|(key, value)| (key.clone().into_bytes(), Some(value))));
        let deleted = expect.deleted.get(table).into_iter().flatten();
        expected.extend(deleted.map(|key| (key.clone().into_bytes(), None)));
        let keys = expected.keys().chain(found.keys()).collect::<BTreeSet<_>>();
        for key in keys {
            let is_expected = match (expected.get(key), found.get(key)) {
                (Some(Some(expected)), Some(Some(found))) => expected.is(found),
                (Some(None), Some(None)) => true,
                _ => false,
            };
            if !is_expected {
                let unchanged = || "unchanged".to_owned();
                let gone = || "deleted".to_owned();
                self.add(
                    format!("state `{table}`, key `{}`", render::readable_key(key)),
                    expected.get(key).map_or_else(unchanged, |value| value.map_or_else(gone, Bytes::shown)),
                    found
                        .get(key)
                        .map_or_else(unchanged, |value| value.as_ref().map_or_else(gone, |value| shown(value))),
                );
            }
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    render::as_value(bytes)
}

fn record(key: &str, value: &str) -> String {
    format!("key {key}, value {value}")
}

fn update(table: &str, op: &str, key: &str, value: Option<String>) -> String {
    let value = value.map_or_else(String::new, |value| format!(" with {value}"));
    format!("{table}: {op} of {key}{value}")
}

fn name_of(op: Op) -> &'static str {
    match op {
        Op::Put => "put",
        Op::PutIfAbsent => "put-if-absent",
        Op::Delete => "delete",
        Op::CompareAndPut => "compare-and-put",
        Op::Add(_) => "add",
        Op::Min(_) => "min",
        Op::Max(_) => "max",
        Op::Append { .. } => "append",
    }
}
