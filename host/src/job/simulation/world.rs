//! A job under simulation: one attempt after another on one disk, each step chosen by a seed, until its input has ended.
//!
//! The tasks, mailboxes, routers, tables, rounds, the flow, the epoch log, the commit and the coordinator's seal are those of a job. Threads are not: a
//! task is polled, a source reads, a sink takes a message, an epoch is committed when chance says so, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::ends::{MemorySink, MemorySource, Output, Record};
use super::native::Native;
use super::reloads::Reloads;
use crate::connector::{Sink, SinkWriter};
use crate::dice::Dice;
use crate::disk::crash::{CrashDisk, Unsynced};
use crate::epoch::Epoch;
use crate::epoch::entry::Entry;
use crate::graph::{Graph, Plan};
use crate::job::clock::EventClock;
use crate::job::commit::{Order, Report, commit};
use crate::job::coordinate::{CARRIED_BYTES_MAX, Coordinator, Events, SealRule};
use crate::job::read::{SourceSetup, SplitPosition, Splits};
use crate::job::stop::Stop;
use crate::job::wire::{Neighbours, Wiring, slots};
use crate::job::write::SinkSetup;
use crate::job::{Ended, JobError, Meters, declared};
use crate::lookup::{Consistency, Directory};
use crate::manifest::{Loaded, load_text};
use crate::record::Column;
use crate::state::{Committer, OpenOptions, StateStore};
use crate::task::TaskError;
use crate::task::flow::Flow;
use crate::task::route::SinkMessage;
use crate::task::run::Slot;
use crate::time::Clock;

const DIRECTORY: &str = "/job/state";
const RETAINED: u32 = 4;
/// A job has up to so many workers, another number at each start.
const WORKERS_MAX: usize = 3;
/// How many of the steps of an attempt go by before it crashes, if it does.
const STEPS_TO_CRASH: usize = 400;
/// How many of the disk's steps go by before it stops, if it does.
const DISK_STEPS_TO_CRASH: usize = 40;
/// A step asks for a seal once in so many times.
const SEALS_ONCE_IN: usize = 30;
/// A step asks for a clean stop once in so many times.
const STOPS_ONCE_IN: usize = 600;

/// The input of a job: of each source the records of each split.
pub(super) type Input = BTreeMap<&'static str, Vec<Vec<Record>>>;

/// What is simulated.
pub(super) struct Shape {
    /// The manifest, of which only the graph and the settings of operators count.
    pub(super) manifest: &'static str,
    /// The functions of its operators.
    pub(super) functions: fn(&mut Dice) -> Vec<(&'static str, Native)>,
    /// What must hold at every committed epoch.
    pub(super) at_commit: fn(&Tables<'_>, &Input),
    /// What must hold in the end.
    pub(super) at_end: fn(&Tables<'_>, &Input, &[Record]),
}

/// The job's tables, as they are read from outside.
pub(super) struct Tables<'a> {
    directory: &'a Directory,
    consistency: Consistency,
}

impl<'a> Tables<'a> {
    /// Those of `directory`, as `consistency` shows them.
    pub(super) fn new(directory: &'a Directory, consistency: Consistency) -> Self {
        Self { directory, consistency }
    }

    /// The value of a key of the table `operator.table`.
    pub(super) fn get(&self, table: &str, key: &[u8]) -> Option<Vec<u8>> {
        self.get_many(table, &[key]).remove(0)
    }

    /// The values of keys, at one moment.
    pub(super) fn get_many(&self, table: &str, keys: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let (mut values, column) = (vec![None; keys.len()], keys.iter().copied().collect::<Column>());
        let table = self.directory.find(table).expect("the shape has the table");
        let found = &mut |index: usize, value: Option<&[u8]>| values[index] = value.map(<[u8]>::to_vec);
        self.directory.get_many(table, &column, self.consistency, found).expect("the epoch is there");
        values
    }

    /// Numbers, 0 where there are none, at one moment.
    pub(super) fn numbers(&self, table: &str, keys: &BTreeSet<Vec<u8>>) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let number = |value: Vec<u8>| i64::from_le_bytes(value.try_into().expect("eight bytes"));
        self.get_many(table, &keys).into_iter().map(|value| value.map_or(0, number)).collect()
    }

    /// A number, 0 where there is none.
    pub(super) fn number(&self, table: &str, key: &[u8]) -> i64 {
        self.get(table, key).map_or(0, |value| i64::from_le_bytes(value.try_into().expect("eight bytes")))
    }
}

/// What differs from one simulation to another beside its seed.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// A step asks for a seal once in so many times.
    pub(super) seals_once_in: usize,
    /// The most bytes that may be carried over from one epoch to the next.
    pub(super) carried_bytes_max: u64,
    /// The limit of the starts behind the first, whose seals come when there is less to carry over.
    pub(super) lowered_limit: Option<u64>,
    /// How many starts may end early, by chance.
    pub(super) troubles_max: usize,
    /// The first start crashes when this is so.
    pub(super) crash_when: Option<fn(&Moment) -> bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seals_once_in: SEALS_ONCE_IN,
            carried_bytes_max: CARRIED_BYTES_MAX,
            lowered_limit: None,
            troubles_max: 4,
            crash_when: None,
        }
    }
}

