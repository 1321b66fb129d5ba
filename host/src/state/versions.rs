//! The versions of one key's value by event time, as one stored value: how they lie in it, how one is added, and which one was true at a time. Pure.
//!
//! A versioned table stores, where another stores a value, the sequence of the values that its key has had. So everything that keeps, logs and feeds cells does
//! not know of versions, and a key's versions are written together whenever one is added.
//!
//! # Format, version 1
//!
//! All integers are little-endian. The versions ascend by their times, no two of which are the same:
//!
//! | length | content |
//! |---|---|
//! | … | the values, one behind the other; nothing where the key had none |
//! | 13 each | the versions: event time from which on it holds (8 bytes, signed), 1 for a value or 0 where the key was removed (1 byte), where its value ends (4 bytes) |
//! | 4 | the number of versions |
//!
//! Another format of this will be another format of the epoch log and of redb's rows, whose numbers tell. The descriptions stand behind what they describe and have one length, so that the newest version, which most readers want, is found at once, and that of a time by halving.
//!
//! That a table's values are such sequences is told by the highest bit of the schema version that is stored with them ([`VERSIONED`]).
//!
//! # What is kept
//!
//! With a span of `s` and the newest version at `t`: every version from `t - s` on, and the newest before that, which is what was true then. The oldest go
//! earlier where all of them would pass [`VERSIONS_BYTES_MAX`]. A removed key keeps the version that says so: what comes later, but is older, must not
//! bring it back.

use crate::record::NO_TIME;

/// Set in the schema version that is stored with a table's values, where they are sequences of versions.
pub const VERSIONED: u32 = 1 << 31;

/// The most bytes that the versions of one key take; the newest one is kept in any case.
pub const VERSIONS_BYTES_MAX: usize = 16 << 20;

/// The bytes of a version beside its value.
const DESCRIPTION_BYTES: usize = size_of::<i64>() + 1 + size_of::<u32>();
/// The bytes of the number behind the descriptions.
const COUNT_BYTES: usize = size_of::<u32>();

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

    /// The time from which on it holds, where the newest version holds from `newest` on.
    pub(super) fn time(self, newest: i64) -> i64 {
        match self {
            // Who knows no time means the present.
            Self::At(NO_TIME) => newest,
            Self::At(time) => time,
            Self::NotBefore(time) => time.max(newest),
        }
    }
}

/// A key's versions as they are stored. Bytes that this program would not write are no versions, or have no values.
#[derive(Debug, Clone, Copy)]
struct Stored<'a> {
    values: &'a [u8],
    descriptions: &'a [[u8; DESCRIPTION_BYTES]],
}

impl<'a> Stored<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self::read(bytes).unwrap_or(Self { values: &[], descriptions: &[] })
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (rest, count) = bytes.split_last_chunk()?;
        let count = u32::from_le_bytes(*count) as usize;
        let start = rest.len().checked_sub(count.checked_mul(DESCRIPTION_BYTES)?)?;
        let (values, descriptions) = rest.split_at(start);
        Some(Self { values, descriptions: descriptions.as_chunks().0 })
    }

    fn len(self) -> usize {
        self.descriptions.len()
    }

    fn time(self, index: usize) -> i64 {
        let (time, _) = self.descriptions[index].split_first_chunk().expect("a description begins with a time");
        i64::from_le_bytes(*time)
    }

    fn end(self, index: usize) -> usize {
        let (_, end) = self.descriptions[index].split_last_chunk().expect("a description ends with a number");
        u32::from_le_bytes(*end) as usize
    }

    fn value(self, index: usize) -> Option<&'a [u8]> {
        let is_present = self.descriptions[index][size_of::<i64>()] == 1;
        let start = if index == 0 { 0 } else { self.end(index - 1) };
        self.values.get(start..self.end(index)).filter(|_| is_present)
    }

    /// How many versions are not later than `time`.
    fn up_to(self, time: i64) -> usize {
        self.descriptions.partition_point(|description| {
            let (own, _) = description.split_first_chunk().expect("a description begins with a time");
            i64::from_le_bytes(*own) <= time
        })
    }
}

