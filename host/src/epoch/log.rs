//! The epoch log: one durable entry an epoch, and the `committed` file that says how far they count.
//!
//! [`Survey`] looks at what a state directory holds and changes nothing; [`Log`] carries out what the survey decided, and goes on behind it. How an entry
//! lies in its file is `codec`'s business, what counts after a crash is [`super::recovery`]'s. Entries are files `log/<epoch, 20 digits>.entry`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::codec::{self, DecodeError, Decoded};
use super::entry::Entry;
use super::recovery::{self, Damage, Found};
use super::slots::{self, Record, Slot, SlotsError};
use super::standing::{self, Misfit, Standing, Verdict};
use super::{Attempt, Digest, Epoch, JobId};
use crate::disk::Disk;
use crate::time::Clock;

const COMMITTED_MAGIC: slots::Magic = b"WASMILLC";
const SUFFIX: &str = ".entry";
const EPOCH_DIGITS: usize = 20;

/// What writing an entry took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppendStats {
    /// The entry's length.
    pub bytes: u64,
    /// The entry's digest.
    pub digest: Digest,
    /// The time spent in encoding and writing.
    pub write: Duration,
    /// The time spent in syncing the file and its name.
    pub sync: Duration,
}

/// Why the log refuses. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused something.
    #[error("{action} `{path}`: {error}")]
    Io {
        /// What was tried: "read", "write", …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file is missing or damaged.
    #[error(
        "use `{path}`: {what}; restore the whole state directory from a copy, or remove it AND the job's output to start from nothing"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file belongs to another state directory.
    #[error(
        "use `{path}`: it belongs to the state of job {found}, but this directory is that of job {job}; put back the file that belongs here"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: JobId,
        /// Whose the directory is.
        job: JobId,
    },
    /// A file was written by a newer version of the program.
    #[error("use `{path}`: it has format version {found}, this program knows up to {known}; use the newer program")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// The state directory of one of several hosts does not fit the commit record.
    #[error("{misfit} (`{path}`)")]
    Misfit {
        /// The state directory.
        path: PathBuf,
        /// What does not fit.
        misfit: Misfit,
    },
    /// The state directory is that of one of several hosts.
    #[error(
        "use the state in `{path}` alone: it is one host's part of a job on several hosts; run all of them, each with `--host`, or bring all parts together by `wasmill rescale` \
         with `job.state` set to the directory that they lie in"
    )]
    Shared {
        /// The state directory.
        path: PathBuf,
    },
    /// The commit record was written for other hosts.
    #[error(
        "use `{path}`: it names the hosts {stored}, but the manifest lists {declared}; move the state to these by `wasmill rescale`, or put the list back as it was"
    )]
    Hosts {
        /// The file.
        path: PathBuf,
        /// The hosts that it names.
        stored: String,
        /// The manifest's.
        declared: String,
    },
    /// An epoch came out of turn: our fault.
    #[error("write epoch {epoch}: {expected} was expected")]
    Order {
        /// The epoch.
        epoch: Epoch,
        /// What should have come.
        expected: String,
    },
    /// An earlier write failed, so that what is on disk is uncertain.
    #[error("write to the log in `{path}` after an earlier failure; start the job again")]
    Failed {
        /// The log's directory.
        path: PathBuf,
    },
}

/// Where the parts of a log lie.
#[derive(Debug, Clone)]
struct Layout {
    directory: PathBuf,
    entries: PathBuf,
    committed: PathBuf,
}

impl Layout {
    fn new(state_directory: &Path) -> Self {
        Self {
            directory: state_directory.to_owned(),
            entries: state_directory.join("log"),
            committed: state_directory.join("committed"),
        }
    }

    fn entry(&self, epoch: Epoch) -> PathBuf {
        self.entries.join(format!("{epoch:020}{SUFFIX}"))
    }
}

/// What a state directory holds, and what it means. Nothing was changed.
#[derive(Debug)]
pub struct Survey {
    job: JobId,
    layout: Layout,
    committed: Record,
    adopted: bool,
    dropped: Vec<Epoch>,
    /// The entry that only the commit record decides on.
    prepared: Option<Record>,
    /// Whether a slot is torn that only a commit of `prepared` explains.
    torn: bool,
    present: BTreeSet<Epoch>,
    /// The entries that deciding took, so that they are not read twice.
    seen: BTreeMap<Epoch, Decoded>,
}

