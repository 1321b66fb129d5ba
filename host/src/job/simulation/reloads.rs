//! Reloads by chance: functions are replaced by others of the same kind, and every start must find what the last committed epoch has named.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::native::Native;
use crate::dice::Dice;
use crate::epoch::Epoch;
use crate::epoch::entry::{Entry, RunningComponent};
use crate::job::coordinate::{Coordinator, Swap};
use crate::task::run::Slot;

/// One seal in so many replaces a function.
const RELOADS_ONCE_IN: usize = 3;

/// What runs where, by name.
type Components = BTreeMap<String, RunningComponent>;

/// All reloads of a simulation, over crashes.
pub(super) struct Reloads {
    dice: Dice,
    /// What was named at the seals behind which something was replaced.
    named: BTreeMap<Epoch, Components>,
    /// How many were made ready.
    count: u64,
}

impl Reloads {
    /// By chance from `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed.rotate_left(32)), named: BTreeMap::new(), count: 0 }
    }

    /// What runs behind the last committed epoch.
    pub(super) fn at_start(&mut self, last: Option<&Entry>) -> Components {
        let epoch = last.map_or(0, |last| last.epoch);
        self.named.split_off(&(epoch + 1));
        let expected = self.named.last_key_value().map(|(_, named)| named.clone()).unwrap_or_default();
        assert_eq!(last.map(|last| &last.components).unwrap_or(&Components::new()), &expected, "as of epoch {epoch}");
        expected
    }

    /// Perhaps has one of the functions in `slots` replaced at the next seal, by one of those that `functions` makes.
    pub(super) fn before_seal(
        &mut self,
        coordinator: &mut Coordinator,
        slots: &BTreeMap<String, Arc<Slot<Native>>>,
        functions: fn(&mut Dice) -> Vec<(&'static str, Native)>,
    ) {
        if !self.dice.once_in(RELOADS_ONCE_IN) {
            return;
        }
        self.count += 1;
        let mut functions = functions(&mut self.dice);
        let (operator, function) = functions.swap_remove(self.dice.below(functions.len()));
        let (slot, function) = (Arc::clone(&slots[operator]), Arc::new(function));
        let sha256 = self.count.to_string();
        let component =
            RunningComponent { file_sha256: sha256.clone(), sha256, name: String::new(), version: String::new() };
        let (done, _) = oneshot::channel();
        let replace = Box::new(move || slot.replace(function));
        coordinator.swaps.push(Swap { operator: operator.to_owned(), component, replace, trial: None, done });
    }

    /// An epoch has been sealed.
    pub(super) fn sealed(&mut self, coordinator: &Coordinator) {
        self.named.insert(coordinator.epoch, coordinator.components.clone());
    }
}
