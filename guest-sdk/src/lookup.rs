//! Lookups in tables of others: keys wanted by a batch, gathered into one call a table, and what came of it, kept until the batch ends.

use std::fmt;
use std::ops::Range;

use crate::bindings::wasmill::operator::types::{Column, Error};
use crate::codec::Codec;
use crate::context::Context;
use crate::host::Host;
use crate::keys::{ANYONE, KeySet};
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
        self.context.want(table.name, Shown::State(consistency), key.as_ref());
    }

    /// `key` will be looked up by [`Context::lookup_as_of`], at this time.
    pub fn lookup_as_of<C: Codec>(&mut self, table: &UsedTable<C>, key: impl AsRef<[u8]>, time: i64) {
        self.context.want(table.name, Shown::AS_OF_TIME, &key_at(key.as_ref(), time));
    }

    /// `key` will be looked up by [`Context::lookup_as_of_waiting`], at this time.
    pub fn lookup_as_of_waiting<C: Codec>(&mut self, table: &UsedTable<C>, key: impl AsRef<[u8]>, time: i64) {
        self.context.want(table.name, Shown::AS_OF_TIME_WAITING, &key_at(key.as_ref(), time));
    }
}

/// What lookups show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// A state of the table.
    State(Consistency),
    /// What was true at an event time, which stands behind each key: see [`key_at`].
    AsOfTime {
        /// Whether not before the owner has come so far.
        wait: bool,
    },
}

impl Shown {
    pub(crate) const AS_OF_TIME: Self = Self::AsOfTime { wait: false };
    pub(crate) const AS_OF_TIME_WAITING: Self = Self::AsOfTime { wait: true };
}

const TIME_BYTES: usize = size_of::<i64>();

/// A key with a time, as lookups as of times are told apart.
pub(crate) fn key_at(key: &[u8], time: i64) -> Vec<u8> {
    [key, &time.to_le_bytes()].concat()
}

/// The keys and times of which [`key_at`] has made `joined`.
fn keys_and_times(joined: &Column) -> (Column, Vec<i64>) {
    let (mut keys, mut times) = (Column::empty(), Vec::with_capacity(joined.len()));
    for index in 0..joined.len() {
        let (key, time) = joined.get(index).split_last_chunk::<TIME_BYTES>().expect("a time stands behind each key");
        keys.push(key);
        times.push(i64::from_le_bytes(*time));
    }
    (keys, times)
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
    is_apart: bool,
}

/// The lookups in one table that show the same.
struct Lookup {
    table: &'static str,
    shown: Shown,
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
    /// Says whether the records of the next batch are apart: then each has lookups of its own.
    pub(crate) fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
    }

    /// Notes that `record` will look `key` up. Returns the key's place, for [`Lookups::answer`].
    pub(crate) fn want(&mut self, table: &'static str, shown: Shown, record: u32, key: &[u8]) -> usize {
        let of = if self.is_apart { record } else { ANYONE };
        self.lookup(table, shown).keys.place(of, key)
    }

    /// The value at a place, once all that is wanted has been asked for.
    pub(crate) fn answer(
        &mut self,
        table: &'static str,
        shown: Shown,
        place: usize,
        host: &dyn Host,
    ) -> Result<Option<&[u8]>, Refused> {
        let is_apart = self.is_apart;
        let lookup = self.lookup(table, shown);
        if place >= lookup.answers.len() {
            if is_apart {
                host.read_for(&lookup.keys.wanted_for(lookup.answers.len()));
            }
            lookup.ask(host)?;
        }
        Ok(lookup.answers[place].clone().map(|range| &lookup.bytes[range]))
    }

    fn lookup(&mut self, table: &'static str, shown: Shown) -> &mut Lookup {
        let same =
            |lookup: &Lookup| lookup.shown == shown && (std::ptr::eq(lookup.table, table) || lookup.table == table);
        let index = self.lookups.iter().position(same).unwrap_or_else(|| {
            self.lookups.push(Lookup { table, shown, keys: KeySet::empty(), answers: Vec::new(), bytes: Vec::new() });
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
        if keys.len() == known + 1
            && let Shown::State(consistency) = self.shown
        {
            let found = host.look_up(self.table, keys.get(known), consistency);
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
        let found = match self.shown {
            Shown::State(consistency) => host.look_up_many(self.table, asked, consistency),
            Shown::AsOfTime { wait } => {
                let (keys, times) = keys_and_times(asked);
                host.look_up_many_at(self.table, &keys, &times, wait)
            }
        };
        let is_single = asked.len() == 1;
        let found = found.map_err(|error| Refused { error, is_single })?;
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
