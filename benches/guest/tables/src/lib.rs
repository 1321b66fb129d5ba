//! A function whose records name two keys: its own, and another that any task may own. What it does with them is its config's one word:
//!
//! - `own`: reads and writes the value of its own key;
//! - `lookup`: reads the value of the other key, and writes that of its own;
//! - `fan`: reads the values of 32 keys that follow from the other key, of all that there are;
//! - `name`: makes these 32 keys, and reads nothing;
//! - `update`: adds to the value of the other key, a vector of eight numbers;
//! - `nothing`.
//!
//! Lookups are live, or with `consistency = "bounded"` up to 100 ms old.
//!
//! A record's value is a line `own,other`, both keys 16 bytes long. It is written against the bare contract: the SDK's share is measured with the examples.

use std::cell::Cell;
use std::hint::black_box;

wit_bindgen::generate!({ path: "../../../wit", world: "operator" });

use wasmill::operator::description::Table;
use wasmill::operator::tables::{Consistency, Op};
use wasmill::operator::types::{Column, Error};
use wasmill::operator::{declare, isolation, state, tables};

const HELD: &str = "held";
const OTHERS: &str = "others";
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
/// The keys that there are: each is `mix` of a number below this, in hexadecimal digits.
const KEYS: u64 = 1_000_000;
const FAN: u64 = 32;
const BOUND_MS: u64 = 100;

#[derive(Clone, Copy)]
enum Work {
    Own,
    Lookup,
    Fan,
    Name,
    Update,
    Nothing,
}

thread_local! {
    static WORK: Cell<Work> = const { Cell::new(Work::Nothing) };
    static BOUNDED: Cell<bool> = const { Cell::new(false) };
}

struct Tables;

impl Guest for Tables {
    fn describe() -> Descriptor {
        declare::open_table(HELD);
        declare::uses_table(OTHERS);
        declare::apart();
        let (name, version) = ("bench-tables".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let tables = vec![Table { name: HELD.to_owned(), schema_version: 1 }];
        Descriptor { name, version, tables, ports: Vec::new() }
    }

    fn init(config: String) -> Result<(), String> {
        let words = [
            ("own", Work::Own),
            ("lookup", Work::Lookup),
            ("fan", Work::Fan),
            ("name", Work::Name),
            ("update", Work::Update),
            ("nothing", Work::Nothing),
        ];
        let work = words.into_iter().find(|(word, _)| config.contains(&format!("\"{word}\"")));
        WORK.set(work.ok_or("`work` must be own, lookup, fan, name, update or nothing")?.1);
        BOUNDED.set(config.contains("\"bounded\""));
        Ok(())
    }

    fn process(input: Batch) -> Result<(), String> {
        let work = WORK.get();
        let done = match work {
            Work::Own => own(&input),
            Work::Lookup => lookup(&input),
            Work::Fan => tables::get_many(OTHERS, &fan(&input), &consistency()).map(drop),
            Work::Name => {
                black_box(fan(&input));
                Ok(())
            }
            Work::Update => update(&input),
            Work::Nothing => Ok(()),
        };
        done.map_err(|error| format!("a call was refused: {error:?}"))
    }
}

fn own(input: &Batch) -> Result<(), Error> {
    read_for_each(input);
    let found = state::get_many(HELD, &input.keys)?;
    write(input, &found.items)
}

fn lookup(input: &Batch) -> Result<(), Error> {
    read_for_each(input);
    let found = tables::get_many(OTHERS, &others(input), &consistency())?;
    write(input, &found.items)
}

/// Writes the value of each record's own key: the first number of what was found, and what the key itself gives.
fn write(input: &Batch, found: &Column) -> Result<(), Error> {
    let count = input.keys.ends.len();
    let mut values = Column { bytes: Vec::with_capacity(count * VALUE_BYTES), ends: Vec::with_capacity(count) };
    for record in 0..count {
        let number = item(found, record)
            .and_then(|value| value.first_chunk::<8>())
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        values.bytes.extend_from_slice(&number.wrapping_add(1).to_le_bytes());
        let key = item(&input.keys, record).unwrap_or_default();
        values.bytes.extend(key.iter().cycle().take(VALUE_BYTES - 8));
        values.ends.push(values.bytes.len() as u32);
    }
    state::put_many(HELD, &input.keys, &values, &indices(count))
}

fn update(input: &Batch) -> Result<(), Error> {
    let count = input.keys.ends.len();
    let mut operands = Column { bytes: vec![0; count * VALUE_BYTES], ends: Vec::with_capacity(count) };
    for record in 0..count {
        operands.bytes[record * VALUE_BYTES] = 1;
        operands.ends.push(((record + 1) * VALUE_BYTES) as u32);
    }
    tables::update_many(OTHERS, &others(input), &Op::AddS64, &operands, &indices(count), None)
}

fn consistency() -> Consistency {
    if BOUNDED.get() { Consistency::BoundedMs(BOUND_MS) } else { Consistency::Live }
}

/// Says that the next read is for the records, each its key.
fn read_for_each(input: &Batch) {
    if isolation::is_apart() {
        isolation::read_for(&indices(input.keys.ends.len()));
    }
}

/// The other key of each record: the end of its line.
fn others(input: &Batch) -> Column {
    let count = input.values.ends.len();
    let mut keys = Column { bytes: Vec::with_capacity(count * KEY_BYTES), ends: Vec::with_capacity(count) };
    for &end in &input.values.ends {
        keys.bytes.extend_from_slice(&input.values.bytes[end as usize - KEY_BYTES..end as usize]);
        keys.ends.push(keys.bytes.len() as u32);
    }
    keys
}

/// For each record keys that follow from its other one.
fn fan(input: &Batch) -> Column {
    let count = input.values.ends.len() * FAN as usize;
    let mut keys = Column { bytes: Vec::with_capacity(count * KEY_BYTES), ends: Vec::with_capacity(count) };
    for &end in &input.values.ends {
        let other = &input.values.bytes[end as usize - 8..end as usize];
        let seed = other.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        for place in 0..FAN {
            write_hex(&mut keys.bytes, mix(mix(seed.wrapping_add(place)) % KEYS));
            keys.ends.push(keys.bytes.len() as u32);
        }
    }
    keys
}

fn write_hex(bytes: &mut Vec<u8>, number: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.extend((0..16).rev().map(|digit| DIGITS[(number >> (4 * digit)) as usize & 15]));
}

/// As the benchmarks' own `mix`, by which they name the keys.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn indices(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}

fn item(column: &Column, index: usize) -> Option<&[u8]> {
    let end = *column.ends.get(index)? as usize;
    let start = if index == 0 { 0 } else { column.ends[index - 1] as usize };
    Some(&column.bytes[start..end])
}

export!(Tables);
