//! The versions of one key's value by event time, as one stored value: how they lie in it, how one is added, and which one was true at a time. Pure.
//!
//! A versioned table stores, where another stores a value, the sequence of the values that its key has had. So everything that keeps, logs and feeds cells does
//! not know of versions, and a key's versions are written together whenever one is added.
//!
//! # Format, version 1
//!
//! All integers are little-endian. The versions stand one behind the other, ascending by their times, no two of the same time:
//!
//! | length | content |
//! |---|---|
//! | … | the value; nothing where the key had none |
//! | 4 | the value's length |
//! | 8 | the event time from which on it holds, signed |
//! | 1 | 1 for a value, 0 where the key was removed |
//!
//! The description stands behind what it describes, so that the newest version, which most readers want, is found without looking at the others. What a later format
//! adds has another number in the last byte.
//!
//! That a table's values are such sequences is told by the highest bit of the schema version that is stored with them ([`VERSIONED`]).
//!
//! # What is kept
//!
//! With a span of `s` and the newest version at `t`: every version from `t - s` on, and the newest before that, which is what was true then. The oldest go
//! earlier where all of them would pass [`VERSIONS_BYTES_MAX`]. A removed key keeps the version that says so: what comes later, but is older, must not
//! bring it back.

use std::ops::Range;

use crate::record::NO_TIME;

/// Set in the schema version that is stored with a table's values, where they are sequences of versions.
pub const VERSIONED: u32 = 1 << 31;

/// The most bytes that the versions of one key take; the newest one is kept in any case.
pub const VERSIONS_BYTES_MAX: usize = 16 << 20;

/// The bytes of a version beside its value.
const DESCRIPTION_BYTES: usize = size_of::<u32>() + size_of::<i64>() + 1;

/// From when on a written value holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// From this event time on, until the next later version. It replaces a version of the same time.
    At(i64),
    /// From this event time on, or from that of the newest version where that is later: for values that were made out of the newest.
    NotBefore(i64),
}

impl When {
    /// Whatever the newest version's time is: for tables that keep no versions.
    pub const NEWEST: Self = Self::NotBefore(NO_TIME);

    fn time(self, newest: i64) -> i64 {
        match self {
            // Who knows no time means the present.
            Self::At(NO_TIME) => newest,
            Self::At(time) => time,
            Self::NotBefore(time) => time.max(newest),
        }
    }
}

/// A version in its place.
struct Version {
    time: i64,
    is_present: bool,
    /// Where it lies, its description included.
    place: Range<usize>,
}

impl Version {
    fn value<'a>(&self, stored: &'a [u8]) -> Option<&'a [u8]> {
        self.is_present.then(|| &stored[self.place.start..self.place.end - DESCRIPTION_BYTES])
    }
}

