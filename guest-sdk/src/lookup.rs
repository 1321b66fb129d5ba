//! Lookups in tables of others: keys wanted by a batch, gathered into one call a table, and what came of it, kept until the batch ends.

use std::fmt;
use std::ops::Range;

use crate::bindings::wasmill::operator::types::{Column, Error};
use crate::codec::Codec;
use crate::context::Context;
use crate::host::Host;
use crate::keys::KeySet;
use crate::used::{Consistency, UsedTable};

/// What a batch will look up: see [`Function::prefetch`](crate::Function::prefetch).
pub struct Wants<'c> {
    context: &'c Context,
}

impl<'c> Wants<'c> {
    pub(crate) fn new(context: &'c Context) -> Self {
        Self { context }
    }

    /// `key` will be looked up by [`Context::lookup`].
    pub fn lookup<C: Codec>(&mut self, table: &UsedTable<C>, key: impl AsRef<[u8]>) {
        self.lookup_at(table, Consistency::Live, key);
    }

    /// `key` will be looked up by [`Context::lookup_at`].
    pub fn lookup_at<C: Codec>(&mut self, table: &UsedTable<C>, consistency: Consistency, key: impl AsRef<[u8]>) {
        self.context.want(table.name, consistency, key.as_ref());
    }
}

impl fmt::Debug for Wants<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wants").finish_non_exhaustive()
    }
}

/// The lookups of a batch.
#[derive(Default)]
pub(crate) struct Lookups {
    lookups: Vec<Lookup>,
}

/// The lookups in one table at one consistency.
struct Lookup {
    table: &'static str,
    consistency: Consistency,
    keys: KeySet,
    /// Where the values of the first of `keys` lie in `bytes`; the others have not been asked for yet.
    answers: Vec<Option<Range<usize>>>,
    bytes: Vec<u8>,
}

/// Why a lookup has failed.
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// Whether it was for one key only.
    pub(crate) is_single: bool,
}

impl Lookups {
    /// Notes that `key` will be looked up. Returns its place, for [`Lookups::answer`].
    pub(crate) fn want(&mut self, table: &'static str, consistency: Consistency, key: &[u8]) -> usize {
        self.lookup(table, consistency).keys.place(key)
    }

    /// The value at a place, once all that is wanted has been asked for.
    pub(crate) fn answer(
        &mut self,
        table: &'static str,
        consistency: Consistency,
        place: usize,
        host: &dyn Host,
    ) -> Result<Option<&[u8]>, Refused> {
        let lookup = self.lookup(table, consistency);
        if place >= lookup.answers.len() {
            lookup.ask(host)?;
        }
        Ok(lookup.answers[place].clone().map(|range| &lookup.bytes[range]))
    }

    fn lookup(&mut self, table: &'static str, consistency: Consistency) -> &mut Lookup {
        let same = |lookup: &Lookup| {
            lookup.consistency == consistency && (std::ptr::eq(lookup.table, table) || lookup.table == table)
        };
        let index = self.lookups.iter().position(same).unwrap_or_else(|| {
            self.lookups.push(Lookup {
                table,
                consistency,
                keys: KeySet::empty(),
                answers: Vec::new(),
                bytes: Vec::new(),
            });
            self.lookups.len() - 1
        });
        &mut self.lookups[index]
    }

    /// Forgets the batch. What it did not look into goes altogether: there may be an epoch more with each batch.
    pub(crate) fn clear(&mut self) {
        self.lookups.retain(|lookup| !lookup.keys.keys().is_empty());
        for lookup in &mut self.lookups {
            lookup.keys.clear();
            lookup.answers.clear();
            lookup.bytes.clear();
        }
    }
}

impl Lookup {
    /// Asks the host for all keys that it has not been asked for, in one call.
    fn ask(&mut self, host: &dyn Host) -> Result<(), Refused> {
        let (keys, known) = (self.keys.keys(), self.answers.len());
        if keys.len() == known + 1 {
            let found = host.look_up(self.table, keys.get(known), self.consistency);
            let value = found.map_err(|error| Refused { error, is_single: true })?;
            self.answers.push(value.map(|value| {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(&value);
                start..self.bytes.len()
            }));
            return Ok(());
        }
        let unknown: Column;
        let asked = match known {
            0 => keys,
            _ => {
                unknown = keys.behind(known);
                &unknown
            }
        };
        let found = host.look_up_many(self.table, asked, self.consistency);
        let found = found.map_err(|error| Refused { error, is_single: false })?;
        let base = self.bytes.len();
        let ends = found.items.ends.iter().map(|&end| base + end as usize);
        let starts = std::iter::once(base).chain(ends.clone());
        let ranges = starts.zip(ends).zip(&found.present);
        self.answers.extend(ranges.map(|((start, end), &present)| (present != 0).then_some(start..end)));
        match base {
            0 => self.bytes = found.items.bytes,
            _ => self.bytes.extend_from_slice(&found.items.bytes),
        }
        Ok(())
    }
}