/// What is looked at to crash at a chosen moment.
#[derive(Debug, Default)]
pub(super) struct Moment {
    /// What the last committed epoch carries over, in bytes.
    pub(super) carried_bytes: u64,
    /// Whether some tasks have handed over to a seal, and others have not.
    pub(super) is_half_sealed: bool,
}

/// What a simulation came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The moments at which [`Settings::crash_when`] has held.
    pub(super) crashed_at: Vec<Moment>,
    /// How many starts there were.
    pub(super) starts: usize,
    /// How many steps they took.
    pub(super) steps: usize,
    /// What readers see in the end.
    pub(super) output: Vec<Record>,
}

/// How an attempt came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Crashed,
    Stopped,
    InputEnded,
}

/// A job, and what of it survives crashes.
pub(super) struct World<'a> {
    shape: &'a Shape,
    loaded: Loaded,
    graph: Graph,
    input: Input,
    dice: Dice,
    disk: CrashDisk,
    output: Arc<Mutex<Output>>,
    /// The last epoch that was reported as committed.
    committed: Epoch,
    /// How many starts may still end early.
    troubles: usize,
    settings: Settings,
    outcome: Outcome,
    reloads: Reloads,
}

/// Runs `shape` with `input`, by `seed`, to its end.
///
/// # Errors
/// What the job fails with.
pub(super) fn simulate(shape: &Shape, input: Input, seed: u64, settings: Settings) -> Result<Outcome, JobError> {
    let loaded = load_text("job.toml", "/job".into(), shape.manifest, &[]).expect("the manifest is right");
    let (graph, _) = crate::graph::check(&loaded.manifest, loaded.directory()).expect("the manifest is right");
    let mut dice = Dice::new(seed);
    let troubles = dice.below(settings.troubles_max + 1);
    let (disk, output) = (CrashDisk::new(), Arc::default());
    let mut world = World {
        shape,
        loaded,
        graph,
        input,
        dice,
        disk,
        output,
        committed: 0,
        troubles,
        settings,
        outcome: Outcome::default(),
        reloads: Reloads::new(seed),
    };
    loop {
        world.outcome.starts += 1;
        match world.attempt()? {
            End::InputEnded => return Ok(world.outcome),
            End::Stopped => {}
            End::Crashed => {
                let unsynced = match world.dice.below(4) {
                    0 | 1 => Unsynced::Kept,
                    2 => Unsynced::Lost,
                    _ => Unsynced::Torn(world.dice.next()),
                };
                world.disk = world.disk.crash(unsynced);
            }
        }
    }
}

