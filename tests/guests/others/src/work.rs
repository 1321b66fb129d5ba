//! What the function does when it behaves.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::columns::{Emitted, column, items, push};
use crate::config::{Config, Consistency as Asked, Mode, Op as Wanted, Values};
use crate::fault;
use crate::record::Request;
use crate::wasmill::operator::tables::{self, Consistency, Op, Outcomes};
use crate::wasmill::operator::types::{Batch, Column, Error, OptionalColumn};
use crate::wasmill::operator::{output, state};

/// The table that the function keeps.
pub const OWN: &str = "values";
/// What it calls the table that it uses.
pub const OTHER: &str = "other";
/// The port of outcomes.
pub const DONE: &str = "done";
/// The port of loops.
pub const AGAIN: &str = "again";

/// A record, read.
pub struct Item<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub time: i64,
    pub request: Request,
}

impl<'a> Item<'a> {
    fn read(key: &'a [u8], value: &'a [u8], time: i64) -> Result<Self, String> {
        Ok(Self { key, value, time, request: Request::parse(value)? })
    }
}

/// Works on a batch as `config` says.
pub fn process(config: &Config, input: &Batch) -> Result<(), String> {
    match config.mode {
        Mode::Echo => return echo(input),
        Mode::Claim => return claim(config, input),
        _ => {}
    }
    let columns = items(&input.keys).zip(items(&input.values)).zip(&input.times);
    let batch = columns.map(|((key, value), &time)| Item::read(key, value, time)).collect::<Result<Vec<_>, _>>()?;
    match config.mode {
        Mode::Echo | Mode::Claim => Ok(()),
        Mode::Keep => keep(config.values, &batch),
        Mode::Sum => sum(&batch),
        Mode::LookUp => look_up(config, &batch),
        Mode::LookUpSingly => look_up_singly(config, &batch),
        Mode::Scan => scan(config, &batch),
        Mode::Update => update(config, &batch),
        Mode::UpdateSingly => update_singly(config, &batch),
        Mode::CompareAndPut => compare_and_put(config, &batch),
        Mode::Transfer => transfer(&batch),
        Mode::Meet => meet(config, &batch),
        Mode::Send => send(&batch),
        Mode::Bounce => bounce(&batch),
        Mode::Loop => go_round(&batch),
        Mode::Fault => fault::process(config.fault, &batch),
    }
}

fn echo(input: &Batch) -> Result<(), String> {
    let records: Vec<u32> = (0..input.times.len() as u32).collect();
    output::emit("out", input, &records).map_err(said("emit"))
}

