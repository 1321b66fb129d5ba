//! The changes of one committed epoch, in memory, and the ways to find a key among them.
//!
//! Sealed sets are handed over as they were written: partition by partition, in no order. Most of them reach redb before anybody asks for one of their keys,
//! so ways are made when the first reader comes, or, where readers come again and again, with the epoch: a hash table a partition for lookups, a sorted list a task for scans. They hold places, not keys, and their memory is
//! counted with what waits for redb. This file knows nothing of which epochs can be read, or for how long.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;

use crate::epoch::entry::{Cell, PartitionDelta, TableDelta, TableName};
use crate::epoch::{Digest, Epoch};
use crate::key::{KeyHash, Partition};

/// A committed epoch's changes: immutable, and shared by the feeder and whoever reads.
#[derive(Debug)]
pub(super) struct EpochDelta {
    pub epoch: Epoch,
    /// Of its log entry.
    pub digest: Digest,
    /// The bytes of the changes, ways to find them not included.
    pub bytes: u64,
    tables: Vec<TableDelta>,
    ways: OnceLock<BTreeMap<TableName, TableWays>>,
    memory: WaysMemory,
}

/// Counts the memory of ways, in bytes: of one epoch, and of all.
#[derive(Debug)]
struct WaysMemory {
    own: AtomicU64,
    all: Arc<AtomicU64>,
}

impl WaysMemory {
    fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes as u64, Ordering::Relaxed);
        self.all.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for WaysMemory {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

/// The ways into one table's changes.
#[derive(Debug)]
struct TableWays {
    /// By partition; `None` where nothing has changed.
    partitions: Box<[Option<PartitionWay>]>,
    /// One a task: each hands over its own part of a table.
    runs: Vec<RunWay>,
}

#[derive(Debug)]
struct PartitionWay {
    /// Which of the epoch's table deltas, and which part of it.
    table: usize,
    part: usize,
    /// Places among the part's cells, by their keys' hashes.
    places: OnceLock<HashTable<u32>>,
}

#[derive(Debug)]
struct RunWay {
    table: usize,
    /// The partitions from the first to the last that has changes.
    span: Range<u16>,
    /// Parts and places in them, in the order of the keys.
    order: OnceLock<Box<[(u32, u32)]>>,
}

impl EpochDelta {
    /// `ways_bytes` is where the memory of ways is counted.
    pub(super) fn new(epoch: Epoch, digest: Digest, tables: Vec<TableDelta>, ways_bytes: &Arc<AtomicU64>) -> Self {
        let bytes = tables.iter().map(waiting_bytes).sum();
        let memory = WaysMemory { own: AtomicU64::new(0), all: ways_bytes.clone() };
        Self { epoch, digest, bytes, tables, ways: OnceLock::new(), memory }
    }

    /// The changes, as they were sealed.
    pub(super) fn tables(&self) -> &[TableDelta] {
        &self.tables
    }

    /// The changes of one table; `None` where there are none.
    pub(super) fn changes(&self, table: &str) -> Option<Changes<'_>> {
        let ways = self.ways.get_or_init(|| self.find_ways());
        Some(Changes { delta: self, ways: ways.get(table)? })
    }

    /// Makes the ways by which keys are looked up now, so that no reader has to wait for them.
    pub(super) fn make_ways(&self) {
        let ways = self.ways.get_or_init(|| self.find_ways());
        for way in ways.values().flat_map(|ways| ways.partitions.iter().flatten()) {
            self.places(way);
        }
    }

    /// Where the keys of a partition's changes are.
    fn places<'a>(&'a self, way: &'a PartitionWay) -> &'a HashTable<u32> {
        way.places.get_or_init(|| {
            let places = index_by_hash(&self.part(way.table, way.part).cells);
            self.memory.add(places.allocation_size());
            places
        })
    }

    fn find_ways(&self) -> BTreeMap<TableName, TableWays> {
        let mut ways: BTreeMap<TableName, TableWays> = BTreeMap::new();
        for (table, delta) in self.tables.iter().enumerate() {
            let partitions = || delta.partitions.iter().map(|part| part.partition.0);
            let (Some(first), Some(last)) = (partitions().min(), partitions().max()) else { continue };
            let own = ways
                .entry(delta.table.clone())
                .or_insert_with(|| TableWays { partitions: Box::default(), runs: Vec::new() });
            own.runs.push(RunWay { table, span: first..last.saturating_add(1), order: OnceLock::new() });
            if own.partitions.len() <= usize::from(last) {
                let mut longer = std::mem::take(&mut own.partitions).into_vec();
                longer.resize_with(usize::from(last) + 1, || None);
                own.partitions = longer.into();
            }
            for (part, changed) in delta.partitions.iter().enumerate() {
                let way = PartitionWay { table, part, places: OnceLock::new() };
                own.partitions[usize::from(changed.partition.0)] = Some(way);
            }
        }
        let parts: usize = ways.values().map(|ways| ways.partitions.len()).sum();
        self.memory.add(parts * size_of::<Option<PartitionWay>>());
        ways
    }

    fn part(&self, table: usize, part: usize) -> &PartitionDelta {
        &self.tables[table].partitions[part]
    }
}

