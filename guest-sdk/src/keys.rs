//! The distinct keys of a batch: each gets a number, its *slot*, by which tables hold their values. Where records are apart, each has its keys to itself.
//!
//! Keys are hashed once a record and compared where they lie in the batch; nothing is allocated for one. The hash is for
//! this table alone, and not the host's: crafted keys can make it slow, but only within one batch.

use crate::bindings::wasmill::operator::types::{Batch, Column};

/// The distinct keys of the current batch, and whatever other keys the function has asked for.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    /// The slot of each record's key. Empty until [`KeyIndex::build`].
    slots: Vec<u32>,
    /// For each slot, where its key lies and what it hashes to.
    keys: Vec<Key>,
    /// Open addressing with linear probing: slot + 1, or 0.
    buckets: Vec<u32>,
    /// Keys that no record of the batch has.
    others: Column,
    /// The distinct keys of the batch's records, once [`KeyIndex::distinct`] has copied them.
    distinct: Column,
    /// The number of slots that belong to records.
    distinct_len: usize,
    /// Whether the batch's records are apart: then record i has slot i, and whatever other keys it asks for are its own.
    is_apart: bool,
}

#[derive(Debug, Clone, Copy)]
struct Key {
    /// The record, or the number of records plus the place in `others`.
    place: u32,
    /// The record that it is for, or [`ANYONE`].
    of: u32,
    hash: u64,
}

/// In place of a record: a key that is for all of them.
pub(crate) const ANYONE: u32 = u32::MAX;

impl KeyIndex {
    pub(crate) fn empty() -> Self {
        Self {
            slots: Vec::new(),
            keys: Vec::new(),
            buckets: Vec::new(),
            others: Column::empty(),
            distinct: Column::empty(),
            distinct_len: 0,
            is_apart: false,
        }
    }

    /// Says whether the records of the next batch are apart.
    pub(crate) fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
    }

    /// Forgets the batch and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.keys.clear();
        self.others.clear();
        self.distinct.clear();
        self.distinct_len = 0;
    }

    /// Gives every key of `batch` its slot, in the order of first occurrence. Does nothing the second time.
    pub(crate) fn build(&mut self, batch: &Batch) {
        if !self.slots.is_empty() {
            return;
        }
        self.buckets.clear();
        self.buckets.resize((2 * batch.len()).next_power_of_two().max(16), 0);
        for record in 0..batch.len() {
            let of = if self.is_apart { record as u32 } else { ANYONE };
            let key = batch.keys.get(record);
            let hash = hash(of, key);
            let slot = match self.find(batch, of, key, hash) {
                Ok(slot) => slot,
                Err(bucket) => self.insert(bucket, record, of, hash),
            };
            self.slots.push(slot);
        }
        self.distinct_len = self.keys.len();
    }

    /// The slot of a record's key, after [`KeyIndex::build`].
    pub(crate) fn slot_of_record(&self, record: u32) -> usize {
        self.slots[record as usize] as usize
    }

    /// The slot of any key that `record` asks for, after [`KeyIndex::build`]; a new one where no record has the key.
    pub(crate) fn slot_of_key(&mut self, batch: &Batch, record: u32, key: &[u8]) -> usize {
        self.slot_for(batch, if self.is_apart { record } else { ANYONE }, key)
    }

    fn slot_for(&mut self, batch: &Batch, of: u32, key: &[u8]) -> usize {
        if 2 * self.keys.len() >= self.buckets.len() {
            self.grow();
        }
        let hash = hash(of, key);
        let slot = match self.find(batch, of, key, hash) {
            Ok(slot) => slot,
            Err(bucket) => {
                self.others.push(key);
                self.insert(bucket, batch.len() + self.others.len() - 1, of, hash)
            }
        };
        slot as usize
    }

    /// The records that the batch's own keys are read for, in the order of [`KeyIndex::distinct`]; `None` where they are not apart.
    pub(crate) fn readers(&self) -> Option<&[u32]> {
        self.is_apart.then_some(&*self.slots)
    }

    /// The key of a slot.
    pub(crate) fn key<'a>(&'a self, batch: &'a Batch, slot: usize) -> &'a [u8] {
        let place = self.keys[slot].place as usize;
        match place.checked_sub(batch.len()) {
            None => batch.keys.get(place),
            Some(other) => self.others.get(other),
        }
    }

    /// The keys of the batch's records, each once, in slot order. They are copied only where some key comes twice.
    pub(crate) fn distinct<'a>(&'a mut self, batch: &'a Batch) -> &'a Column {
        if self.distinct_len == batch.len() {
            return &batch.keys;
        }
        if self.distinct.is_empty() {
            for key in &self.keys[..self.distinct_len] {
                self.distinct.push(batch.keys.get(key.place as usize));
            }
        }
        &self.distinct
    }

    /// The slot of `key`, or the bucket where it would go.
    fn find(&self, batch: &Batch, of: u32, key: &[u8], hash: u64) -> Result<u32, usize> {
        let mask = self.buckets.len() - 1;
        let mut bucket = (hash >> 32) as usize & mask;
        loop {
            match self.buckets[bucket] {
                0 => return Err(bucket),
                found => {
                    let slot = found - 1;
                    let found = self.keys[slot as usize];
                    if found.hash == hash && found.of == of && same(self.key(batch, slot as usize), key) {
                        return Ok(slot);
                    }
                }
            }
            bucket = (bucket + 1) & mask;
        }
    }

    fn insert(&mut self, bucket: usize, place: usize, of: u32, hash: u64) -> u32 {
        let slot = self.keys.len() as u32;
        self.keys.push(Key { place: place as u32, of, hash });
        self.buckets[bucket] = slot + 1;
        slot
    }

    fn grow(&mut self) {
        let len = 2 * self.buckets.len();
        self.buckets.clear();
        self.buckets.resize(len, 0);
        for (slot, key) in self.keys.iter().enumerate() {
            let mut bucket = (key.hash >> 32) as usize & (len - 1);
            while self.buckets[bucket] != 0 {
                bucket = (bucket + 1) & (len - 1);
            }
            self.buckets[bucket] = slot as u32 + 1;
        }
    }
}