impl World<'_> {
    /// One start of the job, from the last committed epoch to its end or to a crash.
    fn attempt(&mut self) -> Result<End, JobError> {
        let may_fail = self.troubles > 0;
        self.troubles -= usize::from(may_fail);
        let crash_in = (may_fail && !self.dice.once_in(3)).then(|| self.dice.below(STEPS_TO_CRASH));
        if may_fail && crash_in.is_none() {
            self.disk.stop_after(self.dice.below(DISK_STEPS_TO_CRASH) as u64);
        }
        match self.run(may_fail, crash_in) {
            Err(_) if self.disk.is_stopped() => Ok(End::Crashed),
            result => result,
        }
    }

    fn run(&mut self, may_stop: bool, crash_in: Option<usize>) -> Result<End, JobError> {
        let functions = (self.shape.functions)(&mut self.dice);
        let functions: BTreeMap<String, Arc<Native>> =
            functions.into_iter().map(|(name, function)| (name.to_owned(), Arc::new(function))).collect();
        let declared = functions.iter().map(|(name, function)| (name.clone(), declared(&**function))).collect();
        let workers = 1 + self.dice.below(WORKERS_MAX) as u16;
        let (plan, _) = Plan::new(&self.graph, workers, &declared).expect("manifest and functions fit");
        let manifest = &self.loaded.manifest;
        let options = OpenOptions {
            partitions: manifest.job.partitions,
            retained: RETAINED,
            clock: Clock::manual(),
            double: Some(self.disk.clone()),
            ..OpenOptions::default()
        };
        let opened =
            StateStore::open(Path::new(DIRECTORY), Arc::new(self.disk.clone()), &serde_json::json!({}), options)?;
        let last = opened.last.as_ref();
        let epoch = last.map_or(0, |entry| entry.epoch);
        assert!(epoch >= self.committed, "epoch {} was committed, and is gone: {epoch} is the last", self.committed);
        self.committed = epoch;

        let components = self.reloads.at_start(last);
        let slots = slots(functions);
        let (flow, meters) = (Arc::new(Flow::default()), Arc::new(Meters::default()));
        let (failed, failures) = unbounded_channel();
        let mut sinks: BTreeMap<String, Arc<dyn Sink>> = BTreeMap::new();
        for node in &self.graph.sinks {
            let sink = MemorySink::new(opened.attempt, Arc::clone(&self.output));
            let seals = opened.unpublished.iter();
            let seals: Vec<_> =
                seals.filter_map(|entry| Some((entry.epoch, entry.sinks.get(&node.name)?.clone()))).collect();
            sink.recover(opened.job, &seals, None).expect("a sink in memory does not fail");
            sinks.insert(node.name.clone(), Arc::new(sink));
        }
        let mut clock = EventClock::new(&self.graph, &plan);
        let (mut wiring, mailboxes) = Wiring::new(
            manifest,
            &self.graph,
            &plan,
            Neighbours::default(),
            Arc::clone(&flow),
            clock.shared(),
            Arc::clone(&meters),
        );
        let mut outputs = Vec::new();
        for mailbox in mailboxes {
            let writer = sinks[&mailbox.name].writer(None).expect("as above");
            let setup = SinkSetup { name: mailbox.name, records_out: mailbox.records_out, flow: Arc::clone(&flow) };
            outputs.push((setup, writer, mailbox.receiver));
        }
        let (tasks, directory) = wiring.tasks(&slots, &opened.store)?;
        let carried = last.map_or(&[][..], |entry| &entry.carried);
        wiring.post_carried(carried)?;
        let running = tasks.into_iter().flatten().map(|mut task| {
            Running::new(Box::pin(async move {
                task.start().await?;
                task.run().await
            }))
        });
        let running = running.collect();
        let sources = sources(&self.graph, &plan, &self.input, last, &wiring, &mut self.dice)?;
        let splits = Splits::new(sources.clone(), Arc::clone(&flow), Arc::clone(&meters), Instant::now())?;
        let splits = Arc::new(splits);
        clock.move_on(splits.reached(), carried)?;
        let (to_commit, sealed) = std::sync::mpsc::channel();
        let (report, commits) = unbounded_channel();
        let (_ended, input_ended) = unbounded_channel();
        let (_stop, stop) = oneshot::channel();
        let stop = Stop::new(stop, Duration::MAX, Arc::clone(&flow));
        let lowered = self.settings.lowered_limit.filter(|_| self.outcome.starts > 1);
        let limit = lowered.unwrap_or(self.settings.carried_bytes_max);
        let (tasks_here, operators) = wiring.tasks_here().into_iter().unzip();
        let mut coordinator = Coordinator {
            attempt: opened.attempt,
            epoch,
            rule: SealRule { interval: Duration::MAX, records: None },
            carried_bytes_max: limit,
            flow: Arc::clone(&flow),
            splits: Arc::clone(&splits),
            sources,
            tasks: tasks_here,
            operators,
            sinks: wiring.sinks(),
            store: Arc::clone(&opened.store),
            clock,
            to_commit,
            meters,
            totals_before: BTreeMap::new(),
            components,
            swaps: Vec::new(),
            swapped: Vec::new(),
            under_trial: None,
            done_before: BTreeMap::new(),
            pending: 0,
            moved_at_seal: 0,
            has_open_output: false,
            finished: last.is_some_and(|entry| entry.finished),
            has_unnoted_output: last.is_some_and(Entry::has_unpublished),
        };
        drop(wiring);
        let (_swap, swaps) = unbounded_channel();
        let mut events = Events { failures, commits, input_ended, swaps, stop };
        let mut actors = Actors {
            dice: self.dice.split(),
            running,
            outputs,
            splits,
            flow,
            committer: opened.committer,
            store: opened.store,
            sinks,
            sealed,
            report,
            failed,
            directory,
            shape: self.shape,
            input: &self.input,
            committed: &mut self.committed,
            crash_in,
            // Under a lowered limit only the last seal is sure to have nothing to carry over.
            seals_once_in: lowered.map_or(self.settings.seals_once_in, |_| usize::MAX),
            crash_when: self.settings.crash_when.filter(|_| self.outcome.crashed_at.is_empty()),
            crashed_at: &mut self.outcome.crashed_at,
            steps: &mut self.outcome.steps,
            reloads: &mut self.reloads,
            slots,
            carried_bytes: 0,
        };
        let end = actors.drive(&mut coordinator, &mut events, may_stop)?;
        if end == End::InputEnded {
            let tables = Tables::new(&actors.directory, Consistency::Committed);
            self.outcome.output = self.output.lock().published();
            (self.shape.at_end)(&tables, &self.input, &self.outcome.output);
        }
        Ok(end)
    }
}

