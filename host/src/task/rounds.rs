//! Rounds: the beat in which the tasks of serializable operators work, so that the reads and writes of one record over any keys are one transaction.
//!
//! A round has four steps, and all serializable tasks of the job take each together:
//!
//! 1. Every task runs its records against the state as the round found it, each apart from the others. Nothing is applied; what each record reads, and would
//!    write, is kept.
//! 2. Each task says which keys its records would write. A record commits if no earlier record (by task, then by place) would write what it reads or
//!    writes. Absent keys and scanned ranges count as read.
//! 3. What the committed records do is applied. They write different keys, so their order does not matter.
//! 4. The others run again, one at a time in the same order, each on what those before it have left.
//!
//! So the records take effect as if they had run one after another: the committed ones in their order, then the others in theirs. The rule is that of
//! Aria (Lu et al., VLDB 2020) without its reordering. While a round is on, the serializable tasks write each other's tables: each key has one writer at
//! a time all the same, and nobody else may write these tables. A round begins and ends within an epoch, since its records are in flight.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Barrier, watch};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::lookup::TableId;
use crate::record::Column;

/// A key of a table, as a hash: two that collide only conflict for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(u64);

impl Place {
    fn of(table: TableId, key: &[u8]) -> Self {
        Self(xxh3_64_with_seed(key, table.number()))
    }
}

/// Hashes what is a hash already.
#[derive(Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// What records of a task have read, or would write. A record is named by its place in the task's batch; `None` stands for all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Touched {
    keys: Vec<(Option<u32>, Place)>,
    ranges: Vec<(Option<u32>, Range)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Range {
    table: TableId,
    from: Vec<u8>,
    /// Excluded; `None` for no end.
    to: Option<Vec<u8>>,
}

impl Touched {
    /// Notes keys, present or absent; `by` says which record each is touched by.
    pub(super) fn keys(&mut self, table: TableId, keys: &Column, by: impl Fn(usize) -> Option<u32>) {
        self.keys.extend(keys.iter().enumerate().map(|(index, key)| (by(index), Place::of(table, key))));
    }

    /// Notes a range of keys.
    pub(super) fn range(&mut self, table: TableId, from: &[u8], to: Option<&[u8]>, by: Option<u32>) {
        self.ranges.push((by, Range { table, from: from.to_vec(), to: to.map(<[u8]>::to_vec) }));
    }

    /// Adds what was noted of the records `part` of the batch, by their places in this part.
    pub(super) fn add(&mut self, part: std::ops::Range<usize>, noted: Self) {
        let alone = (part.len() == 1).then_some(0);
        let named = |by: Option<u32>| by.or(alone).map(|record| part.start as u32 + record);
        self.keys.extend(noted.keys.into_iter().map(|(by, place)| (named(by), place)));
        self.ranges.extend(noted.ranges.into_iter().map(|(by, range)| (named(by), range)));
    }
}

/// The keys that the records of one task would write, each with the first record that would.
#[derive(Debug, Default)]
pub(super) struct Claims {
    places: HashMap<Place, u32, BuildHasherDefault<AlreadyHashed>>,
    /// The keys of ordered tables as they are, for ranges.
    keys: BTreeMap<(TableId, Box<[u8]>), u32>,
}

impl Claims {
    /// Notes that records would write `keys`, each the one that stands in its place in `records`.
    pub(super) fn write(&mut self, table: TableId, is_ordered: bool, keys: &Column, records: &[u32]) {
        self.places.reserve(records.len());
        for (key, &record) in keys.iter().zip(records) {
            let first = self.places.entry(Place::of(table, key)).or_insert(record);
            *first = record.min(*first);
            if is_ordered {
                let first = self.keys.entry((table, key.into())).or_insert(record);
                *first = record.min(*first);
            }
        }
    }

    /// The first record that would write a key.
    fn first(&self, place: Place) -> Option<u32> {
        self.places.get(&place).copied()
    }

    /// The first record that would write a key of a range.
    fn first_in(&self, range: &Range) -> Option<u32> {
        let from = Bound::Included((range.table, range.from.as_slice().into()));
        let within = |key: &[u8]| range.to.as_deref().is_none_or(|to| key < to);
        let behind = self.keys.range((from, Bound::Unbounded));
        behind.take_while(|((table, key), _)| *table == range.table && within(key)).map(|(_, &first)| first).min()
    }
}

/// The rounds of a job: what its serializable tasks share.
#[derive(Debug)]
pub struct Rounds {
    barrier: Barrier,
    /// The number of the newest round that somebody has called for.
    called: watch::Sender<u64>,
    /// What the tasks would write in the round, by task.
    claims: Mutex<Vec<Arc<Claims>>>,
    /// How many records of the round are to run again.
    again: Mutex<usize>,
    /// Whose records run again now.
    turn: watch::Sender<usize>,
}

