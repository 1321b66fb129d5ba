//! The coordinator: it drives epochs. It asks for a seal, waits until nothing is in flight, collects what everyone hands over, and lets
//! admission go on while the epoch is made durable behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::clock::EventClock;
use super::commit::{Order, Report, Sealed};
use super::read::{SourceSetup, Splits};
use super::stop::Stop;
use super::trial::{self, Done, Trial};
use super::{Ended, JobError, Meters};
use crate::connector::ConnectorError;
use crate::epoch::entry::{Carried, Entry, Position, RunningComponent, SinkSeal, TableDelta};
use crate::epoch::{Attempt, Epoch};
use crate::state::{Pressure, StateStore};
use crate::task::flow::Flow;
use crate::task::route::SinkHandle;
use crate::task::{Mailbox, Message, TaskError};

/// How often the coordinator looks at counts and at the memory that state takes.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often followed sources are searched for new splits.
pub(super) const DISCOVER_EVERY: Duration = Duration::from_secs(1);

/// How long the reason of a thread that is gone is waited for.
pub(super) const REASON_WAIT: Duration = Duration::from_secs(1);

/// The most bytes that may be carried over from one epoch to the next.
pub(super) const CARRIED_BYTES_MAX: u64 = 256 << 20;

/// When to seal.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealRule {
    pub(super) interval: Duration,
    pub(super) records: Option<u64>,
}

/// Another function for an operator, to be put in place while nothing is in flight.
pub(super) struct Swap {
    pub(super) operator: String,
    /// What runs then.
    pub(super) component: RunningComponent,
    /// Puts it in place, for all tasks of the operator.
    pub(super) replace: Box<dyn FnOnce() + Send>,
    /// What it has to stand.
    pub(super) trial: Option<Trial>,
    /// Gets the epoch at whose seal that was done, once it is committed; or, of a trial, its first epoch, or why it has failed. Dropped when the job ends before.
    pub(super) done: oneshot::Sender<Result<Epoch, String>>,
}

/// A new version that is being tried. Nothing that it has done is in an epoch yet.
pub(super) struct UnderTrial {
    operator: String,
    component: RunningComponent,
    trial: Trial,
    /// What the version before has done, and what had been done when the trial began.
    before: Done,
    begun: Done,
    done: oneshot::Sender<Result<Epoch, String>>,
}

/// What the coordinator listens to.
pub(super) struct Events {
    /// Something failed: the job ends without another seal.
    pub(super) failures: mpsc::UnboundedReceiver<JobError>,
    /// The commit thread has carried out an order.
    pub(super) commits: mpsc::UnboundedReceiver<Report>,
    /// A source thread found that all input has ended.
    pub(super) input_ended: mpsc::UnboundedReceiver<()>,
    /// A function is to be replaced.
    pub(super) swaps: mpsc::UnboundedReceiver<Swap>,
    /// Somebody asks for a clean end.
    pub(super) stop: Stop,
}

/// Drives the epochs of a running job.
pub(super) struct Coordinator {
    pub(super) attempt: Attempt,
    /// The last sealed epoch.
    pub(super) epoch: Epoch,
    pub(super) rule: SealRule,
    /// The most bytes that may be carried over from one epoch to the next.
    pub(super) carried_bytes_max: u64,
    pub(super) flow: Arc<Flow>,
    pub(super) splits: Arc<Splits>,
    pub(super) sources: Vec<Arc<SourceSetup>>,
    pub(super) tasks: Vec<Mailbox>,
    /// The operator of each task.
    pub(super) operators: Vec<Arc<str>>,
    pub(super) sinks: BTreeMap<String, SinkHandle>,
    pub(super) store: Arc<StateStore>,
    /// How far operators have come in event time.
    pub(super) clock: EventClock,
    pub(super) to_commit: std::sync::mpsc::Sender<Order>,
    pub(super) meters: Arc<Meters>,
    /// Counters of the job's life before this attempt.
    pub(super) totals_before: BTreeMap<String, u64>,
    /// Which component each operator runs.
    pub(super) components: BTreeMap<String, RunningComponent>,
    /// Functions that are put in place at the next seal.
    pub(super) swaps: Vec<Swap>,
    /// Who is told of the commit of an epoch at whose seal a function was replaced.
    pub(super) swapped: Vec<(Epoch, oneshot::Sender<Result<Epoch, String>>)>,
    /// The version that is being tried, if any.
    pub(super) under_trial: Option<UnderTrial>,
    /// What each operator had done when its function was replaced last.
    pub(super) done_before: BTreeMap<String, Done>,
    /// Sealed epochs that are not committed yet: 0 or 1.
    pub(super) pending: u32,
    /// What [`Flow::moved`] was when the last epoch was sealed.
    pub(super) moved_at_seal: u64,
    /// Whether a sink holds a file open over epochs: it is completed at a seal, also when nothing more is admitted.
    pub(super) has_open_output: bool,
    /// Whether the last sealed epoch says that all input has ended.
    pub(super) finished: bool,
    /// Whether the last sealed epoch has files of whose publication no entry says anything yet.
    pub(super) has_unnoted_output: bool,
}

