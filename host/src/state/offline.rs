//! The committed state of a job that does not run, for people who want to look at it.
//!
//! It shows what the next start would find: redb, and over it the log's entries, but not one that several hosts have still to decide on. It changes neither log nor `committed`; the directory stays locked meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::StateError;
use super::identity::{self, DirectoryLock, Identity, Paths};
use super::recover::{Unfed, recover};
use super::redb::{Room, Snapshot, Storage};
use super::versions::{self, VERSIONED};
use crate::disk::{Disk, RealDisk};
use crate::epoch::Epoch;
use crate::epoch::entry::{Cell, Entry, TableName};
use crate::epoch::log::Survey;
use crate::key::{KeyHash, Partition};

const REDB_CACHE_BYTES: u64 = 16 << 20;

/// The changes that redb lacks, by table, partition and key.
type Overlay = BTreeMap<TableName, BTreeMap<(Partition, Box<[u8]>), Cell>>;

/// A value as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredValue {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The schema version that it was written with.
    pub schema_version: u32,
}

/// Keys with their values.
pub type Rows = Vec<(Vec<u8>, StoredValue)>;

/// A table, for a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// `operator/table`.
    pub name: TableName,
    /// How many keys have a value.
    pub keys: u64,
    /// The schema versions of its values, or of values that it once had.
    pub schema_versions: BTreeSet<u32>,
    /// Whether it keeps earlier values by event time. Keys that only have earlier ones count among `keys`, too.
    pub versioned: bool,
}

/// A state directory, opened to be read.
#[derive(Debug)]
pub struct Reader {
    identity: Identity,
    epoch: Epoch,
    last: Option<Entry>,
    tables: BTreeMap<TableName, BTreeSet<u32>>,
    overlay: Overlay,
    snapshot: Arc<Snapshot>,
    _room: Room,
    _lock: DirectoryLock,
}

