//! The loop of one task: gather a batch, call the function, apply what it did. What is carried over, and why, is in `wait`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::flow::{Flow, Way};
use super::isolate;
use super::others::{self, Others};
use super::refuse::{Refusals, Refused};
use super::rounds::Seat;
use super::route::Router;
use super::serial::{RecordedOthers, RecordedState, Recorder};
use super::{Mailbox, Message, TaskError, TaskSeal};
use crate::metrics::OperatorMeters;
use crate::plugin::callable::{Callable, Process, Surroundings};
use crate::plugin::engine::Function;
use crate::plugin::{
    BatchLog, Effects, Failure, FailureKind, Limits, OtherTables, Readers, Records, StateReadError, StateReader,
};
use crate::record::{Batch, Column};
use crate::state::{TablesError, TaskTables};

/// About the most bytes of one call, keys and values; a single larger record is a call of its own.
const CALL_BYTES_MAX: usize = 4 << 20;
/// Batches are merged up to about this many bytes: more would not stay in a core's cache.
const MERGED_BYTES_MAX: usize = 128 << 10;

/// The function that an operator runs. It may be replaced while nothing of the job is in flight: the next call of each of the operator's tasks is of the new one.
#[derive(Debug)]
pub struct Slot<F>(RwLock<Arc<F>>);

impl<F> Slot<F> {
    /// A slot with a function.
    pub fn new(function: Arc<F>) -> Self {
        Self(RwLock::new(function))
    }

    /// The function that runs.
    pub fn current(&self) -> Arc<F> {
        Arc::clone(&self.0.read())
    }

    /// Puts another function in the place of the one that runs.
    pub fn replace(&self, function: Arc<F>) {
        *self.0.write() = function;
    }
}

/// What all tasks of an operator share.
pub struct OperatorSetup<F> {
    /// The operator's name.
    pub name: String,
    /// Its function.
    pub function: Arc<Slot<F>>,
    /// Handed to `init`.
    pub config: String,
    /// What an instance may use.
    pub limits: Limits,
    /// The most records of one call.
    pub batch_records_max: usize,
    /// How long a call that is not full waits for more records.
    pub linger: Duration,
    /// How often a failing record is tried again.
    pub retries: u32,
    /// What becomes of a record that fails for good.
    pub refusals: Refusals,
    /// The operator's counters.
    pub meters: Arc<OperatorMeters>,
    /// The tables that it uses beside its own.
    pub others: Arc<Others>,
}

/// One parallel instance of an operator, whose function is an `F`.
pub struct Task<F: Callable = Function> {
    pub(super) operator: Arc<OperatorSetup<F>>,
    /// Which operator of the graph it works for, and which of its tasks it is.
    pub(super) place: (usize, usize),
    pub(super) tables: Arc<TaskTables>,
    pub(super) router: Router,
    pub(super) flow: Arc<Flow>,
    /// The sending side of its own mailbox: where outcomes come back to.
    pub(super) me: Mailbox,
    mailbox: UnboundedReceiver<Message>,
    /// Its part in the rounds, where its operator is serializable.
    seat: Option<Seat>,
    /// Notes what a call reads, where its operator is serializable.
    pub(super) recorder: Option<Recorder>,
    /// What came by loops while a drain was under way, and what waits for progress, in order.
    pub(super) carried: VecDeque<Arc<Batch>>,
    /// Whether what comes to the task has to go behind what is carried over: there are records in it that waited.
    pub(super) keeps_order: bool,
    /// [`Others::progress_moves`] when the first of what is carried over was found to be too early.
    pub(super) too_early: Option<u64>,
    /// Set while a drain is under way, until the seal.
    hurry: bool,
    /// A message taken from the mailbox that the batch under way had no room for.
    held: Option<Message>,
    /// With the function that it is of.
    instance: Option<(Arc<F>, F::Instance)>,
}