/// One task's part in the rounds.
#[derive(Debug)]
pub struct Seat {
    rounds: Arc<Rounds>,
    /// Which of the serializable tasks it is: their order.
    number: usize,
    called: watch::Receiver<u64>,
    turn: watch::Receiver<usize>,
    /// The rounds that it has begun.
    begun: u64,
}

impl Rounds {
    /// The seats of `tasks` tasks, in their order.
    pub fn seats(tasks: usize) -> Vec<Seat> {
        let rounds = Arc::new(Self {
            barrier: Barrier::new(tasks),
            called: watch::Sender::new(0),
            claims: Mutex::new(vec![Arc::default(); tasks]),
            again: Mutex::new(0),
            turn: watch::Sender::new(0),
        });
        let seat = |number| Seat {
            rounds: Arc::clone(&rounds),
            number,
            called: rounds.called.subscribe(),
            turn: rounds.turn.subscribe(),
            begun: 0,
        };
        (0..tasks).map(seat).collect()
    }
}

impl Seat {
    /// Waits until somebody calls for a round that this task has not begun.
    pub(super) async fn called(&mut self) {
        let begun = self.begun;
        // The sender lives as long as the seats do.
        let _ = self.called.wait_for(|&called| called > begun).await;
    }

    /// Calls for a round, where nobody has, and waits until all tasks have come to it.
    pub(super) async fn begin(&mut self) {
        self.begun += 1;
        let number = self.begun;
        self.rounds.called.send_if_modified(|called| {
            let is_new = *called < number;
            *called = (*called).max(number);
            is_new
        });
        if self.rounds.barrier.wait().await.is_leader() {
            // Nobody looks at these before the next barrier.
            *self.rounds.again.lock() = 0;
            self.rounds.turn.send_replace(0);
        }
    }

    /// Tells the others what this task's records would write, and waits until all have told.
    pub(super) async fn claim(&self, claims: Claims) -> Verdict {
        self.rounds.claims.lock()[self.number] = Arc::new(claims);
        self.rounds.barrier.wait().await;
        Verdict { number: self.number, claims: self.rounds.claims.lock().clone() }
    }

    /// Waits until all tasks have applied what committed. Returns whether any record is to run again; of this task there are `again`.
    pub(super) async fn applied(&self, again: usize) -> bool {
        *self.rounds.again.lock() += again;
        self.rounds.barrier.wait().await;
        *self.rounds.again.lock() > 0
    }

    /// Waits until it is this task's turn to run its records again.
    pub(super) async fn turn(&mut self) {
        let number = self.number;
        // As above.
        let _ = self.turn.wait_for(|&turn| turn == number).await;
    }

    /// Hands the turn to the next task.
    pub(super) fn pass(&self) {
        self.rounds.turn.send_replace(self.number + 1);
    }
}

/// What all tasks would write: decides which records commit.
#[derive(Debug)]
pub(super) struct Verdict {
    number: usize,
    claims: Vec<Arc<Claims>>,
}

impl Verdict {
    /// The verdict over the records of one task among themselves.
    pub(super) fn among(claims: Claims) -> Self {
        Self { number: 0, claims: vec![Arc::new(claims)] }
    }

    /// Which of this task's `count` records do not commit, which have read `reads` and would write `writes`: an earlier one would write some of it.
    pub(super) fn losers(&self, reads: &Touched, writes: &Touched, count: usize) -> Vec<bool> {
        let mut loses = vec![false; count];
        let mut note = |by: Option<u32>, first: Option<usize>| match (by.map(|record| record as usize), first) {
            (_, None) => {}
            (Some(record), Some(first)) => loses[record] |= record >= first,
            (None, Some(first)) => loses.iter_mut().skip(first).for_each(|loses| *loses = true),
        };
        for Touched { keys, ranges } in [reads, writes] {
            keys.iter().for_each(|(by, place)| note(*by, self.first_behind(|claims| claims.first(*place))));
            ranges.iter().for_each(|(by, range)| note(*by, self.first_behind(|claims| claims.first_in(range))));
        }
        loses
    }

    /// This task's first record that is behind a writer, where `first` gives a task's first writer.
    fn first_behind(&self, first: impl Fn(&Claims) -> Option<u32>) -> Option<usize> {
        let (own, earlier) = self.claims[..=self.number].split_last()?;
        if earlier.iter().any(|claims| first(claims).is_some()) {
            return Some(0);
        }
        first(own).map(|writer| writer as usize + 1)
    }
}

/// What records did that have to run again, to guess which of them can do so in one call.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// Whether a record may be in a call with others, and where what it touched lies in `places`.
    records: Vec<(bool, std::ops::Range<usize>)>,
    /// With whether it was written.
    places: Vec<(Place, bool)>,
    /// What the records of the call under way have written, as far as is guessed.
    written: HashSet<Place, BuildHasherDefault<AlreadyHashed>>,
}

