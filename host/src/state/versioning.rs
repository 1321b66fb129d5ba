//! Versioned tables: writes that add versions, and lookups as of event times. What versions are, and which are kept, is said in [`super::versions`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;

use super::versions::{self, Versions, When};
use super::{TablesError, TaskTables, Write};
use crate::record::Column;

impl TaskTables {
    /// Calls `each` with the index of every one of `keys` and the value that held at its time, in their order; `None` where there was none, or where it is older than what
    /// is kept. A table that keeps no versions has none at all. One call sees whole batches.
    ///
    /// `each` runs under the task's lock, as that of [`TaskTables::with_values`].
    ///
    /// # Errors
    /// As [`TaskTables::with_values`].
    ///
    /// # Panics
    /// When there are fewer times than keys.
    pub fn with_values_as_of(
        &self,
        table: usize,
        keys: &Column,
        times: &[i64],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TablesError> {
        let is_versioned = self.span_ms(table).is_some();
        self.with_stored(table, keys, &mut |index, stored| {
            each(index, stored.filter(|_| is_versioned).and_then(|stored| versions::as_of(stored, times[index])));
        })
    }

    /// As [`TaskTables::apply`], where some of the tables keep versions. What keys have is read before anything is written: only the caller writes.
    pub(super) fn apply_versions<'a>(&self, writes: impl IntoIterator<Item = Write<'a>>) -> Result<(), TablesError> {
        let (versioned, plain): (Vec<Write<'a>>, Vec<Write<'a>>) =
            writes.into_iter().partition(|write| self.span_ms(write.table).is_some());
        let mut grown: Vec<Grown<'a>> = Vec::new();
        for (table, spec) in self.specs.iter().enumerate() {
            let Some(span_ms) = spec.versioned_span_ms else { continue };
            self.grow_versions(table, span_ms, versioned.iter().filter(|write| write.table == table), &mut grown)?;
        }
        let grown = grown.iter().map(|Grown { table, key, stored }| {
            let (table, value, when) = (*table, Some(stored.as_slice()), When::NEWEST);
            Write { table, key, value, when }
        });
        self.apply_stored(plain.into_iter().chain(grown))
    }

    /// Adds to `grown` what `writes` make of their keys' versions.
    fn grow_versions<'w, 'a: 'w>(
        &self,
        table: usize,
        span_ms: u64,
        writes: impl Iterator<Item = &'w Write<'a>> + Clone,
        grown: &mut Vec<Grown<'a>>,
    ) -> Result<(), TablesError> {
        let (mut keys, mut places): (Vec<&'a [u8]>, HashMap<&'a [u8], usize>) = Default::default();
        for Write { key, .. } in writes.clone() {
            if let Entry::Vacant(place) = places.entry(key) {
                place.insert(keys.len());
                keys.push(key);
            }
        }
        let mut before = vec![Vec::new(); keys.len()];
        self.with_stored(table, &keys.iter().copied().collect(), &mut |index, stored| {
            before[index].extend_from_slice(stored.unwrap_or_default());
        })?;
        let mut growing: Vec<Versions<'_>> = before.iter().map(|stored| Versions::of(stored)).collect();
        for Write { key, value, when, .. } in writes {
            growing[places[key]].add(*when, *value);
        }
        for (key, versions) in keys.into_iter().zip(growing) {
            let mut stored = Vec::new();
            if versions.store(span_ms, &mut stored) {
                self.tell_of_lost_versions(table);
            }
            grown.push(Grown { table, key, stored });
        }
        Ok(())
    }

    fn tell_of_lost_versions(&self, table: usize) {
        if !self.has_lost_versions.swap(true, Ordering::Relaxed) {
            let (name, bytes_max) = (&self.specs[table].name, versions::VERSIONS_BYTES_MAX);
            tracing::warn!(
                "a key of table `{name}` has more earlier values than {bytes_max} bytes hold: the oldest go before their time; a shorter span, \
                 or smaller values, would keep it whole"
            );
        }
    }
}

/// A key with its versions, to which a batch has added.
struct Grown<'a> {
    table: usize,
    key: &'a [u8],
    stored: Vec<u8>,
}
