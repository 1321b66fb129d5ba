//! The tables of one task in memory, as its owner writes them and everyone reads them.
//!
//! One lock a task covers all its tables. Hashing, allocation and the freeing of what was replaced happen outside it, and it is never held across I/O. What memory does
//! not hold is read from redb, unless the tables are known to be complete. A table that can be scanned has an index of its keys in memory, in their order; only
//! keys that come and go touch it. Reading as of an epoch, and scanning, are in `read`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::Encoding;
use super::map::{PartitionMap, SlotHash, Sweep, memory_in_order, memory_of};
use super::migration::Hand;
use super::redb::Snapshot;
use super::store::Shared;
use super::versions::{self, VERSIONED, When};
use super::{StateError, TablesError};
use crate::epoch::Epoch;
use crate::epoch::entry::{Cell, PartitionDelta, TableDelta, TableName};
use crate::key::{KeyHash, Partition};
use crate::record::Column;

/// The places that one call of [`TaskTables::maintain`] walks over: about half a millisecond under the lock, twice that where keys are taken out of an order.
const SWEEP_SLICE_PLACES: usize = 4096;
/// Tombstones are swept when there are at least this many, and they are a quarter of all cells.
const SWEEP_TOMBSTONES_MIN: usize = 1024;

/// A table to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSpec {
    /// `operator/table`.
    pub name: TableName,
    /// The version of its values' encoding that the component declares.
    pub schema_version: u32,
    /// Whether it can be scanned as it is now.
    pub ordered: bool,
    /// For how long it keeps earlier values by event time, if it does, in milliseconds.
    pub versioned_span_ms: Option<u64>,
}

impl TableSpec {
    /// A schema version as it is stored with the values: it tells whether they are sequences of versions, too.
    pub(super) fn as_stored(&self, schema_version: u32) -> u32 {
        if self.versioned_span_ms.is_some() { schema_version | VERSIONED } else { schema_version }
    }
}

/// How memory stands against its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Well within it.
    Calm,
    /// Close to it: owners evict by [`TaskTables::maintain`].
    Over,
    /// Over it: stop admission, seal and commit, keep calling [`TaskTables::maintain`], and go on when this is over.
    Full,
}

/// One write of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// Which of the task's tables.
    pub table: usize,
    /// The key.
    pub key: &'a [u8],
    /// Its new value, or `None` to remove it.
    pub value: Option<&'a [u8]>,
    /// From when on it holds. Of no meaning in a table that keeps no versions.
    pub when: When,
}

/// The tables of one task: a range of partitions of each of an operator's tables.
///
/// Any thread may read; one owner calls [`TaskTables::apply`], [`TaskTables::seal`] and [`TaskTables::maintain`].
#[derive(Debug)]
pub struct TaskTables {
    pub(super) shared: Arc<Shared>,
    pub(super) range: Range<u16>,
    pub(super) specs: Vec<TableSpec>,
    /// Whether any table can be scanned.
    has_order: bool,
    /// Whether any table keeps versions.
    has_versions: bool,
    /// Whether versions have gone before their time: that is told once.
    pub(super) has_lost_versions: AtomicBool,
    bytes: AtomicU64,
    /// How values are written and read. It changes only while the owner stands still.
    encoding: RwLock<Arc<Encoding>>,
    /// Whether values of other schema versions may be stored that the owner has not come to.
    pub(super) migrating: AtomicBool,
    /// Where the owner stands among them.
    pub(super) hand: Mutex<Hand>,
    pub(super) locked: RwLock<Maps>,
}

