//! One partition of one table in memory: an index of small entries over a list of slots.
//!
//! Maps are small (a table's keys are spread over its partitions), so that growing one never pauses a task for long. What changed in the open
//! epoch is listed beside the slots as it happens; sealing takes that list and looks at nothing else. This file knows nothing of locks,
//! budgets or what lies behind memory.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashTable;

use crate::epoch::Epoch;
use crate::epoch::entry::Cell;
use crate::key::KeyHash;

/// The epoch of cells that were read from redb: older than any that can be open.
const CLEAN: Epoch = 0;

/// The part of a key's hash that tells keys of one partition apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotHash(u32);

impl SlotHash {
    pub(super) fn of(hash: KeyHash) -> Self {
        Self(hash.for_table() as u32)
    }

    /// The hash table takes its groups from the low bits and its tags from the highest seven.
    fn spread(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    hash: SlotHash,
    slot: u32,
}

/// A key's place. `cell` is `None` while the slot is free.
#[derive(Debug)]
struct Slot {
    cell: Option<Cell>,
    /// The epoch that wrote it, or [`CLEAN`].
    epoch: Epoch,
    /// Where it stands in the list of changes, while `epoch` is the open one.
    change: u32,
    /// Whether it was used since the sweep last came by.
    used: AtomicBool,
}

/// What the sweep may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Whatever redb holds, too, and was not used since the last time.
    Everything,
    /// Only tombstones: their absence means the same.
    Tombstones,
}

/// One partition of one table.
#[derive(Debug, Default)]
pub(super) struct PartitionMap {
    index: HashTable<IndexEntry>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    changes: Vec<Cell>,
    tombstones: usize,
}

impl PartitionMap {
    /// The keys in memory, tombstones included.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn tombstones(&self) -> usize {
        self.tombstones
    }

    /// The number of slots, free ones included: what a sweep walks over.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The cell of `key`, if it is in memory. A tombstone is a cell, too.
    pub(super) fn get(&self, hash: SlotHash, key: &[u8]) -> Option<&Cell> {
        let slot = &self.slots[self.find(hash, key)? as usize];
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        slot.cell.as_ref()
    }

    /// Puts a write of the open epoch in place. Returns the cell that it replaces, for the caller to drop where no lock is held.
    pub(super) fn write(&mut self, hash: SlotHash, cell: Cell, open: Epoch) -> Option<Cell> {
        self.tombstones += usize::from(!cell.is_present());
        let Some(slot) = self.find(hash, cell.key()) else {
            let change = self.list_change(cell.clone());
            self.insert(hash, Slot { cell: Some(cell), epoch: open, change, used: AtomicBool::new(true) });
            return None;
        };
        if self.slots[slot as usize].epoch == open {
            self.changes[self.slots[slot as usize].change as usize] = cell.clone();
        } else {
            self.slots[slot as usize].change = self.list_change(cell.clone());
        }
        let slot = &mut self.slots[slot as usize];
        slot.epoch = open;
        *slot.used.get_mut() = true;
        let replaced = slot.cell.replace(cell);
        self.tombstones -= usize::from(replaced.as_ref().is_some_and(|cell| !cell.is_present()));
        replaced
    }

    /// Puts a cell of redb's in place, unless there is one; returns whether there was none.
    pub(super) fn insert_clean(&mut self, hash: SlotHash, cell: Cell) -> bool {
        if self.find(hash, cell.key()).is_some() {
            return false;
        }
        self.tombstones += usize::from(!cell.is_present());
        self.insert(hash, Slot { cell: Some(cell), epoch: CLEAN, change: 0, used: AtomicBool::new(false) });
        true
    }

    /// Puts a cell of a committed epoch in place that redb may lack. Epochs come in their order. Returns the cell that it replaces.
    pub(super) fn insert_committed(&mut self, hash: SlotHash, cell: Cell, epoch: Epoch) -> Option<Cell> {
        self.tombstones += usize::from(!cell.is_present());
        let Some(slot) = self.find(hash, cell.key()) else {
            self.insert(hash, Slot { cell: Some(cell), epoch, change: 0, used: AtomicBool::new(false) });
            return None;
        };
        let slot = &mut self.slots[slot as usize];
        slot.epoch = epoch;
        let replaced = slot.cell.replace(cell);
        self.tombstones -= usize::from(replaced.as_ref().is_some_and(|cell| !cell.is_present()));
        replaced
    }

    /// What changed since the last call, each key once, with its last value.
    pub(super) fn take_changes(&mut self) -> Vec<Cell> {
        std::mem::take(&mut self.changes)
    }

    /// Walks over up to `steps` slots from `hand` on, and moves out what may go: cells whose epoch is at most `durable`, redb's. Returns where the walk ended;
    /// at [`PartitionMap::slots`] it is through.
    pub(super) fn sweep(
        &mut self,
        hand: usize,
        steps: usize,
        durable: Epoch,
        sweep: Sweep,
        evicted: &mut Vec<Cell>,
    ) -> usize {
        let end = self.slots.len().min(hand.saturating_add(steps));
        for place in hand..end {
            let slot = &mut self.slots[place];
            let Some(cell) = &slot.cell else { continue };
            if slot.epoch > durable || (sweep == Sweep::Tombstones && cell.is_present()) {
                continue;
            }
            if std::mem::take(slot.used.get_mut()) {
                continue;
            }
            let cell = slot.cell.take().expect("looked at above");
            self.tombstones -= usize::from(!cell.is_present());
            self.forget(place as u32, SlotHash::of(KeyHash::of(cell.key())));
            evicted.push(cell);
        }
        end
    }

    fn find(&self, hash: SlotHash, key: &[u8]) -> Option<u32> {
        let is_key = |entry: &IndexEntry| {
            entry.hash == hash && self.slots[entry.slot as usize].cell.as_ref().is_some_and(|cell| cell.key() == key)
        };
        self.index.find(hash.spread(), is_key).map(|entry| entry.slot)
    }

    fn insert(&mut self, hash: SlotHash, slot: Slot) {
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place as usize] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("memory ends before 2^32 keys of one partition")
            }
        };
        self.index.insert_unique(hash.spread(), IndexEntry { hash, slot: place }, |entry| entry.hash.spread());
    }

    fn forget(&mut self, place: u32, hash: SlotHash) {
        if let Ok(entry) = self.index.find_entry(hash.spread(), |entry| entry.slot == place) {
            entry.remove();
        }
        self.free.push(place);
    }

    fn list_change(&mut self, cell: Cell) -> u32 {
        self.changes.push(cell);
        u32::try_from(self.changes.len() - 1).expect("memory ends before 2^32 keys of one partition")
    }
}

