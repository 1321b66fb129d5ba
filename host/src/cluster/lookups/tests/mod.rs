//! The batcher against a model of owners, and its driver over owners that a test holds in its hand and over real connections.

mod driving;
mod gathering;
mod links;
mod model;
mod properties;

use super::super::link::{Found, Get, HostId, Values};
use super::*;

const PEER: HostId = HostId(1);
const LIVE: Read = Read::At(Consistency::Live);

fn table() -> TableId {
    TableId::new(1, 2)
}

fn column(keys: &[&str]) -> Column {
    keys.iter().map(|key| key.as_bytes()).collect()
}

fn question(keys: &[&str], read: Read, batching: Batching) -> Question {
    Question { table: table(), keys: column(keys), read, batching }
}

fn names(get: &Get) -> Vec<String> {
    get.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

/// Answers each key with itself and `mark` behind it.
fn echo(get: &Get, mark: &str) -> Values {
    let values: Vec<Vec<u8>> = get.keys.iter().map(|key| [key, mark.as_bytes()].concat()).collect();
    values.iter().map(|value| Found::Present(value)).collect()
}

fn texts(answer: &Answer) -> Vec<String> {
    answer.iter().map(|value| value.map_or("-".into(), |value| String::from_utf8_lossy(value).into_owned())).collect()
}