/// What the lock covers.
#[derive(Debug)]
pub(super) struct Maps {
    /// Table by table, partition by partition.
    pub maps: Vec<PartitionMap>,
    /// Table by table, the keys in memory, tombstones included; `None` for tables that cannot be scanned.
    pub orders: Vec<Option<BTreeSet<Box<[u8]>>>>,
    /// The open epoch.
    open: Epoch,
    /// Whether what is not in memory does not exist.
    pub complete: bool,
    /// No tombstone of a later epoch was ever evicted: what is not in complete tables did not exist as of this epoch either.
    pub forgotten: Epoch,
    /// Batches applied so far. What was read from redb is kept only if this has not moved meanwhile: it may be out of date otherwise.
    applied: u64,
    /// Where the sweep stands: a map and a place in it.
    hand: (usize, usize),
}

/// Where a key belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub map: u32,
    pub hash: SlotHash,
}

impl TaskTables {
    /// Empty tables, taken to be complete.
    pub(super) fn new(shared: Arc<Shared>, range: Range<u16>, specs: Vec<TableSpec>, open: Epoch) -> Self {
        let count = specs.len() * range.len();
        let maps = std::iter::repeat_with(PartitionMap::default).take(count).collect();
        let orders = specs.iter().map(|spec| spec.ordered.then(BTreeSet::new)).collect();
        let locked = RwLock::new(Maps { maps, orders, open, complete: true, forgotten: 0, applied: 0, hand: (0, 0) });
        let has_order = specs.iter().any(|spec| spec.ordered);
        let has_versions = specs.iter().any(|spec| spec.versioned_span_ms.is_some());
        let (bytes, has_lost_versions) = (AtomicU64::new(0), AtomicBool::new(false));
        let encoding = RwLock::new(Arc::new(Encoding::of(&specs)));
        let (migrating, hand) = (AtomicBool::new(false), Mutex::default());
        Self {
            shared,
            range,
            specs,
            has_order,
            has_versions,
            has_lost_versions,
            bytes,
            encoding,
            migrating,
            hand,
            locked,
        }
    }

    /// Adds what redb holds, until three quarters of the budget are used; what is left out is read when it is asked for.
    pub(super) fn preload(&mut self, snapshot: &Snapshot) -> Result<(), StateError> {
        let (partitions, shared) = (self.range.len(), self.shared.clone());
        for (table, spec) in self.specs.iter().enumerate() {
            let maps = self.locked.get_mut();
            let (start, mut added) = (self.range.start, 0);
            let is_whole = snapshot.scan(&spec.name, self.range.clone(), |partition, cell| {
                let map = &mut maps.maps[table * partitions + usize::from(partition.0 - start)];
                let before = map.overhead_bytes();
                let cell_bytes = memory_of(&cell);
                map.insert_clean(SlotHash::of(KeyHash::of(cell.key())), cell.clone(), snapshot.through());
                let bytes = cell_bytes + map.overhead_bytes() - before + maps.put_in_order(table, cell.key());
                shared.grow_tables(bytes, 0);
                added += bytes;
                shared.used() <= shared.budget() / 4 * 3
            })?;
            maps.complete &= is_whole;
            *self.bytes.get_mut() += added;
        }
        Ok(())
    }

    /// Adds the changes of a committed epoch that redb may lack. Epochs come in their order.
    pub(super) fn load_committed(&mut self, table: usize, partition: Partition, cells: &[Cell], epoch: Epoch) {
        let place = self.place_in(table, partition, KeyHash(0)).map as usize;
        let maps = self.locked.get_mut();
        let (mut added, mut freed) = (0, maps.maps[place].overhead_bytes());
        for cell in cells {
            let hash = SlotHash::of(KeyHash::of(cell.key()));
            added += memory_of(cell);
            match maps.maps[place].insert_committed(hash, cell.clone(), epoch) {
                Some(replaced) => freed += memory_of(&replaced),
                None => added += maps.put_in_order(table, cell.key()),
            }
        }
        added += maps.maps[place].overhead_bytes();
        self.grow(added, freed);
    }

    /// How values are written and read.
    pub fn encoding(&self) -> Arc<Encoding> {
        Arc::clone(&self.encoding.read())
    }

