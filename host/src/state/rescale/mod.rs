//! Moving the state of a job that does not run from the directories of some hosts to those of others.
//!
//! What moves where is the caller's to say; here is how it is done so that it may be interrupted at any moment. The directories of all hosts lie in one, the *root*; that of a job without
//! `[cluster]` is the root itself, and its host's name is empty here.
//!
//! 1. The new directories are written as `rescale.new` within the places where they are to be ([`Arriving`]), from what the old ones hold ([`Leaving`]). These are as they were: an interrupted
//!    move that has not come further has changed nothing, and begins anew.
//! 2. When the new ones are complete and durable, each old directory gets a file `rescale.moved`, which says where to. From here on it is not started any more. (Where the move is interrupted
//!    before the next step, the next one takes these marks back first.)
//! 3. The root gets `rescale.json`: epoch, old hosts, new hosts. With it the move is decided.
//! 4. Each old directory's files go to `rescale.before-EPOCH` within it, with a copy of `rescale.moved`; then each new one's come to their places, `job.json` last. Each step of it may be done
//!    again. Then `rescale.json` is removed.

mod arrive;
mod leave;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::arrive::{Arriving, Base};
pub use self::leave::Leaving;
use super::StateError;
pub use super::identity::draw_job_id as draw_id;
use super::identity::{self, DirectoryLock, Paths, exists, failed_to, write_file};
use crate::disk::Disk;
use crate::epoch::decided::{CommitRecord, Decided};
use crate::epoch::log::Survey;
use crate::epoch::{Epoch, JobId};

/// The mark that the move is decided.
const DECIDED: &str = "rescale.json";
/// What a state directory consists of, beside its lock. `job.json` first: without it, nothing starts.
const PARTS: [&str; 8] =
    ["job.json", "initialising", "attempt", "committed", "decided", "log", "state.redb", "components"];

/// What `rescale.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Decision {
    /// The epoch that was moved.
    epoch: Epoch,
    /// The hosts whose directories are put aside.
    from: BTreeSet<String>,
    /// The hosts whose directories come.
    to: BTreeSet<String>,
}

/// The hosts that a job's state lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Their names in their order; none of a job without `[cluster]`.
    pub hosts: Vec<String>,
    /// The leader, by its place.
    pub leader: usize,
    /// What the leader has decided.
    record: CommitRecord,
}

impl Layout {
    /// Their names, that of a job without `[cluster]` being empty.
    pub fn names(&self) -> Vec<String> {
        Self::names_of(&self.hosts)
    }

    /// The same of these `hosts`.
    pub fn names_of(hosts: &[String]) -> Vec<String> {
        if hosts.is_empty() { vec![String::new()] } else { hosts.to_vec() }
    }
}

/// The directories of a job, held so that nobody else uses them.
#[derive(Debug)]
pub struct Moving {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    locks: BTreeMap<PathBuf, DirectoryLock>,
}

impl Moving {
    /// Holds the directory `root`, and first completes a move there that was decided and interrupted; says whether there was one.
    ///
    /// # Errors
    /// When there is no such directory, it or a host's is in use, or the system refuses.
    pub fn begin(disk: Arc<dyn Disk>, root: &Path) -> Result<(Self, bool), StateError> {
        if !root.is_dir() {
            return Err(StateError::Absent { path: root.to_owned() });
        }
        let mut moving = Self { disk, root: root.to_owned(), locks: BTreeMap::new() };
        moving.hold("")?;
        let decided = moving.root.join(DECIDED);
        if !exists(&*moving.disk, &decided)? {
            return Ok((moving, false));
        }
        let bytes = moving.disk.read(&decided).map_err(failed_to("read", &decided))?;
        let decision = serde_json::from_slice(&bytes).map_err(|error| StateError::Damaged {
            path: decided.clone(),
            what: format!("it cannot be read: {error}"),
        })?;
        moving.carry_out(&decision)?;
        Ok((moving, true))
    }

    /// Where a host's directory is.
    pub fn directory(&self, host: &str) -> PathBuf {
        if host.is_empty() { self.root.clone() } else { self.root.join(host) }
    }

    fn hold(&mut self, host: &str) -> Result<Paths, StateError> {
        let paths = Paths::new(&self.directory(host));
        if !self.locks.contains_key(&paths.directory) {
            let create = self.disk.create_directory(&paths.directory);
            create.map_err(failed_to("create", &paths.directory))?;
            self.locks.insert(paths.directory.clone(), DirectoryLock::take(&paths)?);
        }
        Ok(paths)
    }

