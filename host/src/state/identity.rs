//! Whose a state directory is: how it is made, locked and recognised, and how often the job was started on it.
//!
//! # How a directory is made
//!
//! `initialising` is created and synced; then everything else, `job.json` last, each synced; then `initialising` is removed. So a directory with `job.json` is whole, and
//! whatever is missing in it is damage. One with `initialising` but without `job.json` never held anything, and is made again. One with neither, but with
//! other files of ours, has lost its `job.json`.
//!
//! `job.json` is a JSON object: `format` (1), `id` (32 hexadecimal digits), `partitions`, `fingerprint`, which is the caller's, and `checksum`: 16
//! hexadecimal digits, the XXH3-64 of the JSON array of the other four, without white space.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::StateError;
use super::redb::{Room, Storage};
use crate::disk::Disk;
use crate::epoch::log::Log;
use crate::epoch::{JobId, attempts};

const FORMAT_VERSION: u32 = 1;

/// The names in a state directory.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub directory: PathBuf,
    pub identity: PathBuf,
    pub initialising: PathBuf,
    pub lock: PathBuf,
    pub attempt: PathBuf,
    pub committed: PathBuf,
    pub log: PathBuf,
    pub redb: PathBuf,
    /// There where the state was moved away; it says where to.
    pub moved: PathBuf,
    /// The state that is being moved here, while it is not whole.
    pub arriving: PathBuf,
}

impl Paths {
    pub(super) fn new(directory: &Path) -> Self {
        let within = |name: &str| directory.join(name);
        Self {
            directory: directory.to_owned(),
            identity: within("job.json"),
            initialising: within("initialising"),
            lock: within("lock"),
            attempt: within("attempt"),
            committed: within("committed"),
            log: within("log"),
            redb: within("state.redb"),
            // With a dot, which no name of a host has.
            moved: within("rescale.moved"),
            arriving: within("rescale.new"),
        }
    }
}

/// What `job.json` says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Identity {
    pub job: JobId,
    pub partitions: u16,
    pub fingerprint: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
struct IdentityFile {
    format: u32,
    id: String,
    partitions: u16,
    fingerprint: serde_json::Value,
    checksum: String,
}

impl IdentityFile {
    fn new(identity: &Identity) -> Self {
        let mut file = Self {
            format: FORMAT_VERSION,
            id: identity.job.to_string(),
            partitions: identity.partitions,
            fingerprint: identity.fingerprint.clone(),
            checksum: String::new(),
        };
        file.checksum = file.computed_checksum();
        file
    }

    fn computed_checksum(&self) -> String {
        let covered = serde_json::to_vec(&(self.format, &self.id, self.partitions, &self.fingerprint));
        format!("{:016x}", xxh3_64(&covered.expect("an identity is plain JSON")))
    }
}

/// Held while a process uses the directory.
#[derive(Debug)]
pub(super) struct DirectoryLock(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] File);

impl DirectoryLock {
    pub(super) fn take(paths: &Paths) -> Result<Self, StateError> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&paths.lock)
            .map_err(failed_to("open", &paths.lock))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(StateError::Locked { path: paths.directory.clone() }),
            Err(TryLockError::Error(error)) => Err(failed_to("lock", &paths.lock)(error)),
        }
    }
}

/// Reads who the directory belongs to; `None` when nothing was ever kept in it.
pub(super) fn load(disk: &dyn Disk, paths: &Paths) -> Result<Option<Identity>, StateError> {
    match disk.read(&paths.moved) {
        Ok(to) => {
            let to = String::from_utf8_lossy(&to).trim_end().to_owned();
            return Err(StateError::Moved { path: paths.directory.clone(), to });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed_to("read", &paths.moved)(error)),
    }
    match read(disk, paths)? {
        Some(identity) => Ok(Some(identity)),
        None if exists(disk, &paths.arriving)? => Err(StateError::Arriving { path: paths.directory.clone() }),
        None => check_unused(disk, paths).map(|()| None),
    }
}