/// The versions in `stored`, the newest first. They end where the bytes are not what this program writes.
fn newest_first(stored: &[u8]) -> impl Iterator<Item = Version> {
    let mut end = stored.len();
    std::iter::from_fn(move || {
        let (rest, kind) = stored[..end].split_last_chunk::<1>()?;
        let (rest, time) = rest.split_last_chunk()?;
        let (rest, length) = rest.split_last_chunk()?;
        let start = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
        let is_present = match kind {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        let place = start..std::mem::replace(&mut end, start);
        Some(Version { time: i64::from_le_bytes(*time), is_present, place })
    })
}

/// The newest value in `stored`; `None` where the key was removed.
pub(super) fn newest(stored: &[u8]) -> Option<&[u8]> {
    newest_first(stored).next()?.value(stored)
}

/// The value that held at `time`: of the newest version that is not later. `None` where there is none, or the key was removed then.
pub(super) fn as_of(stored: &[u8], time: i64) -> Option<&[u8]> {
    newest_first(stored).find(|version| version.time <= time)?.value(stored)
}

/// Makes in `versions` what `stored` is with one more version, less what need not be kept. Returns whether any went before their time, because all of them would be
/// too large.
///
/// # Panics
/// When the value is 4 GiB long or longer; values come in columns, which are shorter.
pub(super) fn add(stored: &[u8], when: When, value: Option<&[u8]>, span_ms: u64, versions: &mut Vec<u8>) -> bool {
    let newest = newest_first(stored).next().map_or(NO_TIME, |version| version.time);
    let time = when.time(newest);
    let mut kept = Kept::since(time.max(newest).saturating_sub_unsigned(span_ms));
    let mut new = Some((Piece::New, time, value.map_or(0, <[u8]>::len) + DESCRIPTION_BYTES));
    for Version { time: before, place, .. } in newest_first(stored) {
        if before <= time
            && let Some(new) = new.take()
        {
            kept.take(new);
            if before == time {
                continue;
            }
        }
        let bytes = place.len();
        kept.take((Piece::Stored(place), before, bytes));
        if kept.is_closed {
            break;
        }
    }
    new.into_iter().for_each(|new| kept.take(new));
    versions.clear();
    versions.reserve(kept.bytes);
    for piece in kept.pieces.iter().rev() {
        match piece {
            Piece::Stored(place) => versions.extend_from_slice(&stored[place.clone()]),
            Piece::New => put(time, value, versions),
        }
    }
    kept.is_full
}

fn put(time: i64, value: Option<&[u8]>, versions: &mut Vec<u8>) {
    let bytes = value.unwrap_or_default();
    let length = u32::try_from(bytes.len()).expect("a value is an item of a column, which holds less than 4 GiB");
    versions.extend_from_slice(bytes);
    versions.extend_from_slice(&length.to_le_bytes());
    versions.extend_from_slice(&time.to_le_bytes());
    versions.push(u8::from(value.is_some()));
}

/// A version that is kept.
enum Piece {
    New,
    Stored(Range<usize>),
}

/// The versions that are kept, the newest first.
struct Kept {
    pieces: Vec<Piece>,
    bytes: usize,
    /// What is older is not needed, but for the newest of it.
    edge: i64,
    /// Whether nothing more is needed.
    is_closed: bool,
    /// Whether that is for want of room.
    is_full: bool,
}

impl Kept {
    fn since(edge: i64) -> Self {
        Self { pieces: Vec::new(), bytes: 0, edge, is_closed: false, is_full: false }
    }

    /// Takes the next older version with its time and its bytes, if it is needed.
    fn take(&mut self, (piece, time, bytes): (Piece, i64, usize)) {
        if self.is_closed {
            return;
        }
        self.is_full = !self.pieces.is_empty() && self.bytes + bytes > VERSIONS_BYTES_MAX;
        self.is_closed = self.is_full || time < self.edge;
        if !self.is_full {
            self.bytes += bytes;
            self.pieces.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SPAN_MS: u64 = 10;

    /// All that was ever written, by time: nothing is forgotten.
    #[derive(Default)]
    struct Naive(BTreeMap<i64, Option<Vec<u8>>>);

    impl Naive {
        fn write(&mut self, when: When, value: Option<&[u8]>) {
            let newest = self.newest_time().unwrap_or(i64::MIN);
            let time = match when {
                When::At(i64::MIN) => newest,
                When::At(time) => time,
                When::NotBefore(time) => time.max(newest),
            };
            self.0.insert(time, value.map(<[u8]>::to_vec));
        }

        fn newest_time(&self) -> Option<i64> {
            self.0.last_key_value().map(|(time, _)| *time)
        }

        fn as_of(&self, time: i64) -> Option<&[u8]> {
            self.0.range(..=time).next_back().and_then(|(_, value)| value.as_deref())
        }
    }

    fn write(stored: &mut Vec<u8>, when: When, value: Option<&[u8]>, span_ms: u64) {
        let mut versions = Vec::new();
        assert!(!add(stored, when, value, span_ms, &mut versions));
        *stored = versions;
    }

    fn times(stored: &[u8]) -> Vec<i64> {
        let mut times: Vec<i64> = newest_first(stored).map(|version| version.time).collect();
        times.reverse();
        times
    }

    fn when() -> impl Strategy<Value = When> {
        let time = prop_oneof![9 => 0i64..40, 1 => Just(i64::MIN), 1 => any::<i64>()];
        (time, any::<bool>()).prop_map(|(time, at)| if at { When::At(time) } else { When::NotBefore(time) })
    }

    proptest! {
        #[test]
        fn within_the_span_every_time_shows_what_a_list_of_everything_shows(
            writes in prop::collection::vec((when(), prop::option::of(prop::collection::vec(any::<u8>(), 0..4))), 0..30),
            asked in prop::collection::vec(any::<i64>(), 5),
        ) {
            let (mut naive, mut stored) = (Naive::default(), Vec::new());
            for (when, value) in &writes {
                naive.write(*when, value.as_deref());
                write(&mut stored, *when, value.as_deref(), SPAN_MS);
                let newest_time = naive.newest_time().unwrap();
                let edge = newest_time.saturating_sub_unsigned(SPAN_MS);
                for time in asked.iter().copied().chain(0..40).chain([i64::MIN, i64::MAX]).filter(|time| *time >= edge) {
                    prop_assert_eq!(as_of(&stored, time), naive.as_of(time), "at {}", time);
                }
                prop_assert_eq!(newest(&stored), naive.as_of(i64::MAX));
                let times = times(&stored);
                prop_assert!(times.is_sorted_by(|a, b| a < b));
                prop_assert!(times.iter().filter(|time| **time < edge).count() <= 1, "{:?} from {}", times, edge);
            }
        }

        #[test]
        fn without_a_limit_nothing_is_forgotten(
            writes in prop::collection::vec((when(), prop::option::of(prop::collection::vec(any::<u8>(), 0..4))), 0..30),
        ) {
            let (mut naive, mut stored) = (Naive::default(), Vec::new());
            for (when, value) in &writes {
                naive.write(*when, value.as_deref());
                write(&mut stored, *when, value.as_deref(), u64::MAX);
            }
            prop_assert_eq!(times(&stored), naive.0.keys().copied().collect::<Vec<_>>());
            for time in naive.0.keys() {
                prop_assert_eq!(as_of(&stored, *time), naive.as_of(*time));
            }
        }

        #[test]
        fn any_bytes_can_be_asked(stored in prop::collection::vec(0u8..3, 0..60), time in -1i64..3) {
            let _ = (newest(&stored), as_of(&stored, time));
            let mut versions = Vec::new();
            add(&stored, When::At(time), Some(b"v"), 1, &mut versions);
            prop_assert_eq!(newest_first(&versions).map(|version| version.place.len()).sum::<usize>(), versions.len());
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut stored = Vec::new();
        write(&mut stored, When::At(-2), Some(b"ab"), 100);
        write(&mut stored, When::At(3), None, 100);
        let first = [b"ab".as_slice(), &[2, 0, 0, 0], &(-2i64).to_le_bytes(), &[1]].concat();
        let second = [[0, 0, 0, 0].as_slice(), &3i64.to_le_bytes(), &[0]].concat();
        assert_eq!(stored, [first, second].concat());
    }

    #[test]
    fn what_comes_late_goes_to_its_place_and_what_is_made_of_the_newest_to_the_end() {
        let mut stored = Vec::new();
        write(&mut stored, When::At(10), Some(b"ten"), 100);
        write(&mut stored, When::At(5), Some(b"five"), 100);
        assert_eq!(
            (newest(&stored), as_of(&stored, 9), as_of(&stored, 4)),
            (Some(&b"ten"[..]), Some(&b"five"[..]), None)
        );
        write(&mut stored, When::NotBefore(7), Some(b"more"), 100);
        assert_eq!(
            (newest(&stored), as_of(&stored, 9), times(&stored)),
            (Some(&b"more"[..]), Some(&b"five"[..]), vec![5, 10])
        );
        write(&mut stored, When::At(NO_TIME), Some(b"now"), 100);
        write(&mut stored, When::NotBefore(12), None, 100);
        assert_eq!((newest(&stored), as_of(&stored, 11), times(&stored)), (None, Some(&b"now"[..]), vec![5, 10, 12]));
    }

    #[test]
    fn a_late_write_does_not_bring_a_removed_key_back() {
        let mut stored = Vec::new();
        write(&mut stored, When::At(10), None, 100);
        write(&mut stored, When::At(5), Some(b"late"), 100);
        assert_eq!((newest(&stored), as_of(&stored, 7)), (None, Some(&b"late"[..])));
    }

    #[test]
    fn the_oldest_go_when_all_are_too_large() {
        let large = vec![7; VERSIONS_BYTES_MAX / 2];
        let (mut stored, mut versions) = (Vec::new(), Vec::new());
        for time in 1..=3 {
            let is_full = add(&stored, When::At(time), Some(&large), 100, &mut versions);
            assert_eq!(is_full, time > 1, "two halves and their descriptions are too large");
            std::mem::swap(&mut stored, &mut versions);
        }
        assert_eq!(times(&stored), [3]);
        let larger = vec![7; VERSIONS_BYTES_MAX + 1];
        add(&stored, When::At(4), Some(&larger), 100, &mut versions);
        assert_eq!((times(&versions), newest(&versions)), (vec![4], Some(larger.as_slice())));
    }
}
