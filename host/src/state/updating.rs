//! Updates of a task's tables: what [`super::update`] decides for each, applied as one batch.

use std::collections::HashMap;

use super::update::{Changed, Op, UpdateError, Updates};
use super::{TablesError, TaskTables, Write};
use crate::record::Column;

/// What became of one update.
pub type Updated = Result<bool, UpdateError>;

/// Updates of one of a task's tables.
#[derive(Debug, Clone, Copy)]
pub struct UpdatesOf<'a> {
    /// The table, by its number.
    pub table: usize,
    /// The updates, in their order.
    pub updates: &'a Updates,
}

impl TaskTables {
    /// Applies `updates` of one table in their order, all together, as one batch of the owner's. Returns for each whether it has changed the value (false
    /// where its condition did not hold), or why it did not fit.
    ///
    /// # Errors
    /// For a foreign key or an unknown table, or when what lies behind memory cannot be read; nothing is applied then.
    pub fn update(&self, table: usize, updates: &Updates) -> Result<Vec<Updated>, TablesError> {
        let mut updated = self.write_and_update(Vec::new(), &[UpdatesOf { table, updates }])?;
        Ok(updated.pop().unwrap_or_default())
    }

    /// Applies `writes`, and then `updates`, which find what the writes and the updates before them have left: all together, as one batch of the owner's. Returns
    /// what [`TaskTables::update`] does for each of `updates`.
    ///
    /// # Errors
    /// As [`TaskTables::update`].
    pub fn write_and_update(
        &self,
        writes: Vec<Write<'_>>,
        updates: &[UpdatesOf<'_>],
    ) -> Result<Vec<Vec<Updated>>, TablesError> {
        let mut left = Left::by(&writes, updates);
        for updates in updates {
            let found = self.found(updates)?;
            left.update(updates, &found);
        }
        let changed = left.all.iter().flat_map(|decided| {
            let value = |index: usize| match &decided.changes[index] {
                Ok(Changed::To) => Some(Some(decided.values.get(index))),
                Ok(Changed::Removed) => Some(None),
                Ok(Changed::Not) | Err(_) => None,
            };
            let write =
                move |index| Some(Write { table: decided.table, key: decided.keys.get(index), value: value(index)? });
            (0..decided.changes.len()).filter_map(write)
        });
        self.apply(writes.iter().copied().chain(changed))?;
        let updated = |decided: Decided<'_>| {
            decided.changes.into_iter().map(|change| change.map(|changed| changed != Changed::Not)).collect()
        };
        Ok(left.all.into_iter().map(updated).collect())
    }

    /// The values that updates find in the table. Those that depend on nothing need not be read.
    fn found(&self, UpdatesOf { table, updates }: &UpdatesOf<'_>) -> Result<Found, TablesError> {
        if updates.op == Op::Put {
            return Ok(Found::default());
        }
        let count = updates.keys.len();
        let mut found = Found { values: Column::with_capacity(count, 16 * count), present: Vec::with_capacity(count) };
        self.with_values(*table, &updates.keys, &mut |_, value| {
            found.present.push(value.is_some());
            found.values.push(value.unwrap_or_default());
        })?;
        Ok(found)
    }
}

/// Values, as a table has them.
#[derive(Default)]
struct Found {
    values: Column,
    present: Vec<bool>,
}

impl Found {
    fn get(&self, index: usize) -> Option<&[u8]> {
        self.present.get(index).is_some_and(|&present| present).then(|| self.values.get(index))
    }
}

/// What updates of one table come to.
struct Decided<'a> {
    table: usize,
    keys: &'a Column,
    changes: Vec<Result<Changed, UpdateError>>,
    /// The new value of each update that has one; empty for the others.
    values: Column,
}

/// What a batch has left so far of the keys that it has changed.
struct Left<'a> {
    writes: &'a [Write<'a>],
    all: Vec<Decided<'a>>,
    /// The last change of each key, by table and key.
    last: HashMap<(usize, &'a [u8]), Last>,
}

#[derive(Clone, Copy)]
enum Last {
    Write(usize),
    /// One of the updates of one of the tables.
    Update(usize, usize),
}

impl<'a> Left<'a> {
    /// What `writes` have left, as far as `updates` may find it.
    fn by(writes: &'a [Write<'a>], updates: &[UpdatesOf<'a>]) -> Self {
        let count = updates.iter().map(|updates| updates.updates.keys.len()).sum();
        let mut last = HashMap::with_capacity(count);
        let is_updated = |table: usize| updates.iter().any(|updates| updates.table == table);
        for (index, write) in writes.iter().enumerate().filter(|(_, write)| is_updated(write.table)) {
            last.insert((write.table, write.key), Last::Write(index));
        }
        Self { writes, all: Vec::with_capacity(updates.len()), last }
    }

    /// Decides `updates`, which find in their table what `found` has.
    fn update(&mut self, &UpdatesOf { table, updates }: &UpdatesOf<'a>, found: &Found) {
        let count = updates.keys.len();
        let (changes, values) = (Vec::with_capacity(count), Column::with_capacity(count, 16 * count));
        let number = self.all.len();
        self.all.push(Decided { table, keys: &updates.keys, changes, values });
        let mut buffer = Vec::new();
        for (index, key) in updates.keys.iter().enumerate() {
            let current = match self.last.get(&(table, key)) {
                Some(last) => self.value(*last),
                None => found.get(index),
            };
            let change = updates.change(index, current, &mut buffer);
            if matches!(change, Ok(Changed::To | Changed::Removed)) {
                self.last.insert((table, key), Last::Update(number, index));
            }
            let decided = &mut self.all[number];
            decided.values.push(if change == Ok(Changed::To) { &buffer } else { &[] });
            decided.changes.push(change);
        }
    }

    fn value(&self, last: Last) -> Option<&[u8]> {
        match last {
            Last::Write(index) => self.writes[index].value,
            Last::Update(number, index) => {
                let decided = &self.all[number];
                (decided.changes[index] == Ok(Changed::To)).then(|| decided.values.get(index))
            }
        }
    }
}
