//! The batches of one lane: which keys wait together, and which of them may be joined. Pure.
//!
//! Keys that go to the same host and table with the same kind of read share a lane. Of its batches one is open for more keys; the others are full and wait for their turn, or are under way.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::super::link::{self, Get, HostId, KEY_BYTES_MAX, KEYS_MAX};
use super::{Now, Question, Read, Staleness};
use crate::epoch::Epoch;
use crate::key::KeyHash;
use crate::lookup::{Consistency, TableId};
use crate::record::Column;

/// What keys have in common that travel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Lane {
    pub(super) peer: HostId,
    pub(super) table: TableId,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// The latest values, for `live` and `bounded`.
    Live,
    Committed,
    AsOf(Epoch),
    Times,
}

impl Lane {
    pub(super) fn of(peer: HostId, question: &Question) -> Self {
        let kind = match &question.read {
            Read::At(Consistency::Live) | Read::Bounded(_) => Kind::Live,
            Read::At(Consistency::Committed) => Kind::Committed,
            Read::At(Consistency::AsOf(epoch)) => Kind::AsOf(*epoch),
            Read::AsOfTimes(_) => Kind::Times,
        };
        Self { peer, table: question.table, kind }
    }

    /// What a batch of this lane asks.
    pub(super) fn get(&self, batch: &Batch) -> Get {
        let read = match self.kind {
            Kind::Live => link::Read::At(Consistency::Live),
            Kind::Committed => link::Read::At(Consistency::Committed),
            Kind::AsOf(epoch) => link::Read::At(Consistency::AsOf(epoch)),
            Kind::Times => link::Read::AsOfTimes(batch.times.clone()),
        };
        Get { table: self.table, keys: batch.keys.clone(), read }
    }
}

/// What a key may join that is asked for already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joins {
    /// Only batches from this one on: the one that takes all keys of the question, which must show one moment.
    From(u64),
    /// What has not been sent, or was sent recently enough for a question asked now.
    Recent(Staleness, Now),
    /// Everything.
    All,
}

/// A key of a question that has to be asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Its place in the question.
    pub(super) place: u32,
    pub(super) hash: u64,
}

/// The hash that a key is found by.
pub(super) fn hash_of(key: &[u8]) -> u64 {
    KeyHash::of(key).for_table()
}

/// Who waits for a key of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    /// The key's place in the batch.
    pub(super) index: u32,
    /// The question's number.
    pub(super) question: u64,
    /// The key's place in the question.
    pub(super) place: u32,
}

/// Keys that travel together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) keys: Column,
    /// One a key where they are looked up as of event times, else none.
    times: Vec<i64>,
    hashes: Vec<u64>,
    /// The waiters of one question and one admission stand together.
    pub(super) waiters: Vec<Waiter>,
    /// The most keys that it may come to.
    keys_max: usize,
    /// When it is to be sent, full or not.
    due: Duration,
    /// When it was sent, if it was.
    pub(super) sent: Option<Now>,
    /// Whether its keys were asked for before, and the answer was full.
    pub(super) is_again: bool,
}

impl Batch {
    fn new(keys_max: usize, due: Duration) -> Self {
        let (keys, times, hashes, waiters) = Default::default();
        Self { keys, times, hashes, waiters, keys_max, due, sent: None, is_again: false }
    }

    pub(super) fn hash(&self, index: u32) -> u64 {
        self.hashes[index as usize]
    }

    fn is(&self, index: u32, key: &[u8], time: Option<i64>) -> bool {
        self.keys.get(index as usize) == key && time.is_none_or(|time| self.times[index as usize] == time)
    }

    fn has_room(&self, key: &[u8]) -> bool {
        self.keys.len() < self.keys_max && self.keys.bytes().len() + key.len() <= KEY_BYTES_MAX
    }

