//! A function for tests that keeps a table which others may use, and uses one itself, as its `config` says.
//!
//! It keeps `values` (open and ordered), uses a table that it calls `other`, and emits on `out`, `done` (outcomes of updates) and `again` (for
//! loops). So one component serves as the owner of a table, as its user, and as both: `uses.other` may be its own table.
//!
//! Its records are JSON objects; their fields say what is to be done with which key (see [`record::Request`]), the config's `mode` says what (see
//! [`config::Mode`]). A call that is refused fails the batch with what the host said, so that a test finds it in the dead letter.
//!
//! It is written against the bare contract, without the SDK, so that it can break it.

mod columns;
mod config;
mod fault;
mod record;
mod work;

use std::cell::RefCell;

use config::Config;
use wasmill::operator::declare;
use wasmill::operator::description::Table;

wit_bindgen::generate!({ path: "../../../wit", world: "operator" });

thread_local! {
    static CONFIG: RefCell<Config> = RefCell::default();
}

struct Others;

impl Guest for Others {
    fn describe() -> Descriptor {
        declare::open_table(work::OWN);
        declare::ordered_table(work::OWN);
        declare::uses_table(work::OTHER);
        Descriptor {
            name: "others".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tables: vec![Table { name: work::OWN.to_owned(), schema_version: 1 }],
            ports: vec![work::DONE.to_owned(), work::AGAIN.to_owned()],
        }
    }

    fn init(config: String) -> Result<(), String> {
        CONFIG.set(Config::parse(&config)?);
        Ok(())
    }

    fn process(input: Batch) -> Result<(), String> {
        CONFIG.with_borrow(|config| work::process(config, &input))
    }
}

export!(Others);
