//! How far each operator has come in event time, as it was known when the last epoch was sealed.
//!
//! Nothing is in flight when it is moved on, and nothing begins before: so every task sees the same from one seal to the next, and it is the same again when an epoch
//! is worked on once more after a crash. This file does not know what it is made of.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The progress of all operators, shared by all tasks.
#[derive(Debug, Default)]
pub struct Progress {
    operators: Box<[AtomicI64]>,
    /// How often it has been moved on.
    moves: AtomicU64,
}

impl Progress {
    /// Of `operators` operators, of which nothing is known yet.
    pub fn new(operators: usize) -> Self {
        let nothing_known = std::iter::repeat_with(|| AtomicI64::new(i64::MIN));
        Self { operators: nothing_known.take(operators).collect(), moves: AtomicU64::new(0) }
    }

    /// The time that an operator has come to: no record of this time or before is to come to it any more, unless it is late. The least time there is where it cannot
    /// tell, the greatest at the end of all its input.
    pub fn of(&self, operator: usize) -> i64 {
        self.operators[operator].load(Ordering::Acquire)
    }

    /// Moves all operators on. To be called while nothing is in flight and admission is closed.
    ///
    /// # Panics
    /// When there are fewer times than operators.
    pub fn move_on(&self, times: &[i64]) {
        for (index, operator) in self.operators.iter().enumerate() {
            operator.store(times[index], Ordering::Release);
        }
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// How often it has been moved on since the start: what had to wait before may go on where this has changed.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }
}
