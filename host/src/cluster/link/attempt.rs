//! Which attempt runs on this host, and who takes what comes of it.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{ServeLookups, TakeDeliveries};
use crate::epoch::Attempt;

/// The attempt that runs, shared by the link's thread and whoever begins and ends attempts.
///
/// The lock is held for reading while a call-back runs, so that ending an attempt waits for it.
#[derive(Default)]
pub(super) struct Attempts(RwLock<State>);

#[derive(Default)]
struct State {
    /// The attempts up to this one are over.
    over: Attempt,
    present: Option<Present>,
}

/// Who takes what comes.
pub(super) struct Present {
    attempt: Attempt,
    pub(super) deliveries: Arc<dyn TakeDeliveries>,
    pub(super) lookups: Arc<dyn ServeLookups>,
}

/// What there is to do with something of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timing<T> {
    /// The attempt runs.
    Present(T),
    /// It has not begun here.
    Early,
    /// It is over.
    Stale,
}

impl Attempts {
    pub(super) fn begin(&self, attempt: Attempt, deliveries: Arc<dyn TakeDeliveries>, lookups: Arc<dyn ServeLookups>) {
        let mut state = self.0.write();
        assert!(state.present.is_none(), "the attempt before is ended first");
        assert!(attempt > state.over, "attempt {attempt} is not later than attempt {}", state.over);
        state.over = attempt - 1;
        state.present = Some(Present { attempt, deliveries, lookups });
    }

    pub(super) fn end(&self) {
        let mut state = self.0.write();
        let ended = state.present.take();
        state.over = ended.as_ref().map_or(state.over, |ended| ended.attempt);
        drop(state);
        drop(ended);
    }

    /// The attempt that runs, or the last that did.
    pub(super) fn latest(&self) -> Attempt {
        let state = self.0.read();
        state.present.as_ref().map_or(state.over, |present| present.attempt)
    }

    /// Whether something of `attempt` is void.
    pub(super) fn is_over(&self, attempt: Attempt) -> bool {
        attempt <= self.0.read().over
    }

    /// Does `act` if `attempt` runs; it does not end meanwhile.
    pub(super) fn with<T>(&self, attempt: Attempt, act: impl FnOnce(&Present) -> T) -> Timing<T> {
        let state = self.0.read();
        match &state.present {
            _ if attempt <= state.over => Timing::Stale,
            Some(present) if present.attempt == attempt => Timing::Present(act(present)),
            _ => Timing::Early,
        }
    }
}
