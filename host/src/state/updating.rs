//! Updates of a task's tables: what [`super::update`] decides for each, applied as one batch.

use std::collections::HashMap;

use super::update::{Changed, Op, UpdateError, Updates};
use super::versions::{self, When};
use super::{TablesError, TaskTables, Write};
use crate::record::{Column, NO_TIME};

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
        let mut left = Left::by(&writes, updates, &self.newest_times(&writes, updates)?);
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
            let Decided { table, updates, .. } = decided;
            let key = |index: usize| updates.keys.get(index);
            let write = move |index| {
                Some(Write { table: *table, key: key(index), value: value(index)?, when: when(updates, index) })
            };
            (0..decided.changes.len()).filter_map(write)
        });
        self.apply(writes.iter().copied().chain(changed))?;
        let updated = |decided: Decided<'_>| {
            decided.changes.into_iter().map(|change| change.map(|changed| changed != Changed::Not)).collect()
        };
        Ok(left.all.into_iter().map(updated).collect())
    }

    /// The values that updates find in the table. In a table that keeps no versions, those that depend on nothing need not be read.
    fn found(&self, UpdatesOf { table, updates }: &UpdatesOf<'_>) -> Result<Found, TablesError> {
        let is_versioned = self.span_ms(*table).is_some();
        if updates.op == Op::Put && !is_versioned {
            return Ok(Found::default());
        }
        let count = updates.keys.len();
        let (values, present) = (Column::with_capacity(count, 16 * count), Vec::with_capacity(count));
        let mut found = Found { values, present, times: Vec::new() };
        self.with_stored(*table, &updates.keys, &mut |_, stored| {
            let value = if is_versioned {
                let (time, value) = versions::newest_with_time(stored.unwrap_or_default());
                found.times.push(time);
                value
            } else {
                stored
            };
            found.present.push(value.is_some());
            found.values.push(value.unwrap_or_default());
        })?;
        Ok(found)
    }

    /// From when on the values hold that writes find in those versioned tables which updates change as well.
    fn newest_times<'a>(&self, writes: &[Write<'a>], updates: &[UpdatesOf<'_>]) -> Result<Times<'a>, TablesError> {
        let mut newest = Times::new();
        for table in (0..self.specs.len()).filter(|table| self.span_ms(*table).is_some()) {
            if !updates.iter().any(|updates| updates.table == table) {
                continue;
            }
            let keys: Vec<&[u8]> = writes.iter().filter(|write| write.table == table).map(|write| write.key).collect();
            self.with_stored(table, &keys.iter().copied().collect(), &mut |index, stored| {
                newest.insert((table, keys[index]), versions::newest_with_time(stored.unwrap_or_default()).0);
            })?;
        }
        Ok(newest)
    }
}

/// Times by table and key: of the keys of versioned tables.
type Times<'a> = HashMap<(usize, &'a [u8]), i64>;

/// From when on the value holds that update `index` makes. What depends on the newest value is not put before it: it would be lost there.
fn when(updates: &Updates, index: usize) -> When {
    match (updates.op, updates.times.get(index)) {
        (_, None) => When::NEWEST,
        (Op::Put | Op::Delete, Some(&time)) => When::At(time),
        (_, Some(&time)) => When::NotBefore(time),
    }
}

/// Values, as a table has them.
#[derive(Default)]
struct Found {
    values: Column,
    present: Vec<bool>,
    /// From when on they hold; empty where the table keeps no versions.
    times: Vec<i64>,
}

impl Found {
    fn get(&self, index: usize) -> Option<&[u8]> {
        self.present.get(index).is_some_and(|&present| present).then(|| self.values.get(index))
    }
}

/// What updates of one table come to.
struct Decided<'a> {
    table: usize,
    updates: &'a Updates,
    changes: Vec<Result<Changed, UpdateError>>,
    /// The new value of each update that has one; empty for the others.
    values: Column,
}

/// What a batch has left so far of the keys that it has changed.
struct Left<'a> {
    writes: &'a [Write<'a>],
    all: Vec<Decided<'a>>,
    /// The change of each key that has left its newest value, by table and key, and from when on that holds: no time in tables that keep no versions.
    last: HashMap<(usize, &'a [u8]), (Last, i64)>,
}

#[derive(Clone, Copy)]
enum Last {
    Write(usize),
    /// One of the updates of one of the tables.
    Update(usize, usize),
}

impl<'a> Left<'a> {
    /// What `writes` have left, as far as `updates` may find it. `times` are those of what they have found.
    fn by(writes: &'a [Write<'a>], updates: &[UpdatesOf<'a>], times: &Times<'_>) -> Self {
        let count = updates.iter().map(|updates| updates.updates.keys.len()).sum();
        let mut left = Self { writes, all: Vec::with_capacity(updates.len()), last: HashMap::with_capacity(count) };
        let is_updated = |table: usize| updates.iter().any(|updates| updates.table == table);
        for (index, write) in writes.iter().enumerate().filter(|(_, write)| is_updated(write.table)) {
            let key = (write.table, write.key);
            let (when, found) = match times.get(&key) {
                Some(found) => (write.when, *found),
                None => (When::NEWEST, NO_TIME),
            };
            left.note(key, Last::Write(index), when, found);
        }
        left
    }

    /// Notes a change of a key, whose newest value held from `found` on before the batch: it leaves the newest value, unless it is of an earlier time.
    fn note(&mut self, key: (usize, &'a [u8]), change: Last, when: When, found: i64) {
        let newest = self.last.get(&key).map_or(found, |(_, time)| *time);
        let time = when.time(newest);
        if time >= newest {
            self.last.insert(key, (change, time));
        }
    }

    /// Decides `updates`, which find in their table what `found` has.
    fn update(&mut self, &UpdatesOf { table, updates }: &UpdatesOf<'a>, found: &Found) {
        let count = updates.keys.len();
        let (changes, values) = (Vec::with_capacity(count), Column::with_capacity(count, 16 * count));
        let number = self.all.len();
        self.all.push(Decided { table, updates, changes, values });
        let mut buffer = Vec::new();
        for (index, key) in updates.keys.iter().enumerate() {
            let current = match self.last.get(&(table, key)) {
                Some((last, _)) => self.value(*last),
                None => found.get(index),
            };
            let change = updates.change(index, current, &mut buffer);
            if matches!(change, Ok(Changed::To | Changed::Removed)) {
                let (when, found) = match found.times.get(index) {
                    Some(found) => (when(updates, index), *found),
                    None => (When::NEWEST, NO_TIME),
                };
                self.note((table, key), Last::Update(number, index), when, found);
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
