//! Lookups of keys that other hosts own, gathered into batches.
//!
//! Tasks ask by a [`Lookups`]; what they ask waits for at most its linger, together with what others ask of the same host, the same table and the same kind of read, and then travels as one batch. A
//! key that is asked for again before its batch is sent travels once. `bounded` reads are also answered from memory, within what they allow. `batcher` decides all that and does no I/O; `driver` runs it
//! over the connections of `link`.
//!
//! # What an answer shows
//!
//! An owner answers a batch at one moment. Keys asked for together with a `live`, `committed` or event-time read therefore travel in one batch, so that they never show half of what one batch of a task
//! has written; the exceptions are questions of more than [`KEYS_MAX`] keys or [`KEY_BYTES_MAX`] bytes, and answers of more than [`ANSWER_BYTES_MAX`]. Such a question joins only what has not been sent: an answer
//! under way may be older than the question. One with `as-of` joins anything, since a committed epoch never changes; one with `bounded` joins whatever was sent within the time or the epochs that it allows.
//!
//! What `bounded` promises is that an answer is not older than that, and nothing else: two keys may be of different moments, a later question may get an older answer, and an update that this host has sent to the
//! key meanwhile may not be in it.
//!
//! All of this lasts as long as an attempt: the next one begins with nothing waiting and nothing remembered. This room does not know who owns a key, what a guest is, or how an attempt ends.

mod batcher;
mod cache;
mod driver;
mod lane;
mod meters;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::driver::{AskPeers, LinkPeers, Lookups, LookupsSettings, Running};
pub use self::meters::{LookupFigures, LookupMeters};

use super::link::{ANSWER_BYTES_MAX, Found, KEY_BYTES_MAX, KEYS_MAX, LookupFault, Values};
use crate::epoch::Epoch;
use crate::lookup::{Consistency, TableId};
use crate::record::Column;

/// The batches that a peer is asked at a time; while there are as many, further ones wait, and grow.
pub const BATCHES_IN_FLIGHT_MAX: usize = 8;
/// The most bytes of a key that an error shows.
const SHOWN_BYTES_MAX: usize = 64;

/// Which state a lookup sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// As of one moment.
    At(Consistency),
    /// As `live`, but the answer may be this old.
    Bounded(Staleness),
    /// The values that held at these event times, one a key.
    AsOfTimes(Vec<i64>),
}

/// How old an answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staleness {
    /// It may have been right this long ago.
    Time(Duration),
    /// It may have been right this many epochs ago: with 0, at some time of the present epoch.
    Epochs(u64),
}

impl Staleness {
    /// Whether a question asked then may be answered by what was read not before `read`.
    fn allows(self, read: Now, asked: Now) -> bool {
        match self {
            Self::Time(most) => asked.time.saturating_sub(read.time) <= most,
            Self::Epochs(most) => asked.epoch.saturating_sub(read.epoch) <= most,
        }
    }
}

/// When something happens, as this host sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// By the monotonic clock.
    pub time: Duration,
    /// The epoch that is worked on.
    pub epoch: Epoch,
}

/// How questions are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    keys_max: usize,
    linger: Duration,
}

impl Batching {
    /// Batches of at most `keys_max` keys (1 to [`KEYS_MAX`]; what is outside counts as the nearest), sent when `linger` has passed since their first key was asked for. 0 sends as soon as nothing else is to be
    /// done.
    ///
    /// More keys than that, when they are asked for at once and must show one moment, make a batch by themselves.
    pub fn new(keys_max: usize, linger: Duration) -> Self {
        Self { keys_max: keys_max.clamp(1, KEYS_MAX), linger }
    }
}

impl Default for Batching {
    fn default() -> Self {
        Self::new(1024, Duration::from_micros(100))
    }
}

/// Keys to look up at the host that owns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The table, which is the same on every host.
    pub table: TableId,
    /// The keys, as many as there may be, the same ones more than once if need be.
    pub keys: Column,
    /// Which state is seen.
    pub read: Read,
    /// How it is gathered with others. Where they ask for the same otherwise, the least of each holds for all in a batch.
    pub batching: Batching,
}

/// The values that were asked for, in the order of the keys.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    places: Vec<Place>,
    parts: Vec<Arc<Values>>,
}

/// Where the value of a key is.
#[derive(Debug, Clone)]
enum Place {
    /// With this one of the parts, in this place.
    Part(u32, u32),
    /// Remembered from before.
    Cached(Option<Arc<[u8]>>),
}

impl Answer {
    /// The number of keys.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there were no keys.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The value of key `index`, if it has one.
    ///
    /// # Panics
    /// When `index` is not less than the number of keys.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        match &self.places[index] {
            Place::Cached(value) => value.as_deref(),
            Place::Part(part, index) => match self.parts[*part as usize].get(*index as usize) {
                Found::Present(value) => Some(value),
                Found::Absent | Found::AskAgain | Found::TooLarge => None,
            },
        }
    }

    /// The values of all keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// Why keys could not be looked up at another host. Completes "failed to look up keys at another host: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupsError {
    /// The host does not answer, or refuses.
    #[error(transparent)]
    Fault(#[from] LookupFault),
    /// A value does not fit an answer. Other lookups of the same batch are not touched by it.
    #[error(
        "the value of key `{key}` is larger than {ANSWER_BYTES_MAX} bytes, the most that travels between hosts; keep values smaller, or have the function run where the table is (`colocated-with`)"
    )]
    ValueTooLarge {
        /// The key, shortened.
        key: String,
    },
    /// A key does not fit a question.
    #[error("a key has {bytes} bytes, but one that travels between hosts may have {KEY_BYTES_MAX}")]
    KeyTooLarge {
        /// Its bytes.
        bytes: usize,
    },
    /// Nobody answers any more.
    #[error("the attempt is over")]
    Ended,
}

impl LookupsError {
    fn value_too_large(key: &[u8]) -> Self {
        let shown = &key[..key.len().min(SHOWN_BYTES_MAX)];
        let rest = if shown.len() < key.len() { "…" } else { "" };
        Self::ValueTooLarge { key: format!("{}{rest}", shown.escape_ascii()) }
    }
}
