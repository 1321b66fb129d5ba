//! Bringing the directory of a file sink into the state that the log describes.
//!
//! The log names every committed file with its temporary name, its final name, length and digest. A committed file is at one of the two names,
//! whatever the moment of the crash; anything else is damage and an error. Temporaries that the log does not name belong to epochs that never
//! were, and are removed last. Every step may be repeated after a crash within it.
//!
//! Files of epochs whose publication the log notes may be anywhere: whoever reads them may have moved them away. So that the state directory of one job is
//! never taken for another's when that is so, the directory bears the mark of its job.

use std::io::{self, Write};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::ConnectorError;
use super::feed::io_error;
use super::files::{is_output, is_temporary};
use crate::disk::Disk;
use crate::epoch::entry::{OpenFile, PreparedFile, SinkSeal};
use crate::epoch::{Epoch, JobId};

/// Whose output a directory holds.
pub const OWNER: &str = ".wasmill-job";
/// The same while it is being written.
const OWNER_TEMPORARY: &str = ".wasmill-job.tmp";

/// Bytes read at once to check a file.
const READ_BYTES: usize = 1 << 20;

/// The steps of recovery in one directory.
pub struct Recovery<'a> {
    /// Where the files are.
    pub disk: &'a dyn Disk,
    /// The sink's directory.
    pub directory: &'a Path,
}

/// What a committed file needs.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is there.
    Nothing,
    /// It still has its temporary name.
    Rename,
    /// It is under neither name.
    Missing,
}

/// Decides by which of a committed file's two names exist.
fn step(temporary: bool, published: bool) -> Step {
    match (temporary, published) {
        (_, true) => Step::Nothing,
        (true, false) => Step::Rename,
        (false, false) => Step::Missing,
    }
}

impl Recovery<'_> {
    /// Makes the directory.
    ///
    /// # Errors
    /// When that fails.
    pub fn create_directory(&self) -> Result<(), ConnectorError> {
        self.disk.create_directory(self.directory).map_err(|error| io_error("create", self.directory, error))
    }

    /// Refuses a directory that holds output, for a job that has written none.
    ///
    /// # Errors
    /// [`ConnectorError::Output`] when it does.
    pub fn refuse_other_output(&self) -> Result<(), ConnectorError> {
        match self.names()?.iter().find(|name| is_output(name)) {
            None => Ok(()),
            Some(name) => Err(ConnectorError::Output(format!(
                "write to `{}`: the job starts from nothing, but the directory holds output already (`{name}`); move it \
                 away, choose another `path`, or restore the job's state directory",
                self.directory.display()
            ))),
        }
    }

    /// Whether the directory is marked as that of `job`; false where it has no mark.
    ///
    /// # Errors
    /// [`ConnectorError::Output`] when it is marked as another job's, or the mark cannot be understood.
    pub fn check_owner(&self, job: JobId) -> Result<bool, ConnectorError> {
        let path = self.directory.join(OWNER);
        let bytes = match self.disk.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io_error("read", &path, error)),
        };
        let text = String::from_utf8_lossy(&bytes);
        let found = text.trim_end();
        if found == job.to_string() {
            return Ok(true);
        }
        let path = path.display();
        let is_id = found.len() == 32 && found.bytes().all(|digit| digit.is_ascii_hexdigit());
        Err(ConnectorError::Output(match is_id {
            true => format!(
                "write to `{}`: `{path}` says that the output there is that of job {found}, but the state directory is that of job {job}; put back \
                 the state directory that belongs to this output, choose another `path`, or, where that job is gone for good, remove the directory",
                self.directory.display()
            ),
            false => format!(
                "use `{path}`: it does not hold the id of a job; restore it, or, where the output beside it is this job's, remove it"
            ),
        }))
    }

    /// Marks the directory as that of `job`. Its name is durable after [`Recovery::sync_directory`].
    ///
    /// # Errors
    /// When that fails.
    pub fn mark(&self, job: JobId) -> Result<(), ConnectorError> {
        // Written beside and renamed, so that a mark is whole or not there.
        let path = self.directory.join(OWNER_TEMPORARY);
        let mut file = self.disk.create(&path).map_err(|error| io_error("create", &path, error))?;
        file.write_all(format!("{job}\n").as_bytes()).map_err(|error| io_error("write", &path, error))?;
        self.disk.sync_file(&path).map_err(|error| io_error("sync", &path, error))?;
        self.rename(OWNER_TEMPORARY, OWNER)
    }

    /// Gives the files of a committed epoch their final names, where they have not got them.
    ///
    /// # Errors
    /// [`ConnectorError::Output`] when one is under neither name or does not match.
    pub fn publish_committed(&self, epoch: Epoch, seal: &SinkSeal) -> Result<(), ConnectorError> {
        // A file written at least once has its name from the start, and readers may do with it what they like.
        seal.unpublished().try_for_each(|file| self.publish_file(epoch, file))
    }

    fn publish_file(&self, epoch: Epoch, file: &PreparedFile) -> Result<(), ConnectorError> {
        match step(self.exists(&file.temporary)?, self.exists(&file.published)?) {
            Step::Nothing => self.verify(&file.published, file),
            Step::Rename => {
                self.verify(&file.temporary, file)?;
                self.rename(&file.temporary, &file.published)
            }
            Step::Missing => Err(ConnectorError::Output(format!(
                "publish epoch {epoch}: it is committed, but `{}` is not there, nor its temporary `{}`; restore the file, or \
                 start the job anew with an empty state directory and another output directory",
                self.directory.join(&file.published).display(),
                file.temporary
            ))),
        }
    }

    fn verify(&self, name: &str, file: &PreparedFile) -> Result<(), ConnectorError> {
        let path = self.directory.join(name);
        let length = length_of(self.disk, &path)?.unwrap_or(0);
        if length == file.length && digest_of(self.disk, &path, length)?.digest() == file.digest {
            return Ok(());
        }
        Err(mismatch(&path, length, file.length))
    }

    /// Checks that the file which spans epochs holds what the log says.
    ///
    /// # Errors
    /// [`ConnectorError::Output`] when it is missing, too short or does not match.
    pub fn verify_open(&self, open: &OpenFile) -> Result<(), ConnectorError> {
        digest_of_prefix(self.disk, &self.directory.join(&open.temporary), open).map(drop)
    }

    /// Completes a file that spans epochs with what they hold, and publishes it, for a sink that will not go on with it.
    ///
    /// # Errors
    /// As [`Recovery::verify_open`].
    pub fn complete_open(&self, open: &OpenFile, published: &str) -> Result<(), ConnectorError> {
        if self.exists(&open.temporary)? {
            self.verify_open(open)?;
            let path = self.directory.join(&open.temporary);
            drop(self.disk.append(&path, open.length).map_err(|error| io_error("cut", &path, error))?);
            self.disk.sync_file(&path).map_err(|error| io_error("sync", &path, error))?;
        }
        let (temporary, published) = (open.temporary.clone(), published.to_owned());
        let file = PreparedFile { temporary, published, length: open.length, digest: open.digest };
        self.publish_file(open.first_epoch, &file)
    }

    /// Removes all temporaries but that of `open`.
    ///
    /// # Errors
    /// When that fails.
    pub fn remove_temporaries(&self, open: Option<&OpenFile>) -> Result<(), ConnectorError> {
        let kept = open.map(|open| open.temporary.as_str());
        for name in self.names()?.iter().filter(|name| is_temporary(name) && Some(name.as_str()) != kept) {
            let path = self.directory.join(name);
            self.disk.remove(&path).map_err(|error| io_error("remove", &path, error))?;
        }
        Ok(())
    }

    /// Renames within the directory; never over a file.
    ///
    /// # Errors
    /// [`ConnectorError::Output`] when the name is taken.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), ConnectorError> {
        let (from, to) = (self.directory.join(from), self.directory.join(to));
        self.disk.rename(&from, &to).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => ConnectorError::Output(format!(
                "publish `{}`: a file of that name exists, which this job did not write; move it away, and let no other job \
                 or sink write to this directory",
                to.display()
            )),
            _ => io_error("publish", &to, error),
        })
    }

    /// Makes the directory's names durable.
    ///
    /// # Errors
    /// When that fails.
    pub fn sync_directory(&self) -> Result<(), ConnectorError> {
        self.disk.sync_directory(self.directory).map_err(|error| io_error("sync", self.directory, error))
    }

    fn names(&self) -> Result<Vec<String>, ConnectorError> {
        self.disk.list(self.directory).map_err(|error| io_error("list", self.directory, error))
    }

    fn exists(&self, name: &str) -> Result<bool, ConnectorError> {
        Ok(length_of(self.disk, &self.directory.join(name))?.is_some())
    }
}

