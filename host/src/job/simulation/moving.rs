//! Jobs whose functions change, send to, and look up the keys of others.

use std::collections::{BTreeMap, BTreeSet};

use super::ends::Record;
use super::native::Native;
use super::world::{Input, Shape, Tables};
use super::{check, key, parsed, words};
use crate::dice::Dice;
use crate::key::KeyHash;
use crate::state::update::Op;

const ACCOUNTS: usize = 12;

/// Money moved by two updates a record.
pub(super) const TRANSFERS: Shape = Shape {
    manifest: r#"
        [job]
        name = "transfers"
        partitions = 8
        [sources.input]
        kind = "stdin"
        format = "jsonl"
        key = "/k"
        [operators.move]
        component = "move.wasm"
        inputs = ["input"]
        uses.accounts = { table = "move.balances", read = true, update = true }
        retries = 30
        batch = 4
        [sinks.out]
        kind = "blackhole"
        inputs = ["move"]
    "#,
    functions: |dice| {
        let transfer = |call: &mut super::native::Call<'_>, from: &[u8], value: &[u8]| {
            let value = words(value);
            let amount = parsed(value[1]);
            call.add(0, from, -amount);
            call.add(0, value[0].as_bytes(), amount);
            call.emit(0, from, value.join(" ").as_bytes());
        };
        vec![("move", Native::new(&["balances"], &["accounts"], &[], transfer, dice.split()))]
    },
    at_commit: |tables, input| {
        assert_eq!(tables.numbers("move.balances", &accounts(input)).iter().sum::<i64>(), 0);
    },
    at_end: |tables, input, output| {
        let mut balances: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        for (from, value) in input["input"].iter().flatten() {
            let value = words(value);
            *balances.entry(from.clone()).or_default() -= parsed(value[1]);
            *balances.entry(value[0].as_bytes().to_vec()).or_default() += parsed(value[1]);
        }
        for (account, balance) in balances {
            assert_eq!(tables.number("move.balances", &account), balance, "{}", account.escape_ascii());
        }
        assert_same(output, input["input"].iter().flatten().cloned());
    },
};

/// The accounts that transfers are from and to.
pub(super) fn accounts(input: &Input) -> BTreeSet<Vec<u8>> {
    let both = |(from, value): &Record| [from.clone(), words(value)[0].as_bytes().to_vec()];
    input["input"].iter().flatten().flat_map(both).collect()
}

