//! A function that reads the value of each record's key from the table `held`, writes it back changed, and emits nothing. A value has 64
//! bytes: a number that grows with each batch that has the key, then the key again and again.
//!
//! It is written against the bare contract: the SDK's share is measured with the examples.

wit_bindgen::generate!({ path: "../../../wit", world: "operator" });

use wasmill::operator::description::Table;
use wasmill::operator::state;
use wasmill::operator::types::Column;

const HELD: &str = "held";
const VALUE_BYTES: usize = 64;
const COUNT_BYTES: usize = 8;

struct Hold;

impl Guest for Hold {
    fn describe() -> Descriptor {
        let (name, version) = ("bench-hold".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let tables = vec![Table { name: HELD.to_owned(), schema_version: 1 }];
        Descriptor { name, version, tables, ports: Vec::new() }
    }

    fn init(_config: String) -> Result<(), String> {
        Ok(())
    }

    fn process(input: Batch) -> Result<(), String> {
        let keys = &input.keys;
        let records: Vec<u32> = (0..keys.ends.len() as u32).collect();
        let stored = state::get_many(HELD, keys).map_err(|error| format!("get-many was refused: {error:?}"))?;
        let mut values = Column { bytes: Vec::with_capacity(records.len() * VALUE_BYTES), ends: Vec::new() };
        let mut start = 0;
        for ((&end, old), &present) in keys.ends.iter().zip(items(&stored.items)).zip(&stored.present) {
            append_value(&mut values.bytes, &keys.bytes[start..end as usize], count_of(old, present));
            values.ends.push(values.bytes.len() as u32);
            start = end as usize;
        }
        state::put_many(HELD, keys, &values, &records).map_err(|error| format!("put-many was refused: {error:?}"))
    }
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

export!(Hold);
