//! Records in columns: what flows between sources, functions and sinks.
//!
//! This room knows nothing of where bytes come from or go to; it performs no I/O and imports nothing of ours.

use std::ops::Range;

/// The event time of a record that has none.
pub const NO_TIME: i64 = i64::MIN;

/// Why columns from outside do not fit together. Completes "failed to read a column: …".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ColumnError {
    /// An end is less than the one before it.
    #[error("end {index} ({end}) is less than the end before it ({before})")]
    Decreasing {
        /// The item whose end is at fault.
        index: usize,
        /// Its end.
        end: u32,
        /// The end of the item before.
        before: u32,
    },
    /// The last end is not the length of the bytes.
    #[error("the last end is {last}, but there are {bytes} bytes")]
    Length {
        /// The last end, 0 for no items.
        last: u32,
        /// The number of bytes.
        bytes: usize,
    },
    /// Columns of one batch differ in their number of items.
    #[error("{left_name} has {left} items, but {right_name} has {right}")]
    Unequal {
        /// The first column's name.
        left_name: &'static str,
        /// Its number of items.
        left: usize,
        /// The second column's name.
        right_name: &'static str,
        /// Its number of items.
        right: usize,
    },
}

/// Byte strings, one after another: item `i` is `bytes[ends[i - 1]..ends[i]]`.
///
/// A column holds less than 4 GiB; [`Column::fits`] tells whether another item may be added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Column {
    /// An empty column with room for `items` items of `bytes` bytes in all.
    pub fn with_capacity(items: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(items) }
    }

    /// A column from its parts, as they come from a guest or from a file.
    ///
    /// # Errors
    /// [`ColumnError`] when the ends decrease or do not end with the bytes.
    pub fn from_parts(bytes: Vec<u8>, ends: Vec<u32>) -> Result<Self, ColumnError> {
        let mut before = 0;
        for (index, &end) in ends.iter().enumerate() {
            if end < before {
                return Err(ColumnError::Decreasing { index, end, before });
            }
            before = end;
        }
        if before as usize != bytes.len() {
            return Err(ColumnError::Length { last: before, bytes: bytes.len() });
        }
        Ok(Self { bytes, ends })
    }

    /// The bytes and the ends.
    pub fn into_parts(self) -> (Vec<u8>, Vec<u32>) {
        (self.bytes, self.ends)
    }

    /// All bytes of all items.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The end of each item within [`Column::bytes`].
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether an item of `length` bytes can be added without passing 4 GiB.
    pub fn fits(&self, length: usize) -> bool {
        self.bytes.len() + length <= u32::MAX as usize
    }

    /// Adds an item.
    ///
    /// # Panics
    /// When the column would pass 4 GiB; callers bound their batches far below (see [`Column::fits`]).
    pub fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.end_item();
    }

    /// The bytes of an item being built: append to them, then call [`Column::end_item`].
    pub fn building(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends the item begun through [`Column::building`].
    ///
    /// # Panics
    /// As [`Column::push`].
    pub fn end_item(&mut self) {
        let end = u32::try_from(self.bytes.len()).expect("batches are bounded far below 4 GiB");
        self.ends.push(end);
    }

    /// Removes what was appended through [`Column::building`] since the last item ended.
    pub fn abandon_item(&mut self) {
        self.bytes.truncate(self.ends.last().map_or(0, |&end| end as usize));
    }

    /// Item `index`.
    ///
    /// # Panics
    /// When there is no such item.
    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.range(index)]
    }

    /// Where item `index` lies in [`Column::bytes`].
    ///
    /// # Panics
    /// When there is no such item.
    pub fn range(&self, index: usize) -> Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        start..self.ends[index] as usize
    }

    /// The items in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Adds the items `range` of `other` at the end.
    ///
    /// # Panics
    /// As [`Column::push`], and when `range` is outside `other`.
    pub fn extend_from(&mut self, other: &Column, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let start = other.range(range.start).start;
        let end = other.range(range.end - 1).end;
        let base = self.bytes.len();
        u32::try_from(base + end - start).expect("batches are bounded far below 4 GiB");
        self.bytes.extend_from_slice(&other.bytes[start..end]);
        self.ends.extend(other.ends[range].iter().map(|&item_end| (item_end as usize - start + base) as u32));
    }

    /// Removes all items and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl<'a> FromIterator<&'a [u8]> for Column {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(items: I) -> Self {
        let mut column = Self::default();
        for item in items {
            column.push(item);
        }
        column
    }
}

/// Records in columns of equal length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// What the stream is partitioned by; empty items where it has no key.
    pub keys: Column,
    /// The records themselves.
    pub values: Column,
    /// Event times in milliseconds since the Unix epoch, [`NO_TIME`] for none.
    pub times: Vec<i64>,
}