impl Guesses {
    /// From what `count` records did, of which those that did not come to an end are not `known`.
    pub(super) fn new(reads: &Touched, writes: &Touched, count: usize, known: impl Fn(usize) -> bool) -> Self {
        let mut sizes = vec![0; count + 1];
        let both = || {
            let reads = reads.keys.iter().map(|(by, place)| (*by, *place, false));
            reads.chain(writes.keys.iter().map(|(by, place)| (*by, *place, true)))
        };
        both().for_each(|(by, ..)| {
            if let Some(record) = by {
                sizes[record as usize] += 1
            }
        });
        let mut records = Vec::with_capacity(count);
        let mut start = 0;
        for (record, size) in sizes.iter().take(count).enumerate() {
            records.push((known(record), start..start));
            start += size;
        }
        let mut places = vec![(Place(0), false); start];
        for (by, place, is_written) in both() {
            if let Some(record) = by {
                let range = &mut records[record as usize].1;
                places[range.end] = (place, is_written);
                range.end += 1;
            }
        }
        // A range is not looked into here, and what was read for all is of nobody.
        let for_all = |touched: &Touched| touched.keys.iter().any(|(by, _)| by.is_none());
        let any_for_all = for_all(reads) || reads.ranges.iter().any(|(by, _)| by.is_none());
        records.iter_mut().for_each(|(fits, _)| *fits &= !any_for_all);
        for (by, _) in &reads.ranges {
            if let Some(record) = by {
                records[*record as usize].0 = false;
            }
        }
        Self { records, places, written: HashSet::default() }
    }

