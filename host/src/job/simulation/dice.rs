//! Chance from a seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

/// A sequence of numbers that its seed decides.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `limit`, which is at least 1.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True once in `of` times.
    pub(super) fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Another sequence.
    pub(super) fn split(&mut self) -> Self {
        Self(self.next())
    }
}
