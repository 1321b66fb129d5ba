//! From the checked graph to everything that runs, and back down again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};

use super::clock::EventClock;
use super::commit::{Commits, Order, Report};
use super::coordinate::{CARRIED_BYTES_MAX, Coordinator, Events, SealRule};
use super::host;
use super::read::{Share, SourceSetup, SplitPosition, Splits};
use super::reload::{ReloadRequests, Reloader, needed, running};
use super::stop::Stop;
use super::summary::{RunFigures, Summary};
use super::wire::{Neighbours, SinkMailbox, Wiring, slots};
use super::workers::Workers;
use super::write::SinkSetup;
use super::{Ended, JobError, Meters, Outcome};
use crate::cluster::protocol::Reach;
use crate::connector::{Sink, sink_from, source_from};
use crate::disk::RealDisk;
use crate::epoch::JobId;
use crate::epoch::entry::{Entry, RunningComponent, TableName};
use crate::graph::{Declared, Graph, Plan, StateIdentity};
use crate::lookup::Directory;
use crate::manifest::{Loaded, Manifest};
use crate::plugin::callable::Callable;
use crate::plugin::engine::{Engine, Function};
use crate::state::components::Components;
use crate::state::versions::VERSIONED;
use crate::state::{self, MemoryUse, OpenOptions, Opened, StateError, StateStore, Undecided};
use crate::task::Mailbox;
use crate::task::flow::Flow;
use crate::task::run::Slot;

/// What a job is started with beside its manifest.
pub struct JobOptions {
    /// When the process started its work: `elapsed_s` and `first_record_ms` count from here.
    pub started: Instant,
    /// The live figures, for whoever watches.
    pub meters: Arc<Meters>,
    /// Fires to end the job cleanly.
    pub stop: oneshot::Receiver<()>,
    /// Lets others ask the job.
    pub serve: Option<Serve>,
    /// New versions of functions that somebody asks for while it runs.
    pub reloads: ReloadRequests,
    /// Which of the hosts of the manifest's `cluster` this process is; none without that.
    pub host: Option<String>,
}

/// Gets the job's tables before any input is read, to let others ask for them; none, where one of several hosts waits for the others. What it returns is dropped before state is closed.
pub type Serve = Box<dyn Fn(Option<Arc<Directory>>) -> Result<Serving, String>>;

/// Answers others until it is dropped.
pub type Serving = Box<dyn std::any::Any>;

/// How long those who read state have to let go of it, when an attempt has ended.
pub(super) const LET_GO_WITHIN: Duration = Duration::from_secs(10);
pub(super) const LET_GO_LOOK: Duration = Duration::from_millis(10);

type Sinks = BTreeMap<String, Arc<dyn Sink>>;

/// Runs a job to the end of its input, or until it is told to stop. A job that fails leaves state and output at the last committed epoch.
pub async fn run(loaded: &Loaded, graph: &Graph, options: JobOptions) -> Outcome {
    let (started, meters) = (options.started, Arc::clone(&options.meters));
    let mut reached = Reached::default();
    let result = match options.host.clone() {
        None => run_with(loaded, graph, options, &mut reached).await,
        Some(host) => host::run(loaded, graph, &host, options, &mut reached).await,
    };
    let result = result.map_err(|error| error.placed(&loaded.document));
    let Reached { feed_cpu, memory } = reached;
    let (job, elapsed) = (loaded.manifest.job.name.as_str(), started.elapsed());
    let figures = RunFigures { job, result: result.as_ref().copied(), elapsed, feed_cpu, memory };
    Outcome { summary: Summary::of(&meters, figures), failure: result.err() }
}

/// Figures that are gone with what they are of, kept whether the job fails or not.
#[derive(Default)]
pub(super) struct Reached {
    pub(super) feed_cpu: Duration,
    pub(super) memory: MemoryUse,
}

