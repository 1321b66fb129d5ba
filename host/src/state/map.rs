//! One partition of one table in memory: a hash table of slots.
//!
//! Maps are small (a table's keys are spread over its partitions), so that growing one never pauses a task for long. What changed in the open
//! epoch is listed beside the slots as it happens; sealing takes that list and looks at nothing else. This file knows nothing of locks,
//! budgets or what lies behind memory.

use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::epoch::Epoch;
use crate::epoch::entry::Cell;
use crate::key::KeyHash;

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

/// A key's place. Slots lie in the hash table itself: one look less into memory than an index over a list of them.
#[derive(Debug)]
struct Slot {
    cell: Cell,
    /// The epoch that wrote it; of a cell read from redb, an epoch since which it has not changed. In either case: the value as of this epoch and of each after it.
    epoch: Epoch,
    hash: SlotHash,
    mark: Mark,
}

impl Slot {
    fn clean(hash: SlotHash, cell: Cell, epoch: Epoch) -> Self {
        Self { cell, epoch, hash, mark: Mark::default() }
    }

    fn holds(&self, hash: SlotHash, key: &[u8]) -> bool {
        self.hash == hash && self.cell.key() == key
    }
}

/// Two things in four bytes, which keep a slot at 40: where the slot stands in the list of changes, which counts while its epoch is the open one; and whether it
/// was used since the sweep last came by. Readers set the second, beside each other.
#[derive(Debug, Default)]
struct Mark(AtomicU32);

impl Mark {
    const USED: u32 = 1 << 31;

    /// Of a slot that is used at this moment.
    fn of_change(place: usize) -> Self {
        let place = u32::try_from(place).ok().filter(|place| place & Self::USED == 0);
        Self(AtomicU32::new(place.expect("memory ends before 2^31 keys of one partition") | Self::USED))
    }

    fn change(&mut self) -> usize {
        (*self.0.get_mut() & !Self::USED) as usize
    }

    fn set_used(&self) {
        // Most have been: then nothing is written, and the line stays in every core's cache.
        if self.0.load(Ordering::Relaxed) & Self::USED == 0 {
            self.0.fetch_or(Self::USED, Ordering::Relaxed);
        }
    }

    fn take_used(&mut self) -> bool {
        let mark = self.0.get_mut();
        let used = *mark & Self::USED != 0;
        *mark &= !Self::USED;
        used
    }
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
    slots: HashTable<Slot>,
    changes: Vec<Cell>,
    tombstones: usize,
}

