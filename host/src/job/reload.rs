//! Reloading: a new version of an operator's component, made ready beside the running job.
//!
//! A thread of its own loads and checks what is asked for, keeps its bytes with the state, and hands it to the coordinator, which puts it in place at a seal. Whatever is refused
//! has changed nothing. What may change while a job runs is the code: the job's plan (tables, what is looked up, where records go) stays as it is, and a component that needs another one takes a
//! new start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::JobError;
use super::assemble::declared;
use super::coordinate::Swap;
use super::trial::Trial;
use super::wire::limits_of;
use crate::disk::RealDisk;
use crate::epoch::Epoch;
use crate::epoch::entry::RunningComponent;
use crate::graph::{Declared, Graph, Plan};
use crate::lookup::Directory;
use crate::manifest::{Loaded, Source, listed};
use crate::plugin::PluginError;
use crate::plugin::callable::{Callable, Surroundings};
use crate::plugin::engine::{Engine, Function};
use crate::plugin::instance::Nothing;
use crate::state::components::{Components, digest_of};
use crate::state::{Encoding, StateError, StateStore};
use crate::task::run::Slot;

/// Reloads that wait for the one under way; more wait before they are sent.
const WAITING_MAX: usize = 1;

/// Why a component is not reloaded. Completes "failed to reload `operator`: …". Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The job has no such operator.
    #[error("the job has no such operator; it has {known}")]
    UnknownOperator {
        /// Those it has.
        known: String,
    },
    /// It is no component, for another world, or refuses the operator's config.
    #[error("{0}")]
    Plugin(#[from] PluginError),
    /// It does not fit into the running job.
    #[error("{0}; stop the job, name the new component in the manifest, and start it again")]
    Misfit(String),
    /// It does not read what is stored.
    #[error("{0}")]
    Unreadable(StateError),
    /// It cannot be kept.
    #[error("{0}")]
    State(#[from] StateError),
    /// One of several hosts refuses it.
    #[error("{0}")]
    Elsewhere(String),
    /// It could not be carried out on all hosts.
    #[error("{0}")]
    Failed(String),
    /// It cannot be tried.
    #[error("{0}")]
    NoTrial(String),
    /// It has not stood its trial.
    #[error(
        "its trial has failed: {0}; the job goes on from its last committed epoch with the version that ran before"
    )]
    RolledBack(String),
    /// The hosts of the job are not all there, or do not work together just now.
    #[error(
        "the job waits for one of its hosts, or goes back to its last committed epoch; ask again when it is under way"
    )]
    AttemptOver,
    /// The job has ended.
    #[error(
        "the job has ended before it was known to be committed; `wasmill state components` says which version runs at the next start"
    )]
    Ended,
}

/// What a reload came to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reloaded {
    /// The operator.
    pub operator: String,
    /// The epoch at whose seal the new version took the place of the old one: records up to it were worked on by the old, all later ones by the new.
    pub epoch: Epoch,
    /// What ran before.
    pub from: RunningComponent,
    /// What runs now.
    pub to: RunningComponent,
}

impl ReloadError {
    /// That the job has no such operator.
    pub(super) fn unknown<'a>(known: impl Iterator<Item = &'a String>) -> Self {
        Self::UnknownOperator { known: listed(known.map(String::as_str)) }
    }

    /// Whether the component is at fault, and will be refused again.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Plugin(_) | Self::Misfit(_) | Self::Unreadable(_) | Self::Elsewhere(_) | Self::RolledBack(_) => true,
            Self::UnknownOperator { .. } | Self::State(_) | Self::Failed(_) | Self::AttemptOver | Self::Ended => false,
            Self::NoTrial(_) => true,
        }
    }
}

/// What was asked for.
pub(super) struct Request {
    pub(super) operator: String,
    pub(super) component: Vec<u8>,
    pub(super) trial: Option<Trial>,
    pub(super) reply: oneshot::Sender<Result<Reloaded, ReloadError>>,
}

/// Where a running job is asked for reloads.
#[derive(Debug, Clone)]
pub struct Reloads(mpsc::Sender<Request>);

/// What was asked for; handed to the job at its start.
pub struct ReloadRequests(mpsc::Receiver<Request>);

impl Reloads {
    /// Both ends.
    pub fn new() -> (Self, ReloadRequests) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), ReloadRequests(receiver))
    }

    /// Has `operator` run `component`, the content of a component's file, from the next seal on. Returns once the epoch of that seal is committed; with a trial, once
    /// it has stood that, and its first epoch is.
    ///
    /// # Errors
    /// When it is refused; then nothing has changed.
    pub async fn reload(
        &self,
        operator: String,
        component: Vec<u8>,
        trial: Option<Trial>,
    ) -> Result<Reloaded, ReloadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request { operator, component, trial, reply }).await.map_err(|_| ReloadError::Ended)?;
        answer.await.unwrap_or(Err(ReloadError::Ended))
    }
}

impl Reloads {
    /// Whether the job has ended, and takes nothing any more.
    pub fn have_ended(&self) -> bool {
        self.0.is_closed()
    }
}

