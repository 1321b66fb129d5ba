//! Which committed epochs can be read, and the changes that make the later ones out of what redb holds.
//!
//! redb holds the state as of one epoch. Every later committed epoch is kept as the changes it made, until redb has them, too; so the state as of epoch `e` is the newest
//! change of a key that is not later than `e`, and redb where there is none. [`EpochView`] is that, held fast for one reader.
//!
//! The readable epochs are the last `retained` committed ones. Redb is fed up to the oldest of them at most. They are bounded in bytes, too, and give way when memory ends:
//! the oldest then stops being readable before its time, which is logged. A reader never keeps an epoch from being dropped, so however long somebody means to read an
//! old epoch, neither memory nor files grow for it.
//!
//! # Why a view is what it says
//!
//! One lock covers the list of changes and the bounds of what can be read. The feeder takes from the list what it will write, up to the oldest readable epoch, and
//! removes it from the list when redb has it, both under the lock; a commit adds to it under the lock. A view is made under the lock, too: it
//! takes the changes up to its epoch, and takes redb's snapshot. So the snapshot holds some epoch that is not after the oldest readable one, hence not after the view's; and whatever
//! it lacks is still in the list. Changes that it has already are taken as well, which does no harm: they say the same.
//!
//! Once made, a view is a whole answer by itself: feeding, committing, evicting do not change it. Tables in memory only shorten the way, see
//! [`super::TaskTables::with_values_at`].

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::delta::EpochDelta;
use super::merge::Source;
use super::redb::{Room, Snapshot};
use super::store::Shared;
use super::{StateError, TablesError};
use crate::epoch::entry::{Cell, TableDelta, TableName};
use crate::epoch::{Digest, Epoch};
use crate::key::{KeyHash, Partition};

/// How many committed epochs stay readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retention {
    /// At most this many, at least 1.
    pub epochs: u32,
    /// At most so many that the changes behind the oldest of them are within this.
    pub bytes_max: u64,
}

/// When committed epochs are asked for so often from one to the next, the ways to the keys that one has changed are made before it can be read.
const ASKED_OFTEN: u64 = 64;

/// The committed epochs: those that redb lacks, and which of all can be read.
#[derive(Debug)]
pub(super) struct Committed {
    retention: Retention,
    locked: Mutex<Kept>,
    /// The bytes of all changes that redb lacks.
    waiting_bytes: AtomicU64,
    /// The bytes of the ways to find a key in them, of those included that only a reader holds still.
    ways_bytes: Arc<AtomicU64>,
    newest: watch::Sender<Epoch>,
    /// How often committed epochs were asked for since the last one came.
    asked: AtomicU64,
}

#[derive(Debug)]
struct Kept {
    /// What redb may lack: everything after its epoch.
    waiting: BTreeMap<Epoch, Waiting>,
    /// The oldest epoch that can be read. Redb is never fed beyond it.
    oldest: Epoch,
    /// The last committed epoch.
    newest: Epoch,
    /// Whether the last epoch to be dropped was dropped before its time.
    is_short: bool,
}

#[derive(Debug)]
struct Waiting {
    delta: Arc<EpochDelta>,
    since: Duration,
}

/// What waits for redb and may be fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Feedable {
    /// When the oldest of it was committed, by the store's clock.
    pub since: Duration,
    /// The last epoch of it.
    pub through: Epoch,
}

impl Committed {
    /// What there is when redb, at epoch `fed`, lacks nothing.
    pub(super) fn new(retention: Retention, fed: Epoch) -> Self {
        let kept = Kept { waiting: BTreeMap::new(), oldest: fed, newest: fed, is_short: false };
        Self {
            retention,
            locked: Mutex::new(kept),
            waiting_bytes: AtomicU64::new(0),
            ways_bytes: Arc::default(),
            newest: watch::Sender::new(fed),
            asked: AtomicU64::new(0),
        }
    }

    /// Takes the changes of an epoch that was just committed.
    pub(super) fn add(&self, epoch: Epoch, digest: Digest, deltas: Vec<TableDelta>, now: Duration) {
        let delta = Arc::new(EpochDelta::new(epoch, digest, deltas, &self.ways_bytes));
        self.waiting_bytes.fetch_add(delta.bytes, Ordering::Relaxed);
        // Readers as many as these come to most partitions, and should not make the ways to each while others wait.
        if self.asked.swap(0, Ordering::Relaxed) >= ASKED_OFTEN {
            delta.make_ways();
        }
        let mut kept = self.locked.lock();
        kept.waiting.insert(epoch, Waiting { delta, since: now });
        kept.newest = epoch;
        self.bound(&mut kept);
        drop(kept);
        self.newest.send_replace(epoch);
    }

    /// Moves the oldest readable epoch on, as far as it must.
    fn bound(&self, kept: &mut Kept) {
        let by_count = (kept.newest + 1).saturating_sub(u64::from(self.retention.epochs.max(1)));
        if by_count > kept.oldest {
            (kept.oldest, kept.is_short) = (by_count, false);
        }
        let (mut bytes, mut by_bytes) = (0, kept.newest);
        for (&epoch, waiting) in kept.waiting.range(kept.oldest + 1..).rev() {
            bytes += waiting.delta.bytes;
            if bytes > self.retention.bytes_max {
                break;
            }
            by_bytes = epoch - 1;
        }
        kept.drop_before(by_bytes.max(kept.oldest), "the changes behind it pass `checkpoint.retained-bytes`");
    }