/// The sources, behind what `last` has recorded of them.
fn sources(
    graph: &Graph,
    plan: &Plan,
    input: &Input,
    last: Option<&Entry>,
    wiring: &Wiring<'_>,
    dice: &mut Dice,
) -> Result<Vec<Arc<SourceSetup>>, JobError> {
    let mut sources = Vec::new();
    for (index, node) in graph.sources.iter().enumerate() {
        let (router, refusals, meters) = wiring.source(index)?;
        let recorded = last.and_then(|entry| entry.positions.get(&node.name)).cloned().unwrap_or_default();
        let positions = SplitPosition::read_all(&recorded).expect("they were written by a job").into();
        let splits = Arc::new(input[node.name.as_str()].clone());
        let source = Box::new(MemorySource { splits, dice: Mutex::new(dice.split()) });
        let (name, yields) = (node.name.clone(), plan.yielding[index]);
        sources.push(Arc::new(SourceSetup {
            name,
            source,
            router,
            refusals,
            meters,
            positions,
            yields,
            is_read: true,
            share: Box::new(|_, _| true),
        }));
    }
    Ok(sources)
}

/// A future that is polled when it has been woken and chance chooses it.
struct Running<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
    woken: Arc<Woken>,
    waker: Waker,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a, T> Running<'a, T> {
    fn new(future: Pin<Box<dyn Future<Output = T> + 'a>>) -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Self { future: Some(future), waker: Waker::from(Arc::clone(&woken)), woken }
    }

    fn is_woken(&self) -> bool {
        self.future.is_some() && self.woken.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) -> Option<T> {
        self.woken.0.store(false, Ordering::Relaxed);
        let future = self.future.as_mut()?;
        match future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(result) => {
                self.future = None;
                Some(result)
            }
            Poll::Pending => None,
        }
    }
}

/// Everything that acts in one attempt, but for the coordinator.
struct Actors<'a> {
    dice: Dice,
    running: Vec<Running<'a, Result<(), TaskError>>>,
    outputs: Vec<(SinkSetup, Box<dyn SinkWriter>, Receiver<SinkMessage>)>,
    splits: Arc<Splits>,
    flow: Arc<Flow>,
    committer: Committer,
    store: Arc<StateStore>,
    sinks: BTreeMap<String, Arc<dyn Sink>>,
    sealed: Receiver<Order>,
    report: UnboundedSender<Report>,
    failed: UnboundedSender<JobError>,
    directory: Arc<Directory>,
    shape: &'a Shape,
    input: &'a Input,
    committed: &'a mut Epoch,
    crash_in: Option<usize>,
    seals_once_in: usize,
    crash_when: Option<fn(&Moment) -> bool>,
    crashed_at: &'a mut Vec<Moment>,
    steps: &'a mut usize,
    reloads: &'a mut Reloads,
    slots: BTreeMap<String, Arc<Slot<Native>>>,
    /// What the last committed epoch carries over, in bytes.
    carried_bytes: u64,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    NothingToDo,
    Crash,
}

