//! A function for tests, written with the SDK as users do, that keeps prices by event time, or asks another operator for the price at the time of its records.
//!
//! Its config's `mode` says which. It keeps `values` (open, versioned for an hour) in every mode, and uses a table that it calls `prices`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Function, Json, Record, Reject, Table, UsedTable, Wants};

const VALUES: Table<Json<i64>> = Table::new("values");
const PRICES: UsedTable<Json<i64>> = UsedTable::new("prices");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// Keeps `n` as the value of the record's key, or removes it where `n` is null.
    Keep,
    /// Emits the record's `n` with the price of its key at its time, as far as it is known by now, and keeps the price as its own value.
    Ask,
    /// The same, once the price is known for certain.
    AskWaiting,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    mode: Mode,
}

#[derive(Deserialize)]
struct Order {
    n: Option<i64>,
}

#[derive(Serialize)]
struct Answer {
    n: Option<i64>,
    price: Option<i64>,
}

struct Prices {
    mode: Mode,
}

impl Function for Prices {
    fn describe() -> Description {
        let own = Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&VALUES).open(&VALUES);
        own.versioned(&VALUES, Duration::from_secs(3_600)).uses(&PRICES)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let Settings { mode } = config.parse()?;
        Ok(Self { mode })
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        let time = record.time().unwrap_or_default();
        match self.mode {
            Mode::Keep => {}
            Mode::Ask => wants.lookup_as_of(&PRICES, record.key(), time),
            Mode::AskWaiting => wants.lookup_as_of_waiting(&PRICES, record.key(), time),
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let Order { n } = record.json()?;
        let time = record.time().ok_or_else(|| Reject::new("it has no time"))?;
        let price = match self.mode {
            Mode::Keep => {
                keep(context, n)?;
                return Ok(());
            }
            Mode::Ask => context.lookup_as_of(&PRICES, record.key(), time)?,
            Mode::AskWaiting => context.lookup_as_of_waiting(&PRICES, record.key(), time)?,
        };
        keep(context, price)?;
        context.emit_json(record.key(), &Answer { n, price })
    }
}

fn keep(context: &Context, value: Option<i64>) -> Result<(), Reject> {
    let mut own = context.state(&VALUES)?;
    match value {
        Some(value) => own.put(value),
        None => _ = own.delete(),
    }
    Ok(())
}

wasmill_sdk::export!(Prices);