/// The digest of the bytes of `open` that belong to sealed epochs, ready to take in more.
///
/// # Errors
/// [`ConnectorError::Output`] when they are not what the log says.
pub fn digest_of_prefix(disk: &dyn Disk, path: &Path, open: &OpenFile) -> Result<Xxh3, ConnectorError> {
    let Some(length) = length_of(disk, path)? else {
        return Err(ConnectorError::Output(format!(
            "go on writing `{}`: it is not there, but holds output of committed epochs from {} on; restore it, or start the job \
             anew with an empty state directory and another output directory",
            path.display(),
            open.first_epoch
        )));
    };
    if length >= open.length {
        let digest = digest_of(disk, path, open.length)?;
        if digest.digest() == open.digest {
            return Ok(digest);
        }
    }
    Err(mismatch(path, length, open.length))
}

fn length_of(disk: &dyn Disk, path: &Path) -> Result<Option<u64>, ConnectorError> {
    disk.length(path).map_err(|error| io_error("look for", path, error))
}

/// The digest of the first `length` bytes of a file, or of all if it has fewer.
fn digest_of(disk: &dyn Disk, path: &Path, length: u64) -> Result<Xxh3, ConnectorError> {
    let mut digest = Xxh3::new();
    let mut offset = 0;
    while offset < length {
        let wanted = usize::try_from(length - offset).map_or(READ_BYTES, |rest| rest.min(READ_BYTES));
        let content = disk.read_range(path, offset, wanted).map_err(|error| io_error("read", path, error))?;
        if content.is_empty() {
            break;
        }
        digest.update(&content);
        offset += content.len() as u64;
    }
    Ok(digest)
}

fn mismatch(path: &Path, length: u64, expected: u64) -> ConnectorError {
    let what =
        if length < expected { format!("it has only {length} bytes") } else { "its content is another".to_owned() };
    ConnectorError::Output(format!(
        "recover `{}`: the log says that it holds {expected} bytes of committed output, but {what}; restore the file, or start \
         the job anew with an empty state directory and another output directory",
        path.display()
    ))
}