/// The memory that a cell takes in a map, in bytes: its allocation (with the two counters of a shared one, rounded up as allocators do), its slot, and
/// its share of an index that is two thirds full.
pub(super) fn memory_of(cell: &Cell) -> u64 {
    const COUNTERS: usize = 16;
    const ALLOCATOR: usize = 8;
    const INDEX: usize = (size_of::<IndexEntry>() + 1) * 3 / 2;
    let allocation = (cell.joined().len() + COUNTERS + ALLOCATOR).next_multiple_of(16);
    (allocation + size_of::<Slot>() + INDEX) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: &[u8]) -> SlotHash {
        SlotHash::of(KeyHash::of(key))
    }

    fn write(map: &mut PartitionMap, key: &[u8], value: Option<&[u8]>, open: Epoch) {
        map.write(hash(key), Cell::new(key, value), open);
    }

    #[test]
    fn changes_hold_the_last_value_of_each_key_once() {
        let mut map = PartitionMap::default();
        write(&mut map, b"a", Some(b"1"), 1);
        write(&mut map, b"b", Some(b"2"), 1);
        write(&mut map, b"a", None, 1);
        assert_eq!(map.take_changes(), [Cell::new(b"a", None), Cell::new(b"b", Some(b"2"))]);
        assert_eq!(map.tombstones(), 1);
        write(&mut map, b"b", Some(b"3"), 2);
        assert_eq!(map.take_changes(), [Cell::new(b"b", Some(b"3"))]);
        assert_eq!(map.take_changes(), []);
    }

    #[test]
    fn keys_whose_short_hashes_collide_stay_apart() {
        let mut map = PartitionMap::default();
        let same = SlotHash(7);
        for key in [b"a", b"b", b"c"] {
            map.write(same, Cell::new(key, Some(key)), 1);
        }
        for key in [b"a", b"b", b"c"] {
            assert_eq!(map.get(same, key).and_then(Cell::value), Some(&key[..]));
        }
        assert!(map.get(same, b"d").is_none());
    }

    #[test]
    fn the_sweep_takes_only_what_is_durable_and_unused() {
        let mut map = PartitionMap::default();
        map.insert_committed(hash(b"old"), Cell::new(b"old", Some(b"1")), 3);
        map.insert_committed(hash(b"new"), Cell::new(b"new", Some(b"1")), 4);
        map.insert_committed(hash(b"used"), Cell::new(b"used", Some(b"1")), 3);
        map.insert_clean(hash(b"gone"), Cell::new(b"gone", None));
        map.get(hash(b"used"), b"used");
        let mut evicted = Vec::new();
        assert_eq!(map.sweep(0, 100, 3, Sweep::Tombstones, &mut evicted), 4);
        assert_eq!(evicted, [Cell::new(b"gone", None)]);
        map.sweep(0, 100, 3, Sweep::Everything, &mut evicted);
        assert_eq!(evicted[1..], [Cell::new(b"old", Some(b"1"))]);
        assert!(map.get(hash(b"old"), b"old").is_none());
        write(&mut map, b"next", Some(b"2"), 9);
        assert_eq!((map.slots(), map.len()), (4, 3));
    }
}
