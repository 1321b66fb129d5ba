//! A function that does next to nothing, so that what is measured around it is the host's.
//!
//! Its config's `work` chooses:
//! - `echo` hands its input's columns back as they came: no copy, only the list of record indices is made;
//! - `hold` reads the value of each record's key from the table `held`, writes it back changed, and emits nothing. A value has 64 bytes:
//!   a number that grows with each batch that has the key, then the key again and again.
//!
//! It is written against the bare contract: the SDK's share is measured with the examples.

use std::cell::Cell;

wit_bindgen::generate!({ path: "../../wit", world: "operator" });

use wasmill::operator::description::Table;
use wasmill::operator::types::Column;
use wasmill::operator::{output, state};

const HELD: &str = "held";
const VALUE_BYTES: usize = 64;
const COUNT_BYTES: usize = 8;

thread_local! {
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

struct BenchGuest;

impl Guest for BenchGuest {
    fn describe() -> Descriptor {
        Descriptor {
            name: "bench-guest".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tables: vec![Table { name: HELD.to_owned(), schema_version: 1 }],
            ports: Vec::new(),
        }
    }

    fn init(config: String) -> Result<(), String> {
        // The config is ours and has one word to find: no parser for it.
        match (config.contains(r#""echo""#), config.contains(r#""hold""#)) {
            (true, false) => HOLDS.set(false),
            (false, true) => HOLDS.set(true),
            _ => return Err(format!("`work` is to be `echo` or `hold`, and the config is {config}")),
        }
        Ok(())
    }

    fn process(input: Batch) -> Result<(), String> {
        let records: Vec<u32> = (0..input.times.len() as u32).collect();
        if HOLDS.get() {
            hold(&input.keys, &records)
        } else {
            output::emit("out", &input, &records).map_err(|error| format!("emit was refused: {error:?}"))
        }
    }
}

fn hold(keys: &Column, records: &[u32]) -> Result<(), String> {
    let stored = state::get_many(HELD, keys).map_err(|error| format!("get-many was refused: {error:?}"))?;
    let mut values = Column { bytes: Vec::with_capacity(records.len() * VALUE_BYTES), ends: Vec::new() };
    let mut start = 0;
    for ((&end, old), &present) in keys.ends.iter().zip(items(&stored.items)).zip(&stored.present) {
        append_value(&mut values.bytes, &keys.bytes[start..end as usize], count_of(old, present));
        values.ends.push(values.bytes.len() as u32);
        start = end as usize;
    }
    state::put_many(HELD, keys, &values, records).map_err(|error| format!("put-many was refused: {error:?}"))
}

fn items(column: &Column) -> impl Iterator<Item = &[u8]> {
    let starts = std::iter::once(0).chain(column.ends.iter().copied());
    starts.zip(&column.ends).map(|(start, &end)| &column.bytes[start as usize..end as usize])
}

fn count_of(value: &[u8], present: u8) -> u64 {
    match value.first_chunk::<COUNT_BYTES>() {
        Some(count) if present == 1 => u64::from_le_bytes(*count),
        _ => 0,
    }
}

fn append_value(bytes: &mut Vec<u8>, key: &[u8], count: u64) {
    bytes.extend_from_slice(&(count + 1).to_le_bytes());
    bytes.extend(key.iter().cycle().take(VALUE_BYTES - COUNT_BYTES));
}

export!(BenchGuest);
