//! What this room may run into.

use std::path::PathBuf;

use crate::epoch::Epoch;
use crate::epoch::entry::TableName;
use crate::epoch::log::LogError;

/// Why state cannot be opened, read or written. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The operating system refused something.
    #[error("{action} `{path}`: {error}")]
    Io {
        /// What was tried: "open", "write", …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Another process uses the directory.
    #[error("use the state in `{path}`: the job is running in another process; stop it first")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The state that was here has been moved.
    #[error(
        "use the state in `{path}`: `wasmill rescale` has moved it to {to}; run the job with the manifest that it was moved by (if the command was interrupted, run it again)"
    )]
    Moved {
        /// The directory.
        path: PathBuf,
        /// Where to, for people.
        to: String,
    },
    /// The state of the job lies elsewhere, for other hosts.
    #[error(
        "start from nothing in `{path}`: `{other}` holds state of this job, for other hosts; move it to those of the manifest by `wasmill rescale`, or give the job \
         another directory (`job.state`)"
    )]
    OtherHosts {
        /// The directory that has no state.
        path: PathBuf,
        /// The one that has.
        other: PathBuf,
    },
    /// The state is being moved here.
    #[error(
        "use the state in `{path}`: `wasmill rescale`, which was to move it here, has not come to its end; run it again"
    )]
    Arriving {
        /// The directory.
        path: PathBuf,
    },
    /// The state cannot be moved as it is.
    #[error("move the state in `{path}`: {what}")]
    Unmovable {
        /// The directory.
        path: PathBuf,
        /// Why not, and what to do.
        what: String,
    },
    /// There is no state here.
    #[error("read the state in `{path}`: there is none; the job has not run yet")]
    Absent {
        /// The directory.
        path: PathBuf,
    },
    /// A file is missing, damaged, or belongs to another state directory.
    #[error(
        "use `{path}`: {what}; restore the whole state directory from a copy, or remove it AND the job's output to start from nothing"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file was written by a newer version of the program.
    #[error("use `{path}`: it has format version {found}, this program knows up to {known}; use the newer program")]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// The log refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// redb refused.
    #[error("{action} `{path}`: {error}")]
    Redb {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What redb said.
        error: String,
    },
    /// A table holds values of another schema version than the function declares.
    #[error(
        "open table `{table}`: it holds values of schema version {stored}, from which the component, whose table has version {declared}, cannot migrate; run the component \
         that wrote them, or one that migrates them"
    )]
    SchemaVersion {
        /// The table.
        table: TableName,
        /// The version of stored values.
        stored: u32,
        /// The version that the component declares.
        declared: u32,
    },
    /// A table keeps earlier values by event time, or does not, other than the function declares.
    #[error(
        "open table `{table}`: it is stored {}, but the component declares the opposite; run the component that wrote it",
        if *stored { "with earlier values by event time (`versioned`)" } else { "without earlier values, not `versioned`" }
    )]
    Versioned {
        /// The table.
        table: TableName,
        /// Whether it is stored with earlier values.
        stored: bool,
    },
    /// The component that the last epoch names is not there.
    #[error(
        "run operator `{operator}` as of the last committed epoch: `{path}`, the component that was reloaded, {what}; put a copy of that component back (its SHA-256 is the \
         file's name), or restore the whole state directory"
    )]
    Component {
        /// Whose it is.
        operator: String,
        /// Where it should be.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The job's number of partitions is not the state's.
    #[error(
        "use the state that `{path}` describes: its keys are spread over {stored} partitions, but the manifest says `partitions = {declared}`; \
         the number is fixed for the life of the state: put it back, or start a new state"
    )]
    PartitionCount {
        /// The file that records the number.
        path: PathBuf,
        /// The recorded number.
        stored: u16,
        /// The manifest's.
        declared: u16,
    },
    /// No such table in the state.
    #[error("read table `{table}`: there is no such table; there are: {known}")]
    UnknownTable {
        /// The name asked for.
        table: String,
        /// The names there are.
        known: String,
    },
    /// Calls came in an order that makes no sense: our fault.
    #[error("commit epoch {epoch}: {what}")]
    Order {
        /// The epoch.
        epoch: Epoch,
        /// What was expected.
        what: String,
    },
    /// The feeder has stopped after an error.
    #[error("feed redb in the background: {0}")]
    Feeder(String),
}

/// Why tables refuse a call. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// A key that this task does not own.
    #[error("use key {index}: its partition belongs to another task")]
    ForeignKey {
        /// Which of the call's keys.
        index: usize,
    },
    /// A table that the task was not opened with.
    #[error("use table {table}: the task has {tables} tables")]
    UnknownTable {
        /// The index asked for.
        table: usize,
        /// How many there are.
        tables: usize,
    },
    /// An epoch that is not committed, or not kept any longer.
    #[error(
        "read the state as of epoch {asked}: only epochs {oldest} to {newest} can be read; `checkpoint.retained` and `checkpoint.retained-bytes` say how many are kept"
    )]
    Gone {
        /// The epoch asked for.
        asked: Epoch,
        /// The oldest that can be read.
        oldest: Epoch,
        /// The last committed one.
        newest: Epoch,
    },
    /// A scan of a table that has no order.
    #[error("scan table `{table}`: it is not declared `ordered`")]
    NotOrdered {
        /// The table.
        table: TableName,
    },
    /// A value of another schema version cannot be brought to the present one.
    #[error(
        "read table `{table}`: a value of schema version {from} does not become one of version {to}: {error}; correct the component's `migrate`"
    )]
    Migration {
        /// The table.
        table: TableName,
        /// The value's version.
        from: u32,
        /// The table's.
        to: u32,
        /// What the component said.
        error: String,
    },
    /// What lies behind memory cannot be read.
    #[error(transparent)]
    State(#[from] Box<StateError>),
}
