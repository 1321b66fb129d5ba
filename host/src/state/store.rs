//! The state of a running job: opens the directory, commits epochs, hands tables to tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::epochs::{Committed, Epochs, Retention};
use super::feeder::{FeedLimits, Feeder};
use super::identity::{self, DirectoryLock, Identity, Paths};
use super::migration::Held;
use super::recover::recover;
use super::redb::{Room, Storage};
use super::{Encoding, Pressure, StateError, TableSpec, TaskTables};
use crate::disk::Disk;
use crate::disk::crash::CrashDisk;
use crate::epoch::entry::{Entry, TableName};
use crate::epoch::log::{AppendStats, Log, LogError, Survey};
use crate::epoch::standing::{Decision, Standing};
use crate::epoch::{Attempt, Epoch, JobId, attempts};
use crate::time::Clock;

/// redb's cache takes this part of the memory, within the two bounds.
const REDB_CACHE_PART: u64 = 8;
const REDB_CACHE_BYTES_MIN: u64 = 1 << 20;
const REDB_CACHE_BYTES_MAX: u64 = 256 << 20;
/// redb is fed when what waits for it takes this part of the memory.
const BACKLOG_PART: u64 = 4;
/// redb is fed when the oldest epoch that waits is this old, unless the caller says otherwise. A key that changes again meanwhile is written once.
const FEED_AGE: Duration = Duration::from_secs(20);
/// The changes behind the oldest readable epoch may take this part of the memory, unless the caller says otherwise.
const RETAINED_PART: u64 = 8;
/// Tables are relieved of what redb holds, too, before memory is full: when less than this part of it is free.
const EASE_PART: u64 = 8;

/// How a state directory is to be used.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The number of partitions of the job.
    pub partitions: u16,
    /// What tables, what waits for redb, and redb's cache may use together.
    pub memory_bytes: u64,
    /// How many committed epochs stay readable, at least 1.
    pub retained: u32,
    /// The bytes of changes up to which that holds: an epoch is dropped early when those behind it pass this. Default: an eighth of `memory_bytes`.
    pub retained_bytes: Option<u64>,
    /// redb is fed when the oldest epoch that it lacks is this old, if not before.
    pub feed_age: Duration,
    /// The clock that `feed_age` and statistics go by.
    pub clock: Clock,
    /// For tests: the double that holds redb's file, too. There is no lock then.
    pub double: Option<CrashDisk>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            partitions: 128,
            memory_bytes: 1 << 30,
            retained: 1,
            retained_bytes: None,
            feed_age: FEED_AGE,
            clock: Clock::system(),
            double: None,
        }
    }
}

/// A state directory, opened.
#[derive(Debug)]
pub struct Opened {
    /// For tasks, and for whoever watches memory.
    pub store: Arc<StateStore>,
    /// For the thread that commits epochs.
    pub committer: Committer,
    /// The job's id: what else belongs to the job may carry it, too.
    pub job: JobId,
    /// The number of this start.
    pub attempt: Attempt,
    /// The last committed entry, without its deltas; `None` where nothing was committed yet.
    pub last: Option<Entry>,
    /// Entries that are committed and not noted as published, oldest first, `last` among them when it is; without their deltas.
    pub unpublished: Vec<Entry>,
    /// What the caller gave at the first start: to be compared with what it gave now.
    pub fingerprint: serde_json::Value,
    /// The tables that the state holds, with the schema versions of their values as they are stored: see [`super::versions::VERSIONED`].
    pub tables: BTreeMap<TableName, BTreeSet<u32>>,
}

/// The half that makes epochs durable. One thread owns it.
#[derive(Debug)]
pub struct Committer {
    log: Log,
    store: Arc<StateStore>,
}

/// What a commit took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// The time spent in writing and syncing the `committed` file.
    pub sync: Duration,
}

impl Committer {
    /// Makes an entry durable, but not yet committed: nothing of it may be published.
    ///
    /// # Errors
    /// When it cannot be written, or is not the epoch behind the last committed one. The job has to stop then.
    pub fn append(&mut self, entry: &Entry) -> Result<AppendStats, StateError> {
        Ok(self.log.append(entry)?)
    }

