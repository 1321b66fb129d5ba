//! A task's part in a round: see [`super::rounds`].

use std::sync::Arc;

use parking_lot::Mutex;

use super::rounds::{Claims, Reads, Seat};
use super::run::Task;
use super::{TaskError, together};
use crate::lookup::TableId;
use crate::plugin::callable::Callable;
use crate::plugin::{
    BatchLog, Consistency, Effects, Failure, LookupError, OtherTables, Page, StateReadError, StateReader,
};
use crate::record::{Batch, Column};

/// What the call under way has read so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<Reads>>);

impl Recorder {
    fn take(&self) -> Reads {
        std::mem::take(&mut *self.0.lock())
    }
}

/// A record that has run against the state at the round's start.
struct Run {
    result: Result<Effects, Failure>,
    reads: Reads,
    writes: Reads,
}

impl<F: Callable> Task<F> {
    /// Takes part in a round with `batch`, which may be empty.
    pub(super) async fn round(&mut self, mut seat: Seat, batch: Batch) -> Result<Seat, TaskError> {
        seat.begin().await;
        let (runs, claims) = self.run_each(&batch).await?;
        let verdict = seat.claim(claims).await;
        let (mut committed, mut again) = (Effects::default(), Vec::new());
        for (record, run) in runs.into_iter().enumerate() {
            match run.result {
                Ok(effects) if verdict.commits(record as u32, &run.reads, &run.writes) => {
                    together::add(&mut committed, record as u32, effects);
                }
                // What failed may have failed for what it saw: it is found out when it runs on what those before it have left.
                _ => again.push(record),
            }
        }
        self.apply(&batch, committed)?;
        self.operator.meters.reruns.add(again.len() as u64);
        if !again.is_empty() {
            // The instance has seen what did not happen.
            self.discard_instance();
        }
        if seat.applied(again.len()).await {
            seat.turn().await;
            for record in again {
                let rest = self.run_batch(batch.slice(record..record + 1)).await?;
                debug_assert!(rest.is_none(), "a serializable operator is not allowed to wait");
            }
            seat.pass();
        }
        Ok(seat)
    }

    /// Runs every record by itself, and applies nothing.
    async fn run_each(&mut self, batch: &Batch) -> Result<(Vec<Run>, Claims), TaskError> {
        let (mut runs, mut claims) = (Vec::with_capacity(batch.len()), Claims::default());
        self.warm_up(batch)?;
        let mut log = BatchLog::default();
        for record in 0..batch.len() {
            self.take_reads();
            let (_, result) = self.call(batch.slice(record..record + 1), &mut log).await?;
            let mut writes = Reads::default();
            for (table, keys) in result.iter().flat_map(|effects| self.written(effects)) {
                claims.write(record as u32, table, self.operator.others.is_ordered(table), keys);
                writes.keys(table, keys);
            }
            runs.push(Run { result, reads: self.take_reads(), writes });
        }
        Ok((runs, claims))
    }

    /// Looks the records' own keys up together: what the calls will ask for one by one is at hand then, from memory that is far away or from redb.
    fn warm_up(&self, batch: &Batch) -> Result<(), TaskError> {
        let tables = 0..self.operator.function.description().tables.len();
        tables.into_iter().try_for_each(|table| {
            self.tables.with_values(table, &batch.keys, &mut |_, _| {}).map_err(|error| self.storage(&error))
        })
    }

    fn take_reads(&self) -> Reads {
        self.recorder.as_ref().map(Recorder::take).unwrap_or_default()
    }

    /// The keys that a call would write.
    fn written<'a>(&'a self, effects: &'a Effects) -> impl Iterator<Item = (TableId, &'a Column)> {
        let own = effects.writes.iter().map(|writes| (TableId::new(self.place.0, writes.table), &writes.keys));
        let others = &self.operator.others;
        own.chain(effects.updates.iter().map(|updates| (others.id(updates.table), &updates.updates.keys)))
    }
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
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError> {
        self.recorder.0.lock().keys(TableId::new(self.operator, table), keys);
        self.state.read(table, keys, found)
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
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        if consistency == Consistency::Live {
            self.recorder.0.lock().keys(self.others.id(table), keys);
        }
        self.others.get_many(table, keys, consistency, found)
    }

    /// A wait is refused before it comes here.
    fn get_many_as_of_time(
        &self,
        table: usize,
        keys: &Column,
        times: &[i64],
        wait: bool,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.recorder.0.lock().keys(self.others.id(table), keys);
        self.others.get_many_as_of_time(table, keys, times, wait, found)
    }

    fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        consistency: Consistency,
    ) -> Result<Page, LookupError> {
        let page = self.others.scan(table, from, to, limit, consistency)?;
        if consistency == Consistency::Live {
            self.recorder.0.lock().range(self.others.id(table), from, page.next.as_deref().or(to));
        }
        Ok(page)
    }
}