    fn push(&mut self, hash: u64, key: &[u8], time: Option<i64>) -> u32 {
        self.keys.push(key);
        self.times.extend(time);
        self.hashes.push(hash);
        self.keys.len() as u32 - 1
    }

    /// A batch of the keys that these wait for.
    fn again(&self, waiters: &[Waiter]) -> Self {
        let mut again = Self { is_again: true, ..Self::new(self.keys_max, self.due) };
        let mut moved: Vec<Option<u32>> = vec![None; self.keys.len()];
        for waiter in waiters {
            let from = waiter.index as usize;
            let index = *moved[from].get_or_insert_with(|| {
                again.push(self.hashes[from], self.keys.get(from), self.times.get(from).copied())
            });
            again.waiters.push(Waiter { index, ..*waiter });
        }
        again
    }
}

/// The batches of a lane that are not answered, by their numbers: later ones have greater numbers.
#[derive(Debug, Default)]
pub(super) struct LaneBatches {
    batches: BTreeMap<u64, Batch>,
    last: u64,
    /// Those that are not sent, in the order in which they will be.
    unsent: VecDeque<u64>,
    /// The last of these, if it takes more keys.
    open: Option<u64>,
    /// Where each key was put last. What is asked for again is not found here.
    index: HashTable<Spot>,
}

/// Where a key is.
#[derive(Debug, Clone, Copy)]
struct Spot {
    hash: u64,
    batch: u64,
    index: u32,
}

impl LaneBatches {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Puts the `wanted` keys of a question into batches. Returns how many of them had been asked for already.
    pub(super) fn admit(&mut self, number: u64, question: &Question, wanted: &[Wanted], asked: Now) -> usize {
        let keys_max = question.batching.keys_max;
        let due = asked.time + question.batching.linger;
        let joins = match &question.read {
            Read::At(Consistency::AsOf(_)) => Joins::All,
            Read::Bounded(staleness) => Joins::Recent(*staleness, asked),
            Read::At(Consistency::Live | Consistency::Committed) | Read::AsOfTimes(_) => {
                self.make_room(question, wanted);
                Joins::From(self.open.unwrap_or(self.last + 1))
            }
        };
        let is_whole = matches!(joins, Joins::From(_));
        if let Some(open) = self.open
            && !is_whole
        {
            self.limit(open, keys_max);
        }
        // A question that must show one moment is taken as a whole: it has room in the open batch, or begins one.
        let most = if is_whole { KEYS_MAX } else { keys_max };
        let mut joined = 0;
        for wanted in wanted {
            let (key, time) = key_of(question, wanted);
            let found = self.find(wanted.hash, key, time).filter(|spot| self.may_join(spot.batch, joins));
            joined += usize::from(found.is_some());
            let spot = found.unwrap_or_else(|| self.add(wanted.hash, key, time, most, due));
            let batch = self.batches.get_mut(&spot.batch).expect("what the index names is not answered");
            batch.waiters.push(Waiter { index: spot.index, question: number, place: wanted.place });
            batch.due = batch.due.min(due);
        }
        if let Some(open) = self.open {
            self.limit(open, keys_max);
        }
        joined
    }

    /// Closes the open batch if it cannot take a whole question.
    fn make_room(&mut self, question: &Question, wanted: &[Wanted]) {
        let Some(open) = self.open else { return };
        let batch = &self.batches[&open];
        let room = batch.keys_max.min(question.batching.keys_max).saturating_sub(batch.keys.len());
        let is_new = |wanted: &&Wanted| {
            let (key, time) = key_of(question, wanted);
            self.find(wanted.hash, key, time).is_none_or(|spot| spot.batch != open)
        };
        let fits = wanted.len() <= room || wanted.iter().filter(is_new).count() <= room;
        if !fits || batch.keys.bytes().len() + question.keys.bytes().len() > KEY_BYTES_MAX {
            self.open = None;
        }
    }

