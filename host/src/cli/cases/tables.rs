//! The tables that a function finds in a case, in memory.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::file::Values;
use crate::plugin::{
    Consistency, Description, LookupError, OtherTables, Page, Readers, StateReadError, StateReader, Writes,
};
use crate::record::Column;

pub(super) type Table = BTreeMap<Vec<u8>, Vec<u8>>;

fn filled<'a>(names: impl Iterator<Item = &'a String>, values: &Values) -> Vec<Table> {
    let table = |name: &String| {
        let entries = values.get(name).into_iter().flatten();
        entries.map(|(key, value)| (key.clone().into_bytes(), value.bytes())).collect()
    };
    names.map(table).collect()
}

/// The function's own tables, of which it owns all keys.
pub(super) struct Own {
    before: Vec<Table>,
    now: Mutex<Vec<Table>>,
}

impl Own {
    pub(super) fn new(description: &Description, values: &Values) -> Self {
        let before = filled(description.tables.iter().map(|(name, _)| name), values);
        Self { now: Mutex::new(before.clone()), before }
    }

    /// Applies writes.
    pub(super) fn write(&self, Writes { table, keys, values, .. }: &Writes) {
        let table = &mut self.now.lock()[*table];
        for (index, key) in keys.iter().enumerate() {
            match values {
                Some(values) => _ = table.insert(key.to_vec(), values.get(index).to_vec()),
                None => _ = table.remove(key),
            }
        }
    }

    /// The keys of a table whose values are others than before, with what they are.
    pub(super) fn changed(&self, table: usize) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let (before, now) = (&self.before[table], &self.now.lock()[table]);
        let written = now.iter().filter(|(key, value)| before.get(*key) != Some(value));
        let written = written.map(|(key, value)| (key.clone(), Some(value.clone())));
        let gone = before.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), None));
        written.chain(gone).collect()
    }
}

impl StateReader for Own {
    fn read(
        &self,
        table: usize,
        keys: &Column,
        _: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError> {
        let tables = self.now.lock();
        keys.iter().enumerate().for_each(|(index, key)| found(index, tables[table].get(key).map(Vec::as_slice)));
        Ok(())
    }

    fn owns(&self, _: &[u8]) -> bool {
        true
    }
}

/// The tables that the function uses. They stay as the case has them, at every moment and time: what it changes is applied by their owners, later.
pub(super) struct Others(Vec<Table>);

impl Others {
    pub(super) fn new(description: &Description, values: &Values) -> Self {
        Self(filled(description.uses.iter(), values))
    }

    fn find(&self, table: usize, keys: &Column, found: &mut dyn FnMut(usize, Option<&[u8]>)) {
        keys.iter().enumerate().for_each(|(index, key)| found(index, self.0[table].get(key).map(Vec::as_slice)));
    }
}

impl OtherTables for Others {
    fn get_many(
        &self,
        table: usize,
        keys: &Column,
        _: Readers<'_>,
        _: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.find(table, keys, found);
        Ok(())
    }

    fn get_many_as_of_time(
        &self,
        table: usize,
        keys: &Column,
        _: &[i64],
        _: bool,
        _: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.find(table, keys, found);
        Ok(())
    }

    fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        _: Readers<'_>,
        _: Consistency,
    ) -> Result<Page, LookupError> {
        let is_before = |key: &[u8]| to.is_none_or(|to| key < to);
        let mut entries = self.0[table].iter().filter(|(key, _)| key.as_slice() >= from && is_before(key));
        let mut page = Page::default();
        for (key, value) in entries.by_ref().take(limit) {
            page.keys.push(key);
            page.values.push(value);
        }
        page.next = entries.next().map(|(key, _)| key.clone());
        Ok(page)
    }
}
