//! What a running job counts: counters that any thread may read, and distributions of durations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

/// The counters of one operator.
#[derive(Debug, Default)]
pub struct OperatorMeters {
    /// Records handed to the function, each once.
    pub records_in: Counter,
    /// Records it emitted.
    pub records_out: Counter,
    /// Calls that succeeded.
    pub calls: Counter,
    /// How long calls have run, in nanoseconds: what they waited for does not count.
    pub running_ns: Counter,
    /// Calls that failed and were undone.
    pub failures: Counter,
    /// Updates of its tables by other tasks and operators, those included that did not fit.
    pub updates: Counter,
    /// Records that ran again in their round, since an earlier one wrote what they read or write.
    pub reruns: Counter,
    /// Records that waited for the progress of another operator, with those that came behind them to their task.
    pub waited: Counter,
    /// Records refused.
    pub refused: Arc<Counter>,
    /// What the function counts and gauges by itself.
    pub own: Mutex<OwnMetrics>,
}

/// Counters and gauges that a function names.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct OwnMetrics {
    /// Sums.
    pub counts: BTreeMap<String, u64>,
    /// Last values.
    pub gauges: BTreeMap<String, f64>,
}

/// The most names that one function's metrics may have; further names are left out.
const OWN_NAMES_MAX: usize = 1_000;

impl OwnMetrics {
    /// Adds to a counter.
    pub fn count(&mut self, name: &str, by: u64) {
        if let Some(sum) = self.counts.get_mut(name) {
            *sum = sum.saturating_add(by);
        } else if self.counts.len() < OWN_NAMES_MAX {
            self.counts.insert(name.to_owned(), by);
        }
    }

    /// Sets a gauge.
    pub fn gauge(&mut self, name: &str, value: f64) {
        if self.gauges.contains_key(name) || self.gauges.len() < OWN_NAMES_MAX {
            self.gauges.insert(name.to_owned(), value);
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `by`, and says what the value was before.
    pub fn add(&self, by: u64) -> u64 {
        self.0.fetch_add(by, Ordering::Relaxed)
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A distribution of durations, exact to 1 %, in constant memory.
#[derive(Debug)]
pub struct Durations(hdrhistogram::Histogram<u64>);

/// The longest duration told apart: an hour, in microseconds. Longer ones count as it.
const LONGEST_US: u64 = 3_600_000_000;

/// The figures of a distribution, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Default for Durations {
    fn default() -> Self {
        let histogram = hdrhistogram::Histogram::new_with_bounds(1, LONGEST_US, 2);
        Self(histogram.expect("the bounds and the precision are valid"))
    }
}

impl Durations {
    /// Adds a duration.
    pub fn record(&mut self, duration: Duration) {
        self.0.saturating_record(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// The figures so far; zeros where there are none.
    pub fn percentiles(&self) -> Percentiles {
        let ms = |microseconds: u64| microseconds as f64 / 1_000.0;
        Percentiles {
            p50: ms(self.0.value_at_quantile(0.5)),
            p99: ms(self.0.value_at_quantile(0.99)),
            max: ms(self.0.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_one_percent() {
        let mut durations = Durations::default();
        for ms in 1..=1_000 {
            durations.record(Duration::from_millis(ms));
        }
        let figures = durations.percentiles();
        let close = |value: f64, expected: f64| (value - expected).abs() <= expected * 0.01;
        assert!(close(figures.p50, 500.0) && close(figures.p99, 990.0) && close(figures.max, 1_000.0), "{figures:?}");
        assert_eq!(Durations::default().percentiles(), Percentiles::default());
    }

    #[test]
    fn names_beyond_the_limit_are_left_out() {
        let mut own = OwnMetrics::default();
        for name in 0..OWN_NAMES_MAX + 5 {
            own.count(&name.to_string(), 1);
            own.gauge(&name.to_string(), 1.0);
        }
        own.count("0", 2);
        assert_eq!((own.counts.len(), own.gauges.len(), own.counts["0"]), (OWN_NAMES_MAX, OWN_NAMES_MAX, 3));
    }
}
