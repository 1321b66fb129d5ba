//! Decides which keys travel when, who waits for them, and what is answered from memory. Pure: what happens comes in, what is to be done goes out.
//!
//! Time is handed in. Questions and answers only take their places; [`Batcher::next`] says what there is to do then, one thing after another, until nothing is left before [`Batcher::wake_at`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::super::link::{Found, Get, HostId, KEY_BYTES_MAX, LookupFault, Refusal, RefusalKind, Values};
use super::cache::Cache;
use super::lane::{Batch, Lane, LaneBatches, Waiter, Wanted, hash_of};
use super::meters::LookupMeters;
use super::{Answer, BATCHES_IN_FLIGHT_MAX, LookupsError, Now, Place, Question, Read};

/// A batch that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BatchId {
    lane: Lane,
    number: u64,
}

/// Something to do. `Asker` is whoever has asked.
#[derive(Debug)]
pub(super) enum Action<Asker> {
    /// Ask a peer; [`Batcher::answered`] is to be told of the answer, once.
    Send {
        /// The host that is asked.
        peer: HostId,
        /// What the answer is known by.
        batch: BatchId,
        /// What it is asked.
        get: Get,
    },
    /// Tell who has asked.
    Complete {
        /// Who.
        asker: Asker,
        /// What.
        answer: Result<Answer, LookupsError>,
    },
}

/// The lookups of one attempt at all other hosts.
pub(super) struct Batcher<Asker> {
    lanes: BTreeMap<Lane, LaneBatches>,
    /// The batches under way, by peer.
    in_flight: BTreeMap<HostId, usize>,
    waiting: HashMap<u64, Waiting<Asker>>,
    /// The number of the last question.
    last: u64,
    cache: Cache,
    complete: VecDeque<(Asker, Result<Answer, LookupsError>)>,
    meters: Arc<LookupMeters>,
}

/// A question that is not answered.
struct Waiting<Asker> {
    asker: Asker,
    lane: Lane,
    asked: Duration,
    /// Whether its values are remembered.
    is_bounded: bool,
    answer: Answer,
    /// The keys that have no answer yet.
    missing: usize,
}

impl<Asker> Waiting<Asker> {
    /// The place of `values` among the parts of the answer.
    fn part(&mut self, values: &Arc<Values>) -> u32 {
        let parts = &mut self.answer.parts;
        if parts.last().is_none_or(|last| !Arc::ptr_eq(last, values)) {
            parts.push(Arc::clone(values));
        }
        parts.len() as u32 - 1
    }
}

impl<Asker> Batcher<Asker> {
    /// Nothing waits, and nothing is remembered; up to `cache_bytes_max` bytes will be.
    pub(super) fn new(cache_bytes_max: usize, meters: Arc<LookupMeters>) -> Self {
        Self {
            lanes: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            waiting: HashMap::new(),
            last: 0,
            cache: Cache::new(cache_bytes_max),
            complete: VecDeque::new(),
            meters,
        }
    }

    /// Takes a question that was asked then.
    ///
    /// # Panics
    /// When there are fewer event times than keys.
    pub(super) fn ask(&mut self, asked: Now, peer: HostId, question: &Question, asker: Asker) {
        let lane = Lane::of(peer, question);
        let (keys, is_bounded) = (question.keys.len(), matches!(question.read, Read::Bounded(_)));
        let answer = Answer { places: vec![Place::Cached(None); keys], parts: Vec::new() };
        let mut waiting = Waiting { asker, lane, asked: asked.time, is_bounded, answer, missing: 0 };
        if let Some(bytes) = question.keys.iter().map(<[u8]>::len).find(|&bytes| bytes > KEY_BYTES_MAX) {
            self.meters.count(peer, lane.table, |counts| counts.questions += 1);
            return self.finish(asked.time, waiting, Err(LookupsError::KeyTooLarge { bytes }));
        }
        let wanted = self.look_into_cache(asked, question, &mut waiting.answer);
        self.last += 1;
        let joined = match wanted.len() {
            0 => 0,
            _ => self.lanes.entry(lane).or_default().admit(self.last, question, &wanted, asked),
        };
        self.meters.count(peer, lane.table, |counts| {
            counts.questions += 1;
            counts.keys_asked += keys as u64;
            counts.keys_joined += joined as u64;
            counts.keys_cached += (keys - wanted.len()) as u64;
        });
        waiting.missing = wanted.len();
        if wanted.is_empty() {
            self.finish(asked.time, waiting, Ok(()));
        } else {
            self.waiting.insert(self.last, waiting);
        }
    }

