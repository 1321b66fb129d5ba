//! Converts the price of Nexmark bids to euros. Stateless; everything but the price passes through as it stands.
//!
//! The price is found, and the bytes around it are copied: neither reading all other fields nor writing them again would add
//! anything but cost.
#![warn(missing_docs)]

use serde::Deserialize;
use wasmill_sdk::{Config, Context, Description, Function, Record, Reject};

/// The operator's `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Euros for one unit of the price.
    rate: f64,
}

/// Converts prices at one rate.
#[derive(Debug)]
pub struct BidEuro {
    rate: f64,
}

impl Function for BidEuro {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let Settings { rate } = config.parse()?;
        Ok(Self { rate })
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let [price] = record.members(["price"])?;
        let euros = price.json::<u64>()? as f64 * self.rate;
        let (before, after) = price.around();
        context.emit_with(record.key(), |line| {
            line.extend_from_slice(before);
            line.push_json(&euros)?;
            line.extend_from_slice(after);
            Ok(())
        })
    }
}

wasmill_sdk::export!(BidEuro);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, record};

    fn check(value: &str, expected: &str) {
        let outcome = Harness::<BidEuro>::new(r#"{"rate": 0.5}"#).process([record("7", value).at(42)]);
        assert_eq!(outcome.texts(), [expected]);
        assert_eq!((outcome.emitted[0].key_text().as_str(), outcome.emitted[0].time), ("7", Some(42)));
    }

    fn check_refused(value: &str, reason: &str) {
        let outcome = Harness::<BidEuro>::new(r#"{"rate": 0.5}"#).process([record("7", value)]);
        assert!(outcome.emitted.is_empty());
        assert!(outcome.rejected[0].reason.contains(reason), "{}", outcome.rejected[0].reason);
    }

    #[test]
    fn only_the_price_changes() {
        let rest = r#""channel":"a \"price\":1 b","url":"https://x/?q=1","dateTime":1700000000000,"extra":"\u00fc""#;
        let bid = |price| format!(r#"{{"auction":7,"bidder":2,"price":{price},{rest}}}"#);
        check(&bid("101"), &bid("50.5"));
        check(&bid("100"), &bid("50.0"));
        check(r#"{ "price" : 3 }"#, r#"{ "price" : 1.5 }"#);
        check(r#"{"inner":{"price":8},"price":4}"#, r#"{"inner":{"price":8},"price":2.0}"#);
    }

    #[test]
    fn bids_without_a_whole_price_are_refused() {
        check_refused(r#"{"auction":7}"#, "no member `price`");
        check_refused(r#"{"price":"12"}"#, "expected u64");
        check_refused(r#"{"price":1.5}"#, "expected u64");
        check_refused(r#"{"auction""#, "no JSON object");
    }
}
