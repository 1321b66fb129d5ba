//! Values of other schema versions, read as those of the present one.
//!
//! A cell bears the schema version that it was written with, in memory, in the log and in redb. What reads values for somebody brings them to the version that the table has now, by
//! the operator's component and on a copy: so every reader sees one version, whatever is stored. It is pure work of another room's, handed in as [`Migrate`], and never done under a lock.
//!
//! Meanwhile each owner goes through its keys, a slice at a time, and writes anew what is of another version ([`TaskTables::migrate_some`]). When all owners of a table have, and redb holds
//! the epoch in which the last one did, nothing of another version is stored any more: then later components need not know those versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::versions::{self, VERSIONED, When};
use super::{Pressure, StateError, TableSpec, TablesError, TaskTables, Write};
use crate::epoch::Epoch;
use crate::epoch::entry::{Cell, TableName};
use crate::key::Partition;
use crate::record::Column;

/// The values of one call; more are taken in several.
const CALL_VALUES_MAX: usize = 1024;
/// The values that an owner writes anew at a time: the task does nothing else meanwhile.
const SLICE_VALUES: usize = 256;
/// The rows of redb that it looks at for that.
const SLICE_ROWS: usize = 4096;
/// About the bytes of one call, keys and values.
const CALL_BYTES_MAX: usize = 4 << 20;

/// Makes values of the present version out of those of another.
pub trait Migrate: Debug + Send + Sync {
    /// `values` of `table` (without its operator's name), which version `from` has written under `keys`, as the present version has them: one for each. It must always give the same.
    ///
    /// # Errors
    /// Why a value does not become one.
    fn migrate(&self, table: &str, from: u32, keys: &Column, values: &Column) -> Result<Column, String>;
}

/// How the values of a task's tables are written and read.
#[derive(Debug, Clone)]
pub struct Encoding {
    /// The version of each table.
    pub versions: Vec<u32>,
    /// The other versions from which each table's values can be brought to its own.
    pub readable: Vec<BTreeSet<u32>>,
    /// What does so.
    pub migrate: Option<Arc<dyn Migrate>>,
}

impl Encoding {
    /// Of tables of these versions, that can be brought to their own from `readable` ones.
    pub fn new(versions: Vec<u32>, readable: Vec<BTreeSet<u32>>, migrate: Option<Arc<dyn Migrate>>) -> Self {
        Self { versions, readable, migrate }
    }

    /// As `tables` declare it, without a way to read any other version.
    pub fn of(tables: &[TableSpec]) -> Self {
        let versions: Vec<u32> = tables.iter().map(|spec| spec.schema_version).collect();
        Self::new(versions, vec![BTreeSet::new(); tables.len()], None)
    }

    /// Brings the values among `cells`, of table number `table`, to its version.
    pub(super) fn bring<'c>(
        &self,
        table: usize,
        spec: &TableSpec,
        cells: impl Iterator<Item = &'c mut Cell>,
    ) -> Result<(), TablesError> {
        let mut others: BTreeMap<u32, Vec<&mut Cell>> = BTreeMap::new();
        for cell in cells.filter(|cell| cell.is_present() && cell.schema_version() != self.versions[table]) {
            others.entry(cell.schema_version()).or_default().push(cell);
        }
        for (from, mut cells) in others {
            let mut rest = cells.as_mut_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at_mut(call_end(rest));
                self.bring_some(table, spec, from, now)?;
                rest = later;
            }
        }
        Ok(())
    }

    fn bring_some(
        &self,
        table: usize,
        spec: &TableSpec,
        from: u32,
        cells: &mut [&mut Cell],
    ) -> Result<(), TablesError> {
        let to = self.versions[table];
        let failed = |error: String| TablesError::Migration { table: spec.name.clone(), from, to, error };
        let migrate = self.migrate.as_ref().ok_or_else(|| failed("the component has no `migration`".to_owned()))?;
        let is_versioned = spec.versioned_span_ms.is_some();
        let (mut keys, mut values, mut counts) =
            (Column::default(), Column::default(), Vec::with_capacity(cells.len()));
        for cell in cells.iter() {
            let stored = cell.value().unwrap_or_default();
            let of_key = if is_versioned { versions::values(stored) } else { vec![stored] };
            of_key.iter().for_each(|value| {
                keys.push(cell.key());
                values.push(value);
            });
            counts.push(of_key.len());
        }
        let name = spec.name.split_once('/').map_or(&*spec.name, |(_, name)| name);
        let made = migrate.migrate(name, from, &keys, &values).map_err(failed)?;
        if made.len() != values.len() {
            return Err(failed(format!("it made {} values of {}", made.len(), values.len())));
        }
        let mut next = 0;
        for (cell, count) in cells.iter_mut().zip(counts) {
            let new = (next..next + count).map(|index| made.get(index));
            let value = match is_versioned {
                true => versions::with_values(cell.value().unwrap_or_default(), new),
                false => made.get(next).to_vec(),
            };
            **cell = Cell::new(cell.key(), Some(&value)).of_schema_version(to);
            next += count;
        }
        Ok(())
    }
}