    /// Commits the entry appended last, and hands its deltas on to redb's feeder.
    ///
    /// # Errors
    /// When it cannot be written. Whether the epoch is committed is then found at the next start; the job has to stop.
    pub fn commit(&mut self, entry: Entry) -> Result<CommitStats, StateError> {
        let clock = &self.store.clock;
        let start = clock.now();
        self.log.commit(entry.epoch)?;
        let sync = clock.now().saturating_sub(start);
        self.store.feeder.submit(entry.epoch, self.log.digest(), entry.deltas);
        // What stays lying costs space, nothing else.
        if let Err(error) = self.log.release(self.store.durable_epoch()) {
            tracing::warn!(%error, "removing old log entries failed");
        }
        Ok(CommitStats { sync })
    }

    /// The last committed epoch; 0 when there is none.
    pub fn committed(&self) -> Epoch {
        self.log.committed()
    }
}

/// Memory in use, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// All tables of all tasks.
    pub tables_bytes: u64,
    /// Committed changes that wait for redb, with what finds a key among them. What tables hold, too, is counted twice.
    pub backlog_bytes: u64,
    /// redb's cache at its fullest.
    pub redb_cache_bytes: u64,
    /// What they may use together.
    pub budget_bytes: u64,
}

/// What tasks, feeder and store look at together.
#[derive(Debug)]
pub(super) struct Shared {
    room: Room,
    partitions: u16,
    memory_bytes: u64,
    redb_cache_bytes: u64,
    tables_bytes: AtomicU64,
    durable: AtomicU64,
    committed: Committed,
    feed_cpu_ns: AtomicU64,
    hushed: AtomicBool,
    held: Mutex<Held>,
    /// Held as long as redb is open, by whomever.
    _lock: Option<DirectoryLock>,
}

impl Shared {
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// The schema versions of stored values.
    pub(super) fn held(&self) -> &Mutex<Held> {
        &self.held
    }

    pub(super) fn partitions(&self) -> u16 {
        self.partitions
    }

    /// The epoch that redb holds durably.
    pub(super) fn durable(&self) -> Epoch {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn set_durable(&self, epoch: Epoch) {
        self.durable.store(epoch, Ordering::Release);
    }

    /// The committed epochs.
    pub(super) fn committed(&self) -> &Committed {
        &self.committed
    }

    /// Accounts for memory of tables.
    pub(super) fn grow_tables(&self, added: u64, freed: u64) {
        self.tables_bytes.fetch_add(added.wrapping_sub(freed), Ordering::Relaxed);
    }

    /// Accounts for processor time of the feeder.
    pub(super) fn add_feed_cpu(&self, time: Duration) {
        self.feed_cpu_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether background work is to step aside.
    pub(super) fn is_hushed(&self) -> bool {
        self.hushed.load(Ordering::Relaxed)
    }

    /// The bytes used beside redb's cache.
    pub(super) fn used(&self) -> u64 {
        self.tables_bytes.load(Ordering::Relaxed) + self.committed.bytes()
    }

    /// The bytes that may be used beside redb's cache.
    pub(super) fn budget(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.redb_cache_bytes)
    }

    pub(super) fn pressure(&self) -> Pressure {
        let (used, budget) = (self.used(), self.budget());
        match used {
            _ if used <= budget - budget / EASE_PART => Pressure::Calm,
            _ if used <= budget => Pressure::Over,
            _ => Pressure::Full,
        }
    }
}

/// As long as it lives, feeding redb steps aside.
#[derive(Debug)]
pub struct Hush(Arc<Shared>);

impl Drop for Hush {
    fn drop(&mut self) {
        self.0.hushed.store(false, Ordering::Relaxed);
    }
}

/// A state directory that is locked and looked at, with nothing changed but what its making takes.
#[derive(Debug)]
struct Found {
    disk: Arc<dyn Disk>,
    storage: Storage,
    paths: Paths,
    options: OpenOptions,
    identity: Identity,
    survey: Survey,
    lock: Option<DirectoryLock>,
}

impl Found {
    fn new(
        dir: &Path,
        disk: Arc<dyn Disk>,
        fingerprint: &serde_json::Value,
        options: OpenOptions,
    ) -> Result<Self, StateError> {
        let paths = Paths::new(dir);
        let storage = options.double.clone().map_or(Storage::File, Storage::Double);
        disk.create_directory(dir).map_err(|error| StateError::Io { action: "create", path: dir.to_owned(), error })?;
        let lock = if options.double.is_some() { None } else { Some(DirectoryLock::take(&paths)?) };
        let identity = identify(&*disk, &storage, &paths, fingerprint, options.partitions)?;
        let survey = Survey::new(&*disk, &paths.directory, identity.job)?;
        Ok(Self { disk, storage, paths, options, identity, survey, lock })
    }

