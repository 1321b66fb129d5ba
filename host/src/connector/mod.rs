//! Sources and sinks: where records come from and go to.
//!
//! One file a connector, behind [`Source`] and [`Sink`]. A connector knows records, positions and files; it knows nothing of
//! tasks, partitions or epochs in flight: it is told when an epoch ends. All calls block; the job gives sources and sinks threads of their own.

pub mod blackhole;
mod csv;
pub mod extract;
mod feed;
pub mod file;
pub mod files;
mod files_recovery;
pub mod format;
mod lines;
pub mod nexmark;
mod parsing;
mod scan;
pub mod stdin;
pub mod stdout;
#[cfg(test)]
mod tests;
mod window;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::RealDisk;
use crate::epoch::entry::{Position, SinkSeal};
use crate::epoch::{Epoch, JobId};
use crate::manifest;
use crate::record::Batch;
use crate::time::Clock;

/// What a source or sink ran into. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// The operating system refused something.
    #[error("{action} `{path}`: {error}")]
    Io {
        /// What was tried: "open", "read", …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Whoever read the output has gone (`| head`): nobody's fault, but nothing more can be written.
    #[error("write to standard output: its reader has gone")]
    Closed,
    /// The input that the manifest names is not there.
    #[error("read `{path}`: {what}")]
    Missing {
        /// The file, directory or glob.
        path: String,
        /// What there is none of.
        what: &'static str,
    },
    /// The manifest's settings make no sense, or contradict each other; says how and what to do.
    #[error("{0}")]
    Settings(String),
    /// The input is not what it was when its position was recorded, or contradicts itself; says how and what to do.
    #[error("{0}")]
    Input(String),
    /// The output directory is not in the state that the job's log describes; says how and what to do.
    #[error("{0}")]
    Output(String),
}

/// A record that could not be read; it takes no part in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRecord {
    /// Where it lies, for people: `bids.jsonl:17`, and byte offset.
    pub place: String,
    /// What is wrong with it.
    pub error: String,
    /// Its bytes as they stand in the input (cut to the first 64 KiB).
    pub bytes: Vec<u8>,
}

/// What one call of [`SplitReader::read`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// There may be more at once.
    More,
    /// Nothing more now, but there may be later (a followed file, a quiet pipe).
    Idle,
    /// The split has ended for good.
    End,
}

/// A kind of input.
pub trait Source: Send + Sync {
    /// The names of the splits that exist now, in a stable order. Called again from time to time when the source is followed: new names may appear.
    ///
    /// # Errors
    /// When the input cannot be listed, or a glob matches nothing.
    fn splits(&self) -> Result<Vec<String>, ConnectorError>;

    /// Opens a split behind `from`, or at its start.
    ///
    /// # Errors
    /// When it cannot be opened, or is no longer the input that `from` was recorded in (shorter, or replaced).
    fn open(&self, split: &str, from: Option<&Position>) -> Result<Box<dyn SplitReader>, ConnectorError>;

    /// Whether a split can be read again from a position.
    fn is_replayable(&self) -> bool {
        true
    }

    /// Whether new splits may appear while the job runs.
    fn is_followed(&self) -> bool {
        false
    }

    /// The bytes of input in all splits now, for the progress display; `None` where that has no meaning.
    fn total_bytes(&self) -> Option<u64> {
        None
    }
}

/// One split being read.
pub trait SplitReader: Send {
    /// Appends up to `records_max` records, or about `bytes_max` bytes, to `batch`, and what could not be parsed to `bad`. Keys and times are filled in as the source's
    /// configuration says (empty and [`crate::record::NO_TIME`] without one).
    ///
    /// # Errors
    /// When reading fails; the position is then that of the last record handed out.
    fn read(
        &mut self,
        records_max: usize,
        bytes_max: usize,
        batch: &mut Batch,
        bad: &mut Vec<BadRecord>,
    ) -> Result<ReadOutcome, ConnectorError>;

