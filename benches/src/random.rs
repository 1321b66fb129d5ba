//! Random numbers that any record's index gives directly, so that a file can be made, checked and extended anywhere.
//!
//! SplitMix64 (Guy Steele, Doug Lea, Christine Flood: "Fast splittable pseudorandom number generators", 2014), whose `n`-th
//! output is a mixing function of `seed + n * GAMMA`.

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream that belongs to item `index` of what `seed` makes.
    pub fn of_item(seed: u64, index: u64) -> Self {
        Self { state: mix(seed ^ mix(index.wrapping_add(GAMMA))) }
    }

    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// A number from 0 up to, but not including, `bound` (at least 1).
    ///
    /// The high bits of a product stand for the division (Lemire's reduction, without its correction: the bias is below
    /// `bound / 2^64`).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// A bijection of the 64-bit numbers that leaves no pattern of its input.
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_splitmix64() {
        // The widely published outputs of SplitMix64 for the seed 1234567.
        let mut random = Random { state: 1_234_567 };
        assert_eq!(
            [random.next(), random.next(), random.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let mut random = Random::of_item(1, 1);
        let drawn: Vec<u64> = (0..1_000).map(|_| random.below(7)).collect();
        assert_eq!(drawn.iter().min(), Some(&0));
        assert_eq!(drawn.iter().max(), Some(&6));
    }
}