    /// Carries out what the survey says, and opens everything behind it: as one of several hosts for the attempt that was `granted`, else for the next.
    fn open(self, granted: Option<Attempt>) -> Result<Opened, StateError> {
        let Self { disk, storage, paths, options, identity, survey, lock } = self;
        let memory_bytes = options.memory_bytes;
        let redb_cache_bytes = (memory_bytes / REDB_CACHE_PART).clamp(REDB_CACHE_BYTES_MIN, REDB_CACHE_BYTES_MAX);
        let recovered = recover(&*disk, &storage, &paths, &identity, survey, redb_cache_bytes)?;
        let attempt = match granted {
            Some(attempt) => {
                attempts::record(&*disk, &paths.attempt, identity.job, attempt)?;
                attempt
            }
            None => attempts::next(&*disk, &paths.attempt, identity.job, 0)?,
        };
        if attempt <= recovered.survey.attempt() {
            let what = format!(
                "it says that start {attempt} comes next, but the log has an entry of start {}",
                recovered.survey.attempt()
            );
            return Err(StateError::Damaged { path: paths.attempt, what });
        }
        let published = recovered.last.as_ref().map_or(0, |last| last.published);
        let mut log = Log::open(disk, options.clock.clone(), recovered.survey, published, granted.is_some())?;
        log.release(recovered.meta.epoch)?;

        let looked_at = Arc::new(Shared {
            room: recovered.room,
            partitions: identity.partitions,
            memory_bytes,
            redb_cache_bytes,
            tables_bytes: AtomicU64::new(0),
            durable: AtomicU64::new(recovered.meta.epoch),
            committed: Committed::new(
                Retention {
                    epochs: options.retained,
                    bytes_max: options.retained_bytes.unwrap_or(memory_bytes / RETAINED_PART),
                },
                recovered.meta.epoch,
            ),
            feed_cpu_ns: AtomicU64::new(0),
            hushed: AtomicBool::new(false),
            held: Mutex::new(Held::new(recovered.tables.clone())),
            _lock: lock,
        });
        let limits = FeedLimits { backlog_bytes_max: memory_bytes / BACKLOG_PART, age_max: options.feed_age };
        let clock = options.clock;
        let feeder = Feeder::start(looked_at.clone(), limits, clock.clone(), recovered.meta.tables, recovered.unfed)?;
        let store = Arc::new(StateStore { shared: looked_at, feeder, clock });
        Ok(Opened {
            committer: Committer { log, store: store.clone() },
            store,
            job: identity.job,
            attempt,
            last: recovered.last,
            unpublished: recovered.unpublished,
            fingerprint: identity.fingerprint,
            tables: recovered.tables,
        })
    }
}

/// The state directory of one of several hosts, held until it is decided what becomes of what is prepared in it.
#[derive(Debug)]
pub struct Undecided {
    found: Found,
    /// The highest attempt that it has recorded.
    recorded: Attempt,
}

impl Undecided {
    /// What it holds.
    pub fn standing(&self) -> Standing {
        let standing = self.found.survey.standing();
        Standing { attempt: self.recorded.max(standing.attempt()), ..standing }
    }

