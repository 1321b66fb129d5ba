//! A naive model of the owners, and of who asks them: what each key had at which time, who waits for what, and what an answer may be.
//!
//! An owner writes all keys at once: each write has the next number, and every value says which write it is of. So a value tells at which moment it was read.

use std::collections::BTreeSet;

use super::super::super::link::{self, LookupFault, Refusal, RefusalKind};
use super::super::batcher::{Action, BatchId, Batcher};
use super::*;

/// The key without a value, the one with a value too large, and the table that refuses.
const ABSENT: u8 = 13;
const HUGE: u8 = 17;
pub(super) const CLOSED: usize = 2;
/// Epochs before this one are gone.
pub(super) const OLDEST: Epoch = 2;

/// Something that happens.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Ask {
        peer: u16,
        table: usize,
        keys: Vec<u8>,
        read: Read,
        batching: Batching,
    },
    /// The owners write.
    Write,
    Commit,
    Pass {
        us: u64,
    },
    /// A batch under way comes to its owner, who reads.
    Read(usize),
    /// What an owner has read comes back.
    Arrive(usize),
    /// A batch under way fails.
    Lose(usize),
}

/// A question and what there was when it was asked.
struct Asked {
    peer: HostId,
    question: Question,
    now: Now,
    /// The owners' writes and commits by then.
    write: u64,
    committed: Epoch,
    answers: u32,
    has_failed: bool,
}

/// A batch under way.
struct UnderWay {
    id: BatchId,
    peer: HostId,
    get: Get,
    /// What its owner has read, once it has.
    answer: Option<Result<Values, LookupFault>>,
}

pub(super) struct Model {
    batcher: Batcher<usize>,
    pub(super) meters: Arc<LookupMeters>,
    now: Now,
    write: u64,
    committed: Epoch,
    /// When each write was made.
    writes: Vec<Now>,
    asked: Vec<Asked>,
    under_way: Vec<UnderWay>,
    /// The values that an owner puts into one answer.
    answer_max: usize,
    has_lost: bool,
}

