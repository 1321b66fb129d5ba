//! Numbers that look random and follow from a seed, so that every run makes the same input.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }

    /// Two different numbers below `sides`, which is more than 1.
    pub fn roll_two(&mut self, sides: u64) -> (u64, u64) {
        let (first, step) = (self.roll(sides), 1 + self.roll(sides - 1));
        (first, (first + step) % sides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_are_different_and_below_the_sides() {
        let mut dice = Dice(1);
        for _ in 0..1_000 {
            let (one, other) = dice.roll_two(3);
            assert!(one != other && one < 3 && other < 3);
        }
    }
}