    /// The directory's id.
    pub fn job(&self) -> JobId {
        self.found.identity.job
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.found.paths.directory
    }

    /// What the caller gave when the directory was made: to be compared with what it gave now.
    pub fn fingerprint(&self) -> &serde_json::Value {
        &self.found.identity.fingerprint
    }

    /// Commits or drops what is prepared, as `decision` says, and opens the directory for `attempt`.
    ///
    /// # Errors
    /// When the directory does not fit the decision, and as [`StateStore::open`].
    pub fn open(mut self, attempt: Attempt, decision: Decision) -> Result<Opened, StateError> {
        self.found.survey.settle(decision)?;
        self.found.open(Some(attempt))
    }
}

/// The state of a running job.
#[derive(Debug)]
pub struct StateStore {
    shared: Arc<Shared>,
    feeder: Feeder,
    clock: Clock,
}

impl StateStore {
    /// Opens the state directory `dir`, or makes it when there is none.
    ///
    /// `fingerprint` is recorded when the directory is made; later starts get the recorded one back in [`Opened::fingerprint`].
    ///
    /// # Errors
    /// When it is locked, damaged, of a newer format, or the system refuses. Never starts from nothing, or from an older epoch, instead.
    pub fn open(
        dir: &Path,
        disk: Arc<dyn Disk>,
        fingerprint: &serde_json::Value,
        options: OpenOptions,
    ) -> Result<Opened, StateError> {
        let found = Found::new(dir, disk, fingerprint, options)?;
        if found.survey.is_shared() {
            return Err(LogError::Shared { path: dir.to_owned() }.into());
        }
        found.open(None)
    }

    /// Looks at the state directory `dir` of one of several hosts, or makes it when there is none, and holds it until the leader's decision on what is prepared in it: as
    /// long as that is not known, nothing of it is published, fed, or run on.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub fn look(
        dir: &Path,
        disk: Arc<dyn Disk>,
        fingerprint: &serde_json::Value,
        options: OpenOptions,
    ) -> Result<Undecided, StateError> {
        let found = Found::new(dir, disk, fingerprint, options)?;
        let recorded = attempts::last(&*found.disk, &found.paths.attempt, found.identity.job)?;
        Ok(Undecided { found, recorded })
    }

    /// The tables of a task, with what the state holds for its partitions as of the last committed epoch.
    ///
    /// # Errors
    /// When stored values have another schema version, or cannot be read.
    pub fn open_task(&self, partitions: Range<u16>, tables: &[TableSpec]) -> Result<Arc<TaskTables>, StateError> {
        self.open_task_as(partitions, tables, Encoding::of(tables))
    }

    /// As [`StateStore::open_task`], with values that are read and written as `encoding` says.
    ///
    /// # Errors
    /// When stored values have a schema version that it does not read, or cannot be read.
    pub fn open_task_as(
        &self,
        partitions: Range<u16>,
        tables: &[TableSpec],
        encoding: Encoding,
    ) -> Result<Arc<TaskTables>, StateError> {
        self.check_encoding(tables, &encoding)?;
        let open = self.shared.committed.newest() + 1;
        let mut task = TaskTables::new(self.shared.clone(), partitions.clone(), tables.to_vec(), open);
        self.set_encoding(&[&task], encoding, true);
        // In this order: what is fed between the two is in both, which does no harm.
        let waiting = self.shared.committed.waiting();
        task.preload(&self.shared.room.snapshot())?;
        for delta in waiting {
            for changes in delta.tables() {
                let Some(table) = tables.iter().position(|spec| spec.name == changes.table) else { continue };
                for part in changes.partitions.iter().filter(|part| partitions.contains(&part.partition.0)) {
                    task.load_committed(table, part.partition, &part.cells, delta.epoch);
                }
            }
        }
        Ok(Arc::new(task))
    }

    /// Whether all values that the state may hold of `tables` can be read as `encoding` says.
    ///
    /// # Errors
    /// With a schema version that cannot.
    pub fn check_encoding(&self, tables: &[TableSpec], encoding: &Encoding) -> Result<(), StateError> {
        let held = self.shared.held.lock();
        let declared = tables.iter().zip(&encoding.versions).zip(&encoding.readable);
        declared.into_iter().try_for_each(|((spec, version), readable)| held.check(spec, *version, readable))
    }