    /// Where the split stands: behind the last record (good or bad) that `read` handed out.
    fn position(&self) -> Position;

    /// The input bytes (compressed bytes of a compressed file) consumed so far, for the progress display.
    fn bytes_read(&self) -> u64 {
        0
    }
}

/// A kind of output. This half outlives the threads that write: it syncs, publishes and recovers.
pub trait Sink: Send + Sync {
    /// Brings the output of `job` into the state that the log describes, before anything is written: publishes what is committed but not yet published
    /// (`unpublished`, oldest first), cuts or verifies the open file of `last`, and removes temporaries that no entry lists. With `last` = `None` the job starts
    /// from nothing.
    ///
    /// # Errors
    /// [`ConnectorError::Output`] when a committed file is neither under its temporary nor its published name, or does not match its digest, or when the
    /// output is another job's, or might mix with it.
    fn recover(
        &self,
        job: JobId,
        unpublished: &[(Epoch, SinkSeal)],
        last: Option<&SinkSeal>,
    ) -> Result<(), ConnectorError>;

    /// A writer that goes on behind `last`. Call it after [`Sink::recover`], once.
    ///
    /// # Errors
    /// When the output cannot be opened.
    fn writer(&self, last: Option<&SinkSeal>) -> Result<Box<dyn SinkWriter>, ConnectorError>;

    /// Makes durable what `seal` lists, before the epoch's entry is written.
    ///
    /// # Errors
    /// When syncing fails.
    fn sync(&self, seal: &SinkSeal) -> Result<(), ConnectorError>;

    /// Publishes what `seal` prepared, after the commit, and makes that durable.
    ///
    /// # Errors
    /// When renaming fails.
    fn publish(&self, seal: &SinkSeal) -> Result<(), ConnectorError>;

    /// Whether there is output, and a crash neither loses nor doubles any of it. The manifest says the same of the sink.
    fn is_exactly_once(&self) -> bool;
}

/// The half of a sink that writes, on one thread.
pub trait SinkWriter: Send {
    /// Adds records, in order.
    ///
    /// # Errors
    /// When writing fails.
    fn write(&mut self, batch: &Batch) -> Result<(), ConnectorError>;

    /// Hands over what is buffered, where readers see output at once. Called when nothing more is waiting.
    ///
    /// # Errors
    /// When writing fails.
    fn flush(&mut self) -> Result<(), ConnectorError>;

    /// Ends `epoch`: what was written since the last call belongs to it. `last` is true when no epoch will follow: an open file is then completed. Must be quick: nothing is synced here.
    ///
    /// # Errors
    /// When writing fails.
    fn seal(&mut self, epoch: Epoch, last: bool) -> Result<SinkSeal, ConnectorError>;
}

/// The source that the manifest describes, its paths relative to `base_dir`.
///
/// # Errors
/// When its settings contradict each other. Whether the input exists is found by [`Source::splits`].
pub fn source_from(source: &manifest::Source, base_dir: &Path) -> Result<Box<dyn Source>, ConnectorError> {
    Ok(match source {
        manifest::Source::File(source) => Box::new(file::Files::new(source, base_dir)?),
        manifest::Source::Stdin(source) => Box::new(stdin::Stdin::new(source)?),
        manifest::Source::Nexmark(source) => Box::new(nexmark::Nexmark::new(source, Clock::system())?),
    })
}

/// The sink that the manifest describes, its paths relative to `base_dir`.
///
/// # Errors
/// When its settings contradict each other.
pub fn sink_from(sink: &manifest::Sink, base_dir: &Path) -> Result<Box<dyn Sink>, ConnectorError> {
    Ok(match sink {
        manifest::Sink::Files(sink) => {
            Box::new(files::FilesDirectory::new(sink, base_dir, Arc::new(RealDisk), Clock::system())?)
        }
        manifest::Sink::Stdout(sink) => Box::new(stdout::Stdout::new(sink)?),
        manifest::Sink::Blackhole(_) => Box::new(blackhole::Blackhole::default()),
    })
}
