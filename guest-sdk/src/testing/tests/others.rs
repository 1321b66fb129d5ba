//! Tables of others: how many host calls lookups and updates cost, in which order they go, and what refusals take back.

use super::super::*;
use super::{records, rejected};
use crate::{
    Codec, Config, Consistency, Context, Description, Fixed, Json, Port, Record, Reject, Update, UsedTable, Wants,
    prefix,
};

const RATES: UsedTable<Fixed<i64>> = UsedTable::new("rates");
const NAMES: UsedTable<Json<String>> = UsedTable::new("names");
const VECTORS: UsedTable<Fixed<[f32; 2]>> = UsedTable::new("vectors");
const UNDECLARED: UsedTable<Fixed<i64>> = UsedTable::new("undeclared");
const PICKY: UsedTable<Picky> = UsedTable::new("picky");
const DONE: Port = Port::new("done");

/// Has no encoding for odd numbers, and notices it late.
struct Picky;

impl Codec for Picky {
    type Value = u8;

    fn decode(bytes: &[u8]) -> Result<u8, String> {
        bytes.first().copied().ok_or_else(|| "nothing".to_owned())
    }

    fn encode(value: &u8, buffer: &mut Vec<u8>) -> Result<(), String> {
        buffer.push(*value);
        if value.is_multiple_of(2) { Ok(()) } else { Err("it is odd".to_owned()) }
    }
}

/// Does what a record's value says, word by word; what begins with `want` in `prefetch`.
struct Script;

impl Function for Script {
    fn describe() -> Description {
        let uses = Description::new("script", "1.0.0").uses(&RATES).uses(&NAMES).uses(&VECTORS).uses(&PICKY);
        uses.port(&DONE)
    }

