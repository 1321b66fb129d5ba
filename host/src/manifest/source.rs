//! Sources as the manifest describes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteSize, OnError};

/// An input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// A file, a directory or a glob of files.
    File(FileSource),
    /// Standard input: read once, not replayable.
    Stdin(StdinSource),
    /// Seeded events of the Nexmark benchmark: persons, auctions, bids.
    Nexmark(NexmarkSource),
}

impl Source {
    /// Where a record's key lies, if it has one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::File(source) => source.key.as_deref(),
            Self::Stdin(source) => source.key.as_deref(),
            Self::Nexmark(source) => source.key.as_deref(),
        }
    }

    /// The hosts that read it, if the manifest says so.
    pub fn hosts(&self) -> Option<&[String]> {
        match self {
            Self::File(source) => source.hosts.as_deref(),
            Self::Stdin(_) => None,
            Self::Nexmark(source) => source.hosts.as_deref(),
        }
    }

    /// What becomes of records that cannot be read, and the sink for them. Generated events can always be read.
    pub fn on_error(&self) -> (OnError, Option<&str>) {
        match self {
            Self::File(source) => (source.on_error, source.dead_letter.as_deref()),
            Self::Stdin(source) => (source.on_error, source.dead_letter.as_deref()),
            Self::Nexmark(_) => (OnError::Stop, None),
        }
    }
}

/// A file, a directory of files or a glob; each file is a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileSource {
    /// A file, a directory (its files, not those of its subdirectories) or a glob, relative to the manifest.
    #[schemars(example = &"data/bids-*.jsonl.gz")]
    pub path: String,
    /// How records lie in the file.
    #[schemars(example = &"jsonl")]
    pub format: Format,
    /// How the file is compressed.
    #[serde(default)]
    #[schemars(example = &"gzip")]
    pub compression: Compression,
    /// Where a record's key lies: a JSON pointer (`/user/id`) for `jsonl`, a column's name for `csv`, `.` for the whole line. Without it records have no key.
    #[serde(default)]
    #[schemars(example = &"/auction")]
    pub key: Option<String>,
    /// Where a record's event time lies: a JSON pointer or a column's name.
    #[serde(default)]
    #[schemars(example = &"/date_time")]
    pub time: Option<String>,
    /// How the event time is written.
    #[serde(default)]
    #[schemars(example = &"rfc3339")]
    pub time_format: TimeFormat,
    /// What the value of a CSV record is.
    #[serde(default)]
    #[schemars(example = &"raw")]
    pub csv_value: CsvValue,
    /// Whether to go on reading as files grow and, in a directory or glob, appear.
    #[serde(default)]
    #[schemars(example = true)]
    pub follow: bool,
    /// The longest record accepted; a longer one is a record that cannot be read.
    #[serde(default = "default_record_max")]
    #[schemars(example = &"1MiB")]
    pub record_max: ByteSize,
    /// The hosts that read it, by name; each file is read by one of them, which its name decides. Every one of them must see all the files. Default: all hosts.
    #[serde(default)]
    #[schemars(example = ["a"])]
    pub hosts: Option<Vec<String>>,
    /// What becomes of a record that cannot be read.
    #[serde(default)]
    #[schemars(example = &"dead-letter")]
    pub on_error: OnError,
    /// The sink that receives records which cannot be read, with `on-error = "dead-letter"`.
    #[serde(default)]
    #[schemars(example = &"unreadable")]
    pub dead_letter: Option<String>,
}

/// Standard input; of several hosts, that of the leader. What was read before a crash cannot be read again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StdinSource {
    /// How records lie in the stream.
    #[schemars(example = &"lines")]
    pub format: Format,
    /// Where a record's key lies: a JSON pointer for `jsonl`, a column's name for `csv`, `.` for the whole line. Without it records have no key.
    #[serde(default)]
    #[schemars(example = &".")]
    pub key: Option<String>,
    /// Where a record's event time lies: a JSON pointer or a column's name.
    #[serde(default)]
    #[schemars(example = &"/date_time")]
    pub time: Option<String>,
    /// How the event time is written.
    #[serde(default)]
    #[schemars(example = &"rfc3339")]
    pub time_format: TimeFormat,
    /// What the value of a CSV record is.
    #[serde(default)]
    #[schemars(example = &"raw")]
    pub csv_value: CsvValue,
    /// The longest record accepted; a longer one is a record that cannot be read.
    #[serde(default = "default_record_max")]
    #[schemars(example = &"1MiB")]
    pub record_max: ByteSize,
    /// What becomes of a record that cannot be read.
    #[serde(default)]
    #[schemars(example = &"skip")]
    pub on_error: OnError,
    /// The sink that receives records which cannot be read, with `on-error = "dead-letter"`.
    #[serde(default)]
    #[schemars(example = &"unreadable")]
    pub dead_letter: Option<String>,
    /// Says that records lost in a crash are acceptable. Without it, a job with an exactly-once sink refuses this source.
    #[serde(default)]
    #[schemars(example = true)]
    pub accept_loss: bool,
}

/// Events of the Nexmark benchmark, made from a seed: the same seed gives the same events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NexmarkSource {
    /// How many events in all, over all splits.
    #[schemars(example = 1_000_000)]
    pub events: u64,
    /// The seed.
    #[serde(default)]
    #[schemars(example = 42)]
    pub seed: u64,
    /// How many splits share the events.
    #[serde(default = "default_splits")]
    #[schemars(example = 4, range(min = 1))]
    pub splits: u16,
    /// Which events are let through; the others are generated and left out.
    #[serde(default = "default_nexmark_kinds")]
    #[schemars(example = ["bid"])]
    pub only: Vec<NexmarkKind>,
    /// Where a record's key lies: a JSON pointer into the event. Without it records have no key.
    #[serde(default)]
    #[schemars(example = &"/auction")]
    pub key: Option<String>,
    /// The hosts that make the events, by name; its splits are dealt out to them in turn. Default: all hosts.
    #[serde(default)]
    #[schemars(example = ["a", "b"])]
    pub hosts: Option<Vec<String>>,
    /// Events a second over all splits; without it as fast as the job takes them.
    #[serde(default)]
    #[schemars(example = 10_000, range(min = 1))]
    pub rate: Option<u64>,
}

/// A kind of Nexmark event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CsvValue {
    /// A JSON object with a string for each column, by the header's names.
    #[default]
    Json,
    /// The line as it stands.
    Raw,
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