impl PartitionMap {
    /// The keys in memory, tombstones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn tombstones(&self) -> usize {
        self.tombstones
    }

    /// The number of places for slots, free ones included: what a sweep walks over.
    pub(super) fn places(&self) -> usize {
        self.slots.num_buckets()
    }

    /// The memory that the map takes beside the cells' own allocations: places, free ones included, and the list of changes.
    pub(super) fn overhead_bytes(&self) -> u64 {
        (self.slots.allocation_size() + self.changes.capacity() * size_of::<Cell>()) as u64
    }

    /// Makes a place for another slot out of the places of removed ones, where there are enough of these. The hash table by itself would double.
    fn make_room(&mut self) {
        let usable = usable(self.places());
        if self.slots.len() == self.slots.capacity() && self.slots.len() <= usable / 8 * 7 {
            self.rebuild(usable);
        }
    }

    /// Gives memory back where few of the places are taken.
    fn shrink(&mut self) {
        if self.slots.len() <= usable(self.places()) / 8 * 3 {
            self.rebuild(self.slots.len() / 3 * 4);
        }
    }

    fn rebuild(&mut self, capacity: usize) {
        for slot in std::mem::replace(&mut self.slots, HashTable::with_capacity(capacity)) {
            self.slots.insert_unique(slot.hash.spread(), slot, |slot| slot.hash.spread());
        }
    }

    /// The cell of `key`, if it is in memory. A tombstone is a cell, too.
    pub(super) fn get(&self, hash: SlotHash, key: &[u8]) -> Option<&Cell> {
        self.get_since(hash, key).map(|(cell, _)| cell)
    }

    /// [`PartitionMap::get`], with an epoch since which the cell has not changed.
    pub(super) fn get_since(&self, hash: SlotHash, key: &[u8]) -> Option<(&Cell, Epoch)> {
        let slot = self.slots.find(hash.spread(), |slot| slot.holds(hash, key))?;
        slot.mark.set_used();
        Some((&slot.cell, slot.epoch))
    }

    /// The cell that is in all likelihood that of the key with this hash, on its way to the processor. The caller compares the key, and where it is another's
    /// asks [`PartitionMap::get`]; without any, the key is not in memory.
    pub(super) fn likely(&self, hash: SlotHash) -> Option<&Cell> {
        let slot = self.slots.find(hash.spread(), |slot| slot.hash == hash)?;
        slot.mark.set_used();
        slot.cell.prefetch();
        Some(&slot.cell)
    }

    /// Puts a write of the open epoch in place. Returns the cell that it replaces, for the caller to drop where no lock is held.
    pub(super) fn write(&mut self, hash: SlotHash, cell: Cell, open: Epoch) -> Option<Cell> {
        self.make_room();
        self.tombstones += usize::from(!cell.is_present());
        let entry = self.slots.entry(hash.spread(), |slot| slot.holds(hash, cell.key()), |slot| slot.hash.spread());
        match entry {
            Entry::Occupied(mut entry) => {
                let slot = entry.get_mut();
                if slot.epoch == open {
                    self.changes[slot.mark.change()] = cell.clone();
                    slot.mark.set_used();
                } else {
                    slot.mark = list_change(&mut self.changes, cell.clone());
                }
                slot.epoch = open;
                let replaced = std::mem::replace(&mut slot.cell, cell);
                self.tombstones -= usize::from(!replaced.is_present());
                Some(replaced)
            }
            Entry::Vacant(entry) => {
                let mark = list_change(&mut self.changes, cell.clone());
                entry.insert(Slot { cell, epoch: open, hash, mark });
                None
            }
        }
    }

    /// Puts a cell in place that redb holds and that has not changed since `epoch`, unless there is one; returns whether there was none.
    pub(super) fn insert_clean(&mut self, hash: SlotHash, cell: Cell, epoch: Epoch) -> bool {
        self.make_room();
        let entry = self.slots.entry(hash.spread(), |slot| slot.holds(hash, cell.key()), |slot| slot.hash.spread());
        let Entry::Vacant(entry) = entry else { return false };
        self.tombstones += usize::from(!cell.is_present());
        entry.insert(Slot::clean(hash, cell, epoch));
        true
    }

    /// Puts a cell of a committed epoch in place that redb may lack. Epochs come in their order. Returns the cell that it replaces.
    pub(super) fn insert_committed(&mut self, hash: SlotHash, cell: Cell, epoch: Epoch) -> Option<Cell> {
        self.make_room();
        self.tombstones += usize::from(!cell.is_present());
        let entry = self.slots.entry(hash.spread(), |slot| slot.holds(hash, cell.key()), |slot| slot.hash.spread());
        match entry {
            Entry::Occupied(mut entry) => {
                let replaced = std::mem::replace(entry.get_mut(), Slot::clean(hash, cell, epoch)).cell;
                self.tombstones -= usize::from(!replaced.is_present());
                Some(replaced)
            }
            Entry::Vacant(entry) => {
                entry.insert(Slot::clean(hash, cell, epoch));
                None
            }
        }
    }

    /// What changed since the last call, each key once, with its last value.
    pub(super) fn take_changes(&mut self) -> Vec<Cell> {
        std::mem::take(&mut self.changes)
    }

    /// Walks over up to `steps` places from `hand` on, and moves out what may go: cells whose epoch is at most `durable`, redb's. Returns where the walk
    /// ended; at [`PartitionMap::places`] or behind it is through. A map that has become much emptier by then is smaller.
    pub(super) fn sweep(
        &mut self,
        hand: usize,
        steps: usize,
        durable: Epoch,
        sweep: Sweep,
        evicted: &mut Vec<Cell>,
    ) -> usize {
        let end = self.places().min(hand.saturating_add(steps));
        for place in hand..end {
            let Ok(mut entry) = self.slots.get_bucket_entry(place) else { continue };
            let slot = entry.get_mut();
            if slot.epoch > durable || (sweep == Sweep::Tombstones && slot.cell.is_present()) {
                continue;
            }
            if slot.mark.take_used() {
                continue;
            }
            let cell = entry.remove().0.cell;
            self.tombstones -= usize::from(!cell.is_present());
            evicted.push(cell);
        }
        if end == self.places() {
            self.shrink();
        }
        end
    }
}

fn list_change(changes: &mut Vec<Cell>, cell: Cell) -> Mark {
    changes.push(cell);
    Mark::of_change(changes.len() - 1)
}

