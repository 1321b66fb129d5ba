//! Typed state: tables, and the values of one batch held decoded until its end.
//!
//! A table that a batch touches is read by one call for all of the batch's keys, changed in place from record to record, and
//! written back by one call. A table that it does not touch costs nothing. Of a versioned table, what each record leaves is written, not only what the last one does.

use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::bindings::wasmill::operator::types::{Batch, Column, OptionalColumn};
use crate::codec::Codec;
use crate::error::{StateError, host_error_text};
use crate::host::Host;
use crate::keys::KeyIndex;

/// A named keyed state, and how its values are encoded. A constant of the function:
///
/// ```
/// use wasmill_sdk::{Fixed, Table};
///
/// const COUNTS: Table<Fixed<u64>> = Table::new("counts");
/// ```
pub struct Table<C> {
    pub(crate) name: &'static str,
    pub(crate) schema_version: u32,
    codec: PhantomData<fn() -> C>,
}

impl<C: Codec> Table<C> {
    /// The table `name` (kebab-case or snake_case), at schema version 1. Declare it in `describe` by
    /// [`Description::table`](crate::Description::table).
    pub const fn new(name: &'static str) -> Self {
        Self { name, schema_version: 1, codec: PhantomData }
    }

    /// The same table with values of a later encoding.
    pub const fn schema_version(self, schema_version: u32) -> Self {
        Self { schema_version, ..self }
    }

    /// The table's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<C> fmt::Debug for Table<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name).field("schema_version", &self.schema_version).finish()
    }
}

/// The value of one key of a table, absent or present. Changes stay in the batch's memory until the batch ends.
pub struct Entry<'c, C: Codec> {
    cache: RefMut<'c, Cache<C>>,
    slot: usize,
    record: u32,
    merged: &'c Cell<bool>,
}

impl<C: Codec> Entry<'_, C> {
    /// The value, if there is one.
    pub fn get(&self) -> Option<&C::Value> {
        self.cache.slots[self.slot].value.as_ref()
    }

    /// The value for changing, if there is one. It counts as changed from here on.
    pub fn get_mut(&mut self) -> Option<&mut C::Value> {
        if self.get().is_some() {
            self.mark_changed();
        }
        self.cache.slots[self.slot].value.as_mut()
    }

    /// The value for changing, made by `value` where there is none. It counts as changed from here on.
    pub fn or_insert_with(&mut self, value: impl FnOnce() -> C::Value) -> &mut C::Value {
        self.mark_changed();
        self.cache.slots[self.slot].value.get_or_insert_with(value)
    }

    /// The value for changing, the default where there is none. It counts as changed from here on.
    pub fn or_default(&mut self) -> &mut C::Value
    where
        C::Value: Default,
    {
        self.or_insert_with(C::Value::default)
    }

    /// Changes the value, the default where there is none, and returns what `change` does.
    pub fn update<R>(&mut self, change: impl FnOnce(&mut C::Value) -> R) -> R
    where
        C::Value: Default,
    {
        change(self.or_default())
    }

    /// Sets the value.
    pub fn put(&mut self, value: C::Value) {
        self.mark_changed();
        self.cache.slots[self.slot].value = Some(value);
    }

    /// Removes the value and returns it. Removing an absent value does nothing.
    pub fn delete(&mut self) -> Option<C::Value> {
        if self.get().is_some() {
            self.mark_changed();
        }
        self.cache.slots[self.slot].value.take()
    }

    fn mark_changed(&mut self) {
        let cache = &mut *self.cache;
        let slot = &mut cache.slots[self.slot];
        if slot.changed_by == NOBODY {
            cache.changed.push(self.slot as u32);
        } else if slot.changed_by != self.record {
            self.merged.set(true);
            if cache.is_versioned {
                cache.keep_version(self.slot);
            }
        }
        cache.slots[self.slot].changed_by = self.record;
    }
}

impl<C: Codec> fmt::Debug for Entry<'_, C>
where
    C::Value: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&self.get()).finish()
    }
}

/// In place of a record: a value that no record of the batch has changed.
const NOBODY: u32 = u32::MAX;

/// One table's values during a batch, by the slots of the batch's keys.
pub(crate) struct Cache<C: Codec> {
    table: &'static str,
    prefetched: Option<OptionalColumn>,
    slots: Vec<Slot<C::Value>>,
    /// The slots that have been changed, in the order of their first change.
    changed: Vec<u32>,
    /// Whether what each record leaves is written.
    is_versioned: bool,
    versions: Versions,
    writes: Writes,
}

/// What records have left of a versioned table, in their order for each key.
#[derive(Default)]
struct Versions {
    versions: Vec<Version>,
    bytes: Vec<u8>,
    /// Why a value could not be kept.
    failure: Option<Failure>,
}

struct Version {
    slot: usize,
    record: u32,
    /// Where the value lies; `None` where there was none any more.
    value: Option<Range<usize>>,
}

impl Versions {
    fn clear(&mut self) {
        self.versions.clear();
        self.bytes.clear();
        self.failure = None;
    }
}

