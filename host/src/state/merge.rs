//! Merges ordered lists of cells into the pages of a scan.
//!
//! The sources stand in an order: of each key, the first source that has it decides, be it a value or a tombstone. A page is bounded by its items, its bytes, and by how many cells
//! are looked at, so that a scan over many removed keys is short, too. This file knows nothing of where sources come from.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::delta::Run;
use super::redb::Cursor;
use super::{StateError, versions};
use crate::epoch::entry::Cell;

/// The most items of one page.
pub const PAGE_ITEMS_MAX: usize = 4096;
/// A page ends once its keys and values have this many bytes.
pub const PAGE_BYTES: usize = 1 << 20;
/// A page ends once this many cells were looked at beyond those in it.
const PAGE_EXTRA_CELLS: usize = 8192;

/// Cells in the order of their keys.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// Cells of tables in memory.
    Cells(std::vec::IntoIter<Cell>),
    /// Changes of an epoch.
    Run(Run<'a>),
    /// Rows of redb.
    Rows(Box<Cursor>),
}

impl From<Cursor> for Source<'_> {
    fn from(rows: Cursor) -> Self {
        Self::Rows(Box::new(rows))
    }
}

impl Source<'_> {
    fn next(&mut self) -> Result<Option<Cell>, StateError> {
        match self {
            Self::Cells(cells) => Ok(cells.next()),
            Self::Run(run) => Ok(run.next().cloned()),
            Self::Rows(rows) => rows.next().transpose(),
        }
    }
}

/// A part of a scan of one task's table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// Keys with their values, in the order of the keys.
    pub cells: Vec<Cell>,
    /// Where the rest begins; `None` when there is none.
    pub next: Option<Vec<u8>>,
}

impl Slice {
    /// The same of a versioned table, with the newest values in place of the versions.
    pub(super) fn of_newest(self) -> Self {
        let newest = |cell: &Cell| Some(Cell::new(cell.key(), Some(versions::newest(cell.value()?)?)));
        Self { cells: self.cells.iter().filter_map(newest).collect(), ..self }
    }
}

/// How much a page has used of its bounds.
#[derive(Debug)]
pub(super) struct Bounds {
    items: usize,
    bytes: usize,
    extra: usize,
}

impl Bounds {
    /// Of a page of at most `limit` items.
    pub(super) fn new(limit: usize) -> Self {
        Self { items: limit.min(PAGE_ITEMS_MAX), bytes: PAGE_BYTES, extra: PAGE_EXTRA_CELLS }
    }

    /// Whether nothing more may be added.
    pub(super) fn are_reached(&self) -> bool {
        self.items == 0 || self.bytes == 0 || self.extra == 0
    }

    /// Takes a cell into account.
    pub(super) fn take(&mut self, cell: &Cell) {
        if cell.is_present() {
            self.items = self.items.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(cell.joined().len());
        } else {
            self.extra = self.extra.saturating_sub(1);
        }
    }
}

struct Head {
    cell: Cell,
    /// The place of its source.
    source: usize,
}

impl Head {
    fn order(&self) -> (&[u8], usize) {
        (self.cell.key(), self.source)
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// The values of the keys before `to`, within `bounds`.
pub(super) fn merge(mut sources: Vec<Source<'_>>, to: Option<&[u8]>, mut bounds: Bounds) -> Result<Slice, StateError> {
    let mut heads = BinaryHeap::with_capacity(sources.len());
    for (source, cells) in sources.iter_mut().enumerate() {
        heads.extend(cells.next()?.map(|cell| Reverse(Head { cell, source })));
    }
    let (mut slice, mut last) = (Slice::default(), None::<Cell>);
    while let Some(Reverse(Head { cell, source })) = heads.pop() {
        if to.is_some_and(|to| cell.key() >= to) {
            break;
        }
        let is_new = last.as_ref().is_none_or(|last| last.key() != cell.key());
        if is_new && bounds.are_reached() {
            slice.next = Some(cell.key().to_vec());
            break;
        }
        heads.extend(sources[source].next()?.map(|cell| Reverse(Head { cell, source })));
        if is_new {
            bounds.take(&cell);
            slice.cells.extend(cell.is_present().then(|| cell.clone()));
            last = Some(cell);
        }
    }
    Ok(slice)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Cells = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    fn cells() -> impl Strategy<Value = Cells> {
        let key = prop::collection::vec(0u8..3, 0..4);
        prop::collection::btree_map(key, prop::option::of(prop::collection::vec(any::<u8>(), 0..3)), 0..20)
    }

    fn source(cells: &Cells, from: &[u8]) -> Source<'static> {
        let within = cells.range(from.to_vec()..);
        let cells: Vec<Cell> = within.map(|(key, value)| Cell::new(key, value.as_deref())).collect();
        Source::Cells(cells.into_iter())
    }

    proptest! {
        #[test]
        fn pages_put_together_are_the_first_sources_values(
            lists in prop::collection::vec(cells(), 0..5), limit in 1usize..7, to in prop::option::of(prop::collection::vec(0u8..3, 0..4))
        ) {
            let mut all = Cells::new();
            for list in lists.iter().rev() {
                all.extend(list.clone());
            }
            let before_end = |key: &Vec<u8>| to.as_ref().is_none_or(|to| key < to);
            let expected: Vec<_> = all.into_iter().filter_map(|(key, value)| Some((key, value?))).filter(|(key, _)| before_end(key)).collect();
            let (mut found, mut from) = (Vec::new(), Some(Vec::new()));
            while let Some(start) = from {
                let sources = lists.iter().map(|list| source(list, &start)).collect();
                let slice = merge(sources, to.as_deref(), Bounds::new(limit)).unwrap();
                prop_assert!(slice.cells.len() <= limit && (slice.cells.len() == limit || slice.next.is_none()));
                found.extend(slice.cells.iter().map(|cell| (cell.key().to_vec(), cell.value().unwrap().to_vec())));
                from = slice.next;
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_page_is_bounded_by_bytes_and_by_removed_keys() {
        let large = Cell::new(b"a", Some(&vec![0; PAGE_BYTES]));
        let next = Cell::new(b"b", Some(b"1"));
        let slice = merge(vec![Source::Cells(vec![large, next].into_iter())], None, Bounds::new(9)).unwrap();
        assert_eq!((slice.cells.len(), slice.next), (1, Some(b"b".to_vec())));
        let removed = (0..20_000u32).map(|number| Cell::new(&number.to_be_bytes(), None)).collect::<Vec<_>>();
        let slice = merge(vec![Source::Cells(removed.into_iter())], None, Bounds::new(9)).unwrap();
        assert_eq!((slice.cells.len(), slice.next), (0, Some((PAGE_EXTRA_CELLS as u32).to_be_bytes().to_vec())));
    }

    #[test]
    fn a_page_of_nothing_says_where_to_begin() {
        let slice = merge(vec![Source::Cells(vec![Cell::new(b"a", Some(b"1"))].into_iter())], None, Bounds::new(0));
        assert_eq!(slice.unwrap().next, Some(b"a".to_vec()));
    }
}
