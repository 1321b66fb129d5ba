//! Keys to partitions: the stable hash that decides who owns a key.
//!
//! The hash is part of the on-disk format: state is stored by partition, so a job's state outlives the process only as
//! long as equal keys keep hashing alike. It is XXH3-64 (Yann Collet's xxHash, seed 0, as its specification fixes it) of
//! the key's bytes, the same on every platform. A partition is the hash modulo the job's number of partitions.

use xxhash_rust::xxh3::xxh3_64;

/// The 64-bit hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The hash of `key`.
    pub fn of(key: &[u8]) -> Self {
        Self(xxh3_64(key))
    }

    /// The partition that owns the key, of `partitions` in all (at least 1).
    pub fn partition(self, partitions: u16) -> Partition {
        Partition((self.0 % u64::from(partitions)) as u16)
    }

    /// A value for hash tables that hold the keys of one partition: the bits that the partition fixes are moved out of the
    /// places that such tables look at.
    pub fn for_table(self) -> u64 {
        self.0.rotate_right(24)
    }
}

/// A unit of ownership: 0 up to the job's number of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_xxh3() {
        // Test vector of the xxHash reference implementation: XXH3_64bits of no bytes.
        assert_eq!(KeyHash::of(b"").0, 0x2D06_8005_38D3_94C2);
    }

    #[test]
    fn hashes_that_would_be_negative_as_signed_numbers_spread_over_all_partitions() {
        for partitions in [1, 3, 7, 128, u16::MAX] {
            let hashes = (0..20_000u32).map(|id| KeyHash::of(&id.to_le_bytes())).filter(|hash| hash.0 >> 63 == 1);
            let owners: std::collections::BTreeSet<Partition> = hashes.map(|hash| hash.partition(partitions)).collect();
            assert!(owners.iter().all(|owner| owner.0 < partitions));
            assert!(partitions == u16::MAX || owners.len() == usize::from(partitions), "{partitions}");
        }
    }

    #[test]
    fn ids_that_are_multiples_of_a_hundred_spread() {
        let partitions = 64;
        let mut counts = vec![0u32; usize::from(partitions)];
        for id in 0..64_000u64 {
            let partition = KeyHash::of((id * 100).to_string().as_bytes()).partition(partitions);
            counts[usize::from(partition.0)] += 1;
        }
        assert!(counts.iter().all(|&count| (800..1_200).contains(&count)), "{counts:?}");
    }
}