    fn init(_config: Config) -> Result<Self, String> {
        Ok(Self)
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        for step in record.text().unwrap_or_default().split(' ') {
            match step.split_once(':') {
                Some(("want", key)) => wants.lookup(&RATES, key),
                Some(("want-committed", key)) => wants.lookup_at(&RATES, Consistency::Committed, key),
                Some(("want-undeclared", key)) => wants.lookup(&UNDECLARED, key),
                _ => {}
            }
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        for step in record.text()?.split(' ') {
            let (verb, argument) = step.split_once(':').unwrap_or((step, ""));
            match verb {
                "get" => context.emit(argument, format!("{:?}", context.lookup(&RATES, argument)?)),
                "get-committed" => {
                    let rate = context.lookup_at(&RATES, Consistency::Committed, argument)?;
                    context.emit(argument, format!("{rate:?}"));
                }
                "get-all" => {
                    context.emit("", format!("{:?}", context.lookup_many(&RATES, argument.split(','))?));
                }
                "name" => context.emit(argument, format!("{:?}", context.lookup(&NAMES, argument)?)),
                "undeclared" => drop(context.lookup(&UNDECLARED, argument)?),
                "scan" => {
                    let entries = context.scan(&RATES, prefix(argument), 2)?.collect::<Result<Vec<_>, _>>()?;
                    let keys = entries.iter().map(|(key, rate)| format!("{}={rate}", String::from_utf8_lossy(key)));
                    context.emit("", keys.collect::<Vec<_>>().join(","));
                }
                "add" => context.update(&RATES, argument, Update::add(1i64))?,
                "max" => context.update(&RATES, argument, Update::max(9i64))?,
                "vector" => context.update(&VECTORS, argument, Update::add(&[1.0f32, 2.0]))?,
                "rename" => context.update(&NAMES, argument, Update::put(&"n".to_owned()))?,
                "forget" => context.update(&NAMES, argument, Update::delete())?,
                "append" => context.update(&NAMES, argument, Update::append(b"item", 0))?,
                "swap" => {
                    let new = "new".to_owned();
                    context.update(&NAMES, argument, Update::compare_and_put(None, Some(&new)))?;
                }
                "odd" => context.update(&PICKY, argument, Update::compare_and_put(Some(&2), Some(&3)))?,
                "even" => context.update(&PICKY, argument, Update::compare_and_put(Some(&2), Some(&4)))?,
                "ask" => {
                    let update = Update::put_if_absent(&5);
                    context.update_asking(&RATES, argument, update, &DONE, record.key(), "tag")?;
                }
                "send" => context.send(&RATES, argument, "sent")?,
                "send-json" => context.send_json(&NAMES, argument, &7)?,
                "told" => {
                    let outcome = record.outcome()?;
                    context.emit("", format!("{} {:?}", outcome.changed, outcome.tag));
                }
                "panic" => panic!("asked to panic"),
                "reject" => return Err(Reject::new("asked to")),
                _ => {}
            }
        }
        Ok(())
    }
}

fn harness() -> Harness<Script> {
    let mut harness = Harness::new("{}");
    harness.other(&RATES).put("a", &1).put("b", &2).put("ab", &12).put("abc", &123).put("gone", &0).delete("gone");
    harness.other(&NAMES).put("a", &"ann".to_owned());
    harness
}

/// The updates as `table key change cause`.
fn updates(outcome: &Outcome) -> Vec<(&str, String, Change, usize)> {
    let show = |updated: &'_ Updated| (String::from_utf8_lossy(&updated.key).into_owned(), updated.change.clone());
    let all = outcome.updates.iter();
    all.map(|updated| (updated.table.as_str(), show(updated).0, show(updated).1, updated.cause)).collect()
}

fn plus(number: i64) -> Change {
    Change::Add(Values::from(number))
}

#[test]
fn what_a_batch_wants_is_fetched_by_one_call_a_table() {
    let mut harness = harness();
    let outcome = harness.process(records([
        "x=want:a want:b get:a get:b",
        "y=want:a want:gone get:gone get:a",
        "z=want:b want-committed:a get-committed:a get:b",
    ]));
    assert_eq!(outcome.texts(), ["Some(1)", "Some(2)", "None", "Some(1)", "Some(1)", "Some(2)"]);
    assert_eq!(harness.calls(), Calls { look_up_many: 1, look_up: 1, emit: 1, ..Calls::default() });
}

#[test]
fn what_nobody_wants_costs_a_call_a_key_once_a_batch() {
    let mut harness = harness();
    harness.process(records(["x=get:a get:a get:b", "y=get:a get:none"]));
    assert_eq!(harness.calls(), Calls { look_up: 3, emit: 1, ..Calls::default() });
    harness.process(records(["x=get:a"]));
    assert_eq!(harness.calls().look_up, 4, "an answer is kept for its batch only");
}

#[test]
fn what_is_wanted_and_not_looked_up_costs_nothing() {
    let mut harness = harness();
    harness.process(records(["x=want:a", "y=want-undeclared:a reject"]));
    assert_eq!(harness.calls(), Calls { reject: 1, ..Calls::default() });
}

#[test]
fn several_keys_are_looked_up_together() {
    let mut harness = harness();
    let outcome = harness.process(records(["x=get:a get-all:b,none,a,ab,b get:ab"]));
    assert_eq!(outcome.texts(), ["Some(1)", "[Some(2), None, Some(1), Some(12), Some(2)]", "Some(12)"]);
    assert_eq!(harness.calls(), Calls { look_up: 1, look_up_many: 1, emit: 1, ..Calls::default() });
}

#[test]
fn misuse_says_what_to_do() {
    let mut harness = harness();
    harness.other(&RATES).put_bytes("short", b"abc");
    let outcome = harness.process(records(["x=undeclared:a", "y=get:short", "z=odd:k", "u=name:a"]));
    let expected = [
        (0, "use table `undeclared`: it is not declared; add it to `describe` with `.uses(&…)`"),
        (1, "decode a value of table `rates`: 3 bytes where 8 are expected"),
        (2, "encode a value of table `picky`: it is odd"),
    ];
    assert_eq!(rejected(&outcome), expected);
    assert_eq!(outcome.texts(), ["Some(\"ann\")"]);
    assert!(outcome.updates.is_empty());
}

#[test]
fn a_scan_goes_from_page_to_page() {
    let mut harness = harness();
    let outcome = harness.process(records(["x=scan:a"]));
    assert_eq!(outcome.texts(), ["a=1,ab=12,abc=123"]);
    assert_eq!(harness.calls().scan, 2);
}

#[test]
fn updates_of_a_table_keep_their_order_and_go_together_where_they_agree() {
    let mut harness = harness();
    let outcome = harness.process(records(["x=add:a rename:a add:b", "y=add:a rename:b", "z=max:a add:a vector:v"]));
    let put = || Change::Put(b"\"n\"".to_vec());
    let expected = [
        ("rates", "a".to_owned(), plus(1), 0),
        ("rates", "b".to_owned(), plus(1), 0),
        ("rates", "a".to_owned(), plus(1), 1),
        ("names", "a".to_owned(), put(), 0),
        ("names", "b".to_owned(), put(), 1),
        ("rates", "a".to_owned(), Change::Max(Values::from(9i64)), 2),
        ("rates", "a".to_owned(), plus(1), 2),
        ("vectors", "v".to_owned(), Change::Add(Values::from([1.0f32, 2.0])), 2),
    ];
    assert_eq!(updates(&outcome), expected);
    assert_eq!(harness.calls(), Calls { update_many: 5, ..Calls::default() });
}

#[test]
fn every_operation_arrives_as_it_was_meant() {
    let outcome = harness().process(records(["x=forget:a append:b swap:c even:d odd:e"]));
    assert_eq!(rejected(&outcome).len(), 1, "the odd number has no encoding");
    let outcome = harness().process(records(["x=forget:a append:b swap:c even:d"]));
    let expected = [
        ("names", "a".to_owned(), Change::Delete, 0),
        ("names", "b".to_owned(), Change::Append { item: b"item".to_vec(), items_max: 1 }, 0),
        ("names", "c".to_owned(), Change::CompareAndPut { expected: None, value: Some(b"\"new\"".to_vec()) }, 0),
        ("picky", "d".to_owned(), Change::CompareAndPut { expected: Some(vec![2]), value: Some(vec![4]) }, 0),
    ];
    assert_eq!(updates(&outcome), expected);
}

#[test]
fn what_a_refused_record_has_updated_and_sent_is_taken_back() {
    let mut harness = harness();
    let outcome = harness.process(records([
        "x=add:a send:a",
        "y=add:lost max:lost add:lost rename:lost even:lost ask:lost send:lost forget:lost reject",
        "z=add:b send:b",
        "u=even:k odd:lost",
        "v=even:l",
    ]));
    assert_eq!(rejected(&outcome), [(1, "asked to"), (3, "encode a value of table `picky`: it is odd")]);
    let cases = Change::CompareAndPut { expected: Some(vec![2]), value: Some(vec![4]) };
    let expected = [
        ("rates", "a".to_owned(), plus(1), 0),
        ("rates", "b".to_owned(), plus(1), 2),
        ("picky", "l".to_owned(), cases, 4),
    ];
    assert_eq!(updates(&outcome), expected);
    assert_eq!(outcome.sent.iter().map(|sent| sent.cause).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(
        harness.calls(),
        Calls { update_many: 1, compare_and_put_many: 1, send: 1, reject: 2, ..Calls::default() }
    );
}

#[test]
fn outcomes_are_asked_for_and_read() {
    let outcome = harness().process(records(["x=ask:a add:a ask:b", "y=ask:c"]));
    let asked = |key: &str| Some(Asked { port: "done".to_owned(), key: key.into(), tag: b"tag".to_vec() });
    let found: Vec<_> = outcome.updates.iter().map(|updated| updated.asked.clone()).collect();
    assert_eq!(found, [asked("x"), None, asked("x"), asked("y")]);
    assert_eq!(outcome.updates[0].change, Change::PutIfAbsent(5i64.to_le_bytes().to_vec()));

    let mut harness = harness();
    let outcome = harness.process([super::outcome("x", true, " told:"), super::outcome("x", false, " told: ")]);
    assert_eq!(outcome.texts(), [format!("true {:?}", b" told:"), format!("false {:?}", b" told: ")]);
    let outcome = harness.process([record("x", ""), record("x", "2 told:")]);
    assert_eq!(rejected(&outcome), [(1, "the record is no outcome of an update")]);
}

#[test]
fn sent_records_have_the_time_of_their_record() {
    let outcome = harness().process([record("x", "send:a send-json:b").at(7), record("y", "send:c")]);
    let sent = |table: &str, key: &str, value: &str, time, cause| Sent {
        table: table.to_owned(),
        key: key.into(),
        value: value.into(),
        time,
        cause,
    };
    let expected = [
        sent("rates", "a", "sent", Some(7), 0),
        sent("rates", "c", "sent", None, 1),
        sent("names", "b", "7", Some(7), 0),
    ];
    assert_eq!(outcome.sent, expected);
}

#[test]
fn a_batch_that_is_run_again_updates_and_sends_once() {
    let outcome = harness().process(records(["x=add:a send:a", "y=add:b send:b panic", "z=add:c"]));
    assert_eq!(rejected(&outcome), [(1, "panicked: asked to panic")]);
    let expected = [("rates", "a".to_owned(), plus(1), 0), ("rates", "c".to_owned(), plus(1), 2)];
    assert_eq!(updates(&outcome), expected);
    assert_eq!(outcome.sent.len(), 1);
}

#[test]
fn a_batch_that_wants_more_than_one_lookup_may_have_is_run_in_parts() {
    let mut harness = harness();
    harness.host.limit_look_up(2);
    let records = ["a", "b", "ab", "abc", "none"].map(|key| record(key, format!("want:{key} get:{key}")));
    let outcome = harness.process(records);
    assert_eq!(outcome.texts(), ["Some(1)", "Some(2)", "Some(12)", "Some(123)", "None"]);
    assert_eq!(rejected(&outcome), []);
    let outcome = harness.process([record("x", "get-all:a,b,c"), record("y", "get:a")]);
    assert_eq!(rejected(&outcome), [(0, "read table `rates`: limit exceeded: one lookup takes at most 2 keys")]);
    assert_eq!(outcome.texts(), ["Some(1)"]);
}

#[test]
#[should_panic(expected = "the function does not declare that it uses `undeclared`")]
fn a_test_cannot_fill_what_is_not_declared() {
    harness().other(&UNDECLARED);
}

#[test]
fn a_description_carries_what_is_opened_ordered_and_used() {
    let own = crate::Table::<Fixed<i64>>::new("own");
    let description = Description::new("n", "1").table(&own).open(&own).ordered(&own).uses(&RATES);
    let declared = [description.open_tables(), description.ordered_tables(), description.used()];
    assert_eq!(declared, [["own"], ["own"], ["rates"]]);
    assert_eq!(description.into_descriptor().tables.len(), 1);
}
