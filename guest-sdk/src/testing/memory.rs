//! A host in memory that holds functions to the contract.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use crate::bindings::wasmill::operator::description::Descriptor;
use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::tables::{Op, Outcomes, Page};
use crate::bindings::wasmill::operator::types::{Batch, Column, Error, OptionalColumn};
use crate::column::NO_TIME;
use crate::description::Description;
use crate::host::Host;
use crate::used::Consistency;

use super::used::{Asked, Change};
use super::{Emitted, Sent, Updated};

/// How often each host function was called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Calls {
    pub get_many: u32,
    pub get: u32,
    pub put_many: u32,
    pub delete_many: u32,
    pub look_up_many: u32,
    pub look_up: u32,
    pub look_up_many_at: u32,
    pub scan: u32,
    pub update_many: u32,
    pub compare_and_put_many: u32,
    pub send: u32,
    pub emit: u32,
    pub reject: u32,
    pub begin_record: u32,
    pub read_for: u32,
}

type TableKey = (String, Vec<u8>);
/// The most keys of one lookup, as the host has it.
const LOOK_UP_KEYS_MAX: usize = 1 << 20;

type OtherValues = BTreeMap<Vec<u8>, Vec<u8>>;
/// A key's values by event time; none where it was removed.
type Versions = BTreeMap<i64, Option<Vec<u8>>>;
type Owner = Box<dyn Fn(&[u8]) -> bool>;

/// State, and the effects of the batch in progress.
pub(super) struct MemoryHost {
    descriptor: Descriptor,
    owns: RefCell<Owner>,
    stored: RefCell<HashMap<TableKey, Vec<u8>>>,
    /// The function's versioned tables.
    versioned: Vec<String>,
    /// What these have held, and what tables of others have.
    versions: RefCell<HashMap<TableKey, Versions>>,
    /// What the tables of others hold that the function has declared to use.
    others: RefCell<BTreeMap<String, OtherValues>>,
    /// How far the owners of these have come in event time, where a test says so.
    reached: RefCell<BTreeMap<String, i64>>,
    not_yet: Cell<bool>,
    look_up_keys_max: Cell<usize>,
    /// Whether the records of a batch are apart.
    is_apart: Cell<bool>,
    /// For whom the next read is.
    readers: RefCell<Option<Vec<u32>>>,
    /// What was read for which record, where records are apart.
    reads: RefCell<Vec<(u32, TableKey)>>,
    times: RefCell<Vec<i64>>,
    effects: RefCell<Effects>,
    calls: Cell<Calls>,
}

/// What a batch has caused so far.
#[derive(Default)]
pub(super) struct Effects {
    writes: Vec<Write>,
    pub(super) emitted: Vec<Emitted>,
    pub(super) updates: Vec<Updated>,
    pub(super) sent: Vec<Sent>,
    pub(super) rejected: BTreeMap<u32, String>,
    pub(super) culprit: Option<u32>,
    pub(super) log: Vec<(Level, String)>,
    pub(super) counts: BTreeMap<String, u64>,
    pub(super) gauges: BTreeMap<String, f64>,
}

struct Write {
    key: TableKey,
    value: Option<Vec<u8>>,
    record: u32,
}

impl MemoryHost {
    pub(super) fn new(description: Description) -> Self {
        let others = description.used().iter().map(|table| ((*table).to_owned(), BTreeMap::new())).collect();
        let tables = description.caches().into_iter().map(|(table, _)| table);
        let versioned = tables.filter(|table| description.is_versioned(table)).map(str::to_owned).collect();
        Self {
            descriptor: description.into_descriptor(),
            versioned,
            versions: RefCell::default(),
            reached: RefCell::default(),
            not_yet: Cell::new(false),
            owns: RefCell::new(Box::new(|_| true)),
            stored: RefCell::default(),
            others: RefCell::new(others),
            look_up_keys_max: Cell::new(LOOK_UP_KEYS_MAX),
            is_apart: Cell::new(false),
            readers: RefCell::default(),
            reads: RefCell::default(),
            times: RefCell::default(),
            effects: RefCell::default(),
            calls: Cell::default(),
        }
    }