    /// Lets go of everything but the last committed epoch: memory has ended.
    pub(super) fn give_way(&self) {
        let mut kept = self.locked.lock();
        let newest = kept.newest;
        kept.drop_before(newest, "state has outgrown `job.memory`");
    }

    /// What may be fed now, if anything.
    pub(super) fn feedable(&self) -> Option<Feedable> {
        let kept = self.locked.lock();
        let (&first, waiting) = kept.waiting.first_key_value()?;
        (first <= kept.oldest).then_some(Feedable { since: waiting.since, through: kept.oldest })
    }

    /// The changes up to epoch `through`, oldest first.
    pub(super) fn up_to(&self, through: Epoch) -> Vec<Arc<EpochDelta>> {
        self.locked.lock().waiting.range(..=through).map(|(_, waiting)| waiting.delta.clone()).collect()
    }

    /// Everything that redb may lack, oldest first.
    pub(super) fn waiting(&self) -> Vec<Arc<EpochDelta>> {
        self.up_to(Epoch::MAX)
    }

    /// Redb has everything up to epoch `through`.
    pub(super) fn remove(&self, through: Epoch) {
        let mut kept = self.locked.lock();
        let rest = kept.waiting.split_off(&(through + 1));
        let fed = std::mem::replace(&mut kept.waiting, rest);
        drop(kept);
        let bytes = fed.values().map(|waiting| waiting.delta.bytes).sum();
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The bytes that wait for redb, with the ways to find a key in them.
    pub(super) fn bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Relaxed) + self.ways_bytes.load(Ordering::Relaxed)
    }

    /// The last committed epoch.
    pub(super) fn newest(&self) -> Epoch {
        self.locked.lock().newest
    }

    fn view(&self, room: &Room, asked: Option<Epoch>) -> Result<EpochView, TablesError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let kept = self.locked.lock();
        let epoch = asked.unwrap_or(kept.newest);
        if !(kept.oldest..=kept.newest).contains(&epoch) {
            return Err(TablesError::Gone { asked: epoch, oldest: kept.oldest, newest: kept.newest });
        }
        let snapshot = room.snapshot();
        let deltas = kept.waiting.range(..=epoch).rev().map(|(_, waiting)| waiting.delta.clone()).collect();
        Ok(EpochView { epoch, snapshot, deltas })
    }
}

impl Kept {
    fn drop_before(&mut self, oldest: Epoch, why: &str) {
        if oldest <= self.oldest {
            return;
        }
        if !self.is_short {
            let (from, to) = (self.oldest, oldest - 1);
            tracing::warn!("epochs {from} to {to} can no longer be read, before their time: {why}");
        }
        (self.oldest, self.is_short) = (oldest, true);
    }
}

/// The committed epochs of a job, for readers of any thread.
#[derive(Debug, Clone)]
pub struct Epochs(pub(super) Arc<Shared>);

impl Epochs {
    /// The epochs that can be read: from the oldest retained to the last committed one. 0 stands for the state before the first.
    pub fn readable(&self) -> RangeInclusive<Epoch> {
        let kept = self.0.committed().locked.lock();
        kept.oldest..=kept.newest
    }

    /// The state as of a committed epoch, or as of the last. It is to be held for one answer, not longer: redb keeps pages for it.
    ///
    /// # Errors
    /// [`TablesError::Gone`] when `asked` cannot be read, [`TablesError::State`] when redb is broken.
    pub fn view(&self, asked: Option<Epoch>) -> Result<EpochView, TablesError> {
        self.0.committed().view(self.0.room(), asked)
    }

    /// Tells of each commit: the value is the last committed epoch.
    pub fn subscribe(&self) -> watch::Receiver<Epoch> {
        self.0.committed().newest.subscribe()
    }
}

/// The whole state as of one committed epoch.
#[derive(Debug)]
pub struct EpochView {
    epoch: Epoch,
    snapshot: Arc<Snapshot>,
    /// The changes up to the epoch that the snapshot may lack, newest first.
    deltas: Vec<Arc<EpochDelta>>,
}

impl EpochView {
    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The cells of keys, in their order; a tombstone for a key that has no value.
    pub(super) fn get_many(
        &self,
        table: &TableName,
        wanted: &[(Partition, KeyHash, &[u8])],
    ) -> Result<Vec<Cell>, StateError> {
        let changes: Vec<_> = self.deltas.iter().filter_map(|delta| delta.changes(table)).collect();
        let changed = |&(partition, hash, key): &(Partition, KeyHash, &[u8])| {
            changes.iter().find_map(|changes| changes.get(partition, hash, key)).cloned()
        };
        let mut cells: Vec<Option<Cell>> = wanted.iter().map(changed).collect();
        let unchanged = wanted.iter().zip(&cells).filter(|(_, cell)| cell.is_none());
        let fetched = self.snapshot.get_many(table, unchanged.map(|((partition, _, key), _)| (*partition, *key)))?;
        let missing = cells.iter_mut().filter(|cell| cell.is_none());
        missing.zip(fetched).for_each(|(cell, fetched)| *cell = Some(fetched));
        Ok(cells.into_iter().map(|cell| cell.expect("what the changes lack was fetched")).collect())
    }

