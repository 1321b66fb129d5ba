//! A directory that state is moved to: one entry, which goes on behind the epoch that was moved, and redb as of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::super::StateError;
use super::super::identity::{self, Identity, Paths, failed_to};
use super::super::redb::{Change, Meta, Room, Storage};
use crate::disk::Disk;
use crate::epoch::decided::{CommitRecord, Decided};
use crate::epoch::entry::{Cell, Entry, TableName};
use crate::epoch::log::Log;
use crate::epoch::slots::Record;
use crate::epoch::{Digest, JobId, attempts};
use crate::key::Partition;
use crate::time::Clock;

/// What is gathered before it is written: about so many bytes.
const CHUNK_BYTES: usize = 16 << 20;
/// What a row takes in memory beside its key and value.
const ROW_BYTES: usize = 64;
const REDB_CACHE_BYTES: u64 = 32 << 20;

/// What a new directory begins with.
#[derive(Debug, Clone)]
pub struct Base {
    /// Its id.
    pub job: JobId,
    /// The number of partitions of the job.
    pub partitions: u16,
    /// What is recorded of the job.
    pub fingerprint: serde_json::Value,
    /// Its first entry, without deltas: that of the epoch behind the one that is moved.
    pub entry: Entry,
    /// Whether it is one of several hosts'.
    pub shared: bool,
    /// The tables, with the schema versions of their values.
    pub tables: BTreeMap<TableName, BTreeSet<u32>>,
}

/// A new directory.
#[derive(Debug)]
pub struct Arriving {
    disk: Arc<dyn Disk>,
    paths: Paths,
    identity: Identity,
    room: Room,
    meta: Meta,
    gathered: BTreeMap<TableName, Vec<(Partition, u32, Cell)>>,
    gathered_bytes: usize,
}

impl Arriving {
    pub(super) fn begin(disk: Arc<dyn Disk>, directory: &Path, base: Base) -> Result<Self, StateError> {
        let Base { job, partitions, fingerprint, entry, shared, tables } = base;
        let paths = Paths::new(directory);
        disk.create_directory(directory).map_err(failed_to("create", directory))?;
        attempts::create(&*disk, &paths.attempt, job)?;
        attempts::record(&*disk, &paths.attempt, job, entry.attempt)?;
        let before = Record { number: entry.epoch - 1, attempt: entry.attempt, digest: Digest::default() };
        let mut log = Log::begin(Arc::clone(&disk), Clock::system(), directory, job, before, shared)?;
        let digest = log.append(&entry)?.digest;
        log.commit(entry.epoch)?;
        Room::create(&Storage::File, &paths.redb, job)?;
        let (room, _) = Room::open(&Storage::File, &paths.redb, job, REDB_CACHE_BYTES)?;
        let meta = Meta { epoch: entry.epoch, digest, tables };
        let identity = Identity { job, partitions, fingerprint };
        Ok(Self { disk, paths, identity, room, meta, gathered: BTreeMap::new(), gathered_bytes: 0 })
    }

    /// The digest of its entry.
    pub fn digest(&self) -> Digest {
        self.meta.digest
    }

    /// Adds a value with its schema version; fastest in the order of tables, partitions and keys.
    ///
    /// # Errors
    /// When redb cannot be written.
    pub fn put(&mut self, table: &TableName, partition: Partition, version: u32, cell: Cell) -> Result<(), StateError> {
        self.gathered_bytes += cell.joined().len() + ROW_BYTES;
        match self.gathered.get_mut(table) {
            Some(rows) => rows.push((partition, version, cell)),
            None => _ = self.gathered.insert(table.clone(), vec![(partition, version, cell)]),
        }
        if self.gathered_bytes >= CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StateError> {
        let gathered = std::mem::take(&mut self.gathered);
        self.gathered_bytes = 0;
        self.room.write(&self.meta, |feed| {
            for (table, rows) in &gathered {
                let mut fed = feed.table(table)?;
                for of_partition in rows.chunk_by(|one, other| one.0 == other.0) {
                    let changes =
                        of_partition.iter().map(|(_, version, cell)| Change { schema_version: *version, cell });
                    fed.put(of_partition[0].0, changes)?;
                }
            }
            Ok(())
        })
    }

    /// Writes what is left, and makes the directory whole and durable but for its name; that of the leader of several `hosts` with its commit record.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn complete(mut self, leading: Option<(&[String], &CommitRecord)>) -> Result<(), StateError> {
        self.write()?;
        if let Some((hosts, record)) = leading {
            let disk = Arc::clone(&self.disk);
            Decided::begin(disk, &self.paths.directory, self.identity.job, hosts.to_vec(), record)?;
        }
        identity::write_identity(&*self.disk, &self.paths, &self.identity)
    }
}