/// Asserts that two lists hold the same records, each as often.
pub(super) fn assert_same(found: &[Record], expected: impl Iterator<Item = Record>) {
    let (mut found, mut expected) = (found.to_vec(), expected.collect::<Vec<Record>>());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

pub(super) fn transfers(dice: &mut Dice) -> Input {
    let mut split = |_| {
        let record = |_| (key(dice.below(ACCOUNTS)), format!("k{} {}", dice.below(ACCOUNTS), 1 + dice.below(9)).into());
        (0..25).map(record).collect()
    };
    BTreeMap::from([("input", (0..2).map(&mut split).collect())])
}

#[test]
fn money_moved_by_updates_stays_the_same_in_all_at_every_epoch() {
    check(&TRANSFERS, transfers);
}

/// Each record goes from one function to another and back, a number of times.
pub(super) const PING_PONG: Shape = Shape {
    manifest: r#"
        [job]
        name = "ping-pong"
        partitions = 8
        [sources.input]
        kind = "stdin"
        format = "jsonl"
        key = "/k"
        [operators.ping]
        component = "x.wasm"
        inputs = ["input"]
        tables.hits = { open = true }
        uses.others = { table = "pong.hits", send = true }
        retries = 30
        batch = 4
        [operators.pong]
        component = "x.wasm"
        inputs = ["ping"]
        tables.hits = { open = true }
        uses.others = { table = "ping.hits", send = true }
        retries = 30
        batch = 3
        [sinks.out]
        kind = "blackhole"
        inputs = ["pong", "ping.hops"]
    "#,
    functions: |dice| {
        fn hit(call: &mut super::native::Call<'_>, port: usize, key: &[u8], value: &[u8]) {
            let hits = call.get(0, key).map_or(0, |hits| i64::from_le_bytes(hits.try_into().expect("eight bytes")));
            call.put(0, key, &(hits + 1).to_le_bytes());
            let word = words(value);
            let left = parsed(word[1]);
            call.emit(port, key, value);
            if left > 0 {
                call.send(0, &next_key(key), format!("{} {}", word[0], left - 1).as_bytes());
            }
        }
        vec![
            (
                "ping",
                Native::new(
                    &["hits"],
                    &["others"],
                    &["hops"],
                    |call, key, value| hit(call, 1, key, value),
                    dice.split(),
                ),
            ),
            (
                "pong",
                Native::new(&["hits"], &["others"], &[], |call, key, value| hit(call, 0, key, value), dice.split()),
            ),
        ]
    },
    at_commit: |_, _| {},
    at_end: |tables, input, output| {
        let (mut hits, mut hops) = (BTreeMap::<(&str, Vec<u8>), i64>::new(), Vec::new());
        for (key, value) in input["input"].iter().flatten() {
            let (mut key, word) = (key.clone(), words(value));
            for (hop, left) in (0..=parsed(word[1])).rev().enumerate() {
                let table = if hop % 2 == 0 { "ping.hits" } else { "pong.hits" };
                *hits.entry((table, key.clone())).or_default() += 1;
                hops.push((key.clone(), format!("{} {left}", word[0]).into_bytes()));
                key = next_key(&key);
            }
        }
        for ((table, key), count) in hits {
            assert_eq!(tables.number(table, &key), count, "{table} {}", key.escape_ascii());
        }
        assert_same(output, hops.into_iter());
    },
};

fn next_key(key: &[u8]) -> Vec<u8> {
    let number: usize = std::str::from_utf8(&key[1..]).expect("it is text").parse().expect("keys are numbered");
    super::key((number * 7 + 3) % ACCOUNTS)
}

pub(super) fn balls(dice: &mut Dice) -> Input {
    let balls = |number| (key(dice.below(ACCOUNTS)), format!("b{number} {}", dice.below(9)).into_bytes());
    BTreeMap::from([("input", vec![(0..20).map(balls).collect()])])
}

#[test]
fn each_hop_of_what_is_sent_to_and_fro_happens_once() {
    check(&PING_PONG, balls);
}

/// Requests that try to be the first at a place, and are told.
pub(super) const OUTCOMES: Shape = Shape {
    manifest: r#"
        [job]
        name = "outcomes"
        partitions = 8
        [sources.input]
        kind = "stdin"
        format = "jsonl"
        key = "/k"
        [operators.ask]
        component = "x.wasm"
        inputs = ["input"]
        feedback = ["ask.again"]
        uses.places = { table = "places.holders", read = true, update = true }
        uses.counters = { table = "places.counters", read = true, update = true }
        retries = 30
        batch = 4
        [operators.places]
        component = "x.wasm"
        inputs = ["nothing"]
        tables = { holders = { open = true }, counters = { open = true } }
        retries = 30
        [sources.nothing]
        kind = "file"
        path = "nothing"
        format = "jsonl"
        key = "/k"
        [sinks.out]
        kind = "blackhole"
        inputs = ["ask.told", "ask", "places"]
    "#,
    functions: |dice| {
        // A request `rN` tries to be the first at its place, and then counts there by compare-and-put until it succeeds.
        let ask = |call: &mut super::native::Call<'_>, key: &[u8], value: &[u8]| {
            let (is_back, request) = match value {
                [told @ (0 | 1), request @ ..] => (Some(*told == 1), request),
                request => (None, request),
            };
            if is_back == Some(true) {
                return call.emit(0, key, request);
            }
            let text = words(request).join(" ");
            let place = text.split(' ').nth(1).expect("a request names its place").as_bytes();
            if is_back.is_none() {
                call.update(0, (Op::PutIfAbsent, place), (Some(request), None), Some((1, key, request)));
            }
            let now = call.look_up(1, &[place]).remove(0);
            let count = now.as_deref().map_or(0, |now| i64::from_le_bytes(now.try_into().expect("eight bytes")));
            let next = (count + 1).to_le_bytes();
            call.update(1, (Op::CompareAndPut, place), (Some(&next), now.as_deref()), Some((2, key, request)));
        };
        vec![
            ("ask", Native::new(&["own"], &["places", "counters"], &["told", "again"], ask, dice.split())),
            ("places", Native::new(&["holders", "counters"], &[], &[], |_, _, _| {}, dice.split())),
        ]
    },
    at_commit: |_, _| {},
    at_end: |tables, input, output| {
        let mut expected: BTreeMap<&str, i64> = BTreeMap::new();
        let requests: Vec<&Record> = input["input"].iter().flatten().collect();
        for (_, request) in &requests {
            *expected.entry(words(request)[1]).or_default() += 1;
        }
        let told = |is: u8| output.iter().filter(move |(_, value)| value[0] == is);
        for (place, count) in &expected {
            assert_eq!(tables.number("places.counters", place.as_bytes()), *count, "{place}");
            let first: Vec<_> = told(1).filter(|(_, value)| words(&value[1..])[1] == *place).collect();
            assert_eq!(first.len(), 1, "{place}");
            assert_eq!(tables.get("places.holders", place.as_bytes()).as_deref(), Some(&first[0].1[1..]));
        }
        assert_eq!(told(0).count(), requests.len() - expected.len());
        // Each request was told once that it was first or not, and once that it has counted.
        let answers = told(0).chain(told(1)).map(|(key, value)| (key.clone(), value[1..].to_vec())).collect::<Vec<_>>();
        assert_same(&answers, requests.iter().copied().cloned());
        let counted = output.iter().filter(|(_, value)| value[0] > 1).cloned().collect::<Vec<_>>();
        assert_same(&counted, requests.into_iter().cloned());
    },
};

