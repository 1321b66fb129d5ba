//! The file sink: a directory that output appears in, exactly once or at least once.
//!
//! # Names
//!
//! Exactly once: records are written to `.part-<number>.<ending>.tmp` and become visible, by a rename after the commit, as
//! `part-<20 digits>.<ending>`, the digits being the first epoch with a record in the file. The ending is `txt`, `jsonl` or `csv`. The
//! temporaries' number is one more than any in the directory when the writer starts. At least once: records go to
//! `part-<20 digits>.<ending>` from the start, the digits being one more than any in the directory.
//!
//! A directory belongs to one sink. `.wasmill-job` holds the id of the job that writes to it exactly once: 32 hexadecimal digits and a line feed. An epoch without
//! records makes no file. What the directory must hold after a crash is told by the log; see `files_recovery`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::feed::io_error;
use super::files_recovery::{Recovery, digest_of_prefix};
use super::format::Encoder;
use super::{ConnectorError, Sink, SinkWriter};
use crate::disk::{Disk, DiskFile};
use crate::epoch::entry::{OpenFile, PreparedFile, SinkSeal};
use crate::epoch::{Epoch, JobId};
use crate::manifest::{Delivery, FilesSink};
use crate::record::Batch;
use crate::time::Clock;

/// Bytes gathered before they are handed to the system.
const BUFFER_BYTES: usize = 256 << 10;

/// A directory of files as a sink.
#[derive(Debug)]
pub struct FilesDirectory {
    disk: Arc<dyn Disk>,
    clock: Clock,
    directory: PathBuf,
    encoder: Encoder,
    delivery: Delivery,
    roll: Option<Duration>,
}

impl FilesDirectory {
    /// The sink that the manifest describes, its path relative to `base`.
    ///
    /// # Errors
    /// When the columns do not fit the format.
    pub fn new(sink: &FilesSink, base: &Path, disk: Arc<dyn Disk>, clock: Clock) -> Result<Self, ConnectorError> {
        Ok(Self {
            disk,
            clock,
            directory: base.join(&sink.path),
            encoder: Encoder::new(sink.format, &sink.columns)?,
            delivery: sink.delivery,
            roll: sink.roll.map(|roll| roll.0),
        })
    }

    fn recovery(&self) -> Recovery<'_> {
        Recovery { disk: &*self.disk, directory: &self.directory }
    }

    /// The first number that no file or temporary in the directory has.
    fn first_number(&self) -> Result<u64, ConnectorError> {
        let names = self.disk.list(&self.directory).map_err(|error| io_error("list", &self.directory, error))?;
        Ok(names.iter().filter_map(|name| number_of(name)).max().map_or(0, |last| last.saturating_add(1)))
    }
}

impl Sink for FilesDirectory {
    fn recover(
        &self,
        job: JobId,
        unpublished: &[(Epoch, SinkSeal)],
        last: Option<&SinkSeal>,
    ) -> Result<(), ConnectorError> {
        let recovery = self.recovery();
        recovery.create_directory()?;
        let exactly_once = self.is_exactly_once();
        if exactly_once && unpublished.is_empty() && last.is_none() {
            recovery.refuse_other_output()?;
        }
        let is_marked = !exactly_once || recovery.check_owner(job)?;
        for (epoch, seal) in unpublished {
            recovery.publish_committed(*epoch, seal)?;
        }
        let open = last.and_then(|last| last.open.as_ref());
        if let Some(open) = open {
            if exactly_once {
                recovery.verify_open(open)?;
            } else {
                recovery.complete_open(open, &published_name(open.first_epoch, ending_of(&open.temporary)))?;
            }
        }
        recovery.remove_temporaries(open)?;
        if !is_marked {
            recovery.mark(job)?;
        }
        recovery.sync_directory()
    }

    fn writer(&self, last: Option<&SinkSeal>) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let mut writer = FilesWriter {
            disk: self.disk.clone(),
            clock: self.clock.clone(),
            directory: self.directory.clone(),
            encoder: self.encoder.clone(),
            exactly_once: self.is_exactly_once(),
            roll: self.roll,
            next_number: self.first_number()?,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            current: None,
        };
        if let (Some(open), true) = (last.and_then(|last| last.open.as_ref()), writer.exactly_once) {
            writer.current = Some(writer.resume(open)?);
        }
        Ok(Box::new(writer))
    }

    fn sync(&self, seal: &SinkSeal) -> Result<(), ConnectorError> {
        let prepared = seal.prepared.iter().map(|file| &file.temporary);
        let names: Vec<_> = prepared.chain(seal.open.iter().map(|file| &file.temporary)).collect();
        for name in &names {
            let path = self.directory.join(name);
            self.disk.sync_file(&path).map_err(|error| io_error("sync", &path, error))?;
        }
        if names.is_empty() { Ok(()) } else { self.recovery().sync_directory() }
    }

    fn publish(&self, seal: &SinkSeal) -> Result<(), ConnectorError> {
        let mut renamed = false;
        for file in seal.unpublished() {
            self.recovery().rename(&file.temporary, &file.published)?;
            renamed = true;
        }
        if renamed { self.recovery().sync_directory() } else { Ok(()) }
    }

    fn is_exactly_once(&self) -> bool {
        self.delivery == Delivery::ExactlyOnce
    }
}

