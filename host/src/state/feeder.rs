//! Feeds redb in the background: committed changes, coalesced over epochs (the newest value of a key wins), in the order of redb's keys.
//!
//! A feed is due when what waits is large or old, when memory is over budget, or when somebody asks. It goes up to the last committed epoch, but not past the oldest
//! that is retained. A thread of its own does it, since redb writes and syncs for long.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::delta::{EpochDelta, beginning};
use super::epochs::Feedable;
use super::recover::Unfed;
use super::redb::{Change, Meta};
use super::store::Shared;
use super::{Pressure, StateError};
use crate::epoch::entry::{Cell, TableDelta, TableName};
use crate::epoch::{Digest, Epoch};
use crate::key::Partition;
use crate::time::Clock;

/// How often the thread looks whether what waits has become old, or memory short.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How long the thread steps aside at once, while a drain needs the cores.
const ASIDE_STEP: Duration = Duration::from_micros(500);
/// How often at most, before it goes on all the same.
const ASIDE_STEPS_MAX: u32 = 40;

/// When to feed.
#[derive(Debug, Clone)]
pub(super) struct FeedLimits {
    /// The bytes that may wait.
    pub backlog_bytes_max: u64,
    /// How long the oldest may wait.
    pub age_max: Duration,
}

/// The handle of the thread.
#[derive(Debug)]
pub(super) struct Feeder {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    limits: FeedLimits,
    clock: Clock,
    /// Taken before the lock of what waits, never while it is held.
    orders: Mutex<Orders>,
    /// Something to look at for the thread.
    wake: Condvar,
    /// Something done, for those who wait for it.
    progress: Condvar,
}

#[derive(Debug)]
struct Orders {
    /// The schema versions in redb's tables.
    tables: BTreeMap<TableName, BTreeSet<u32>>,
    /// Somebody waits for everything that may be fed.
    asked: bool,
    stop: bool,
    failure: Option<String>,
}

impl Feeder {
    /// Starts the thread. `unfed` is what redb lacks already.
    pub(super) fn start(
        shared: Arc<Shared>,
        limits: FeedLimits,
        clock: Clock,
        tables: BTreeMap<TableName, BTreeSet<u32>>,
        unfed: Vec<Unfed>,
    ) -> Result<Self, StateError> {
        let inner = Arc::new(Inner {
            shared,
            limits,
            clock,
            orders: Mutex::new(Orders { tables, asked: false, stop: false, failure: None }),
            wake: Condvar::new(),
            progress: Condvar::new(),
        });
        let feeder = Self { inner: inner.clone(), thread: Mutex::new(None) };
        for unfed in unfed {
            feeder.submit(unfed.epoch, unfed.digest, unfed.deltas);
        }
        let thread = std::thread::Builder::new()
            .name("feed-redb".to_owned())
            .spawn(move || {
                // It is not late for that: nobody waits for redb while tasks have work.
                crate::thread::yield_to_others();
                inner.run();
            })
            .map_err(|error| StateError::Feeder(error.to_string()))?;
        *feeder.thread.lock() = Some(thread);
        Ok(feeder)
    }

    /// Takes the changes of an epoch that was just committed.
    pub(super) fn submit(&self, epoch: Epoch, digest: Digest, deltas: Vec<TableDelta>) {
        self.inner.shared.committed().add(epoch, digest, deltas, self.inner.clock.now());
        self.inner.wake.notify_one();
    }

    /// Waits until everything that may be fed is.
    pub(super) fn flush(&self) -> Result<(), StateError> {
        let mut orders = self.inner.orders.lock();
        while orders.failure.is_none() && self.inner.feedable().is_some() && !orders.stop {
            orders.asked = true;
            self.inner.wake.notify_one();
            self.inner.progress.wait(&mut orders);
        }
        failure_of(&orders)
    }

    /// What the thread failed with.
    pub(super) fn check(&self) -> Result<(), StateError> {
        failure_of(&self.inner.orders.lock())
    }

    /// Ends the thread, after the feed that it is in.
    pub(super) fn stop(&self) {
        self.inner.orders.lock().stop = true;
        self.inner.wake.notify_one();
        self.inner.progress.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the thread is in `failure` already.
            let _ = thread.join();
        }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    fn run(&self) {
        while let Some(work) = self.next() {
            let before = thread_time();
            let fed = std::panic::catch_unwind(AssertUnwindSafe(|| self.feed(&work)))
                .unwrap_or_else(|_| Err(StateError::Feeder("redb panicked".to_owned())));
            self.shared.add_feed_cpu(thread_time().saturating_sub(before));
            let mut orders = self.orders.lock();
            match fed {
                Ok((through, tables)) => {
                    orders.tables = tables;
                    self.shared.committed().remove(through);
                    orders.asked &= self.feedable().is_some();
                }
                Err(error) => {
                    tracing::error!(%error, "feeding redb failed; it is not tried again before the next start");
                    orders.failure = Some(error.to_string());
                }
            }
            let failed = orders.failure.is_some();
            drop(orders);
            self.progress.notify_all();
            if failed {
                return;
            }
        }
    }

