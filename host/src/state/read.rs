//! Reading a task's tables as of an epoch, and scanning them.
//!
//! An [`EpochView`] is a whole answer by itself: the newest change of a key up to its epoch, then redb. Tables in memory are asked first, since most keys lie there and have not
//! changed since: whatever they say of an epoch they say at any time, for two reasons.
//!
//! - A cell in memory is the value as of its slot's epoch *and of each later one*, up to the present: so one whose epoch is not after the view's is the
//!   view's answer. (That holds for cells read from redb because their slots bear an epoch that redb had not passed when they were read, and they are only put in
//!   place when no batch was applied meanwhile.)
//! - Where tables are complete, a key without a slot does not exist now, and has not existed since the epoch of a tombstone that may have been evicted; no such
//!   tombstone is later than `forgotten`. So at a view that is not older than that, it did not exist either.
//!
//! Everything else is left to the view. So it does not matter what is written, evicted, fed or committed between the making of a view and its use.
//!
//! Of a versioned table, both show the newest values. Values of other schema versions are brought to the present one at last: see `migration`.

use std::time::Duration;

use super::map::SlotHash;
use super::merge::{Bounds, Slice, Source, merge};
use super::tables::Place;
use super::versions;
use super::{EpochView, TablesError, TaskTables};
use crate::epoch::entry::Cell;
use crate::key::KeyHash;
use crate::record::Column;

/// How long a reader of an epoch waits for the tables in memory, which a task may have locked, and have been put aside by the system meanwhile. Then the view alone answers.
const SHORTCUT_WAIT: Duration = Duration::from_micros(200);

impl TaskTables {
    /// As [`TaskTables::with_values`], as of a view's epoch. What is read from disk is not kept in memory.
    ///
    /// # Errors
    /// As [`TaskTables::with_values`].
    pub fn with_values_at(
        &self,
        table: usize,
        keys: &Column,
        view: &EpochView,
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TablesError> {
        self.check_table(table)?;
        let hashes: Vec<KeyHash> = keys.iter().map(KeyHash::of).collect();
        let places = keys.iter().enumerate().map(|(index, key)| self.place(table, key, index));
        let places: Vec<Place> = places.collect::<Result<_, _>>()?;
        let mut cells = self.in_memory_at(keys, &places, view);
        let missing: Vec<usize> = (0..cells.len()).filter(|&index| cells[index].is_none()).collect();
        if !missing.is_empty() {
            let wanted =
                missing.iter().map(|&index| (self.partition_of(places[index]), hashes[index], keys.get(index)));
            let found = view.get_many(&self.specs[table].name, &wanted.collect::<Vec<_>>()).map_err(Box::new)?;
            missing.into_iter().zip(found).for_each(|(index, cell)| cells[index] = Some(Seen::Cell(cell)));
        }
        let held = cells.iter_mut().flatten().filter_map(|seen| match seen {
            Seen::Cell(cell) => Some(cell),
            Seen::Nothing => None,
        });
        self.encoding().bring(table, &self.specs[table], held)?;
        let is_versioned = self.span_ms(table).is_some();
        for (index, seen) in cells.iter().enumerate() {
            let stored = seen.as_ref().and_then(Seen::value);
            each(index, if is_versioned { stored.and_then(versions::newest) } else { stored });
        }
        Ok(())
    }

    /// What the tables in memory know of the keys as of the view, if they can be asked soon.
    fn in_memory_at(&self, keys: &Column, places: &[Place], view: &EpochView) -> Vec<Option<Seen>> {
        let Some(maps) = self.locked.try_read_for(SHORTCUT_WAIT) else { return places.iter().map(|_| None).collect() };
        let knows_all = maps.complete && maps.forgotten <= view.epoch();
        let seen = |(place, key): (&Place, &[u8])| match maps.maps[place.map as usize].get_since(place.hash, key) {
            Some((cell, since)) => (since <= view.epoch()).then(|| Seen::Cell(cell.clone())),
            None => knows_all.then_some(Seen::Nothing),
        };
        places.iter().zip(keys.iter()).map(seen).collect()
    }

    /// A page of the keys from `from` to before `to` with their values, as they are now or as of a view: at most `limit`, and at most
    /// [`super::PAGE_ITEMS_MAX`], in the order of their bytes. A page may have fewer, or none, and still not be the last.
    ///
    /// # Errors
    /// For an unknown table; for a scan of the present of a table that is not declared ordered; or when what lies behind memory cannot be read.
    pub fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        view: Option<&EpochView>,
    ) -> Result<Slice, TablesError> {
        self.check_table(table)?;
        let mut slice = match view {
            Some(view) => {
                let sources = view.sources(&self.specs[table].name, self.range.clone(), from, to).map_err(Box::new)?;
                merge(sources, to, Bounds::new(limit)).map_err(Box::new)?
            }
            None => self.scan_present(table, from, to, limit)?,
        };
        self.encoding().bring(table, &self.specs[table], slice.cells.iter_mut())?;
        Ok(if self.span_ms(table).is_some() { slice.of_newest() } else { slice })
    }

    fn scan_present(&self, table: usize, from: &[u8], to: Option<&[u8]>, limit: usize) -> Result<Slice, TablesError> {
        let name = &self.specs[table].name;
        let maps = self.locked.read();
        let order = maps.orders[table].as_ref().ok_or_else(|| TablesError::NotOrdered { table: name.clone() })?;
        let (mut bounds, mut cells, mut end) = (Bounds::new(limit), Vec::new(), None);
        for key in order.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded)) {
            if to.is_some_and(|to| &**key >= to) {
                break;
            }
            if bounds.are_reached() {
                end = Some(key.to_vec());
                break;
            }
            let hash = KeyHash::of(key);
            let map =
                table * self.range.len() + usize::from(hash.partition(self.shared.partitions()).0 - self.range.start);
            let cell = maps.maps[map].get(SlotHash::of(hash), key).expect("the order lists what is in memory");
            bounds.take(cell);
            cells.push(cell.clone());
        }
        // As for lookups, the snapshot is taken while the lock is held.
        let snapshot = match maps.complete {
            true => None,
            false => Some(self.shared.room().snapshot()),
        };
        drop(maps);
        let Some(snapshot) = snapshot else {
            cells.retain(Cell::is_present);
            return Ok(Slice { cells, next: end });
        };
        // Memory decides of each of its keys, and all of them up to `end` are at hand.
        let to = end.as_deref().or(to);
        let mut sources = vec![Source::Cells(cells.into_iter())];
        sources.extend(
            snapshot.cursors(name, self.range.clone(), from, to).map_err(Box::new)?.into_iter().map(Source::from),
        );
        let slice = merge(sources, to, Bounds::new(limit)).map_err(Box::new)?;
        Ok(Slice { next: slice.next.or(end), ..slice })
    }
}

/// What is known of a key.
enum Seen {
    Cell(Cell),
    Nothing,
}

impl Seen {
    fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Cell(cell) => cell.value(),
            Self::Nothing => None,
        }
    }
}