/// One epoch's changes of one table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes<'a> {
    delta: &'a EpochDelta,
    ways: &'a TableWays,
}

impl<'a> Changes<'a> {
    /// The cell of a key, where the epoch has changed it. A tombstone is a cell, too.
    pub(super) fn get(&self, partition: Partition, hash: KeyHash, key: &[u8]) -> Option<&'a Cell> {
        let way = self.ways.partitions.get(usize::from(partition.0))?.as_ref()?;
        let cells = &self.delta.part(way.table, way.part).cells;
        let place = self.delta.places(way).find(spread(hash), |&place| cells[place as usize].key() == key)?;
        Some(&cells[*place as usize])
    }

    /// The changed cells of some partitions that are not below `from`, in the order of their keys: one list a task that made changes.
    pub(super) fn runs_from(&self, partitions: Range<u16>, from: &[u8]) -> Vec<Run<'a>> {
        let overlaps = |run: &&RunWay| run.span.start < partitions.end && partitions.start < run.span.end;
        let run_of = |run: &'a RunWay| {
            let parts = self.delta.tables[run.table].partitions.as_slice();
            let order = run.order.get_or_init(|| {
                let order = order_by_key(parts);
                self.delta.memory.add(size_of_val(&*order));
                order
            });
            let key = |&(part, place): &(u32, u32)| parts[part as usize].cells[place as usize].key();
            let start = order.partition_point(|place| key(place) < from);
            Run { parts, order: order[start..].iter(), partitions: partitions.clone() }
        };
        self.ways.runs.iter().filter(overlaps).map(run_of).collect()
    }

    /// All changed cells with their partitions.
    pub(super) fn cells(&self) -> impl Iterator<Item = (Partition, &'a Cell)> {
        let delta = self.delta;
        let parts = self.ways.runs.iter().flat_map(move |run| &delta.tables[run.table].partitions);
        parts.flat_map(|part| part.cells.iter().map(|cell| (part.partition, cell)))
    }
}

/// Cells of one task's changes, in the order of their keys.
#[derive(Debug)]
pub(super) struct Run<'a> {
    parts: &'a [PartitionDelta],
    order: std::slice::Iter<'a, (u32, u32)>,
    partitions: Range<u16>,
}

impl<'a> Iterator for Run<'a> {
    type Item = &'a Cell;

    fn next(&mut self) -> Option<&'a Cell> {
        // A log entry may come from a start with other tasks, so a run may hold others' partitions, too.
        let (part, place) = self.order.find(|(part, _)| {
            let partition = self.parts[*part as usize].partition;
            self.partitions.contains(&partition.0)
        })?;
        Some(&self.parts[*part as usize].cells[*place as usize])
    }
}

fn index_by_hash(cells: &[Cell]) -> HashTable<u32> {
    let hash_at = |place: u32| spread(KeyHash::of(cells[place as usize].key()));
    let mut places = HashTable::with_capacity(cells.len());
    for place in 0..count(cells.len()) {
        places.insert_unique(hash_at(place), place, |&place| hash_at(place));
    }
    places
}

