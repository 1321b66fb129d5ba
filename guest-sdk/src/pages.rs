//! Scans of ordered tables: ranges of keys, read a page at a time.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::bindings::wasmill::operator::tables::Page;
use crate::bindings::wasmill::operator::types::Column;
use crate::codec::Codec;
use crate::context::Context;
use crate::error::StateError;
use crate::used::{Consistency, UsedTable};

/// A range of keys, by their bytes: `"a".."b"`, `"a"..="b"`, `"a"..`, `.."b"`, `..="b"`, `..`, and [`prefix`].
pub trait KeyRange {
    /// The first key, and the first key behind the range where it has an end.
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>);
}

/// All keys that begin with `start`.
pub fn prefix(start: impl AsRef<[u8]>) -> impl KeyRange {
    Prefix(start.as_ref().to_vec())
}

struct Prefix(Vec<u8>);

impl KeyRange for Prefix {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        // The first key behind all of them: one more in the last byte that can be more.
        let last = self.0.iter().rposition(|&byte| byte < u8::MAX);
        let end = last.map(|last| {
            let mut end = self.0[..=last].to_vec();
            end[last] += 1;
            end
        });
        (self.0, end)
    }
}

/// The next key in the order of bytes.
fn next(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.start.as_ref().to_vec(), Some(self.end.as_ref().to_vec()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.start().as_ref().to_vec(), Some(next(self.end().as_ref())))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.start.as_ref().to_vec(), None)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (Vec::new(), Some(self.end.as_ref().to_vec()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (Vec::new(), Some(next(self.end.as_ref())))
    }
}

impl KeyRange for RangeFull {
    fn bounds(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (Vec::new(), None)
    }
}

/// Keys with their values, ascending, read from the host page by page: see [`Context::scan`]. It ends behind the first error.
pub struct Scan<'c, C> {
    context: &'c Context,
    table: &'static str,
    consistency: Consistency,
    to: Option<Vec<u8>>,
    page_keys: u32,
    page: Page,
    /// How many of the page's keys have been given out.
    given: usize,
    codec: PhantomData<fn() -> C>,
}

impl<'c, C: Codec> Scan<'c, C> {
    pub(crate) fn new(
        context: &'c Context,
        table: &UsedTable<C>,
        consistency: Consistency,
        range: impl KeyRange,
        page_keys: u32,
    ) -> Self {
        let (from, to) = range.bounds();
        let page = Page { keys: Column::empty(), values: Column::empty(), next: Some(from) };
        Self { context, table: table.name, consistency, to, page_keys, page, given: 0, codec: PhantomData }
    }

    /// Gets pages until one has keys that have not been given out. False at the end.
    fn turn(&mut self) -> Result<bool, StateError> {
        while self.given == self.page.keys.len() {
            let Some(from) = self.page.next.take() else { return Ok(false) };
            let (to, limit) = (self.to.as_deref(), self.page_keys.max(1));
            self.page = self.context.page(self.table, &from, to, limit, self.consistency)?;
            self.given = 0;
        }
        Ok(true)
    }

    fn entry(&self) -> Result<(Vec<u8>, C::Value), StateError> {
        let (key, bytes) = (self.page.keys.get(self.given), self.page.values.get(self.given));
        let value = C::decode(bytes).map_err(|reason| StateError::Decode { table: self.table, reason })?;
        Ok((key.to_vec(), value))
    }
}

impl<C: Codec> Iterator for Scan<'_, C> {
    type Item = Result<(Vec<u8>, C::Value), StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = match self.turn() {
            Ok(true) => self.entry(),
            Ok(false) => return None,
            Err(error) => Err(error),
        };
        self.given += 1;
        if entry.is_err() {
            self.page.next = None;
            self.given = self.page.keys.len();
        }
        Some(entry)
    }
}

impl<C> fmt::Debug for Scan<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("table", &self.table).field("next", &self.page.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(range: impl KeyRange, from: &[u8], to: Option<&[u8]>) {
        let (first, behind) = range.bounds();
        assert_eq!((first.as_slice(), behind.as_deref()), (from, to));
    }

    #[test]
    fn ranges_of_keys_are_half_open() {
        check("a".."c", b"a", Some(b"c"));
        check("a"..="c", b"a", Some(b"c\0"));
        check("a".., b"a", None);
        check(.."c", b"", Some(b"c"));
        check(..="c", b"", Some(b"c\0"));
        check(.., b"", None);
        check(vec![1u8]..vec![2], &[1], Some(&[2]));
    }

    #[test]
    fn a_prefix_ends_before_the_next_prefix() {
        check(prefix("ab"), b"ab", Some(b"ac"));
        check(prefix([1, 255, 255]), &[1, 255, 255], Some(&[2]));
        check(prefix([255]), &[255], None);
        check(prefix(""), b"", None);
    }
}
