//! Departure delays of flights, kept per whatever the operator is keyed by: aircraft or carrier.
//!
//! One component serves both: the manifest keys one operator by `/tailnum` and another by `/carrier`, and tells each by `config`
//! what to call its groups.
#![warn(missing_docs)]

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Function, Json, Record, Reject, Table};

/// The delays of each group. As JSON, so that the state can be read from outside.
pub const DELAYS: Table<Json<Delays>> = Table::new("delays");

/// How the data say that a value is missing.
const MISSING: &str = "NA";

/// The operator's `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    /// What the groups are, for the lines of output.
    by: String,
    /// The delay from which a flight counts as delayed.
    delayed_from_minutes: i64,
}

/// The part of a flight that matters here. CSV gives every field as a string.
#[derive(Debug, Deserialize)]
struct Flight<'a> {
    #[serde(borrow)]
    dep_delay: Cow<'a, str>,
}

/// What is known of a group's flights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delays {
    /// How many were planned.
    pub flights: u64,
    /// How many of them never left.
    pub cancelled: u64,
    /// How many left late.
    pub delayed: u64,
    /// The delays of all that left, early departures counting less than nothing.
    pub total_minutes: i64,
    /// The longest delay of those that left.
    pub longest_minutes: Option<i64>,
}

impl Delays {
    fn add(&mut self, delay_minutes: Option<i64>, delayed_from_minutes: i64) {
        self.flights += 1;
        let Some(delay) = delay_minutes else {
            self.cancelled += 1;
            return;
        };
        self.delayed += u64::from(delay >= delayed_from_minutes);
        self.total_minutes = self.total_minutes.saturating_add(delay);
        self.longest_minutes = self.longest_minutes.max(Some(delay));
    }

    fn mean_minutes(&self) -> Option<f64> {
        let left = self.flights - self.cancelled;
        (left > 0).then(|| (10.0 * self.total_minutes as f64 / left as f64).round() / 10.0)
    }
}

/// A line of output: a group's figures so far.
#[derive(Debug, Serialize)]
struct Line<'a> {
    by: &'a str,
    name: &'a str,
    flights: u64,
    cancelled: u64,
    delayed: u64,
    mean_minutes: Option<f64>,
    longest_minutes: Option<i64>,
}

/// Keeps the delays of the groups that its input is keyed by.
#[derive(Debug)]
pub struct FlightDelays {
    settings: Settings,
}

impl Function for FlightDelays {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&DELAYS)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        Ok(Self { settings: config.parse()? })
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let name = record.key_text()?;
        if name == MISSING {
            // Flights that were cancelled before an aircraft was chosen belong to no group.
            context.count("without-group", 1);
            return Ok(());
        }
        let flight: Flight<'_> = record.json()?;
        let delay_minutes = delay(&flight.dep_delay)?;
        let mut delays = context.state(&DELAYS)?;
        let delays = delays.or_default();
        delays.add(delay_minutes, self.settings.delayed_from_minutes);
        let line = Line {
            by: &self.settings.by,
            name,
            flights: delays.flights,
            cancelled: delays.cancelled,
            delayed: delays.delayed,
            mean_minutes: delays.mean_minutes(),
            longest_minutes: delays.longest_minutes,
        };
        context.emit_json(name, &line)
    }
}

/// The delay in minutes, `None` for a flight that never left.
fn delay(text: &str) -> Result<Option<i64>, Reject> {
    if text == MISSING {
        return Ok(None);
    }
    let minutes = text.parse().map_err(|error| Reject::new(format_args!("`dep_delay` is `{text}`: {error}")))?;
    Ok(Some(minutes))
}

wasmill_sdk::export!(FlightDelays);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, Input, record};

    fn harness() -> Harness<FlightDelays> {
        Harness::new(r#"{"by": "carrier", "delayed-from-minutes": 15}"#)
    }

    fn flight(key: &str, delay: &str) -> Input {
        record(key, format!(r#"{{"year":"2013","dep_delay":"{delay}","carrier":"UA","tailnum":"N14228"}}"#))
    }

    #[test]
    fn early_late_and_cancelled_flights_are_told_apart() {
        let mut harness = harness();
        let outcome = harness.process([flight("UA", "-4"), flight("UA", "NA"), flight("UA", "15"), flight("UA", "14")]);
        assert!(outcome.rejected.is_empty());
        let last = r#"{"by":"carrier","name":"UA","flights":4,"cancelled":1,"delayed":1,"mean_minutes":8.3,"longest_minutes":15}"#;
        assert_eq!(outcome.texts().last().map(String::as_str), Some(last));
        let expected = Delays { flights: 4, cancelled: 1, delayed: 1, total_minutes: 25, longest_minutes: Some(15) };
        assert_eq!(harness.state(&DELAYS, "UA"), Some(expected));
    }

    #[test]
    fn a_group_of_cancelled_flights_has_no_mean() {
        let outcome = harness().process([flight("OO", "NA")]);
        let line = r#"{"by":"carrier","name":"OO","flights":1,"cancelled":1,"delayed":0,"mean_minutes":null,"longest_minutes":null}"#;
        assert_eq!(outcome.texts(), [line]);
    }

    #[test]
    fn flights_without_an_aircraft_are_counted_and_left_out() {
        let outcome = harness().process([flight("NA", "NA"), flight("N14228", "2")]);
        assert_eq!(outcome.emitted.len(), 1);
        assert_eq!(outcome.counts["without-group"], 1);
    }

    #[test]
    fn a_delay_that_is_no_number_refuses_the_flight() {
        let outcome = harness().process([flight("UA", "soon"), flight("UA", "3")]);
        assert_eq!(outcome.rejected[0].reason, "`dep_delay` is `soon`: invalid digit found in string");
        assert_eq!(outcome.emitted.len(), 1);
    }
}
