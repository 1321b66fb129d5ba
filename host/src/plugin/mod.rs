//! Functions: components compiled, checked, instantiated and called.
//!
//! The only room that names wasmtime. It knows batches in and [`Effects`] out; it knows nothing of where records come from, of
//! epochs, or of what becomes of the effects.
//!
//! [`engine`] compiles and caches, [`instance`] holds one live instance and calls it, [`callable`] is what tasks see of both, `imports` and `others` are what a guest may call while it
//! works, `declarations` what it may call in `describe`, [`migration`] an instance that knows no host at all, `wasi` what a language may want beside the contract; `trap` is what a failed call comes to, and `bindings` is generated from the contract in `wit/`.

mod answer;
mod bindings;
mod cache;
pub mod callable;
mod declarations;
pub mod engine;
mod imports;
pub mod instance;
pub mod migration;
mod others;
mod rejected;
mod run_clock;
mod trap;
mod wasi;

use std::pin::Pin;
use std::sync::Arc;

use crate::cluster::lookups::Answer;
pub use crate::cluster::lookups::Staleness;
pub use crate::lookup::{Consistency, Page};
use crate::record::{Batch, Column};
use crate::state::update::Updates;

/// The version of the contract that this host implements.
pub const WORLD: &str = "wasmill:operator/operator@0.1.0";

pub use crate::graph::{DEFAULT_PORT, Waiting};

/// What a component says of itself. Whether that makes sense is the graph's business.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Description {
    /// The function's name, for people.
    pub name: String,
    /// The function's own version, for people.
    pub version: String,
    /// The tables it keeps: name and schema version, in the order in which effects refer to them.
    pub tables: Vec<(String, u32)>,
    /// The tables among them that `describe` opens to the job.
    pub open_tables: Vec<String>,
    /// The tables among them that can be scanned.
    pub ordered_tables: Vec<String>,
    /// The tables among them that keep earlier values by event time, with the span for which they do, in milliseconds.
    pub versioned_tables: Vec<(String, u64)>,
    /// The other schema versions whose values it can migrate to those of its own, by table.
    pub migrates_from: Vec<(String, u32)>,
    /// The names of the tables that it uses beside its own.
    pub uses: Vec<String>,
    /// The ports it emits on, `out` first.
    pub ports: Vec<String>,
    /// Whether it can take calls whose records are [`Records::Apart`].
    pub apart: bool,
}

/// What the records of a call are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// Each sees what those before it have written.
    Together,
    /// Each sees the state as the call found it, and the call tells what each reads.
    Apart,
}

/// For which records of a call something is read, by their places in its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers<'a> {
    /// For all of them, as far as is known.
    All,
    /// For one of them.
    One(u32),
    /// Each key for one of them: as many as there are keys.
    Each(&'a [u32]),
}

impl Readers<'_> {
    /// The record that wants key `index`, if it is known.
    pub fn of(self, index: usize) -> Option<u32> {
        match self {
            Self::All => None,
            Self::One(record) => Some(record),
            Self::Each(records) => records.get(index).copied(),
        }
    }
}

/// What a function may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Linear memory and tables of one instance, in bytes.
    pub memory_bytes_max: u64,
    /// Running time of one call.
    pub run_time_max: std::time::Duration,
    /// Bytes of output and state writes of one call, with some for each call that hands them over and for each item.
    pub output_bytes_max: u64,
    /// Log lines of all calls with one batch, or its parts.
    pub log_lines_max: u32,
}

/// State as an instance reads it: the tables of the task that runs it.
pub trait StateReader: Send + Sync {
    /// Calls `found` for each of `keys`, which `readers` want, with its index and value.
    ///
    /// # Errors
    /// Before `found` is called for the first time, or when state on disk cannot be read.
    fn read(
        &self,
        table: usize,
        keys: &Column,
        readers: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError>;

    /// Whether the task owns `key`.
    fn owns(&self, key: &[u8]) -> bool;
}

/// What comes from other hosts: an instance is suspended until it is there.
pub type Elsewhere<T> = Pin<Box<dyn Future<Output = Result<T, LookupError>> + Send>>;

/// What other hosts are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<'a> {
    /// Values as of one moment, or, where that is the present, of one that is not much older.
    At(Consistency, Option<Staleness>),
    /// The values that held at these event times, one a key.
    AsOfTimes(&'a [i64]),
}

/// Values from another host.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    /// Which of the keys asked for they are of.
    pub places: Vec<usize>,
    /// They themselves.
    pub answer: Answer,
}

