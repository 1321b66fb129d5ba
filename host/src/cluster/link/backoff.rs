//! How long to wait before the next try, and the small randomness that a link needs. Pure.

use std::time::Duration;

/// The first pause, at most.
const FIRST: Duration = Duration::from_millis(20);
/// No pause is longer.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// Numbers that look random, by SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to before 1.
    fn fraction(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Pauses that double with every failure, each shortened by chance to between a half and the whole, so that hosts that have lost each other together do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    dice: Dice,
}

impl Backoff {
    pub(super) fn new(dice: Dice) -> Self {
        Self { failures: 0, dice }
    }

    /// A try has succeeded.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after a try that has failed.
    pub(super) fn pause(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        whole.mul_f64(0.5 + self.dice.fraction() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(Dice::new(7));
        for round in 0..2 {
            for whole_ms in [20, 40, 80, 160, 320, 640, 1000, 1000, 1000] {
                let pause = backoff.pause();
                let whole = Duration::from_millis(whole_ms);
                assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?} in round {round}");
            }
            backoff.reset();
        }
    }

    #[test]
    fn pauses_follow_from_the_seed_and_differ_between_seeds() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(Dice::new(seed));
            (0..8).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
