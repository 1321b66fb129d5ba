//! A function for tests that does one thing wrong, on demand.
//!
//! Its `config` chooses:
//! - `work`: what it does with good records, `echo` (default: each record as it came) or `count` (see [`work::count`]);
//! - `mode`: what it does when a *bad* record comes, see [`config::Mode`];
//! - `every`: a bad record is one whose value contains the word `poison` or, with `every = n`, one whose first number
//!   is a multiple of n;
//! - `columns`: what is wrong with the columns of mode `bad-columns`.
//!
//! Whether a record is bad follows from its value alone, so that a batch that is run again or halved meets the same fate.
//! It is written against the bare contract, without the SDK, because the SDK would keep it from misbehaving.

mod columns;
mod config;
mod mischief;
mod work;

use std::cell::RefCell;

use config::{Config, Mode};

wit_bindgen::generate!({ path: "../../../wit", world: "operator" });

thread_local! {
    static CONFIG: RefCell<Config> = RefCell::default();
}

struct Misbehaving;

impl Guest for Misbehaving {
    fn describe() -> Descriptor {
        Descriptor {
            name: "misbehaving".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tables: vec![wasmill::operator::description::Table { name: work::COUNTS.to_owned(), schema_version: 1 }],
            ports: Vec::new(),
        }
    }

    fn init(config: String) -> Result<(), String> {
        let config = Config::parse(&config)?;
        if config.mode == Mode::InitError {
            return Err("told by its config to refuse its config".to_owned());
        }
        CONFIG.set(config);
        Ok(())
    }

    fn process(input: Batch) -> Result<(), String> {
        CONFIG.with_borrow(|config| mischief::process(config, &input))
    }
}

export!(Misbehaving);