fn order_by_key(parts: &[PartitionDelta]) -> Box<[(u32, u32)]> {
    let places = parts.iter().enumerate().flat_map(|(part, changed)| {
        let cells = changed.cells.iter().enumerate();
        cells.map(move |(place, cell)| (beginning(cell.key()), cell, (count(part), count(place))))
    });
    let mut places: Vec<_> = places.collect();
    places.sort_unstable_by(|(left, a, _), (right, b, _)| left.cmp(right).then_with(|| a.key().cmp(b.key())));
    places.into_iter().map(|(_, _, place)| place).collect()
}

/// The keys of one partition agree in the bits that make the partition.
fn spread(hash: KeyHash) -> u64 {
    hash.for_table()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("memory ends before 2^32 keys of one partition")
}

/// The first eight bytes of a key as a number that orders as the bytes do.
pub(super) fn beginning(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

fn waiting_bytes(delta: &TableDelta) -> u64 {
    const OVERHEAD: usize = size_of::<Cell>() + 24;
    let cells = delta.partitions.iter().flat_map(|partition| &partition.cells);
    cells.map(|cell| (cell.joined().len() + OVERHEAD) as u64).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTITIONS: u16 = 5;

    /// Changes of a table, by two tasks, as they would seal them.
    fn sealed(table: &str, changes: &BTreeMap<Vec<u8>, Option<u8>>) -> Vec<TableDelta> {
        let task = |range: Range<u16>| {
            let partitions = range.filter_map(|partition| {
                let own = changes.iter().rev().filter(|(key, _)| KeyHash::of(key).partition(PARTITIONS).0 == partition);
                let cells: Vec<Cell> =
                    own.map(|(key, value)| Cell::new(key, value.map(|value| vec![value]).as_deref())).collect();
                (!cells.is_empty()).then_some(PartitionDelta { partition: Partition(partition), cells })
            });
            TableDelta { table: table.into(), schema_version: 1, partitions: partitions.collect() }
        };
        vec![task(0..2), task(2..PARTITIONS)]
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..11)
    }

    proptest! {
        #[test]
        fn every_change_is_found_by_key_and_in_order(
            changes in prop::collection::btree_map(keys(), prop::option::of(any::<u8>()), 0..60),
            other in prop::collection::btree_map(keys(), prop::option::of(any::<u8>()), 0..10),
            from in keys(),
            (start, end) in (0..PARTITIONS, 0..=PARTITIONS),
        ) {
            let counted = Arc::new(AtomicU64::new(0));
            let deltas = [sealed("a/b", &changes), sealed("a/c", &other)].concat();
            let delta = EpochDelta::new(7, Digest::default(), deltas, &counted);
            prop_assert_eq!(counted.load(Ordering::Relaxed), 0);
            prop_assert!(delta.changes("a/none").is_none());
            let value = |cell: &Cell| cell.value().map(|value| value[0]);
            for key in changes.keys().chain(other.keys()) {
                let hash = KeyHash::of(key);
                let found = delta.changes("a/b").and_then(|own| own.get(hash.partition(PARTITIONS), hash, key));
                prop_assert_eq!(found.map(value), changes.get(key).copied());
            }
            let within = |key: &&Vec<u8>| (start..end).contains(&KeyHash::of(key).partition(PARTITIONS).0);
            let expected: Vec<&Vec<u8>> = changes.keys().filter(within).filter(|key| **key >= from).collect();
            let mut found = Vec::new();
            for run in delta.changes("a/b").into_iter().flat_map(|own| own.runs_from(start..end, &from)) {
                let run: Vec<&Cell> = run.collect();
                prop_assert!(run.is_sorted_by_key(|cell| cell.key()));
                found.extend(run);
            }
            found.sort_by_key(|cell| cell.key());
            prop_assert_eq!(found.iter().map(|cell| cell.key()).collect::<Vec<_>>(), expected);
            prop_assert_eq!(delta.changes("a/b").map_or(0, |own| own.cells().count()), changes.len());
            prop_assert!(changes.is_empty() || counted.load(Ordering::Relaxed) > 0);
            drop(delta);
            prop_assert_eq!(counted.load(Ordering::Relaxed), 0);
        }
    }
}