async fn run_with(
    loaded: &Loaded,
    graph: &Graph,
    options: JobOptions,
    reached: &mut Reached,
) -> Result<Ended, JobError> {
    let JobOptions { started, meters, mut stop, serve, reloads, .. } = options;
    let parts = Parts::new(loaded, graph, started, meters).await?;
    let reloads = Arc::new(Mutex::new(reloads));
    let (mut asked, mut opened) = (Asked::Not, parts.open_state());
    loop {
        let ended = attempt(&parts, opened?, (&mut stop, &mut asked), serve.as_ref(), &reloads, reached).await;
        match ended {
            Err(JobError::RolledBack { .. }) => opened = parts.open_state_again().await,
            ended => return ended,
        }
    }
}

/// Whether a clean stop was asked for.
enum Asked {
    Not,
    Yes,
    /// Nobody can any more.
    Never,
}

/// From one opening of the state to its closing.
async fn attempt(
    parts: &Parts<'_>,
    opened: Opened,
    (stop, asked): (&mut oneshot::Receiver<()>, &mut Asked),
    serve: Option<&Serve>,
    reloads: &Arc<Mutex<ReloadRequests>>,
    reached: &mut Reached,
) -> Result<Ended, JobError> {
    let loaded = parts.loaded;
    let (kept, parts) = parts.as_recorded(&opened).await?;
    log_start(&loaded.manifest, opened.last.as_ref());
    let (pass_on, is_asked) = oneshot::channel();
    let new_stop = |flow| Stop::new(is_asked, loaded.manifest.job.stop_within.0, flow);
    let mut running = parts.start(opened, |_| Neighbours::default(), new_stop, serve).await?;
    parts.reloader(&mut running, kept).start(Arc::clone(reloads))?;
    running.coordinator.clock.move_to(&running.reach)?;
    let stopping = async {
        if let Asked::Not = asked {
            *asked = stop.await.map_or(Asked::Never, |()| Asked::Yes);
        }
        if let Asked::Yes = asked {
            // A job that no longer listens has ended.
            let _ = pass_on.send(());
        }
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        result = running.coordinator.run(&mut running.events) => result,
        () = stopping => Err(JobError::Lost("the job".to_owned())),
    };
    let (memory, feed_cpu, down) = running.tear_down();
    reached.memory = memory;
    reached.feed_cpu += feed_cpu;
    let ended = result?;
    down?;
    Ok(ended)
}

/// What a job is made of, the same for all its attempts, but for components that were reloaded in between.
pub(super) struct Parts<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) graph: &'a Graph,
    pub(super) plan: Plan,
    pub(super) code: Code,
    declared: BTreeMap<String, Declared>,
    started: Instant,
    pub(super) meters: Arc<Meters>,
}

/// The functions of all operators.
#[derive(Clone)]
pub(super) struct Code {
    /// Cuts the running time of functions into slices, as long as it lives.
    engine: Arc<Engine>,
    pub(super) functions: BTreeMap<String, Arc<Function>>,
    /// Which components these are.
    components: BTreeMap<String, RunningComponent>,
}

/// An attempt that runs.
pub(super) struct Running {
    pub(super) coordinator: Coordinator,
    pub(super) events: Events,
    /// How far this host's part of the input lets event time come.
    pub(super) reach: Reach,
    /// All tasks of the job.
    pub(super) mailboxes: Vec<Mailbox>,
    /// The tables of this host's tasks.
    pub(super) directory: Arc<Directory>,
    workers: Workers,
    sinks: Vec<JoinHandle<()>>,
    committing: JoinHandle<()>,
    serving: Option<Serving>,
    store: Arc<StateStore>,
    /// Where each operator's function is.
    slots: BTreeMap<String, Arc<Slot<Function>>>,
}

/// Components kept with the state, and which of them the last epoch says that operators run.
type Recorded<'a> = (&'a Components, &'a BTreeMap<String, RunningComponent>);

