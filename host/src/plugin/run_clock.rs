//! How long a call has run: neither waiting nor a stopped process counts.
//!
//! A call runs in pieces, each ended by a slice of the engine's at the latest. The kernel's account of a thread's processor time is exact, but asking for it takes
//! longer than a short call. So the first eighth of what a call may run is counted by the time on the wall, of each piece a slice at most; only a call
//! that takes longer is worth the exact account.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The part of the running time that is counted by the time on the wall.
const WALL_PART: u64 = 8;

/// The running time of the call under way.
pub(super) struct RunClock {
    spent_ns: AtomicU64,
    /// When the piece under way began, by the clock that counts it.
    resumed_ns: AtomicU64,
    max_ns: u64,
    slice_ns: u64,
}

impl RunClock {
    /// A clock for calls of at most `max`, in pieces of about `slice`.
    pub(super) fn new(max: Duration, slice: Duration) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self { spent_ns: AtomicU64::new(0), resumed_ns: AtomicU64::new(0), max_ns: ns(max), slice_ns: ns(slice) }
    }

    /// Whether the call under way has run for longer than it may.
    pub(super) fn is_over(&self) -> bool {
        self.spent_ns.load(Ordering::Relaxed).saturating_add(self.piece_ns()) > self.max_ns
    }

    /// Runs a call, with its running time measured from here.
    pub(super) fn running<F: Future>(&self, call: F) -> impl Future<Output = F::Output> {
        self.spent_ns.store(0, Ordering::Relaxed);
        Running { clock: self, call: Box::pin(call) }
    }

    /// How long the last call has run.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_ns.load(Ordering::Relaxed))
    }

    /// What the piece under way has taken.
    fn piece_ns(&self) -> u64 {
        let (clock, most) = self.account();
        now_ns(clock).saturating_sub(self.resumed_ns.load(Ordering::Relaxed)).min(most)
    }

    /// By which clock the piece under way is counted, and how much of it at most.
    fn account(&self) -> (ClockId, u64) {
        if self.spent_ns.load(Ordering::Relaxed) < self.max_ns / WALL_PART {
            (ClockId::Monotonic, self.slice_ns)
        } else {
            (ClockId::ThreadCPUTime, u64::MAX)
        }
    }
}

fn now_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

struct Running<'a, F> {
    clock: &'a RunClock,
    call: Pin<Box<F>>,
}

impl<F: Future> Future for Running<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let clock = self.clock;
        clock.resumed_ns.store(now_ns(clock.account().0), Ordering::Relaxed);
        let polled = self.call.as_mut().poll(context);
        // A piece that has begun by one clock is counted by it: `spent_ns` changes only here.
        clock.spent_ns.fetch_add(clock.piece_ns(), Ordering::Relaxed);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn spin(until: impl Fn() -> bool) {
        while !until() {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_call_that_runs_on_is_over_and_one_that_waits_is_not() {
        let clock = RunClock::new(Duration::from_millis(40), Duration::from_millis(2));
        let mut running = Box::pin(clock.running(std::future::poll_fn(|_| -> Poll<()> {
            spin(|| clock.piece_ns() >= 2_000_000);
            Poll::Pending
        })));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            assert!(!clock.is_over());
            assert!(running.as_mut().poll(&mut context).is_pending());
        }
        // A wait between two pieces counts for nothing, however long.
        let before = clock.spent_ns.load(Ordering::Relaxed);
        std::thread::park_timeout(Duration::from_millis(60));
        assert_eq!(clock.spent_ns.load(Ordering::Relaxed), before);
        for _ in 0..10 {
            assert!(running.as_mut().poll(&mut context).is_pending());
        }
        assert!(clock.is_over());
    }

    #[test]
    fn of_a_piece_by_the_wall_a_slice_counts_at_most() {
        let clock = RunClock::new(Duration::from_secs(1), Duration::from_millis(2));
        let mut running = Box::pin(clock.running(std::future::poll_fn(|_| -> Poll<()> {
            std::thread::park_timeout(Duration::from_millis(30));
            Poll::Pending
        })));
        assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(clock.spent_ns.load(Ordering::Relaxed) <= 2_000_000);
    }
}