impl Survey {
    /// Looks at the log in `state_directory` of `job`.
    ///
    /// # Errors
    /// When a file cannot be read, is foreign or newer, or when what is there cannot be a crash's work.
    pub fn new(disk: &dyn Disk, state_directory: &Path, job: JobId) -> Result<Self, LogError> {
        let layout = Layout::new(state_directory);
        let slots = read_committed(disk, &layout.committed, job)?;
        let present = present_entries(disk, &layout.entries)?;
        let mut seen = BTreeMap::new();
        let mut failure = None;
        let decision = recovery::decide(slots, present.last().copied(), |epoch| {
            match read_entry(disk, &layout.entry(epoch), job, epoch) {
                Ok(EntryFile::Whole(decoded)) => {
                    let found = Found::Whole {
                        attempt: decoded.entry.attempt,
                        previous: decoded.previous,
                        digest: decoded.digest,
                        shared: decoded.shared,
                    };
                    seen.insert(epoch, *decoded);
                    found
                }
                Ok(EntryFile::Absent) => Found::Absent,
                Ok(EntryFile::Invalid(_)) => Found::Invalid,
                Err(error) => {
                    failure.get_or_insert(error);
                    Found::Invalid
                }
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let decision = decision.map_err(|damage| damaged(&layout, damage))?;
        Ok(Self {
            job,
            layout,
            committed: decision.committed,
            adopted: decision.adopted,
            dropped: decision.dropped,
            prepared: decision.prepared,
            torn: decision.torn,
            present,
            seen,
        })
    }

    /// What the directory of one of several hosts holds, apart from the attempts that it has recorded.
    pub fn standing(&self) -> Standing {
        Standing {
            attempt: self.committed.attempt,
            committed: self.committed.into(),
            prepared: self.prepared.map(Into::into),
        }
    }

    /// Whether the directory is that of one of several hosts, as far as its entries tell.
    pub fn is_shared(&self) -> bool {
        let is_shared = |record: &Record| self.seen.get(&record.number).is_some_and(|entry| entry.shared);
        self.prepared.is_some() || is_shared(&self.committed)
    }

    /// Takes the decision on the prepared entry: [`Log::open`] carries it out.
    ///
    /// # Errors
    /// When the directory cannot be one of the job that the decision is of, or is damaged.
    pub fn settle(&mut self, decision: standing::Decision) -> Result<Verdict, LogError> {
        let misfit = |misfit| LogError::Misfit { path: self.layout.directory.clone(), misfit };
        let verdict = standing::judge(self.standing(), decision).map_err(misfit)?;
        match (verdict, self.prepared.take()) {
            (Verdict::Commit, Some(prepared)) => (self.committed, self.adopted) = (prepared, true),
            (Verdict::Drop, Some(_)) if self.torn => {
                return Err(damaged(&self.layout, Damage::OneSlot(self.committed.number)));
            }
            (Verdict::Drop, Some(prepared)) => {
                tracing::info!(
                    epoch = prepared.number,
                    attempt = prepared.attempt,
                    "dropping a prepared entry: the commit record does not name it"
                );
                self.dropped.push(prepared.number);
            }
            (_, prepared) => self.prepared = prepared,
        }
        Ok(verdict)
    }

    /// The last committed epoch; 0 when there is none.
    pub fn committed(&self) -> Epoch {
        self.committed.number
    }

    /// The digest of the last committed epoch's entry.
    pub fn digest(&self) -> Digest {
        self.committed.digest
    }

    /// The attempt that sealed the last committed epoch.
    pub fn attempt(&self) -> Attempt {
        self.committed.attempt
    }

    /// The last committed epoch's entry.
    pub fn last(&self) -> Option<&Entry> {
        self.seen.get(&self.committed.number).map(|decoded| &decoded.entry)
    }

    /// The entries `first` up to the last committed epoch with their digests, oldest first, after a check that each follows from the one before,
    /// and the first from `previous`, where that is known.
    ///
    /// # Errors
    /// When one is missing, damaged, or comes from another history.
    pub fn entries(
        &mut self,
        disk: &dyn Disk,
        first: Epoch,
        previous: Option<Digest>,
    ) -> Result<Vec<(Entry, Digest)>, LogError> {
        let mut expected = previous;
        let mut entries = Vec::new();
        for epoch in first..=self.committed.number {
            let decoded = self.take(disk, epoch)?;
            if expected.is_some_and(|expected| expected != decoded.previous) {
                return Err(damaged(&self.layout, Damage::Chain(epoch)));
            }
            expected = Some(decoded.digest);
            entries.push((decoded.entry, decoded.digest));
        }
        let reaches_committed = first > self.committed.number || expected == Some(self.committed.digest);
        if reaches_committed { Ok(entries) } else { Err(damaged(&self.layout, Damage::Chain(self.committed.number))) }
    }

    fn take(&mut self, disk: &dyn Disk, epoch: Epoch) -> Result<Decoded, LogError> {
        if let Some(decoded) = self.seen.remove(&epoch) {
            return Ok(decoded);
        }
        whole_entry(disk, &self.layout, self.job, epoch)
    }
}

/// The log, open for writing. One thread owns it.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    clock: Clock,
    job: JobId,
    layout: Layout,
    committed: Record,
    appended: Option<Appended>,
    present: BTreeSet<Epoch>,
    /// What the last committed entry notes as published: younger entries are still needed to recover the sinks.
    published: Epoch,
    /// Whether entries are one host's part of epochs of several hosts.
    shared: bool,
    failed: bool,
}

/// An entry that is durable, but not committed.
#[derive(Debug, Clone, Copy)]
struct Appended {
    record: Record,
    published: Epoch,
}

impl Log {
    /// Makes an empty log in `state_directory`, durable but for the names in that directory itself.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(disk: &dyn Disk, state_directory: &Path, job: JobId) -> Result<(), LogError> {
        let layout = Layout::new(state_directory);
        disk.create_directory(&layout.entries).map_err(failed_to("create", &layout.entries))?;
        slots::create(disk, &layout.committed, COMMITTED_MAGIC, job, Record::default())
            .map_err(failed_to("write", &layout.committed))
    }

    /// Makes the log of a directory whose first entry is the one behind epoch `base.number`, which others hold: nothing of that epoch is here. Durable but for the names in `state_directory`
    /// itself once that entry is committed.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn begin(
        disk: Arc<dyn Disk>,
        clock: Clock,
        state_directory: &Path,
        job: JobId,
        base: Record,
        shared: bool,
    ) -> Result<Self, LogError> {
        Self::create(&*disk, state_directory, job)?;
        let layout = Layout::new(state_directory);
        let before = base.number.checked_sub(1).map(|number| Record { number, ..base });
        for record in before.into_iter().chain([base]) {
            slots::write(&*disk, &layout.committed, COMMITTED_MAGIC, job, record)
                .map_err(failed_to("write", &layout.committed))?;
        }
        let (present, published) = (BTreeSet::new(), base.number);
        Ok(Self {
            disk,
            clock,
            job,
            layout,
            committed: base,
            appended: None,
            present,
            published,
            shared,
            failed: false,
        })
    }

