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
    /// How many committed epochs stay readable: redb holds at most the oldest of them.
    pub retained: u32,
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
    queue: Mutex<Queue>,
    /// Something to look at for the thread.
    wake: Condvar,
    /// Something done, for those who wait for it.
    progress: Condvar,
}

#[derive(Debug)]
struct Queue {
    waiting: BTreeMap<Epoch, Waiting>,
    bytes: u64,
    /// The schema versions in redb's tables.
    tables: BTreeMap<TableName, BTreeSet<u32>>,
    /// Somebody waits for everything that may be fed.
    asked: bool,
    stop: bool,
    failure: Option<String>,
}

/// A committed epoch that redb lacks.
#[derive(Debug, Clone)]
struct Waiting {
    digest: Digest,
    deltas: Arc<Vec<TableDelta>>,
    bytes: u64,
    since: Duration,
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
        let queue = Queue { waiting: BTreeMap::new(), bytes: 0, tables, asked: false, stop: false, failure: None };
        let inner = Arc::new(Inner {
            shared,
            limits,
            clock,
            queue: Mutex::new(queue),
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
                lower_priority();
                inner.run();
            })
            .map_err(|error| StateError::Feeder(error.to_string()))?;
        *feeder.thread.lock() = Some(thread);
        Ok(feeder)
    }

    /// Takes the changes of an epoch that was just committed.
    pub(super) fn submit(&self, epoch: Epoch, digest: Digest, deltas: Vec<TableDelta>) {
        let bytes = deltas.iter().map(waiting_bytes).sum();
        let waiting = Waiting { digest, deltas: Arc::new(deltas), bytes, since: self.inner.clock.now() };
        let mut queue = self.inner.queue.lock();
        queue.waiting.insert(epoch, waiting);
        queue.bytes += bytes;
        self.inner.shared.set_backlog(queue.bytes);
        drop(queue);
        self.inner.wake.notify_one();
    }

    /// What redb may lack now, oldest first.
    pub(super) fn waiting(&self) -> Vec<(Epoch, Arc<Vec<TableDelta>>)> {
        self.inner.queue.lock().waiting.iter().map(|(&epoch, waiting)| (epoch, waiting.deltas.clone())).collect()
    }

    /// Waits until everything that may be fed is.
    pub(super) fn flush(&self) -> Result<(), StateError> {
        let mut queue = self.inner.queue.lock();
        while queue.failure.is_none() && self.inner.feedable(&queue).is_some() && !queue.stop {
            queue.asked = true;
            self.inner.wake.notify_one();
            self.inner.progress.wait(&mut queue);
        }
        failure_of(&queue)
    }

    /// What the thread failed with.
    pub(super) fn check(&self) -> Result<(), StateError> {
        failure_of(&self.inner.queue.lock())
    }

    /// Ends the thread, after the feed that it is in.
    pub(super) fn stop(&self) {
        self.inner.queue.lock().stop = true;
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
            let mut queue = self.queue.lock();
            match fed {
                Ok(tables) => {
                    queue.tables = tables;
                    for epoch in work.keys() {
                        let done = queue.waiting.remove(epoch);
                        queue.bytes -= done.map_or(0, |waiting| waiting.bytes);
                    }
                    self.shared.set_backlog(queue.bytes);
                    queue.asked &= self.feedable(&queue).is_some();
                }
                Err(error) => {
                    tracing::error!(%error, "feeding redb failed; it is not tried again before the next start");
                    queue.failure = Some(error.to_string());
                }
            }
            let failed = queue.failure.is_some();
            drop(queue);
            self.progress.notify_all();
            if failed {
                return;
            }
        }
    }

    /// Waits until a feed is due; `None` to end.
    fn next(&self) -> Option<BTreeMap<Epoch, Waiting>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            match self.feedable(&queue) {
                Some(through) if self.is_due(&queue) => {
                    return Some(
                        queue.waiting.range(..=through).map(|(&epoch, waiting)| (epoch, waiting.clone())).collect(),
                    );
                }
                _ => {
                    self.wake.wait_for(&mut queue, LOOK_INTERVAL);
                }
            }
        }
    }

    /// The last epoch that may be fed, if there is one waiting.
    fn feedable(&self, queue: &Queue) -> Option<Epoch> {
        let (&oldest, &newest) = (queue.waiting.keys().next()?, queue.waiting.keys().next_back()?);
        // Retained epochs are bounded in bytes, too: they give way when memory ends.
        let kept =
            if self.shared.pressure() == Pressure::Full { 0 } else { u64::from(self.limits.retained.max(1)) - 1 };
        newest.checked_sub(kept).filter(|&through| through >= oldest)
    }

    fn is_due(&self, queue: &Queue) -> bool {
        let oldest = queue.waiting.values().next().map_or(Duration::ZERO, |waiting| waiting.since);
        queue.asked
            || queue.bytes >= self.limits.backlog_bytes_max
            || self.clock.now().saturating_sub(oldest) >= self.limits.age_max
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

    /// Feeds epochs in one transaction; returns the tables that redb holds then.
    fn feed(&self, work: &BTreeMap<Epoch, Waiting>) -> Result<BTreeMap<TableName, BTreeSet<u32>>, StateError> {
        let (&epoch, last) = work.last_key_value().expect("only called with work");
        let mut meta = Meta { epoch, digest: last.digest, tables: self.queue.lock().tables.clone() };
        let newest_first = work.values().rev().flat_map(|waiting| waiting.deltas.iter());
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
        self.shared.set_durable(epoch);
        Ok(meta.tables)
    }
}

/// Lowers the priority of this thread: where cores are scarce, feeding must not hold up tasks. It is not late for that: nobody waits for it while
/// tasks have work.
fn lower_priority() {
    const NICENESS: i32 = 5;
    // Where the system refuses, feeding competes as any other thread does.
    let _ = rustix::process::nice(NICENESS);
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn failure_of(queue: &Queue) -> Result<(), StateError> {
    match &queue.failure {
        Some(failure) => Err(StateError::Feeder(failure.clone())),
        None => Ok(()),
    }
}

fn waiting_bytes(delta: &TableDelta) -> u64 {
    const OVERHEAD: usize = size_of::<Cell>() + 24;
    let cells = delta.partitions.iter().flat_map(|partition| &partition.cells);
    cells.map(|cell| (cell.joined().len() + OVERHEAD) as u64).sum()
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

/// The first eight bytes of a key as a number that orders as the bytes do.
fn beginning(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
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
