//! A job that runs: it opens state and connectors, starts tasks, drives epochs, and ends cleanly.
//!
//! `assemble` makes everything that runs from the checked graph; `read` and `write` are the threads of sources and sinks; `coordinate` drives epochs;
//! `commit` makes them durable; `reload` brings in new versions of functions; `host` is one of several hosts; `rescale` moves what they have to others. Whoever starts a job watches its
//! [`Meters`] and gets a [`Summary`] at the end.

mod assemble;
mod clock;
mod commit;
mod coordinate;
mod host;
mod read;
mod reload;
mod rescale;
#[cfg(test)]
mod simulation;
mod stop;
mod summary;
mod trial;
mod wire;
mod workers;
mod write;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

pub use assemble::{JobOptions, Serve, Serving, declared, run, worker_count};
pub use host::{ClusterStatus, RemoteLookups};
pub use reload::{ReloadError, ReloadRequests, Reloaded, Reloads};
pub use rescale::{Moved, Share, rescale};
pub use summary::{OperatorSummary, SourceSummary, Summary};
pub use trial::Trial;
pub use wire::limits;

use crate::cluster::link::LinkError;
use crate::connector::ConnectorError;
use crate::epoch::entry::RunningComponent;
use crate::epoch::log::LogError;
use crate::manifest::{At, Document, ManifestError};
use crate::metrics::{Counter, Durations, OperatorMeters};
use crate::plugin::PluginError;
use crate::state::{MemoryUse, StateError};
use crate::task::TaskError;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// All input was read and processed.
    InputEnded,
    /// Somebody asked for it; the next start goes on where this one ended.
    Stopped,
    /// Somebody asked for it, but what was under way did not end within `job.stop-within`: ended at the last committed epoch, without a last checkpoint.
    StoppedShort,
    /// Whoever read its standard output has gone. Ended at the last committed epoch: what came after it has not reached anybody for certain.
    OutputClosed,
    /// It failed; the next start goes on behind the last committed epoch.
    Failed,
}

/// What a job came to.
#[derive(Debug)]
pub struct Outcome {
    /// The figures reached.
    pub summary: Summary,
    /// Why it failed, if it did.
    pub failure: Option<JobError>,
}

/// Why a job failed. Its state and output stay at the last committed epoch; a new start goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A record or a task failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The state belongs to a different job, or to an earlier form of this one.
    #[error("the state in `{directory}` does not fit the manifest:\n{problems}")]
    Identity {
        /// The state directory.
        directory: std::path::PathBuf,
        /// One line a problem, with what to do.
        problems: String,
    },
    /// A source or sink.
    #[error("{kind} `{name}`: {error}")]
    Connector {
        /// `source` or `sink`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What happened.
        error: ConnectorError,
    },
    /// The input that the manifest names is not there.
    #[error("source `{name}`: {error}; correct `sources.{name}.path` in {place}, or put the input there")]
    MissingInput {
        /// The source.
        name: String,
        /// What is not there.
        error: ConnectorError,
        /// Where the path is written: file, line and column, or the override.
        place: String,
    },
    /// The input is not what it was.
    #[error("{0}")]
    Input(String),
    /// A component cannot be used.
    #[error("operator `{operator}`: {error}")]
    Plugin {
        /// The operator.
        operator: String,
        /// Why.
        error: PluginError,
    },
    /// The manifest and the components do not fit each other.
    #[error(transparent)]
    Manifest(ManifestError),
    /// Others cannot be let ask the job as the manifest says.
    #[error("failed to {0}")]
    Serve(String),
    /// The engine cannot start, or a defect of the plan.
    #[error("{0}")]
    Plan(String),
    /// State does not fit its memory even after all of it has gone to disk.
    #[error("`job.memory` is too small for this job: tables take {} bytes and changes on their way to disk {} of {}; raise it, or lower `job.partitions` or an operator's `parallelism`", .0.tables_bytes, .0.backlog_bytes, .0.budget_bytes)]
    Memory(MemoryUse),
    /// More waits for the next epoch than an epoch may carry over.
    #[error(
        "what goes round by loops (`feedback`, `send`, outcomes), or waits for the progress of an operator (lookups with `wait`), takes {bytes} bytes, more than the {bytes_max} that \
         an epoch may carry over; a function that sends more than it receives, for ever, cannot come to an end, and splits that bring both what waits and what it waits for should \
         not lie far apart in event time"
    )]
    CarriedOver {
        /// Their bytes.
        bytes: u64,
        /// The most that may.
        bytes_max: u64,
    },
    /// Another host of the job.
    #[error("the host `{host}` has failed: {reason}")]
    Elsewhere {
        /// Which.
        host: String,
        /// The exit code of its process.
        code: u8,
        /// Its own reason.
        reason: String,
    },
    /// The connections to other hosts.
    #[error("failed to {0}")]
    Link(LinkError),
    /// A thread could not be started, or ended unexpectedly.
    #[error("{0} could not be started, or ended unexpectedly")]
    Lost(String),
    /// A new version of a function has not stood its trial: the job goes on from its last committed epoch.
    #[error("the trial of a new version of operator `{operator}` has failed: {why}")]
    RolledBack {
        /// The operator.
        operator: String,
        /// Why.
        why: String,
    },
}