    /// Carries out what `survey` decided, and opens the log behind it. `published` is what the last committed entry notes, 0 without one; `shared` says that entries are one host's part of
    /// epochs of several hosts, and [`Survey::settle`] was called.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Clock,
        survey: Survey,
        published: Epoch,
        shared: bool,
    ) -> Result<Self, LogError> {
        let Survey { job, layout, committed, adopted, dropped, mut present, .. } = survey;
        if adopted {
            // Whoever wrote the entry may have stopped before it was synced.
            let path = layout.entry(committed.number);
            disk.sync_file(&path).map_err(failed_to("sync", &path))?;
            disk.sync_directory(&layout.entries).map_err(failed_to("sync", &layout.entries))?;
            slots::write(&*disk, &layout.committed, COMMITTED_MAGIC, job, committed)
                .map_err(failed_to("write", &layout.committed))?;
        } else {
            // So may whoever wrote the last record; it has to be there after a loss of power before an entry behind the next one is.
            disk.sync_file(&layout.committed).map_err(failed_to("sync", &layout.committed))?;
        }
        for epoch in dropped {
            let path = layout.entry(epoch);
            disk.remove(&path).map_err(failed_to("remove", &path))?;
            present.remove(&epoch);
        }
        Ok(Self { disk, clock, job, layout, committed, appended: None, present, published, shared, failed: false })
    }

    /// The last committed epoch; 0 when there is none.
    pub fn committed(&self) -> Epoch {
        self.committed.number
    }

    /// The digest of the last committed epoch's entry.
    pub fn digest(&self) -> Digest {
        self.committed.digest
    }

    /// Writes an entry and makes it durable. It counts only after [`Log::commit`].
    ///
    /// # Errors
    /// When it is not the epoch behind the committed one, or the system refuses; the log then takes nothing more.
    pub fn append(&mut self, entry: &Entry) -> Result<AppendStats, LogError> {
        self.check_usable()?;
        let expected = self.committed.number + 1;
        if entry.epoch != expected || self.appended.is_some() {
            return Err(LogError::Order { epoch: entry.epoch, expected: format!("epoch {expected}, once") });
        }
        self.failed = true;
        let path = self.layout.entry(entry.epoch);
        let start = self.clock.now();
        let (digest, bytes) = self.write_entry(&path, entry).map_err(failed_to("write", &path))?;
        let written = self.clock.now();
        self.disk.sync_file(&path).map_err(failed_to("sync", &path))?;
        self.disk.sync_directory(&self.layout.entries).map_err(failed_to("sync", &self.layout.entries))?;
        let synced = self.clock.now();
        self.failed = false;
        self.present.insert(entry.epoch);
        let record = Record { number: entry.epoch, attempt: entry.attempt, digest };
        self.appended = Some(Appended { record, published: entry.published });
        Ok(AppendStats { bytes, digest, write: written.saturating_sub(start), sync: synced.saturating_sub(written) })
    }

    fn write_entry(&self, path: &Path, entry: &Entry) -> io::Result<(Digest, u64)> {
        let mut file = self.disk.create(path)?;
        codec::encode(&mut file, self.job, self.committed.digest, entry, self.shared)
    }

    /// Commits the entry of `epoch`, appended before: from here on it counts, and may be published.
    ///
    /// # Errors
    /// When another epoch, or none, was appended, or the system refuses; the log then takes nothing more, and the next start finds
    /// out whether the epoch counts.
    pub fn commit(&mut self, epoch: Epoch) -> Result<(), LogError> {
        self.check_usable()?;
        let Some(appended) = self.appended.filter(|appended| appended.record.number == epoch) else {
            return Err(LogError::Order { epoch, expected: "its append".to_owned() });
        };
        self.failed = true;
        slots::write(&*self.disk, &self.layout.committed, COMMITTED_MAGIC, self.job, appended.record)
            .map_err(failed_to("write", &self.layout.committed))?;
        self.failed = false;
        self.committed = appended.record;
        self.published = appended.published;
        self.appended = None;
        Ok(())
    }

    /// Removes the entries of epochs up to `through`, whose changes are durable elsewhere. Those that are still needed stay: the last committed one, and
    /// what is not noted as published.
    ///
    /// # Errors
    /// When the system refuses. Nothing is lost by that but space.
    pub fn release(&mut self, through: Epoch) -> Result<(), LogError> {
        let last = through.min(self.published).min(self.committed.number.saturating_sub(1));
        while let Some(&epoch) = self.present.first().filter(|&&epoch| epoch <= last) {
            let path = self.layout.entry(epoch);
            // Not synced: an old entry that comes back after a crash is below everything that is looked at.
            self.disk.remove(&path).map_err(failed_to("remove", &path))?;
            self.present.remove(&epoch);
        }
        Ok(())
    }

    /// The entry of a committed epoch that was not released.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn read(&self, epoch: Epoch) -> Result<Entry, LogError> {
        if epoch > self.committed.number {
            return Err(LogError::Order { epoch, expected: "a committed epoch".to_owned() });
        }
        Ok(whole_entry(&*self.disk, &self.layout, self.job, epoch)?.entry)
    }

    fn check_usable(&self) -> Result<(), LogError> {
        if self.failed { Err(LogError::Failed { path: self.layout.entries.clone() }) } else { Ok(()) }
    }
}