impl<'a> Parts<'a> {
    /// With the components of the manifest.
    pub(super) async fn new(
        loaded: &'a Loaded,
        graph: &'a Graph,
        started: Instant,
        meters: Arc<Meters>,
    ) -> Result<Self, JobError> {
        let engine = Arc::new(Engine::new().map_err(|error| JobError::Plan(error.to_string()))?);
        let functions = load_functions(&engine, loaded).await?;
        let components = functions.iter().map(|(name, function)| (name.clone(), running(function))).collect();
        Self::of(Code { engine, functions, components }, loaded, graph, started, meters)
    }

    /// The same with the components that the last epoch names, where the manifest's files are what they were then; and where these are kept, with no others beside them.
    ///
    /// # Errors
    /// When one of them is missing or damaged, or the state was not made for them.
    pub(super) async fn as_recorded(&self, opened: &Opened) -> Result<(Components, Self), JobError> {
        let nothing = BTreeMap::new();
        let (kept, recorded) = (self.kept(), opened.last.as_ref().map_or(&nothing, |last| &last.components));
        let mut code = self.code.clone();
        code.go_on_with((&kept, recorded)).await?;
        let parts = Self::of(code, self.loaded, self.graph, self.started, Arc::clone(&self.meters))?;
        parts.check_identity(opened)?;
        kept.retain(&RealDisk, &needed(recorded))?;
        Ok((kept, parts))
    }

    fn of(
        code: Code,
        loaded: &'a Loaded,
        graph: &'a Graph,
        started: Instant,
        meters: Arc<Meters>,
    ) -> Result<Self, JobError> {
        let declares = |(name, function): (&String, &Arc<Function>)| (name.clone(), declared(&**function));
        let declared = code.functions.iter().map(declares).collect();
        let (plan, _) = Plan::new(graph, worker_count(&loaded.manifest), &declared)
            .map_err(|findings| JobError::Manifest(loaded.document.refusal(findings)))?;
        Ok(Self { loaded, graph, plan, code, declared, started, meters })
    }

    /// The operators that went on with a component that was reloaded, and which the manifest does not name; each with what to do about it.
    pub(super) fn reloaded(&self, recorded: &BTreeMap<String, RunningComponent>) -> Vec<String> {
        let goes_on = |(operator, was): &(&String, &RunningComponent)| {
            let now = self.code.components.get(*operator);
            now.is_some_and(|now| was.sha256 != now.sha256 && was.file_sha256 == now.file_sha256)
        };
        let told = |(operator, was): (&String, &RunningComponent)| {
            let (version, digest) = (&was.version, &was.sha256);
            format!(
                "the operator `{operator}` runs a component that was reloaded (version {version}, SHA-256 {digest}), and the manifest names another: put that one's file in its place"
            )
        };
        recorded.iter().filter(goes_on).map(told).collect()
    }

