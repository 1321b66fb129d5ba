//! Decides, from what is found after a stop, which epoch is the last committed one. Pure: facts in, decision out.
//!
//! Epoch `n` is made durable in three steps: its entry is written and synced; the `committed` slot `n % 2` is overwritten and synced; only
//! then is anything of it published. At most one epoch is between the first and the second step. So a crash leaves
//!
//! 1. two good slots for `n - 1` and `n`, and an entry `n + 1` that is absent, torn or whole. When it is whole, the epoch can be completed: its
//!    entry holds everything, and nothing contradicts it. It is *adopted*. When it is torn it never counted, and is dropped;
//! 2. one good slot for `n`, a torn one, and a whole entry `n + 1`, whose commit was being written. It is adopted. The same holds where the
//!    slot was damaged later, when entry `n` may have been released: entry `n + 1` follows from the digest in the good slot.
//!
//! Where several hosts work on one job, a whole entry says of itself that this is not enough for it to count (it is *prepared*, see [`super::standing`]). Then
//! entry `n + 1` is neither adopted nor dropped, but left to the commit record: under 1. and, as long as nothing lies behind it, under 2. Where an entry `n + 2` was begun, whole or
//! torn, `n + 1` had been committed before, and is adopted. A torn slot with a prepared entry `n + 1` that the record turns out not to name is damage: no commit of it was begun.
//!
//! A torn slot without a whole entry `n + 1` is no crash's work: either that entry or the slot was damaged later, and which epoch was the last to be
//! published cannot be known. That is an error, as is everything else.

use super::slots::{Record, Slot};
use super::{Attempt, Digest, Epoch};

/// An entry's file as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There is none.
    Absent,
    /// It is torn or damaged.
    Invalid,
    /// It is whole.
    Whole {
        /// The attempt that sealed it.
        attempt: Attempt,
        /// The digest of the entry before it.
        previous: Digest,
        /// Its own digest.
        digest: Digest,
        /// Whether it is one host's part of an epoch of several hosts.
        shared: bool,
    },
}

/// What to do with what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The last committed epoch and its entry's digest, adopted ones included.
    pub committed: Record,
    /// Whether `committed` has to be written, because the epoch was adopted.
    pub adopted: bool,
    /// Torn entries to be removed.
    pub dropped: Vec<Epoch>,
    /// The whole entry behind the last committed one that only the commit record decides on.
    pub prepared: Option<Record>,
    /// Whether a slot is torn that nothing but a commit of `prepared` explains.
    pub torn: bool,
}

/// What no crash can have left behind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Neither slot can be read.
    #[error("neither of its two records can be read")]
    BothSlots,
    /// The slots contradict each other or their places.
    #[error("its two records contradict each other")]
    Slots,
    /// A slot is damaged, and nothing says what it held.
    #[error(
        "one of its two records is damaged, the other is of epoch {0}, and there is no whole entry of the epoch behind it that would \
         explain this by a crash"
    )]
    OneSlot(Epoch),
    /// The entry of a committed epoch is missing.
    #[error("the entry of epoch {0} is missing, but the epoch was committed")]
    Missing(Epoch),
    /// The entry of a committed epoch is damaged.
    #[error("the entry of epoch {0} is damaged, but the epoch was committed")]
    Entry(Epoch),
    /// An entry is whole, but not the one that belongs there.
    #[error(
        "the entry of epoch {0} is whole, but does not follow from the epoch before it: it comes from another history"
    )]
    Chain(Epoch),
    /// An entry lies where none can be.
    #[error("there is an entry of epoch {0}, but the last committed epoch is {1}")]
    Beyond(Epoch, Epoch),
}