/// How many of `cells`, one at least, are taken in one call.
fn call_end(cells: &[&mut Cell]) -> usize {
    let mut bytes = 0;
    let fits = |cell: &&Cell| {
        bytes += cell.joined().len();
        bytes <= CALL_BYTES_MAX
    };
    cells.iter().take(CALL_VALUES_MAX).map(|cell| &**cell).take_while(fits).count().max(1)
}

/// The schema versions of stored values, as they are stored, and how far the owners of each table are with writing them anew.
#[derive(Debug, Default)]
pub(super) struct Held {
    versions: BTreeMap<TableName, BTreeSet<u32>>,
    passes: BTreeMap<TableName, Pass>,
}

/// Owners going through a table's keys.
#[derive(Debug)]
struct Pass {
    /// What they write.
    version: u32,
    /// Those that are not done.
    left: usize,
    /// The last epoch in which one of the others wrote something.
    through: Epoch,
}

impl Held {
    pub(super) fn new(versions: BTreeMap<TableName, BTreeSet<u32>>) -> Self {
        Self { versions, passes: BTreeMap::new() }
    }

    /// Whether all values that may be stored of a table can be read where it is `declared` so, and from `readable` versions.
    pub(super) fn check(&self, spec: &TableSpec, declared: u32, readable: &BTreeSet<u32>) -> Result<(), StateError> {
        let table = spec.name.clone();
        for &stored in self.versions.get(&table).into_iter().flatten() {
            if (stored ^ spec.as_stored(declared)) & VERSIONED != 0 {
                return Err(StateError::Versioned { table, stored: stored & VERSIONED != 0 });
            }
            let stored = stored & !VERSIONED;
            if stored != declared && !readable.contains(&stored) {
                return Err(StateError::SchemaVersion { table, stored, declared });
            }
        }
        Ok(())
    }

    /// `owners` of a table write `version`, as it is stored, from here on: all of them, or, while they are being opened, `more` of them. Returns whether they have to go through its keys.
    pub(super) fn write(&mut self, table: &TableName, version: u32, owners: usize, more: bool) -> bool {
        let versions = self.versions.entry(table.clone()).or_default();
        versions.insert(version);
        if versions.len() == 1 {
            self.passes.remove(table);
            return false;
        }
        let pass = self.passes.entry(table.clone()).or_insert(Pass { version, left: 0, through: 0 });
        *pass = Pass { version, left: if more { pass.left + owners } else { owners }, through: 0 };
        true
    }

    /// An owner has gone through its keys, and wrote nothing of another version after `through`.
    fn done(&mut self, table: &TableName, through: Epoch) {
        if let Some(pass) = self.passes.get_mut(table) {
            pass.left = pass.left.saturating_sub(1);
            pass.through = pass.through.max(through);
        }
    }

    /// The only version that a table's values have once redb holds `epoch`, where all owners are done by then.
    pub(super) fn only(&self, table: &TableName, epoch: Epoch) -> Option<u32> {
        self.passes.get(table).filter(|pass| pass.left == 0 && pass.through <= epoch).map(|pass| pass.version)
    }

