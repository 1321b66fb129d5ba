//! From the checked graph to everything that runs, and back down again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::clock::EventClock;
use super::commit::{Committed, Sealed, commit};
use super::coordinate::{CARRIED_BYTES_MAX, Coordinator, Events, SealRule};
use super::read::{SourceSetup, SplitPosition, Splits};
use super::stop::Stop;
use super::summary::{RunFigures, Summary};
use super::wire::{SinkMailbox, Wiring};
use super::workers::Workers;
use super::write::SinkSetup;
use super::{Ended, JobError, Meters, Outcome};
use crate::connector::{Sink, sink_from, source_from};
use crate::disk::RealDisk;
use crate::epoch::JobId;
use crate::epoch::entry::Entry;
use crate::graph::{Declared, Graph, Plan, StateIdentity};
use crate::lookup::Directory;
use crate::manifest::{Loaded, Manifest};
use crate::plugin::callable::Callable;
use crate::plugin::engine::{Engine, Function};
use crate::state::versions::VERSIONED;
use crate::state::{Committer, MemoryUse, OpenOptions, Opened, StateStore};
use crate::task::flow::Flow;

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
}

/// Gets the job's tables before any input is read, to let others ask for them. What it returns is dropped when the job ends, before its state is closed.
pub type Serve = Box<dyn FnOnce(Arc<Directory>) -> Result<Box<dyn std::any::Any>, String>>;

type Sinks = BTreeMap<String, Arc<dyn Sink>>;

/// Runs a job to the end of its input, or until it is told to stop. A job that fails leaves state and output at the last committed epoch.
pub async fn run(loaded: &Loaded, graph: &Graph, options: JobOptions) -> Outcome {
    let (started, meters) = (options.started, Arc::clone(&options.meters));
    let mut reached = Reached::default();
    let result = run_with(loaded, graph, options, &mut reached).await.map_err(|error| error.placed(&loaded.document));
    let Reached { feed_cpu, memory } = reached;
    let (job, elapsed) = (loaded.manifest.job.name.as_str(), started.elapsed());
    let figures = RunFigures { job, result: result.as_ref().copied(), elapsed, feed_cpu, memory };
    Outcome { summary: Summary::of(&meters, figures), failure: result.err() }
}

/// Figures that are gone with what they are of, kept whether the job fails or not.
#[derive(Default)]
struct Reached {
    feed_cpu: Duration,
    memory: MemoryUse,
}

async fn run_with(
    loaded: &Loaded,
    graph: &Graph,
    options: JobOptions,
    reached: &mut Reached,
) -> Result<Ended, JobError> {
    let JobOptions { started, meters, stop, serve } = options;
    let manifest = &loaded.manifest;
    let engine = Engine::new().map_err(|error| JobError::Plan(error.to_string()))?;
    let functions = load_functions(&engine, loaded).await?;
    let declared = functions.iter().map(|(name, function)| (name.clone(), declared(&**function))).collect();
    let (plan, _) = Plan::new(graph, worker_count(manifest), &declared)
        .map_err(|findings| JobError::Manifest(loaded.document.refusal(findings)))?;
    let Opened { store, committer, job, attempt, last, unpublished, .. } = open_state(loaded, graph, &declared)?;
    let first_epoch = last.as_ref().map_or(0, |entry| entry.epoch);
    meters.committed_epoch.store(first_epoch, Ordering::Relaxed);
    log_start(manifest, last.as_ref());

    let flow = Arc::new(Flow::default());
    let (failed, failures) = unbounded_channel();
    let sinks = open_sinks(loaded, job, last.as_ref(), &unpublished)?;
    let mut clock = EventClock::new(graph, &plan);
    let (mut wiring, mailboxes) =
        Wiring::new(manifest, graph, &plan, Arc::clone(&flow), clock.shared(), Arc::clone(&meters));
    start_sinks(mailboxes, &sinks, last.as_ref(), &flow, &failed)?;
    let (tasks, directory) = wiring.tasks(&functions, &store)?;
    let carried = last.as_ref().map_or(&[][..], |entry| &entry.carried);
    wiring.post_carried(carried)?;
    let workers = Workers::start(tasks, &failed).await?;
    let serving = serve.map(|serve| serve(directory)).transpose().map_err(JobError::Serve)?;
    let sources = open_sources(loaded, graph, &plan, last.as_ref(), &wiring)?;
    let splits = Arc::new(Splits::new(sources.clone(), Arc::clone(&flow), Arc::clone(&meters), started)?);
    clock.move_on(splits.reached(), carried);
    let (to_commit, sealed) = std::sync::mpsc::channel();
    let (report, committed) = unbounded_channel();
    let committing = start_committing(committer, sinks, sealed, report, &failed)?;
    let input_ended = start_sources(&splits, worker_count(manifest), &failed)?;

    let mut coordinator = Coordinator {
        attempt,
        epoch: first_epoch,
        rule: SealRule { interval: manifest.checkpoint.interval.0, records: manifest.checkpoint.records },
        carried_bytes_max: CARRIED_BYTES_MAX,
        flow,
        splits: Arc::clone(&splits),
        sources,
        tasks: wiring.mailboxes(),
        operators: wiring.operators_of_tasks(),
        sinks: wiring.sinks(),
        store: Arc::clone(&store),
        clock,
        to_commit,
        meters,
        totals_before: last.as_ref().map(|entry| entry.totals.clone()).unwrap_or_default(),
        pending: 0,
        moved_at_seal: 0,
        has_open_output: last.as_ref().is_some_and(|entry| entry.sinks.values().any(|seal| seal.open.is_some())),
        finished: last.as_ref().is_some_and(|entry| entry.finished),
        has_unnoted_output: last.as_ref().is_some_and(Entry::has_unpublished),
    };
    let stop = Stop::new(stop, manifest.job.stop_within.0, Arc::clone(&coordinator.flow));
    let result = coordinator.run(&mut Events { failures, committed, input_ended, stop }).await;

    reached.memory = store.memory();
    // Down again, whatever the result: either nothing is in flight, or what is belongs to no epoch.
    splits.stop();
    workers.stop();
    coordinator.sinks.values().for_each(crate::task::route::SinkHandle::end);
    drop(coordinator);
    let committed = committing.join();
    drop(serving);
    let closed = store.close();
    reached.feed_cpu = store.feed_cpu();
    let ended = result?;
    committed.map_err(|_| JobError::Lost("the commit thread".to_owned()))?;
    closed?;
    Ok(ended)
}