impl Reader {
    /// Opens the state directory `dir`.
    ///
    /// # Errors
    /// When the job is running, there is no state, or it is damaged.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        let paths = Paths::new(dir);
        let absent = || StateError::Absent { path: dir.to_owned() };
        if !paths.lock.exists() && !paths.identity.exists() {
            return Err(absent());
        }
        let lock = DirectoryLock::take(&paths)?;
        let disk: &dyn Disk = &RealDisk;
        let identity = identity::load(disk, &paths)?.ok_or_else(absent)?;
        let survey = Survey::new(disk, &paths.directory, identity.job)?;
        let recovered = recover(disk, &Storage::File, &paths, &identity, survey, REDB_CACHE_BYTES)?;
        Ok(Self {
            identity,
            epoch: recovered.survey.committed(),
            last: recovered.last,
            tables: recovered.tables,
            overlay: overlay(recovered.unfed),
            snapshot: recovered.room.snapshot(),
            _room: recovered.room,
            _lock: lock,
        })
    }

    /// The last committed epoch; 0 when there is none.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the job recorded of its manifest at its first start.
    pub fn fingerprint(&self) -> &serde_json::Value {
        &self.identity.fingerprint
    }

    /// The last committed entry, without its deltas.
    pub fn last(&self) -> Option<&Entry> {
        self.last.as_ref()
    }

    /// All tables, by name.
    ///
    /// # Errors
    /// When redb cannot be read.
    pub fn tables(&self) -> Result<Vec<TableInfo>, StateError> {
        let info = |(name, schema_versions): (&TableName, &BTreeSet<u32>)| {
            let keys = self.count(name)?;
            let schema_versions = schema_versions.iter().map(|version| version & !VERSIONED).collect();
            Ok(TableInfo { name: name.clone(), keys, schema_versions, versioned: self.is_versioned(name) })
        };
        self.tables.iter().map(info).collect()
    }

    fn count(&self, table: &str) -> Result<u64, StateError> {
        let mut keys = self.snapshot.rows(table)?;
        let Some(changes) = self.overlay.get(table) else { return Ok(keys) };
        let wanted = changes.keys().map(|(partition, key)| (*partition, &key[..]));
        for (before, after) in self.snapshot.get_many(table, wanted)?.iter().zip(changes.values()) {
            keys -= u64::from(before.is_present());
            keys += u64::from(after.is_present());
        }
        Ok(keys)
    }

    fn is_versioned(&self, table: &str) -> bool {
        self.tables.get(table).is_some_and(|versions| versions.iter().any(|version| version & VERSIONED != 0))
    }

    /// The value of a key, of a versioned table the newest; `None` when it has none.
    ///
    /// # Errors
    /// When there is no such table, or redb cannot be read.
    pub fn get(&self, table: &str, key: &[u8]) -> Result<Option<StoredValue>, StateError> {
        self.check_table(table)?;
        let partition = KeyHash::of(key).partition(self.identity.partitions);
        let changed = self.overlay.get(table).and_then(|changes| changes.get(&(partition, key.into())));
        if let Some(cell) = changed {
            return Ok(self.shown(table, cell));
        }
        let found = self.snapshot.get_many(table, std::iter::once((partition, key)))?;
        Ok(found.first().and_then(|cell| self.shown(table, cell)))
    }

    /// What a cell shows: its value, of a versioned table the newest.
    fn shown(&self, table: &str, cell: &Cell) -> Option<StoredValue> {
        let value = if self.is_versioned(table) { versions::newest(cell.value()?)? } else { cell.value()? };
        Some(StoredValue { bytes: value.to_vec(), schema_version: cell.schema_version() })
    }

    /// The first `limit` keys with their values, in the order of keys, that begin with `prefix` and are not below `from`.
    ///
    /// # Errors
    /// When there is no such table, or redb cannot be read.
    pub fn scan(&self, table: &str, prefix: &[u8], from: Option<&[u8]>, limit: usize) -> Result<Rows, StateError> {
        self.check_table(table)?;
        let start = from.unwrap_or_default().max(prefix);
        let mut found = BTreeMap::new();
        for partition in (0..self.identity.partitions).map(Partition) {
            self.scan_partition(table, partition, start, prefix, limit, &mut found)?;
        }
        Ok(found.into_iter().collect())
    }

    /// Adds what one partition has to the `limit` first keys found so far.
    fn scan_partition(
        &self,
        table: &str,
        partition: Partition,
        start: &[u8],
        prefix: &[u8],
        limit: usize,
        found: &mut BTreeMap<Vec<u8>, StoredValue>,
    ) -> Result<(), StateError> {
        let changes = self.overlay.get(table);
        let mut take = |cell: &Cell| {
            let value = self.shown(table, cell);
            let Some(value) = value.filter(|_| cell.key().starts_with(prefix)) else {
                return cell.key().starts_with(prefix);
            };
            found.insert(cell.key().to_vec(), value);
            if found.len() <= limit {
                return true;
            }
            // Keys come in order: once one of them is past the limit, so are all behind it.
            found.pop_last().is_none_or(|(last, _)| last != cell.key())
        };
        if let Some(changes) = changes {
            let within = changes.range((partition, Box::from(start))..).take_while(|((p, _), _)| *p == partition);
            for (_, cell) in within {
                if !take(cell) {
                    break;
                }
            }
        }
        self.snapshot.scan_from(table, partition, start, |_, cell| {
            let is_changed = changes.is_some_and(|changes| changes.contains_key(&(partition, cell.key().into())));
            is_changed || take(&cell)
        })?;
        Ok(())
    }

    fn check_table(&self, table: &str) -> Result<(), StateError> {
        if self.tables.contains_key(table) {
            return Ok(());
        }
        let known: Vec<&str> = self.tables.keys().map(|name| &**name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(StateError::UnknownTable { table: table.to_owned(), known })
    }
}

/// The last committed entry of the state directory `dir`, without what several hosts have still to decide on; `None` where nothing was committed yet.
///
/// Only the log is looked at, and the directory is locked no longer than that takes: whoever relies on it opens it next, and compares.
///
/// # Errors
/// When the job is running, or the log is damaged.
pub fn last_entry(dir: &Path) -> Result<Option<Entry>, StateError> {
    let (paths, disk): (_, &dyn Disk) = (Paths::new(dir), &RealDisk);
    let Some(identity) = identity::load(disk, &paths)? else { return Ok(None) };
    let _lock = DirectoryLock::take(&paths)?;
    let survey = Survey::new(disk, &paths.directory, identity.job)?;
    Ok(survey.last().cloned())
}

fn overlay(unfed: Vec<Unfed>) -> Overlay {
    let mut overlay = Overlay::new();
    for delta in unfed.into_iter().flat_map(|unfed| unfed.deltas) {
        let changes = overlay.entry(delta.table).or_default();
        for part in delta.partitions {
            changes.extend(part.cells.into_iter().map(|cell| ((part.partition, cell.key().into()), cell)));
        }
    }
    overlay
}
