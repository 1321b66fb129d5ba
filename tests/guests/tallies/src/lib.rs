//! A function for tests of reloads: it counts each key's records, and says which release of it did.
//!
//! Tests make releases of it by writing other digits into the component's bytes: see [`RELEASE`].

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Table};

const TALLIES: Table<Fixed<u64>> = Table::new("tallies");

/// The eight digits behind the word are the release's number.
static RELEASE: [u8; 16] = *b"RELEASE=00000000";

fn release() -> String {
    // SAFETY: it reads a static. The compiler must not know what is in it.
    let bytes = unsafe { std::ptr::read_volatile(&RELEASE) };
    String::from_utf8_lossy(&bytes[8..]).trim_start_matches('0').to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The first release that refuses this config.
    #[serde(default)]
    refused_from: Option<u64>,
}

#[derive(Serialize)]
struct Tally {
    n: u64,
    by: u64,
}

struct Tallies {
    release: u64,
}

impl Function for Tallies {
    fn describe() -> Description {
        let version = format!("1.0.{}", if release().is_empty() { "0".to_owned() } else { release() });
        Description::new("tallies", version.leak()).table(&TALLIES)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let Settings { refused_from } = config.parse()?;
        let release = release().parse().unwrap_or_default();
        if refused_from.is_some_and(|refused| release >= refused) {
            return Err(format!("release {release} wants another config"));
        }
        Ok(Self { release })
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let n = context.state(&TALLIES)?.update(|count| {
            *count += 1;
            *count
        });
        context.emit_json(record.key(), &Tally { n, by: self.release })
    }
}

wasmill_sdk::export!(Tallies);
