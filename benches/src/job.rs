//! A job's directory, and running the job in it with the built `wasmill`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::digest::Digest;
use crate::manifest::Manifest;
use crate::process::{self, Usage};
use crate::summary::Summary;

/// A job in a directory of its own.
#[derive(Debug)]
pub struct Job {
    wasmill: PathBuf,
    dir: PathBuf,
    limit: Duration,
}

/// What one run of a job used, and what it says of itself.
#[derive(Debug)]
pub struct JobRun {
    /// As the kernel accounts it.
    pub usage: Usage,
    /// As the job reports it.
    pub summary: Summary,
}

impl Job {
    /// A job without state or output: `dir` is emptied first. A run may take `limit`.
    ///
    /// # Errors
    /// When the directory cannot be emptied and made.
    pub fn create(wasmill: &Path, dir: PathBuf, manifest: &Manifest, limit: Duration) -> Result<Self> {
        remove(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
        fs::write(dir.join("job.toml"), manifest.text())?;
        Ok(Self { wasmill: wasmill.to_owned(), dir, limit })
    }

    /// Gives the job another manifest, and leaves its state as it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn change(&self, manifest: &Manifest) -> Result<()> {
        Ok(fs::write(self.dir.join("job.toml"), manifest.text())?)
    }

    /// Runs the job until its input ends, from where its last run came to.
    ///
    /// # Errors
    /// Those of [`process::run`], and when there is no summary.
    pub fn run(&self) -> Result<JobRun> {
        let usage = process::run(&mut self.command(), &self.log(), self.limit)?;
        self.finished(usage)
    }

    /// As [`Job::run`], while `feed` writes to the job's standard input.
    ///
    /// # Errors
    /// Those of [`process::run_fed`], and when there is no summary.
    pub fn run_fed(&self, feed: impl FnOnce(ChildStdin) -> io::Result<()> + Send) -> Result<JobRun> {
        let usage = process::run_fed(&mut self.command(), &self.log(), self.limit, feed)?;
        self.finished(usage)
    }

    /// A path in the job's directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    /// The digest of what the sink `out` has published.
    ///
    /// # Errors
    /// Those of reading.
    pub fn output(&self) -> Result<Digest> {
        let path = self.dir.join("output");
        Digest::of_path(&path).with_context(|| format!("failed to read the output {}", path.display()))
    }

    /// Frees the disk.
    ///
    /// # Errors
    /// Those of removing.
    pub fn remove(self) -> Result<()> {
        remove(&self.dir)
    }

    fn command(&self) -> Command {
        // A summary of an earlier run must not pass for this one's; and what earlier runs left in the page cache is written
        // now, not while this one is measured.
        let _ = fs::remove_file(self.dir.join("summary.json"));
        settle();
        let mut command = Command::new(&self.wasmill);
        command.current_dir(&self.dir).args(["run", "job.toml", "--summary", "summary.json"]);
        command
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log.txt")
    }

    fn finished(&self, usage: Usage) -> Result<JobRun> {
        let summary = Summary::read(&self.dir.join("summary.json"))?;
        ensure!(summary.rejected == 0, "{} records were rejected; see {}", summary.rejected, self.log().display());
        Ok(JobRun { usage, summary })
    }
}

impl JobRun {
    /// Fails when another number of records than `records` was admitted.
    ///
    /// # Errors
    /// That.
    pub fn expect_records(self, records: u64) -> Result<Self> {
        let admitted = self.summary.records_in;
        ensure!(admitted == records, "the job admitted {admitted} records of {records}");
        Ok(self)
    }
}

/// Writes all dirty pages of the machine, so that the next measurement does not pay for the last.
pub fn settle() {
    rustix::fs::sync();
}

/// Removes a directory, if it is there.
///
/// # Errors
/// Those of removing.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