/// Decides what the last committed epoch is. `newest` is the highest epoch that has an entry's file, `find` looks at one.
///
/// # Errors
/// [`Damage`] that no crash explains.
pub fn decide(
    slots: [Slot; 2],
    newest: Option<Epoch>,
    mut find: impl FnMut(Epoch) -> Found,
) -> Result<Decision, Damage> {
    let (mut committed, torn_slot) = last_record(slots)?;
    if committed.number > 0 {
        match find(committed.number) {
            Found::Absent if torn_slot => {}
            Found::Absent => return Err(Damage::Missing(committed.number)),
            Found::Invalid => return Err(Damage::Entry(committed.number)),
            Found::Whole { digest, .. } if digest != committed.digest => return Err(Damage::Chain(committed.number)),
            Found::Whole { .. } => {}
        }
    }
    // With a torn slot, the epoch behind it was (nearly) committed, and the next may have been appended.
    let mut may_follow = if torn_slot { 2 } else { 1 };
    let mut adopted = false;
    let mut dropped = Vec::new();
    let mut prepared = None;
    while may_follow > 0 {
        let next = committed.number + 1;
        match find(next) {
            Found::Whole { attempt, previous, digest, shared } => {
                if previous != committed.digest || attempt < committed.attempt {
                    return Err(Damage::Chain(next));
                }
                let record = Record { number: next, attempt, digest };
                // On several hosts, what lies behind an entry says that the entry was committed.
                if shared && (!torn_slot || adopted || find(next + 1) == Found::Absent) {
                    prepared = Some(record);
                    break;
                }
                committed = record;
                adopted = true;
            }
            Found::Invalid if !torn_slot || adopted => {
                dropped.push(next);
                break;
            }
            Found::Absent if !torn_slot || adopted => break,
            Found::Absent | Found::Invalid => return Err(Damage::OneSlot(committed.number)),
        }
        may_follow -= 1;
    }
    let last_prepared = prepared.map_or(committed.number, |prepared: Record| prepared.number);
    let last_explained = dropped.last().copied().unwrap_or(last_prepared);
    match newest {
        Some(newest) if newest > last_explained => Err(Damage::Beyond(newest, committed.number)),
        _ => Ok(Decision { committed, adopted, dropped, prepared, torn: torn_slot && !adopted }),
    }
}

