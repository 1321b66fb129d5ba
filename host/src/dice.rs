//! Chance from a seed, for simulations, and which seeds they run with. For tests only.
//!
//! `WASMILL_SEED=N` has a simulation run with that seed alone, `WASMILL_SEEDS=N` with so many instead of its own number. A run that fails tells its seed.

use std::ops::Range;

/// The seeds to run with: so many, unless the environment says otherwise.
pub(crate) fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("it is a number"));
    match number("WASMILL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WASMILL_SEEDS").unwrap_or(count),
    }
}

/// Tells the seed when it is dropped: to be forgotten by a run that has ended well.
pub(crate) struct Told(pub(crate) u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("the simulation failed with WASMILL_SEED={}", self.0);
    }
}

/// A sequence of numbers that its seed decides: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `limit`, which is at least 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True once in `of` times.
    pub(crate) fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Another sequence.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }
}