    /// Starts everything behind the opened state, but lets nothing be admitted yet.
    pub(super) async fn start(
        &self,
        opened: Opened,
        neighbours: impl FnOnce(&UnboundedSender<JobError>) -> Neighbours,
        stop: impl FnOnce(Arc<Flow>) -> Stop,
        serve: Option<&Serve>,
    ) -> Result<Running, JobError> {
        let Self { loaded, graph, plan, meters, .. } = self;
        let manifest = &loaded.manifest;
        let Opened { store, committer, job, attempt, last, unpublished, .. } = opened;
        let first_epoch = last.as_ref().map_or(0, |entry| entry.epoch);
        meters.committed_epoch.store(first_epoch, Ordering::Relaxed);
        meters.components.lock().clone_from(&self.code.components);

        let flow = Arc::new(Flow::default());
        let (failed, failures) = unbounded_channel();
        let sinks = open_sinks(loaded, job, last.as_ref(), &unpublished)?;
        let mut clock = EventClock::new(graph, plan);
        let (mut wiring, mailboxes) = Wiring::new(
            manifest,
            graph,
            plan,
            neighbours(&failed),
            Arc::clone(&flow),
            clock.shared(),
            Arc::clone(meters),
        );
        let sink_threads = start_sinks(mailboxes, &sinks, last.as_ref(), &flow, &failed)?;
        let slots = slots(self.code.functions.clone());
        let (tasks, directory) = wiring.tasks(&slots, &store)?;
        let carried = last.as_ref().map_or(&[][..], |entry| &entry.carried);
        wiring.post_carried(carried)?;
        let workers = Workers::start(tasks, &failed).await?;
        let serving = serve.map(|serve| serve(Some(Arc::clone(&directory)))).transpose().map_err(JobError::Serve)?;
        let sources = open_sources(loaded, graph, plan, last.as_ref(), &wiring)?;
        let splits = Splits::new(sources.clone(), Arc::clone(&flow), Arc::clone(meters), self.started)?;
        let splits = Arc::new(splits);
        let reach = clock.note(splits.reached(), carried);
        let (to_commit, orders) = std::sync::mpsc::channel();
        let (report, commits) = unbounded_channel();
        let committing = start_committing(Commits::new(committer, sinks), orders, report, &failed)?;
        let input_ended = start_sources(&splits, worker_count(manifest), &failed)?;

        // Whoever reloads puts a sender in its place.
        let (_, swaps) = unbounded_channel();
        let (tasks, operators) = wiring.tasks_here().into_iter().unzip();
        let coordinator = Coordinator {
            attempt,
            epoch: first_epoch,
            rule: SealRule { interval: manifest.checkpoint.interval.0, records: manifest.checkpoint.records },
            carried_bytes_max: CARRIED_BYTES_MAX,
            flow: Arc::clone(&flow),
            splits,
            sources,
            tasks,
            operators,
            sinks: wiring.sinks(),
            store: Arc::clone(&store),
            clock,
            to_commit,
            meters: Arc::clone(meters),
            totals_before: last.as_ref().map(|entry| entry.totals.clone()).unwrap_or_default(),
            components: self.code.components.clone(),
            swaps: Vec::new(),
            swapped: Vec::new(),
            under_trial: None,
            done_before: BTreeMap::new(),
            pending: 0,
            moved_at_seal: 0,
            has_open_output: last.as_ref().is_some_and(|entry| entry.sinks.values().any(|seal| seal.open.is_some())),
            finished: last.as_ref().is_some_and(|entry| entry.finished),
            has_unnoted_output: last.as_ref().is_some_and(Entry::has_unpublished),
        };
        let events = Events { failures, commits, input_ended, swaps, stop: stop(flow) };
        let mailboxes = wiring.mailboxes().to_vec();
        Ok(Running {
            coordinator,
            events,
            reach,
            mailboxes,
            directory,
            workers,
            sinks: sink_threads,
            committing,
            serving,
            store,
            slots,
        })
    }

    /// What brings new versions of functions into `running`.
    pub(super) fn reloader(&self, running: &mut Running, kept: Components) -> Reloader {
        let (swaps, ready) = unbounded_channel();
        running.events.swaps = ready;
        Reloader {
            engine: Arc::clone(&self.code.engine),
            loaded: self.loaded.clone(),
            graph: self.graph.clone(),
            plan: self.plan.clone(),
            slots: running.slots.clone(),
            running: self.code.components.clone(),
            kept,
            store: Arc::clone(&running.store),
            directory: Arc::clone(&running.directory),
            swaps,
        }
    }
}

impl Running {
    /// Takes everything down again, whatever it came to: either nothing is in flight, or what is belongs to no epoch. Says what state took, and whether it was closed well.
    pub(super) fn tear_down(self) -> (MemoryUse, Duration, Result<(), JobError>) {
        let Self { coordinator, events, mailboxes, directory, workers, sinks, committing, serving, store, .. } = self;
        let memory = store.memory();
        coordinator.splits.stop();
        workers.stop();
        coordinator.sinks.values().for_each(crate::task::route::SinkHandle::end);
        drop((coordinator, events, mailboxes));
        for sink in sinks {
            // It reports its own panics.
            let _ = sink.join();
        }
        let committed = committing.join();
        drop((serving, directory));
        let closed = store.close();
        let down = match committed {
            Err(_) => Err(JobError::Lost("the commit thread".to_owned())),
            Ok(()) => closed.map_err(JobError::from),
        };
        (memory, store.feed_cpu(), down)
    }
}