/// Distinct keys that belong to no batch, numbered in the order in which they come.
#[derive(Debug)]
pub(crate) struct KeySet {
    index: KeyIndex,
    no_records: Batch,
}

impl KeySet {
    pub(crate) fn empty() -> Self {
        let mut set = Self { index: KeyIndex::empty(), no_records: Batch::empty() };
        set.index.build(&set.no_records);
        set
    }

    /// The number of `key`, as it is wanted for the record `of` or for [`ANYONE`]; a new one where it has none yet.
    pub(crate) fn place(&mut self, of: u32, key: &[u8]) -> usize {
        self.index.slot_for(&self.no_records, of, key)
    }

    /// The records that the keys are wanted for, from number `first` on.
    pub(crate) fn wanted_for(&self, first: usize) -> Vec<u32> {
        self.index.keys[first..].iter().map(|key| key.of).collect()
    }

    /// The keys by their numbers.
    pub(crate) fn keys(&self) -> &Column {
        &self.index.others
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.index.build(&self.no_records);
    }
}

/// Eight bytes at a step: rotate, xor, multiply, as rustc's FxHash does. The upper half is the well mixed one.
fn hash(of: u32, key: &[u8]) -> u64 {
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let step = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut hash = key.len() as u64 ^ u64::from(of) << 32;
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        hash = step(hash, u64::from_le_bytes(*word));
    }
    hash = step(hash, partial_word(rest));
    hash ^ (hash >> 29)
}

