//! Sinks as the manifest describes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HumanDuration;

/// An output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Sink {
    /// A directory of files.
    Files(FilesSink),
    /// Standard output, at least once.
    Stdout(StdoutSink),
    /// Counts records and drops them.
    Blackhole(BlackholeSink),
}

impl Sink {
    /// What it receives.
    pub fn inputs(&self) -> &[String] {
        match self {
            Self::Files(sink) => &sink.inputs,
            Self::Stdout(sink) => &sink.inputs,
            Self::Blackhole(sink) => &sink.inputs,
        }
    }

    /// Whether a crash neither loses nor doubles any of its output.
    pub fn is_exactly_once(&self) -> bool {
        matches!(self, Self::Files(sink) if sink.delivery == Delivery::ExactlyOnce)
    }
}

/// A directory of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilesSink {
    /// What it receives: sources and operators by name, `operator.port`. Empty for a sink that only receives dead letters.
    #[serde(default)]
    #[schemars(example = ["stats"])]
    pub inputs: Vec<String>,
    /// The directory, relative to the manifest; made if it is missing.
    #[schemars(example = &"out")]
    pub path: String,
    /// How a record is written.
    #[serde(default)]
    #[schemars(example = &"jsonl")]
    pub format: OutputFormat,
    /// The columns of `format = "csv"`: JSON pointers into the value, or `key`, `time`, `value`.
    #[serde(default)]
    #[schemars(example = ["key", "/count"])]
    pub columns: Vec<String>,
    /// What a crash may do to the output.
    #[serde(default)]
    #[schemars(example = &"at-least-once")]
    pub delivery: Delivery,
    /// Several epochs to a file: a file is completed at the first seal after this time. Without it, each epoch that is not empty has its file.
    #[serde(default)]
    #[schemars(example = &"10s")]
    pub roll: Option<HumanDuration>,
}

/// Standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StdoutSink {
    /// What it receives: sources and operators by name, `operator.port`. Empty for a sink that only receives dead letters.
    #[serde(default)]
    #[schemars(example = ["stats"])]
    pub inputs: Vec<String>,
    /// How a record is written.
    #[serde(default)]
    #[schemars(example = &"jsonl")]
    pub format: OutputFormat,
    /// The columns of `format = "csv"`: JSON pointers into the value, or `key`, `time`, `value`.
    #[serde(default)]
    #[schemars(example = ["key", "/count"])]
    pub columns: Vec<String>,
}

/// Nothing: for measuring, and for outputs of no interest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BlackholeSink {
    /// What it receives: sources and operators by name, `operator.port`. Empty for a sink that only receives dead letters.
    #[serde(default)]
    #[schemars(example = ["stats"])]
    pub inputs: Vec<String>,
}

/// How a record is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// Output becomes visible when its epoch is committed, once.
    #[default]
    ExactlyOnce,
    /// Output is visible at once; after a crash some of it may come again.
    AtLeastOnce,
}