struct Slot<V> {
    /// Whether `value` and `stored` have been filled in.
    is_read: bool,
    /// Whether the host has a value for the key.
    stored: bool,
    /// The last record that changed the value, or [`NOBODY`].
    changed_by: u32,
    value: Option<V>,
}

impl<V> Slot<V> {
    fn unread() -> Self {
        Self { is_read: false, stored: false, changed_by: NOBODY, value: None }
    }
}

/// The columns of a write-back; kept for their memory.
struct Writes {
    put_keys: Column,
    put_values: Column,
    put_records: Vec<u32>,
    delete_keys: Column,
    delete_records: Vec<u32>,
}

impl Writes {
    fn empty() -> Self {
        Self {
            put_keys: Column::empty(),
            put_values: Column::empty(),
            put_records: Vec::new(),
            delete_keys: Column::empty(),
            delete_records: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.put_keys.clear();
        self.put_values.clear();
        self.put_records.clear();
        self.delete_keys.clear();
        self.delete_records.clear();
    }

    fn hand_over(&self, table: &str, host: &dyn Host) -> Result<(), Failure> {
        let refused = |error| Failure { record: None, reason: host_error_text(error) };
        if !self.put_records.is_empty() {
            host.put_many(table, &self.put_keys, &self.put_values, &self.put_records).map_err(refused)?;
        }
        if !self.delete_records.is_empty() {
            host.delete_many(table, &self.delete_keys, &self.delete_records).map_err(refused)?;
        }
        Ok(())
    }
}

/// Why a batch's effects could not be handed over.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The record at fault, where it is known.
    pub(crate) record: Option<u32>,
    pub(crate) reason: String,
}

impl<C: Codec> Cache<C> {
    /// Reads `slot` for `record`, if that has not been done, and all the batch's keys with it the first time.
    fn read(
        &mut self,
        slot: usize,
        record: u32,
        keys: &mut KeyIndex,
        batch: &Batch,
        host: &dyn Host,
    ) -> Result<(), StateError> {
        if self.slots.get(slot).is_some_and(|slot| slot.is_read) {
            return Ok(());
        }
        let refused = |error| StateError::Host { table: self.table, reason: host_error_text(error) };
        let prefetched = match &mut self.prefetched {
            Some(prefetched) => prefetched,
            none => {
                if let Some(readers) = keys.readers() {
                    host.read_for(readers);
                }
                none.insert(host.get_many(self.table, keys.distinct(batch)).map_err(refused)?)
            }
        };
        if self.slots.len() <= slot {
            self.slots.resize_with(prefetched.present.len().max(slot + 1), Slot::unread);
        }
        let fetched_now;
        let bytes = match prefetched.present.get(slot) {
            Some(&present) => (present != 0).then(|| prefetched.items.get(slot)),
            None => {
                if keys.readers().is_some() {
                    host.read_for(&[record]);
                }
                fetched_now = host.get(self.table, keys.key(batch, slot)).map_err(refused)?;
                fetched_now.as_deref()
            }
        };
        let decode = |bytes| C::decode(bytes).map_err(|reason| StateError::Decode { table: self.table, reason });
        let value = bytes.map(decode).transpose()?;
        self.slots[slot] = Slot { is_read: true, stored: value.is_some(), changed_by: NOBODY, value };
        Ok(())
    }
}

impl<C: Codec> Cache<C> {
    /// Keeps what the last record to change `slot` has left.
    fn keep_version(&mut self, slot: usize) {
        let Self { table, versions: Versions { versions, bytes, failure }, slots, .. } = self;
        let Slot { value, changed_by: record, .. } = &slots[slot];
        let start = bytes.len();
        let encoded = value.as_ref().map(|value| C::encode(value, bytes)).transpose();
        match encoded {
            Ok(value) => versions.push(Version { slot, record: *record, value: value.map(|()| start..bytes.len()) }),
            Err(reason) => _ = failure.get_or_insert_with(|| not_encoded(table, *record, &reason)),
        }
    }

    /// Hands over what each record has left, in that order: as many calls as values and removals take turns.
    fn write_versions(&mut self, keys: &KeyIndex, batch: &Batch, host: &dyn Host) -> Result<(), Failure> {
        for slot in std::mem::take(&mut self.changed) {
            self.keep_version(slot as usize);
        }
        let Self { table, versions: Versions { versions, bytes, failure }, writes, .. } = self;
        if let Some(failure) = failure.take() {
            return Err(failure);
        }
        writes.clear();
        for Version { slot, record, value } in versions {
            let key = keys.key(batch, *slot);
            let is_turn =
                if value.is_some() { !writes.delete_records.is_empty() } else { !writes.put_records.is_empty() };
            if is_turn {
                writes.hand_over(table, host)?;
                writes.clear();
            }
            match value {
                Some(value) => {
                    writes.put_keys.push(key);
                    writes.put_values.push(&bytes[value.clone()]);
                    writes.put_records.push(*record);
                }
                None => {
                    writes.delete_keys.push(key);
                    writes.delete_records.push(*record);
                }
            }
        }
        writes.hand_over(table, host)
    }
}

