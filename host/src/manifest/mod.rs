//! The manifest as it is written: TOML tables by name, every field documented, unknown fields refused.
//!
//! Only shapes and defaults are here. Whether names resolve and the graph makes sense is `graph`'s business; whether components fit is found when they are loaded.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// A job, as its manifest describes it.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Manifest {
    /// The job itself.
    pub job: Job,
    /// When epochs are sealed, and how many stay readable.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Where records come from, by name.
    pub sources: BTreeMap<String, Source>,
    /// The functions, by name. A job without any copies its sources to its sinks.
    #[serde(default)]
    pub operators: BTreeMap<String, Operator>,
    /// Where records go, by name.
    pub sinks: BTreeMap<String, Sink>,
}

/// The job's name and resources.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// The job's name: letters, digits, `-` and `_`. It is recorded in the state directory, which then serves no other job.
    pub name: String,
    /// The directory of the job's state, relative to the manifest.
    #[serde(default = "default_state")]
    pub state: String,
    /// The number of partitions that keys are spread over; fixed for the life of the state.
    #[serde(default = "default_partitions")]
    pub partitions: u16,
    /// Worker threads. Default: one a core.
    #[serde(default)]
    pub workers: Option<u16>,
    /// How much memory state may use, its caches included. State beyond it lives on disk. Functions' own memory is not part of it: see `limits.memory`.
    #[serde(default = "default_memory")]
    pub memory: ByteSize,
}

/// When epochs are sealed, and how many stay readable.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Checkpoint {
    /// The time from one seal to the next.
    pub interval: HumanDuration,
    /// Seal after this many records too, whichever comes first.
    pub records: Option<u64>,
    /// How many committed epochs stay readable.
    pub retained: u32,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { interval: HumanDuration(Duration::from_secs(1)), records: None, retained: 1 }
    }
}

/// An input.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// A file, a directory or a glob of files.
    File(FileSource),
    /// Standard input: read once, not replayable.
    Stdin(StdinSource),
    /// Seeded events of the Nexmark benchmark: persons, auctions, bids.
    Nexmark(NexmarkSource),
}

/// A file, a directory of files or a glob; each file is a split.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileSource {
    /// A file, a directory (its files, not those of its subdirectories) or a glob, relative to the manifest.
    pub path: String,
    /// How records lie in the file.
    pub format: Format,
    /// How the file is compressed.
    #[serde(default)]
    pub compression: Compression,
    /// Where a record's key lies: a JSON pointer (`/user/id`) for `jsonl`, a column's name for `csv`, `.` for the whole line. Without it records have no key.
    #[serde(default)]
    pub key: Option<String>,
    /// Where a record's event time lies: a JSON pointer or a column's name.
    #[serde(default)]
    pub time: Option<String>,
    /// How the event time is written.
    #[serde(default)]
    pub time_format: TimeFormat,
    /// What the value of a CSV record is.
    #[serde(default)]
    pub csv_value: CsvValue,
    /// Whether to go on reading as files grow and, in a directory or glob, appear.
    #[serde(default)]
    pub follow: bool,
    /// The longest record accepted; a longer one is a record that cannot be read.
    #[serde(default = "default_record_max")]
    pub record_max: ByteSize,
    /// What becomes of a record that cannot be read.
    #[serde(default)]
    pub on_error: OnError,
    /// The sink that receives records which cannot be read, with `on-error = "dead-letter"`.
    #[serde(default)]
    pub dead_letter: Option<String>,
}

/// Standard input. What was read before a crash cannot be read again.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StdinSource {
    /// How records lie in the stream.
    pub format: Format,
    /// As for a file.
    #[serde(default)]
    pub key: Option<String>,
    /// As for a file.
    #[serde(default)]
    pub time: Option<String>,
    /// As for a file.
    #[serde(default)]
    pub time_format: TimeFormat,
    /// As for a file.
    #[serde(default)]
    pub csv_value: CsvValue,
    /// As for a file.
    #[serde(default = "default_record_max")]
    pub record_max: ByteSize,
    /// As for a file.
    #[serde(default)]
    pub on_error: OnError,
    /// As for a file.
    #[serde(default)]
    pub dead_letter: Option<String>,
    /// Says that records lost in a crash are acceptable. Without it, a job with an exactly-once sink refuses this source.
    #[serde(default)]
    pub accept_loss: bool,
}

/// Events of the Nexmark benchmark, made from a seed: the same seed gives the same events.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NexmarkSource {
    /// How many events in all, over all splits.
    pub events: u64,
    /// The seed.
    #[serde(default)]
    pub seed: u64,
    /// How many splits share the events.
    #[serde(default = "default_splits")]
    pub splits: u16,
    /// Which events are let through; the others are generated and left out.
    #[serde(default = "default_nexmark_kinds")]
    pub only: Vec<NexmarkKind>,
    /// A JSON pointer into the event, as for a file.
    #[serde(default)]
    pub key: Option<String>,
    /// Events a second over all splits; without it as fast as the job takes them.
    #[serde(default)]
    pub rate: Option<u64>,
}

/// A kind of Nexmark event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NexmarkKind {
    /// Somebody who sells or bids.
    Person,
    /// Something for sale.
    Auction,
    /// An offer for an auction.
    Bid,
}