    /// Puts what is remembered into an answer, and says what else there is to ask for.
    fn look_into_cache(&mut self, asked: Now, question: &Question, answer: &mut Answer) -> Vec<Wanted> {
        let keys = (0..).zip(question.keys.iter()).map(|(place, key)| (Wanted { place, hash: hash_of(key) }, key));
        let Read::Bounded(staleness) = question.read else { return keys.map(|(wanted, _)| wanted).collect() };
        let mut wanted = Vec::new();
        for (key_wanted, key) in keys {
            let allows = |read| staleness.allows(read, asked);
            match self.cache.get(question.table, key_wanted.hash, key, allows) {
                Some(value) => answer.places[key_wanted.place as usize] = Place::Cached(value),
                None => wanted.push(key_wanted),
            }
        }
        wanted
    }

    /// Takes the answer of a batch.
    pub(super) fn answered(&mut self, now: Now, id: BatchId, answer: Result<Values, LookupFault>) {
        let BatchId { lane, number } = id;
        let Some(batch) = self.lanes.get_mut(&lane).and_then(|batches| batches.answered(number)) else { return };
        self.in_flight.entry(lane.peer).and_modify(|batches| *batches -= 1);
        let answer = answer.and_then(|values| checked(values, batch.keys.len()));
        self.meters.count(lane.peer, lane.table, |counts| {
            counts.value_bytes += answer.as_ref().map_or(0, Values::byte_len) as u64;
            counts.round_trips.record(now.time.saturating_sub(batch.sent.unwrap_or(now).time));
        });
        match answer {
            Ok(values) => self.hand_out(now, lane, &batch, &Arc::new(values)),
            Err(fault) => {
                for waiters in batch.waiters.chunk_by(|one, next| one.question == next.question) {
                    self.fail(now.time, waiters[0].question, LookupsError::Fault(fault.clone()));
                }
            }
        }
        self.meters.set_cached_bytes(self.cache.bytes());
        self.drop_if_empty(lane);
    }

    fn hand_out(&mut self, now: Now, lane: Lane, batch: &Batch, values: &Arc<Values>) {
        let mut again = Vec::new();
        for waiters in batch.waiters.chunk_by(|one, next| one.question == next.question) {
            let number = waiters[0].question;
            match self.hand_to(number, lane, batch, values, waiters) {
                Ok(unanswered) => again.extend(unanswered),
                Err(error) => self.fail(now.time, number, error),
            }
            if self.waiting.get(&number).is_some_and(|waiting| waiting.missing == 0)
                && let Some(waiting) = self.waiting.remove(&number)
            {
                self.finish(now.time, waiting, Ok(()));
            }
        }
        // A question that has failed meanwhile asks no more.
        again.retain(|waiter| self.waiting.contains_key(&waiter.question));
        if !again.is_empty() {
            self.lanes.entry(lane).or_default().ask_again(batch, &again);
        }
    }

