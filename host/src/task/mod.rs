//! Tasks: one parallel instance of an operator each, with its mailbox and its tables; and the way records take from one to the next.
//!
//! [`flow`] bounds what is in flight and knows when nothing is; [`route`] sends batches on; [`refuse`] is what becomes of records that fail;
//! [`run`] is the loop of one task, `apply` carries out what a call did, `isolate` finds the record at fault; [`others`] reaches the tables of other tasks, [`rounds`] is the beat of serializable operators and
//! `serial` a task's part in it, `together` the effects of its records as one; [`progress`] is how far operators have come in event time, and `wait` what becomes of records that
//! have to wait for it. This room knows nothing of epochs' contents, logs or files: it seals when told.

mod apply;
pub mod flow;
mod isolate;
mod mailbox;
pub mod others;
pub mod progress;
pub mod remote;
pub mod refuse;
pub mod rounds;
pub mod route;
pub mod run;
mod serial;
mod together;
mod wait;

use std::sync::Arc;

use tokio::sync::oneshot;

pub use self::mailbox::{Mailbox, Post};
use crate::epoch::entry::TableDelta;
use crate::record::Batch;
use crate::state::update::Updates;

/// What comes into a task's mailbox.
#[derive(Debug)]
pub enum Message {
    /// Records to work on.
    Records(Batch),
    /// Records that came by a loop: a feedback edge, a send, an outcome. They are not begun while a drain is under way.
    Looped(Arc<Batch>),
    /// Changes of the task's own tables.
    Updates(Box<TaskUpdates>),
    /// What became of updates that this task has sent.
    Outcomes {
        /// The task's port that they are emitted on.
        port: usize,
        /// One record an update.
        records: Batch,
    },
    /// A drain has begun, or all input has ended: do not wait for more records.
    Hurry,
    /// Admission is open again: begin what was carried over.
    Wake,
    /// State is out of memory and on disk as far as it can be: forget what can be read again, then reply.
    Relieve(oneshot::Sender<()>),
    /// Nothing is in flight: hand over what changed since the last seal.
    Seal(oneshot::Sender<TaskSeal>),
}

/// Changes of a task's tables, sent by another task.
#[derive(Debug)]
pub struct TaskUpdates {
    /// The table, by its place among the task's tables.
    pub table: usize,
    /// The changes. All keys are the task's.
    pub updates: Updates,
    /// Where their outcomes go, where somebody asks.
    pub asked: Option<Asked>,
}

/// Who wants to know the outcomes of updates.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The port of the asking task that they are emitted on.
    pub port: usize,
    /// The key of each outcome, what its value has behind the byte that tells the outcome, and its time.
    pub records: Batch,
    /// The asking task.
    pub to: Mailbox,
}

/// What a task hands over at a seal.
#[derive(Debug, Default)]
pub struct TaskSeal {
    /// What changed in its tables.
    pub deltas: Vec<TableDelta>,
    /// What it carries over, in order.
    pub carried: Vec<Arc<Batch>>,
}

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
