//! Reading and filling the contract's columns.

use crate::bindings::wasmill::operator::types::{Batch, Column, OptionalColumn};

/// The `times` entry of a record that has no event time.
pub(crate) const NO_TIME: i64 = i64::MIN;

impl Column {
    pub(crate) fn empty() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.bytes[start..self.ends[index] as usize]
    }

    pub(crate) fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.end_item();
    }

    /// Ends the item whose bytes were appended to `bytes` since the last end.
    pub(crate) fn end_item(&mut self) {
        let end =
            u32::try_from(self.bytes.len()).expect("a batch's columns stay below 4 GiB: a guest has no more memory");
        self.ends.push(end);
    }

    /// Removes what was appended to `bytes` since the last item ended.
    pub(crate) fn abandon_item(&mut self) {
        self.bytes.truncate(self.ends.last().map_or(0, |&end| end as usize));
    }

    /// Removes the last item.
    pub(crate) fn pop(&mut self) {
        self.ends.pop();
        self.abandon_item();
    }

    /// The items from place `first` on.
    pub(crate) fn behind(&self, first: usize) -> Self {
        let mut behind = Self::empty();
        (first..self.len()).for_each(|index| behind.push(self.get(index)));
        behind
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl OptionalColumn {
    pub(crate) fn empty() -> Self {
        Self { items: Column::empty(), present: Vec::new() }
    }

    /// Removes the last item, if there is one.
    pub(crate) fn pop(&mut self) {
        self.items.pop();
        self.present.pop();
    }
}

impl Batch {
    pub(crate) fn empty() -> Self {
        Self { keys: Column::empty(), values: Column::empty(), times: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.times.len()
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popped_and_abandoned_items_leave_no_trace() {
        let mut column = Column::empty();
        column.push(b"kept");
        column.push(b"popped");
        column.pop();
        column.bytes.extend_from_slice(b"abandoned");
        column.abandon_item();
        column.push(b"");
        column.push(b"last");
        let items: Vec<&[u8]> = (0..column.len()).map(|index| column.get(index)).collect();
        assert_eq!(items, [b"kept".as_slice(), b"", b"last"]);
    }
}