/// The newest value in `stored`; `None` where the key was removed.
pub(super) fn newest(stored: &[u8]) -> Option<&[u8]> {
    newest_with_time(stored).1
}

/// The newest value in `stored`, and from when on it holds; no time where there is no version.
pub(super) fn newest_with_time(stored: &[u8]) -> (i64, Option<&[u8]>) {
    let stored = Stored::of(stored);
    match stored.len().checked_sub(1) {
        Some(newest) => (stored.time(newest), stored.value(newest)),
        None => (NO_TIME, None),
    }
}

/// The value that held at `time`: of the newest version that is not later. `None` where there is none, or the key was removed then.
pub(super) fn as_of(stored: &[u8], time: i64) -> Option<&[u8]> {
    let stored = Stored::of(stored);
    stored.value(stored.up_to(time).checked_sub(1)?)
}

/// The values of all versions in `stored`, in their order.
pub(super) fn values(stored: &[u8]) -> Vec<&[u8]> {
    let stored = Stored::of(stored);
    (0..stored.len()).filter_map(|index| stored.value(index)).collect()
}

/// The versions in `stored` with other values: as many as [`values`] gives, in the same order.
pub(super) fn with_values<'a>(stored: &'a [u8], mut values: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut versions = Versions::of(stored);
    for version in &mut versions.0 {
        version.value = version.value.and_then(|_| values.next());
    }
    let mut changed = Vec::new();
    // Whatever was kept stays.
    versions.store(u64::MAX, &mut changed);
    changed
}

/// A key's versions while some are added.
#[derive(Debug)]
pub(super) struct Versions<'a>(Vec<Version<'a>>);

#[derive(Debug, Clone, Copy)]
struct Version<'a> {
    time: i64,
    value: Option<&'a [u8]>,
}

impl<'a> Versions<'a> {
    /// The versions in `stored`; none where it is empty.
    pub(super) fn of(stored: &'a [u8]) -> Self {
        let stored = Stored::of(stored);
        let version = |index: usize| Version { time: stored.time(index), value: stored.value(index) };
        Self((0..stored.len()).map(version).collect())
    }

    /// Adds a version.
    pub(super) fn add(&mut self, when: When, value: Option<&'a [u8]>) {
        let time = when.time(self.0.last().map_or(NO_TIME, |version| version.time));
        let place = self.0.partition_point(|version| version.time < time);
        match self.0.get_mut(place) {
            Some(same) if same.time == time => same.value = value,
            _ => self.0.insert(place, Version { time, value }),
        }
    }

    /// Puts into `stored` those that are kept with this span, in place of what is there. Returns whether some went before their time, because all of them would be too large.
    ///
    /// # Panics
    /// When a value is 4 GiB long or longer; values come in columns, which are shorter.
    pub(super) fn store(&self, span_ms: u64, stored: &mut Vec<u8>) -> bool {
        let (needed, kept) = (self.needed(span_ms), self.fitting(self.needed(span_ms)));
        stored.clear();
        stored.reserve(kept.iter().map(Version::bytes).sum::<usize>() + COUNT_BYTES);
        kept.iter().for_each(|version| stored.extend_from_slice(version.value.unwrap_or_default()));
        let mut end = 0;
        for Version { time, value } in kept {
            end += value.map_or(0, <[u8]>::len);
            stored.extend_from_slice(&time.to_le_bytes());
            stored.push(u8::from(value.is_some()));
            stored.extend_from_slice(&number(end).to_le_bytes());
        }
        stored.extend_from_slice(&number(kept.len()).to_le_bytes());
        kept.len() < needed.len()
    }

