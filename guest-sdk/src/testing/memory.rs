//! A host in memory that holds functions to the contract.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use crate::bindings::wasmill::operator::description::Descriptor;
use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::types::{Batch, Column, Error, OptionalColumn};
use crate::column::NO_TIME;
use crate::host::Host;

use super::Emitted;

/// How often each host function was called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Calls {
    pub get_many: u32,
    pub get: u32,
    pub put_many: u32,
    pub delete_many: u32,
    pub emit: u32,
    pub reject: u32,
    pub begin_record: u32,
}

type TableKey = (String, Vec<u8>);
type Owner = Box<dyn Fn(&[u8]) -> bool>;

/// State, and the effects of the batch in progress.
pub(super) struct MemoryHost {
    descriptor: Descriptor,
    owns: RefCell<Owner>,
    stored: RefCell<HashMap<TableKey, Vec<u8>>>,
    batch_len: Cell<u32>,
    effects: RefCell<Effects>,
    calls: Cell<Calls>,
}

/// What a batch has caused so far.
#[derive(Default)]
pub(super) struct Effects {
    writes: Vec<Write>,
    pub(super) emitted: Vec<Emitted>,
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
    pub(super) fn new(descriptor: Descriptor) -> Self {
        Self {
            descriptor,
            owns: RefCell::new(Box::new(|_| true)),
            stored: RefCell::default(),
            batch_len: Cell::new(0),
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

    pub(super) fn calls(&self) -> Calls {
        self.calls.get()
    }

    pub(super) fn begin_batch(&self, batch: &Batch) {
        self.batch_len.set(batch.len() as u32);
    }

    /// Ends the batch. With `succeeded`, its writes are applied and its effects returned, those of rejected records left out;
    /// else only the log and the culprit are of use.
    pub(super) fn take_effects(&self, succeeded: bool) -> Effects {
        let mut effects = self.effects.take();
        if succeeded {
            let Effects { writes, emitted, rejected, .. } = &mut effects;
            writes.retain(|write| !rejected.contains_key(&write.record));
            emitted.retain(|emitted| !rejected.contains_key(&(emitted.cause as u32)));
            let mut stored = self.stored.borrow_mut();
            for write in writes.drain(..) {
                match write.value {
                    Some(value) => stored.insert(write.key, value),
                    None => stored.remove(&write.key),
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
        match records.iter().find(|&&record| record >= self.batch_len.get()) {
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

impl Host for MemoryHost {
    fn get_many(&self, table: &str, keys: &Column) -> Result<OptionalColumn, Error> {
        self.counted(|calls| calls.get_many += 1);
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

    fn emit(&self, port: &str, emitted: &Batch, records: &[u32]) -> Result<(), Error> {
        self.counted(|calls| calls.emit += 1);
        if port != "out" && !self.descriptor.ports.iter().any(|declared| declared == port) {
            return Err(Error::UnknownName(format!("port `{port}`")));
        }
        check_column("keys", &emitted.keys)?;
        check_column("values", &emitted.values)?;
        if emitted.keys.len() != emitted.len() || emitted.values.len() != emitted.len() {
            return Err(Error::Malformed("columns of different lengths".to_owned()));
        }
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

fn check_column(name: &str, column: &Column) -> Result<(), Error> {
    let grows = column.ends.is_sorted();
    if grows && column.ends.last().map_or(0, |&end| end as usize) == column.bytes.len() {
        Ok(())
    } else {
        Err(Error::Malformed(format!("the ends of `{name}` do not fit its bytes")))
    }
}