    /// Waits until a feed is due; `None` to end.
    fn next(&self) -> Option<Vec<Arc<EpochDelta>>> {
        let mut orders = self.orders.lock();
        loop {
            if orders.stop {
                return None;
            }
            match self.feedable() {
                Some(feedable) if self.is_due(&orders, feedable) => {
                    return Some(self.shared.committed().up_to(feedable.through));
                }
                _ => {
                    self.wake.wait_for(&mut orders, LOOK_INTERVAL);
                }
            }
        }
    }

    /// What may be fed now. Retained epochs give way when memory ends.
    fn feedable(&self) -> Option<Feedable> {
        if self.shared.pressure() == Pressure::Full {
            self.shared.committed().give_way();
        }
        self.shared.committed().feedable()
    }

    fn is_due(&self, orders: &Orders, feedable: Feedable) -> bool {
        orders.asked
            || self.shared.committed().bytes() >= self.limits.backlog_bytes_max
            || self.clock.now().saturating_sub(feedable.since) >= self.limits.age_max
            || self.shared.pressure() > Pressure::Calm
    }

    /// Waits while a drain needs the cores, but never for long: feeding is late already when memory is short.
    fn step_aside(&self) {
        for _ in 0..ASIDE_STEPS_MAX {
            if !self.shared.is_hushed() {
                return;
            }
            std::thread::sleep(ASIDE_STEP);
        }
    }

    /// Feeds epochs in one transaction; returns the last of them, and the tables that redb holds then.
    fn feed(&self, work: &[Arc<EpochDelta>]) -> Result<(Epoch, BTreeMap<TableName, BTreeSet<u32>>), StateError> {
        let last = work.last().expect("only called with work");
        let mut meta = Meta { epoch: last.epoch, digest: last.digest, tables: self.orders.lock().tables.clone() };
        let newest_first = work.iter().rev().flat_map(|delta| delta.tables());
        let coalesced = Coalesced::new(newest_first);
        for (table, versions) in &coalesced.versions {
            meta.tables.entry((*table).clone()).or_default().extend(versions);
        }
        self.shared.room().write(&meta, |feed| {
            for (table, partitions) in &coalesced.tables {
                let mut rows = feed.table(table)?;
                for (&partition, parts) in partitions {
                    rows.put(partition, coalesce(parts).into_iter().inspect(|_| self.step_aside()))?;
                }
            }
            Ok(())
        })?;
        self.shared.set_durable(last.epoch);
        Ok((last.epoch, meta.tables))
    }
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn failure_of(orders: &Orders) -> Result<(), StateError> {
    match &orders.failure {
        Some(failure) => Err(StateError::Feeder(failure.clone())),
        None => Ok(()),
    }
}

/// The changes of one partition in one epoch.
type Part<'a> = (u32, &'a [Cell]);

/// Changes of several epochs, grouped as redb wants them; within a partition the newest epoch comes first.
struct Coalesced<'a> {
    tables: BTreeMap<&'a TableName, BTreeMap<Partition, Vec<Part<'a>>>>,
    versions: BTreeMap<&'a TableName, BTreeSet<u32>>,
}

impl<'a> Coalesced<'a> {
    fn new(newest_first: impl Iterator<Item = &'a TableDelta>) -> Self {
        let mut coalesced = Self { tables: BTreeMap::new(), versions: BTreeMap::new() };
        for delta in newest_first {
            coalesced.versions.entry(&delta.table).or_default().insert(delta.schema_version);
            let partitions = coalesced.tables.entry(&delta.table).or_default();
            for partition in &delta.partitions {
                let part = (delta.schema_version, partition.cells.as_slice());
                partitions.entry(partition.partition).or_default().push(part);
            }
        }
        coalesced
    }
}

/// The newest change of each key, in the order of keys. `newest_first` are a partition's changes by epoch.
fn coalesce<'a>(newest_first: &[Part<'a>]) -> Vec<Change<'a>> {
    let total = newest_first.iter().map(|(_, cells)| cells.len()).sum();
    let mut changes: Vec<(u64, Change<'a>)> = Vec::with_capacity(total);
    for &(schema_version, cells) in newest_first {
        changes.extend(cells.iter().map(|cell| (beginning(cell.key()), Change { schema_version, cell })));
    }
    // Stable: of equal keys the newest stays first. The beginnings spare most looks at the keys themselves.
    changes.sort_by(|(left, a), (right, b)| left.cmp(right).then_with(|| a.cell.key().cmp(b.cell.key())));
    changes.dedup_by(|(_, later), (_, kept)| later.cell.key() == kept.cell.key());
    changes.into_iter().map(|(_, change)| change).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn coalescing_keeps_the_newest_value_of_each_key_in_order(
            epochs in prop::collection::vec(prop::collection::btree_map(
                prop::collection::vec(0u8..3, 0..11), prop::option::of(any::<u8>()), 0..20), 0..5)
        ) {
            let mut expected = BTreeMap::new();
            for epoch in &epochs {
                expected.extend(epoch.iter().map(|(key, value)| (key.clone(), value.map(|value| vec![value]))));
            }
            let cells: Vec<Vec<Cell>> = epochs.iter().rev().map(|epoch| {
                epoch.iter().rev().map(|(key, value)| Cell::new(key, value.map(|value| vec![value]).as_deref())).collect()
            }).collect();
            let parts: Vec<Part<'_>> = cells.iter().map(|cells| (1, cells.as_slice())).collect();
            let found: Vec<_> = coalesce(&parts).iter()
                .map(|change| (change.cell.key().to_vec(), change.cell.value().map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
