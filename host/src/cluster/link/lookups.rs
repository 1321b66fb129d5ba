//! Lookups between hosts: what is asked, what is answered, and who answers.

use tokio::sync::oneshot;

use super::message::HostId;
use crate::epoch::Attempt;
use crate::lookup::{Consistency, Page, TableId};
use crate::record::Column;

/// The bytes of values that one answer has at most. A value larger than this is in none.
pub const ANSWER_BYTES_MAX: usize = 2 << 20;
/// The most keys of one lookup.
pub const KEYS_MAX: usize = 16_384;
/// The bytes of keys that one lookup has at most.
pub const KEY_BYTES_MAX: usize = 4 << 20;

/// Which state a lookup of keys sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// As of one moment.
    At(Consistency),
    /// The values that held at these event times, one a key.
    AsOfTimes(Vec<i64>),
}

/// Keys to look up at their owner: at most [`KEYS_MAX`] of at most [`KEY_BYTES_MAX`] bytes, else the lookup is refused before it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// The table, which is the same on every host.
    pub table: TableId,
    /// The keys.
    pub keys: Column,
    /// Which state is seen.
    pub read: Read,
}

/// A range of keys to list. Its two ends together have at most [`KEY_BYTES_MAX`] bytes, else it is refused before it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The table, which is the same on every host.
    pub table: TableId,
    /// The first key, included.
    pub from: Vec<u8>,
    /// The end, excluded; `None` for no end.
    pub to: Option<Vec<u8>>,
    /// The most items of the page.
    pub limit: u32,
    /// Which state is seen.
    pub consistency: Consistency,
}

impl Scan {
    /// Whether a page is one of those that are asked for. Whoever asks for the next one then comes to an end.
    pub(super) fn check(&self, page: &Page) -> Result<(), &'static str> {
        let Page { keys, values, next } = page;
        if keys.len() != values.len() {
            return Err("a page has more keys than values, or fewer");
        }
        if keys.len() > self.limit as usize {
            return Err("a page has more keys than were asked for");
        }
        let mut last = None;
        for key in keys.iter() {
            if last.map_or(key < &self.from[..], |last| key <= last) {
                return Err("a page's keys do not ascend from where they should begin");
            }
            last = Some(key);
        }
        if last.zip(self.to.as_deref()).is_some_and(|(last, to)| last >= to) {
            return Err("a page has keys behind the end");
        }
        match next {
            Some(next) if &next[..] <= last.unwrap_or(&self.from) => Err("a page's next does not lie behind it"),
            _ => Ok(()),
        }
    }
}

/// What there is to say of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// It has no value.
    Absent,
    /// It has this value.
    Present(&'a [u8]),
    /// The answer was full: ask for this key again.
    AskAgain,
    /// Its value is larger than [`ANSWER_BYTES_MAX`]: no answer can have it.
    TooLarge,
}

/// How a key's place in [`Values`] is to be read, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Absent = 0,
    Present = 1,
    AskAgain = 2,
    TooLarge = 3,
}

impl State {
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Absent, Self::Present, Self::AskAgain, Self::TooLarge].get(usize::from(byte)).copied()
    }
}

/// The answer to a [`Get`]: something for every key, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// An item a key, empty where there is no value.
    items: Column,
    states: Vec<State>,
}

impl Values {
    pub(super) fn new(items: Column, states: Vec<State>) -> Self {
        Self { items, states }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there were no keys.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// What there is to say of key `index`.
    ///
    /// # Panics
    /// When `index` is not less than the number of keys.
    pub fn get(&self, index: usize) -> Found<'_> {
        match self.states[index] {
            State::Absent => Found::Absent,
            State::Present => Found::Present(self.items.get(index)),
            State::AskAgain => Found::AskAgain,
            State::TooLarge => Found::TooLarge,
        }
    }

    /// The bytes of all values.
    pub fn byte_len(&self) -> usize {
        self.items.bytes().len()
    }