/// Loads the components of all operators, each file once.
///
/// # Errors
/// When one cannot be used.
async fn load_functions(engine: &Engine, loaded: &Loaded) -> Result<BTreeMap<String, Arc<Function>>, JobError> {
    let mut by_path: BTreeMap<&str, Arc<Function>> = BTreeMap::new();
    let mut functions = BTreeMap::new();
    for (name, operator) in &loaded.manifest.operators {
        let function = match by_path.get(operator.component.as_str()) {
            Some(function) => Arc::clone(function),
            None => {
                let loaded = engine.load(&loaded.resolve(&operator.component)).await;
                let function = Arc::new(loaded.map_err(|error| JobError::Plugin { operator: name.clone(), error })?);
                by_path.insert(&operator.component, Arc::clone(&function));
                function
            }
        };
        functions.insert(name.clone(), function);
    }
    Ok(functions)
}

impl Code {
    /// Puts the components that the last epoch says operators run in the place of the manifest's, where the manifest's files are what they were then. Another file there is as a reload: it
    /// runs from here on.
    async fn go_on_with(&mut self, (kept, recorded): Recorded<'_>) -> Result<(), JobError> {
        for (operator, was) in recorded {
            let Some(now) = self.components.get_mut(operator) else { continue };
            if was.sha256 == now.sha256 {
                continue;
            }
            if was.file_sha256 != now.file_sha256 {
                let (was, now) = (&was.version, &now.version);
                tracing::info!(operator, was, now, "the component's file has changed since the last run");
                continue;
            }
            let bytes = kept.load(&RealDisk, operator, &was.sha256)?;
            let loaded = self.engine.load_bytes(&kept.path(&was.sha256), &bytes).await;
            let function = loaded.map_err(|error| JobError::Plugin { operator: operator.clone(), error })?;
            tracing::info!(operator, version = was.version, "going on with the component that was reloaded");
            self.functions.insert(operator.clone(), Arc::new(function));
            now.clone_from(was);
        }
        Ok(())
    }
}

/// What a function declares, as far as the plan depends on it.
pub fn declared(function: &impl Callable) -> Declared {
    let description = function.description();
    Declared {
        sha256: function.sha256(),
        tables: description.tables.clone(),
        open: description.open_tables.clone(),
        ordered: description.ordered_tables.clone(),
        versioned: description.versioned_tables.clone(),
        uses: description.uses.clone(),
        ports: description.ports[1..].to_vec(),
    }
}

/// The workers of this host: as the manifest says, or else one a core.
pub fn worker_count(manifest: &Manifest) -> u16 {
    manifest.job.workers.unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        u16::try_from(cores).unwrap_or(u16::MAX)
    })
}