    fn needed(&self, span_ms: u64) -> &[Version<'a>] {
        let newest = self.0.last().map_or(NO_TIME, |version| version.time);
        let edge = newest.saturating_sub_unsigned(span_ms);
        let older = self.0.partition_point(|version| version.time < edge);
        &self.0[older.saturating_sub(1)..]
    }

    /// As many of the newest of `versions` as there is room for, but one at least.
    fn fitting<'v>(&self, versions: &'v [Version<'a>]) -> &'v [Version<'a>] {
        let mut bytes = 0;
        let fits = |version: &&Version<'_>| {
            bytes += version.bytes();
            bytes <= VERSIONS_BYTES_MAX
        };
        let fitting = versions.iter().rev().take_while(fits).count().max(1);
        &versions[versions.len().saturating_sub(fitting)..]
    }
}

impl Version<'_> {
    fn bytes(&self) -> usize {
        self.value.map_or(0, <[u8]>::len) + DESCRIPTION_BYTES
    }
}

fn number(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a value is an item of a column, which holds less than 4 GiB")
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

    /// Adds a version; returns whether some went before their time.
    fn add(stored: &mut Vec<u8>, when: When, value: Option<&[u8]>, span_ms: u64) -> bool {
        let before = std::mem::take(stored);
        let mut versions = Versions::of(&before);
        versions.add(when, value);
        versions.store(span_ms, stored)
    }

    fn write(stored: &mut Vec<u8>, when: When, value: Option<&[u8]>, span_ms: u64) {
        assert!(!add(stored, when, value, span_ms));
    }

    fn times(stored: &[u8]) -> Vec<i64> {
        let stored = Stored::of(stored);
        (0..stored.len()).map(|index| stored.time(index)).collect()
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
        fn writes_of_a_batch_come_to_the_same_one_by_one(
            writes in prop::collection::vec((when(), prop::option::of(prop::collection::vec(any::<u8>(), 0..4))), 0..30),
        ) {
            let (mut one_by_one, mut together) = (Vec::new(), Vec::new());
            let mut versions = Versions::of(&[]);
            for (when, value) in &writes {
                write(&mut one_by_one, *when, value.as_deref(), SPAN_MS);
                versions.add(*when, value.as_deref());
            }
            versions.store(SPAN_MS, &mut together);
            prop_assert!(writes.is_empty() || one_by_one == together);
        }

        #[test]
        fn any_bytes_can_be_asked(
            bytes in prop::collection::vec(0u8..3, 0..60), count in 0u8..6, time in -1i64..3
        ) {
            let mut stored = [bytes.as_slice(), &[count, 0, 0, 0]].concat();
            let _ = (newest(&stored), as_of(&stored, time));
            let _ = (newest(&bytes), as_of(&bytes, time));
            add(&mut stored, When::At(time), Some(b"v"), 1);
            prop_assert!(Stored::read(&stored).is_some());
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut stored = Vec::new();
        write(&mut stored, When::At(-2), Some(b"ab"), 100);
        write(&mut stored, When::At(3), None, 100);
        write(&mut stored, When::At(4), Some(b"c"), 100);
        let description = |time: i64, kind, end| [time.to_le_bytes().as_slice(), &[kind], &[end, 0, 0, 0]].concat();
        let descriptions = [description(-2, 1, 2), description(3, 0, 2), description(4, 1, 3)].concat();
        assert_eq!(stored, [b"abc".as_slice(), &descriptions, &[3, 0, 0, 0]].concat());
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
        let mut stored = Vec::new();
        for time in 1..=3 {
            let is_short = add(&mut stored, When::At(time), Some(&large), 100);
            assert_eq!(is_short, time > 1, "two halves and their descriptions are too large");
        }
        assert_eq!(times(&stored), [3]);
        let larger = vec![7; VERSIONS_BYTES_MAX + 1];
        add(&mut stored, When::At(4), Some(&larger), 100);
        assert_eq!((times(&stored), newest(&stored)), (vec![4], Some(larger.as_slice())));
    }
}