    /// Finds out which hosts the state lies on, and holds their directories. Directories within the root that `is_ours` does not know by their fingerprints are others' business.
    ///
    /// # Errors
    /// When there is no state, a host's is missing or in use, or it cannot be told which counts.
    pub fn find(&mut self, is_ours: impl Fn(&Value) -> bool) -> Result<Layout, StateError> {
        let root = self.root.clone();
        let unmovable = |what: String| StateError::Unmovable { path: root.clone(), what };
        let mut found = Vec::new();
        if let Some(identity) = identity::read(&*self.disk, &Paths::new(&self.root))? {
            let committed = self.committed("", identity.job)?;
            let record = CommitRecord { epoch: committed, ..CommitRecord::default() };
            found.push(Layout { hosts: Vec::new(), leader: 0, record });
        }
        let mut parts = BTreeSet::new();
        for name in self.directories()? {
            let paths = Paths::new(&self.directory(&name));
            let Some(identity) = identity::read(&*self.disk, &paths)? else { continue };
            if !is_ours(&identity.fingerprint) {
                continue;
            }
            self.hold(&name)?;
            let decided = Decided::look(Arc::clone(&self.disk), &paths.directory, identity.job)?;
            if let Some((record, hosts)) = decided {
                let leader = hosts.iter().position(|host| *host == name).ok_or_else(|| {
                    unmovable(format!("`{name}` leads the hosts `{}`, but is none of them", hosts.join("`, `")))
                })?;
                found.push(Layout { hosts, leader, record });
            }
            parts.insert(name);
        }
        // A host that was started on an empty directory has made one in which nothing was ever committed.
        if found.len() > 1 {
            found.retain(|layout| layout.record.epoch > 0);
        }
        let mut found = found.into_iter();
        let layout = match (found.next(), found.next()) {
            (Some(layout), None) => layout,
            (None, _) if parts.is_empty() => return Err(StateError::Absent { path: self.root.clone() }),
            (None, _) => {
                let parts = parts.into_iter().collect::<Vec<_>>().join("`, `");
                return Err(unmovable(format!(
                    "there are `{parts}`, but not the directory of the host that led them: put it back"
                )));
            }
            (Some(_), Some(_)) => {
                return Err(unmovable("it holds the state of several jobs, or of one in several forms: leave one, and move the others away".to_owned()));
            }
        };
        if let Some(missing) = layout.hosts.iter().find(|host| !parts.contains(*host)) {
            let directory = self.directory(missing);
            return Err(unmovable(format!(
                "the state of the host `{missing}` is not there: the directories of all hosts are needed, so put that one to `{}`",
                directory.display()
            )));
        }
        Ok(layout)
    }