/// How large a batch is: for making another like it in one allocation a column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchSize {
    /// Records.
    pub records: usize,
    /// Bytes of all keys.
    pub key_bytes: usize,
    /// Bytes of all values.
    pub value_bytes: usize,
}

impl BatchSize {
    /// The size of `batch`.
    pub fn of(batch: &Batch) -> Self {
        let (key_bytes, value_bytes) = (batch.keys.bytes().len(), batch.values.bytes().len());
        Self { records: batch.len(), key_bytes, value_bytes }
    }

    /// One part of `parts` (at least 1) like each other, with an eighth to spare.
    pub fn part(self, parts: usize) -> Self {
        let part = |whole: usize| whole / parts + whole / parts / 8 + 8;
        Self { records: part(self.records), key_bytes: part(self.key_bytes), value_bytes: part(self.value_bytes) }
    }

    /// An empty batch with room for this much.
    pub fn empty_batch(self) -> Batch {
        Batch {
            keys: Column::with_capacity(self.records, self.key_bytes),
            values: Column::with_capacity(self.records, self.value_bytes),
            times: Vec::with_capacity(self.records),
        }
    }
}

impl Batch {
    /// A batch from columns that come from outside.
    ///
    /// # Errors
    /// [`ColumnError::Unequal`] when the columns differ in length.
    pub fn from_columns(keys: Column, values: Column, times: Vec<i64>) -> Result<Self, ColumnError> {
        if keys.len() != values.len() {
            return Err(ColumnError::Unequal {
                left_name: "keys",
                left: keys.len(),
                right_name: "values",
                right: values.len(),
            });
        }
        if times.len() != values.len() {
            return Err(ColumnError::Unequal {
                left_name: "times",
                left: times.len(),
                right_name: "values",
                right: values.len(),
            });
        }
        Ok(Self { keys, values, times })
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The bytes of all keys and values.
    pub fn byte_len(&self) -> usize {
        self.keys.bytes().len() + self.values.bytes().len()
    }

    /// Adds a record.
    ///
    /// # Panics
    /// As [`Column::push`].
    pub fn push(&mut self, key: &[u8], value: &[u8], time: i64) {
        self.keys.push(key);
        self.values.push(value);
        self.times.push(time);
    }

    /// Adds the records `range` of `other` at the end.
    ///
    /// # Panics
    /// As [`Column::extend_from`].
    pub fn extend_from(&mut self, other: &Batch, range: Range<usize>) {
        self.keys.extend_from(&other.keys, range.clone());
        self.values.extend_from(&other.values, range.clone());
        self.times.extend_from_slice(&other.times[range]);
    }

    /// The records `range`, copied.
    ///
    /// # Panics
    /// As [`Column::extend_from`].
    pub fn slice(&self, range: Range<usize>) -> Batch {
        let mut part = Batch::default();
        part.extend_from(self, range);
        part
    }

    /// Removes all records and keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_from_parts_checks_the_ends() {
        let check = |bytes: &[u8], ends: &[u32]| Column::from_parts(bytes.to_vec(), ends.to_vec()).map(|c| c.len());
        assert_eq!(check(b"abc", &[1, 1, 3]), Ok(3));
        assert_eq!(check(b"", &[]), Ok(0));
        assert!(matches!(check(b"abc", &[2, 1, 3]), Err(ColumnError::Decreasing { index: 1, .. })));
        assert!(matches!(check(b"abc", &[1]), Err(ColumnError::Length { last: 1, bytes: 3 })));
        assert!(matches!(check(b"abc", &[]), Err(ColumnError::Length { last: 0, .. })));
        assert!(matches!(check(b"", &[7]), Err(ColumnError::Length { last: 7, .. })));
    }

    #[test]
    fn extend_from_copies_a_range_of_items() {
        let source: Column = [b"one".as_slice(), b"", b"three"].into_iter().collect();
        let mut target: Column = [b"zero".as_slice()].into_iter().collect();
        target.extend_from(&source, 1..3);
        assert_eq!(target.iter().collect::<Vec<_>>(), [b"zero".as_slice(), b"", b"three"]);
        target.extend_from(&source, 2..2);
        assert_eq!(target.len(), 3);
    }

    #[test]
    fn an_abandoned_item_leaves_no_trace() {
        let mut column = Column::default();
        column.push(b"kept");
        column.building().extend_from_slice(b"lost");
        column.abandon_item();
        column.push(b"next");
        assert_eq!(column.iter().collect::<Vec<_>>(), [b"kept".as_slice(), b"next"]);
    }
}