fn keep(values: Values, batch: &[Item<'_>]) -> Result<(), String> {
    let written = column(batch.iter().map(|item| values.encode(item.request.n)));
    state::put_many(OWN, &keys(batch), &written, &all(batch)).map_err(said("put-many"))?;
    let mut emitted = Emitted::default();
    batch.iter().enumerate().for_each(|(index, item)| emitted.push(index, item.key, item.value, item.time));
    emit("out", emitted)
}

fn sum(batch: &[Item<'_>]) -> Result<(), String> {
    let sums = add_to_own(batch)?;
    let mut emitted = Emitted::default();
    for (index, (item, sum)) in batch.iter().zip(sums).enumerate() {
        emitted.push(index, item.key, sum.to_string().as_bytes(), item.time);
    }
    emit("out", emitted)
}

/// Adds each record's number to its own value, and returns what that has come to.
fn add_to_own(batch: &[Item<'_>]) -> Result<Vec<i64>, String> {
    let stored = state::get_many(OWN, &keys(batch)).map_err(said("get-many"))?;
    let mut sums: HashMap<&[u8], i64> = HashMap::new();
    let mut all_sums = Vec::new();
    for (item, stored) in batch.iter().zip(optional(&stored)) {
        let stored = stored.and_then(|bytes| Some(i64::from_le_bytes(bytes.try_into().ok()?)));
        let sum = sums.entry(item.key).or_insert(stored.unwrap_or_default());
        *sum += item.request.n as i64;
        all_sums.push(*sum);
    }
    let written = column(all_sums.iter().map(|sum| sum.to_le_bytes()));
    state::put_many(OWN, &keys(batch), &written, &all(batch)).map_err(said("put-many"))?;
    Ok(all_sums)
}

fn meet(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    add_to_own(batch)?;
    let added = column(batch.iter().map(|item| (item.request.n as i64).to_le_bytes()));
    tables::update_many(OTHER, &others(batch), &Op::AddS64, &added, &all(batch), None).map_err(said("update-many"))?;
    look_up(config, batch)
}

/// A record is a request, or what has come of one: a byte that says whether it was met, and the request.
fn claim(config: &Config, input: &Batch) -> Result<(), String> {
    let (mut met, mut open, mut records) = (Emitted::default(), Vec::new(), Vec::new());
    for (index, (key, value)) in items(&input.keys).zip(items(&input.values)).enumerate() {
        let time = input.times[index];
        match value.split_first() {
            Some((1, request)) => met.push(index, key, request, time),
            Some((0, request)) => open.push((index, Item::read(key, request, time)?)),
            _ => open.push((index, Item::read(key, value, time)?)),
        }
    }
    emit("out", met)?;
    let mut batch = Vec::new();
    for (index, item) in open {
        records.push(index as u32);
        batch.push(item);
    }
    if batch.is_empty() {
        return Ok(());
    }
    let found = tables::get_many(OTHER, &others(&batch), &consistency(config)).map_err(said("get-many"))?;
    let new = optional(&found).zip(&batch).map(|(found, item)| {
        let found = found.map_or(Ok(0), |bytes| bytes.try_into().map(i64::from_le_bytes));
        Ok((found.map_err(|_| "the value is no integer of 64 bits")? + item.request.n as i64).to_le_bytes())
    });
    let new = column(new.collect::<Result<Vec<_>, &str>>()?);
    let new = OptionalColumn { items: new, present: vec![1; batch.len()] };
    let values = column(batch.iter().map(|item| item.value));
    let outcomes = Outcomes { port: DONE.to_owned(), keys: keys(&batch), values };
    tables::compare_and_put_many(OTHER, &others(&batch), &found, &new, &records, Some(&outcomes))
        .map_err(said("compare-and-put-many"))
}

fn look_up(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    let found = tables::get_many(OTHER, &others(batch), &consistency(config)).map_err(said("get-many"))?;
    emit_found(config, batch, optional(&found).map(|value| value.map(<[u8]>::to_vec)))
}

fn look_up_singly(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    let get = |item: &Item<'_>| tables::get(OTHER, item.request.other(item.key), &consistency(config));
    let found = batch.iter().map(get).collect::<Result<Vec<_>, _>>().map_err(said("get"))?;
    emit_found(config, batch, found.into_iter())
}

fn emit_found(config: &Config, batch: &[Item<'_>], found: impl Iterator<Item = Option<Vec<u8>>>) -> Result<(), String> {
    let mut emitted = Emitted::default();
    for (index, (item, found)) in batch.iter().zip(found).enumerate() {
        let to = String::from_utf8_lossy(item.request.other(item.key));
        let value = json!({ "to": to, "found": found.map(|bytes| config.values.decode(&bytes)) });
        emitted.push(index, item.key, value.to_string().as_bytes(), item.time);
    }
    emit("out", emitted)
}

fn scan(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    let mut emitted = Emitted::default();
    for (index, item) in batch.iter().enumerate() {
        let mut found = Map::new();
        let mut from = Some(item.request.from.clone().into_bytes());
        let to = item.request.to.as_ref().map(String::as_bytes);
        while let Some(start) = from {
            let page = tables::scan(OTHER, &start, to, config.limit.0, &consistency(config)).map_err(said("scan"))?;
            for (key, value) in items(&page.keys).zip(items(&page.values)) {
                found.insert(String::from_utf8_lossy(key).into_owned(), config.values.decode(value));
            }
            from = page.next;
        }
        let value = json!({ "found": Value::Object(found) });
        emitted.push(index, item.key, value.to_string().as_bytes(), item.time);
    }
    emit("out", emitted)
}

fn update(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    let outcomes = outcomes(config, batch);
    let op = op(config)?;
    let operands = match op {
        Op::Delete => column::<&[u8]>([]),
        _ => column(batch.iter().map(|item| config.values.encode(item.request.n))),
    };
    tables::update_many(OTHER, &others(batch), &op, &operands, &all(batch), outcomes.as_ref())
        .map_err(said("update-many"))
}

fn update_singly(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    let op = op(config)?;
    for (index, item) in batch.iter().enumerate() {
        let operand = if matches!(op, Op::Delete) { Vec::new() } else { config.values.encode(item.request.n) };
        let key = item.request.other(item.key);
        tables::update(OTHER, key, &op, &operand, index as u32).map_err(said("update"))?;
    }
    Ok(())
}

fn compare_and_put(config: &Config, batch: &[Item<'_>]) -> Result<(), String> {
    let values = |number: &dyn Fn(&Request) -> Option<f64>| {
        let mut values = OptionalColumn { items: column::<&[u8]>([]), present: Vec::new() };
        for item in batch {
            let value = number(&item.request).map(|number| config.values.encode(number));
            values.present.push(u8::from(value.is_some()));
            push(&mut values.items, &value.unwrap_or_default());
        }
        values
    };
    let (expected, new) = (values(&|request| request.expected), values(&|request| Some(request.n)));
    let outcomes = outcomes(config, batch);
    tables::compare_and_put_many(OTHER, &others(batch), &expected, &new, &all(batch), outcomes.as_ref())
        .map_err(said("compare-and-put-many"))
}

fn transfer(batch: &[Item<'_>]) -> Result<(), String> {
    let (mut keys, mut amounts, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for (index, item) in batch.iter().enumerate() {
        let amount = item.request.n as i64;
        keys.extend([item.key, item.request.other(item.key)]);
        amounts.extend([(-amount).to_le_bytes(), amount.to_le_bytes()]);
        records.extend([index as u32; 2]);
    }
    tables::update_many(OTHER, &column(keys), &Op::AddS64, &column(amounts), &records, None)
        .map_err(said("update-many"))
}

fn send(batch: &[Item<'_>]) -> Result<(), String> {
    let mut sent = Emitted::default();
    for (index, item) in batch.iter().enumerate() {
        sent.push(index, item.request.other(item.key), item.value, item.time);
    }
    let (sent, records) = sent.into_columns();
    tables::send(OTHER, &sent, &records).map_err(said("send"))
}

/// The record with `n` less 1, from the other key to this one.
fn turned(item: &Item<'_>) -> Vec<u8> {
    let back = String::from_utf8_lossy(item.key).into_owned();
    Request { to: Some(back), n: item.request.n - 1.0, ..item.request.clone() }.to_bytes()
}

fn bounce(batch: &[Item<'_>]) -> Result<(), String> {
    let (ended, going) = ended(batch);
    if !going.is_empty() {
        let (sent, records) = going.into_columns();
        tables::send(OTHER, &sent, &records).map_err(said("send"))?;
    }
    emit("out", ended)
}

fn go_round(batch: &[Item<'_>]) -> Result<(), String> {
    let (ended, going) = ended(batch);
    emit(AGAIN, going)?;
    emit("out", ended)
}

/// The records whose time is up, and those that go on, turned.
fn ended(batch: &[Item<'_>]) -> (Emitted, Emitted) {
    let (mut ended, mut going) = (Emitted::default(), Emitted::default());
    for (index, item) in batch.iter().enumerate() {
        match item.request.n == 0.0 {
            true => ended.push(index, item.key, item.value, item.time),
            false => going.push(index, item.request.other(item.key), &turned(item), item.time),
        }
    }
    (ended, going)
}

fn outcomes(config: &Config, batch: &[Item<'_>]) -> Option<Outcomes> {
    config.ask.then(|| Outcomes {
        port: DONE.to_owned(),
        keys: keys(batch),
        values: column(batch.iter().map(|item| item.value)),
    })
}

fn consistency(config: &Config) -> Consistency {
    match config.consistency {
        Asked::Live => Consistency::Live,
        Asked::Committed => Consistency::Committed,
        Asked::AsOf(epoch) => Consistency::AsOf(epoch),
        Asked::BoundedMs(ms) => Consistency::BoundedMs(ms),
        Asked::BoundedEpochs(epochs) => Consistency::BoundedEpochs(epochs),
    }
}

fn op(config: &Config) -> Result<Op, String> {
    Ok(match (config.op, config.values) {
        (Wanted::Put, _) => Op::Put,
        (Wanted::PutIfAbsent, _) => Op::PutIfAbsent,
        (Wanted::Delete, _) => Op::Delete,
        (Wanted::Append, _) => Op::Append(config.limit.0),
        (Wanted::Add, Values::S64) => Op::AddS64,
        (Wanted::Add, Values::F32) => Op::AddF32,
        (Wanted::Add, Values::F64) => Op::AddF64,
        (Wanted::Min, Values::S64) => Op::MinS64,
        (Wanted::Min, Values::F32) => Op::MinF32,
        (Wanted::Min, Values::F64) => Op::MinF64,
        (Wanted::Max, Values::S64) => Op::MaxS64,
        (Wanted::Max, Values::F32) => Op::MaxF32,
        (Wanted::Max, Values::F64) => Op::MaxF64,
        (op, Values::Text) => return Err(format!("texts cannot be combined by `{op:?}`")),
    })
}

/// The records' own keys.
pub fn keys(batch: &[Item<'_>]) -> Column {
    column(batch.iter().map(|item| item.key))
}

/// The other keys that the records name.
pub fn others(batch: &[Item<'_>]) -> Column {
    column(batch.iter().map(|item| item.request.other(item.key)))
}

/// The indices of all records.
pub fn all(batch: &[Item<'_>]) -> Vec<u32> {
    (0..batch.len() as u32).collect()
}

fn optional(column: &OptionalColumn) -> impl Iterator<Item = Option<&[u8]>> {
    items(&column.items).zip(&column.present).map(|(item, &present)| (present == 1).then_some(item))
}

fn emit(port: &str, emitted: Emitted) -> Result<(), String> {
    if emitted.is_empty() {
        return Ok(());
    }
    let (batch, records) = emitted.into_columns();
    output::emit(port, &batch, &records).map_err(said("emit"))
}

/// What the host has said to `call`.
pub fn said(call: &str) -> impl Fn(Error) -> String {
    move |error| {
        let (case, text) = match error {
            Error::UnknownName(text) => ("unknown-name", text),
            Error::ForeignKey(text) => ("foreign-key", text),
            Error::Malformed(text) => ("malformed", text),
            Error::LimitExceeded(text) => ("limit-exceeded", text),
            Error::NotAllowed(text) => ("not-allowed", text),
            Error::NotYet(text) => ("not-yet", text),
            Error::Gone(text) => ("gone", text),
            Error::Other(text) => ("other", text),
        };
        format!("{call} was refused: {case}: {text}")
    }
}