    /// The directories within the root.
    fn directories(&self) -> Result<Vec<String>, StateError> {
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for item in std::fs::read_dir(&self.root)? {
                let item = item?;
                // Also one that a link leads to. A host's name is plain text.
                names.extend(item.file_name().into_string().ok().filter(|_| item.path().is_dir()));
            }
            Ok(names)
        };
        list().map_err(failed_to("list", &self.root))
    }

    fn committed(&self, host: &str, job: JobId) -> Result<Epoch, StateError> {
        Ok(Survey::new(&*self.disk, &self.directory(host), job)?.committed())
    }

    /// Opens the directories of `layout`.
    ///
    /// # Errors
    /// When one is in use, damaged, was not stopped cleanly, or was moved away and has been put back.
    pub fn leave(&mut self, layout: &Layout) -> Result<Vec<Leaving>, StateError> {
        let names = layout.names();
        let all = names.iter().map(|host| self.hold(host)).collect::<Result<Vec<_>, _>>()?;
        if !self.is_under_way()? {
            all.iter().try_for_each(|paths| identity::load(&*self.disk, paths).map(drop))?;
        }
        let open = |(index, (paths, host)): (usize, (Paths, String))| {
            let decision = (!layout.hosts.is_empty()).then(|| layout.record.of(index));
            Leaving::open(&*self.disk, paths, host, decision)
        };
        all.into_iter().zip(names).enumerate().map(open).collect()
    }

    /// Whether a move was interrupted that was not decided: then the marks of the old directories say nothing.
    fn is_under_way(&self) -> Result<bool, StateError> {
        let mut all = self.directories()?;
        all.push(String::new());
        let mut arriving = all.iter().map(|host| exists(&*self.disk, &Paths::new(&self.directory(host)).arriving));
        arriving.try_fold(false, |any, one| Ok(any || one?))
    }

    /// Makes room for the directories of the hosts `to`, where `from` are those that they come from.
    ///
    /// # Errors
    /// When something else lies there, or the system refuses.
    pub fn make_room(&mut self, from: &[String], to: &[String]) -> Result<(), StateError> {
        let is_root_moved = from.iter().chain(to).any(String::is_empty);
        if let Some(host) = from.iter().chain(to).find(|host| is_root_moved && PARTS.contains(&host.as_str())) {
            let what = format!("the host `{host}` has the name of a part of a state directory: give it another name");
            return Err(StateError::Unmovable { path: self.root.clone(), what });
        }
        self.take_back(from)?;
        for host in to {
            let paths = self.hold(host)?;
            let found = identity::read(&*self.disk, &paths)?.filter(|_| !from.contains(host));
            if let Some(identity) = found
                && self.committed(host, identity.job)? > 0
            {
                let what =
                    "it holds state already, but is none of the hosts that the job's lies on; move it away".to_owned();
                return Err(StateError::Unmovable { path: paths.directory, what });
            }
            self.clear(&paths)?;
        }
        Ok(())
    }

    /// Forgets what was written for the hosts `to`, where that has failed: space is likely to be short.
    pub fn give_up(&self, to: &[String]) {
        for host in to {
            if let Err(error) = self.clear(&Paths::new(&self.directory(host))) {
                tracing::warn!(%error, "what was written cannot be removed; the next move does it");
            }
        }
    }

    /// Undoes what a move that was not decided has left in the directories of the hosts `from`, and beside them.
    fn take_back(&mut self, from: &[String]) -> Result<(), StateError> {
        // The marks first: they are told from those of a move that was decided by what was written for the new hosts.
        for host in from {
            let paths = self.hold(host)?;
            self.remove(&paths.moved)?;
            self.sync(&paths.directory)?;
        }
        for host in from {
            self.clear(&Paths::new(&self.directory(host)))?;
        }
        for name in self.directories()? {
            let paths = Paths::new(&self.directory(&name));
            if !exists(&*self.disk, &paths.identity)? {
                self.clear(&paths)?;
            }
        }
        Ok(())
    }

    fn clear(&self, paths: &Paths) -> Result<(), StateError> {
        match std::fs::remove_dir_all(&paths.arriving) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed_to("remove", &paths.arriving)(error)),
            _ => Ok(()),
        }
    }

    /// Removes what an interrupted move has left in the directories of `layout`, which are to stay what they are.
    ///
    /// # Errors
    /// When one is in use, or the system refuses.
    pub fn stay(&mut self, layout: &Layout) -> Result<(), StateError> {
        self.take_back(&layout.names())
    }

    /// Begins the directory that is to be that of `host`; the room for it was made.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn arrive(&self, host: &str, base: Base) -> Result<Arriving, StateError> {
        Arriving::begin(Arc::clone(&self.disk), &self.directory(host).join(ARRIVING), base)
    }

    /// Puts the new directories, which are complete, into the places of the old ones. What was there is in `rescale.before-EPOCH` then.
    ///
    /// # Errors
    /// When the system refuses. The next [`Moving::begin`] goes on.
    pub fn conclude(mut self, epoch: Epoch, from: &[String], to: &[String]) -> Result<(), StateError> {
        let to: BTreeSet<String> = to.iter().cloned().collect();
        let mut from: BTreeSet<String> = from.iter().cloned().collect();
        for host in &to {
            let directory = self.directory(host);
            for part in PARTS {
                if exists(&*self.disk, &directory.join(part))? {
                    from.insert(host.clone());
                }
            }
            self.sync(&directory)?;
        }
        let decision = Decision { epoch, from, to };
        for host in &decision.from {
            let paths = self.hold(host)?;
            write_file(&*self.disk, &paths.moved, decision.told().as_bytes())?;
            self.sync(&paths.directory)?;
        }
        let decided = self.root.join(DECIDED);
        let temporary = decided.with_extension("tmp");
        let bytes = serde_json::to_vec_pretty(&decision).expect("a decision is plain JSON");
        write_file(&*self.disk, &temporary, &bytes)?;
        self.disk.rename(&temporary, &decided).map_err(failed_to("write", &decided))?;
        self.sync(&self.root)?;
        self.carry_out(&decision)
    }

    fn carry_out(&mut self, decision: &Decision) -> Result<(), StateError> {
        let hosts: BTreeSet<&String> = decision.from.union(&decision.to).collect();
        let all = hosts.iter().map(|host| self.hold(host)).collect::<Result<Vec<_>, _>>()?;
        for (host, paths) in hosts.into_iter().zip(&all) {
            if decision.from.contains(host) {
                self.put_aside(decision, paths)?;
            }
            if decision.to.contains(host) {
                self.put_in_place(paths)?;
            }
        }
        self.remove(&self.root.join(DECIDED))?;
        self.sync(&self.root)
    }

    fn put_aside(&self, decision: &Decision, paths: &Paths) -> Result<(), StateError> {
        let aside = aside(&paths.directory, decision.epoch);
        let mark = Paths::new(&aside).moved;
        if exists(&*self.disk, &mark)? {
            return Ok(());
        }
        self.disk.create_directory(&aside).map_err(failed_to("create", &aside))?;
        for part in PARTS {
            self.rename(&paths.directory.join(part), &aside.join(part))?;
        }
        self.sync(&paths.directory)?;
        self.sync(&aside)?;
        // Only now: it says that all is here.
        write_file(&*self.disk, &mark, decision.told().as_bytes())?;
        self.sync(&aside)
    }

    fn put_in_place(&self, paths: &Paths) -> Result<(), StateError> {
        if !exists(&*self.disk, &paths.arriving)? {
            return Ok(());
        }
        for part in PARTS.iter().rev() {
            if *part == PARTS[0] {
                self.sync(&paths.directory)?;
            }
            self.rename(&paths.arriving.join(part), &paths.directory.join(part))?;
        }
        self.sync(&paths.directory)?;
        self.sync(&paths.arriving)?;
        self.remove(&paths.moved)?;
        self.clear(paths)?;
        self.sync(&paths.directory)
    }

    /// Renames what has not been renamed yet.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StateError> {
        if exists(&*self.disk, from)? { self.disk.rename(from, to).map_err(failed_to("move", from)) } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> Result<(), StateError> {
        if exists(&*self.disk, path)? { self.disk.remove(path).map_err(failed_to("remove", path)) } else { Ok(()) }
    }

    fn sync(&self, directory: &Path) -> Result<(), StateError> {
        self.disk.sync_directory(directory).map_err(failed_to("sync", directory))
    }
}