/// Reads `job.json`, whatever lies beside it; `None` when there is none.
pub(super) fn read(disk: &dyn Disk, paths: &Paths) -> Result<Option<Identity>, StateError> {
    let bytes = match disk.read(&paths.identity) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed_to("read", &paths.identity)(error)),
    };
    let damaged = |what: String| StateError::Damaged { path: paths.identity.clone(), what };
    let file: IdentityFile =
        serde_json::from_slice(&bytes).map_err(|error| damaged(format!("it cannot be read: {error}")))?;
    if file.format > FORMAT_VERSION {
        let path = paths.identity.clone();
        return Err(StateError::NewerFormat { path, found: file.format, known: FORMAT_VERSION });
    }
    if file.checksum != file.computed_checksum() {
        return Err(damaged("its content does not match its checksum".to_owned()));
    }
    let is_id = file.id.len() == 32 && file.id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let job = u128::from_str_radix(&file.id, 16).ok().filter(|_| is_id);
    let job = JobId(job.ok_or_else(|| damaged("its `id` is not 32 hexadecimal digits".to_owned()))?);
    Ok(Some(Identity { job, partitions: file.partitions, fingerprint: file.fingerprint }))
}

/// A directory without `job.json` must not hold anything else of ours, unless it was just being made.
fn check_unused(disk: &dyn Disk, paths: &Paths) -> Result<(), StateError> {
    if exists(disk, &paths.initialising)? {
        return Ok(());
    }
    for path in [&paths.committed, &paths.redb, &paths.attempt] {
        if exists(disk, path)? {
            let what = format!("it is missing, but there is `{}`", path.display());
            return Err(StateError::Damaged { path: paths.identity.clone(), what });
        }
    }
    match disk.list(&paths.log) {
        Ok(names) if names.is_empty() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed_to("list", &paths.log)(error)),
        Ok(_) => {
            let what = format!("it is missing, but there are entries in `{}`", paths.log.display());
            Err(StateError::Damaged { path: paths.identity.clone(), what })
        }
    }
}

/// Makes the directory, with everything that belongs into it.
pub(super) fn create(disk: &dyn Disk, storage: &Storage, paths: &Paths, identity: &Identity) -> Result<(), StateError> {
    disk.create_directory(&paths.directory).map_err(failed_to("create", &paths.directory))?;
    write_file(disk, &paths.initialising, b"")?;
    sync_directory(disk, paths)?;
    // Left over from an earlier try.
    for path in [&paths.committed, &paths.redb, &paths.attempt] {
        if exists(disk, path)? {
            disk.remove(path).map_err(failed_to("remove", path))?;
        }
    }
    Log::create(disk, &paths.directory, identity.job)?;
    attempts::create(disk, &paths.attempt, identity.job)?;
    Room::create(storage, &paths.redb, identity.job)?;
    write_identity(disk, paths, identity)
}

/// Writes `job.json`, once everything else is there: the directory is whole then.
pub(super) fn write_identity(disk: &dyn Disk, paths: &Paths, identity: &Identity) -> Result<(), StateError> {
    sync_directory(disk, paths)?;
    let bytes = serde_json::to_vec_pretty(&IdentityFile::new(identity)).expect("an identity is plain JSON");
    let temporary = paths.identity.with_extension("new");
    write_file(disk, &temporary, &bytes)?;
    disk.rename(&temporary, &paths.identity).map_err(failed_to("write", &paths.identity))?;
    sync_directory(disk, paths)
}

/// Removes the sign that the directory is being made.
pub(super) fn finish_creation(disk: &dyn Disk, paths: &Paths) -> Result<(), StateError> {
    if exists(disk, &paths.initialising)? {
        disk.remove(&paths.initialising).map_err(failed_to("remove", &paths.initialising))?;
        sync_directory(disk, paths)?;
    }
    Ok(())
}

/// An id that no other directory has: 128 bits from the keys that the system seeds hash maps with.
pub fn draw_job_id() -> JobId {
    let half = |index: u64| u128::from(RandomState::new().hash_one(index));
    JobId(half(0) << 64 | half(1))
}

pub(super) fn write_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let mut file = disk.create(path).map_err(failed_to("create", path))?;
    file.write_all(bytes).and_then(|()| file.flush()).map_err(failed_to("write", path))?;
    disk.sync_file(path).map_err(failed_to("sync", path))
}

fn sync_directory(disk: &dyn Disk, paths: &Paths) -> Result<(), StateError> {
    disk.sync_directory(&paths.directory).map_err(failed_to("sync", &paths.directory))
}

pub(super) fn exists(disk: &dyn Disk, path: &Path) -> Result<bool, StateError> {
    Ok(disk.length(path).map_err(failed_to("look for", path))?.is_some())
}

pub(super) fn failed_to<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StateError + 'a {
    move |error| StateError::Io { action, path: path.to_owned(), error }
}
