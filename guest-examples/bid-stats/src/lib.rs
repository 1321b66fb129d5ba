//! Count, maximum and mean of the prices bid for each auction: one line of running results for each bid.
#![warn(missing_docs)]

use serde::Serialize;
use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Table};

wasmill_sdk::fixed! {
    /// What is known of an auction's bids.
    pub struct Stats {
        /// How many there were.
        pub count: u64,
        /// The highest price.
        pub maximum: u64,
        /// The sum of the prices.
        pub total: u64,
    }
}

/// What is known of each auction.
pub const STATS: Table<Fixed<Stats>> = Table::new("stats");

/// A line of output.
#[derive(Debug, Serialize)]
struct Line {
    auction: u64,
    count: u64,
    maximum: u64,
    mean: f64,
}

/// Keeps statistics of bids; its input is keyed by auction.
#[derive(Debug)]
pub struct BidStats;

impl Function for BidStats {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&STATS)
    }

    fn init(_config: Config<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let [auction, price] = record.members(["auction", "price"])?;
        let (auction, price) = (auction.json()?, price.json()?);
        let mut stats = context.state(&STATS)?;
        let total = stats.get().map_or(0, |stats| stats.total).checked_add(price);
        let total = total.ok_or_else(|| Reject::new("the sum of this auction's prices passes 2^64"))?;
        let stats = stats.or_default();
        stats.count += 1;
        stats.maximum = stats.maximum.max(price);
        stats.total = total;
        let mean = stats.total as f64 / stats.count as f64;
        context.emit_json(record.key(), &Line { auction, count: stats.count, maximum: stats.maximum, mean })
    }
}

wasmill_sdk::export!(BidStats);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, Input, record};

    fn bid(auction: u64, price: u64) -> Input {
        let value = format!(r#"{{"auction":{auction},"bidder":1,"price":{price},"channel":"Apple","extra":""}}"#);
        record(auction.to_string(), value)
    }

    #[test]
    fn each_bid_brings_the_running_figures_of_its_auction() {
        let mut harness = Harness::<BidStats>::new("{}");
        let outcome = harness.process([bid(1, 10), bid(2, 7), bid(1, 25)]);
        let expected = [
            r#"{"auction":1,"count":1,"maximum":10,"mean":10.0}"#,
            r#"{"auction":2,"count":1,"maximum":7,"mean":7.0}"#,
            r#"{"auction":1,"count":2,"maximum":25,"mean":17.5}"#,
        ];
        assert_eq!(outcome.texts(), expected);
        let outcome = harness.process([bid(1, 1)]);
        assert_eq!(outcome.texts(), [r#"{"auction":1,"count":3,"maximum":25,"mean":12.0}"#]);
        assert_eq!(harness.state(&STATS, "1"), Some(Stats { count: 3, maximum: 25, total: 36 }));
    }

    #[test]
    fn bids_that_cannot_be_read_or_added_are_refused_alone() {
        let mut harness = Harness::<BidStats>::new("{}");
        let outcome = harness.process([bid(1, u64::MAX), bid(1, 1), record("1", "{}"), bid(2, 3)]);
        let refused: Vec<usize> = outcome.rejected.iter().map(|rejected| rejected.index).collect();
        assert_eq!(refused, [1, 2]);
        assert_eq!(outcome.emitted.len(), 2);
        assert_eq!(harness.state(&STATS, "1"), Some(Stats { count: 1, maximum: u64::MAX, total: u64::MAX }));
    }
}