    pub(super) fn set_owner(&self, owns: Owner) {
        *self.owns.borrow_mut() = owns;
    }

    pub(super) fn stored(&self, table: &str, key: &[u8]) -> Option<Vec<u8>> {
        self.stored.borrow().get(&(table.to_owned(), key.to_vec())).cloned()
    }

    pub(super) fn store(&self, table: &str, key: &[u8], value: &[u8]) {
        self.stored.borrow_mut().insert((table.to_owned(), key.to_vec()), value.to_vec());
    }

    /// Sets a value of a table of others, or removes it: from an event time on, or as the newest. False where the function has not declared the table.
    pub(super) fn set_other(&self, table: &str, key: &[u8], time: Option<i64>, value: Option<Vec<u8>>) -> bool {
        let mut others = self.others.borrow_mut();
        let Some(values) = others.get_mut(table) else { return false };
        let newest = self.add_version(other_key(table, key), time.unwrap_or(NO_TIME), value);
        match newest {
            Some(value) => values.insert(key.to_vec(), value),
            None => values.remove(key),
        };
        true
    }

    /// Says how far the owner of a table has come.
    pub(super) fn set_reached(&self, table: &str, time: i64) {
        self.reached.borrow_mut().insert(table.to_owned(), time);
    }

    /// The value of one of the function's versioned tables as of a time.
    pub(super) fn stored_as_of(&self, table: &str, key: &[u8], time: i64) -> Option<Vec<u8>> {
        as_of(&self.versions.borrow(), &(table.to_owned(), key.to_vec()), time)
    }

    /// Whether the batch has asked for what is not known yet; forgets it.
    pub(super) fn take_not_yet(&self) -> bool {
        self.not_yet.take()
    }

    /// Adds a version, without a time at that of the newest; returns the newest value.
    fn add_version(&self, key: TableKey, time: i64, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let mut all = self.versions.borrow_mut();
        let versions = all.entry(key).or_default();
        let newest_time = versions.last_key_value().map_or(NO_TIME, |(time, _)| *time);
        versions.insert(if time == NO_TIME { newest_time } else { time }, value);
        versions.last_key_value().and_then(|(_, value)| value.clone())
    }

    #[cfg(test)]
    pub(super) fn limit_look_up(&self, keys_max: usize) {
        self.look_up_keys_max.set(keys_max);
    }

    /// Says whether the records of each batch are apart from now on.
    #[cfg(test)]
    pub(super) fn set_apart(&self, is_apart: bool) {
        self.is_apart.set(is_apart);
    }

    /// What was read for which record since this was asked last, in order: `RECORD TABLE/KEY`.
    #[cfg(test)]
    pub(super) fn take_reads(&self) -> Vec<String> {
        let text =
            |(record, (table, key)): (u32, TableKey)| format!("{record} {table}/{}", String::from_utf8_lossy(&key));
        self.reads.take().into_iter().map(text).collect()
    }