    /// Redb holds `epoch`.
    pub(super) fn fed(&mut self, epoch: Epoch) {
        let tables: Vec<TableName> = self.passes.keys().cloned().collect();
        for table in tables {
            if let Some(only) = self.only(&table, epoch) {
                self.passes.remove(&table);
                self.versions.insert(table, [only].into());
            }
        }
    }
}

/// Where an owner stands that goes through its keys.
#[derive(Debug, Default)]
pub(super) struct Hand {
    table: usize,
    /// Counted from the task's first.
    partition: usize,
    /// Where redb's rows of the partition are gone on with; before that come the keys in memory.
    from: Option<Vec<u8>>,
}

impl TaskTables {
    /// Whether there may be values of other schema versions that [`TaskTables::migrate_some`] has not come to.
    pub fn is_migrating(&self) -> bool {
        self.migrating.load(Ordering::Relaxed)
    }

    /// Writes some of the values anew that are of other schema versions. To be called by the owner, again and again, but not between a seal and the reopening of admission: what it writes
    /// belongs to the open epoch. Returns false where it has to wait, for memory.
    ///
    /// # Errors
    /// When a value cannot be migrated, or what lies behind memory cannot be read.
    pub fn migrate_some(&self) -> Result<bool, TablesError> {
        if self.shared.pressure() > Pressure::Calm {
            return Ok(false);
        }
        let mut hand = self.hand.lock();
        let encoding = self.encoding();
        if hand.table == self.specs.len() {
            let mut held = self.shared.held().lock();
            self.specs.iter().for_each(|spec| held.done(&spec.name, self.epoch()));
            self.migrating.store(false, Ordering::Relaxed);
            return Ok(true);
        }
        let table = hand.table;
        let next = match hand.from.take() {
            None => {
                let cells = self.of_other_versions(table, hand.partition, encoding.versions[table], SLICE_VALUES);
                let has_more = cells.len() == SLICE_VALUES;
                self.write_anew(&encoding, table, cells)?;
                if has_more {
                    return Ok(true);
                }
                (!self.is_complete()).then(Vec::new)
            }
            Some(from) => self.migrate_rows(&encoding, table, hand.partition, &from)?,
        };
        hand.from = next;
        if hand.from.is_none() {
            hand.partition += 1;
            if hand.partition == self.range.len() {
                (hand.table, hand.partition) = (table + 1, 0);
            }
        }
        Ok(true)
    }

    /// Writes some keys anew whose rows in redb are of other versions, from key `from` on. Returns where to go on.
    fn migrate_rows(
        &self,
        encoding: &Encoding,
        table: usize,
        partition: usize,
        from: &[u8],
    ) -> Result<Option<Vec<u8>>, TablesError> {
        let partition = Partition(self.range.start + partition as u16);
        let snapshot = self.shared.room().snapshot();
        let (mut keys, mut rows, mut end) = (Column::default(), 0, None);
        let is_through = snapshot.scan_from(&self.specs[table].name, partition, from, |_, cell| {
            if keys.len() == SLICE_VALUES || rows == SLICE_ROWS {
                end = Some(cell.key().to_vec());
                return false;
            }
            rows += 1;
            if cell.schema_version() != encoding.versions[table] {
                keys.push(cell.key());
            }
            true
        });
        is_through.map_err(Box::new)?;
        // Memory may have newer values of them.
        let cells = self.stored_cells(table, &keys)?.into_iter();
        let others = cells.filter(|cell| cell.is_present() && cell.schema_version() != encoding.versions[table]);
        self.write_anew(encoding, table, others.collect())?;
        Ok(end)
    }

    fn write_anew(&self, encoding: &Encoding, table: usize, mut cells: Vec<Cell>) -> Result<(), TablesError> {
        encoding.bring(table, &self.specs[table], cells.iter_mut())?;
        let when = When::NEWEST;
        self.apply_stored(cells.iter().map(|cell| Write { table, key: cell.key(), value: cell.value(), when }))
    }
}
