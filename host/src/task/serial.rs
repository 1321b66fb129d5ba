//! A task's part in a round: see [`super::rounds`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::rounds::{Claims, Guesses, Seat, Touched, Verdict};
use super::run::Task;
use super::{TaskError, isolate, together};
use crate::lookup::TableId;
use crate::plugin::callable::Callable;
use crate::plugin::{
    BatchLog, Consistency, Effects, LookupError, OtherTables, Page, Readers, Records, StateReadError, StateReader,
};
use crate::record::{Batch, BatchSize, Column};

/// The most records that run again in one call at first; it doubles as long as they are not in each other's way.
const AGAIN_AT_FIRST: usize = 16;

/// What the call under way has read so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<Touched>>);

impl Recorder {
    fn take(&self) -> Touched {
        std::mem::take(&mut *self.0.lock())
    }

    fn keys(&self, table: TableId, keys: &Column, readers: Readers<'_>) {
        self.0.lock().keys(table, keys, |index| readers.of(index));
    }
}

/// What records do against the same state, each apart from the others.
#[derive(Default)]
struct Proposal {
    effects: Effects,
    reads: Touched,
    /// Those that have failed, with what they said.
    failed: BTreeMap<usize, Option<Arc<str>>>,
}

impl<F: Callable> Task<F> {
    /// Takes part in a round with `batch`, which may be empty.
    pub(super) async fn round(&mut self, mut seat: Seat, batch: Batch) -> Result<Seat, TaskError> {
        seat.begin().await;
        let (batch, Proposal { mut effects, reads, failed }) = self.propose(batch).await?;
        let (writes, claims) = self.written(&effects);
        let verdict = seat.claim(claims).await;
        let mut loses = verdict.losers(&reads, &writes, batch.len());
        // What failed may have failed for what it saw: it is found out when it runs on what those before it have left.
        failed.keys().for_each(|&record| loses[record] = true);
        let again: Vec<usize> = (0..batch.len()).filter(|&record| loses[record]).collect();
        if !again.is_empty() {
            drop_records(&mut effects, &loses);
            // The instance has seen what did not happen.
            self.discard_instance();
        }
        self.apply(&batch, effects)?;
        self.operator.meters.reruns.add(again.len() as u64);
        if seat.applied(again.len()).await {
            let guesses = Guesses::new(&reads, &writes, batch.len(), |record| !failed.contains_key(&record));
            seat.turn().await;
            self.run_again(&batch, &again, guesses, &failed).await?;
            seat.pass();
        }
        Ok(seat)
    }

    /// Runs the records of `batch`, and applies nothing: in one call where the function keeps them apart, else in a call each. Parts of a call that failed run by themselves,
    /// until those at fault are alone.
    async fn propose(&mut self, mut batch: Batch) -> Result<(Batch, Proposal), TaskError> {
        let (mut proposal, mut log) = (Proposal::default(), BatchLog::default());
        let count = batch.len();
        let mut open = Vec::new();
        if self.keeps_apart() {
            open.extend((count > 0).then_some((0..count, None)));
        } else {
            self.warm_up(&batch)?;
            open.extend((0..count).rev().map(|record| (record..record + 1, None)));
        }
        while let Some((part, told)) = open.pop() {
            log.told = told;
            self.take_reads();
            let records = if part.len() == count { std::mem::take(&mut batch) } else { batch.slice(part.clone()) };
            let (records, result) = self.call(records, self.records_of(part.len()), &mut log).await?;
            if part.len() == count {
                batch = records;
            }
            match result {
                Ok(effects) => {
                    proposal.reads.add(part.clone(), self.take_reads());
                    together::add(&mut proposal.effects, part, effects);
                }
                Err(failure) => {
                    self.check_host(&failure)?;
                    match part.len() {
                        1 => _ = proposal.failed.insert(part.start, failure.said),
                        _ => {
                            let parts = isolate::parts(part, &failure).into_iter().rev();
                            open.extend(parts.map(|part| (part, failure.said.clone())));
                        }
                    }
                }
            }
        }
        Ok((batch, proposal))
    }

    /// Runs the records `again` of `batch` one after another, each on what those before it have left. Where it is likely that they are not in each other's way, several
    /// do so in one call, apart from each other; only those are applied that indeed have not read what one before them would write, and what is behind them runs again.
    async fn run_again(
        &mut self,
        batch: &Batch,
        again: &[usize],
        mut guesses: Guesses,
        failed: &BTreeMap<usize, Option<Arc<str>>>,
    ) -> Result<(), TaskError> {
        let (mut left, mut most) = (again, if self.keeps_apart() { AGAIN_AT_FIRST } else { 1 });
        while let Some(&first) = left.first() {
            let together = guesses.together(&left[..most.min(left.len())]);
            let done = match together {
                1 => {
                    self.run_alone(batch, first, failed.get(&first).cloned().flatten()).await?;
                    1
                }
                _ => self.run_speculatively(batch, &left[..together]).await?,
            };
            if together > 1 {
                most = if done == together { (2 * most).min(batch.len()) } else { done.max(2) };
            }
            left = &left[done..];
        }
        Ok(())
    }

