//! The manifest as it is written: TOML tables by name, every field documented, unknown fields refused.
//!
//! The types here are the one description of a manifest: the JSON Schema, the reference page and the checks of
//! [`load`](fn@load) are all made from them. This room knows shapes, defaults and places in the text. Whether names resolve and the
//! graph makes sense is `graph`'s business; whether components fit is found when they are loaded.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod admin;
mod cluster;
mod document;
mod load;
mod operator;
mod problem;
mod reference;
mod schema;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod units;
mod validate;

pub use admin::Admin;
pub use cluster::{Cluster, Host, Tls};
pub use document::{At, Document, Part};
pub use load::{Loaded, load, load_text};
pub use operator::{Isolation, Limits, OnError, Operator, Table, Use, json_of};
pub use problem::{Finding, ManifestError, Position, Problem, Severity};
pub(crate) use problem::{did_you_mean, listed};
pub use reference::reference;
pub use schema::schema;
pub use sink::{BlackholeSink, Delivery, FilesSink, OutputFormat, Sink, StdoutSink};
pub use source::{
    Compression, CsvValue, FileSource, Format, NexmarkKind, NexmarkSource, Source, StdinSource, TimeFormat,
};
pub use units::{ByteSize, HumanDuration};

/// A job, as its manifest describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Manifest {
    /// The job itself.
    pub job: Job,
    /// When epochs are sealed, and how many stay readable.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Where the running job can be asked for what is in its tables.
    #[serde(default)]
    pub admin: Admin,
    /// The hosts that run the job together. Without it the job runs on one host.
    #[serde(default)]
    pub cluster: Option<Cluster>,
    /// Where records come from, by name.
    pub sources: BTreeMap<String, Source>,
    /// The functions, by name. A job without any copies its sources to its sinks.
    #[serde(default)]
    pub operators: BTreeMap<String, Operator>,
    /// Where records go, by name.
    pub sinks: BTreeMap<String, Sink>,
}

/// The job's name and resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// The job's name: letters, digits, `-` and `_`. It is recorded in the state directory, which then serves no other job.
    #[schemars(example = &"bid-stats")]
    pub name: String,
    /// The directory of the job's state, relative to the manifest.
    #[serde(default = "default_state")]
    #[schemars(example = &"/var/lib/wasmill/bid-stats")]
    pub state: String,
    /// The number of partitions that keys are spread over; fixed for the life of the state.
    #[serde(default = "default_partitions")]
    #[schemars(example = 256, range(min = 1))]
    pub partitions: u16,
    /// Worker threads; with several hosts those of each, and then required, so that all hosts have the same plan. Default: one a core.
    #[serde(default)]
    #[schemars(example = 2, range(min = 1))]
    pub workers: Option<u16>,
    /// How much memory state may use, its indices and caches included. State beyond it lives on disk. The process takes more than that (`docs/guarantees.md` says what); functions' own memory is bounded by `limits.memory`.
    #[serde(default = "default_memory")]
    #[schemars(example = &"256MiB")]
    pub memory: ByteSize,
    /// How long a clean stop (SIGINT, SIGTERM) waits for what is under way. Then the job ends at its last committed epoch, from which the next start goes on.
    #[serde(default = "default_stop_within")]
    #[schemars(example = &"10s")]
    pub stop_within: HumanDuration,
    /// When a running job goes on with new versions of its components. `watch` is for jobs of one host.
    #[serde(default)]
    #[schemars(example = &"watch")]
    pub reload: Reload,
}

/// When a running job goes on with new versions of its components.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reload {
    /// When `wasmill reload`, or a request by HTTP, brings one.
    #[default]
    Asked,
    /// Also whenever the file of a component changes: for development.
    Watch,
}

/// When epochs are sealed, and how many stay readable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Checkpoint {
    /// The time from one seal to the next.
    #[schemars(example = &"500ms")]
    pub interval: HumanDuration,
    /// Seal after this many records too, whichever comes first.
    #[schemars(example = 100_000, range(min = 1))]
    pub records: Option<u64>,
    /// How many committed epochs stay readable.
    #[schemars(example = 3, range(min = 1))]
    pub retained: u32,
    /// The bytes of state changes up to which that holds: an epoch is dropped early, and that is logged, when the changes behind it pass this. Default: an eighth of `job.memory`.
    #[schemars(example = &"64MiB")]
    pub retained_bytes: Option<ByteSize>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { interval: HumanDuration(Duration::from_secs(1)), records: None, retained: 1, retained_bytes: None }
    }
}

fn default_state() -> String {
    "state".to_owned()
}

fn default_partitions() -> u16 {
    128
}

/// Enough for a batch that is slow, and as long as those who stop processes usually wait before they kill them.
const STOP_WITHIN: HumanDuration = HumanDuration(Duration::from_secs(30));

fn default_stop_within() -> HumanDuration {
    STOP_WITHIN
}

fn default_memory() -> ByteSize {
    ByteSize(1 << 30)
}
