//! Rounds: the beat in which the tasks of serializable operators work, so that the reads and writes of one record over any keys are one transaction.
//!
//! A round has four steps, and all serializable tasks of the job take each together:
//!
//! 1. Every task runs its records one by one against the state as the round found it. Nothing is applied; what each record reads, and would
//!    write, is kept.
//! 2. Each task says which keys its records would write. A record commits if no earlier record (by task, then by place) would write what it reads or
//!    writes. Absent keys and scanned ranges count as read.
//! 3. What the committed records do is applied. They write different keys, so their order does not matter.
//! 4. The others run again, one at a time in the same order, each on what those before it have left.
//!
//! So the records take effect as if they had run one after another: the committed ones in their order, then the others in theirs. The rule is that of
//! Aria (Lu et al., VLDB 2020) without its reordering. While a round is on, the serializable tasks write each other's tables: each key has one writer at
//! a time all the same, and nobody else may write these tables. A round begins and ends within an epoch, since its records are in flight.

use std::collections::{BTreeMap, HashMap};
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

/// What a record has read.
#[derive(Debug, Clone, Default)]
pub(super) struct Reads {
    keys: Vec<Place>,
    ranges: Vec<Range>,
}

#[derive(Debug, Clone)]
struct Range {
    table: TableId,
    from: Vec<u8>,
    /// Excluded; `None` for no end.
    to: Option<Vec<u8>>,
}

impl Reads {
    /// Notes keys, present or absent.
    pub(super) fn keys(&mut self, table: TableId, keys: &Column) {
        self.keys.extend(keys.iter().map(|key| Place::of(table, key)));
    }

    /// Notes a range of keys.
    pub(super) fn range(&mut self, table: TableId, from: &[u8], to: Option<&[u8]>) {
        self.ranges.push(Range { table, from: from.to_vec(), to: to.map(<[u8]>::to_vec) });
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
    /// Notes that `record` would write `keys`. Records come in their order.
    pub(super) fn write(&mut self, record: u32, table: TableId, is_ordered: bool, keys: &Column) {
        for key in keys.iter() {
            self.places.entry(Place::of(table, key)).or_insert(record);
            if is_ordered {
                self.keys.entry((table, key.into())).or_insert(record);
            }
        }
    }

    /// Whether a record before `limit` would write what was read.
    fn touch(&self, reads: &Reads, limit: u32) -> bool {
        reads.keys.iter().any(|place| self.claims(*place, limit))
            || reads.ranges.iter().any(|range| self.claims_in(range, limit))
    }

    fn claims(&self, place: Place, limit: u32) -> bool {
        self.places.get(&place).is_some_and(|&first| first < limit)
    }

    fn claims_in(&self, range: &Range, limit: u32) -> bool {
        let from = Bound::Included((range.table, range.from.as_slice().into()));
        let within = |key: &[u8]| range.to.as_deref().is_none_or(|to| key < to);
        let behind = self.keys.range((from, Bound::Unbounded));
        behind.take_while(|((table, key), _)| *table == range.table && within(key)).any(|(_, &first)| first < limit)
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
    /// Whether record `record` of this task commits, which has read `reads` and would write `writes`: no earlier record would write any of it.
    pub(super) fn commits(&self, record: u32, reads: &Reads, writes: &Reads) -> bool {
        !self.claims[..=self.number].iter().enumerate().any(|(task, claims)| {
            let limit = if task == self.number { record } else { u32::MAX };
            claims.touch(reads, limit) || claims.touch(writes, limit)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(keys: &[&str]) -> Column {
        keys.iter().map(|key| key.as_bytes()).collect()
    }

    fn read(keys: &[&str]) -> Reads {
        let mut reads = Reads::default();
        reads.keys(TableId::default(), &column(keys));
        reads
    }

    fn verdict(number: usize, tasks: &[&[(u32, &str)]]) -> Verdict {
        let claims = tasks.iter().map(|writes| {
            let mut claims = Claims::default();
            for (record, key) in *writes {
                claims.write(*record, TableId::default(), true, &column(&[key]));
            }
            Arc::new(claims)
        });
        Verdict { number, claims: claims.collect() }
    }

    #[test]
    fn a_record_gives_way_to_earlier_writers_of_what_it_reads_or_writes() {
        let verdict = verdict(1, &[&[(5, "a")], &[(0, "b"), (2, "c")], &[(0, "d")]]);
        assert!(!verdict.commits(0, &read(&["a"]), &read(&[])));
        assert!(!verdict.commits(0, &read(&[]), &read(&["a"])));
        assert!(verdict.commits(0, &read(&["b"]), &read(&["b"])));
        assert!(!verdict.commits(1, &read(&["b"]), &read(&[])));
        assert!(verdict.commits(2, &read(&["c", "x"]), &read(&["c"])));
        assert!(verdict.commits(3, &read(&["d"]), &read(&["d"])));
    }

    #[test]
    fn a_scanned_range_is_read_whole_its_gaps_included() {
        let verdict = verdict(1, &[&[(0, "m")], &[]]);
        let scanned = |from: &str, to: Option<&str>| {
            let mut reads = Reads::default();
            reads.range(TableId::default(), from.as_bytes(), to.map(str::as_bytes));
            reads
        };
        assert!(!verdict.commits(0, &scanned("a", None), &read(&[])));
        assert!(!verdict.commits(0, &scanned("m", Some("n")), &read(&[])));
        assert!(verdict.commits(0, &scanned("a", Some("m")), &read(&[])));
        assert!(verdict.commits(0, &scanned("n", None), &read(&[])));
    }

    proptest! {
        /// The committed records in their order, then the others in theirs: what each reads is what the round's start, or those before it in that order, have left.
        #[test]
        fn committed_records_read_what_a_serial_run_would_give_them(
            records in prop::collection::vec((prop::collection::vec(0u8..6, 0..3), prop::collection::vec(0u8..6, 0..3)), 1..12),
            split in 0usize..12,
        ) {
            let split = split.min(records.len());
            let name = |key: &u8| key.to_string();
            let set = |keys: &[u8]| {
                let names: Vec<String> = keys.iter().map(name).collect();
                read(&names.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let claims_of = |part: &[(Vec<u8>, Vec<u8>)]| {
                let mut claims = Claims::default();
                for (record, (_, writes)) in part.iter().enumerate() {
                    let names: Vec<String> = writes.iter().map(name).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    claims.write(record as u32, TableId::default(), false, &column(&names));
                }
                Arc::new(claims)
            };
            let claims = vec![claims_of(&records[..split]), claims_of(&records[split..])];
            let commits: Vec<bool> = (0..records.len()).map(|index| {
                let (number, record) = if index < split { (0, index) } else { (1, index - split) };
                Verdict { number, claims: claims.clone() }.commits(record as u32, &set(&records[index].0), &set(&records[index].1))
            }).collect();
            for (index, (reads, writes)) in records.iter().enumerate().filter(|(index, _)| commits[*index]) {
                for before in (0..index).filter(|before| commits[*before]) {
                    prop_assert!(!records[before].1.iter().any(|key| reads.contains(key) || writes.contains(key)));
                }
            }
            // The first record of all never gives way.
            prop_assert!(commits[0]);
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
