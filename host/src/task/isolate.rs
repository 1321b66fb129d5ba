//! Finding the record at fault: pure.

use std::ops::Range;

use crate::plugin::{Failure, FailureKind};

/// The parts in which to run `range` again after it failed as a whole; the record at fault ends up alone. `range` holds at least two records.
///
/// What came too early is halved, so that as many as can go before the first that has to wait. Else a function that names the record is believed: the records before it, it, and those behind. One that ran out of time is run record by
/// record, since each further failure would cost its whole time again. Else the batch is halved.
pub(super) fn parts(range: Range<usize>, failure: &Failure) -> Vec<Range<usize>> {
    let middle = range.start + range.len() / 2;
    if failure.kind == FailureKind::NotYet {
        return vec![range.start..middle, middle..range.end];
    }
    if let Some(culprit) = failure.culprit.map(|culprit| range.start + culprit as usize)
        && range.contains(&culprit)
    {
        let parts = [range.start..culprit, culprit..culprit + 1, culprit + 1..range.end];
        return parts.into_iter().filter(|part| !part.is_empty()).collect();
    }
    if failure.kind == FailureKind::RunTime {
        return range.map(|index| index..index + 1).collect();
    }
    vec![range.start..middle, middle..range.end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(range: Range<usize>, kind: FailureKind, culprit: Option<u32>) -> Vec<Range<usize>> {
        parts(range, &Failure { kind, message: String::new(), culprit, said: None })
    }

    #[test]
    fn a_named_record_is_taken_out() {
        assert_eq!(check(10..20, FailureKind::Trap, Some(3)), [10..13, 13..14, 14..20]);
        assert_eq!(check(10..20, FailureKind::RunTime, Some(0)), [10..11, 11..20]);
        assert_eq!(check(10..20, FailureKind::Returned, Some(9)), [10..19, 19..20]);
    }

    #[test]
    fn without_a_name_the_batch_is_halved() {
        assert_eq!(check(0..5, FailureKind::Trap, None), [0..2, 2..5]);
        assert_eq!(check(4..6, FailureKind::Trap, Some(7)), [4..5, 5..6]);
        assert_eq!(check(0..5, FailureKind::NotYet, Some(0)), [0..2, 2..5]);
    }

    #[test]
    fn a_loop_is_looked_for_one_by_one() {
        assert_eq!(check(0..3, FailureKind::RunTime, None), [0..1, 1..2, 2..3]);
    }
}
