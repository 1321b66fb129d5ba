//! Looking up keys: to each owner its part, and the answers back in the caller's numbering.

use std::collections::BTreeMap;

use super::{Consistency, Directory, LookupError, Moment, OperatorTables, Owner, TableId};
use crate::record::Column;
use crate::state::{StateError, TablesError, TaskTables};

impl Directory {
    /// Calls `found` with the index and value of every one of `keys` that a task of this host owns: the keys of one owner in their order, owner by owner. The part of one owner sees whole
    /// batches. For the others see [`Directory::elsewhere`].
    ///
    /// `found` may run under the owner's lock: it must only copy.
    ///
    /// # Errors
    /// [`LookupError::Gone`] for an epoch that cannot be read; or when state on disk cannot be read, where `found` may have been called for some keys.
    pub fn get_many(
        &self,
        table: TableId,
        keys: &Column,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.get_many_at(table, keys, &self.moment(consistency)?, found)
    }

    /// As [`Directory::get_many`], at a moment that several lookups share.
    ///
    /// # Errors
    /// When state on disk cannot be read; `found` may have been called for some keys then.
    pub fn get_many_at(
        &self,
        table: TableId,
        keys: &Column,
        moment: &Moment,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        let operator = &self.operators[table.operator];
        if let Some(only) = self.only(operator) {
            return Ok(get_from(only, table, keys, moment, found)?);
        }
        for (task, Part { keys, places }) in operator.parts(keys) {
            get_from(task, table, &keys, moment, &mut |index, value| found(places[index], value))?;
        }
        Ok(())
    }

    /// Calls `found` with the index of every one of `keys` and the value that held at its event time, as [`Directory::get_many`] does with the newest. Of a table that is not
    /// versioned there is none.
    ///
    /// # Errors
    /// When state on disk cannot be read; `found` may have been called for some keys then.
    ///
    /// # Panics
    /// When there are fewer times than keys.
    pub fn get_many_as_of_time(
        &self,
        table: TableId,
        keys: &Column,
        times: &[i64],
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        let operator = &self.operators[table.operator];
        if let Some(only) = self.only(operator) {
            return Ok(only.with_values_as_of(table.table, keys, times, found)?);
        }
        for (task, Part { keys, places }) in operator.parts(keys) {
            let times: Vec<i64> = places.iter().map(|&place| times[place]).collect();
            task.with_values_as_of(table.table, &keys, &times, &mut |index, value| found(places[index], value))?;
        }
        Ok(())
    }

    /// The other hosts that own some of `keys`, each with its part of them.
    pub fn elsewhere(&self, table: TableId, keys: &Column) -> BTreeMap<u16, Part> {
        let operator = &self.operators[table.operator];
        let mut parts = BTreeMap::<u16, Part>::new();
        if self.is_spread {
            for (index, key) in keys.iter().enumerate() {
                if let Owner::Host(host) = operator.owner(key) {
                    parts.entry(host).or_default().push(key, index);
                }
            }
        }
        parts
    }

    /// Whether this host owns all of `keys`.
    ///
    /// # Errors
    /// [`LookupError::Elsewhere`] where another one owns one of them.
    pub fn check_here(&self, table: TableId, keys: &Column) -> Result<(), LookupError> {
        match self.elsewhere(table, keys).first_key_value() {
            None => Ok(()),
            Some((&host, _)) => {
                let name = self.hosts.get(usize::from(host)).cloned();
                Err(LookupError::Elsewhere { host: name.unwrap_or_else(|| host.to_string()) })
            }
        }
    }

    /// The task that owns all keys of an operator, where there is one.
    fn only<'a>(&self, operator: &'a OperatorTables) -> Option<&'a TaskTables> {
        match operator.tasks.as_slice() {
            [only] if !self.is_spread => Some(only),
            _ => None,
        }
    }

    /// The value of one key.
    ///
    /// # Errors
    /// As [`Directory::get_many_at`]; [`LookupError::Elsewhere`] where this host does not own it.
    pub fn get_at(&self, table: TableId, key: &[u8], moment: &Moment) -> Result<Option<Vec<u8>>, LookupError> {
        let keys: Column = [key].into_iter().collect();
        self.check_here(table, &keys)?;
        let mut value = None;
        self.get_many_at(table, &keys, moment, &mut |_, found| value = found.map(<[u8]>::to_vec))?;
        Ok(value)
    }

    /// How many keys of a table have a value (of a versioned table: or had one), as of a committed epoch; `None` for the present, of which there is no count. It looks at every key that has changed since redb was fed last.
    ///
    /// # Errors
    /// When redb cannot be read.
    pub fn count_at(&self, table: TableId, moment: &Moment) -> Result<Option<u64>, LookupError> {
        let operator = &self.operators[table.operator];
        let Some(view) = &moment.0 else { return Ok(None) };
        let counted = view.count(&operator.specs[table.table].name);
        Ok(Some(counted.map_err(|error: StateError| TablesError::State(Box::new(error)))?))
    }
}

/// What one owner is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// The keys.
    pub keys: Column,
    /// Where the caller has them.
    pub places: Vec<usize>,
}

impl Part {
    fn push(&mut self, key: &[u8], place: usize) {
        self.keys.push(key);
        self.places.push(place);
    }
}

impl OperatorTables {
    /// The tasks of this host that own some of `keys`, each with its part of them.
    fn parts(&self, keys: &Column) -> impl Iterator<Item = (&TaskTables, Part)> {
        let mut parts: Vec<Part> = self.tasks.iter().map(|_| Part::default()).collect();
        for (index, key) in keys.iter().enumerate() {
            if let Owner::Task(task) = self.owner(key) {
                parts[usize::from(task)].push(key, index);
            }
        }
        let tasks = self.tasks.iter().map(|task| &**task);
        tasks.zip(parts).filter(|(_, part)| !part.keys.is_empty())
    }
}

fn get_from(
    task: &TaskTables,
    table: TableId,
    keys: &Column,
    moment: &Moment,
    found: &mut dyn FnMut(usize, Option<&[u8]>),
) -> Result<(), TablesError> {
    match &moment.0 {
        None => task.with_values(table.table, keys, found),
        Some(view) => task.with_values_at(table.table, keys, view, found),
    }
}