/// The tables that an operator uses beside its own, as an instance reads them. A table is named by its place in the operator's `uses`.
pub trait OtherTables: Send + Sync {
    /// Calls `found` once for each of `keys` that this host owns, which `readers` want, with its index and value, in any order.
    ///
    /// # Errors
    /// [`LookupError::Host`] when state cannot be read, else what the guest is told.
    fn get_many(
        &self,
        table: usize,
        keys: &Column,
        readers: Readers<'_>,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError>;

    /// Calls `found` once for each of `keys` that this host owns, with its index and the value that held at its time, in any order. With `wait`, not before the table's owner has come to
    /// all of the times.
    ///
    /// # Errors
    /// As [`OtherTables::get_many`]; [`LookupError::NotYet`] while the owner has not come so far.
    fn get_many_as_of_time(
        &self,
        table: usize,
        keys: &Column,
        times: &[i64],
        wait: bool,
        readers: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError>;

    /// This host's keys from `from` to before `to` with their values, ascending, at most `limit`; and where the next page begins, if this was not the last.
    ///
    /// # Errors
    /// As [`OtherTables::get_many`].
    fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        readers: Readers<'_>,
        consistency: Consistency,
    ) -> Result<Page, LookupError>;

    /// Asks the other hosts that own some of `keys`, if there are any, for what the calls above have not found.
    fn get_elsewhere(&self, _table: usize, _keys: &Column, _read: Read<'_>) -> Option<Elsewhere<Vec<Fetched>>> {
        None
    }

    /// Asks the other hosts that own some of a table's keys, if there are any, for their pages.
    fn scan_elsewhere(
        &self,
        _table: usize,
        _from: &[u8],
        _to: Option<&[u8]>,
        _limit: usize,
        _consistency: Consistency,
    ) -> Option<Elsewhere<Vec<Page>>> {
        None
    }
}

/// Why a lookup has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupError {
    /// The epoch is not retained.
    Gone(String),
    /// The table is not of the kind that can answer this.
    NotAllowed(String),
    /// The table's owner has not come so far in event time.
    NotYet(String),
    /// State on disk cannot be read: the host's fault.
    Host(String),
}

/// A table that an operator uses beside its own: what its function calls it, and what it may do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The name in the function.
    pub name: String,
    /// Whether it may look values up.
    pub read: bool,
    /// Whether it may change values.
    pub update: bool,
    /// Whether it may send records to the function that owns the table.
    pub send: bool,
    /// Whether the table can be scanned.
    pub ordered: bool,
    /// Whether the table keeps earlier values by event time.
    pub versioned: bool,
    /// Whether lookups may wait until the table's owner has come to a time.
    pub waiting: Waiting,
}

/// Updates of a table that the operator uses, in the order in which the guest made them.
#[derive(Debug, Clone, PartialEq)]
pub struct TableUpdates {
    /// The table, by its place in the operator's `uses`.
    pub table: usize,
    /// The changes.
    pub updates: Updates,
    /// The record that caused each.
    pub records: Vec<u32>,
    /// What comes back, where the function asks for it.
    pub outcomes: Option<Outcomes>,
}

/// What comes back from updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcomes {
    /// The port that the outcomes are emitted on, by its place in [`Description::ports`].
    pub port: usize,
    /// The key of each outcome, what its value has behind the byte that tells the outcome (that byte is not in it yet), and the time of the record that
    /// caused it.
    pub records: Batch,
}

/// Records sent to the function that owns a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The table, by its place in the operator's `uses`.
    pub table: usize,
    /// The records.
    pub batch: Batch,
    /// The input record that caused each.
    pub records: Vec<u32>,
}

