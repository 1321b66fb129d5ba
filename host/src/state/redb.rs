//! The materialised state: what the job's tables held at one epoch, in redb. The only file that names redb.
//!
//! # Format, version 1
//!
//! Each table of the job is a redb table `table/<operator>/<table>`. A key is the partition (2 bytes, big-endian, so that a partition's keys lie together) and the
//! key's bytes; a value is the schema version (4 bytes, little-endian) and the value's bytes. The redb table `wasmill` has one row, `meta`: a JSON object with
//! the format's version, the job's id, the epoch, the digest of that epoch's log entry, and the schema versions that occur in each table. It is
//! written in the same transaction as the rows.
//!
//! Every transaction commits in two phases, and the file is opened with redb's integrity check: only so is a damaged page always noticed, and never an
//! earlier transaction taken for the last.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::redb::{
    Builder, Database, DatabaseError, OwnedRange, ReadTransaction, ReadableDatabase, ReadableTableMetadata,
    StorageBackend, TableDefinition, TableError,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::StateError;
use crate::disk::Disk;
use crate::disk::crash::CrashDisk;
use crate::epoch::entry::{Cell, TableName};
use crate::epoch::{Digest, Epoch, JobId};
use crate::key::Partition;

const FORMAT_VERSION: u32 = 1;
const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("wasmill");
const META_ROW: &str = "meta";
const TABLE_PREFIX: &str = "table/";
const SCHEMA_BYTES: usize = 4;
const NO_SCHEMA_VERSION: &str = "a value has no schema version";

type Rows<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;
type ReadRows = ::redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Where the file lies.
#[derive(Debug, Clone)]
pub(super) enum Storage {
    /// In the file system.
    File,
    /// On the double of a disk, for tests.
    Double(CrashDisk),
}

/// What the file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    /// The epoch that it holds.
    pub epoch: Epoch,
    /// The digest of that epoch's log entry.
    pub digest: Digest,
    /// The tables, with the schema versions of their values.
    pub tables: BTreeMap<TableName, BTreeSet<u32>>,
}

#[derive(Serialize, Deserialize)]
struct MetaRow {
    format: u32,
    job: String,
    epoch: Epoch,
    digest: String,
    tables: BTreeMap<String, BTreeSet<u32>>,
}

/// A changed key, as redb is to hold it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change<'a> {
    pub schema_version: u32,
    pub cell: &'a Cell,
}

/// The open database.
#[derive(Debug)]
pub(super) struct Room {
    path: PathBuf,
    job: JobId,
    /// What readers see: the last write that is durable. Redb itself keeps a reader who begins waiting while it writes to the disk. It costs no pages: what a write replaces is free only
    /// when the next one is durable in any case.
    shown: Mutex<Arc<Snapshot>>,
    database: Database,
}

impl Room {
    /// Makes a database without rows, at epoch 0, and makes its content durable, but not its name.
    pub(super) fn create(storage: &Storage, path: &Path, job: JobId) -> Result<(), StateError> {
        let database = guarded(path, || match storage {
            Storage::File => builder(1 << 20).create(path),
            Storage::Double(disk) => {
                disk.create(path)?;
                builder(1 << 20).create_with_backend(DoubleBackend::new(disk, path))
            }
        })?;
        let meta = Meta { epoch: 0, digest: Digest::default(), tables: BTreeMap::new() };
        write(&database, job, &meta, |_| Ok(())).map_err(|error| failed(path, "write", error))
    }

    /// Opens the database of `job`, with an integrity check of all its pages.
    pub(super) fn open(
        storage: &Storage,
        path: &Path,
        job: JobId,
        cache_bytes: u64,
    ) -> Result<(Self, Meta), StateError> {
        let length = match storage {
            Storage::File => crate::disk::RealDisk.length(path),
            Storage::Double(disk) => disk.length(path),
        };
        match length {
            Ok(Some(0)) => return Err(damaged(path, "it is empty")),
            Ok(Some(_)) => {}
            Ok(None) => return Err(damaged(path, "it is missing")),
            Err(error) => return Err(StateError::Io { action: "open", path: path.to_owned(), error }),
        }
        let cache = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        let database = guarded(path, || match storage {
            Storage::File => builder(cache).open(path),
            Storage::Double(disk) => builder(cache).create_with_backend(DoubleBackend::new(disk, path)),
        })?;
        let (snapshot, meta) = Snapshot::first(path, &database, job)?;
        Ok((Self { path: path.to_owned(), job, shown: Mutex::new(Arc::new(snapshot)), database }, meta))
    }

