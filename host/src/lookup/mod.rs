//! Lookups: reading any table of the job from any thread.
//!
//! [`Directory`] knows the tables of all tasks by name and finds the owner of a key. Within a host a lookup is a memory read: it takes one lock an owning task, one
//! after another, never two at a time. This room knows nothing of guests, of tasks' mailboxes or of how updates travel.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::epoch::Epoch;
use crate::key::KeyHash;
use crate::record::Column;
use crate::state::{TablesError, TaskTables};

/// Which state a lookup sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The latest batch that the owner has applied.
    Live,
    /// The last committed epoch.
    Committed,
    /// A committed epoch that is still retained.
    AsOf(Epoch),
}

/// Why a lookup has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// State on disk could not be read.
    #[error(transparent)]
    Tables(#[from] TablesError),
}

/// A table of the job, by its place in the [`Directory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId {
    operator: usize,
    table: usize,
}

/// An operator's tables: which task owns which partition.
#[derive(Debug)]
pub struct OperatorTables {
    /// The operator's name.
    pub operator: String,
    /// Its tables' names, in the order in which the tasks know them.
    pub tables: Vec<String>,
    /// The tables of each of its tasks.
    pub tasks: Vec<Arc<TaskTables>>,
    /// The task of each partition.
    pub owners: Vec<u16>,
}

impl OperatorTables {
    /// The task that owns `key`, counted from the operator's first.
    pub fn owner(&self, key: &[u8]) -> usize {
        let partition = KeyHash::of(key).partition(self.owners.len() as u16);
        usize::from(self.owners[usize::from(partition.0)])
    }
}

/// The tables of all operators of the job.
#[derive(Debug, Default)]
pub struct Directory {
    operators: Vec<OperatorTables>,
    by_name: BTreeMap<String, TableId>,
}

impl Directory {
    /// A directory of the operators' tables.
    pub fn new(operators: Vec<OperatorTables>) -> Self {
        let mut by_name = BTreeMap::new();
        for (operator, tables) in operators.iter().enumerate() {
            for (table, name) in tables.tables.iter().enumerate() {
                by_name.insert(format!("{}.{name}", tables.operator), TableId { operator, table });
            }
        }
        Self { operators, by_name }
    }

    /// The table `operator.table`.
    pub fn find(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    /// The names of all tables, `operator.table`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Calls `found` with the index and value of every one of `keys`: the keys of one owner in their order, owner by owner. The part of one owner sees whole batches.
    ///
    /// `found` runs under the owner's lock: it must only copy.
    ///
    /// # Errors
    /// When state on disk cannot be read; `found` may have been called for some keys then.
    pub fn get_many(
        &self,
        table: TableId,
        keys: &Column,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        let operator = &self.operators[table.operator];
        if operator.tasks.len() == 1 {
            return self.get_from(&operator.tasks[0], table, keys, consistency, found);
        }
        let mut parts: Vec<(Column, Vec<usize>)> = operator.tasks.iter().map(|_| Default::default()).collect();
        for (index, key) in keys.iter().enumerate() {
            let (part, places) = &mut parts[operator.owner(key)];
            part.push(key);
            places.push(index);
        }
        for (task, (part, places)) in operator.tasks.iter().zip(&parts) {
            if !part.is_empty() {
                self.get_from(task, table, part, consistency, &mut |index, value| found(places[index], value))?;
            }
        }
        Ok(())
    }

    fn get_from(
        &self,
        task: &TaskTables,
        table: TableId,
        keys: &Column,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        match consistency {
            Consistency::Live => task.with_values(table.table, keys, found)?,
            Consistency::Committed | Consistency::AsOf(_) => task.with_values(table.table, keys, found)?,
        }
        Ok(())
    }
}