impl UnderTrial {
    /// Tells whoever has asked; the job has to go back.
    fn failed(self, why: String) -> JobError {
        let Self { operator, component, done, .. } = self;
        tracing::warn!(
            operator,
            version = component.version,
            "the trial has failed: {why}; going back to the last committed epoch"
        );
        // Whoever asked may have gone.
        let _ = done.send(Err(why.clone()));
        JobError::RolledBack { operator, why }
    }
}

impl Coordinator {
    /// Runs until the input has ended, a stop is asked for, or something fails.
    pub(super) async fn run(&mut self, events: &mut Events) -> Result<Ended, JobError> {
        let mut result = self.drive(events).await;
        if let Err(JobError::Lost(_)) = result
            && let Ok(Some(reason)) = tokio::time::timeout(REASON_WAIT, events.failures.recv()).await
        {
            // A thread that fails drops its channels a moment before its reason is told.
            result = Err(reason);
        }
        if let Err(JobError::Task(error @ (TaskError::Record { .. } | TaskError::Plugin { .. }))) = &result
            && let Some(under_trial) = self.under_trial.take()
        {
            result = Err(under_trial.failed(error.to_string()));
        }
        match result {
            // Sealing now would commit what its reader never got.
            Err(JobError::Connector { error: ConnectorError::Closed, .. }) => Ok(Ended::OutputClosed),
            result => result,
        }
    }