impl Parts<'_> {
    /// The components that are kept with the state.
    pub(super) fn kept(&self) -> Components {
        Components::new(&self.state_options().0)
    }

    /// Where state lies, and how it is opened.
    fn state_options(&self) -> (PathBuf, OpenOptions) {
        let manifest = &self.loaded.manifest;
        let options = OpenOptions {
            partitions: manifest.job.partitions,
            memory_bytes: manifest.job.memory.0,
            retained: manifest.checkpoint.retained,
            retained_bytes: manifest.checkpoint.retained_bytes.map(|bytes| bytes.0),
            ..OpenOptions::default()
        };
        (self.loaded.resolve(&manifest.job.state), options)
    }

    pub(super) fn identity(&self) -> (StateIdentity, serde_json::Value) {
        let identity = StateIdentity::new(self.graph, &self.declared);
        let fingerprint = serde_json::to_value(&identity).expect("an identity is made of strings and numbers");
        (identity, fingerprint)
    }

    /// Opens the state directory.
    fn open_state(&self) -> Result<Opened, JobError> {
        let ((directory, options), (_, fingerprint)) = (self.state_options(), self.identity());
        self.check_hosts(&directory, false)?;
        Ok(StateStore::open(&directory, Arc::new(RealDisk), &fingerprint, options)?)
    }

    /// The same, where an attempt of this process has just ended: whoever still answers a lookup holds the state for a moment.
    async fn open_state_again(&self) -> Result<Opened, JobError> {
        let start = Instant::now();
        loop {
            match self.open_state() {
                Err(JobError::State(StateError::Locked { .. })) if start.elapsed() < LET_GO_WITHIN => {
                    tokio::time::sleep(LET_GO_LOOK).await;
                }
                opened => return opened,
            }
        }
    }

    /// Looks at the state directory of one of several hosts.
    pub(super) fn look_at_state(&self) -> Result<Undecided, JobError> {
        let ((directory, options), (_, fingerprint)) = (self.state_options(), self.identity());
        self.check_hosts(&directory, true)?;
        Ok(StateStore::look(&directory, Arc::new(RealDisk), &fingerprint, options)?)
    }

    /// Refuses to start from nothing where state of the job lies for other hosts.
    fn check_hosts(&self, directory: &Path, is_host: bool) -> Result<(), JobError> {
        let is_ours = |fingerprint: &serde_json::Value| is_of_job(fingerprint, &self.loaded.manifest.job.name);
        match state::rescale::of_other_hosts(&RealDisk, directory, is_host, is_ours)? {
            None => Ok(()),
            Some(other) => Err(StateError::OtherHosts { path: directory.to_owned(), other }.into()),
        }
    }

    /// Holds what opened state was made for against what the manifest says now.
    fn check_identity(&self, opened: &Opened) -> Result<(), JobError> {
        let ((directory, _), (now, _)) = (self.state_options(), self.identity());
        let misfit = |problems: String| JobError::Identity { directory: directory.clone(), problems };
        let stored: StateIdentity = serde_json::from_value(opened.fingerprint.clone())
            .map_err(|error| misfit(format!("its description of the job cannot be read: {error}")))?;
        with_joined(stored, &opened.tables, opened.last.as_ref())
            .compare(&now)
            .map_err(|problems| misfit(problems.join("\n")))
    }
}

/// Whether a state directory's fingerprint is that of the job of this name.
pub(super) fn is_of_job(fingerprint: &serde_json::Value, job: &str) -> bool {
    fingerprint.get("job").and_then(serde_json::Value::as_str) == Some(job)
}

/// The identity that was stored at the first start, with what has joined the job since.
pub(super) fn with_joined(
    stored: StateIdentity,
    tables: &BTreeMap<TableName, BTreeSet<u32>>,
    last: Option<&Entry>,
) -> StateIdentity {
    let tables = tables.iter().filter_map(|(name, versions)| {
        let stored = *versions.last()?;
        Some((&**name, stored & !VERSIONED, stored & VERSIONED != 0))
    });
    let last = last.into_iter();
    let sources = last.clone().flat_map(|entry| entry.positions.keys());
    let sinks = last.flat_map(|entry| &entry.sinks).filter(|(_, seal)| seal.exactly_once).map(|(name, _)| name);
    stored.joined_by(tables, sources.map(String::as_str), sinks.map(String::as_str))
}

fn log_start(manifest: &Manifest, last: Option<&Entry>) {
    match last {
        None => tracing::info!(job = %manifest.job.name, "starting from nothing"),
        Some(entry) => {
            tracing::info!(job = %manifest.job.name, epoch = entry.epoch, "going on behind the last committed epoch")
        }
    }
}

/// Opens the sinks and brings their output into the state of the last committed epoch.
fn open_sinks(loaded: &Loaded, job: JobId, last: Option<&Entry>, unpublished: &[Entry]) -> Result<Sinks, JobError> {
    let mut sinks = Sinks::new();
    for (name, manifest) in &loaded.manifest.sinks {
        let failed = |error| JobError::sink(name, error);
        let sink = sink_from(manifest, loaded.directory()).map_err(failed)?;
        let seals: Vec<_> =
            unpublished.iter().filter_map(|entry| Some((entry.epoch, entry.sinks.get(name)?.clone()))).collect();
        sink.recover(job, &seals, last.and_then(|entry| entry.sinks.get(name))).map_err(failed)?;
        sinks.insert(name.clone(), Arc::from(sink));
    }
    Ok(sinks)
}