impl ReloadRequests {
    /// The next one; `None` when nobody can ask any more.
    pub(super) async fn next(&mut self) -> Option<Request> {
        self.0.recv().await
    }
}

/// What of a running job a reload depends on.
pub(super) struct Reloader {
    pub(super) engine: Arc<Engine>,
    pub(super) loaded: Loaded,
    pub(super) graph: Graph,
    pub(super) plan: Plan,
    /// What runs where.
    pub(super) slots: BTreeMap<String, Arc<Slot<Function>>>,
    pub(super) running: BTreeMap<String, RunningComponent>,
    pub(super) kept: Components,
    pub(super) store: Arc<StateStore>,
    pub(super) directory: Arc<Directory>,
    /// Takes what is ready.
    pub(super) swaps: mpsc::UnboundedSender<Swap>,
}

impl Reloader {
    /// Starts the thread. It ends with the attempt, or when nobody can ask any more. One that begins before the thread of the attempt before has ended waits for that.
    pub(super) fn start(self, requests: Arc<tokio::sync::Mutex<ReloadRequests>>) -> Result<(), JobError> {
        let lost = |error| JobError::Lost(format!("thread `reload` ({error})"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(lost)?;
        let work = move || runtime.block_on(self.work(requests));
        std::thread::Builder::new().name("reload".to_owned()).spawn(work).map(drop).map_err(lost)
    }

    async fn work(mut self, requests: Arc<tokio::sync::Mutex<ReloadRequests>>) {
        let mut requests = requests.lock().await;
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                () = self.swaps.closed() => None,
            };
            let Some(Request { operator, component, trial, reply }) = request else { return };
            let result = self.reload(&operator, &component, trial).await;
            if let Err(error) = &result {
                tracing::warn!(operator, "not reloaded: {error}");
            }
            // Whoever asked may have gone.
            let _ = reply.send(result);
        }
    }

    async fn reload(
        &mut self,
        operator: &str,
        component: &[u8],
        trial: Option<Trial>,
    ) -> Result<Reloaded, ReloadError> {
        if let Some(trial) = trial {
            self.check_trial(trial)?;
        }
        let unknown = || ReloadError::unknown(self.slots.keys());
        let slot = Arc::clone(self.slots.get(operator).ok_or_else(unknown)?);
        let function = self.engine.load_bytes(Path::new("the new component"), component).await?;
        let function = Arc::new(function.arranged(slot.current().description()));
        self.check(operator, &function)?;
        let (tables, encoding) = match self.directory.of_operator(operator) {
            None => (Vec::new(), Encoding::of(&[])),
            Some(of) => {
                let encoding = function.encoding(of.tables.iter().map(String::as_str));
                self.store.check_encoding(&of.specs, &encoding).map_err(ReloadError::Unreadable)?;
                (of.tasks.clone(), encoding)
            }
        };
        self.check_config(operator, &function).await?;
        let from = self.running[operator].clone();
        // The component may have been put where the manifest points to first.
        let file = self.loaded.resolve(&self.loaded.manifest.operators[operator].component);
        let file_sha256 = std::fs::read(file).map_or_else(|_| from.file_sha256.clone(), |bytes| digest_of(&bytes));
        let to = RunningComponent { file_sha256, ..running(&function) };
        if to.sha256 != to.file_sha256 {
            self.kept.keep(&RealDisk, component)?;
        }
        let (done, is_done) = oneshot::channel();
        let store = Arc::clone(&self.store);
        let replace = Box::new(move || {
            store.encode(&tables.iter().map(|task| &**task).collect::<Vec<_>>(), encoding);
            slot.replace(function);
        });
        let swap = Swap { operator: operator.to_owned(), component: to.clone(), replace, trial, done };
        let epoch = match self.swaps.send(swap) {
            Ok(()) => is_done.await.map_err(|_| ReloadError::Ended)?.map_err(ReloadError::RolledBack)?,
            Err(_) => return Err(ReloadError::Ended),
        };
        self.running.insert(operator.to_owned(), to.clone());
        // No start begins from an older epoch any more.
        if let Err(error) = self.kept.retain(&RealDisk, &needed(&self.running)) {
            tracing::warn!(%error, "removing components that no longer run failed");
        }
        Ok(Reloaded { operator: operator.to_owned(), epoch, from, to })
    }

    /// Whether the job can go back.
    fn check_trial(&self, trial: Trial) -> Result<(), ReloadError> {
        trial.check().map_err(ReloadError::NoTrial)?;
        let is_read_once = |source: &&Source| matches!(source, Source::Stdin(_));
        match self.loaded.manifest.sources.values().find(is_read_once) {
            None => Ok(()),
            Some(_) => Err(ReloadError::NoTrial(
                "a job that reads standard input cannot go back, since that cannot be read again: reload without a trial"
                    .to_owned(),
            )),
        }
    }