/// How records lie in a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// One JSON value a line; the value is the line. It is read only as far as key and time need.
    Jsonl,
    /// Comma-separated values with a header line (RFC 4180, quoted fields may span lines).
    Csv,
    /// Any line.
    Lines,
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// By the name's ending: `.gz`, `.zst`, else none.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// gzip, also of several members.
    Gzip,
    /// Zstandard, also of several frames.
    Zstd,
}

/// How an event time is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeFormat {
    /// Whole milliseconds since the Unix epoch.
    #[default]
    Ms,
    /// Whole seconds since the Unix epoch.
    S,
    /// RFC 3339, such as `2013-01-01T05:15:00Z`.
    Rfc3339,
}

/// What the value of a CSV record is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CsvValue {
    /// A JSON object with a string for each column, by the header's names.
    #[default]
    Json,
    /// The line as it stands.
    Raw,
}

/// What becomes of a record that cannot be processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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

/// A function over a stream.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Operator {
    /// The component's file, relative to the manifest.
    pub component: String,
    /// The shell command that builds it, run in the manifest's directory by `wasmill build`.
    #[serde(default)]
    pub build: Option<String>,
    /// What it reads: sources and operators by name; `operator.port` for a port other than `out`.
    pub inputs: Vec<String>,
    /// A JSON pointer into the value, to key its input by something else than the producer's key; `.` for the whole value.
    #[serde(default)]
    pub key: Option<String>,
    /// Handed to the function's `init` as a JSON object.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub config: toml::Table,
    /// Parallel instances. Default: one a worker.
    #[serde(default)]
    pub parallelism: Option<u16>,
    /// The most records of one call.
    #[serde(default = "default_batch")]
    pub batch: u16,
    /// How long a call that is not full waits for more records.
    #[serde(default)]
    pub linger: HumanDuration,
    /// What the function may use.
    #[serde(default)]
    pub limits: Limits,
    /// What becomes of a record that the function fails on or rejects.
    #[serde(default)]
    pub on_error: OnError,
    /// How often a failing record is tried again before `on-error` applies. Rejected records are not tried again.
    #[serde(default)]
    pub retries: u32,
    /// The sink that receives failing records, with `on-error = "dead-letter"`.
    #[serde(default)]
    pub dead_letter: Option<String>,
}

/// What a function may use.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// Linear memory of one instance.
    pub memory: ByteSize,
    /// Running time of one batch. Time spent waiting does not count.
    pub time: HumanDuration,
    /// Bytes emitted by one batch.
    pub output: ByteSize,
    /// Log lines written by one batch.
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

/// An output.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Sink {
    /// A directory of files.
    Files(FilesSink),
    /// Standard output, at least once.
    Stdout(StdoutSink),
    /// Counts records and drops them.
    Blackhole(BlackholeSink),
}

/// A directory of files.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilesSink {
    /// What it receives: sources and operators by name, `operator.port`. Empty for a sink that only receives dead letters.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// The directory, relative to the manifest; made if it is missing.
    pub path: String,
    /// How a record is written.
    #[serde(default)]
    pub format: OutputFormat,
    /// The columns of `format = "csv"`: JSON pointers into the value, or `key`, `time`, `value`.
    #[serde(default)]
    pub columns: Vec<String>,
    /// What a crash may do to the output.
    #[serde(default)]
    pub delivery: Delivery,
    /// Several epochs to a file: a file is completed at the first seal after this time. Without it, each epoch that is not empty has its file.
    #[serde(default)]
    pub roll: Option<HumanDuration>,
}

/// Standard output.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StdoutSink {
    /// As for files.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// As for files.
    #[serde(default)]
    pub format: OutputFormat,
    /// As for files.
    #[serde(default)]
    pub columns: Vec<String>,
}

/// Nothing: for measuring, and for outputs of no interest.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BlackholeSink {
    /// As for files.
    #[serde(default)]
    pub inputs: Vec<String>,
}

/// How a record is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// The value as it is, and a line feed.
    #[default]
    Raw,
    /// A JSON object a line: `key`, `time` (if any) and `value` (as JSON where it is JSON, else a string).
    Jsonl,
    /// The columns that `columns` names, with a header line in each file.
    Csv,
}

/// What a crash may do to the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// Output becomes visible when its epoch is committed, once.
    #[default]
    ExactlyOnce,
    /// Output is visible at once; after a crash some of it may come again.
    AtLeastOnce,
}

/// A span of time, written with its unit: `"500ms"`, `"1s"`, `"2m 30s"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

/// A number of bytes, written with its unit: `"64MiB"`, `"1GB"`; a bare number is bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Self).map_err(|error| {
            serde::de::Error::custom(format!("`{text}` is not a span of time such as \"500ms\" or \"1s\": {error}"))
        })
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "examples": ["500ms", "1s", "2m 30s"] })
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bytesize::ByteSize::deserialize(deserializer).map(|size| Self(size.0))
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "integer"], "examples": ["64MiB", "1GB"] })
    }
}

fn default_state() -> String {
    "state".to_owned()
}

fn default_partitions() -> u16 {
    128
}

fn default_memory() -> ByteSize {
    ByteSize(1 << 30)
}

fn default_record_max() -> ByteSize {
    ByteSize(32 << 20)
}

fn default_splits() -> u16 {
    1
}

fn default_nexmark_kinds() -> Vec<NexmarkKind> {
    vec![NexmarkKind::Person, NexmarkKind::Auction, NexmarkKind::Bid]
}

fn default_batch() -> u16 {
    1024
}
