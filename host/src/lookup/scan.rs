//! Scanning ranges of keys: the pages of all owners, merged into one.

use super::{Consistency, Directory, LookupError, Moment, TableId};
use crate::epoch::entry::Cell;
use crate::record::Column;
use crate::state::PAGE_BYTES;

/// A part of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The keys, ascending by their bytes.
    pub keys: Column,
    /// Their values.
    pub values: Column,
    /// Where the next page begins; `None` when this was the last. A page that is not the last may have fewer items than were asked for, or none.
    pub next: Option<Vec<u8>>,
}

impl Page {
    /// The front of what `pages` of one range hold together, as one page of at most `limit` items. Every page is of the same range, and no key is in two of them.
    pub fn merged(pages: impl IntoIterator<Item = Page>, limit: usize) -> Page {
        let pages: Vec<Page> = pages.into_iter().collect();
        // Nothing is known of keys from the first end on.
        let mut end = pages.iter().filter_map(|page| page.next.as_deref()).min();
        let mut items: Vec<(&[u8], &[u8])> =
            pages.iter().flat_map(|page| page.keys.iter().zip(page.values.iter())).collect();
        items.sort_by_key(|(key, _)| *key);
        if let Some(end) = end {
            items.truncate(items.partition_point(|(key, _)| *key < end));
        }
        let fitting = items_of_page(items.iter().map(|(key, value)| key.len() + value.len()), limit);
        if let Some((left_out, _)) = items.get(fitting) {
            end = Some(left_out);
        }
        items.truncate(fitting);
        let keys = items.iter().map(|(key, _)| *key).collect();
        Page { keys, values: items.iter().map(|(_, value)| *value).collect(), next: end.map(<[u8]>::to_vec) }
    }
}

impl Directory {
    /// The keys from `from` to before `to` with their values, merged over partitions and tasks: at most `limit`, and about as many as [`crate::state::PAGE_ITEMS_MAX`] and
    /// [`PAGE_BYTES`] allow.
    ///
    /// # Errors
    /// [`LookupError::NotOrdered`] for a table that is not declared ordered, [`LookupError::Gone`] for an epoch that cannot be read; or when state on disk cannot be read.
    pub fn scan(
        &self,
        table: TableId,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        consistency: Consistency,
    ) -> Result<Page, LookupError> {
        if !self.is_ordered(table) {
            return Err(LookupError::NotOrdered { table: self.name(table) });
        }
        self.scan_at(table, from, to, limit, &self.moment(consistency)?)
    }

    /// As [`Directory::scan`], at a moment that several lookups share. As of committed epochs it lists any table, ordered or not: redb has an order, and the changes since are
    /// sorted for it once an epoch.
    ///
    /// # Errors
    /// As [`Directory::scan`].
    pub fn scan_at(
        &self,
        table: TableId,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        moment: &Moment,
    ) -> Result<Page, LookupError> {
        let (mut cells, mut end): (Vec<Cell>, Option<Vec<u8>>) = (Vec::new(), None);
        for task in &self.operators[table.operator].tasks {
            let slice = task.scan(table.table, from, to, limit, moment.0.as_ref())?;
            cells.extend(slice.cells);
            end = match (end, slice.next) {
                (Some(end), Some(next)) => Some(end.min(next)),
                (end, next) => end.or(next),
            };
        }
        // Each owner's cells are in order, and none of them has said anything yet of keys from `end` on.
        cells.sort_by(|a, b| a.key().cmp(b.key()));
        if let Some(end) = &end {
            cells.truncate(cells.partition_point(|cell| cell.key() < end.as_slice()));
        }
        let items = items_of_page(cells.iter().map(|cell| cell.joined().len()), limit);
        if let Some(left_out) = cells.get(items) {
            end = Some(left_out.key().to_vec());
            cells.truncate(items);
        }
        let keys = cells.iter().map(Cell::key).collect();
        let values = cells.iter().map(|cell| cell.value().unwrap_or_default()).collect();
        Ok(Page { keys, values, next: end })
    }
}

/// How many items of these sizes make a page: it ends behind the one by which it has its bytes.
fn items_of_page(sizes: impl ExactSizeIterator<Item = usize>, limit: usize) -> usize {
    let items = sizes.len().min(limit);
    let ends = sizes.scan(0, |bytes, size| {
        *bytes += size;
        Some(*bytes)
    });
    let full = ends.take(limit).position(|end| end >= PAGE_BYTES);
    full.map_or(items, |last| last + 1)
}