    /// Notes a read of `count` keys, those of which `key` gives.
    fn note_read<'k>(&self, table: &str, count: usize, key: impl Fn(usize) -> &'k [u8]) -> Result<(), Error> {
        if !self.is_apart.get() {
            return Ok(());
        }
        let readers = self.readers.take().ok_or_else(|| Error::Other("a read for nobody".to_owned()))?;
        let reader = |index: usize| match readers.as_slice() {
            [one] => Some(*one),
            each => each.get(index).copied(),
        };
        if readers.len() > 1 && readers.len() != count {
            return Err(Error::Malformed(format!("{} readers of {count} keys", readers.len())));
        }
        let noted = (0..count).filter_map(|index| Some((reader(index)?, (table.to_owned(), key(index).to_vec()))));
        self.reads.borrow_mut().extend(noted);
        Ok(())
    }

    pub(super) fn is_used(&self, table: &str) -> bool {
        self.others.borrow().contains_key(table)
    }

    pub(super) fn calls(&self) -> Calls {
        self.calls.get()
    }

    pub(super) fn begin_batch(&self, batch: &Batch) {
        self.times.borrow_mut().clone_from(&batch.times);
    }

    /// Ends the batch. With `succeeded`, its writes are applied and its effects returned, those of rejected records left out;
    /// else only the log and the culprit are of use.
    pub(super) fn take_effects(&self, succeeded: bool) -> Effects {
        let mut effects = self.effects.take();
        if succeeded {
            let Effects { writes, emitted, updates, sent, rejected, .. } = &mut effects;
            let is_rejected = |cause: usize| rejected.contains_key(&(cause as u32));
            writes.retain(|write| !rejected.contains_key(&write.record));
            emitted.retain(|emitted| !is_rejected(emitted.cause));
            updates.retain(|updated| !is_rejected(updated.cause));
            sent.retain(|sent| !is_rejected(sent.cause));
            let mut stored = self.stored.borrow_mut();
            for Write { key, value, record } in writes.drain(..) {
                let value = match self.versioned.contains(&key.0) {
                    true => self.add_version(key.clone(), self.times.borrow()[record as usize], value),
                    false => value,
                };
                match value {
                    Some(value) => stored.insert(key, value),
                    None => stored.remove(&key),
                };
            }
        }
        effects
    }

    fn counted(&self, count: impl FnOnce(&mut Calls)) {
        let mut calls = self.calls.get();
        count(&mut calls);
        self.calls.set(calls);
    }

    fn check_table(&self, table: &str) -> Result<(), Error> {
        let declared = self.descriptor.tables.iter().any(|declared| declared.name == table);
        if declared { Ok(()) } else { Err(Error::UnknownName(format!("table `{table}`"))) }
    }

    fn check_used(&self, table: &str) -> Result<(), Error> {
        if self.is_used(table) { Ok(()) } else { Err(Error::UnknownName(format!("used table `{table}`"))) }
    }

    fn check_port(&self, port: &str) -> Result<(), Error> {
        if port != "out" && !self.descriptor.ports.iter().any(|declared| declared == port) {
            return Err(Error::UnknownName(format!("port `{port}`")));
        }
        Ok(())
    }

    /// Checks updates, and takes in what `change` makes of each.
    fn update(
        &self,
        table: &str,
        keys: &Column,
        records: &[u32],
        outcomes: Option<&Outcomes>,
        change: impl Fn(usize) -> Change,
    ) -> Result<(), Error> {
        check_column("keys", keys)?;
        self.check_records(records, keys.len())?;
        if let Some(outcomes) = outcomes {
            self.check_port(&outcomes.port)?;
            check_column("keys of outcomes", &outcomes.keys)?;
            check_column("values of outcomes", &outcomes.values)?;
            if outcomes.keys.len() != keys.len() || outcomes.values.len() != keys.len() {
                return Err(Error::Malformed("columns of different lengths".to_owned()));
            }
        }
        let asked = |index: usize| {
            outcomes.map(|outcomes| Asked {
                port: outcomes.port.clone(),
                key: outcomes.keys.get(index).to_vec(),
                tag: outcomes.values.get(index).to_vec(),
            })
        };
        self.effects.borrow_mut().updates.extend(records.iter().enumerate().map(|(index, &record)| Updated {
            table: table.to_owned(),
            key: keys.get(index).to_vec(),
            change: change(index),
            asked: asked(index),
            cause: record as usize,
        }));
        Ok(())
    }

    fn check_keys(&self, keys: &Column) -> Result<(), Error> {
        check_column("keys", keys)?;
        (0..keys.len()).try_for_each(|index| self.check_key(keys.get(index)))
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        if (self.owns.borrow())(key) {
            Ok(())
        } else {
            Err(Error::ForeignKey(String::from_utf8_lossy(key).into_owned()))
        }
    }

    fn check_records(&self, records: &[u32], expected: usize) -> Result<(), Error> {
        if records.len() != expected {
            return Err(Error::Malformed(format!("{} record indices for {expected} effects", records.len())));
        }
        let batch_len = self.times.borrow().len() as u32;
        match records.iter().find(|&&record| record >= batch_len) {
            Some(record) => Err(Error::Malformed(format!("record {record} is outside the batch"))),
            None => Ok(()),
        }
    }

    /// What the batch in progress would read.
    fn read(&self, table: &str, key: &[u8]) -> Option<Vec<u8>> {
        let effects = self.effects.borrow();
        let written = effects.writes.iter().rev().find(|write| write.key.0 == table && write.key.1 == key);
        match written {
            Some(write) => write.value.clone(),
            None => self.stored(table, key),
        }
    }

    fn write(&self, table: &str, key: &[u8], value: Option<&[u8]>, record: u32) {
        let key = (table.to_owned(), key.to_vec());
        self.effects.borrow_mut().writes.push(Write { key, value: value.map(<[u8]>::to_vec), record });
    }
}