    /// Writes changes of many epochs up to `meta.epoch` in one durable transaction. `fill` writes them through [`Feed::put`].
    pub(super) fn write(
        &self,
        meta: &Meta,
        fill: impl FnOnce(&Feed<'_>) -> Result<(), ::redb::Error>,
    ) -> Result<(), StateError> {
        write(&self.database, self.job, meta, fill).map_err(|error| failed(&self.path, "write", error))?;
        let shown = Snapshot::of(&self.path, &self.database, meta.epoch)?;
        // The one before is dropped where nobody waits for the lock.
        let _before = std::mem::replace(&mut *self.shown.lock(), Arc::new(shown));
        Ok(())
    }

    /// The state as of the last write; later ones do not change what the snapshot shows. Waits for nothing.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.shown.lock().clone()
    }
}

/// Writes what `fill` says, and `meta`, durably.
fn write(
    database: &Database,
    job: JobId,
    meta: &Meta,
    fill: impl FnOnce(&Feed<'_>) -> Result<(), ::redb::Error>,
) -> Result<(), ::redb::Error> {
    let row = MetaRow {
        format: FORMAT_VERSION,
        job: job.to_string(),
        epoch: meta.epoch,
        digest: format!("{:032x}", meta.digest.0),
        tables: meta.tables.iter().map(|(name, versions)| (name.to_string(), versions.clone())).collect(),
    };
    let row = serde_json::to_vec(&row).expect("a description is plain JSON");
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    fill(&Feed { transaction: &transaction })?;
    transaction.open_table(META)?.insert(META_ROW, row.as_slice())?;
    Ok(transaction.commit()?)
}

/// A transaction being filled.
pub(super) struct Feed<'a> {
    transaction: &'a ::redb::WriteTransaction,
}

/// A table being filled.
pub(super) struct FeedTable<'a> {
    table: ::redb::Table<'a, &'static [u8], &'static [u8]>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Feed<'_> {
    /// Opens a table, or makes it.
    pub(super) fn table(&self, name: &str) -> Result<FeedTable<'_>, ::redb::Error> {
        let table = self.transaction.open_table(Rows::new(&table_name(name)))?;
        Ok(FeedTable { table, key: Vec::new(), value: Vec::new() })
    }
}

impl FeedTable<'_> {
    /// Puts or removes keys of a partition; fastest in the order of keys.
    pub(super) fn put<'c>(
        &mut self,
        partition: Partition,
        changes: impl Iterator<Item = Change<'c>>,
    ) -> Result<(), ::redb::Error> {
        for change in changes {
            row_key(&mut self.key, partition, change.cell.key());
            match change.cell.value() {
                Some(value) => {
                    self.value.clear();
                    self.value.extend_from_slice(&change.schema_version.to_le_bytes());
                    self.value.extend_from_slice(value);
                    self.table.insert(self.key.as_slice(), self.value.as_slice())?;
                }
                None => {
                    self.table.remove(self.key.as_slice())?;
                }
            }
        }
        Ok(())
    }
}

/// The state at one moment.
pub(super) struct Snapshot {
    path: PathBuf,
    transaction: ReadTransaction,
    through: Epoch,
}

impl Snapshot {
    /// What was written last, for epoch `through`.
    fn of(path: &Path, database: &Database, through: Epoch) -> Result<Self, StateError> {
        let transaction = database.begin_read().map_err(|error| failed(path, "read", error.into()))?;
        Ok(Self { path: path.to_owned(), transaction, through })
    }

    /// What a database of `job` holds when it is opened.
    fn first(path: &Path, database: &Database, job: JobId) -> Result<(Self, Meta), StateError> {
        let mut snapshot = Self::of(path, database, 0)?;
        let meta = snapshot.meta(job)?;
        snapshot.through = meta.epoch;
        Ok((snapshot, meta))
    }

    fn meta(&self, job: JobId) -> Result<Meta, StateError> {
        let read = || -> Result<Option<Vec<u8>>, ::redb::Error> {
            let table = self.transaction.open_table(META)?;
            Ok(table.get(META_ROW)?.map(|row| row.value().to_vec()))
        };
        let bytes = match read() {
            Ok(Some(bytes)) => bytes,
            Ok(None) | Err(::redb::Error::TableDoesNotExist(_)) => {
                return Err(damaged(&self.path, "it is a redb file, but not one of a job's state"));
            }
            Err(error) => return Err(failed(&self.path, "read", error)),
        };
        let row: MetaRow = serde_json::from_slice(&bytes)
            .map_err(|error| damaged(&self.path, format!("its description cannot be read: {error}")))?;
        if row.format != FORMAT_VERSION {
            return Err(StateError::NewerFormat { path: self.path.clone(), found: row.format, known: FORMAT_VERSION });
        }
        if row.job != job.to_string() {
            return Err(damaged(&self.path, format!("it belongs to the state of job {}, not to {job}", row.job)));
        }
        let digest = u128::from_str_radix(&row.digest, 16)
            .map_err(|error| damaged(&self.path, format!("its description cannot be read: {error}")))?;
        let tables = row.tables.into_iter().map(|(name, versions)| (TableName::from(name), versions)).collect();
        Ok(Meta { epoch: row.epoch, digest: Digest(digest), tables })
    }