    /// Values are written and read otherwise from here on, and the owner has to go through them where some are `mixed`. What was written must have been sealed.
    pub(super) fn set_encoding(&self, encoding: Arc<Encoding>, mixed: bool) {
        *self.hand.lock() = Hand::default();
        *self.encoding.write() = encoding;
        self.migrating.store(mixed, Ordering::Relaxed);
    }

    /// At most `limit` of the cells in memory of one partition of a table, counted from the task's first, with values of another schema version.
    pub(super) fn of_other_versions(
        &self,
        table: usize,
        partition: usize,
        schema_version: u32,
        limit: usize,
    ) -> Vec<Cell> {
        let maps = self.locked.read();
        maps.maps[table * self.range.len() + partition].of_other_versions(schema_version).take(limit).cloned().collect()
    }

    /// The open epoch: the one that [`TaskTables::seal`] will close.
    pub fn epoch(&self) -> Epoch {
        self.locked.read().open
    }

    /// The tables, in the order of their numbers.
    pub fn specs(&self) -> &[TableSpec] {
        &self.specs
    }

    /// Whether `key` is in one of the task's partitions.
    pub fn owns(&self, key: &[u8]) -> bool {
        self.range.contains(&KeyHash::of(key).partition(self.shared.partitions()).0)
    }

    /// Whether any of the tables keeps versions: only there it matters when a write is from.
    pub fn keep_versions(&self) -> bool {
        self.has_versions
    }

