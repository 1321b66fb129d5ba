//! Time as the job sees it: a clock that a test can hold in its hand.
//!
//! Epoch intervals, linger and progress ask a [`Clock`]; nothing below `cli` reads the system's clocks by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of monotonic time.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    System(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's monotonic clock, counted from now.
    pub fn system() -> Self {
        Self(Kind::System(Instant::now()))
    }

    /// A clock that stands still until [`Clock::advance`].
    pub fn manual() -> Self {
        Self(Kind::Manual(Arc::default()))
    }

    /// The time since the clock was made.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::System(start) => start.elapsed(),
            Kind::Manual(nanoseconds) => Duration::from_nanos(nanoseconds.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock on; the system's clock moves by itself, so there this does nothing.
    pub fn advance(&self, by: Duration) {
        if let Kind::Manual(nanoseconds) = &self.0 {
            nanoseconds.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual();
        let copy = clock.clone();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_millis(7));
        assert_eq!(copy.now(), Duration::from_millis(7));
    }
}
