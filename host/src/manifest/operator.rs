//! Operators as the manifest describes them.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteSize, HumanDuration};

/// A function over a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Operator {
    /// The component's file, relative to the manifest.
    #[schemars(example = &"target/bid_stats.wasm")]
    pub component: String,
    /// The SHA-256 of the component's file, in hexadecimal digits, as `wasmill inspect` shows it: any other file is refused, also by a reload.
    #[serde(default)]
    #[schemars(example = &"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub sha256: Option<String>,
    /// The shell command that builds it, run in the manifest's directory by `wasmill build`.
    #[serde(default)]
    #[schemars(example = &"make bid_stats.wasm")]
    pub build: Option<String>,
    /// What it reads: sources and operators by name; `operator.port` for a port other than `out`. May be empty where others send to it or change its tables.
    #[schemars(example = ["bids", "parse.late"])]
    pub inputs: Vec<String>,
    /// What it reads of operators behind it: a loop. Written as in `inputs`. What is on the way at a checkpoint is part of the checkpoint.
    #[serde(default)]
    #[schemars(example = ["merge.again"])]
    pub feedback: Vec<String>,
    /// A JSON pointer into the value, to key its input by something else than the producer's key; `.` for the whole value.
    #[serde(default)]
    #[schemars(example = &"/bidder")]
    pub key: Option<String>,
    /// Handed to the function's `init` as a JSON object. Dates and times become strings.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>", example = serde_json::json!({ "rate": 0.92 }))]
    pub config: toml::Table,
    /// Parallel instances; with several hosts those on each. Default: one a worker, at most one a partition.
    #[serde(default)]
    #[schemars(example = 4, range(min = 1))]
    pub parallelism: Option<u16>,
    /// Another operator whose tasks own the same partitions: equal keys of both are then on one host and one worker, and lookups of a record's own key never travel. Both must keep tables or set a `key`.
    #[serde(default)]
    #[schemars(example = &"customers")]
    pub colocated_with: Option<String>,
    /// The most records of one call.
    #[serde(default = "default_batch")]
    #[schemars(example = 256, range(min = 1))]
    pub batch: u16,
    /// How long a call that is not full waits for more records.
    #[serde(default)]
    #[schemars(example = &"5ms")]
    pub linger: HumanDuration,
    /// How its own tables are kept, by name; a table that needs none of this need not be named.
    #[serde(default)]
    #[schemars(example = serde_json::json!({ "profiles": { "open": true } }))]
    pub tables: BTreeMap<String, Table>,
    /// The tables of other operators (and of this one, for keys of other tasks) that the function looks up or changes, by the names that the function gives them.
    #[serde(default)]
    #[schemars(example = serde_json::json!({ "customers": { "table": "customers.profiles", "read": true } }))]
    pub uses: BTreeMap<String, Use>,
    /// What other records may come between the reads and the writes of one record.
    #[serde(default)]
    #[schemars(example = &"serializable")]
    pub isolation: Isolation,
    /// What the function may use.
    #[serde(default)]
    pub limits: Limits,
    /// What becomes of a record that the function fails on or rejects.
    #[serde(default)]
    #[schemars(example = &"dead-letter")]
    pub on_error: OnError,
    /// How often a failing record is tried again before `on-error` applies. Rejected records are not tried again.
    #[serde(default)]
    #[schemars(example = 2)]
    pub retries: u32,
    /// The sink that receives failing records, with `on-error = "dead-letter"`.
    #[serde(default)]
    #[schemars(example = &"failed")]
    pub dead_letter: Option<String>,
}

impl Operator {
    /// `config` as the JSON object that `init` receives. A number that JSON does not have (`inf`, `nan`) becomes `null`; the
    /// graph's checks refuse it before.
    pub fn config_json(&self) -> serde_json::Value {
        table_json(&self.config)
    }
}

