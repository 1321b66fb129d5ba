//! Plain computations over a test's input, and plain readings of what a job left, to hold against each other.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::Job;

/// How often something occurs, by its name.
pub type Tally = BTreeMap<String, u64>;

/// Counts names.
pub fn tally<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Tally {
    let mut tally = Tally::new();
    for name in names {
        *tally.entry(name.into()).or_default() += 1;
    }
    tally
}

/// What a counter of records emits for each key, in order: 1, 2, and so on up to its number of records.
pub fn running_counts(tally: &Tally) -> BTreeMap<String, Vec<u64>> {
    tally.iter().map(|(key, count)| (key.clone(), (1..=*count).collect())).collect()
}

/// JSON objects a line.
pub fn json_lines(records: &[Value]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

/// The lines of a sink, each as JSON.
pub fn read_json(lines: &[String]) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    lines.iter().map(parse).collect()
}

/// The numbers that a sink of `format = "jsonl"` received, by key and in order.
pub fn numbers_by_key(lines: &[String]) -> BTreeMap<String, Vec<u64>> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in read_json(lines) {
        let (key, value) = (record["key"].as_str(), record["value"].as_u64());
        let (Some(key), Some(value)) = (key, value) else { panic!("no number with a key: {record}") };
        numbers.entry(key.to_owned()).or_default().push(value);
    }
    numbers
}

/// All of a table's committed state, as `wasmill state scan` tells it.
pub fn state(job: &Job, table: &str) -> BTreeMap<String, Value> {
    let scan = job.command(["state", "scan", "job.toml", table, "--json", "--limit", "100000000"]).succeeded();
    let mut state = BTreeMap::new();
    for line in scan.stdout.lines() {
        let mut entry: Value = serde_json::from_str(line).expect("an entry is JSON");
        let key = entry["key"].as_str().expect("the keys of tests are text").to_owned();
        let before = state.insert(key, entry["value"].take());
        assert_eq!(before, None, "a key has come twice: {line}");
    }
    state
}

/// The same for counts.
pub fn counts_in_state(job: &Job, table: &str) -> Tally {
    let count = |value: Value| value.as_u64().unwrap_or_else(|| panic!("no count: {value}"));
    state(job, table).into_iter().map(|(key, value)| (key, count(value))).collect()
}

/// A text of a record.
#[track_caller]
pub fn text(record: &Value, field: &str) -> String {
    record[field].as_str().unwrap_or_else(|| panic!("no text `{field}` in {record}")).to_owned()
}

/// In ascending order.
pub fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort();
    items
}