    /// The epoch of the snapshot.
    pub(super) fn through(&self) -> Epoch {
        self.through
    }

    /// The cells of keys, in their order; a tombstone for a key that there is not.
    pub(super) fn get_many<'k>(
        &self,
        table: &str,
        wanted: impl Iterator<Item = (Partition, &'k [u8])>,
    ) -> Result<Vec<Cell>, StateError> {
        let rows = self.open(table)?;
        let (mut row, mut buffer) = (Vec::new(), Vec::new());
        let get = |(partition, key): (Partition, &[u8])| {
            row_key(&mut row, partition, key);
            let found = match &rows {
                Some(rows) => rows.get(row.as_slice()).map_err(|error| self.failed(error.into()))?,
                None => None,
            };
            match found {
                Some(value) => cell_of(&self.path, &mut buffer, key, value.value()),
                None => Ok(Cell::new(key, None)),
            }
        };
        wanted.map(get).collect()
    }

    /// Hands out the rows of some partitions, in their order, until `each` returns false; returns whether it never did.
    pub(super) fn scan(
        &self,
        table: &str,
        partitions: Range<u16>,
        mut each: impl FnMut(Partition, Cell) -> bool,
    ) -> Result<bool, StateError> {
        let Some(rows) = self.open(table)? else { return Ok(true) };
        let (start, end) = (partitions.start.to_be_bytes(), partitions.end.to_be_bytes());
        self.scan_range(&rows, &start, &end, &mut each)
    }

    /// As [`Snapshot::scan`], for one partition's keys that are not below `from`.
    pub(super) fn scan_from(
        &self,
        table: &str,
        partition: Partition,
        from: &[u8],
        mut each: impl FnMut(Partition, Cell) -> bool,
    ) -> Result<bool, StateError> {
        let Some(rows) = self.open(table)? else { return Ok(true) };
        let mut start = Vec::new();
        row_key(&mut start, partition, from);
        self.scan_range(&rows, &start, &end_of(partition), &mut each)
    }