impl JobError {
    pub(crate) fn source(name: &str, error: ConnectorError) -> Self {
        Self::Connector { kind: "source", name: name.to_owned(), error }
    }

    pub(crate) fn sink(name: &str, error: ConnectorError) -> Self {
        Self::Connector { kind: "sink", name: name.to_owned(), error }
    }

    /// The same error, with the place in the manifest where it can be put right, if it has one.
    fn placed(self, document: &Document) -> Self {
        match self {
            Self::Connector { kind: "source", name, error: error @ ConnectorError::Missing { .. } } => {
                let place = document.place_of(&At::value(["sources", &name, "path"]));
                Self::MissingInput { name, error, place }
            }
            error => error,
        }
    }

    /// The process's exit code for this error, as the README documents it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Task(TaskError::Record { .. }) => 4,
            Self::State(error) => state_exit_code(error),
            Self::Identity { .. } | Self::Connector { error: ConnectorError::Output(_), .. } => 3,
            Self::Task(TaskError::Plugin { .. })
            | Self::Plugin { .. }
            | Self::Connector { error: ConnectorError::Settings(_), .. }
            | Self::Memory(_)
            | Self::Serve(_)
            | Self::Manifest(_) => 2,
            Self::Elsewhere { code, .. } => *code,
            Self::Link(LinkError::Pem { .. } | LinkError::Tls(_)) => 2,
            Self::Link(_)
            | Self::Task(_)
            | Self::CarriedOver { .. }
            | Self::Connector { .. }
            | Self::MissingInput { .. }
            | Self::Input(_)
            | Self::Plan(_)
            | Self::Lost(_)
            | Self::RolledBack { .. } => 1,
        }
    }
}

/// A directory that is not what it should be is one thing, a disk that is full another: after that, a new start may go well.
fn state_exit_code(error: &StateError) -> u8 {
    match error {
        StateError::Io { .. } | StateError::Redb { .. } | StateError::Order { .. } | StateError::Feeder(_) => 1,
        StateError::Log(LogError::Io { .. } | LogError::Order { .. } | LogError::Failed { .. }) => 1,
        StateError::UnknownTable { .. } => 2,
        StateError::Locked { .. }
        | StateError::Moved { .. }
        | StateError::OtherHosts { .. }
        | StateError::Arriving { .. }
        | StateError::Unmovable { .. }
        | StateError::Absent { .. }
        | StateError::Damaged { .. }
        | StateError::NewerFormat { .. }
        | StateError::Component { .. }
        | StateError::SchemaVersion { .. }
        | StateError::Versioned { .. }
        | StateError::PartitionCount { .. }
        | StateError::Log(
            LogError::Damaged { .. }
            | LogError::Foreign { .. }
            | LogError::Newer { .. }
            | LogError::Misfit { .. }
            | LogError::Shared { .. }
            | LogError::Hosts { .. },
        ) => 3,
    }
}