impl Model {
    pub(super) fn new(cache_bytes_max: usize, answer_max: usize) -> Self {
        let meters = Arc::new(LookupMeters::default());
        let now = Now { time: Duration::from_millis(1), epoch: 4 };
        Self {
            batcher: Batcher::new(cache_bytes_max, Arc::clone(&meters)),
            meters,
            now,
            write: 0,
            committed: 3,
            writes: vec![Now::default()],
            asked: Vec::new(),
            under_way: Vec::new(),
            answer_max,
            has_lost: false,
        }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Ask { peer, table, keys, read, batching } => {
                let keys = keys.iter().map(std::slice::from_ref).collect();
                let question = Question { table: TableId::new(0, table), keys, read, batching };
                self.batcher.ask(self.now, HostId(peer), &question, self.asked.len());
                let (peer, now, write, committed) = (HostId(peer), self.now, self.write, self.committed);
                self.asked.push(Asked { peer, question, now, write, committed, answers: 0, has_failed: false });
            }
            Step::Write => {
                self.write += 1;
                self.writes.push(self.now);
            }
            Step::Commit => {
                self.committed += 1;
                self.now.epoch += 1;
            }
            Step::Pass { us } => {
                let until = self.now.time + Duration::from_micros(us);
                while let Some(due) = self.batcher.wake_at().filter(|due| *due <= until) {
                    self.now.time = self.now.time.max(due);
                    self.act();
                }
                self.now.time = until;
            }
            Step::Read(place) => {
                let unread = |under_way: &usize| self.under_way[*under_way].answer.is_none();
                let unread: Vec<usize> = (0..self.under_way.len()).filter(unread).collect();
                if let Some(&place) = unread.get(place % unread.len().max(1)) {
                    let answer = self.read(&self.under_way[place].get);
                    self.under_way[place].answer = Some(answer);
                }
            }
            Step::Arrive(place) => {
                let read = |under_way: &usize| self.under_way[*under_way].answer.is_some();
                let read: Vec<usize> = (0..self.under_way.len()).filter(read).collect();
                if let Some(&place) = read.get(place % read.len().max(1)) {
                    let UnderWay { id, answer, .. } = self.under_way.remove(place);
                    self.batcher.answered(self.now, id, answer.unwrap());
                }
            }
            Step::Lose(place) => {
                if !self.under_way.is_empty() {
                    let UnderWay { id, .. } = self.under_way.remove(place % self.under_way.len());
                    self.has_lost = true;
                    self.batcher.answered(self.now, id, Err(LookupFault::Lost));
                }
            }
        }
        self.act();
    }

    /// Lets everything come to its end, and checks that it has.
    pub(super) fn finish(mut self) {
        loop {
            self.step(Step::Pass { us: 10_000 });
            if self.under_way.is_empty() {
                break;
            }
            self.step(Step::Read(0));
            self.step(Step::Arrive(0));
        }
        assert_eq!(self.batcher.wake_at(), None);
        assert!(self.asked.iter().all(|asked| asked.answers == 1), "every question is answered");
        let figures = self.meters.figures();
        let keys: usize = self.asked.iter().map(|asked| asked.question.keys.len()).sum();
        assert_eq!(figures.iter().map(|figures| figures.keys_asked).sum::<u64>(), keys as u64);
        for figures in figures {
            let travelled = figures.keys_sent - figures.keys_again;
            let accounted = figures.keys_joined + figures.keys_cached + travelled;
            assert!(figures.keys_asked == accounted || figures.failures > 0 && figures.keys_asked > accounted);
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.batcher.next(self.now) {
            match action {
                Action::Complete { asker, answer } => self.complete(asker, answer),
                Action::Send { peer, batch, get } => {
                    self.check_batch(peer, &get);
                    self.under_way.push(UnderWay { id: batch, peer, get, answer: None });
                    assert!(self.under_way_to(peer).count() <= BATCHES_IN_FLIGHT_MAX);
                }
            }
        }
        self.check_nothing_waits_too_long();
    }

    fn under_way_to(&self, peer: HostId) -> impl Iterator<Item = &Get> {
        let of_peer = self.under_way.iter().filter(move |under_way| under_way.peer == peer);
        of_peer.map(|under_way| &under_way.get)
    }

    fn check_batch(&self, peer: HostId, get: &Get) {
        let items = items(&get.keys, &get.read);
        let distinct: BTreeSet<_> = items.iter().collect();
        assert_eq!(distinct.len(), items.len(), "nothing is sent twice within a batch");
        // Each key has been asked for, with such a read, and somebody waits; where more keys travel than fit a batch, it is one question that must not be torn.
        let asked =
            self.asked.iter().filter(|asked| asked.peer == peer && asked.answers == u32::from(asked.has_failed));
        let asked: Vec<&Asked> = asked.filter(|asked| travels_as(&asked.question, get)).collect();
        assert!(items.iter().all(|item| asked.iter().any(|asked| asked.items().contains(item))));
        let wants_some =
            |asked: &&Asked| asked.answers == 0 && asked.items().iter().any(|item| distinct.contains(item));
        assert!(asked.iter().any(wants_some), "nobody waits for it");
        let largest = asked.iter().map(|asked| asked.question.batching.keys_max).max();
        let is_alone = |asked: &Asked| {
            let wanted = asked.items();
            asked.is_whole() && items.iter().all(|item| wanted.contains(item))
        };
        assert!(Some(items.len()) <= largest || asked.iter().any(|asked| is_alone(asked)), "{items:?}");
    }

    /// Where a peer may be asked more, whatever was asked at least a linger ago has been sent.
    fn check_nothing_waits_too_long(&self) {
        let is_due = |asked: &&Asked| {
            let is_free = self.under_way_to(asked.peer).count() < BATCHES_IN_FLIGHT_MAX;
            asked.answers == 0 && is_free && asked.now.time + asked.question.batching.linger <= self.now.time
        };
        for asked in self.asked.iter().filter(is_due) {
            // A question that is due and not answered waits for something under way.
            let mut gets = self.under_way_to(asked.peer).filter(|get| travels_as(&asked.question, get));
            let wanted = asked.items();
            assert!(gets.any(|get| items(&get.keys, &get.read).iter().any(|item| wanted.contains(item))));
        }
        assert!(self.batcher.wake_at().is_none_or(|due| due > self.now.time));
    }

    /// What the owner answers at present.
    fn read(&self, get: &Get) -> Result<Values, LookupFault> {
        let refused = |kind| Err(LookupFault::Refused(Refusal { kind, text: "no".to_owned() }));
        if get.table == TableId::new(0, CLOSED) {
            return refused(RefusalKind::NotAllowed);
        }
        let moment = match &get.read {
            link::Read::At(Consistency::AsOf(epoch)) if *epoch < OLDEST => return refused(RefusalKind::Gone),
            link::Read::At(Consistency::AsOf(epoch)) => *epoch,
            link::Read::At(Consistency::Committed) => self.committed,
            link::Read::At(Consistency::Live) | link::Read::AsOfTimes(_) => self.write,
        };
        let items = items(&get.keys, &get.read);
        let values: Vec<Vec<u8>> = items.iter().map(|(key, time)| value(get.table, key, *time, moment)).collect();
        let found = values.iter().enumerate().map(|(index, value)| match get.keys.get(index)[0] {
            HUGE => Found::TooLarge,
            _ if index >= self.answer_max => Found::AskAgain,
            ABSENT => Found::Absent,
            _ => Found::Present(value),
        });
        Ok(found.collect())
    }

    fn complete(&mut self, asker: usize, answer: Result<Answer, LookupsError>) {
        self.asked[asker].answers += 1;
        self.asked[asker].has_failed = answer.is_err();
        let asked = &self.asked[asker];
        assert_eq!(asked.answers, 1, "a question is answered once");
        let Asked { question, .. } = asked;
        let is_huge = question.keys.iter().any(|key| key == [HUGE]);
        let is_closed = question.table == TableId::new(0, CLOSED);
        let is_gone = matches!(question.read, Read::At(Consistency::AsOf(epoch)) if epoch < OLDEST);
        let is_empty = question.keys.is_empty();
        match answer {
            Ok(answer) => {
                assert!(is_empty || !(is_huge || is_closed || is_gone));
                self.check_answer(asked, &answer);
            }
            Err(LookupsError::ValueTooLarge { .. }) => assert!(is_huge),
            Err(LookupsError::Fault(LookupFault::Refused(refusal))) => match refusal.kind {
                RefusalKind::Gone => assert!(is_gone),
                RefusalKind::NotAllowed => assert!(is_closed),
                RefusalKind::Failed => panic!("{refusal}"),
            },
            Err(LookupsError::Fault(LookupFault::Lost)) => assert!(self.has_lost),
            Err(error) => panic!("{error}"),
        }
    }

    fn check_answer(&self, asked: &Asked, answer: &Answer) {
        let Asked { question, now, .. } = asked;
        assert_eq!(answer.len(), question.keys.len());
        let mut moments = BTreeSet::new();
        for ((key, time), found) in asked.items().iter().zip(answer.iter()) {
            let Some(found) = found else {
                assert_eq!(key, &[ABSENT]);
                continue;
            };
            let moment = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert_eq!(found, value(question.table, key, *time, moment));
            assert_ne!(key, &[ABSENT]);
            moments.insert(moment);
        }
        let (earliest, latest) = match &question.read {
            Read::At(Consistency::AsOf(epoch)) => (*epoch, *epoch),
            Read::At(Consistency::Committed) => (asked.committed, self.committed),
            Read::At(Consistency::Live) | Read::AsOfTimes(_) => (asked.write, self.write),
            Read::Bounded(Staleness::Time(most)) => {
                // What was written before the time that is allowed must be seen.
                let seen = self.writes.iter().filter(|write| write.time + *most < now.time).count();
                (seen.saturating_sub(1) as u64, self.write)
            }
            Read::Bounded(Staleness::Epochs(most)) => {
                let seen = self.writes.iter().filter(|write| write.epoch + most < now.epoch).count();
                (seen.saturating_sub(1) as u64, self.write)
            }
        };
        assert!(moments.iter().all(|moment| (earliest..=latest).contains(moment)), "{moments:?} {earliest} {latest}");
        if asked.is_whole() && self.answer_max == usize::MAX {
            assert!(moments.len() <= 1, "a question shows one moment");
        }
    }
}

