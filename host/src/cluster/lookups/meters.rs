//! What is counted of lookups at other hosts, by host and table.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use super::super::link::HostId;
use crate::lookup::TableId;
use crate::metrics::{Durations, Percentiles};

/// What is counted of all lookups. They may go on counting over attempts.
#[derive(Debug, Default)]
pub struct LookupMeters {
    counts: Mutex<BTreeMap<(HostId, TableId), Counts>>,
    cached_bytes: AtomicUsize,
}

/// What is counted of the lookups of one table at one host.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) questions: u64,
    pub(super) keys_asked: u64,
    pub(super) keys_joined: u64,
    pub(super) keys_cached: u64,
    pub(super) keys_sent: u64,
    pub(super) keys_again: u64,
    pub(super) batches: u64,
    pub(super) key_bytes: u64,
    pub(super) value_bytes: u64,
    pub(super) failures: u64,
    pub(super) latencies: Durations,
    pub(super) round_trips: Durations,
}

/// The lookups of one table at one host, in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LookupFigures {
    /// The host that was asked.
    #[serde(skip)]
    pub peer: HostId,
    /// The table.
    #[serde(skip)]
    pub table: TableId,
    /// Questions: each is one call of a function.
    pub questions: u64,
    /// The keys in them.
    pub keys_asked: u64,
    /// Keys that had been asked for already and travelled only once.
    pub keys_joined: u64,
    /// Keys that were answered from memory.
    pub keys_cached: u64,
    /// Keys that were sent, those included that had to be asked for again.
    pub keys_sent: u64,
    /// Keys that had to be asked for again, since an answer was full.
    pub keys_again: u64,
    /// Batches sent.
    pub batches: u64,
    /// The bytes of the keys that were sent.
    pub key_bytes: u64,
    /// The bytes of the values that came back.
    pub value_bytes: u64,
    /// Questions that failed.
    pub failures: u64,
    /// From a question to its answer, in milliseconds.
    pub latency_ms: Percentiles,
    /// From the sending of a batch to its answer, in milliseconds.
    pub round_trip_ms: Percentiles,
}

impl LookupMeters {
    /// The figures so far, by host and table.
    pub fn figures(&self) -> Vec<LookupFigures> {
        let counts = self.counts.lock();
        counts.iter().map(|(&(peer, table), counts)| counts.figures(peer, table)).collect()
    }

    /// About how much memory the remembered answers take at present.
    pub fn cached_bytes(&self) -> usize {
        self.cached_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_cached_bytes(&self, bytes: usize) {
        self.cached_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn count(&self, peer: HostId, table: TableId, count: impl FnOnce(&mut Counts)) {
        count(self.counts.lock().entry((peer, table)).or_default());
    }
}

impl Counts {
    pub(super) fn answered(&mut self, latency: Duration, is_failure: bool) {
        self.failures += u64::from(is_failure);
        self.latencies.record(latency);
    }

    fn figures(&self, peer: HostId, table: TableId) -> LookupFigures {
        LookupFigures {
            peer,
            table,
            questions: self.questions,
            keys_asked: self.keys_asked,
            keys_joined: self.keys_joined,
            keys_cached: self.keys_cached,
            keys_sent: self.keys_sent,
            keys_again: self.keys_again,
            batches: self.batches,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            failures: self.failures,
            latency_ms: self.latencies.percentiles(),
            round_trip_ms: self.round_trips.percentiles(),
        }
    }
}