/// The live figures of a job, readable by any thread while it runs.
#[derive(Debug, Default)]
pub struct Meters {
    /// The last committed epoch, over the job's whole life.
    pub committed_epoch: AtomicU64,
    /// Epochs sealed since the start.
    pub sealed: Counter,
    /// Bytes written to the epoch log.
    pub log_bytes: Counter,
    /// Times a seal was due while the one before was not committed yet.
    pub late_seals: Counter,
    /// Times admission stopped because state had outgrown its memory.
    pub memory_stops: Counter,
    /// How long things took.
    pub durations: Mutex<EpochDurations>,
    /// From the start to the first record admitted.
    pub first_record: OnceLock<Duration>,
    /// What each operator counts.
    pub operators: Mutex<BTreeMap<String, Arc<OperatorMeters>>>,
    /// Which component each operator runs.
    pub components: Mutex<BTreeMap<String, RunningComponent>>,
    /// What each source counts.
    pub sources: Mutex<BTreeMap<String, Arc<SourceMeters>>>,
    /// Records that each sink received.
    pub sinks: Mutex<BTreeMap<String, Arc<Counter>>>,
    /// How the hosts of the job are, where there are several.
    pub cluster: Mutex<Option<ClusterStatus>>,
}

/// What one source counts.
#[derive(Debug, Default)]
pub struct SourceMeters {
    /// Records admitted, those included that could not be read.
    pub records_in: Counter,
    /// Records that could not be read.
    pub refused: Arc<Counter>,
    /// Input bytes consumed of each split.
    pub bytes_read: Mutex<BTreeMap<String, u64>>,
    /// Input bytes in all when last looked at, where that has a meaning.
    pub bytes_total: Mutex<Option<u64>>,
}

impl SourceMeters {
    /// Input bytes consumed of all splits.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.lock().values().sum()
    }
}

/// How long the parts of epochs took.
#[derive(Debug, Default)]
pub struct EpochDurations {
    /// Admission closed, from the request of a seal until it was sealed.
    pub pause: Durations,
    /// The part of the pause until nothing was in flight.
    pub drain: Durations,
    /// From the seal to the published commit.
    pub commit: Durations,
}

impl Meters {
    /// Records admitted by all sources.
    pub fn records_in(&self) -> u64 {
        self.sources.lock().values().map(|source| source.records_in.get()).sum()
    }

    /// Records received by all sinks.
    pub fn records_out(&self) -> u64 {
        self.sinks.lock().values().map(|sink| sink.get()).sum()
    }

    /// Records refused by sources and operators.
    pub fn rejected(&self) -> u64 {
        let sources: u64 = self.sources.lock().values().map(|source| source.refused.get()).sum();
        let operators: u64 = self.operators.lock().values().map(|operator| operator.refused.get()).sum();
        sources + operators
    }

    /// Input bytes not read yet, where all sources know their size.
    pub fn lag_bytes(&self) -> Option<u64> {
        let sources = self.sources.lock();
        let lags =
            sources.values().map(|source| Some((*source.bytes_total.lock())?.saturating_sub(source.bytes_read())));
        lags.sum()
    }

    /// The counters of the job's life, `before` this attempt included.
    fn totals(&self, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        let now =
            [("records_in", self.records_in()), ("records_out", self.records_out()), ("rejected", self.rejected())];
        now.into_iter().map(|(name, count)| (name.to_owned(), count + before.get(name).copied().unwrap_or(0))).collect()
    }
}