impl Asked {
    fn items(&self) -> Vec<(Vec<u8>, Option<i64>)> {
        let read = match &self.question.read {
            Read::AsOfTimes(times) => link::Read::AsOfTimes(times.clone()),
            Read::At(_) | Read::Bounded(_) => link::Read::At(Consistency::Live),
        };
        items(&self.question.keys, &read)
    }

    /// Whether all its keys must be read at once.
    fn is_whole(&self) -> bool {
        !matches!(self.question.read, Read::Bounded(_) | Read::At(Consistency::AsOf(_)))
    }
}

/// Whether a question may be answered by such a batch.
fn travels_as(question: &Question, get: &Get) -> bool {
    let is_read = match (&question.read, &get.read) {
        (Read::At(one), link::Read::At(other)) => one == other,
        (Read::Bounded(_), link::Read::At(other)) => *other == Consistency::Live,
        (Read::AsOfTimes(_), link::Read::AsOfTimes(_)) => true,
        _ => false,
    };
    is_read && question.table == get.table
}

fn items(keys: &Column, read: &link::Read) -> Vec<(Vec<u8>, Option<i64>)> {
    let time = |place: usize| match read {
        link::Read::AsOfTimes(times) => Some(times[place]),
        link::Read::At(_) => None,
    };
    keys.iter().enumerate().map(|(place, key)| (key.to_vec(), time(place))).collect()
}

/// The value of a key as of a moment: the moment, and whose value it is.
fn value(table: TableId, key: &[u8], time: Option<i64>, moment: u64) -> Vec<u8> {
    [&moment.to_le_bytes()[..], key, format!("{table:?} {time:?}").as_bytes()].concat()
}