    /// Calls `each` with the index and value of every one of `keys`, in their order; of a versioned table, with the newest value. One call sees whole batches.
    ///
    /// `each` runs under the task's lock: it must only copy, and not call the tables.
    ///
    /// # Errors
    /// For a foreign key or an unknown table, before `each` is called; or when what lies behind memory cannot be read.
    pub fn with_values(
        &self,
        table: usize,
        keys: &Column,
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TablesError> {
        match self.span_ms(table) {
            None => self.with_stored(table, keys, each),
            Some(_) => {
                self.with_stored(table, keys, &mut |index, stored| each(index, stored.and_then(versions::newest)))
            }
        }
    }

    /// As [`TaskTables::with_values`], with what is stored: the versions of a versioned table.
    pub(super) fn with_stored(
        &self,
        table: usize,
        keys: &Column,
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TablesError> {
        let places = self.places(table, keys)?;
        let is_migrating = self.is_migrating();
        let maps = self.locked.read();
        if maps.complete && !is_migrating {
            let likely: Vec<Option<&Cell>> =
                places.iter().map(|place| maps.maps[place.map as usize].likely(place.hash)).collect();
            for (index, (place, likely)) in places.iter().zip(likely).enumerate() {
                let key = keys.get(index);
                let cell = match likely {
                    Some(cell) if cell.key() != key => maps.get(*place, key),
                    likely => likely,
                };
                each(index, cell.and_then(Cell::value));
            }
            return Ok(());
        }
        let mut cells = self.cells(table, keys, &places, maps)?;
        if is_migrating {
            self.encoding().bring(table, &self.specs[table], cells.iter_mut().flatten())?;
        }
        for (index, cell) in cells.iter().enumerate() {
            each(index, cell.as_ref().and_then(Cell::value));
        }
        Ok(())
    }

    /// The cells of keys as they are stored, of whatever schema versions; where there is none, none comes.
    pub(super) fn stored_cells(&self, table: usize, keys: &Column) -> Result<Vec<Cell>, TablesError> {
        let places = self.places(table, keys)?;
        let cells = self.cells(table, keys, &places, self.locked.read())?;
        Ok(cells.into_iter().flatten().collect())
    }

    /// The cells of keys, from memory and from what lies behind it.
    fn cells(
        &self,
        table: usize,
        keys: &Column,
        places: &[Place],
        maps: RwLockReadGuard<'_, Maps>,
    ) -> Result<Vec<Option<Cell>>, TablesError> {
        // The snapshot is taken while the lock is held: what is evicted later is in it, what is written later is not.
        let mut cells: Vec<Option<Cell>> =
            places.iter().enumerate().map(|(index, place)| maps.get(*place, keys.get(index)).cloned()).collect();
        let applied = maps.applied;
        let is_missing = !maps.complete && cells.iter().any(Option::is_none);
        let snapshot = if is_missing { Some(self.shared.room().snapshot()) } else { None };
        drop(maps);
        if let Some(snapshot) = snapshot {
            self.fetch(table, keys, places, &snapshot, applied, &mut cells)?;
        }
        Ok(cells)
    }

    /// Reads the missing cells from redb, and keeps them as clean ones.
    fn fetch(
        &self,
        table: usize,
        keys: &Column,
        places: &[Place],
        snapshot: &Snapshot,
        applied: u64,
        cells: &mut [Option<Cell>],
    ) -> Result<(), TablesError> {
        let missing: Vec<usize> = (0..cells.len()).filter(|&index| cells[index].is_none()).collect();
        let wanted = missing.iter().map(|&index| (self.partition_of(places[index]), keys.get(index)));
        let fetched = snapshot.get_many(&self.specs[table].name, wanted).map_err(Box::new)?;
        let (mut added, mut freed) = (0, 0);
        let mut maps = self.locked.write();
        let is_current = maps.applied == applied;
        for (index, cell) in missing.into_iter().zip(fetched) {
            let Place { map: place, hash } = places[index];
            let map = &mut maps.maps[place as usize];
            freed += map.overhead_bytes();
            let is_new = is_current && map.insert_clean(hash, cell.clone(), snapshot.through());
            added += map.overhead_bytes();
            if is_new {
                added += memory_of(&cell) + maps.put_in_order(table, cell.key());
            }
            cells[index] = Some(cell);
        }
        drop(maps);
        self.grow(added, freed);
        Ok(())
    }

    /// The cell of one key; `None` where it has no value.
    ///
    /// # Errors
    /// As [`TaskTables::with_values`].
    pub fn get(&self, table: usize, key: &[u8]) -> Result<Option<Cell>, TablesError> {
        let keys: Column = [key].into_iter().collect();
        let mut found = None;
        self.with_values(table, &keys, &mut |_, value| found = value.map(|value| Cell::new(key, Some(value))))?;
        Ok(found)
    }

    /// Applies a batch's writes together, at the open epoch; the later of two writes of a key stays. Writes of versioned tables add versions.
    ///
    /// # Errors
    /// For a foreign key or an unknown table, or, where tables are versioned, when what lies behind memory cannot be read; nothing is applied then.
    pub fn apply<'a>(&self, writes: impl IntoIterator<Item = Write<'a>>) -> Result<(), TablesError> {
        if self.has_versions { self.apply_versions(writes) } else { self.apply_stored(writes) }
    }

    /// As [`TaskTables::apply`], with values as they are stored.
    pub(super) fn apply_stored<'a>(&self, writes: impl IntoIterator<Item = Write<'a>>) -> Result<(), TablesError> {
        let mut prepared = self.prepare(writes)?;
        if prepared.is_empty() {
            return Ok(());
        }
        let (mut added, mut freed) = (0, 0);
        let mut maps = self.locked.write();
        let (open, complete) = (maps.open, maps.complete);
        // What the writes will compare with is on its way to the processor before the first of them needs it.
        for (place, _) in &prepared {
            maps.maps[place.map as usize].likely(place.hash);
        }
        for (place, slot) in &mut prepared {
            let cell = slot.take().expect("prepared with a cell");
            let map = &mut maps.maps[place.map as usize];
            if complete && !cell.is_present() && map.get(place.hash, cell.key()).is_none() {
                *slot = Some(cell);
                continue;
            }
            added += memory_of(&cell);
            let named = self.has_order.then(|| cell.clone());
            freed += map.overhead_bytes();
            *slot = map.write(place.hash, cell, open);
            added += map.overhead_bytes();
            match (&slot, named) {
                (Some(replaced), _) => freed += memory_of(replaced),
                (None, Some(new)) => added += maps.put_in_order(place.map as usize / self.range.len(), new.key()),
                (None, None) => {}
            }
        }
        maps.applied += 1;
        drop(maps);
        self.grow(added, freed);
        Ok(())
    }