    /// The same for all keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Found<'_>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl<'a> FromIterator<Found<'a>> for Values {
    fn from_iter<I: IntoIterator<Item = Found<'a>>>(found: I) -> Self {
        let mut values = Self::default();
        for found in found {
            let (value, state): (&[u8], State) = match found {
                Found::Absent => (&[], State::Absent),
                Found::Present(value) => (value, State::Present),
                Found::AskAgain => (&[], State::AskAgain),
                Found::TooLarge => (&[], State::TooLarge),
            };
            values.items.push(value);
            values.states.push(state);
        }
        values
    }
}

/// Why a lookup at another host has no answer. Completes "failed to look up at another host: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupFault {
    /// The peer is lost, or was not there: the attempt cannot go on.
    #[error("the host is not connected")]
    Lost,
    /// The attempt is over, here or there.
    #[error("the attempt is over")]
    Stale,
    /// It asks for more than a lookup may; a fault of whoever asks.
    #[error("the lookup has {keys} keys of {bytes} bytes, but may have {KEYS_MAX} of {KEY_BYTES_MAX} bytes")]
    TooLarge {
        /// The keys asked for.
        keys: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// Its owner refuses it.
    #[error("{0}")]
    Refused(Refusal),
}

/// What an owner says that refuses a lookup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Whose fault it is.
    pub kind: RefusalKind,
    /// In words.
    pub text: String,
}

/// Whose fault a refusal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The epoch cannot be read.
    Gone,
    /// The table cannot be read so.
    NotAllowed,
    /// State could not be read.
    Failed,
}

/// The answer to come of a [`Get`]. An error of the receiver itself means that the link has ended.
pub type GetAnswer = oneshot::Receiver<Result<Values, LookupFault>>;
/// The answer to come of a [`Scan`]. An error of the receiver itself means that the link has ended.
pub type ScanAnswer = oneshot::Receiver<Result<Page, LookupFault>>;

/// Answers the lookups of other hosts, in one attempt.
///
/// What is asked comes from outside: a table that there is not, a key that another host owns, or fewer times than keys must be refused.
pub trait ServeLookups: Send + Sync {
    /// Calls `found` with the index and value of every one of the keys, in any order, each once. Called on the link's thread, which serves nobody else meanwhile.
    ///
    /// # Errors
    /// A refusal, where `found` may have been called for some keys.
    fn get(&self, from: HostId, get: &Get, found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Refusal>;

    /// A page of the keys that are this host's, of as many bytes as the host likes to read at a time. Called on a thread of its own; while it runs, the attempt does not end, and whoever ends it waits.
    ///
    /// # Errors
    /// A refusal.
    fn scan(&self, from: HostId, scan: &Scan) -> Result<Page, Refusal>;
}

/// A lookup in an attempt, for [`super::Link`]'s thread.
#[derive(Debug)]
pub(super) struct Asking<Question, Answer> {
    pub(super) attempt: Attempt,
    pub(super) question: Question,
    pub(super) answer: oneshot::Sender<Result<Answer, LookupFault>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_not_asked_for_or_would_not_end_are_told() {
        let check = |keys: &[&[u8]], next: Option<&[u8]>| {
            let (from, to, consistency) = (b"b".to_vec(), Some(b"f".to_vec()), Consistency::Live);
            let scan = Scan { table: TableId::new(0, 0), from, to, limit: 2, consistency };
            let keys: Column = keys.iter().copied().collect();
            scan.check(&Page { values: keys.clone(), keys, next: next.map(<[u8]>::to_vec) }).is_ok()
        };
        assert!(check(&[b"b", b"c"], Some(b"d")) && check(&[], Some(b"c")) && check(&[], None));
        assert!(!check(&[b"a"], None), "before the beginning");
        assert!(!check(&[b"c", b"c"], None), "twice");
        assert!(!check(&[b"b", b"f"], None), "behind the end");
        assert!(!check(&[b"b", b"c", b"d"], None), "more than were asked for");
        assert!(!check(&[], Some(b"b")) && !check(&[b"b", b"c"], Some(b"c")), "does not go on");
    }
}
