//! What the function does when it behaves.

use std::collections::HashMap;

use crate::columns::{Emitted, column, items};
use crate::wasmill::operator::types::Batch;
use crate::wasmill::operator::{output, state};

/// The table of the counts, in decimal digits.
pub const COUNTS: &str = "counts";

/// Emits the records of `chosen` as they came.
pub fn echo(input: &Batch, chosen: &[usize]) -> Result<(), String> {
    echo_times(input, chosen, 1)
}

/// Emits each record of `chosen` `times` times.
pub fn echo_times(input: &Batch, chosen: &[usize], times: usize) -> Result<(), String> {
    let (keys, values) = (items(&input.keys).collect::<Vec<_>>(), items(&input.values).collect::<Vec<_>>());
    let mut emitted = Emitted::default();
    for &index in chosen {
        for _ in 0..times {
            emitted.push(index, keys[index], values[index], input.times[index]);
        }
    }
    emit(emitted)
}

/// Counts the records of `chosen` by key, in the table [`COUNTS`], and emits each record's key with its new count.
pub fn count(input: &Batch, chosen: &[usize]) -> Result<(), String> {
    let all_keys = items(&input.keys).collect::<Vec<_>>();
    let keys = chosen.iter().map(|&index| all_keys[index]).collect::<Vec<_>>();
    let mut counts = stored_counts(&keys)?;
    let mut emitted = Emitted::default();
    let mut written = Vec::new();
    for (&index, &key) in chosen.iter().zip(&keys) {
        let count = counts.entry(key).or_default();
        *count += 1;
        emitted.push(index, key, count.to_string().as_bytes(), input.times[index]);
        written.push(count.to_string());
    }
    let causes = chosen.iter().map(|&index| index as u32).collect::<Vec<_>>();
    state::put_many(COUNTS, &column(&keys), &column(&written), &causes)
        .map_err(|error| format!("put-many was refused: {error:?}"))?;
    emit(emitted)
}

fn stored_counts<'a>(keys: &[&'a [u8]]) -> Result<HashMap<&'a [u8], u64>, String> {
    let stored = state::get_many(COUNTS, &column(keys)).map_err(|error| format!("get-many was refused: {error:?}"))?;
    let mut counts = HashMap::new();
    for ((key, item), present) in keys.iter().zip(items(&stored.items)).zip(&stored.present) {
        if *present == 1 {
            let text = std::str::from_utf8(item).map_err(|error| format!("stored count: {error}"))?;
            counts.insert(*key, text.parse().map_err(|error| format!("stored count `{text}`: {error}"))?);
        }
    }
    Ok(counts)
}

/// Emits on the port that every operator has.
pub fn emit(emitted: Emitted) -> Result<(), String> {
    let (batch, records) = emitted.into_columns();
    output::emit("out", &batch, &records).map_err(|error| format!("emit was refused: {error:?}"))
}