impl<F: Callable> Task<F> {
    /// A task of `operator` that owns `tables`. `place` says which operator of the graph that is, and which of its tasks this one is; with a
    /// `seat` it works in rounds.
    pub fn new(
        operator: Arc<OperatorSetup<F>>,
        place: (usize, usize),
        tables: Arc<TaskTables>,
        router: Router,
        flow: Arc<Flow>,
        (me, mailbox): (Mailbox, UnboundedReceiver<Message>),
        seat: Option<Seat>,
    ) -> Self {
        let recorder = seat.as_ref().map(|_| Recorder::default());
        let carried = VecDeque::new();
        // What the last epoch has carried over, and comes first, may have waited.
        let (keeps_order, too_early) = (true, None);
        let (hurry, held, instance) = (false, None, None);
        Self {
            operator,
            place,
            tables,
            router,
            flow,
            me,
            mailbox,
            seat,
            recorder,
            carried,
            keeps_order,
            too_early,
            hurry,
            held,
            instance,
        }
    }

    /// Makes the instance, so that a config that `init` refuses is known before anything is read.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn start(&mut self) -> Result<(), TaskError> {
        let function = self.operator.function.current();
        let instance = self.new_instance(&function).await?;
        self.instance = Some((function, instance));
        Ok(())
    }

    /// Works until the mailbox closes.
    ///
    /// # Errors
    /// When a record fails that must stop the job, or state cannot be read.
    pub async fn run(mut self) -> Result<(), TaskError> {
        while let Some(message) = self.next_message().await? {
            // What is carried over comes before whatever arrived after it.
            self.work_on_carried().await?;
            match message {
                Message::Hurry => self.hurry = true,
                Message::Wake => {}
                Message::Relieve(reply) => {
                    self.tables.evict();
                    // As below.
                    let _ = reply.send(());
                }
                Message::Seal(reply) => {
                    self.hurry = false;
                    let carried = self.carried.iter().cloned().collect();
                    // The coordinator that no longer listens is stopping the job.
                    let _ = reply.send(TaskSeal { deltas: self.tables.seal(), carried });
                }
                Message::Records(batch) if self.is_behind() => self.put_off(batch.into(), Way::Ahead),
                Message::Looped(batch) if self.is_behind() => self.put_off(batch, Way::Loop),
                Message::Records(batch) => self.work_on_gathered(batch, false).await?,
                Message::Looped(batch) if self.may_begin(&batch) => {
                    self.work_on_gathered(Arc::unwrap_or_clone(batch), true).await?;
                }
                Message::Looped(batch) => {
                    self.carried.push_back(batch);
                    // Admission may have opened since, and whoever opened it have seen nothing to wake this task for.
                    self.work_on_carried().await?;
                }
                Message::Updates(sent) => {
                    let (records, bytes) = others::size_of_updates(&sent.updates);
                    self.take_updates(*sent)?;
                    self.flow.remove(Way::Ahead, records, bytes);
                    self.relieve().await?;
                }
                Message::Outcomes { port, records } => {
                    let (count, bytes) = (records.len() as u64, records.byte_len() as u64);
                    self.router.send_looped(port, records)?;
                    self.flow.remove(Way::Ahead, count, bytes);
                }
            }
        }
        Ok(())
    }

    /// Whether what came by a loop may be begun now.
    fn may_begin(&self, batch: &Batch) -> bool {
        self.flow.begin_looped(batch.len() as u64, batch.byte_len() as u64, !self.carried.is_empty())
    }

    /// Works on `batch`, which is in flight, and on what may be merged with it.
    async fn work_on_gathered(&mut self, batch: Batch, looped: bool) -> Result<(), TaskError> {
        let gathered = self.gather(batch, looped).await;
        if let Some(rest) = self.work(gathered.batch).await? {
            self.wait_behind(rest);
        }
        let way = if looped { Way::Loop } else { Way::Ahead };
        for (records, bytes) in gathered.counted {
            self.flow.remove(way, records, bytes);
        }
        self.relieve().await?;
        Ok(())
    }

    /// The next message. Until it comes, a serializable task takes part in the rounds that others call for.
    async fn next_message(&mut self) -> Result<Option<Message>, TaskError> {
        if let Some(message) = self.held.take() {
            return Ok(Some(message));
        }
        while self.seat.is_none() && self.tables.is_migrating() && self.flow.is_open() {
            match self.mailbox.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) if self.migrate_some()? => {}
                Err(TryRecvError::Empty) => break,
            }
            tokio::task::yield_now().await;
        }
        loop {
            let Some(seat) = &mut self.seat else { return Ok(self.mailbox.recv().await) };
            tokio::select! {
                biased;
                message = self.mailbox.recv() => return Ok(message),
                () = seat.called() => {}
            }
            self.work_on(Batch::default()).await?;
        }
    }

    /// Adds to `batch` what lies in the mailbox and came the same way, up to the operator's batch size, and waits for more as long as it may linger. What
    /// came by a loop waits only while something else is under way that may bring more.
    async fn gather(&mut self, mut batch: Batch, looped: bool) -> Gathered {
        let mut counted = vec![(batch.len() as u64, batch.byte_len() as u64)];
        let deadline = tokio::time::Instant::now() + self.operator.linger;
        while batch.len() < self.operator.batch_records_max && batch.byte_len() < MERGED_BYTES_MAX {
            let message = match self.mailbox.try_recv() {
                Ok(message) => message,
                Err(_) if self.hurry || self.operator.linger.is_zero() => break,
                Err(_) if self.flow.has_input_ended() || (looped && self.flow.is_alone(counted.len())) => break,
                Err(_) => match tokio::time::timeout_at(deadline, self.mailbox.recv()).await {
                    Ok(Some(message)) => message,
                    Ok(None) | Err(_) => break,
                },
            };
            match message {
                Message::Records(more) if !looped && self.fit_together(&batch, &more) => {
                    counted.push((more.len() as u64, more.byte_len() as u64));
                    batch.extend_from(&more, 0..more.len());
                }
                Message::Looped(more) if looped && self.fit_together(&batch, &more) => {
                    if !self.may_begin(&more) {
                        self.carried.push_back(more);
                        break;
                    }
                    counted.push((more.len() as u64, more.byte_len() as u64));
                    batch.extend_from(&more, 0..more.len());
                }
                Message::Hurry => self.hurry = true,
                message => {
                    self.held = Some(message);
                    break;
                }
            }
        }
        Gathered { batch, counted }
    }

    pub(super) fn fit_together(&self, batch: &Batch, more: &Batch) -> bool {
        batch.len() + more.len() <= self.operator.batch_records_max
            && batch.byte_len() + more.byte_len() <= MERGED_BYTES_MAX
    }

    /// Works on all of `batch`, in calls of at most the operator's batch size. Returns what has to wait for progress, from the first such record on.
    pub(super) async fn work(&mut self, batch: Batch) -> Result<Option<Batch>, TaskError> {
        let records = batch.len();
        let rest = self.work_in_calls(batch).await?;
        self.operator.meters.records_in.add((records - rest.as_ref().map_or(0, Batch::len)) as u64);
        Ok(rest)
    }

    async fn work_in_calls(&mut self, batch: Batch) -> Result<Option<Batch>, TaskError> {
        let records_max = self.operator.batch_records_max;
        if batch.len() <= records_max && batch.byte_len() <= CALL_BYTES_MAX {
            return self.work_on(batch).await;
        }
        let mut start = 0;
        while start < batch.len() {
            let end = call_end(&batch, start, records_max);
            if let Some(rest) = self.work_on(batch.slice(start..end)).await? {
                return Ok(Some(batch.slice(end - rest.len()..batch.len())));
            }
            self.relieve().await?;
            start = end;
        }
        Ok(None)
    }

    async fn work_on(&mut self, batch: Batch) -> Result<Option<Batch>, TaskError> {
        match self.seat.take() {
            None => self.run_batch(batch, BatchLog::default()).await,
            Some(seat) => {
                self.seat = Some(self.round(seat, batch).await?);
                Ok(None)
            }
        }
    }

    /// Calls the function with `batch`; where that fails, finds the record at fault, refuses it and runs the others. Where a record has to wait for progress, returns it
    /// with all behind it. What it logs goes on under the account of `log`.
    pub(super) async fn run_batch(&mut self, batch: Batch, mut log: BatchLog) -> Result<Option<Batch>, TaskError> {
        let (batch, result) = self.call(batch, Records::Together, &mut log).await?;
        let failure = match result {
            Ok(effects) => {
                self.apply(&batch, effects)?;
                return Ok(None);
            }
            Err(failure) => failure,
        };
        if batch.len() == 1 && failure.kind == FailureKind::NotYet {
            return Ok(Some(batch));
        }
        let mut open = Vec::new();
        self.decide(&batch, Part { range: 0..batch.len(), attempt: 0, told: None }, &failure, &mut open)?;
        while let Some(part) = open.pop() {
            log.told.clone_from(&part.told);
            let (records, result) = self.call(batch.slice(part.range.clone()), Records::Together, &mut log).await?;
            match result {
                Ok(effects) => self.apply(&records, effects)?,
                Err(failure) if failure.kind == FailureKind::NotYet && part.range.len() == 1 => {
                    return Ok(Some(batch.slice(part.range.start..batch.len())));
                }
                Err(failure) => self.decide(&batch, part, &failure, &mut open)?,
            }
        }
        Ok(None)
    }

    /// After `part` failed: pushes on `open` what is to be run (again), the first on top, or refuses a record that failed alone for good.
    fn decide(&self, batch: &Batch, part: Part, failure: &Failure, open: &mut Vec<Part>) -> Result<(), TaskError> {
        self.check_host(failure)?;
        let Part { range, attempt, .. } = part;
        if range.len() > 1 {
            let culprit = failure.culprit.map(|culprit| range.start + culprit as usize);
            open.extend(isolate::parts(range, failure).into_iter().rev().map(|range| {
                let is_innocent = culprit.is_some_and(|culprit| !range.contains(&culprit));
                Part { range, attempt: 0, told: failure.said.clone().filter(|_| !is_innocent) }
            }));
            return Ok(());
        }
        if attempt < self.operator.retries && !self.gives_up(failure) {
            open.push(Part { range, attempt: attempt + 1, told: failure.said.clone() });
            return Ok(());
        }
        self.refuse(batch, range.start, &failure.message)
    }

    /// Whether the job can go on after a failure: it cannot where the host was at fault.
    pub(super) fn check_host(&self, failure: &Failure) -> Result<(), TaskError> {
        match failure.kind {
            FailureKind::Host => {
                Err(TaskError::Storage(format!("operator `{}`: {}", self.operator.name, failure.message)))
            }
            _ => Ok(()),
        }
    }

    /// Whether a record that failed alone is not worth another try: each would hold a clean stop up for the whole time that a call may take.
    fn gives_up(&self, failure: &Failure) -> bool {
        failure.kind == FailureKind::RunTime && self.flow.is_hastened()
    }

    pub(super) fn refuse(&self, batch: &Batch, index: usize, error: &str) -> Result<(), TaskError> {
        let (key, value, time) = (batch.keys.get(index), batch.values.get(index), batch.times[index]);
        self.operator.refusals.refuse(Refused { key, value, time, place: None, error })
    }

    /// One call. An instance whose call failed, or whose effects are not applied as it made them, is discarded.
    pub(super) async fn call(
        &mut self,
        batch: Batch,
        records: Records,
        log: &mut BatchLog,
    ) -> Result<(Batch, Result<Effects, Failure>), TaskError> {
        let function = self.operator.function.current();
        let mut instance = match self.instance.take() {
            Some((of, instance)) if Arc::ptr_eq(&of, &function) => instance,
            _ => self.new_instance(&function).await?,
        };
        let (batch, result) = instance.process(batch, records, log).await;
        self.operator.meters.calls.add(u64::from(result.is_ok()));
        self.operator.meters.running_ns.add(instance.running_time().as_nanos() as u64);
        match &result {
            Ok(effects) if effects.dropped_any => {}
            Ok(_) => self.instance = Some((function, instance)),
            Err(failure) if failure.kind == FailureKind::NotYet => {}
            Err(_) => _ = self.operator.meters.failures.add(1),
        }
        Ok((batch, result))
    }

    /// The next call gets a fresh instance.
    pub(super) fn discard_instance(&mut self) {
        self.instance = None;
    }

    async fn new_instance(&self, function: &F) -> Result<F::Instance, TaskError> {
        let OperatorSetup { name, limits, config, others, .. } = &*self.operator;
        let (own, others_arc) = (OwnTables(Arc::clone(&self.tables)), Arc::clone(others));
        let (state, other_tables): (Arc<dyn StateReader>, Arc<dyn OtherTables>) = match &self.recorder {
            None => (Arc::new(own), others_arc),
            Some(recorder) => (
                Arc::new(RecordedState { state: own, operator: self.place.0, recorder: recorder.clone() }),
                Arc::new(RecordedOthers { others: others_arc, recorder: recorder.clone() }),
            ),
        };
        let uses = others.uses();
        let surroundings = Surroundings { operator: name, limits: *limits, state, others: other_tables, uses, config };
        let made = function.instance(surroundings).await;
        made.map_err(|error| TaskError::Plugin { operator: name.clone(), error })
    }

    /// Keeps the tables within the memory budget, and writes values of other schema versions anew, a slice at a time, and lets the worker's other tasks run.
    pub(super) async fn relieve(&self) -> Result<(), TaskError> {
        self.tables.maintain();
        if self.tables.is_migrating() && self.flow.is_open() {
            self.migrate_some()?;
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    /// What it writes belongs to the open epoch: an epoch that is being sealed waits for this task, and admission is not open before it is.
    /// Returns false where it has to wait.
    fn migrate_some(&self) -> Result<bool, TaskError> {
        self.tables.migrate_some().map_err(|error| self.storage(&error))
    }
}

/// Records of a batch that are to be run by themselves after a call with more of them, or with them, has failed.
struct Part {
    range: Range<usize>,
    /// How often it was tried before, where it is one record.
    attempt: u32,
    /// What the failed call said, which is likely to be said again.
    told: Option<Arc<str>>,
}

/// Where a call ends that begins with record `start` of `batch`: behind at least one record.
fn call_end(batch: &Batch, start: usize, records_max: usize) -> usize {
    let mut bytes = 0;
    let last = batch.len().min(start + records_max);
    for index in start..last {
        bytes += batch.keys.range(index).len() + batch.values.range(index).len();
        if bytes > CALL_BYTES_MAX && index > start {
            return index;
        }
    }
    last
}

struct Gathered {
    batch: Batch,
    /// What the flow counts for the messages that were merged.
    counted: Vec<(u64, u64)>,
}

/// A task's own tables, as its instance reads them.
struct OwnTables(Arc<TaskTables>);

impl StateReader for OwnTables {
    fn read(
        &self,
        table: usize,
        keys: &Column,
        _: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError> {
        self.0.with_values(table, keys, found).map_err(|error| match error {
            TablesError::ForeignKey { index } => StateReadError::ForeignKey(index),
            error => StateReadError::Host(error.to_string()),
        })
    }

    fn owns(&self, key: &[u8]) -> bool {
        self.0.owns(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_by_records_and_by_bytes_and_hold_at_least_one_record() {
        let mut batch = Batch::default();
        for length in [10, 20, CALL_BYTES_MAX + 1, 5, CALL_BYTES_MAX - 5, 1] {
            batch.push(b"", &vec![b'v'; length], 0);
        }
        let mut ends = Vec::new();
        let mut start = 0;
        while start < batch.len() {
            start = call_end(&batch, start, 4);
            ends.push(start);
        }
        assert_eq!(ends, [2, 3, 5, 6]);
        assert_eq!(call_end(&batch, 0, 1), 1);
    }
}