    async fn drive(&mut self, events: &mut Events) -> Result<Ended, JobError> {
        self.reopen();
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut last_seal, mut last_discovery, mut late) = (Instant::now(), Instant::now(), false);
        loop {
            tokio::select! {
                Some(error) = events.failures.recv() => return Err(error),
                Some(report) = events.commits.recv() => self.note(&report),
                Some(()) = events.input_ended.recv() => self.end_input(),
                Some(swap) = events.swaps.recv() => self.swaps.push(swap),
                () = self.flow.done(), if self.flow.has_input_ended() => return self.end(events, Ended::InputEnded).await,
                () = events.stop.asked() => return self.end(events, Ended::Stopped).await,
                _ = look.tick() => {}
            }
            self.store.check()?;
            self.judge()?;
            self.flow.settle();
            self.check_carried()?;
            if self.splits.have_ended() && !self.flow.has_input_ended() {
                self.end_input();
            }
            if last_discovery.elapsed() >= DISCOVER_EVERY {
                last_discovery = Instant::now();
                let splits = Arc::clone(&self.splits);
                blocking(move || splits.discover()).await?;
            }
            if self.store.pressure() == Pressure::Full {
                if !self.make_room(events).await? {
                    return Ok(Ended::StoppedShort);
                }
                last_seal = Instant::now();
            }
            let is_due = self.is_due(last_seal);
            if !is_due && !self.is_awaited() && self.swaps.is_empty() {
                continue;
            }
            if self.pending > 0 {
                // At most one sealed epoch waits for its commit: the next seal comes as soon as it is committed.
                self.meters.late_seals.add(u64::from(is_due && !late));
                late |= is_due;
                continue;
            }
            late = false;
            if (self.is_needed() || !self.swaps.is_empty()) && !self.seal(events, false).await? {
                return Ok(Ended::StoppedShort);
            }
            last_seal = Instant::now();
        }
    }

    /// All input has ended. The job goes on until what is under way has come to its end, loops included.
    pub(super) fn end_input(&self) {
        self.flow.end_input();
        self.tell(|| Message::Hurry);
    }

    /// What goes round by loops, and what waits, is held in memory and carried over by the next epoch: it has a limit, and may reach it long before the epoch ends.
    pub(super) fn check_carried(&self) -> Result<(), JobError> {
        match self.flow.looped_bytes() {
            bytes if bytes > self.carried_bytes_max => {
                Err(JobError::CarriedOver { bytes, bytes_max: self.carried_bytes_max })
            }
            _ => Ok(()),
        }
    }

    /// Lets admission go on, and begins what is carried over.
    pub(super) fn reopen(&self) {
        self.flow.open();
        if self.flow.carried() != (0, 0) {
            self.tell(|| Message::Wake);
        }
    }

    pub(super) fn tell(&self, message: impl Fn() -> Message) {
        for task in &self.tasks {
            task.tell(message());
        }
    }

    fn is_due(&self, last_seal: Instant) -> bool {
        let since = self.splits.since_seal().load(Ordering::Relaxed);
        if let Some(under_trial) = &self.under_trial {
            return last_seal.elapsed() >= self.rule.interval * under_trial.trial.trial;
        }
        last_seal.elapsed() >= self.rule.interval || self.rule.records.is_some_and(|records| since >= records)
    }

    /// Whether a seal before its time is worth it: nothing else goes on but what waits for one, or much does.
    fn is_awaited(&self) -> bool {
        let is_all = self.flow.has_input_ended() && self.flow.carried() != (0, 0) && self.flow.is_idle();
        (is_all || self.flow.wants_seal()) && self.is_needed()
    }

    /// Whether a seal would do anything: make something durable, or move on the operators that records wait for.
    pub(super) fn is_needed(&self) -> bool {
        self.flow.moved() > self.moved_at_seal
            || self.has_open_output
            || (self.flow.carried() != (0, 0) && self.clock.has_moved(&self.splits.reached()))
    }

    /// The last epoch: drains what was admitted, seals, and waits until it is published. One more notes that it is: its files may be moved away then.
    pub(super) async fn end(&mut self, events: &mut Events, ended: Ended) -> Result<Ended, JobError> {
        self.flow.close();
        self.settle(events).await?;
        let mut is_needed = self.flow.moved() > self.moved_at_seal
            || self.has_open_output
            || (ended == Ended::InputEnded && !self.finished);
        while is_needed || self.has_unnoted_output {
            if !self.seal(events, true).await? {
                return Ok(Ended::StoppedShort);
            }
            self.settle(events).await?;
            is_needed = false;
        }
        self.splits.stop();
        Ok(ended)
    }

    /// Waits until every sealed epoch is committed.
    async fn settle(&mut self, events: &mut Events) -> Result<(), JobError> {
        while self.pending > 0 {
            tokio::select! {
                Some(error) = events.failures.recv() => return Err(error),
                Some(report) = events.commits.recv() => self.note(&report),
            }
        }
        Ok(())
    }

    /// Takes note of what the commit thread has done.
    pub(super) fn note(&mut self, report: &Report) {
        let Report::Committed(committed) = report else { return };
        self.pending -= 1;
        for (epoch, done) in self.swapped.extract_if(.., |(epoch, _)| *epoch <= committed.epoch) {
            // Whoever asked may have gone.
            let _ = done.send(Ok(epoch));
        }
        self.meters.committed_epoch.store(committed.epoch, Ordering::Relaxed);
        self.meters.durations.lock().commit.record(committed.took);
        self.meters.log_bytes.add(committed.entry_bytes);
        tracing::debug!(epoch = committed.epoch, took_ms = committed.took.as_millis() as u64, "epoch committed");
    }

    /// State has outgrown its memory and what is in it is not on disk yet: seal, commit, feed the disk, and only then admit more. Returns what
    /// [`Coordinator::seal`] does.
    async fn make_room(&mut self, events: &mut Events) -> Result<bool, JobError> {
        self.meters.memory_stops.add(1);
        self.settle(events).await?;
        if self.flow.moved() > self.moved_at_seal && !self.seal(events, false).await? {
            return Ok(false);
        }
        self.flow.close();
        self.settle(events).await?;
        let store = Arc::clone(&self.store);
        blocking(move || store.flush().map(drop).map_err(JobError::from)).await?;
        for answer in self.ask(Message::Relieve) {
            answer.await.map_err(|_| JobError::Lost("a task".to_owned()))?;
        }
        if self.store.pressure() == Pressure::Full {
            return Err(JobError::Memory(self.store.memory()));
        }
        self.reopen();
        Ok(true)
    }

    /// Seals an epoch and hands it on. Admission is closed from the request until everyone has handed over. Returns false, with nothing sealed, when
    /// a stop that somebody asked for is overdue before that.
    pub(super) async fn seal(&mut self, events: &mut Events, last: bool) -> Result<bool, JobError> {
        let start = Instant::now();
        let hush = self.store.hush();
        self.flow.close();
        self.tell(|| Message::Hurry);
        tokio::select! {
            biased;
            Some(error) = events.failures.recv() => return Err(error),
            () = self.flow.drained() => {}
            () = events.stop.overdue() => return Ok(false),
        }
        let drained = start.elapsed();
        self.check_carried()?;
        self.begin_seal();
        let epoch = self.epoch + 1;
        self.judge()?;
        self.end_trial(epoch);
        let finished = last && self.splits.have_ended() && self.flow.carried() == (0, 0);
        let collected = tokio::select! {
            collected = self.collect(epoch, last) => collected?,
            Some(error) = events.failures.recv() => return Err(error),
            () = events.stop.overdue() => return Ok(false),
        };
        self.clock.move_on(self.splits.reached(), &collected.carried)?;
        let stand = self.stand();
        if !last {
            self.swap(epoch);
            self.reopen();
        }
        drop(hush);
        self.note_pause(start.elapsed(), drained);
        let entry = self.entry(epoch, finished, collected, stand);
        if let Ok(error) = events.failures.try_recv() {
            return Err(error);
        }
        self.order(Order::Commit(Sealed { entry, sealed_at: Instant::now() }))?;
        Ok(true)
    }

    /// Replaces functions between two epochs: everything up to `epoch` was done by those before, everything behind it is by the new ones. The epoch's entry names these.
    pub(super) fn swap(&mut self, epoch: Epoch) {
        for Swap { operator, component, replace, trial, done } in std::mem::take(&mut self.swaps) {
            replace();
            let begun = self.done_by(&operator);
            let before = begun.since(self.done_before.insert(operator.clone(), begun).unwrap_or_default());
            match trial {
                None => {
                    tracing::info!(operator, epoch, name = component.name, version = component.version, "reloaded");
                    self.components.insert(operator, component);
                    self.swapped.push((epoch, done));
                }
                // The epoch is what the job goes back to: it names the version before.
                Some(trial) => {
                    tracing::info!(
                        operator,
                        epoch,
                        version = component.version,
                        epochs = trial.trial,
                        "a trial begins"
                    );
                    self.under_trial = Some(UnderTrial { operator, component, trial, before, begun, done });
                }
            }
        }
        self.meters.components.lock().clone_from(&self.components);
    }

    /// What an operator has done in this attempt.
    fn done_by(&self, operator: &str) -> Done {
        let operators = self.meters.operators.lock();
        operators.get(operator).map_or_else(Done::default, |meters| Done {
            records: meters.records_in.get(),
            calls: meters.calls.get(),
            failures: meters.failures.get(),
            refused: meters.refused.get(),
            running: Duration::from_nanos(meters.running_ns.get()),
        })
    }

    /// Looks whether the version that is being tried stands its trial.
    ///
    /// # Errors
    /// When it does not: nothing that it has done must be committed.
    fn judge(&mut self) -> Result<(), JobError> {
        let Some(UnderTrial { operator, trial, before, begun, .. }) = &self.under_trial else { return Ok(()) };
        let now = self.done_by(operator).since(*begun);
        match trial::verdict(trial, *before, now) {
            None => Ok(()),
            Some(why) => Err(self
                .under_trial
                .take()
                .map_or_else(|| JobError::Lost("a trial".to_owned()), |under_trial| under_trial.failed(why))),
        }
    }

    /// The version that is being tried has stood its trial: it is that of the epoch that is being sealed.
    fn end_trial(&mut self, epoch: Epoch) {
        let Some(UnderTrial { operator, component, done, .. }) = self.under_trial.take() else { return };
        tracing::info!(
            operator,
            epoch,
            name = component.name,
            version = component.version,
            "reloaded: its trial is over"
        );
        self.components.insert(operator, component);
        self.swapped.push((epoch, done));
        self.meters.components.lock().clone_from(&self.components);
    }

    /// Nothing is in flight: what moves from here on belongs to the next epoch.
    pub(super) fn begin_seal(&mut self) {
        self.splits.since_seal().store(0, Ordering::Relaxed);
        self.moved_at_seal = self.flow.moved();
    }

    /// Where the input and the counters stand. To be taken before admission goes on.
    pub(super) fn stand(&self) -> Stand {
        let positions = self.sources.iter().map(|source| (source.name.clone(), source.recorded())).collect();
        Stand { positions, totals: self.meters.totals(&self.totals_before) }
    }

    /// The sealed epoch, which waits for its commit from here on.
    pub(super) fn entry(&mut self, epoch: Epoch, finished: bool, collected: Collected, stand: Stand) -> Entry {
        let Collected { deltas, carried, sinks } = collected;
        let Stand { positions, totals } = stand;
        self.has_open_output = sinks.values().any(|seal| seal.open.is_some());
        let (attempt, published) = (self.attempt, epoch - 1);
        let components = self.components.clone();
        let entry =
            Entry { epoch, attempt, deltas, carried, positions, sinks, published, finished, totals, components };
        (self.epoch, self.finished) = (epoch, finished);
        self.has_unnoted_output = entry.has_unpublished();
        self.pending += 1;
        self.meters.sealed.add(1);
        entry
    }

    /// Records for how long admission was closed, and for how long of it something was in flight.
    pub(super) fn note_pause(&self, paused: Duration, drained: Duration) {
        self.flow.learn(drained);
        let mut durations = self.meters.durations.lock();
        durations.pause.record(paused);
        durations.drain.record(drained);
        tracing::debug!(pause_us = paused.as_micros() as u64, "admission was closed for a seal");
    }

    /// Tells the commit thread what to do.
    pub(super) fn order(&self, order: Order) -> Result<(), JobError> {
        self.to_commit.send(order).map_err(|_| JobError::Lost("the commit thread".to_owned()))
    }

    /// Sends a question to every task.
    pub(super) fn ask<T>(&self, question: impl Fn(oneshot::Sender<T>) -> Message) -> Vec<oneshot::Receiver<T>> {
        let ask = |task: &Mailbox| {
            let (reply, receiver) = oneshot::channel();
            // A task that has ended drops `reply`.
            task.tell(question(reply));
            receiver
        };
        self.tasks.iter().map(ask).collect()
    }

    /// What tasks and sinks hand over.
    pub(super) async fn collect(&self, epoch: Epoch, last: bool) -> Result<Collected, JobError> {
        let asked_tasks = self.ask(Message::Seal);
        let asked_sinks: Vec<(&String, oneshot::Receiver<Result<SinkSeal, ConnectorError>>)> =
            self.sinks.iter().map(|(name, sink)| (name, sink.seal(epoch, last))).collect();
        let mut collected = Collected::default();
        for (answer, operator) in asked_tasks.into_iter().zip(&self.operators) {
            let seal = answer.await.map_err(|_| JobError::Lost("a task".to_owned()))?;
            collected.deltas.extend(seal.deltas);
            let carried = seal.carried.into_iter();
            collected.carried.extend(carried.map(|batch| Carried { operator: Arc::clone(operator), batch }));
        }
        for (name, answer) in asked_sinks {
            let seal = answer.await.map_err(|_| JobError::Lost(format!("sink `{name}`")))?;
            collected.sinks.insert(name.clone(), seal.map_err(|error| JobError::sink(name, error))?);
        }
        Ok(collected)
    }
}

/// What tasks and sinks hand over at a seal.
#[derive(Default)]
pub(super) struct Collected {
    deltas: Vec<TableDelta>,
    pub(super) carried: Vec<Carried>,
    sinks: BTreeMap<String, SinkSeal>,
}

/// Where the input and the counters stood at a seal.
pub(super) struct Stand {
    positions: BTreeMap<String, BTreeMap<String, Position>>,
    totals: BTreeMap<String, u64>,
}

/// Runs what blocks beside the coordinator's own thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, JobError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| JobError::Lost("a helper thread".to_owned()))?
}
