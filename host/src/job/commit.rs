//! The thread that makes sealed epochs durable and visible: sync the sinks' files, append the entry, commit it, publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::JobError;
use crate::connector::Sink;
use crate::epoch::Epoch;
use crate::epoch::entry::Entry;
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

/// Makes one epoch durable, then visible.
pub(super) fn commit(
    committer: &mut Committer,
    sinks: &BTreeMap<String, Arc<dyn Sink>>,
    sealed: Sealed,
) -> Result<Committed, JobError> {
    let Sealed { mut entry, sealed_at } = sealed;
    let seals = entry.sinks.clone();
    for (name, seal) in &seals {
        sinks[name].sync(seal).map_err(|error| JobError::sink(name, error))?;
    }
    for (name, seal) in &mut entry.sinks {
        seal.exactly_once = sinks[name].is_exactly_once();
    }
    entry.published = entry.epoch - 1;
    let epoch = entry.epoch;
    let entry_bytes = committer.append(&entry)?.bytes;
    committer.commit(entry)?;
    for (name, seal) in &seals {
        sinks[name].publish(seal).map_err(|error| JobError::sink(name, error))?;
    }
    Ok(Committed { epoch, took: sealed_at.elapsed(), entry_bytes })
}

#[cfg(test)]
mod tests;