    fn scan_range(
        &self,
        rows: &ReadRows,
        start: &[u8],
        end: &[u8],
        each: &mut dyn FnMut(Partition, Cell) -> bool,
    ) -> Result<bool, StateError> {
        let mut buffer = Vec::new();
        for row in rows.range::<&[u8]>(start..end).map_err(|error| self.failed(error.into()))? {
            let (key, value) = row.map_err(|error| self.failed(error.into()))?;
            let (partition, key) = key_of(&self.path, key.value())?;
            if !each(partition, cell_of(&self.path, &mut buffer, key, value.value())?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rows of some partitions from key `from` to before `to`: partition by partition, each in the order of its keys.
    pub(super) fn cursors(
        &self,
        table: &str,
        partitions: Range<u16>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<Vec<Cursor>, StateError> {
        let Some(rows) = self.open(table)? else { return Ok(Vec::new()) };
        let (mut start, mut end) = (Vec::new(), Vec::new());
        let cursor = |partition: u16| {
            row_key(&mut start, Partition(partition), from);
            match to {
                Some(to) => row_key(&mut end, Partition(partition), to),
                None => end = end_of(Partition(partition)).to_vec(),
            }
            let within = start.as_slice()..end.as_slice().max(start.as_slice());
            let range = rows.range_owned::<&[u8]>(within).map_err(|error| self.failed(error.into()))?;
            Ok(Cursor { path: self.path.clone(), range, buffer: Vec::new() })
        };
        partitions.map(cursor).collect()
    }

    /// The number of rows of a table; 0 when there is no such table.
    pub(super) fn rows(&self, table: &str) -> Result<u64, StateError> {
        let Some(rows) = self.open(table)? else { return Ok(0) };
        rows.len().map_err(|error| self.failed(error.into()))
    }

    fn open(&self, table: &str) -> Result<Option<ReadRows>, StateError> {
        match self.transaction.open_table(Rows::new(&table_name(table))) {
            Ok(rows) => Ok(Some(rows)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    fn failed(&self, error: ::redb::Error) -> StateError {
        failed(&self.path, "read", error)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Snapshot").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Rows of one partition in the order of their keys. It keeps the snapshot that it comes from.
pub(super) struct Cursor {
    path: PathBuf,
    range: OwnedRange<&'static [u8], &'static [u8]>,
    buffer: Vec<u8>,
}

impl Cursor {
    /// The next row, with the schema version of its value.
    pub(super) fn next_with_version(&mut self) -> Option<Result<(u32, Cell), StateError>> {
        let row = self.range.next()?.map_err(|error| failed(&self.path, "read", error.into()));
        Some(row.and_then(|(key, value)| {
            let (_, key) = key_of(&self.path, key.value())?;
            versioned_cell_of(&self.path, &mut self.buffer, key, value.value())
        }))
    }
}

impl Iterator for Cursor {
    type Item = Result<Cell, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with_version().map(|row| row.map(|(_, cell)| cell))
    }
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cursor").field("path", &self.path).finish_non_exhaustive()
    }
}

fn builder(cache_bytes: usize) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
    builder
}

fn table_name(table: &str) -> String {
    format!("{TABLE_PREFIX}{table}")
}

fn row_key(row: &mut Vec<u8>, partition: Partition, key: &[u8]) {
    row.clear();
    row.extend_from_slice(&partition.0.to_be_bytes());
    row.extend_from_slice(key);
}

/// Where the rows of a partition end.
fn end_of(partition: Partition) -> [u8; 2] {
    partition.0.checked_add(1).map_or([0xFF; 2], u16::to_be_bytes)
}

fn key_of<'r>(path: &Path, row: &'r [u8]) -> Result<(Partition, &'r [u8]), StateError> {
    let (partition, key) = row.split_first_chunk::<2>().ok_or_else(|| damaged(path, "a key has no partition"))?;
    Ok((Partition(u16::from_be_bytes(*partition)), key))
}

/// The cell of a row, made in `buffer`.
fn cell_of(path: &Path, buffer: &mut Vec<u8>, key: &[u8], row: &[u8]) -> Result<Cell, StateError> {
    Ok(versioned_cell_of(path, buffer, key, row)?.1)
}

/// The same, with the schema version of its value.
fn versioned_cell_of(path: &Path, buffer: &mut Vec<u8>, key: &[u8], row: &[u8]) -> Result<(u32, Cell), StateError> {
    let (version, value) = row.split_first_chunk::<SCHEMA_BYTES>().ok_or_else(|| damaged(path, NO_SCHEMA_VERSION))?;
    let version = u32::from_le_bytes(*version);
    Ok((version, Cell::new_in(buffer, key, Some(value)).of_schema_version(version)))
}

/// Opens a database. redb may panic on a file that was altered from outside before its check comes to it: that is damage, too.
fn guarded(path: &Path, open: impl FnOnce() -> Result<Database, DatabaseError>) -> Result<Database, StateError> {
    match std::panic::catch_unwind(AssertUnwindSafe(open)) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(StateError::Locked { path: path.to_owned() }),
        Ok(Err(error)) => Err(failed(path, "open", error.into())),
        Err(_) => Err(damaged(path, "its pages make no sense")),
    }
}

fn failed(path: &Path, action: &'static str, error: ::redb::Error) -> StateError {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match error {
        ::redb::Error::Io(error) if !matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof) => {
            StateError::Io { action, path: path.to_owned(), error }
        }
        ::redb::Error::Io(error) => damaged(path, error.to_string()),
        ::redb::Error::Corrupted(what) => damaged(path, what),
        error => StateError::Redb { action, path: path.to_owned(), error: error.to_string() },
    }
}

fn damaged(path: &Path, what: impl Into<String>) -> StateError {
    StateError::Damaged { path: path.to_owned(), what: what.into() }
}

/// redb on the double of a disk.
#[derive(Debug)]
struct DoubleBackend {
    disk: CrashDisk,
    path: PathBuf,
}

impl DoubleBackend {
    fn new(disk: &CrashDisk, path: &Path) -> Self {
        Self { disk: disk.clone(), path: path.to_owned() }
    }
}

impl StorageBackend for DoubleBackend {
    fn len(&self) -> std::io::Result<u64> {
        self.disk.length(&self.path)?.ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.disk.read_at(&self.path, offset, out)
    }

    fn set_len(&self, length: u64) -> std::io::Result<()> {
        self.disk.set_length(&self.path, length)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.disk.sync_file(&self.path)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.disk.write_at(&self.path, offset, bytes)
    }
}
