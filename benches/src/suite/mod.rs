//! The measurements, in the order in which they run.

mod checkpoint;
mod cluster;
mod languages;
mod pass_through;
mod readers;
mod start;
mod tables;
mod throughput;

use crate::bench::Group;

/// All groups.
pub const GROUPS: &[Group] = &[
    throughput::BID_EURO,
    throughput::BID_STATS,
    pass_through::GROUP,
    checkpoint::GROUP,
    tables::GROUP,
    readers::GROUP,
    cluster::GROUP,
    languages::GROUP,
    start::GROUP,
];

/// Nanoseconds a record: `seconds` over `records`.
fn nanoseconds_a_record(seconds: f64, records: u64) -> f64 {
    seconds * 1e9 / records as f64
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_converted() {
        assert!((nanoseconds_a_record(0.75, 5_000_000) - 150.0).abs() < 1e-9);
        assert!((mebibytes(262_144_000) - 250.0).abs() < 1e-9);
    }
}