    /// How many keys of a table have a value, or, of a versioned table, had one. It looks at every changed key.
    ///
    /// # Errors
    /// When redb cannot be read.
    pub fn count(&self, table: &TableName) -> Result<u64, StateError> {
        let mut keys = self.snapshot.rows(table)?;
        let changes: Vec<_> = self.deltas.iter().filter_map(|delta| delta.changes(table)).collect();
        for (place, newest) in changes.iter().enumerate() {
            // A key counts with its newest change.
            let cells = newest.cells().filter(|(partition, cell)| {
                let hash = KeyHash::of(cell.key());
                !changes[..place].iter().any(|newer| newer.get(*partition, hash, cell.key()).is_some())
            });
            let cells: Vec<(Partition, &Cell)> = cells.collect();
            let before =
                self.snapshot.get_many(table, cells.iter().map(|(partition, cell)| (*partition, cell.key())))?;
            for ((_, after), before) in cells.iter().zip(&before) {
                keys = (keys + u64::from(after.is_present())).saturating_sub(u64::from(before.is_present()));
            }
        }
        Ok(keys)
    }

    /// The sources of a scan: of each key the first among them decides.
    pub(super) fn sources<'a>(
        &'a self,
        table: &TableName,
        partitions: Range<u16>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<Vec<Source<'a>>, StateError> {
        let changes = self.deltas.iter().filter_map(|delta| delta.changes(table));
        let runs = changes.flat_map(|changes| changes.runs_from(partitions.clone(), from));
        let mut sources: Vec<Source<'a>> = runs.map(Source::Run).collect();
        sources.extend(self.snapshot.cursors(table, partitions, from, to)?.into_iter().map(Source::from));
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::entry::PartitionDelta;

    fn add(committed: &Committed, epoch: Epoch, value_bytes: usize) {
        let cells = vec![Cell::new(b"k", Some(&vec![0; value_bytes]))];
        let partitions = vec![PartitionDelta { partition: Partition(0), cells }];
        let delta = TableDelta { table: "o/t".into(), schema_version: 1, partitions };
        committed.add(epoch, Digest::default(), vec![delta], Duration::from_secs(epoch));
    }

    fn bounds(committed: &Committed) -> (Epoch, Epoch, usize) {
        let kept = committed.locked.lock();
        (kept.oldest, kept.newest, kept.waiting.len())
    }

    #[test]
    fn as_many_epochs_as_are_asked_for_can_be_read() {
        let committed = Committed::new(Retention { epochs: 3, bytes_max: u64::MAX }, 5);
        assert_eq!(bounds(&committed), (5, 5, 0));
        assert_eq!(committed.feedable(), None);
        for epoch in 6..=9 {
            add(&committed, epoch, 1);
        }
        assert_eq!(bounds(&committed), (7, 9, 4));
        assert_eq!(committed.feedable(), Some(Feedable { since: Duration::from_secs(6), through: 7 }));
        committed.remove(7);
        assert_eq!(bounds(&committed), (7, 9, 2));
        assert_eq!(committed.feedable(), None);
        assert_eq!(*committed.newest.borrow(), 9);
    }

    #[test]
    fn ways_to_changed_keys_are_made_beforehand_where_many_ask() {
        let committed = Committed::new(Retention { epochs: 9, bytes_max: u64::MAX }, 0);
        let ways = || committed.ways_bytes.load(Ordering::Relaxed);
        committed.asked.store(ASKED_OFTEN - 1, Ordering::Relaxed);
        add(&committed, 1, 1);
        assert_eq!(ways(), 0);
        committed.asked.store(ASKED_OFTEN, Ordering::Relaxed);
        add(&committed, 2, 1);
        let made = ways();
        assert!(made > 0);
        add(&committed, 3, 1);
        assert_eq!(ways(), made, "nobody has asked since");
    }

    #[test]
    fn an_epoch_whose_later_changes_are_too_large_is_dropped_early() {
        let committed = Committed::new(Retention { epochs: 4, bytes_max: 2500 }, 0);
        for epoch in 1..=4 {
            add(&committed, epoch, 1000);
        }
        // Changes of 3 and 4 are within the bytes, so 2 is the oldest that can be made out of them.
        assert_eq!(bounds(&committed), (2, 4, 4));
        add(&committed, 5, 3000);
        assert_eq!(bounds(&committed), (5, 5, 5), "the last one is always readable");
        add(&committed, 6, 1);
        assert_eq!(bounds(&committed), (5, 6, 6));
        committed.give_way();
        assert_eq!(bounds(&committed), (6, 6, 6));
        let waiting = committed.bytes();
        committed.remove(6);
        assert!(waiting > 7000 && committed.bytes() == 0);
    }
}