fn requests(dice: &mut Dice) -> Input {
    let request = |number| (key(dice.below(ACCOUNTS)), format!("r{number} p{}", dice.below(4)).into_bytes());
    BTreeMap::from([("input", vec![(0..16).map(request).collect()]), ("nothing", vec![vec![]])])
}

#[test]
fn every_conditional_update_is_told_its_own_outcome_once() {
    check(&OUTCOMES, requests);
}

/// Pairs of keys that are always written together, and somebody who looks at both.
const PAIRS: Shape = Shape {
    manifest: r#"
        [job]
        name = "pairs"
        partitions = 8
        [sources.input]
        kind = "stdin"
        format = "jsonl"
        key = "/k"
        [operators.keep]
        component = "x.wasm"
        inputs = ["input"]
        tables.halves = { open = true }
        retries = 30
        batch = 2
        [operators.look]
        component = "x.wasm"
        inputs = ["keep"]
        uses.pairs = { table = "keep.halves", read = true }
        retries = 30
        batch = 3
        [sinks.out]
        kind = "blackhole"
        inputs = ["look"]
    "#,
    functions: |dice| {
        let keep = |call: &mut super::native::Call<'_>, key: &[u8], value: &[u8]| {
            call.put(0, key, value);
            call.put(0, &twin(key), value);
            call.emit(0, key, value);
        };
        let look = |call: &mut super::native::Call<'_>, key: &[u8], value: &[u8]| {
            let halves = call.look_up(0, &[key, &twin(key)]);
            assert_eq!(halves[0], halves[1], "half of a batch was seen");
            call.emit(0, key, value);
        };
        vec![
            ("keep", Native::new(&["halves"], &[], &[], keep, dice.split())),
            ("look", Native::new(&["seen"], &["pairs"], &[], look, dice.split())),
        ]
    },
    at_commit: |tables, _| {
        for number in 0..ACCOUNTS {
            let halves = tables.get_many("keep.halves", &[&key(number), &twin(&key(number))]);
            assert_eq!(halves[0], halves[1]);
        }
    },
    at_end: |tables: &Tables<'_>, input, output| {
        let last: BTreeMap<&Vec<u8>, &Vec<u8>> = input["input"][0].iter().map(|(key, value)| (key, value)).collect();
        for (key, value) in last {
            assert_eq!(tables.get("keep.halves", key).as_ref(), Some(value));
        }
        assert_same(output, input["input"][0].iter().cloned());
    },
};

/// Another key of the same partition, hence of the same owner.
fn twin(key: &[u8]) -> Vec<u8> {
    let home = KeyHash::of(key).partition(8);
    let candidates = (0..).map(|number| [key, format!("-{number}").as_bytes()].concat());
    candidates.into_iter().find(|twin| KeyHash::of(twin).partition(8) == home).expect("one in eight is")
}

fn pairs(dice: &mut Dice) -> Input {
    let pair = |number| (key(dice.below(ACCOUNTS)), format!("v{number}").into_bytes());
    BTreeMap::from([("input", vec![(0..40).map(pair).collect()])])
}

#[test]
fn a_lookup_of_two_keys_of_one_owner_never_sees_half_a_batch() {
    check(&PAIRS, pairs);
}