    /// Whether the job can go on with `function` as it is planned.
    fn check(&self, operator: &str, function: &Function) -> Result<(), ReloadError> {
        let mut all = self.declared();
        let (was, now) = (&all[operator], self.as_planned(operator, declared(function)));
        compare(was, &now).map_err(ReloadError::Misfit)?;
        all.insert(operator.to_owned(), now);
        match Plan::new(&self.graph, self.plan.workers, &all) {
            Ok((plan, _)) if plan == self.plan => Ok(()),
            Ok(_) => Err(ReloadError::Misfit("the job would be planned in another way".to_owned())),
            Err(findings) => {
                let messages: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
                Err(ReloadError::Misfit(messages.join("; ")))
            }
        }
    }

    /// What all functions that run declare.
    fn declared(&self) -> BTreeMap<String, Declared> {
        let of = |(name, slot): (&String, &Arc<Slot<Function>>)| {
            (name.clone(), self.as_planned(name, declared(&*slot.current())))
        };
        self.slots.iter().map(of).collect()
    }

    /// What a function declares, with the schema versions of the job's start: the plan bears them, and depends on none of them.
    fn as_planned(&self, operator: &str, mut declared: Declared) -> Declared {
        let place = self.graph.operators.iter().position(|node| node.name == operator);
        let planned = place.map(|place| self.plan.operators[place].tables.as_slice()).unwrap_or_default();
        for (name, version) in &mut declared.tables {
            let table = planned.iter().find(|table| table.name == *name);
            *version = table.map_or(*version, |table| table.schema_version);
        }
        declared
    }

    /// Whether it takes the operator's config, within its limits.
    async fn check_config(&self, operator: &str, function: &Function) -> Result<(), ReloadError> {
        let manifest = &self.loaded.manifest.operators[operator];
        let surroundings = Surroundings {
            operator,
            limits: limits_of(manifest),
            state: Arc::new(Nothing),
            others: Arc::new(Nothing),
            uses: Arc::default(),
            config: &manifest.config_json().to_string(),
        };
        function.instance(surroundings).await?;
        Ok(())
    }
}

/// What runs when `function` does, as the manifest names it.
pub(super) fn running(function: &Function) -> RunningComponent {
    RunningComponent {
        sha256: function.sha256(),
        file_sha256: function.sha256(),
        name: function.description.name.clone(),
        version: function.description.version.clone(),
    }
}

/// The digests of the components that have to be kept: those that run though the manifest names others.
pub(super) fn needed(running: &BTreeMap<String, RunningComponent>) -> BTreeSet<String> {
    let reloaded = running.values().filter(|component| component.sha256 != component.file_sha256);
    reloaded.map(|component| component.sha256.clone()).collect()
}

/// Whether what a component declares `now` fits where it declared what it `was`.
fn compare(was: &Declared, now: &Declared) -> Result<(), String> {
    let names =
        |declared: &Declared| -> BTreeSet<String> { declared.tables.iter().map(|(name, _)| name.clone()).collect() };
    let as_set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    let differ = |what: &str, was: &BTreeSet<String>, now: &BTreeSet<String>| match was == now {
        true => Ok(()),
        false => {
            let [was, now] = [was, now].map(|names| match names.is_empty() {
                true => "none".to_owned(),
                false => listed(names.iter().map(String::as_str)),
            });
            Err(format!("its {what} are {now}, those of the version that runs {was}"))
        }
    };
    differ("tables", &names(was), &names(now))?;
    differ("open tables", &as_set(&was.open), &as_set(&now.open))?;
    differ("ordered tables", &as_set(&was.ordered), &as_set(&now.ordered))?;
    let spans =
        |declared: &Declared| declared.versioned.iter().map(|(name, span)| format!("{name} ({span} ms)")).collect();
    differ("versioned tables", &spans(was), &spans(now))?;
    differ("uses", &as_set(&was.uses), &as_set(&now.uses))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_table(name: &str, version: u32) -> Declared {
        Declared { tables: vec![(name.to_owned(), version)], ..Declared::default() }
    }

    #[test]
    fn what_would_change_the_plan_is_refused_by_name() {
        let was = with_table("sums", 1);
        assert_eq!(compare(&was, &was), Ok(()));
        let refused = |now: &Declared| compare(&was, now).unwrap_err();
        assert_eq!(refused(&with_table("totals", 1)), "its tables are `totals`, those of the version that runs `sums`");
        assert_eq!(compare(&was, &with_table("sums", 2)), Ok(()));
        let used = Declared { uses: vec!["rates".to_owned()], ..was.clone() };
        assert_eq!(refused(&used), "its uses are `rates`, those of the version that runs none");
        let opened = Declared { open: vec!["sums".to_owned()], ..was.clone() };
        assert_eq!(refused(&opened), "its open tables are `sums`, those of the version that runs none");
    }

    #[test]
    fn components_are_kept_where_the_manifest_names_others() {
        let component = |sha256: &str| RunningComponent {
            sha256: sha256.to_owned(),
            file_sha256: "a".to_owned(),
            name: "f".to_owned(),
            version: "1".to_owned(),
        };
        let running = [("x", "a"), ("y", "b")].map(|(name, sha256)| (name.to_owned(), component(sha256)));
        assert_eq!(needed(&running.into()), BTreeSet::from(["b".to_owned()]));
    }
}
