//! Tasks: one parallel instance of an operator each, with its mailbox and its tables; and the way records take from one to the next.
//!
//! [`flow`] bounds what is in flight and knows when nothing is; [`route`] sends batches on; [`refuse`] is what becomes of records that fail;
//! [`run`] is the loop of one task, and `isolate` finds the record at fault. This room knows nothing of epochs' contents, logs or files: it seals when told.

pub mod flow;
mod isolate;
pub mod refuse;
pub mod route;
pub mod run;

use tokio::sync::{mpsc, oneshot};

use crate::epoch::entry::TableDelta;
use crate::record::Batch;

/// What comes into a task's mailbox.
#[derive(Debug)]
pub enum Message {
    /// Records to work on.
    Records(Batch),
    /// A drain has begun: do not wait for more records.
    Hurry,
    /// State is out of memory and on disk as far as it can be: forget what can be read again, then reply.
    Relieve(oneshot::Sender<()>),
    /// Nothing is in flight: hand over what changed since the last seal.
    Seal(oneshot::Sender<Vec<TableDelta>>),
}

/// The sending side of a mailbox. It never blocks: what is in flight is bounded at the sources.
pub type Mailbox = mpsc::UnboundedSender<Message>;

/// Why a job cannot go on. Completes "the job stopped: …".
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A record failed and the manifest says `on-error = "stop"`.
    #[error(
        "{who} failed on a record {which}: {error}\nset `on-error` to \"dead-letter\" or \"skip\" to go on without such records"
    )]
    Record {
        /// `operator `x`` or `source `x``.
        who: String,
        /// By its place in the input, its key, or, without either, its beginning.
        which: String,
        /// What went wrong.
        error: String,
    },
    /// A function could not be started.
    #[error("operator `{operator}`: {error}")]
    Plugin {
        /// The operator.
        operator: String,
        /// Why.
        error: crate::plugin::PluginError,
    },
    /// State, input or output failed.
    #[error("{0}")]
    Storage(String),
    /// A thread of the job ended unexpectedly: a defect of Wasmill's.
    #[error("{0} ended unexpectedly; this is a defect of wasmill")]
    Lost(String),
}