    /// Hands values to a question that waits for them. Returns who has to be asked for again.
    fn hand_to(
        &mut self,
        number: u64,
        lane: Lane,
        batch: &Batch,
        values: &Arc<Values>,
        waiters: &[Waiter],
    ) -> Result<Vec<Waiter>, LookupsError> {
        let Some(waiting) = self.waiting.get_mut(&number) else { return Ok(Vec::new()) };
        let part = waiting.part(values);
        let mut again = Vec::new();
        for waiter in waiters {
            let key = batch.keys.get(waiter.index as usize);
            let value = match values.get(waiter.index as usize) {
                Found::AskAgain => {
                    again.push(*waiter);
                    continue;
                }
                Found::TooLarge => return Err(LookupsError::value_too_large(key)),
                Found::Absent => None,
                Found::Present(value) => Some(value),
            };
            waiting.answer.places[waiter.place as usize] = Place::Part(part, waiter.index);
            waiting.missing -= 1;
            if waiting.is_bounded
                && let Some(sent) = batch.sent
            {
                self.cache.put(lane.table, batch.hash(waiter.index), key, value, sent);
            }
        }
        Ok(again)
    }

    fn fail(&mut self, now: Duration, number: u64, error: LookupsError) {
        if let Some(waiting) = self.waiting.remove(&number) {
            self.finish(now, waiting, Err(error));
        }
    }

    fn finish(&mut self, now: Duration, waiting: Waiting<Asker>, end: Result<(), LookupsError>) {
        let Waiting { asker, lane, asked, answer, .. } = waiting;
        let latency = now.saturating_sub(asked);
        self.meters.count(lane.peer, lane.table, |counts| counts.answered(latency, end.is_err()));
        self.complete.push_back((asker, end.map(|()| answer)));
    }

    /// The next thing to do.
    pub(super) fn next(&mut self, now: Now) -> Option<Action<Asker>> {
        if let Some((asker, answer)) = self.complete.pop_front() {
            return Some(Action::Complete { asker, answer });
        }
        loop {
            let due = self.sendable().filter(|(_, batches)| batches.next_due().is_some_and(|due| due <= now.time));
            let lane = *due.min_by_key(|(_, batches)| batches.next_rank())?.0;
            let batches = self.lanes.get_mut(&lane)?;
            let (number, batch) = batches.send(now)?;
            if batch.waiters.iter().any(|waiter| self.waiting.contains_key(&waiter.question)) {
                let (get, is_again) = (lane.get(batch), batch.is_again);
                return Some(self.under_way(lane, number, get, is_again));
            }
            // All who wanted it have failed meanwhile.
            batches.answered(number);
            self.drop_if_empty(lane);
        }
    }

    fn under_way(&mut self, lane: Lane, number: u64, get: Get, is_again: bool) -> Action<Asker> {
        *self.in_flight.entry(lane.peer).or_default() += 1;
        self.meters.count(lane.peer, lane.table, |counts| {
            counts.batches += 1;
            counts.keys_sent += get.keys.len() as u64;
            counts.key_bytes += get.keys.bytes().len() as u64;
            counts.keys_again += if is_again { get.keys.len() as u64 } else { 0 };
        });
        Action::Send { peer: lane.peer, batch: BatchId { lane, number }, get }
    }

    fn drop_if_empty(&mut self, lane: Lane) {
        if self.lanes.get(&lane).is_some_and(LaneBatches::is_empty) {
            self.lanes.remove(&lane);
        }
    }

    /// When there will be something to do if nothing happens before.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.sendable().filter_map(|(_, batches)| batches.next_due()).min()
    }

    /// The lanes to peers that may be asked one more batch.
    fn sendable(&self) -> impl Iterator<Item = (&Lane, &LaneBatches)> {
        let is_free = |peer: HostId| self.in_flight.get(&peer).is_none_or(|&batches| batches < BATCHES_IN_FLIGHT_MAX);
        self.lanes.iter().filter(move |(lane, _)| is_free(lane.peer))
    }
}

/// Refuses an answer that answers nothing, so that asking again ends.
fn checked(values: Values, keys: usize) -> Result<Values, LookupFault> {
    if values.len() == keys && values.iter().any(|found| found != Found::AskAgain) {
        return Ok(values);
    }
    let text = format!("its answer to {keys} keys has {}, none of them a value", values.len());
    Err(LookupFault::Refused(Refusal { kind: RefusalKind::Failed, text }))
}