/// Up to seven bytes as a number.
fn partial_word(rest: &[u8]) -> u64 {
    rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Whether two keys are equal. In a component `==` on slices is a call that goes byte by byte.
fn same(left: &[u8], right: &[u8]) -> bool {
    let (left_words, left_rest) = left.as_chunks::<8>();
    let (right_words, right_rest) = right.as_chunks::<8>();
    left.len() == right.len()
        && left_words.iter().zip(right_words).all(|(l, r)| u64::from_le_bytes(*l) == u64::from_le_bytes(*r))
        && left_rest.iter().zip(right_rest).all(|(l, r)| l == r)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(keys: &[&str]) -> Batch {
        let mut batch = Batch::empty();
        for key in keys {
            batch.keys.push(key.as_bytes());
            batch.values.push(b"");
            batch.times.push(0);
        }
        batch
    }

    fn keys_of(column: &Column) -> Vec<&[u8]> {
        (0..column.len()).map(|index| column.get(index)).collect()
    }

    #[test]
    fn equal_keys_share_a_slot_in_the_order_of_first_occurrence() {
        let batch = batch(&["b", "a", "b", "", "a-long-key-of-several-words", "a", "a-long-key-of-several-wordS", ""]);
        let mut index = KeyIndex::empty();
        index.build(&batch);
        let slots: Vec<usize> = (0..8).map(|record| index.slot_of_record(record)).collect();
        assert_eq!(slots, [0, 1, 0, 2, 3, 1, 4, 2]);
        let expected: [&[u8]; 5] = [b"b", b"a", b"", b"a-long-key-of-several-words", b"a-long-key-of-several-wordS"];
        assert_eq!(keys_of(index.distinct(&batch)), expected);
    }

    #[test]
    fn other_keys_get_slots_behind_those_of_the_batch() {
        let batch = batch(&["x", "y"]);
        let mut index = KeyIndex::empty();
        index.build(&batch);
        assert_eq!(index.slot_of_key(&batch, 0, b"y"), 1);
        for number in 0..1_000 {
            assert_eq!(index.slot_of_key(&batch, 1, number.to_string().as_bytes()), 2 + number);
        }
        for number in 0..1_000 {
            assert_eq!(index.slot_of_key(&batch, 1, number.to_string().as_bytes()), 2 + number);
            assert_eq!(index.key(&batch, 2 + number), number.to_string().as_bytes());
        }
        assert_eq!(keys_of(index.distinct(&batch)), [b"x", b"y"]);
    }

    #[test]
    fn a_set_numbers_its_keys_and_forgets_them() {
        let mut set = KeySet::empty();
        for _ in 0..2 {
            for number in 0..500 {
                assert_eq!(set.place(ANYONE, number.to_string().as_bytes()), number);
            }
            assert_eq!(set.place(ANYONE, b"7"), 7);
            assert_eq!((set.keys().len(), set.keys().get(499)), (500, b"499".as_slice()));
            set.clear();
        }
    }

    #[test]
    fn records_that_are_apart_share_no_slot() {
        let batch = batch(&["a", "b", "a"]);
        let mut index = KeyIndex::empty();
        index.set_apart(true);
        index.build(&batch);
        assert_eq!(index.readers(), Some([0, 1, 2].as_slice()));
        assert_eq!(keys_of(index.distinct(&batch)), [b"a", b"b", b"a"]);
        assert_eq!((index.slot_of_key(&batch, 2, b"a"), index.slot_of_key(&batch, 1, b"a")), (2, 3));
        assert_eq!((index.slot_of_key(&batch, 0, b"a"), index.slot_of_key(&batch, 1, b"a")), (0, 3));
        assert_eq!((index.key(&batch, 2), index.key(&batch, 3)), (b"a".as_slice(), b"a".as_slice()));
        let mut set = KeySet::empty();
        assert_eq!([set.place(4, b"a"), set.place(5, b"a"), set.place(5, b"b"), set.place(4, b"a")], [0, 1, 2, 0]);
        assert_eq!(set.wanted_for(1), [5, 5]);
    }

    #[test]
    fn thousands_of_similar_keys_stay_apart() {
        let names: Vec<String> = (0..5_000).map(|number| (number * 100).to_string()).collect();
        let batch = batch(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut index = KeyIndex::empty();
        index.build(&batch);
        assert!((0..5_000).all(|record| index.slot_of_record(record) == record as usize));
    }
}