/// The slots that fit into so many places: hashbrown keeps an eighth free.
fn usable(places: usize) -> usize {
    if places < 8 { places.saturating_sub(1) } else { places / 8 * 7 }
}

/// The memory that a cell's own allocation takes, in bytes: with the two counters of a shared one, rounded up as allocators do and a little more, for what they
/// cannot use.
pub(super) fn memory_of(cell: &Cell) -> u64 {
    const COUNTERS: usize = 16;
    const UNUSED: usize = 8;
    (cell.joined().len() + COUNTERS + UNUSED).next_multiple_of(16) as u64
}

/// The memory that a key takes in an ordered index, in bytes: its allocation, and its place in a tree whose nodes are two thirds full.
pub(super) fn memory_in_order(key: &[u8]) -> u64 {
    const ALLOCATOR: usize = 8;
    const PLACE: usize = size_of::<Box<[u8]>>() * 3 / 2 + 4;
    ((key.len() + ALLOCATOR).next_multiple_of(16) + PLACE) as u64
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
    fn a_slot_is_small() {
        assert_eq!(size_of::<Slot>(), 40);
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
        assert!(map.likely(same).is_some());
        assert!(map.likely(SlotHash(8)).is_none());
    }

    #[test]
    fn a_map_whose_keys_come_and_go_stays_as_large_as_they_need() {
        const KEYS: u32 = 2_800;
        let mut map = PartitionMap::default();
        let key = |number: u32| number.to_le_bytes();
        let insert =
            |map: &mut PartitionMap, number| _ = map.insert_clean(hash(&key(number)), Cell::new(&key(number), None), 0);
        (0..KEYS).for_each(|number| insert(&mut map, number));
        let places = map.places();
        // The oldest go, as many as come.
        let mut evicted = Vec::new();
        for round in 1..100 {
            let first = round * 100;
            for number in first..first + KEYS - 100 {
                map.get(hash(&key(number)), &key(number));
            }
            map.sweep(0, usize::MAX, 0, Sweep::Everything, &mut evicted);
            assert_eq!(map.len(), KEYS as usize - 100);
            (first + KEYS - 100..first + KEYS).for_each(|number| insert(&mut map, number));
            assert_eq!(map.places(), places, "round {round}");
        }
        map.sweep(0, usize::MAX, 0, Sweep::Everything, &mut evicted);
        assert_eq!((map.len(), map.overhead_bytes()), (0, 0));
    }

    #[test]
    fn a_smaller_map_holds_what_the_larger_did() {
        let mut map = PartitionMap::default();
        let key = |number: u32| number.to_le_bytes();
        for number in 0..1_000 {
            let epoch = if number % 10 == 0 { 9 } else { 1 };
            map.insert_committed(hash(&key(number)), Cell::new(&key(number), Some(&key(number))), epoch);
        }
        let before = map.overhead_bytes();
        map.sweep(0, usize::MAX, 5, Sweep::Everything, &mut Vec::new());
        assert_eq!(map.len(), 100);
        assert!(map.overhead_bytes() < before / 4, "{} of {before}", map.overhead_bytes());
        for number in (0..1_000).step_by(10) {
            assert_eq!(map.get(hash(&key(number)), &key(number)).and_then(Cell::value), Some(&key(number)[..]));
        }
    }

    #[test]
    fn the_sweep_takes_only_what_is_durable_and_unused() {
        let mut map = PartitionMap::default();
        map.insert_committed(hash(b"old"), Cell::new(b"old", Some(b"1")), 3);
        map.insert_committed(hash(b"new"), Cell::new(b"new", Some(b"1")), 4);
        map.insert_committed(hash(b"used"), Cell::new(b"used", Some(b"1")), 3);
        map.insert_clean(hash(b"gone"), Cell::new(b"gone", None), 3);
        assert_eq!(map.get_since(hash(b"new"), b"new").map(|(_, epoch)| epoch), Some(4));
        map.get(hash(b"used"), b"used");
        let mut evicted = Vec::new();
        assert_eq!(map.sweep(0, 100, 3, Sweep::Tombstones, &mut evicted), map.places());
        assert_eq!(evicted, [Cell::new(b"gone", None)]);
        map.sweep(0, 100, 3, Sweep::Everything, &mut evicted);
        assert_eq!(evicted[1..], [Cell::new(b"old", Some(b"1"))]);
        assert!(map.get(hash(b"old"), b"old").is_none());
        write(&mut map, b"next", Some(b"2"), 9);
        assert_eq!(map.len(), 3);
    }
}