    /// Runs a record by itself, which may have failed before with what was `told`.
    async fn run_alone(&mut self, batch: &Batch, record: usize, told: Option<Arc<str>>) -> Result<(), TaskError> {
        let log = BatchLog { told, ..BatchLog::default() };
        let rest = self.run_batch(batch.slice(record..record + 1), log).await?;
        debug_assert!(rest.is_none(), "a serializable operator is not allowed to wait");
        Ok(())
    }

    /// Runs `again` in one call, and applies the first of them, up to one that has read or would write what one before it writes. Returns how many have come to their end.
    async fn run_speculatively(&mut self, batch: &Batch, again: &[usize]) -> Result<usize, TaskError> {
        let mut records = BatchSize::of(batch).part(batch.len() / again.len()).empty_batch();
        for &record in again {
            records.push(batch.keys.get(record), batch.values.get(record), batch.times[record]);
        }
        self.take_reads();
        let (records, result) = self.call(records, Records::Apart, &mut BatchLog::default()).await?;
        let mut effects = match result {
            Ok(effects) => effects,
            Err(failure) => {
                self.check_host(&failure)?;
                for &record in again {
                    self.run_alone(batch, record, failure.said.clone()).await?;
                }
                return Ok(again.len());
            }
        };
        let (writes, claims) = self.written(&effects);
        let mut loses = Verdict::among(claims).losers(&self.take_reads(), &writes, again.len());
        let done = loses.iter().position(|loses| *loses).unwrap_or(again.len());
        if done < again.len() {
            loses[done..].fill(true);
            drop_records(&mut effects, &loses);
            self.discard_instance();
        }
        self.apply(&records, effects)?;
        Ok(done)
    }

    /// Whether the function keeps records apart: else each has a call of its own.
    fn keeps_apart(&self) -> bool {
        self.operator.function.current().description().apart
    }

    fn records_of(&self, count: usize) -> Records {
        if count > 1 { Records::Apart } else { Records::Together }
    }

    /// Looks the records' own keys up together: what the calls will ask for one by one is at hand then, from memory that is far away or from redb.
    fn warm_up(&self, batch: &Batch) -> Result<(), TaskError> {
        let tables = 0..self.operator.function.current().description().tables.len();
        tables.into_iter().try_for_each(|table| {
            self.tables.with_values(table, &batch.keys, &mut |_, _| {}).map_err(|error| self.storage(&error))
        })
    }

    fn take_reads(&self) -> Touched {
        self.recorder.as_ref().map(Recorder::take).unwrap_or_default()
    }

    /// The keys that records would write.
    fn written(&self, effects: &Effects) -> (Touched, Claims) {
        let (mut writes, mut claims) = (Touched::default(), Claims::default());
        let others = &self.operator.others;
        let own = effects
            .writes
            .iter()
            .map(|writes| (TableId::new(self.place.0, writes.table), &writes.keys, &writes.records));
        let updated = effects.updates.iter().map(|part| (others.id(part.table), &part.updates.keys, &part.records));
        for (table, keys, records) in own.chain(updated) {
            claims.write(table, others.is_ordered(table), keys, records);
            writes.keys(table, keys, |index| Some(records[index]));
        }
        (writes, claims)
    }
}

/// Takes out all that the records did that `loses` tells of.
fn drop_records(effects: &mut Effects, loses: &[bool]) {
    let is_dropped = |record: u32| loses[record as usize];
    effects.drop_records(is_dropped);
    effects.rejects.retain(|(record, _)| !is_dropped(*record));
}

/// State as a serializable task reads it: what is read is noted.
pub(super) struct RecordedState<S> {
    pub(super) state: S,
    /// The operator, by its place in the graph.
    pub(super) operator: usize,
    pub(super) recorder: Recorder,
}

impl<S: StateReader> StateReader for RecordedState<S> {
    fn read(
        &self,
        table: usize,
        keys: &Column,
        readers: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError> {
        self.recorder.keys(TableId::new(self.operator, table), keys, readers);
        self.state.read(table, keys, readers, found)
    }

    fn owns(&self, key: &[u8]) -> bool {
        self.state.owns(key)
    }
}

/// The tables of others as a serializable task reads them: what is read live is noted; a committed epoch does not change any more. All of them are on its own host.
pub(super) struct RecordedOthers {
    pub(super) others: Arc<super::others::Others>,
    pub(super) recorder: Recorder,
}

impl OtherTables for RecordedOthers {
    fn get_many(
        &self,
        table: usize,
        keys: &Column,
        readers: Readers<'_>,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        if consistency == Consistency::Live {
            self.recorder.keys(self.others.id(table), keys, readers);
        }
        self.others.get_many(table, keys, readers, consistency, found)
    }

    /// A wait is refused before it comes here.
    fn get_many_as_of_time(
        &self,
        table: usize,
        keys: &Column,
        times: &[i64],
        wait: bool,
        readers: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.recorder.keys(self.others.id(table), keys, readers);
        self.others.get_many_as_of_time(table, keys, times, wait, readers, found)
    }

    fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        readers: Readers<'_>,
        consistency: Consistency,
    ) -> Result<Page, LookupError> {
        let page = self.others.scan(table, from, to, limit, readers, consistency)?;
        if consistency == Consistency::Live {
            let to = page.next.as_deref().or(to);
            self.recorder.0.lock().range(self.others.id(table), from, to, readers.of(0));
        }
        Ok(page)
    }
}