/// An entry's file as it was read.
enum EntryFile {
    Absent,
    Invalid(String),
    Whole(Box<Decoded>),
}

fn read_entry(disk: &dyn Disk, path: &Path, job: JobId, epoch: Epoch) -> Result<EntryFile, LogError> {
    let bytes = match disk.read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(EntryFile::Absent),
        Err(error) => return Err(LogError::Io { action: "read", path: path.to_owned(), error }),
    };
    match codec::decode(&bytes) {
        Ok(decoded) if decoded.job != job => Err(LogError::Foreign { path: path.to_owned(), found: decoded.job, job }),
        Ok(decoded) if decoded.entry.epoch != epoch => Err(LogError::Damaged {
            path: path.to_owned(),
            what: format!("it holds the entry of epoch {}", decoded.entry.epoch),
        }),
        Ok(decoded) => Ok(EntryFile::Whole(Box::new(decoded))),
        Err(DecodeError::Invalid(what)) => Ok(EntryFile::Invalid(what.into_owned())),
        Err(DecodeError::Newer(found)) => {
            Err(LogError::Newer { path: path.to_owned(), found, known: codec::FORMAT_VERSION })
        }
    }
}

fn whole_entry(disk: &dyn Disk, layout: &Layout, job: JobId, epoch: Epoch) -> Result<Decoded, LogError> {
    let path = layout.entry(epoch);
    match read_entry(disk, &path, job, epoch)? {
        EntryFile::Whole(decoded) => Ok(*decoded),
        EntryFile::Absent => Err(damaged(layout, Damage::Missing(epoch))),
        EntryFile::Invalid(what) => Err(LogError::Damaged { path, what }),
    }
}