    fn prepare<'a>(
        &self,
        writes: impl IntoIterator<Item = Write<'a>>,
    ) -> Result<Vec<(Place, Option<Cell>)>, TablesError> {
        let mut buffer = Vec::new();
        let encoding = self.encoding();
        let prepare_one = |(index, write): (usize, Write<'a>)| {
            self.check_table(write.table)?;
            let place = self.place(write.table, write.key, index)?;
            let cell = Cell::new_in(&mut buffer, write.key, write.value);
            Ok((place, Some(cell.of_schema_version(encoding.versions[write.table]))))
        };
        writes.into_iter().enumerate().map(prepare_one).collect()
    }

    /// Closes the open epoch: hands over what changed in it, and opens the next.
    ///
    /// It takes the lists of changes that writes have kept, so its time depends on the number of partitions, not of keys.
    pub fn seal(&self) -> Vec<TableDelta> {
        let encoding = self.encoding();
        let mut maps = self.locked.write();
        maps.open += 1;
        let mut deltas = Vec::new();
        let (mut added, mut freed) = (0, 0);
        let tables = self.specs.iter().zip(&encoding.versions);
        for ((spec, version), maps) in tables.zip(maps.maps.chunks_mut(self.range.len().max(1))) {
            let changed = self.range.clone().zip(maps).filter_map(|(partition, map)| {
                freed += map.overhead_bytes();
                let cells = map.take_changes();
                added += map.overhead_bytes();
                (!cells.is_empty()).then_some(PartitionDelta { partition: Partition(partition), cells })
            });
            let partitions: Vec<PartitionDelta> = changed.collect();
            if !partitions.is_empty() {
                let (table, schema_version) = (spec.name.clone(), spec.as_stored(*version));
                deltas.push(TableDelta { table, schema_version, partitions });
            }
        }
        drop(maps);
        self.grow(added, freed);
        deltas
    }

    /// Evicts a bounded number of clean cells when memory is over budget. To be called once a batch, and while waiting under pressure.
    pub fn maintain(&self) -> Pressure {
        let pressure = self.shared.pressure();
        if pressure > Pressure::Calm {
            self.sweep(Sweep::Everything);
        } else if self.has_many_tombstones() {
            self.sweep(Sweep::Tombstones);
        }
        self.shared.pressure()
    }

    /// Evicts until memory is within its budget, or everything has been looked at twice: once may only have told that it was not used since.
    pub fn evict(&self) {
        let places: usize = self.locked.read().maps.iter().map(PartitionMap::places).sum();
        for _ in 0..2 * (places / SWEEP_SLICE_PLACES + 1) {
            if self.maintain() == Pressure::Calm {
                return;
            }
        }
    }

    fn has_many_tombstones(&self) -> bool {
        let maps = self.locked.read();
        let tombstones: usize = maps.maps.iter().map(PartitionMap::tombstones).sum();
        tombstones >= SWEEP_TOMBSTONES_MIN && tombstones >= maps.maps.iter().map(PartitionMap::len).sum::<usize>() / 4
    }

    fn sweep(&self, sweep: Sweep) {
        let durable = self.shared.durable();
        let (mut evicted, mut added, mut freed) = (Vec::new(), 0, 0);
        let mut maps = self.locked.write();
        let Maps { maps: all, orders, complete, forgotten, hand, .. } = &mut *maps;
        let mut steps = SWEEP_SLICE_PLACES;
        for _ in 0..=all.len() {
            let Some(map) = all.get_mut(hand.0) else {
                *hand = (0, 0);
                continue;
            };
            let before = evicted.len();
            freed += map.overhead_bytes();
            let end = map.sweep(hand.1, steps, durable, sweep, &mut evicted);
            added += map.overhead_bytes();
            if let Some(order) = &mut orders[hand.0 / self.range.len()] {
                for cell in &evicted[before..] {
                    order.remove(cell.key());
                    freed += memory_in_order(cell.key());
                }
            }
            steps -= end.saturating_sub(hand.1);
            *hand = if end >= map.places() { (hand.0 + 1, 0) } else { (hand.0, end) };
            if steps == 0 {
                break;
            }
        }
        *complete &= !evicted.iter().any(Cell::is_present);
        if evicted.iter().any(|cell| !cell.is_present()) {
            *forgotten = durable.max(*forgotten);
        }
        drop(maps);
        self.grow(added, freed + evicted.iter().map(memory_of).sum::<u64>());
    }

    /// The memory that the tables use, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The cells of a table in memory, tombstones included; 0 for an unknown table.
    pub fn len(&self, table: usize) -> usize {
        let maps = self.locked.read();
        maps.maps.chunks(self.range.len().max(1)).nth(table).map_or(0, |maps| maps.iter().map(PartitionMap::len).sum())
    }

    /// Whether all that there is, is in memory.
    pub fn is_complete(&self) -> bool {
        self.locked.read().complete
    }

    /// For how long a table keeps earlier values, if it does.
    pub(super) fn span_ms(&self, table: usize) -> Option<u64> {
        if self.has_versions { self.specs.get(table)?.versioned_span_ms } else { None }
    }

    fn places(&self, table: usize, keys: &Column) -> Result<Vec<Place>, TablesError> {
        self.check_table(table)?;
        keys.iter().enumerate().map(|(index, key)| self.place(table, key, index)).collect()
    }

    pub(super) fn check_table(&self, table: usize) -> Result<(), TablesError> {
        let tables = self.specs.len();
        if table < tables { Ok(()) } else { Err(TablesError::UnknownTable { table, tables }) }
    }

    pub(super) fn place(&self, table: usize, key: &[u8], index: usize) -> Result<Place, TablesError> {
        let hash = KeyHash::of(key);
        let partition = hash.partition(self.shared.partitions());
        if !self.range.contains(&partition.0) {
            return Err(TablesError::ForeignKey { index });
        }
        Ok(self.place_in(table, partition, hash))
    }

    fn place_in(&self, table: usize, partition: Partition, hash: KeyHash) -> Place {
        let map = table * self.range.len() + usize::from(partition.0 - self.range.start);
        Place { map: map as u32, hash: SlotHash::of(hash) }
    }

    pub(super) fn partition_of(&self, place: Place) -> Partition {
        Partition(self.range.start + (place.map as usize % self.range.len()) as u16)
    }

    fn grow(&self, added: u64, freed: u64) {
        self.bytes.fetch_add(added.wrapping_sub(freed), Ordering::Relaxed);
        self.shared.grow_tables(added, freed);
    }
}

impl Drop for TaskTables {
    fn drop(&mut self) {
        self.shared.grow_tables(0, *self.bytes.get_mut());
    }
}

impl Maps {
    pub(super) fn get(&self, place: Place, key: &[u8]) -> Option<&Cell> {
        self.maps[place.map as usize].get(place.hash, key)
    }

    /// Adds a key that is new in memory to its table's order, if it has one; returns the memory that this takes.
    fn put_in_order(&mut self, table: usize, key: &[u8]) -> u64 {
        let is_added = self.orders[table].as_mut().is_some_and(|order| order.insert(key.into()));
        if is_added { memory_in_order(key) } else { 0 }
    }
}