fn not_encoded(table: &str, record: u32, reason: &str) -> Failure {
    Failure { record: Some(record), reason: format!("failed to encode a value of table `{table}`: {reason}") }
}

/// A table's cache, whatever its codec.
pub(crate) trait AnyCache {
    fn as_any(&self) -> &dyn Any;

    /// Hands all changes to the host: one call for the values, one for the removals.
    fn write_back(&self, keys: &KeyIndex, batch: &Batch, host: &dyn Host) -> Result<(), Failure>;

    /// Undoes the changes of `record`, which must not have changed what another record had changed before.
    fn undo(&self, record: u32);

    /// Forgets the batch.
    fn clear(&self);
}

impl<C: Codec> AnyCache for RefCell<Cache<C>> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn write_back(&self, keys: &KeyIndex, batch: &Batch, host: &dyn Host) -> Result<(), Failure> {
        let mut cache = self.borrow_mut();
        if cache.is_versioned {
            return cache.write_versions(keys, batch, host);
        }
        let Cache { table, slots, changed, writes, .. } = &mut *cache;
        writes.clear();
        for &changed_slot in changed.iter() {
            let slot = &slots[changed_slot as usize];
            let key = keys.key(batch, changed_slot as usize);
            match &slot.value {
                Some(value) => {
                    C::encode(value, &mut writes.put_values.bytes)
                        .map_err(|reason| not_encoded(table, slot.changed_by, &reason))?;
                    writes.put_values.end_item();
                    writes.put_keys.push(key);
                    writes.put_records.push(slot.changed_by);
                }
                None if slot.stored => {
                    writes.delete_keys.push(key);
                    writes.delete_records.push(slot.changed_by);
                }
                None => {}
            }
        }
        writes.hand_over(table, host)
    }

    fn undo(&self, record: u32) {
        let cache = &mut *self.borrow_mut();
        while let Some(&last) = cache.changed.last() {
            if cache.slots[last as usize].changed_by != record {
                break;
            }
            cache.slots[last as usize] = Slot::unread();
            cache.changed.pop();
        }
    }

    fn clear(&self) {
        let mut cache = self.borrow_mut();
        cache.prefetched = None;
        cache.slots.clear();
        cache.changed.clear();
        cache.versions.clear();
    }
}

/// An empty cache for the table `name`.
pub(crate) fn new_cache<C: Codec>(name: &'static str, is_versioned: bool) -> Box<dyn AnyCache> {
    Box::new(RefCell::new(Cache::<C> {
        table: name,
        prefetched: None,
        slots: Vec::new(),
        changed: Vec::new(),
        is_versioned,
        versions: Versions::default(),
        writes: Writes::empty(),
    }))
}

/// The tables that the function has declared.
pub(crate) struct Caches {
    caches: Vec<(&'static str, Box<dyn AnyCache>)>,
    /// Whether the current record has changed what an earlier record of the batch had changed.
    merged: Cell<bool>,
}

impl Caches {
    pub(crate) fn new(caches: Vec<(&'static str, Box<dyn AnyCache>)>) -> Self {
        Self { caches, merged: Cell::new(false) }
    }

    /// The entry of `slot` in `table`, read.
    pub(crate) fn entry<C: Codec>(
        &self,
        table: &Table<C>,
        slot: usize,
        record: u32,
        keys: &mut KeyIndex,
        batch: &Batch,
        host: &dyn Host,
    ) -> Result<Entry<'_, C>, StateError> {
        let mut cache = self.cache(table)?;
        cache.read(slot, record, keys, batch, host)?;
        Ok(Entry { cache, slot, record, merged: &self.merged })
    }

    fn cache<C: Codec>(&self, table: &Table<C>) -> Result<RefMut<'_, Cache<C>>, StateError> {
        let table = table.name;
        let same_name = |name: &str| std::ptr::eq(name, table) || name == table;
        let cache = match self.caches.iter().find(|(name, _)| same_name(name)) {
            Some((_, cache)) => cache.as_any().downcast_ref::<RefCell<Cache<C>>>(),
            None => return Err(StateError::Undeclared { table }),
        };
        let cache = cache.ok_or(StateError::OtherCodec { table })?;
        cache.try_borrow_mut().map_err(|_| StateError::Held { table })
    }

    /// Says that a record begins.
    pub(crate) fn begin_record(&self) {
        self.merged.set(false);
    }

    /// Undoes the changes of `record`, the current one. False where they cannot be told apart from an earlier record's.
    pub(crate) fn undo(&self, record: u32) -> bool {
        if self.merged.get() {
            return false;
        }
        self.caches.iter().for_each(|(_, cache)| cache.undo(record));
        true
    }

    pub(crate) fn write_back(&self, keys: &KeyIndex, batch: &Batch, host: &dyn Host) -> Result<(), Failure> {
        self.caches.iter().try_for_each(|(_, cache)| cache.write_back(keys, batch, host))
    }

    pub(crate) fn clear(&self) {
        self.caches.iter().for_each(|(_, cache)| cache.clear());
    }
}