impl Actors<'_> {
    /// The loop of `Coordinator::drive`, with chance in the place of time.
    fn drive(&mut self, coordinator: &mut Coordinator, events: &mut Events, may_stop: bool) -> Result<End, JobError> {
        coordinator.reopen();
        loop {
            if let Ok(error) = events.failures.try_recv() {
                return Err(error);
            }
            while let Ok(report) = events.commits.try_recv() {
                coordinator.note(&report);
            }
            if self.splits.have_ended() && !self.flow.has_input_ended() {
                coordinator.end_input();
            }
            let is_done = self.flow.is_idle() && self.flow.carried() == (0, 0);
            let ended = if self.flow.has_input_ended() && is_done {
                Some((Ended::InputEnded, End::InputEnded))
            } else if may_stop && self.dice.once_in(STOPS_ONCE_IN) {
                Some((Ended::Stopped, End::Stopped))
            } else {
                None
            };
            if let Some((ended, end)) = ended {
                let crashed = self.until(coordinator.end(events, ended))?.is_none();
                return Ok(if crashed { End::Crashed } else { end });
            }
            let is_needed = coordinator.is_needed();
            if is_needed && coordinator.pending == 0 && self.dice.once_in(self.seals_once_in) {
                self.reloads.before_seal(coordinator, &self.slots, self.shape.functions);
                if self.until(coordinator.seal(events, false))?.is_none() {
                    return Ok(End::Crashed);
                }
                self.reloads.sealed(coordinator);
                continue;
            }
            match self.step()? {
                Step::Done => {}
                Step::Crash => return Ok(End::Crashed),
                Step::NothingToDo => assert!(is_done || coordinator.pending > 0 || is_needed, "the job stands still"),
            }
        }
    }

    /// Lets the coordinator do something that waits for others. `None` after a crash.
    fn until<T>(&mut self, doing: impl Future<Output = Result<T, JobError>>) -> Result<Option<T>, JobError> {
        let mut doing = Running::new(Box::pin(doing));
        loop {
            if doing.is_woken() && self.dice.once_in(3) {
                if let Some(result) = doing.poll() {
                    return result.map(Some);
                }
                continue;
            }
            match self.step()? {
                Step::Done => {}
                Step::Crash => return Ok(None),
                Step::NothingToDo => assert!(doing.is_woken(), "a seal is waited for, and nobody has anything to do"),
            }
        }
    }

    /// One step of somebody who has something to do.
    fn step(&mut self) -> Result<Step, JobError> {
        *self.steps += 1;
        if let Some(left) = &mut self.crash_in {
            if *left == 0 {
                return Ok(Step::Crash);
            }
            *left -= 1;
        }
        if let Some(crash_when) = self.crash_when {
            let moment = self.moment();
            if crash_when(&moment) {
                self.crashed_at.push(moment);
                return Ok(Step::Crash);
            }
        }
        let first = self.dice.below(10);
        for turn in 0..4 {
            let acted = match (first.saturating_sub(6) + turn) % 4 {
                0 => self.poll_task(),
                1 => self.read()?,
                2 => self.write()?,
                _ => self.commit()?,
            };
            if acted {
                return Ok(Step::Done);
            }
        }
        Ok(Step::NothingToDo)
    }

    fn moment(&self) -> Moment {
        let epochs =
            || self.directory.tables().into_iter().flat_map(|table| self.directory.operator(table.id).tasks.iter());
        let epochs = epochs().map(|task| task.epoch()).collect::<BTreeSet<Epoch>>();
        Moment { carried_bytes: self.carried_bytes, is_half_sealed: epochs.len() > 1 }
    }

    fn poll_task(&mut self) -> bool {
        let woken: Vec<usize> = (0..self.running.len()).filter(|&index| self.running[index].is_woken()).collect();
        if woken.is_empty() {
            return false;
        }
        let chosen = woken[self.dice.below(woken.len())];
        if let Some(result) = self.running[chosen].poll() {
            let error = result.expect_err("a task works until its mailbox closes");
            // As a worker does.
            let _ = self.failed.send(error.into());
        }
        true
    }

    fn read(&mut self) -> Result<bool, JobError> {
        Ok(self.flow.would_admit() && self.splits.step()?)
    }

    fn write(&mut self) -> Result<bool, JobError> {
        let first = self.dice.below(self.outputs.len());
        for turn in 0..self.outputs.len() {
            let place = (first + turn) % self.outputs.len();
            let (setup, writer, receiver) = &mut self.outputs[place];
            if let Ok(message) = receiver.try_recv() {
                setup.take(&mut **writer, message)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn commit(&mut self) -> Result<bool, JobError> {
        let Ok(Order::Commit(sealed)) = self.sealed.try_recv() else { return Ok(false) };
        let carried_bytes = sealed.entry.carried.iter().map(|carried| carried.batch.byte_len() as u64).sum();
        let committed = commit(&mut self.committer, &self.sinks, sealed)?;
        (*self.committed, self.carried_bytes) = (committed.epoch, carried_bytes);
        let readable = self.directory.readable();
        for epoch in BTreeSet::from([*readable.start(), *readable.end()]) {
            let tables = Tables { directory: &self.directory, consistency: Consistency::AsOf(epoch) };
            (self.shape.at_commit)(&tables, self.input);
        }
        if self.dice.once_in(4) {
            self.store.flush()?;
        }
        // As the commit thread does.
        let _ = self.report.send(Report::Committed(committed));
        Ok(true)
    }
}
