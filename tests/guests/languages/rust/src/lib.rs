//! The behaviour that functions of all languages are compared by: what the guests of the other languages do, this one does.
//!
//! `config.mode` chooses: `count` counts by key, `join` looks the key up in a table of another operator, `fail` fails as the value says, and `echo` gives back what it is given.

use serde::Deserialize;
use wasmill_sdk::{Config, Context, Description, Function, Raw, Record, Reject, Table, UsedTable, Wants};

/// Counts as decimal text.
const COUNTS: Table<Raw> = Table::new("counts");
const OTHERS: UsedTable<Raw> = UsedTable::new("others");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Count,
    Join,
    Fail,
    Echo,
}

#[derive(Deserialize)]
struct Behaviour {
    mode: Mode,
}

impl Function for Behaviour {
    fn describe() -> Description {
        Description::new("behaviour", env!("CARGO_PKG_VERSION")).table(&COUNTS).uses(&OTHERS)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        config.parse()
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        if self.mode == Mode::Join {
            wants.lookup(&OTHERS, record.key());
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        match (self.mode, record.value()) {
            (Mode::Count, _) => count(record, context)?,
            (Mode::Join, _) => join(record, context)?,
            (Mode::Fail, b"reject") => return Err(Reject::new("told to")),
            (Mode::Fail, b"trap") => panic!("told to trap"),
            (Mode::Fail, b"loop") => endless(),
            (Mode::Fail | Mode::Echo, value) => {
                context.emit(record.key(), value);
                context.count("echoed", 1);
            }
        }
        Ok(())
    }
}

fn count(record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
    let mut counted = context.state(&COUNTS)?;
    let before = counted.get().map_or(Ok(0), |text| String::from_utf8_lossy(text).parse::<u64>())?;
    let now = (before + 1).to_string();
    counted.put(now.clone().into_bytes());
    context.emit(record.key(), now);
    Ok(())
}

fn join(record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
    let found = context.lookup(&OTHERS, record.key())?.unwrap_or_else(|| b"-".to_vec());
    context.emit(record.key(), [record.key(), b"=", &found].concat());
    Ok(())
}

fn endless() -> ! {
    let mut rounds = 0_u64;
    loop {
        rounds = std::hint::black_box(rounds.wrapping_add(1));
    }
}

wasmill_sdk::export!(Behaviour);