/// Whether `name` is that of output of a sink, published or at least once.
pub fn is_output(name: &str) -> bool {
    name.strip_prefix("part-")
        .and_then(|rest| rest.split('.').next())
        .is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Whether `name` is that of a temporary of a sink.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(".part-") && name.ends_with(".tmp")
}

fn number_of(name: &str) -> Option<u64> {
    let rest = name.strip_prefix('.').unwrap_or(name).strip_prefix("part-")?;
    rest.split('.').next()?.parse().ok()
}

fn published_name(number: u64, ending: &str) -> String {
    format!("part-{number:020}.{ending}")
}

fn temporary_name(number: u64, ending: &str) -> String {
    format!(".part-{number}.{ending}.tmp")
}

fn ending_of(temporary: &str) -> &str {
    temporary.trim_end_matches(".tmp").rsplit('.').next().unwrap_or("txt")
}

/// The half that writes.
struct FilesWriter {
    disk: Arc<dyn Disk>,
    clock: Clock,
    directory: PathBuf,
    encoder: Encoder,
    exactly_once: bool,
    roll: Option<Duration>,
    next_number: u64,
    /// Whole records that have not been handed to the system.
    buffer: Vec<u8>,
    current: Option<Current>,
}

/// The file being written.
struct Current {
    name: String,
    file: Box<dyn DiskFile>,
    digest: Xxh3,
    length: u64,
    /// The first epoch sealed with it; none before its first seal.
    first_epoch: Option<Epoch>,
    /// When it was begun, by the writer's clock.
    begun: Duration,
}

impl FilesWriter {
    fn begin(&mut self) -> Result<(), ConnectorError> {
        let ending = self.encoder.ending();
        let name_of = if self.exactly_once { temporary_name } else { published_name };
        let name = name_of(self.next_number, ending);
        self.next_number += 1;
        let path = self.directory.join(&name);
        let file = self.disk.create(&path).map_err(|error| io_error("create", &path, error))?;
        self.buffer.extend_from_slice(&self.encoder.header());
        let begun = self.clock.now();
        self.current = Some(Current { name, file, digest: Xxh3::new(), length: 0, first_epoch: None, begun });
        Ok(())
    }

    fn resume(&self, open: &OpenFile) -> Result<Current, ConnectorError> {
        let path = self.directory.join(&open.temporary);
        let digest = digest_of_prefix(&*self.disk, &path, open)?;
        let file = self.disk.append(&path, open.length).map_err(|error| io_error("append to", &path, error))?;
        let (name, first_epoch, begun) = (open.temporary.clone(), Some(open.first_epoch), self.clock.now());
        Ok(Current { name, file, digest, length: open.length, first_epoch, begun })
    }

    /// Hands the buffer to the system. It ends with a record, so what readers of an at-least-once file see does, too.
    fn drain(&mut self) -> Result<(), ConnectorError> {
        let Some(current) = self.current.as_mut().filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let path = || self.directory.join(&current.name);
        current.file.write_all(&self.buffer).map_err(|error| io_error("write", &path(), error))?;
        current.digest.update(&self.buffer);
        current.length += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Whether the file is complete at a seal now.
    fn is_complete(&self, current: &Current, last: bool) -> bool {
        last || self.roll.is_none_or(|roll| self.clock.now().saturating_sub(current.begun) >= roll)
    }
}

impl SinkWriter for FilesWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), ConnectorError> {
        if batch.is_empty() {
            return Ok(());
        }
        if self.current.is_none() {
            self.begin()?;
        }
        self.encoder.encode(batch, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES { self.drain() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        // Nobody sees a temporary.
        if self.exactly_once { Ok(()) } else { self.drain() }
    }

    fn seal(&mut self, epoch: Epoch, last: bool) -> Result<SinkSeal, ConnectorError> {
        self.drain()?;
        let Some(mut current) = self.current.take() else { return Ok(SinkSeal::default()) };
        let first_epoch = *current.first_epoch.get_or_insert(epoch);
        let complete = self.is_complete(&current, last);
        let (temporary, length, digest) = (current.name.clone(), current.length, current.digest.digest());
        if !complete {
            self.current = Some(current);
        }
        let published = match self.exactly_once {
            true if complete => published_name(first_epoch, ending_of(&temporary)),
            true => {
                return Ok(SinkSeal {
                    open: Some(OpenFile { temporary, length, digest, first_epoch }),
                    ..SinkSeal::default()
                });
            }
            false => temporary.clone(),
        };
        Ok(SinkSeal { prepared: vec![PreparedFile { temporary, published, length, digest }], ..SinkSeal::default() })
    }
}
