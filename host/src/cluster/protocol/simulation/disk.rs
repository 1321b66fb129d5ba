//! What a host keeps over the end of its process: its log and its small files, each as what is synced and what is merely written.
//!
//! A killed process loses nothing that it has written, a power cut whatever was not synced; what is torn counts as lost, as it does for whoever reads the real files.

use super::work::Part;
use crate::epoch::decided::CommitRecord;
use crate::epoch::standing::{EntryId, Standing};
use crate::epoch::{Attempt, Digest, Epoch};

/// A file: what would survive a power cut, and what is written over it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Written<T> {
    synced: T,
    unsynced: Option<T>,
}

impl<T> Written<T> {
    /// As whoever reads it sees it.
    pub(super) fn read(&self) -> &T {
        self.unsynced.as_ref().unwrap_or(&self.synced)
    }

    /// As it is for certain.
    pub(super) fn durable(&self) -> &T {
        &self.synced
    }

    pub(super) fn write(&mut self, value: T) {
        self.unsynced = Some(value);
    }

    pub(super) fn sync(&mut self) {
        if let Some(value) = self.unsynced.take() {
            self.synced = value;
        }
    }

    /// What a power cut leaves.
    fn cut_power(&mut self, is_kept: bool) {
        if is_kept {
            self.sync();
        }
        self.unsynced = None;
    }
}

/// One host's part of an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    pub(super) part: Part,
    /// Whether it says that all input has ended.
    pub(super) finished: bool,
}

impl Entry {
    /// An entry, with its digest.
    pub(super) fn new(epoch: Epoch, attempt: Attempt, part: Part, finished: bool) -> Self {
        let id = EntryId { epoch, attempt, digest: Digest(0) };
        let entry = Self { id, part, finished };
        let digest = Digest(u128::from(super::hash(&entry)) + 1);
        Self { id: EntryId { digest, ..id }, ..entry }
    }
}

/// What has been published: up to which epoch, and the sum of it all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Published {
    pub(super) epoch: Epoch,
    pub(super) sum: u64,
}

/// The state directory and the sinks' directory of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Disk {
    pub(super) attempt: Written<Attempt>,
    /// The last committed entry.
    pub(super) committed: Written<Entry>,
    /// The last entry of the log: prepared, where it lies behind the committed one.
    pub(super) last: Written<Option<Entry>>,
    pub(super) published: Written<Published>,
    /// The commit record; of use on the leader's host only.
    pub(super) record: Written<CommitRecord>,
}

impl Disk {
    /// The entry whose fate is open.
    pub(super) fn prepared(&self) -> Option<&Entry> {
        self.last.read().as_ref().filter(|last| last.id.epoch > self.committed.read().id.epoch)
    }

    pub(super) fn standing(&self) -> Standing {
        let committed = self.committed.read().id;
        Standing { attempt: *self.attempt.read(), committed, prepared: self.prepared().map(|entry| entry.id) }
    }

    /// Makes what is committed visible. What was published before is found as it is.
    pub(super) fn publish(&mut self) {
        let committed = self.committed.read();
        let Published { epoch, sum } = *self.published.read();
        if epoch < committed.id.epoch {
            let sum = sum.wrapping_add(committed.part.output);
            self.published.write(Published { epoch: committed.id.epoch, sum });
        }
    }

    /// What a power cut leaves: of each file what was written last, or what was synced last.
    pub(super) fn cut_power(&mut self, mut is_kept: impl FnMut() -> bool) {
        self.attempt.cut_power(is_kept());
        self.committed.cut_power(is_kept());
        self.last.cut_power(is_kept());
        self.published.cut_power(is_kept());
        self.record.cut_power(is_kept());
    }
}
