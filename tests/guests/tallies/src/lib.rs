//! A function for tests of reloads: it counts each key's records, and says which release of it did.
//!
//! Tests make releases of it by writing other digits into the component's bytes: see [`RELEASE`] and [`SCHEMA`].

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Fixed, Function, Json, Record, Reject, Table};

const FIRST: Table<Fixed<u64>> = Table::new("tallies");
const SECOND: Table<Json<Vec<u64>>> = Table::new("tallies").schema_version(2);
const THIRD: Table<Fixed<(u64, u64)>> = Table::new("tallies").schema_version(3);

/// The eight digits behind the word are the release's number.
static RELEASE: [u8; 16] = *b"RELEASE=00000000";
/// The digit behind the word is the schema version; `+` behind it says that there are ways up to it, `-` that there are also ways down, and `!` that there is none.
static SCHEMA: [u8; 9] = *b"SCHEMA=1+";

fn release() -> u64 {
    // SAFETY: it reads a static. The compiler must not know what is in it.
    let bytes = unsafe { std::ptr::read_volatile(&RELEASE) };
    String::from_utf8_lossy(&bytes[8..]).parse().unwrap_or_default()
}

fn schema() -> (u8, u8) {
    // SAFETY: as above.
    let bytes = unsafe { std::ptr::read_volatile(&SCHEMA) };
    (bytes[7], bytes[8])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The first release that refuses this config.
    #[serde(default)]
    refused_from: Option<u64>,
    /// The first release that panics on records of the key `k13`.
    #[serde(default)]
    panics_from: Option<u64>,
    /// The first release that takes its time.
    #[serde(default)]
    slow_from: Option<u64>,
}

#[derive(Serialize)]
struct Tally {
    n: u64,
    by: u64,
}

struct Tallies {
    release: u64,
    schema: u8,
    panics: bool,
    is_slow: bool,
}

impl Function for Tallies {
    fn describe() -> Description {
        let version = format!("1.0.{}", release());
        let description = Description::new("tallies", version.leak());
        let (schema, ways) = schema();
        let description = match schema {
            b'1' => description.table(&FIRST).ordered(&FIRST),
            b'2' => description.table(&SECOND).ordered(&SECOND),
            _ => description.table(&THIRD).ordered(&THIRD),
        };
        let up = |description: Description| {
            let description = description.migrates(&FIRST, &SECOND, |count| vec![count]);
            description.migrates(&SECOND, &THIRD, |counts| (counts.iter().sum(), 3))
        };
        let down = |description: Description| {
            let description = description.migrates(&SECOND, &FIRST, |counts| counts.iter().sum());
            description.migrates(&THIRD, &SECOND, |(count, _)| vec![count])
        };
        match ways {
            b'+' => up(description),
            b'-' => down(up(description)),
            _ => description,
        }
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let Settings { refused_from, panics_from, slow_from } = config.parse()?;
        let release = release();
        let is_from = |first: Option<u64>| first.is_some_and(|first| release >= first);
        if is_from(refused_from) {
            return Err(format!("release {release} wants another config"));
        }
        Ok(Self { release, schema: schema().0, panics: is_from(panics_from), is_slow: is_from(slow_from) })
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        assert!(!self.panics || record.key() != b"k13", "this release knows no k13");
        if self.is_slow {
            (0..100_000u32).for_each(|turn| _ = std::hint::black_box(turn));
        }
        let n = match self.schema {
            b'1' => context.state(&FIRST)?.update(|count| {
                *count += 1;
                *count
            }),
            b'2' => context.state(&SECOND)?.update(|counts| {
                counts.push(1);
                let count = counts.iter().sum();
                *counts = vec![count];
                count
            }),
            _ => context.state(&THIRD)?.update(|(count, _)| {
                *count += 1;
                *count
            }),
        };
        context.emit_json(record.key(), &Tally { n, by: self.release })
    }
}

wasmill_sdk::export!(Tallies);