    /// How many of `again`, which are to run in this order, can do so in one call: none but the first is likely to touch what one before it writes.
    pub(super) fn together(&mut self, again: &[usize]) -> usize {
        self.written.clear();
        for (index, &record) in again.iter().enumerate() {
            let (fits, range) = &self.records[record];
            let places = &self.places[range.clone()];
            if index > 0 && (!fits || places.iter().any(|(place, _)| self.written.contains(place))) {
                return index;
            }
            self.written.extend(places.iter().filter(|(_, is_written)| *is_written).map(|(place, _)| *place));
            if !fits {
                return 1;
            }
        }
        again.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(keys: &[&str]) -> Column {
        keys.iter().map(|key| key.as_bytes()).collect()
    }

    fn touched(by: Option<u32>, keys: &[&str]) -> Touched {
        let mut touched = Touched::default();
        touched.keys(TableId::default(), &column(keys), |_| by);
        touched
    }

    /// Whether `record` commits, which has read and would write some keys.
    fn commits(verdict: &Verdict, record: u32, reads: &[&str], writes: &[&str]) -> bool {
        let (reads, writes) = (touched(Some(record), reads), touched(Some(record), writes));
        !verdict.losers(&reads, &writes, 10)[record as usize]
    }

    fn verdict(number: usize, tasks: &[&[(u32, &str)]]) -> Verdict {
        let claims = tasks.iter().map(|writes| {
            let mut claims = Claims::default();
            for (record, key) in *writes {
                claims.write(TableId::default(), true, &column(&[key]), &[*record]);
            }
            Arc::new(claims)
        });
        Verdict { number, claims: claims.collect() }
    }

    #[test]
    fn a_record_gives_way_to_earlier_writers_of_what_it_reads_or_writes() {
        let verdict = verdict(1, &[&[(5, "a")], &[(2, "b"), (0, "b"), (2, "c")], &[(0, "d")]]);
        assert!(!commits(&verdict, 0, &["a"], &[]));
        assert!(!commits(&verdict, 0, &[], &["a"]));
        assert!(commits(&verdict, 0, &["b"], &["b"]));
        assert!(!commits(&verdict, 1, &["b"], &[]));
        assert!(commits(&verdict, 2, &["c", "x"], &["c"]));
        assert!(commits(&verdict, 3, &["d"], &["d"]));
    }

    #[test]
    fn what_was_read_for_all_is_read_by_each() {
        let verdict = verdict(1, &[&[(5, "a")], &[(2, "b")]]);
        let losers = |keys: &[&str]| verdict.losers(&touched(None, keys), &Touched::default(), 5);
        assert_eq!(losers(&["x"]), [false; 5]);
        assert_eq!(losers(&["b", "x"]), [false, false, false, true, true]);
        assert_eq!(losers(&["a"]), [true; 5]);
    }

    #[test]
    fn a_scanned_range_is_read_whole_its_gaps_included() {
        let verdict = verdict(1, &[&[(0, "m")], &[]]);
        let commits = |from: &str, to: Option<&str>| {
            let mut reads = Touched::default();
            reads.range(TableId::default(), from.as_bytes(), to.map(str::as_bytes), Some(0));
            !verdict.losers(&reads, &Touched::default(), 1)[0]
        };
        assert!(!commits("a", None));
        assert!(!commits("m", Some("n")));
        assert!(commits("a", Some("m")));
        assert!(commits("n", None));
    }

    #[test]
    fn parts_of_a_batch_name_their_records_by_its_places() {
        let mut all = touched(Some(0), &["a"]);
        all.add(3..5, touched(Some(1), &["b"]));
        all.add(7..8, touched(None, &["c"]));
        all.add(8..10, touched(None, &["d"]));
        let records: Vec<Option<u32>> = all.keys.iter().map(|(by, _)| *by).collect();
        assert_eq!(records, [Some(0), Some(4), Some(7), None]);
    }

    #[test]
    fn records_that_are_not_in_each_others_way_are_guessed_to_go_together() {
        let all = |parts: &[(u32, &str)]| {
            let mut all = Touched::default();
            parts.iter().for_each(|(by, key)| all.keys.extend(touched(Some(*by), &[key]).keys));
            all
        };
        let reads = all(&[(0, "a"), (1, "b"), (2, "x"), (3, "c"), (4, "e")]);
        let writes = all(&[(0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, "b")]);
        let mut guesses = Guesses::new(&reads, &writes, 6, |record| record != 5);
        assert_eq!(guesses.together(&[0, 1, 2, 3]), 2);
        assert_eq!(guesses.together(&[1, 2, 3]), 3);
        assert_eq!(guesses.together(&[1, 3, 4]), 2);
        assert_eq!(guesses.together(&[1, 5, 3]), 1);
        assert_eq!(guesses.together(&[5, 3]), 1);
        assert_eq!(guesses.together(&[0]), 1);
    }

    proptest! {
        /// The committed records in their order, then the others in theirs: what each reads is what the round's start, or those before it in that order, have left.
        #[test]
        fn committed_records_read_what_a_serial_run_would_give_them(
            records in prop::collection::vec((prop::collection::vec(0u8..6, 0..3), prop::collection::vec(0u8..6, 0..3)), 1..12),
            split in 0usize..12,
        ) {
            let split = split.min(records.len());
            let parts = [&records[..split], &records[split..]];
            let noted = |part: &[(Vec<u8>, Vec<u8>)]| {
                let (mut claims, mut reads, mut writes) = (Claims::default(), Touched::default(), Touched::default());
                for (record, (read, written)) in part.iter().enumerate() {
                    let columns = [read, written].map(|keys| keys.chunks(1).collect::<Column>());
                    claims.write(TableId::default(), false, &columns[1], &vec![record as u32; written.len()]);
                    reads.keys(TableId::default(), &columns[0], |_| Some(record as u32));
                    writes.keys(TableId::default(), &columns[1], |_| Some(record as u32));
                }
                (Arc::new(claims), reads, writes)
            };
            let noted = parts.map(noted);
            let claims: Vec<Arc<Claims>> = noted.iter().map(|(claims, ..)| Arc::clone(claims)).collect();
            let losers = noted.iter().zip(parts).enumerate().flat_map(|(number, ((_, reads, writes), part))| {
                Verdict { number, claims: claims.clone() }.losers(reads, writes, part.len())
            });
            let commits: Vec<bool> = losers.map(|loses| !loses).collect();
            for (index, (reads, writes)) in records.iter().enumerate() {
                let is_behind = |before: usize| records[before].1.iter().any(|key| reads.contains(key) || writes.contains(key));
                // Whoever gives way does so to an earlier record, whether that one commits or not.
                prop_assert_eq!(commits[index], !(0..index).any(is_behind));
            }
        }
    }

    #[test]
    fn tasks_go_through_rounds_together_and_take_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        runtime.block_on(async {
            let parts = Rounds::seats(3).into_iter().map(|mut seat| {
                let order = Arc::clone(&order);
                async move {
                    for round in 0..4u64 {
                        if seat.number != 1 {
                            seat.called().await;
                        }
                        seat.begin().await;
                        seat.claim(Claims::default()).await;
                        assert!(seat.applied(usize::from(seat.number == 2)).await);
                        seat.turn().await;
                        order.lock().push((round, seat.number));
                        seat.pass();
                    }
                }
            });
            futures_join(parts.collect()).await;
        });
        let expected: Vec<(u64, usize)> = (0..4).flat_map(|round| (0..3).map(move |task| (round, task))).collect();
        assert_eq!(*order.lock(), expected);
    }

    async fn futures_join(parts: Vec<impl Future<Output = ()> + 'static>) {
        let local = tokio::task::LocalSet::new();
        let handles: Vec<_> = parts.into_iter().map(|part| local.spawn_local(part)).collect();
        local.await;
        for handle in handles {
            handle.await.unwrap();
        }
    }
}