/// The newer record, and whether the other slot is torn.
fn last_record(slots: [Slot; 2]) -> Result<(Record, bool), Damage> {
    let in_place = |record: Record, index: u64| record.number % 2 == index;
    match slots {
        [Slot::Invalid, Slot::Invalid] => Err(Damage::BothSlots),
        [Slot::Set(even), Slot::Set(odd)] if in_place(even, 0) && in_place(odd, 1) => {
            let (older, newer) = if even.number < odd.number { (even, odd) } else { (odd, even) };
            let follows = older.number + 1 == newer.number && older.attempt <= newer.attempt;
            if follows { Ok((newer, false)) } else { Err(Damage::Slots) }
        }
        [Slot::Set(first), Slot::Void] if first.number == 0 => Ok((first, false)),
        [Slot::Set(even), Slot::Invalid] if in_place(even, 0) => Ok((even, true)),
        [Slot::Invalid, Slot::Set(odd)] if in_place(odd, 1) => Ok((odd, true)),
        _ => Err(Damage::Slots),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: Epoch) -> Slot {
        Slot::Set(record(number))
    }

    fn record(number: Epoch) -> Record {
        Record { number, attempt: 1, digest: Digest(u128::from(number)) }
    }

    fn whole(epoch: Epoch) -> Found {
        Found::Whole {
            attempt: 1,
            previous: Digest(u128::from(epoch) - 1),
            digest: Digest(u128::from(epoch)),
            shared: false,
        }
    }

    /// Decides with whole entries up to `entries`, and then `tail`.
    fn check(slots: [Slot; 2], entries: Epoch, tail: &[Found]) -> Result<(Epoch, bool, Vec<Epoch>), Damage> {
        let find = |epoch: Epoch| match epoch.checked_sub(entries + 1) {
            None => whole(epoch),
            Some(index) => tail.get(index as usize).copied().unwrap_or(Found::Absent),
        };
        decide(slots, Some(entries + tail.len() as u64), find).map(|d| (d.committed.number, d.adopted, d.dropped))
    }

    #[test]
    fn two_good_slots_name_the_last_epoch() {
        assert_eq!(check([slot(0), Slot::Void], 0, &[]), Ok((0, false, vec![])));
        assert_eq!(check([slot(4), slot(5)], 5, &[]), Ok((5, false, vec![])));
        assert_eq!(check([slot(6), slot(5)], 6, &[]), Ok((6, false, vec![])));
    }

    #[test]
    fn a_torn_tail_is_dropped_and_a_whole_one_adopted() {
        assert_eq!(check([slot(4), slot(5)], 5, &[Found::Invalid]), Ok((5, false, vec![6])));
        assert_eq!(check([slot(4), slot(5)], 6, &[]), Ok((6, true, vec![])));
        assert_eq!(check([slot(0), Slot::Void], 1, &[]), Ok((1, true, vec![])));
    }

    #[test]
    fn a_torn_slot_is_explained_by_a_whole_entry_behind_the_good_one() {
        assert_eq!(check([slot(4), Slot::Invalid], 5, &[]), Ok((5, true, vec![])));
        assert_eq!(check([slot(4), Slot::Invalid], 5, &[Found::Invalid]), Ok((5, true, vec![6])));
        assert_eq!(check([slot(4), Slot::Invalid], 6, &[]), Ok((6, true, vec![])));
        assert_eq!(check([slot(4), Slot::Invalid], 3, &[Found::Absent, whole(5)]), Ok((5, true, vec![])));
        assert_eq!(check([slot(4), Slot::Invalid], 3, &[]), Err(Damage::OneSlot(4)));
        assert_eq!(check([slot(4), Slot::Invalid], 4, &[]), Err(Damage::OneSlot(4)));
        assert_eq!(check([slot(4), Slot::Invalid], 4, &[Found::Invalid]), Err(Damage::OneSlot(4)));
    }

    #[test]
    fn a_damaged_committed_entry_is_an_error() {
        assert_eq!(check([slot(4), slot(5)], 4, &[Found::Invalid]), Err(Damage::Entry(5)));
        assert_eq!(check([slot(4), slot(5)], 4, &[]), Err(Damage::Missing(5)));
    }

    #[test]
    fn entries_of_another_history_are_an_error() {
        let stray = Found::Whole { attempt: 1, previous: Digest(77), digest: Digest(78), shared: false };
        assert_eq!(check([slot(4), slot(5)], 4, &[stray]), Err(Damage::Chain(5)));
        assert_eq!(check([slot(4), slot(5)], 5, &[stray]), Err(Damage::Chain(6)));
        assert_eq!(check([slot(4), slot(5)], 7, &[]), Err(Damage::Beyond(7, 6)));
        assert_eq!(check([slot(4), slot(5)], 5, &[Found::Invalid, Found::Invalid]), Err(Damage::Beyond(7, 5)));
    }

    #[test]
    fn slots_that_contradict_each_other_are_an_error() {
        assert_eq!(check([Slot::Invalid, Slot::Invalid], 5, &[]), Err(Damage::BothSlots));
        for slots in [[slot(2), slot(5)], [slot(5), slot(4)], [slot(4), Slot::Void], [Slot::Void, slot(5)]] {
            assert_eq!(check(slots, 5, &[]), Err(Damage::Slots), "{slots:?}");
        }
    }

    /// What is prepared, and what is committed, where entries are shared.
    fn check_shared(slots: [Slot; 2], entries: Epoch, torn_tail: bool) -> Result<(Epoch, Option<Epoch>, bool), Damage> {
        let find = |epoch: Epoch| match whole(epoch) {
            Found::Whole { attempt, previous, digest, .. } if epoch <= entries => {
                Found::Whole { attempt, previous, digest, shared: true }
            }
            _ if torn_tail && epoch == entries + 1 => Found::Invalid,
            _ => Found::Absent,
        };
        let decision = decide(slots, Some(entries + u64::from(torn_tail)), find)?;
        assert_eq!(decision.dropped.len(), usize::from(torn_tail));
        let prepared = decision.prepared.map(|prepared| prepared.number);
        assert!(!decision.torn || prepared.is_some());
        Ok((decision.committed.number, prepared, decision.adopted))
    }

    #[test]
    fn a_prepared_entry_is_left_to_the_commit_record() {
        assert_eq!(check_shared([slot(0), Slot::Void], 0, false), Ok((0, None, false)));
        assert_eq!(check_shared([slot(0), Slot::Void], 1, false), Ok((0, Some(1), false)));
        assert_eq!(check_shared([slot(4), slot(5)], 5, false), Ok((5, None, false)));
        assert_eq!(check_shared([slot(4), slot(5)], 5, true), Ok((5, None, false)));
        assert_eq!(check_shared([slot(4), slot(5)], 6, false), Ok((5, Some(6), false)));
        assert_eq!(check_shared([slot(4), slot(5)], 7, false), Err(Damage::Beyond(7, 5)));
    }

    #[test]
    fn a_prepared_entry_with_another_behind_it_was_committed() {
        assert_eq!(check_shared([slot(4), Slot::Invalid], 5, false), Ok((4, Some(5), false)));
        assert_eq!(check_shared([slot(4), Slot::Invalid], 5, true), Ok((5, None, true)));
        assert_eq!(check_shared([slot(4), Slot::Invalid], 6, false), Ok((5, Some(6), true)));
        assert_eq!(check_shared([slot(4), Slot::Invalid], 4, false), Err(Damage::OneSlot(4)));
        assert_eq!(check_shared([slot(4), Slot::Invalid], 7, false), Err(Damage::Beyond(7, 5)));
    }
}
