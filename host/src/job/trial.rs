//! Trials of new versions of functions: what one is measured by, and when it has failed. Pure.
//!
//! A trial is one long epoch: nothing of it is committed or published before the new version has stood it. So going back is what it is after a crash: from the last committed epoch on, with the version that
//! it names, code and state together.

use std::time::Duration;

/// How a new version is tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// For as long as so many epochs take by `checkpoint.interval`, at least 1.
    pub trial: u32,
    /// It may take so many times the running time for a record that the version before took.
    pub slower_than: Option<f64>,
}

impl Trial {
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self { trial: 0, .. } => Err("a trial takes at least 1 epoch".to_owned()),
            Self { slower_than: Some(factor), .. } if !(factor.is_finite() && *factor > 0.0) => {
                Err("how many times slower it may be is a number above 0".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// What an operator has done, by its counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub records: u64,
    pub calls: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Records that were refused.
    pub refused: u64,
    pub running: Duration,
}

impl Done {
    /// What was done since.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            records: self.records.saturating_sub(before.records),
            calls: self.calls.saturating_sub(before.calls),
            failures: self.failures.saturating_sub(before.failures),
            refused: self.refused.saturating_sub(before.refused),
            running: self.running.saturating_sub(before.running),
        }
    }

    fn running_ns(self) -> f64 {
        self.running.as_nanos() as f64 / self.records.max(1) as f64
    }
}

/// It takes at least so many records to say that a version is slow.
const RECORDS_MIN: u64 = 1_000;
/// Failures and refusals that the version before has, too, are no fault of the new one: it may have this many times their share.
const SHARE_MAX: u64 = 2;

/// Why the version that has done `now` does not stand its trial, beside the one that did `before`; `None` as long as it does.
pub(super) fn verdict(trial: &Trial, before: Done, now: Done) -> Option<String> {
    let is_more = |bad: u64, all: u64, bad_before: u64, all_before: u64| {
        u128::from(bad) * u128::from(all_before) > u128::from(SHARE_MAX * bad_before) * u128::from(all)
            || (bad > 0 && bad_before == 0)
    };
    if is_more(now.failures, now.calls + now.failures, before.failures, before.calls + before.failures) {
        let (failures, failures_before) = (now.failures, before.failures);
        let (calls, calls_before) = (now.calls + failures, before.calls + failures_before);
        return Some(format!(
            "{failures} of {calls} calls failed, of the version before {failures_before} of {calls_before}"
        ));
    }
    if is_more(now.refused, now.records, before.refused, before.records) {
        let (refused, records) = (now.refused, now.records);
        let (refused_before, records_before) = (before.refused, before.records);
        return Some(format!(
            "it refused {refused} of {records} records, the version before {refused_before} of {records_before}"
        ));
    }
    let slower_than = trial.slower_than?;
    let (ns, ns_before) = (now.running_ns(), before.running_ns());
    let is_known = now.records >= RECORDS_MIN && before.records >= RECORDS_MIN;
    (is_known && ns > slower_than * ns_before).then(|| {
        format!("it takes {ns:.0} ns for a record, the version before {ns_before:.0} ns: more than {slower_than} times as long")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Trial = Trial { trial: 3, slower_than: Some(2.0) };

    fn done(records: u64, failures: u64, refused: u64, micros: u64) -> Done {
        Done { records, calls: records / 10, failures, refused, running: Duration::from_micros(micros) }
    }

    #[test]
    fn a_version_that_fails_or_refuses_more_than_the_one_before_does_not_stand() {
        let before = done(10_000, 0, 0, 10_000);
        assert_eq!(verdict(&TRIAL, before, done(10_000, 0, 0, 10_000)), None);
        let said = verdict(&TRIAL, before, done(1_000, 1, 0, 1_000)).unwrap();
        assert_eq!(said, "1 of 101 calls failed, of the version before 0 of 1000");
        let said = verdict(&TRIAL, before, done(1_000, 0, 4, 1_000)).unwrap();
        assert_eq!(said, "it refused 4 of 1000 records, the version before 0 of 10000");
        // A version that has never been seen at work is no excuse.
        assert!(verdict(&TRIAL, Done::default(), done(10, 0, 1, 1)).is_some());
    }

    #[test]
    fn what_the_version_before_refused_too_is_no_fault() {
        let before = done(10_000, 10, 100, 10_000);
        assert_eq!(verdict(&TRIAL, before, done(10_000, 20, 200, 10_000)), None);
        assert!(verdict(&TRIAL, before, done(10_000, 0, 201, 10_000)).is_some());
        assert!(verdict(&TRIAL, before, done(10_000, 21, 0, 10_000)).is_some());
    }

    #[test]
    fn a_version_is_slow_by_its_running_time_for_a_record_once_enough_were_seen() {
        let before = done(10_000, 0, 0, 10_000);
        assert_eq!(verdict(&TRIAL, before, done(5_000, 0, 0, 10_000)), None);
        let said = verdict(&TRIAL, before, done(5_000, 0, 0, 10_100)).unwrap();
        assert_eq!(said, "it takes 2020 ns for a record, the version before 1000 ns: more than 2 times as long");
        assert_eq!(verdict(&TRIAL, before, done(500, 0, 0, 10_000)), None);
        assert_eq!(verdict(&Trial { slower_than: None, ..TRIAL }, before, done(5_000, 0, 0, 90_000)), None);
    }

    #[test]
    fn a_trial_is_checked() {
        assert!(TRIAL.check().is_ok());
        assert!(Trial { trial: 0, ..TRIAL }.check().is_err());
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Trial { slower_than: Some(factor), ..TRIAL }.check().is_err());
        }
    }
}
