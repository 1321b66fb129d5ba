//! A function that hands its input's columns back as they came: no copy, only the list of record indices is made. What is measured
//! around it is the host's.
//!
//! It is written against the bare contract: the SDK's share is measured with the examples.

wit_bindgen::generate!({ path: "../../../wit", world: "operator" });

use wasmill::operator::output;

struct Echo;

impl Guest for Echo {
    fn describe() -> Descriptor {
        let (name, version) = ("bench-echo".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Descriptor { name, version, tables: Vec::new(), ports: Vec::new() }
    }

    fn init(_config: String) -> Result<(), String> {
        Ok(())
    }

    fn process(input: Batch) -> Result<(), String> {
        let records: Vec<u32> = (0..input.times.len() as u32).collect();
        output::emit("out", &input, &records).map_err(|error| format!("emit was refused: {error:?}"))
    }
}

export!(Echo);
