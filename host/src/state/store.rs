//! stub

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Pressure, StateError, TableSpec, TaskTables};
use crate::disk::Disk;
use crate::epoch::entry::{Entry, TableName};
use crate::epoch::log::AppendStats;
use crate::epoch::{Attempt, Epoch};
use crate::time::Clock;

/// How a state directory is to be used.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The number of partitions of the job.
    pub partitions: u16,
    /// What tables, what waits for redb, and redb's cache may use together.
    pub memory_bytes: u64,
    /// How many committed epochs stay readable, at least 1.
    pub retained: u32,
    /// redb is fed when the oldest epoch that it lacks is this old, if not before.
    pub feed_age: Duration,
    /// The clock that `feed_age` and statistics go by.
    pub clock: Clock,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            partitions: 128,
            memory_bytes: 1 << 30,
            retained: 1,
            feed_age: Duration::from_secs(10),
            clock: Clock::system(),
        }
    }
}

/// A state directory, opened.
#[derive(Debug)]
pub struct Opened {
    /// For tasks, and for whoever watches memory.
    pub store: Arc<StateStore>,
    /// For the thread that commits epochs.
    pub committer: Committer,
    /// The number of this start.
    pub attempt: Attempt,
    /// The last committed entry, without its deltas; `None` where nothing was committed yet.
    pub last: Option<Entry>,
    /// Entries that are committed and not noted as published, oldest first, `last` among them when it is; without their deltas.
    pub unpublished: Vec<Entry>,
    /// What the caller gave at the first start: to be compared with what it gave now.
    pub fingerprint: serde_json::Value,
    /// The tables that the state holds, with the schema versions of their values.
    pub tables: BTreeMap<TableName, BTreeSet<u32>>,
}

/// The half that makes epochs durable. One thread owns it.
#[derive(Debug)]
pub struct Committer {}

/// What a commit took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// The time spent in writing and syncing the `committed` file.
    pub sync: Duration,
}

impl Committer {
    /// Makes an entry durable, but not yet committed: nothing of it may be published.
    ///
    /// # Errors
    /// When it cannot be written, or is not the epoch behind the last committed one. The job has to stop then.
    pub fn append(&mut self, entry: &Entry) -> Result<AppendStats, StateError> {
        let _ = entry;
        todo!()
    }

    /// Commits the entry appended last, and hands its deltas on to redb's feeder.
    ///
    /// # Errors
    /// When it cannot be written. Whether the epoch is committed is then found at the next start; the job has to stop.
    pub fn commit(&mut self, entry: Entry) -> Result<CommitStats, StateError> {
        let _ = entry;
        todo!()
    }
}

/// Memory in use, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// All tables of all tasks.
    pub tables_bytes: u64,
    /// Committed changes that wait for redb. What tables hold, too, is counted twice.
    pub backlog_bytes: u64,
    /// redb's cache at its fullest.
    pub redb_cache_bytes: u64,
    /// What they may use together.
    pub budget_bytes: u64,
}

/// The state of a running job.
#[derive(Debug)]
pub struct StateStore {}

impl StateStore {
    /// Opens the state directory `dir`, or makes it when there is none.
    ///
    /// `fingerprint` is recorded when the directory is made; later starts get the recorded one back in [`Opened::fingerprint`].
    ///
    /// # Errors
    /// When it is locked, damaged, of a newer format, or the system refuses. Never starts from nothing, or from an older epoch, instead.
    pub fn open(
        dir: &Path,
        disk: Arc<dyn Disk>,
        fingerprint: &serde_json::Value,
        options: OpenOptions,
    ) -> Result<Opened, StateError> {
        let _ = (dir, disk, fingerprint, options);
        todo!()
    }

    /// The tables of a task, with what the state holds for its partitions. Each partition of a table is opened once.
    ///
    /// # Errors
    /// When stored values have another schema version, or cannot be read.
    pub fn open_task(&self, partitions: Range<u16>, tables: &[TableSpec]) -> Result<Arc<TaskTables>, StateError> {
        let _ = (partitions, tables);
        todo!()
    }

    /// Feeds redb up to the last committed epoch (less those retained), and waits for it.
    ///
    /// # Errors
    /// When the feeder failed, now or before.
    pub fn flush(&self) -> Result<Epoch, StateError> {
        todo!()
    }

    /// [`StateStore::flush`], then ends the feeder: for the end of the job. Without it, the next start feeds redb from the log.
    ///
    /// # Errors
    /// As [`StateStore::flush`].
    pub fn close(&self) -> Result<(), StateError> {
        todo!()
    }

    /// How memory stands against its budget.
    pub fn pressure(&self) -> Pressure {
        todo!()
    }

    /// What is in use.
    pub fn memory(&self) -> MemoryUse {
        todo!()
    }

    /// The epoch that redb holds durably.
    pub fn durable_epoch(&self) -> Epoch {
        todo!()
    }

    /// Whether the background still works.
    ///
    /// # Errors
    /// What the feeder failed with.
    pub fn check(&self) -> Result<(), StateError> {
        todo!()
    }
}