fn start_sinks(
    mailboxes: Vec<SinkMailbox>,
    sinks: &Sinks,
    last: Option<&Entry>,
    flow: &Arc<Flow>,
    failed: &UnboundedSender<JobError>,
) -> Result<Vec<JoinHandle<()>>, JobError> {
    let mut threads = Vec::new();
    for SinkMailbox { name, receiver, records_out } in mailboxes {
        let seal = last.and_then(|entry| entry.sinks.get(&name));
        let writer = sinks[&name].writer(seal).map_err(|error| JobError::sink(&name, error))?;
        let thread = format!("sink-{name}");
        let setup = SinkSetup { name, records_out, flow: Arc::clone(flow) };
        threads.push(start_thread(&thread, failed, move || setup.work(writer, &receiver))?);
    }
    Ok(threads)
}

fn open_sources(
    loaded: &Loaded,
    graph: &Graph,
    plan: &Plan,
    last: Option<&Entry>,
    wiring: &Wiring<'_>,
) -> Result<Vec<Arc<SourceSetup>>, JobError> {
    let mut sources = Vec::new();
    for (index, node) in graph.sources.iter().enumerate() {
        let source = source_from(&loaded.manifest.sources[&node.name], loaded.directory());
        let source = source.map_err(|error| JobError::source(&node.name, error))?;
        let (router, refusals, meters) = wiring.source(index)?;
        let recorded = last.and_then(|entry| entry.positions.get(&node.name)).cloned().unwrap_or_default();
        let positions = SplitPosition::read_all(&recorded).map_err(|error| {
            JobError::Input(format!("source `{}`: its position in the log cannot be read: {error}", node.name))
        })?;
        let (own, reader) = (wiring.own().0, node.clone());
        let share: Share = Box::new(move |number, name| reader.split_host(number, name) == own);
        sources.push(Arc::new(SourceSetup {
            name: node.name.clone(),
            source,
            router,
            refusals,
            meters,
            positions: positions.into(),
            yields: plan.yielding[index],
            is_read: node.hosts.contains(&wiring.own().0),
            share,
        }));
    }
    Ok(sources)
}

fn start_sources(
    splits: &Arc<Splits>,
    threads: u16,
    failed: &UnboundedSender<JobError>,
) -> Result<UnboundedReceiver<()>, JobError> {
    let (ended, input_ended) = unbounded_channel();
    for index in 0..threads {
        let (splits, ended) = (Arc::clone(splits), ended.clone());
        start_thread(&format!("source-{index}"), failed, move || {
            // A coordinator that no longer listens is stopping the job.
            splits.work(|| {
                let _ = ended.send(());
            })
        })?;
    }
    Ok(input_ended)
}

fn start_committing(
    mut commits: Commits,
    orders: Receiver<Order>,
    report: UnboundedSender<Report>,
    failed: &UnboundedSender<JobError>,
) -> Result<JoinHandle<()>, JobError> {
    start_thread("commit", failed, move || {
        for order in orders {
            let done = commits.carry_out(order)?;
            // As above.
            let _ = report.send(done);
        }
        Ok(())
    })
}

/// Starts a thread whose failure, also by a panic, is the job's.
fn start_thread(
    name: &str,
    failed: &UnboundedSender<JobError>,
    work: impl FnOnce() -> Result<(), JobError> + Send + 'static,
) -> Result<JoinHandle<()>, JobError> {
    let (failed, thread) = (failed.clone(), name.to_owned());
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let result = result.unwrap_or_else(|_| Err(JobError::Lost(format!("thread `{thread}`"))));
            if let Err(error) = result {
                // A coordinator that no longer listens is stopping the job already.
                let _ = failed.send(error);
            }
        })
        .map_err(|error| JobError::Lost(format!("thread `{name}` ({error})")))
}
