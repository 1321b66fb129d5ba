//! What a link counts of each peer, and how a peer is described to a person.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::metrics::{Counter, Durations, Percentiles};

/// The counters of one peer.
#[derive(Debug)]
pub(super) struct PeerMeters {
    name: String,
    is_own: bool,
    pub(super) is_up: AtomicBool,
    pub(super) is_connected: AtomicBool,
    unacknowledged: AtomicU64,
    /// Connections that have passed the handshake.
    pub(super) connections: Counter,
    pub(super) sent: Traffic,
    pub(super) received: Traffic,
    pub(super) lookups_asked: Counter,
    pub(super) lookups_served: Counter,
    beats: Mutex<Beats>,
}

/// What goes one way.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Calls that carry messages.
    pub(super) batches: Counter,
    pub(super) messages: Counter,
    /// All bytes of the connection.
    pub(super) bytes: Counter,
}

#[derive(Debug, Default)]
struct Beats {
    round_trips: Durations,
    last: Duration,
    /// When the oldest was sent that is not answered.
    waiting_since: Option<Instant>,
}

/// How a peer is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Whether there is a session with it. It may be without a connection for a moment.
    pub is_up: bool,
    /// Whether it is connected.
    pub is_connected: bool,
    /// The time there and back, of heartbeats, in milliseconds.
    pub round_trip_ms: Percentiles,
    /// The last of them, in milliseconds; or for how long the oldest has been without an answer, if that is longer. A slow peer shows here.
    pub latest_round_trip_ms: f64,
    /// The bytes that it has not acknowledged, those included that wait to be sent.
    pub unacknowledged_bytes: u64,
    /// Connections that there have been.
    pub connections: u64,
    /// Batches of messages sent to it.
    pub batches_sent: u64,
    /// Messages sent to it, those included that were sent again.
    pub messages_sent: u64,
    /// All bytes sent to it.
    pub bytes_sent: u64,
    /// Batches of messages that came from it.
    pub batches_received: u64,
    /// Messages that came from it, those included that had come before.
    pub messages_received: u64,
    /// All bytes that came from it.
    pub bytes_received: u64,
    /// Lookups that it was asked, each a batch of keys or a page.
    pub lookups_asked: u64,
    /// Lookups that it has asked.
    pub lookups_served: u64,
}

impl PeerMeters {
    pub(super) fn new(name: &str, is_own: bool) -> Self {
        Self {
            name: name.to_owned(),
            is_own,
            is_up: AtomicBool::default(),
            is_connected: AtomicBool::default(),
            unacknowledged: AtomicU64::default(),
            connections: Counter::default(),
            sent: Traffic::default(),
            received: Traffic::default(),
            lookups_asked: Counter::default(),
            lookups_served: Counter::default(),
            beats: Mutex::default(),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// A message is on its way to the peer.
    pub(super) fn queued(&self, bytes: u64) {
        self.unacknowledged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A message is acknowledged, or void.
    pub(super) fn settled(&self, bytes: u64) {
        self.unacknowledged.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn unacknowledged_bytes(&self) -> u64 {
        self.unacknowledged.load(Ordering::Relaxed)
    }

    /// The oldest heartbeat without an answer was sent then.
    pub(super) fn beats_wait_since(&self, oldest: Option<Instant>) {
        self.beats.lock().waiting_since = oldest;
    }

    /// A heartbeat has been answered.
    pub(super) fn beat_answered(&self, after: Duration) {
        let mut beats = self.beats.lock();
        beats.round_trips.record(after);
        beats.last = after;
    }

    pub(super) fn status(&self) -> PeerStatus {
        let (round_trips, latest) = {
            let beats = self.beats.lock();
            let waiting = beats.waiting_since.map(|since| since.elapsed()).unwrap_or_default();
            (beats.round_trips.percentiles(), beats.last.max(waiting))
        };
        PeerStatus {
            name: self.name.clone(),
            is_up: self.is_up.load(Ordering::Relaxed),
            is_connected: self.is_connected.load(Ordering::Relaxed),
            round_trip_ms: round_trips,
            latest_round_trip_ms: latest.as_secs_f64() * 1_000.0,
            unacknowledged_bytes: self.unacknowledged_bytes(),
            connections: self.connections.get(),
            batches_sent: self.sent.batches.get(),
            messages_sent: self.sent.messages.get(),
            bytes_sent: self.sent.bytes.get(),
            batches_received: self.received.batches.get(),
            messages_received: self.received.messages.get(),
            bytes_received: self.received.bytes.get(),
            lookups_asked: self.lookups_asked.get(),
            lookups_served: self.lookups_served.get(),
        }
    }
}