    /// From here on, the values of all of an operator's `tasks` are read and written as `encoding` says, which [`StateStore::check_encoding`] has found good. The tasks must stand still, with
    /// nothing unsealed.
    pub fn encode(&self, tasks: &[&TaskTables], encoding: Encoding) {
        self.set_encoding(tasks, encoding, false);
    }

    /// `more` says that these are not all tasks of the operator, but some that are being opened.
    fn set_encoding(&self, tasks: &[&TaskTables], encoding: Encoding, more: bool) {
        let Some(specs) = tasks.first().map(|task| task.specs()) else { return };
        let mut held = self.shared.held.lock();
        let write =
            |(spec, version): (&TableSpec, &u32)| held.write(&spec.name, spec.as_stored(*version), tasks.len(), more);
        let mixed = specs.iter().zip(&encoding.versions).map(write).filter(|mixed| *mixed).count() > 0;
        let encoding = Arc::new(encoding);
        tasks.iter().for_each(|task| task.set_encoding(Arc::clone(&encoding), mixed));
    }

    /// Feeds redb up to the last committed epoch (less those retained), and waits for it.
    ///
    /// # Errors
    /// When the feeder failed, now or before.
    pub fn flush(&self) -> Result<Epoch, StateError> {
        self.feeder.flush()?;
        Ok(self.durable_epoch())
    }

    /// [`StateStore::flush`], then ends the feeder: for the end of the job. Without it, the next start feeds redb from the log.
    ///
    /// # Errors
    /// As [`StateStore::flush`].
    pub fn close(&self) -> Result<(), StateError> {
        let flushed = self.feeder.flush();
        self.feeder.stop();
        flushed
    }

    /// Asks the feeding of redb to step aside until the guard is dropped: while a seal waits for its drain, tasks need the cores.
    pub fn hush(&self) -> Hush {
        self.shared.hushed.store(true, Ordering::Relaxed);
        Hush(Arc::clone(&self.shared))
    }

    /// How memory stands against its budget.
    pub fn pressure(&self) -> Pressure {
        self.shared.pressure()
    }

    /// What is in use.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            tables_bytes: self.shared.tables_bytes.load(Ordering::Relaxed),
            backlog_bytes: self.shared.committed.bytes(),
            redb_cache_bytes: self.shared.redb_cache_bytes,
            budget_bytes: self.shared.memory_bytes,
        }
    }

    /// The committed epochs, to read them.
    pub fn epochs(&self) -> Epochs {
        Epochs(self.shared.clone())
    }

    /// The processor time that feeding redb has taken.
    pub fn feed_cpu(&self) -> Duration {
        Duration::from_nanos(self.shared.feed_cpu_ns.load(Ordering::Relaxed))
    }

    /// The epoch that redb holds durably.
    pub fn durable_epoch(&self) -> Epoch {
        self.shared.durable()
    }

    /// Whether the background still works.
    ///
    /// # Errors
    /// What the feeder failed with.
    pub fn check(&self) -> Result<(), StateError> {
        self.feeder.check()
    }
}

/// Finds out whose the directory is, or makes it.
fn identify(
    disk: &dyn Disk,
    storage: &Storage,
    paths: &Paths,
    fingerprint: &serde_json::Value,
    partitions: u16,
) -> Result<Identity, StateError> {
    let identity = match identity::load(disk, paths)? {
        Some(identity) => identity,
        None => {
            let identity = Identity { job: identity::draw_job_id(), partitions, fingerprint: fingerprint.clone() };
            identity::create(disk, storage, paths, &identity)?;
            identity
        }
    };
    identity::finish_creation(disk, paths)?;
    if identity.partitions != partitions {
        return Err(StateError::PartitionCount {
            path: paths.identity.clone(),
            stored: identity.partitions,
            declared: partitions,
        });
    }
    Ok(identity)
}
