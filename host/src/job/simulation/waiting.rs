//! A job whose records wait: orders for the prices of their times, and audits for what became of orders.

use std::collections::BTreeMap;

use super::ends::{Record, time_of};
use super::moving::assert_same;
use super::native::{Call, Native};
use super::world::{Input, Shape};
use super::{check, key, words};
use crate::dice::Dice;
use crate::state::update::Op;

const GOODS: usize = 6;
const TIMES: usize = 60;
/// Nothing is too old to be found.
const SPAN_MS: u64 = 1_000;

/// Prices come to their keeper directly, and by updates of another operator; orders go round once, and then wait for them; audits wait for what answers have kept.
const MARKET: Shape = Shape {
    manifest: r#"
        [job]
        name = "market"
        partitions = 8
        [sources.quotes]
        kind = "stdin"
        format = "jsonl"
        key = "/k"
        [sources.offers]
        kind = "file"
        path = "offers"
        format = "jsonl"
        key = "/k"
        [sources.orders]
        kind = "file"
        path = "orders"
        format = "jsonl"
        key = "/k"
        [sources.audits]
        kind = "file"
        path = "audits"
        format = "jsonl"
        key = "/k"
        [operators.prices]
        component = "x.wasm"
        inputs = ["quotes"]
        tables.values = { open = true }
        retries = 30
        batch = 4
        [operators.relay]
        component = "x.wasm"
        inputs = ["offers"]
        uses.prices = { table = "prices.values", update = true }
        retries = 30
        [operators.ask]
        component = "x.wasm"
        inputs = ["orders"]
        feedback = ["ask.again"]
        tables.answers = { open = true }
        uses.prices = { table = "prices.values", read = true }
        retries = 30
        batch = 3
        [operators.audit]
        component = "x.wasm"
        inputs = ["audits"]
        uses.answers = { table = "ask.answers", read = true }
        retries = 30
        batch = 5
        [sinks.out]
        kind = "blackhole"
        inputs = ["ask", "audit"]
    "#,
    functions: |dice| {
        let keep = |call: &mut Call<'_>, key: &[u8], value: &[u8]| call.put(0, key, value);
        let relay = |call: &mut Call<'_>, key: &[u8], value: &[u8]| {
            call.update(0, (Op::Put, key), (Some(value), None), None);
        };
        let ask = |call: &mut Call<'_>, key: &[u8], value: &[u8]| {
            let Some(order) = value.strip_suffix(b" again") else {
                return call.emit(1, key, &[value, b" again"].concat());
            };
            let answer = joined(order, call.look_up_waiting(0, key).as_deref());
            call.put(0, key, &answer);
            call.emit(0, key, &answer);
        };
        // Some audits ask nothing, and could go before those that wait.
        let audit = |call: &mut Call<'_>, key: &[u8], value: &[u8]| {
            let found = if asks(value) { call.look_up_waiting(0, key) } else { None };
            call.emit(0, key, &joined(value, found.as_deref()));
        };
        vec![
            ("prices", Native::new(&["values"], &[], &[], keep, dice.split()).versioned(SPAN_MS)),
            ("relay", Native::new(&[], &["prices"], &[], relay, dice.split())),
            ("ask", Native::new(&["answers"], &["prices"], &["again"], ask, dice.split()).versioned(SPAN_MS)),
            ("audit", Native::new(&[], &["answers"], &[], audit, dice.split())),
        ]
    },
    at_commit: |_, _| {},
    at_end: |tables, input, output| {
        let prices = input["quotes"].iter().chain(&input["offers"]).flatten();
        let prices: BTreeMap<(&[u8], i64), &[u8]> =
            prices.map(|(key, value)| ((key.as_slice(), time_of(value)), value.as_slice())).collect();
        let mut answers: BTreeMap<(Vec<u8>, i64), Vec<u8>> = BTreeMap::new();
        for (key, order) in input["orders"].iter().flatten() {
            let time = time_of(order);
            let price = prices.range((key.as_slice(), i64::MIN)..=(key, time)).next_back();
            answers.insert((key.clone(), time), joined(order, price.map(|(_, price)| *price)));
        }
        let audit = |(key, audit): &Record| {
            let answer = answers.range((key.clone(), i64::MIN)..=(key.clone(), time_of(audit))).next_back();
            let answer = answer.filter(|_| asks(audit));
            (key.clone(), joined(audit, answer.map(|(_, answer)| answer.as_slice())))
        };
        let audits: Vec<Record> = input["audits"].iter().flatten().map(audit).collect();
        let all = answers.iter().map(|((key, _), answer)| (key.clone(), answer.clone())).chain(audits.iter().cloned());
        assert_same(output, all);
        for good in (0..GOODS).map(key) {
            // What waits does not lose its place.
            let found = output.iter().filter(|(key, value)| *key == good && is_audit(value));
            assert!(found.eq(audits.iter().filter(|(key, _)| *key == good)), "{}", good.escape_ascii());
        }
        for good in (0..GOODS).map(key) {
            let newest = prices.range((good.as_slice(), i64::MIN)..=(&good, i64::MAX)).next_back();
            assert_eq!(tables.get("prices.values", &good).as_deref(), newest.map(|(_, price)| *price));
        }
    },
};

fn is_audit(value: &[u8]) -> bool {
    words(value)[1].starts_with('a')
}

/// Whether an audit asks for an answer.
fn asks(audit: &[u8]) -> bool {
    time_of(audit) % 3 != 0
}

/// An answer: what was asked, and what was found.
fn joined(asked: &[u8], found: Option<&[u8]>) -> Vec<u8> {
    let found = found.map_or("nothing".to_owned(), |found| words(found).join("/"));
    [asked, b" ", found.as_bytes()].concat()
}

/// Records in the order of their times, each key and time once among all that are made with one `taken`.
fn split(dice: &mut Dice, count: usize, name: &str, taken: &mut Vec<(usize, usize)>) -> Vec<Record> {
    let mut places: Vec<(usize, usize)> = (0..count).map(|_| (dice.below(TIMES), dice.below(GOODS))).collect();
    places.sort_unstable();
    places.dedup();
    places.retain(|place| !taken.contains(place));
    taken.extend(&places);
    places.into_iter().map(|(time, good)| (key(good), format!("@{time} {name}{time}-{good}").into())).collect()
}

fn market(dice: &mut Dice) -> Input {
    let mut priced = Vec::new();
    let quotes = (0..2).map(|_| split(dice, 20, "q", &mut priced)).collect();
    let offers = vec![split(dice, 10, "f", &mut priced)];
    let mut ordered = Vec::new();
    let orders = (0..2).map(|_| split(dice, 10, "o", &mut ordered)).collect();
    let audits = vec![split(dice, 30, "a", &mut Vec::new())];
    BTreeMap::from([("quotes", quotes), ("offers", offers), ("orders", orders), ("audits", audits)])
}

#[test]
fn what_waits_finds_what_was_true_at_its_time_however_it_comes_about() {
    check(&MARKET, market);
}