/// Loads the components of all operators, each file once.
///
/// # Errors
/// When one cannot be used.
pub async fn load_functions(engine: &Engine, loaded: &Loaded) -> Result<BTreeMap<String, Arc<Function>>, JobError> {
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

/// What a function declares, as far as the plan depends on it.
pub fn declared(function: &impl Callable) -> Declared {
    let description = function.description();
    Declared {
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

/// Opens the state directory and holds what it was made for against what the manifest says now.
fn open_state(loaded: &Loaded, graph: &Graph, declared: &BTreeMap<String, Declared>) -> Result<Opened, JobError> {
    let manifest = &loaded.manifest;
    let directory = loaded.resolve(&manifest.job.state);
    let now = StateIdentity::new(graph, declared);
    let fingerprint = serde_json::to_value(&now).expect("an identity is made of strings and numbers");
    let options = OpenOptions {
        partitions: manifest.job.partitions,
        memory_bytes: manifest.job.memory.0,
        retained: manifest.checkpoint.retained,
        retained_bytes: manifest.checkpoint.retained_bytes.map(|bytes| bytes.0),
        ..OpenOptions::default()
    };
    let opened = StateStore::open(&directory, Arc::new(RealDisk), &fingerprint, options)?;
    let misfit = |problems: String| JobError::Identity { directory: directory.clone(), problems };
    let stored: StateIdentity = serde_json::from_value(opened.fingerprint.clone())
        .map_err(|error| misfit(format!("its description of the job cannot be read: {error}")))?;
    with_joined(stored, &opened).compare(&now).map_err(|problems| misfit(problems.join("\n")))?;
    Ok(opened)
}

/// The identity that was stored at the first start, with what has joined the job since.
fn with_joined(stored: StateIdentity, opened: &Opened) -> StateIdentity {
    let tables = opened.tables.iter().filter_map(|(name, versions)| {
        let stored = *versions.last()?;
        Some((&**name, stored & !VERSIONED, stored & VERSIONED != 0))
    });
    let last = opened.last.iter();
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
) -> Result<(), JobError> {
    for SinkMailbox { name, receiver, records_out } in mailboxes {
        let seal = last.and_then(|entry| entry.sinks.get(&name));
        let writer = sinks[&name].writer(seal).map_err(|error| JobError::sink(&name, error))?;
        let thread = format!("sink-{name}");
        let setup = SinkSetup { name, records_out, flow: Arc::clone(flow) };
        start_thread(&thread, failed, move || setup.work(writer, &receiver))?;
    }
    Ok(())
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
        sources.push(Arc::new(SourceSetup {
            name: node.name.clone(),
            source,
            router,
            refusals,
            meters,
            positions: positions.into(),
            yields: plan.yielding[index],
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
    mut committer: Committer,
    sinks: Sinks,
    sealed: Receiver<Sealed>,
    report: UnboundedSender<Committed>,
    failed: &UnboundedSender<JobError>,
) -> Result<JoinHandle<()>, JobError> {
    start_thread("commit", failed, move || {
        for epoch in sealed {
            let committed = commit(&mut committer, &sinks, epoch)?;
            // As above.
            let _ = report.send(committed);
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