/// A key of a table of others; the function's own tables have no `/` in their names.
fn other_key(table: &str, key: &[u8]) -> TableKey {
    (format!("other/{table}"), key.to_vec())
}

fn as_of(versions: &HashMap<TableKey, Versions>, key: &TableKey, time: i64) -> Option<Vec<u8>> {
    versions.get(key)?.range(..=time).next_back()?.1.clone()
}

impl Host for MemoryHost {
    fn get_many(&self, table: &str, keys: &Column) -> Result<OptionalColumn, Error> {
        self.counted(|calls| calls.get_many += 1);
        self.note_read(table, keys.len(), |index| keys.get(index))?;
        self.check_table(table)?;
        self.check_keys(keys)?;
        let mut found = OptionalColumn { items: Column::empty(), present: Vec::new() };
        for index in 0..keys.len() {
            let value = self.read(table, keys.get(index));
            found.present.push(u8::from(value.is_some()));
            found.items.push(&value.unwrap_or_default());
        }
        Ok(found)
    }

    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.counted(|calls| calls.get += 1);
        self.note_read(table, 1, |_| key)?;
        self.check_table(table)?;
        self.check_key(key)?;
        Ok(self.read(table, key))
    }

    fn put_many(&self, table: &str, keys: &Column, values: &Column, records: &[u32]) -> Result<(), Error> {
        self.counted(|calls| calls.put_many += 1);
        self.check_table(table)?;
        self.check_keys(keys)?;
        check_column("values", values)?;
        if values.len() != keys.len() {
            return Err(Error::Malformed(format!("{} values for {} keys", values.len(), keys.len())));
        }
        self.check_records(records, keys.len())?;
        for (index, &record) in records.iter().enumerate() {
            self.write(table, keys.get(index), Some(values.get(index)), record);
        }
        Ok(())
    }

    fn delete_many(&self, table: &str, keys: &Column, records: &[u32]) -> Result<(), Error> {
        self.counted(|calls| calls.delete_many += 1);
        self.check_table(table)?;
        self.check_keys(keys)?;
        self.check_records(records, keys.len())?;
        for (index, &record) in records.iter().enumerate() {
            self.write(table, keys.get(index), None, record);
        }
        Ok(())
    }

    fn look_up_many(&self, table: &str, keys: &Column, _: Consistency) -> Result<OptionalColumn, Error> {
        self.counted(|calls| calls.look_up_many += 1);
        self.note_read(table, keys.len(), |index| keys.get(index))?;
        self.check_used(table)?;
        check_column("keys", keys)?;
        if keys.len() > self.look_up_keys_max.get() {
            return Err(Error::LimitExceeded(format!("one lookup takes at most {} keys", self.look_up_keys_max.get())));
        }
        let others = self.others.borrow();
        let mut found = OptionalColumn::empty();
        for index in 0..keys.len() {
            let value = others[table].get(keys.get(index));
            found.present.push(u8::from(value.is_some()));
            found.items.push(value.map(Vec::as_slice).unwrap_or_default());
        }
        Ok(found)
    }

    fn look_up(&self, table: &str, key: &[u8], _: Consistency) -> Result<Option<Vec<u8>>, Error> {
        self.counted(|calls| calls.look_up += 1);
        self.note_read(table, 1, |_| key)?;
        self.check_used(table)?;
        Ok(self.others.borrow()[table].get(key).cloned())
    }

    fn look_up_many_at(&self, table: &str, keys: &Column, times: &[i64], wait: bool) -> Result<OptionalColumn, Error> {
        self.counted(|calls| calls.look_up_many_at += 1);
        self.note_read(table, keys.len(), |index| keys.get(index))?;
        self.check_used(table)?;
        check_column("keys", keys)?;
        if times.len() != keys.len() {
            return Err(Error::Malformed(format!("{} times for {} keys", times.len(), keys.len())));
        }
        let reached = self.reached.borrow().get(table).copied().unwrap_or(i64::MAX);
        if wait && times.iter().any(|time| *time > reached) {
            self.not_yet.set(true);
            return Err(Error::NotYet(format!("`{table}` is known up to event time {reached}")));
        }
        let versions = self.versions.borrow();
        let mut found = OptionalColumn::empty();
        for (index, time) in times.iter().enumerate() {
            let value = as_of(&versions, &other_key(table, keys.get(index)), *time);
            found.present.push(u8::from(value.is_some()));
            found.items.push(&value.unwrap_or_default());
        }
        Ok(found)
    }

    fn scan(&self, table: &str, from: &[u8], to: Option<&[u8]>, limit: u32, _: Consistency) -> Result<Page, Error> {
        self.counted(|calls| calls.scan += 1);
        self.note_read(table, 1, |_| from)?;
        self.check_used(table)?;
        let others = self.others.borrow();
        let mut page = Page { keys: Column::empty(), values: Column::empty(), next: None };
        let from_on = others[table].iter().filter(|(key, _)| key.as_slice() >= from);
        for (key, value) in from_on.take_while(|(key, _)| to.is_none_or(|to| key.as_slice() < to)) {
            if page.keys.len() == limit as usize {
                page.next = Some(key.clone());
                break;
            }
            page.keys.push(key);
            page.values.push(value);
        }
        Ok(page)
    }

    fn update_many(
        &self,
        table: &str,
        keys: &Column,
        op: &Op,
        values: &Column,
        records: &[u32],
        outcomes: Option<&Outcomes>,
    ) -> Result<(), Error> {
        self.counted(|calls| calls.update_many += 1);
        self.check_used(table)?;
        check_column("values", values)?;
        let expected = if matches!(op, Op::Delete) { 0 } else { keys.len() };
        if values.len() != expected {
            return Err(Error::Malformed(format!("{} values for {} keys", values.len(), keys.len())));
        }
        let value = |index: usize| if values.is_empty() { b"" } else { values.get(index) };
        for index in 0..values.len() {
            Change::check(op, value(index)).map_err(Error::Malformed)?;
        }
        self.update(table, keys, records, outcomes, |index| Change::of(op, value(index)))
    }

    fn compare_and_put_many(
        &self,
        table: &str,
        keys: &Column,
        expected: &OptionalColumn,
        values: &OptionalColumn,
        records: &[u32],
        outcomes: Option<&Outcomes>,
    ) -> Result<(), Error> {
        self.counted(|calls| calls.compare_and_put_many += 1);
        self.check_used(table)?;
        for column in [expected, values] {
            check_column("values", &column.items)?;
            if column.items.len() != keys.len() || column.present.len() != keys.len() {
                return Err(Error::Malformed("columns of different lengths".to_owned()));
            }
        }
        let item = |column: &OptionalColumn, index: usize| {
            (column.present[index] != 0).then(|| column.items.get(index).to_vec())
        };
        self.update(table, keys, records, outcomes, |index| Change::CompareAndPut {
            expected: item(expected, index),
            value: item(values, index),
        })
    }

    fn send(&self, table: &str, sent: &Batch, records: &[u32]) -> Result<(), Error> {
        self.counted(|calls| calls.send += 1);
        self.check_used(table)?;
        check_batch(sent)?;
        self.check_records(records, sent.len())?;
        self.effects.borrow_mut().sent.extend(records.iter().enumerate().map(|(index, &record)| Sent {
            table: table.to_owned(),
            key: sent.keys.get(index).to_vec(),
            value: sent.values.get(index).to_vec(),
            time: Some(sent.times[index]).filter(|&time| time != NO_TIME),
            cause: record as usize,
        }));
        Ok(())
    }

    fn emit(&self, port: &str, emitted: &Batch, records: &[u32]) -> Result<(), Error> {
        self.counted(|calls| calls.emit += 1);
        self.check_port(port)?;
        check_batch(emitted)?;
        self.check_records(records, emitted.len())?;
        self.effects.borrow_mut().emitted.extend(records.iter().enumerate().map(|(index, &record)| Emitted {
            port: port.to_owned(),
            key: emitted.keys.get(index).to_vec(),
            value: emitted.values.get(index).to_vec(),
            time: Some(emitted.times[index]).filter(|&time| time != NO_TIME),
            cause: record as usize,
        }));
        Ok(())
    }

    fn log(&self, level: Level, message: &str) {
        self.effects.borrow_mut().log.push((level, message.to_owned()));
    }

    fn count(&self, name: &str, by: u64) {
        *self.effects.borrow_mut().counts.entry(name.to_owned()).or_default() += by;
    }

    fn count_many(&self, name: &str, by: &[u64], records: &[u32]) {
        assert_eq!(by.len(), records.len(), "an addition is of one record");
        by.iter().for_each(|by| self.count(name, *by));
    }

    fn gauge_many(&self, name: &str, values: &[f64], records: &[u32]) {
        assert_eq!(values.len(), records.len(), "a value is of one record");
        values.iter().for_each(|value| self.gauge(name, *value));
    }

    fn is_apart(&self) -> bool {
        self.is_apart.get()
    }

    fn read_for(&self, records: &[u32]) {
        self.counted(|calls| calls.read_for += 1);
        *self.readers.borrow_mut() = Some(records.to_vec());
    }

    fn gauge(&self, name: &str, value: f64) {
        self.effects.borrow_mut().gauges.insert(name.to_owned(), value);
    }

    fn reject(&self, record: u32, reason: &str) {
        self.counted(|calls| calls.reject += 1);
        self.effects.borrow_mut().rejected.insert(record, reason.to_owned());
    }

    fn begin_record(&self, record: u32) {
        self.counted(|calls| calls.begin_record += 1);
        self.effects.borrow_mut().culprit = Some(record);
    }
}

fn check_batch(batch: &Batch) -> Result<(), Error> {
    check_column("keys", &batch.keys)?;
    check_column("values", &batch.values)?;
    if batch.keys.len() != batch.len() || batch.values.len() != batch.len() {
        return Err(Error::Malformed("columns of different lengths".to_owned()));
    }
    Ok(())
}

fn check_column(name: &str, column: &Column) -> Result<(), Error> {
    let grows = column.ends.is_sorted();
    if grows && column.ends.last().map_or(0, |&end| end as usize) == column.bytes.len() {
        Ok(())
    } else {
        Err(Error::Malformed(format!("the ends of `{name}` do not fit its bytes")))
    }
}
