//! Updates of a task's tables: what [`super::update`] decides for each, applied as one batch.

use std::collections::HashMap;

use super::update::{Changed, Op, UpdateError, Updates};
use super::versions::When;
use super::{TablesError, TaskTables, Write};
use crate::record::Column;

/// What became of one update.
pub type Updated = Result<bool, UpdateError>;

impl TaskTables {
    /// Applies `updates` of one table in their order, all together, as one batch of the owner's. Returns for each whether it has changed the value (false
    /// where its condition did not hold), or why it did not fit.
    ///
    /// # Errors
    /// For a foreign key or an unknown table, or when what lies behind memory cannot be read; nothing is applied then.
    pub fn update(&self, table: usize, updates: &Updates) -> Result<Vec<Updated>, TablesError> {
        let decided = match updates.op {
            Op::Put => return self.put_all(table, updates),
            _ => self.decide(table, updates)?,
        };
        let writes = decided.changes.iter().enumerate().filter_map(|(index, change)| {
            let value = match change {
                Ok(Changed::To) => Some(decided.values.get(index)),
                Ok(Changed::Removed) => None,
                Ok(Changed::Not) | Err(_) => return None,
            };
            Some(Write { table, key: updates.keys.get(index), value, when: when(updates, index) })
        });
        self.apply(writes)?;
        Ok(decided.changes.into_iter().map(|change| change.map(|changed| changed != Changed::Not)).collect())
    }

    /// Values that depend on nothing need not be read first.
    fn put_all(&self, table: usize, updates: &Updates) -> Result<Vec<Updated>, TablesError> {
        let mut buffer = Vec::new();
        let fits: Vec<Updated> = (0..updates.keys.len())
            .map(|index| updates.change(index, None, &mut buffer).map(|changed| changed != Changed::Not))
            .collect();
        let writes = (0..updates.keys.len()).filter(|&index| fits[index].is_ok()).map(|index| Write {
            table,
            key: updates.keys.get(index),
            value: updates.operands.get(index),
            when: when(updates, index),
        });
        self.apply(writes)?;
        Ok(fits)
    }

    fn decide(&self, table: usize, updates: &Updates) -> Result<Decided, TablesError> {
        let count = updates.keys.len();
        let mut found = Column::with_capacity(count, 16 * count);
        let mut present = Vec::with_capacity(count);
        self.with_values(table, &updates.keys, &mut |_, value| {
            present.push(value.is_some());
            found.push(value.unwrap_or_default());
        })?;
        let mut decided =
            Decided { changes: Vec::with_capacity(count), values: Column::with_capacity(count, 16 * count) };
        // The last update of each key that has written so far: the next one finds what it has left.
        let mut last: HashMap<&[u8], usize> = HashMap::with_capacity(count);
        let mut buffer = Vec::new();
        for (index, key) in updates.keys.iter().enumerate() {
            let current = match last.get(key) {
                Some(&before) => (decided.changes[before] == Ok(Changed::To)).then(|| decided.values.get(before)),
                None => Some(found.get(index)).filter(|_| present[index]),
            };
            let change = updates.change(index, current, &mut buffer);
            if matches!(change, Ok(Changed::To | Changed::Removed)) {
                last.insert(key, index);
            }
            decided.values.push(if change == Ok(Changed::To) { &buffer } else { &[] });
            decided.changes.push(change);
        }
        Ok(decided)
    }
}

/// From when on the value holds that update `index` makes. What depends on the newest value is not put before it: it would be lost there.
fn when(updates: &Updates, index: usize) -> When {
    match (updates.op, updates.times.get(index)) {
        (_, None) => When::NEWEST,
        (Op::Put | Op::Delete, Some(&time)) => When::At(time),
        (_, Some(&time)) => When::NotBefore(time),
    }
}

struct Decided {
    changes: Vec<Result<Changed, UpdateError>>,
    /// The new value of each update that has one; empty for the others.
    values: Column,
}
