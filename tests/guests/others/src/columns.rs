//! Columns, item by item.

use crate::wasmill::operator::types::{Batch, Column};

/// The items of a column.
pub fn items(column: &Column) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    column.ends.iter().map(move |&end| {
        let item = &column.bytes[start..end as usize];
        start = end as usize;
        item
    })
}

/// A column of these items.
pub fn column<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> Column {
    let mut column = Column { bytes: Vec::new(), ends: Vec::new() };
    for item in items {
        push(&mut column, item.as_ref());
    }
    column
}

/// Adds an item to a column.
pub fn push(column: &mut Column, item: &[u8]) {
    column.bytes.extend_from_slice(item);
    column.ends.push(column.bytes.len() as u32);
}

/// Records to be emitted, with the index of the record that caused each.
#[derive(Default)]
pub struct Emitted {
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    times: Vec<i64>,
    records: Vec<u32>,
}

impl Emitted {
    /// Adds a record caused by record `index`.
    pub fn push(&mut self, index: usize, key: &[u8], value: &[u8], time: i64) {
        self.keys.push(key.to_vec());
        self.values.push(value.to_vec());
        self.times.push(time);
        self.records.push(index as u32);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The columns that `emit` takes.
    pub fn into_columns(self) -> (Batch, Vec<u32>) {
        let batch = Batch { keys: column(self.keys), values: column(self.values), times: self.times };
        (batch, self.records)
    }
}