/// The name of a directory that is being written.
const ARRIVING: &str = "rescale.new";

impl Decision {
    /// Where the state goes, for people.
    fn told(&self) -> String {
        match self.to.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [""] => "the one host of a job without `[cluster]`\n".to_owned(),
            [host] => format!("the host `{host}`\n"),
            hosts => format!("the hosts `{}`\n", hosts.join("`, `")),
        }
    }
}

/// Where a directory's files are once they have been moved as of `epoch`.
pub fn aside(directory: &Path, epoch: Epoch) -> PathBuf {
    directory.join(format!("rescale.before-{epoch}"))
}

/// The directory of other hosts that holds state of the job, which `directory` does not: of a host alone where `is_host`, else of several. `is_ours` knows it by its fingerprint.
///
/// # Errors
/// When one cannot be read.
pub fn of_other_hosts(
    disk: &dyn Disk,
    directory: &Path,
    is_host: bool,
    is_ours: impl Fn(&Value) -> bool,
) -> Result<Option<PathBuf>, StateError> {
    if identity::read(disk, &Paths::new(directory))?.is_some() {
        return Ok(None);
    }
    let others: Vec<PathBuf> = match (is_host, directory.parent(), std::fs::read_dir(directory)) {
        (true, Some(root), _) => vec![root.to_owned()],
        (false, _, Ok(items)) => items.flatten().map(|item| item.path()).filter(|path| path.is_dir()).collect(),
        _ => Vec::new(),
    };
    for other in others {
        // What cannot be read is none of a job's, or will be found when it is needed.
        let Ok(Some(identity)) = identity::read(disk, &Paths::new(&other)) else { continue };
        if is_ours(&identity.fingerprint) {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
