//! stub

use super::TablesError;
use crate::epoch::Epoch;
use crate::epoch::entry::{Cell, TableDelta, TableName};
use crate::record::Column;

/// A table to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSpec {
    /// `operator/table`.
    pub name: TableName,
    /// The version of its values' encoding that the component declares.
    pub schema_version: u32,
}

/// How memory stands against its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Within it.
    Calm,
    /// Over it: owners evict by [`TaskTables::maintain`].
    Over,
    /// Far over it: stop admission, seal and commit, and go on when this is over.
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
}

/// The tables of one task: a range of partitions of each of an operator's tables.
///
/// Any thread may read; one owner calls [`TaskTables::apply`], [`TaskTables::seal`] and [`TaskTables::maintain`].
#[derive(Debug)]
pub struct TaskTables {}

impl TaskTables {
    /// The open epoch: the one that [`TaskTables::seal`] will close.
    pub fn epoch(&self) -> Epoch {
        todo!()
    }

    /// Whether `key` is in one of the task's partitions.
    pub fn owns(&self, key: &[u8]) -> bool {
        let _ = key;
        todo!()
    }

    /// Calls `each` with the index and value of every one of `keys`, in their order. One call sees whole batches.
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
        let _ = (table, keys, each);
        todo!()
    }

    /// The cell of one key; `None` where it has no value.
    ///
    /// # Errors
    /// As [`TaskTables::with_values`].
    pub fn get(&self, table: usize, key: &[u8]) -> Result<Option<Cell>, TablesError> {
        let _ = (table, key);
        todo!()
    }

    /// Applies a batch's writes together, at the open epoch; the later of two writes of a key stays.
    ///
    /// # Errors
    /// For a foreign key or an unknown table; nothing is applied then.
    pub fn apply<'a>(&self, writes: impl IntoIterator<Item = Write<'a>>) -> Result<(), TablesError> {
        let _ = writes.into_iter();
        todo!()
    }

    /// Closes the open epoch: hands over what changed in it, and opens the next.
    pub fn seal(&self) -> Vec<TableDelta> {
        todo!()
    }

    /// Evicts a bounded number of clean cells when memory is over budget. To be called once a batch, and while waiting under pressure.
    pub fn maintain(&self) -> Pressure {
        todo!()
    }

    /// The memory that the tables use, in bytes.
    pub fn bytes(&self) -> u64 {
        todo!()
    }

    /// The cells of a table in memory, tombstones included.
    pub fn len(&self, table: usize) -> usize {
        let _ = table;
        todo!()
    }
}