/// Why state cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateReadError {
    /// The task does not own this one of the keys: the guest's fault.
    ForeignKey(usize),
    /// State on disk cannot be read: the host's fault.
    Host(String),
}

/// Writes to one table, in the order in which the guest made them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writes {
    /// The table, by its place in [`Description::tables`].
    pub table: usize,
    /// The keys.
    pub keys: Column,
    /// Their values, or `None` where the keys are deleted.
    pub values: Option<Column>,
    /// The record that caused each write.
    pub records: Vec<u32>,
}

/// Records emitted on one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// The port, by its place in [`Description::ports`].
    pub port: usize,
    /// The records.
    pub batch: Batch,
    /// The input record that caused each.
    pub records: Vec<u32>,
}

/// Changes of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures<T> {
    /// Its name.
    pub name: String,
    /// The changes in order.
    pub values: Vec<T>,
    /// The record that caused each. Empty where they are the call's.
    pub records: Vec<u32>,
}

/// What one successful call did, to be applied as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effects {
    /// State writes in order.
    pub writes: Vec<Writes>,
    /// Emitted records in order.
    pub emitted: Vec<Emitted>,
    /// Updates of tables that the operator uses, in order.
    pub updates: Vec<TableUpdates>,
    /// Records sent to the owners of such tables, in order.
    pub sent: Vec<Sent>,
    /// Records that the function refused, with its reasons; no effect of theirs is in the other fields.
    pub rejects: Vec<(u32, String)>,
    /// Additions to counters.
    pub counts: Vec<Figures<u64>>,
    /// New values of gauges.
    pub gauges: Vec<Figures<f64>>,
    /// Whether effects of rejected records were taken out, so that the instance may hold what did not happen.
    pub dropped_any: bool,
}

/// Why a call failed; nothing of it has happened, and its instance is of no further use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// For people: the trap with the function's back-trace, the returned error, the limit with the figure reached.
    pub message: String,
    /// The record that was being worked on, if the function said so.
    pub culprit: Option<u32>,
    /// The beginning of the last line that the function logged as an error, a panic's message for example.
    pub said: Option<Arc<str>>,
}

/// What the calls with one batch, as a whole or in parts, have logged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchLog {
    /// The lines so far: the limit is the batch's.
    pub lines: u32,
    /// What a call said before it failed ([`Failure::said`]): when its records are run again, that line is not written a second time.
    pub told: Option<Arc<str>>,
}

/// What kind of failure a call met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The function trapped: a panic, an access out of bounds, stack overflow.
    Trap,
    /// It ran longer than it may.
    RunTime,
    /// It wanted more memory than it may have and could not go on.
    Memory,
    /// It returned an error.
    Returned,
    /// It exceeded another limit or broke the contract.
    Contract,
    /// The host could not do its part (state on disk could not be read). No record is at fault.
    Host,
    /// It asked for what is not known before another operator has come to a time. No record is at fault: it is to be run again then.
    NotYet,
}

/// Why a component cannot be used. Completes "failed to load operator `x`: …".
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The component's file cannot be read.
    #[error("cannot read `{path}`: {error}; build it with `wasmill build`, or correct `component`")]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is a core module, not a component.
    #[error("`{path}` is a core Wasm module, not a component: make it one with `wasmill componentize`")]
    CoreModule {
        /// The file.
        path: std::path::PathBuf,
    },
    /// It is no valid component, or needs a Wasm feature that is off.
    #[error("`{path}` is not a valid component: {error}")]
    Compile {
        /// The file.
        path: std::path::PathBuf,
        /// What the compiler said.
        error: String,
    },
    /// It does not implement the contract.
    #[error("`{path}` does not implement `{WORLD}`: {error}")]
    World {
        /// The file.
        path: std::path::PathBuf,
        /// What is missing or different.
        error: String,
    },
    /// `describe` failed or says something impossible.
    #[error("`describe` of `{path}`: {error}")]
    Describe {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        error: String,
    },
    /// `init` refused the config, or failed.
    #[error("`init` failed: {0}; see `config` of this operator in the manifest")]
    Init(String),
    /// The engine cannot run on this machine.
    #[error("cannot start the Wasm engine: {0}")]
    Engine(String),
}