fn table_json(table: &toml::Table) -> serde_json::Value {
    table.iter().map(|(name, value)| (name.clone(), json_of(value))).collect::<serde_json::Map<_, _>>().into()
}

/// A value as JSON. Dates and times become strings; a number that JSON does not have (`inf`, `nan`) becomes `null`.
pub fn json_of(value: &toml::Value) -> serde_json::Value {
    match value {
        toml::Value::String(text) => text.as_str().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => (*number).into(),
        toml::Value::Boolean(truth) => (*truth).into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => items.iter().map(json_of).collect(),
        toml::Value::Table(table) => table_json(table),
    }
}

/// How a table of an operator's own is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Table {
    /// Whether other operators may use it. The component must open it, too.
    #[schemars(example = true)]
    pub open: bool,
    /// Whether it can be scanned by ranges of keys. Not needed where the component says so.
    #[schemars(example = true)]
    pub ordered: bool,
    /// For how long behind the newest value of a key earlier ones are kept, by event time: in place of what the component says, which must declare the table versioned.
    #[schemars(example = &"1h")]
    pub versioned: Option<HumanDuration>,
}

/// A table that a function uses beside its own. The name is the one that the function gives it; the table must be open, unless it is the operator's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Use {
    /// The table, as `operator.table`.
    #[schemars(example = &"customers.profiles")]
    pub table: String,
    /// Whether the function may look up values.
    #[serde(default)]
    #[schemars(example = true)]
    pub read: bool,
    /// Whether it may change values by updates.
    #[serde(default)]
    #[schemars(example = true)]
    pub update: bool,
    /// Whether it may send records to the function that owns the table.
    #[serde(default)]
    #[schemars(example = true)]
    pub send: bool,
    /// The most keys of one lookup that travels to another host. Default: `cluster.max-batch`.
    #[serde(default)]
    #[schemars(example = 4096, range(min = 1, max = 16384))]
    pub max_batch: Option<u16>,
    /// How long a lookup that is not full waits for more keys before it travels. Default: `cluster.linger`.
    #[serde(default)]
    #[schemars(example = &"1ms")]
    pub linger: Option<HumanDuration>,
}

/// What a function may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// Linear memory of one instance.
    #[schemars(example = &"64MiB")]
    pub memory: ByteSize,
    /// Running time of one batch. Time spent waiting does not count.
    #[schemars(example = &"500ms")]
    pub time: HumanDuration,
    /// Bytes of output, state writes, updates and sent records of one batch, and 16 for each record or key among them.
    #[schemars(example = &"16MiB")]
    pub output: ByteSize,
    /// Log lines written by one batch.
    #[schemars(example = 1000)]
    pub log_lines: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteSize(256 << 20),
            time: HumanDuration(Duration::from_secs(5)),
            output: ByteSize(64 << 20),
            log_lines: 100,
        }
    }
}

/// What other records may come between the reads and the writes of one record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Those of other tasks: a lookup sees whole batches of each owner, and updates are applied after it.
    #[default]
    Batch,
    /// None: the reads and writes of one record, over any keys of the tables of serializable operators, are one transaction.
    Serializable,
}

/// What becomes of a record that cannot be processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// The job stops, at its last epoch.
    #[default]
    Stop,
    /// The record goes to the sink named by `dead-letter`, with the error.
    DeadLetter,
    /// The record is counted, logged and left out.
    Skip,
}

fn default_batch() -> u16 {
    1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_becomes_plain_json() {
        let operator: Operator = toml::from_str(
            "component = 'a'\ninputs = []\nconfig = { since = 2013-01-01T05:15:00Z, rate = 1.5, n = 1, deep = { list = [true, 'x'] } }",
        )
        .unwrap();
        let expected = serde_json::json!({
            "since": "2013-01-01T05:15:00Z", "rate": 1.5, "n": 1, "deep": { "list": [true, "x"] }
        });
        assert_eq!(operator.config_json(), expected);
    }
}