fn read_committed(disk: &dyn Disk, path: &Path, job: JobId) -> Result<[Slot; 2], LogError> {
    slots::read(disk, path, COMMITTED_MAGIC, job).map_err(|error| slots_error(path, job, error))
}

/// Says what is wrong with a file of two slots.
pub(crate) fn slots_error(path: &Path, job: JobId, error: SlotsError) -> LogError {
    let path = path.to_owned();
    match error {
        SlotsError::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            LogError::Damaged { path, what: "it is missing".to_owned() }
        }
        SlotsError::Io(error) => LogError::Io { action: "read", path, error },
        SlotsError::Foreign(found) => LogError::Foreign { path, found, job },
        SlotsError::Newer(found) => LogError::Newer { path, found, known: slots::FORMAT_VERSION },
    }
}

fn present_entries(disk: &dyn Disk, directory: &Path) -> Result<BTreeSet<Epoch>, LogError> {
    match disk.list(directory) {
        Ok(names) => Ok(names.iter().filter_map(|name| epoch_of(name)).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(LogError::Damaged { path: directory.to_owned(), what: "it is missing".to_owned() })
        }
        Err(error) => Err(LogError::Io { action: "list", path: directory.to_owned(), error }),
    }
}

fn epoch_of(name: &str) -> Option<Epoch> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_canonical = digits.len() == EPOCH_DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| is_canonical)
}

fn damaged(layout: &Layout, damage: Damage) -> LogError {
    let path = match damage {
        Damage::BothSlots | Damage::Slots | Damage::OneSlot(_) => layout.committed.clone(),
        Damage::Missing(epoch) | Damage::Entry(epoch) | Damage::Chain(epoch) | Damage::Beyond(epoch, _) => {
            layout.entry(epoch)
        }
    };
    LogError::Damaged { path, what: damage.to_string() }
}

fn failed_to<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> LogError + 'a {
    move |error| LogError::Io { action, path: path.to_owned(), error }
}
