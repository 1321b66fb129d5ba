//! Values remembered for reads that may be somewhat old. Pure.
//!
//! When memory is short, values go that have not been asked for since they were last passed by: a clock's hand goes round over all of them.

use std::sync::Arc;

use hashbrown::HashTable;

use super::Now;
use crate::lookup::TableId;

/// What an entry takes beside its key and value: itself, its places in the index, the counts of its value, and what an allocator adds.
const ENTRY_BYTES: usize = size_of::<Entry>() + 64;

/// Remembered values, by table and key.
#[derive(Debug)]
pub(super) struct Cache {
    bytes_max: usize,
    bytes: usize,
    entries: Vec<Entry>,
    /// Places in `entries`.
    index: HashTable<u32>,
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    table: TableId,
    hash: u64,
    key: Box<[u8]>,
    value: Option<Arc<[u8]>>,
    /// Its owner has read it then, or later.
    read: Now,
    is_used: bool,
}

impl Entry {
    fn is(&self, table: TableId, hash: u64, key: &[u8]) -> bool {
        self.hash == hash && self.table == table && *self.key == *key
    }
}

fn bytes_of(key: &[u8], value: Option<&[u8]>) -> usize {
    ENTRY_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

impl Cache {
    /// A cache of about at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, entries: Vec::new(), index: HashTable::new(), hand: 0 }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is remembered of a key, where `allows` says that it may be used as it was read then. The inner `None` is an absent value.
    pub(super) fn get(
        &mut self,
        table: TableId,
        hash: u64,
        key: &[u8],
        allows: impl FnOnce(Now) -> bool,
    ) -> Option<Option<Arc<[u8]>>> {
        let entries = &mut self.entries;
        let place = *self.index.find(hash, |&place| entries[place as usize].is(table, hash, key))?;
        let entry = &mut entries[place as usize];
        allows(entry.read).then(|| {
            entry.is_used = true;
            entry.value.clone()
        })
    }

    /// Remembers a value that was read not before `read`, unless a later one is known.
    pub(super) fn put(&mut self, table: TableId, hash: u64, key: &[u8], value: Option<&[u8]>, read: Now) {
        let bytes = bytes_of(key, value);
        let entries = &mut self.entries;
        let place = self.index.find(hash, |&place| entries[place as usize].is(table, hash, key)).copied();
        match place {
            Some(place) if entries[place as usize].read.time >= read.time => return,
            Some(place) if bytes > self.bytes_max => self.remove(place as usize),
            Some(place) => {
                let entry = &mut entries[place as usize];
                self.bytes -= bytes_of(&entry.key, entry.value.as_deref());
                self.bytes += bytes;
                (entry.value, entry.read) = (value.map(Arc::from), read);
            }
            None if bytes > self.bytes_max => return,
            None => {
                let Ok(place) = u32::try_from(entries.len()) else { return };
                let value = value.map(Arc::from);
                entries.push(Entry { table, hash, key: key.into(), value, read, is_used: false });
                self.index.insert_unique(hash, place, |&place| entries[place as usize].hash);
                self.bytes += bytes;
            }
        }
        while self.bytes > self.bytes_max {
            self.evict();
        }
    }

    fn evict(&mut self) {
        loop {
            self.hand = if self.hand < self.entries.len() { self.hand } else { 0 };
            let entry = &mut self.entries[self.hand];
            if !std::mem::take(&mut entry.is_used) {
                return self.remove(self.hand);
            }
            self.hand += 1;
        }
    }

    /// The last entry takes the place of the one removed.
    fn remove(&mut self, place: usize) {
        let last = self.entries.len() - 1;
        let hash_of_last = self.entries[last].hash;
        if let Ok(found) = self.index.find_entry(self.entries[place].hash, |&other| other as usize == place) {
            found.remove();
        }
        let removed = self.entries.swap_remove(place);
        self.bytes -= bytes_of(&removed.key, removed.value.as_deref());
        if place != last
            && let Some(moved) = self.index.find_mut(hash_of_last, |&other| other as usize == last)
        {
            *moved = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn now(time: u64) -> Now {
        Now { time: Duration::from_micros(time), epoch: 0 }
    }

    proptest! {
        /// Whatever is put and asked for: what the cache has is what it was given, by the time that it says, in no more memory than it may take.
        #[test]
        fn what_is_remembered_is_what_was_read_then_and_takes_no_more_than_it_may(
            entries_max in 0usize..6,
            steps in prop::collection::vec((0u8..12, 0u64..50, prop::option::of(0usize..300), any::<bool>()), 0..200),
        ) {
            let bytes_max = entries_max * (ENTRY_BYTES + 100);
            let mut cache = Cache::new(bytes_max);
            let mut given: Vec<(u8, u64, Option<Vec<u8>>)> = Vec::new();
            for (key, time, length, puts) in steps {
                // Few different hashes, so that keys collide.
                let (table, hash, name) = (TableId::new(0, usize::from(key % 2)), u64::from(key % 3), [key / 2]);
                let mut read_at = None;
                let found = cache.get(table, hash, &name, |read| {
                    read_at = Some(read.time);
                    read.time >= now(time).time
                });
                if let (Some(found), Some(read_at)) = (found, read_at) {
                    prop_assert!(read_at >= now(time).time);
                    let is_it = |(other, read, value): &(u8, u64, Option<Vec<u8>>)| {
                        *other == key && now(*read).time == read_at && value.as_deref() == found.as_deref()
                    };
                    prop_assert!(given.iter().any(is_it));
                }
                if puts {
                    let value = length.map(|length| vec![time as u8; length]);
                    cache.put(table, hash, &name, value.as_deref(), now(time));
                    given.push((key, time, value));
                }
                prop_assert!(cache.bytes() <= bytes_max);
                let bytes: usize = cache.entries.iter().map(|entry| bytes_of(&entry.key, entry.value.as_deref())).sum();
                prop_assert_eq!((cache.bytes(), cache.index.len()), (bytes, cache.entries.len()));
            }
        }
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut cache = Cache::new(10 * bytes_of(b"k", Some(b"v")));
        let table = TableId::default();
        let is_hot = |cache: &mut Cache| cache.get(table, 255, &[255], |_| true).is_some();
        cache.put(table, 255, &[255], Some(b"v"), now(1));
        for key in 0..200u8 {
            assert!(is_hot(&mut cache), "{key}");
            cache.put(table, u64::from(key), &[key], Some(b"v"), now(1));
        }
        assert_eq!(cache.entries.len(), 10);
    }

    #[test]
    fn a_value_that_grows_too_large_is_forgotten_rather_than_left_as_it_was() {
        let (table, allows) = (TableId::default(), |_: Now| true);
        let mut cache = Cache::new(ENTRY_BYTES + 10);
        cache.put(table, 1, b"k", Some(b"old"), now(1));
        cache.put(table, 1, b"k", Some(b"older"), now(0));
        assert_eq!(cache.get(table, 1, b"k", allows), Some(Some(b"old"[..].into())));
        cache.put(table, 1, b"k", Some(&[0; 20]), now(2));
        assert_eq!((cache.get(table, 1, b"k", allows), cache.bytes()), (None, 0));
    }
}
