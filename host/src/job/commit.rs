//! The thread that makes sealed epochs durable and visible: sync the sinks' files, append the entry, commit it, publish.
//!
//! On one host the two halves follow each other. On several, the first makes an epoch *prepared*, and the second waits until every host's is and the commit record names them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::JobError;
use crate::connector::Sink;
use crate::epoch::entry::{Entry, SinkSeal};
use crate::epoch::log::AppendStats;
use crate::epoch::{Digest, Epoch};
use crate::state::Committer;

/// What the thread reports for each epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Committed {
    pub(super) epoch: Epoch,
    /// From the seal to the published commit.
    pub(super) took: Duration,
    /// The bytes of its log entry.
    pub(super) entry_bytes: u64,
}

/// A sealed epoch on its way to the log.
pub(super) struct Sealed {
    pub(super) entry: Entry,
    pub(super) sealed_at: Instant,
}

/// An epoch whose entry is durable, but has no effect yet.
pub(super) struct Prepared {
    pub(super) entry: Entry,
    /// What its append took; with the entry's digest.
    pub(super) appended: AppendStats,
    seals: BTreeMap<String, SinkSeal>,
    sealed_at: Instant,
}

/// What the commit thread is to do.
pub(super) enum Order {
    /// Make an epoch durable, then visible.
    Commit(Sealed),
    /// Make an epoch durable, and wait with the rest.
    Prepare(Sealed),
    /// Make the prepared epoch count, then visible.
    Conclude,
}

/// What the commit thread has done.
pub(super) enum Report {
    /// An epoch is durable, by an entry with this digest.
    Prepared(Epoch, Digest),
    /// An epoch is committed and published.
    Committed(Committed),
}

/// The commit thread's means.
pub(super) struct Commits {
    committer: Committer,
    sinks: BTreeMap<String, Arc<dyn Sink>>,
    prepared: Option<Prepared>,
}

impl Commits {
    pub(super) fn new(committer: Committer, sinks: BTreeMap<String, Arc<dyn Sink>>) -> Self {
        Self { committer, sinks, prepared: None }
    }

    pub(super) fn carry_out(&mut self, order: Order) -> Result<Report, JobError> {
        let Self { committer, sinks, prepared } = self;
        match order {
            Order::Commit(sealed) => commit(committer, sinks, sealed).map(Report::Committed),
            Order::Prepare(sealed) => {
                let Prepared { entry, appended, .. } = prepared.insert(prepare(committer, sinks, sealed)?);
                Ok(Report::Prepared(entry.epoch, appended.digest))
            }
            Order::Conclude => {
                let epoch = prepared.take().ok_or_else(|| JobError::Lost("a prepared epoch".to_owned()))?;
                conclude(committer, sinks, epoch).map(Report::Committed)
            }
        }
    }
}

/// Makes one epoch durable, then visible.
pub(super) fn commit(
    committer: &mut Committer,
    sinks: &BTreeMap<String, Arc<dyn Sink>>,
    sealed: Sealed,
) -> Result<Committed, JobError> {
    let prepared = prepare(committer, sinks, sealed)?;
    conclude(committer, sinks, prepared)
}

/// Makes one epoch durable. Nothing of it counts, or is published, before [`conclude`].
pub(super) fn prepare(
    committer: &mut Committer,
    sinks: &BTreeMap<String, Arc<dyn Sink>>,
    sealed: Sealed,
) -> Result<Prepared, JobError> {
    let Sealed { mut entry, sealed_at } = sealed;
    let seals = entry.sinks.clone();
    for (name, seal) in &seals {
        sinks[name].sync(seal).map_err(|error| JobError::sink(name, error))?;
    }
    for (name, seal) in &mut entry.sinks {
        seal.exactly_once = sinks[name].is_exactly_once();
    }
    entry.published = entry.epoch - 1;
    let appended = committer.append(&entry)?;
    Ok(Prepared { entry, appended, seals, sealed_at })
}

/// Makes a durable epoch count, then visible. On several hosts only once the commit record names it.
pub(super) fn conclude(
    committer: &mut Committer,
    sinks: &BTreeMap<String, Arc<dyn Sink>>,
    prepared: Prepared,
) -> Result<Committed, JobError> {
    let Prepared { entry, appended, seals, sealed_at } = prepared;
    let epoch = entry.epoch;
    committer.commit(entry)?;
    for (name, seal) in &seals {
        sinks[name].publish(seal).map_err(|error| JobError::sink(name, error))?;
    }
    Ok(Committed { epoch, took: sealed_at.elapsed(), entry_bytes: appended.bytes })
}

#[cfg(test)]
mod tests;