    /// Lets a batch come to no more than `keys_max` keys; if it has as many, it is open no more.
    fn limit(&mut self, open: u64, keys_max: usize) {
        let batch = self.batches.get_mut(&open).expect("an open batch is not answered");
        batch.keys_max = batch.keys_max.min(keys_max);
        if batch.keys.len() >= batch.keys_max {
            self.open = None;
        }
    }

    fn find(&self, hash: u64, key: &[u8], time: Option<i64>) -> Option<Spot> {
        let is_it = |spot: &Spot| spot.hash == hash && self.batches[&spot.batch].is(spot.index, key, time);
        self.index.find(hash, is_it).copied()
    }

    fn may_join(&self, batch: u64, joins: Joins) -> bool {
        match joins {
            Joins::From(first) => batch >= first,
            Joins::Recent(staleness, asked) => {
                self.batches[&batch].sent.is_none_or(|sent| staleness.allows(sent, asked))
            }
            Joins::All => true,
        }
    }

    /// Adds a key to the open batch, or to a new one of at most `keys_max` keys where there is none or it is full.
    fn add(&mut self, hash: u64, key: &[u8], time: Option<i64>, keys_max: usize, due: Duration) -> Spot {
        let open = self.open.filter(|open| self.batches[open].has_room(key));
        let number = open.unwrap_or_else(|| {
            let number = self.begin(Batch::new(keys_max, due));
            self.unsent.push_back(number);
            self.open = Some(number);
            number
        });
        let batch = self.batches.get_mut(&number).expect("it is open");
        let spot = Spot { hash, batch: number, index: batch.push(hash, key, time) };
        let batches = &self.batches;
        let is_it = |spot: &Spot| spot.hash == hash && batches[&spot.batch].is(spot.index, key, time);
        match self.index.entry(hash, is_it, |spot| spot.hash) {
            Entry::Occupied(mut entry) => *entry.get_mut() = spot,
            Entry::Vacant(entry) => {
                entry.insert(spot);
            }
        }
        spot
    }

    fn begin(&mut self, batch: Batch) -> u64 {
        self.last += 1;
        self.batches.insert(self.last, batch);
        self.last
    }

    /// By when the next batch is to be sent: zero for one that is full.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let next = *self.unsent.front()?;
        Some(if self.open == Some(next) { self.batches[&next].due } else { Duration::ZERO })
    }

    /// Since when the next batch has waited; the one that has waited longest is sent first.
    pub(super) fn next_rank(&self) -> Option<Duration> {
        self.unsent.front().map(|next| self.batches[next].due)
    }

    /// Sends the next batch.
    pub(super) fn send(&mut self, now: Now) -> Option<(u64, &Batch)> {
        let next = self.unsent.pop_front()?;
        self.open = self.open.filter(|open| *open != next);
        let batch = self.batches.get_mut(&next)?;
        batch.sent = Some(now);
        Some((next, batch))
    }

    /// Takes out a batch that is answered.
    pub(super) fn answered(&mut self, number: u64) -> Option<Batch> {
        let batch = self.batches.remove(&number)?;
        for (index, hash) in (0..).zip(&batch.hashes) {
            let is_it = |spot: &Spot| spot.batch == number && spot.index == index;
            if let Ok(entry) = self.index.find_entry(*hash, is_it) {
                entry.remove();
            }
        }
        Some(batch)
    }

    /// Asks once more for the keys of an answered batch that these wait for, before anything else.
    pub(super) fn ask_again(&mut self, batch: &Batch, waiters: &[Waiter]) {
        let number = self.begin(batch.again(waiters));
        self.unsent.push_front(number);
    }
}

fn key_of<'a>(question: &'a Question, wanted: &Wanted) -> (&'a [u8], Option<i64>) {
    let place = wanted.place as usize;
    let time = match &question.read {
        Read::AsOfTimes(times) => Some(times[place]),
        Read::At(_) | Read::Bounded(_) => None,
    };
    (question.keys.get(place), time)
}
