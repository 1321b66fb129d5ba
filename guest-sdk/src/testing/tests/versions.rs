//! Versioned tables: what is written of them, what is found as of times, and what a batch that comes too early leaves behind.

use std::time::Duration;

use super::super::*;
use super::rejected;
use crate::{Codec, Config, Context, Description, Fixed, Record, Reject, UsedTable, Wants};

const PRICES: Table<Fixed<i64>> = Table::new("prices");
const EVEN: Table<Even> = Table::new("even");
const OTHERS: UsedTable<Fixed<i64>> = UsedTable::new("others");

/// Has no encoding for odd numbers.
struct Even;

impl Codec for Even {
    type Value = i64;

    fn decode(bytes: &[u8]) -> Result<i64, String> {
        Fixed::<i64>::decode(bytes)
    }

    fn encode(value: &i64, buffer: &mut Vec<u8>) -> Result<(), String> {
        if value % 2 == 0 { Fixed::<i64>::encode(value, buffer) } else { Err("it is odd".to_owned()) }
    }
}

/// Does what a record's value says, word by word; what begins with `want` in `prefetch`.
struct Script;

impl Function for Script {
    fn describe() -> Description {
        let own = Description::new("script", "1.0.0").table(&PRICES).table(&EVEN).uses(&OTHERS);
        own.versioned(&PRICES, Duration::from_secs(60)).versioned(&EVEN, Duration::from_millis(1))
    }

    fn init(_config: Config) -> Result<Self, String> {
        Ok(Self)
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        let time = record.time().unwrap_or_default();
        for step in record.text().unwrap_or_default().split(' ') {
            match step.split_once(':') {
                Some(("want", key)) => wants.lookup_as_of(&OTHERS, key, time),
                Some(("want-known", key)) => wants.lookup_as_of_waiting(&OTHERS, key, time),
                _ => {}
            }
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let time = record.time().unwrap_or_default();
        for step in record.text()?.split(' ') {
            let (verb, argument) = step.split_once(':').unwrap_or((step, ""));
            match verb {
                "put" => context.state(&PRICES)?.put(argument.parse()?),
                "put-even" => context.state(&EVEN)?.put(argument.parse()?),
                "delete" => drop(context.state(&PRICES)?.delete()),
                "read" => context.emit(record.key(), format!("{:?}", context.state(&PRICES)?.get())),
                "get" => context.emit(argument, format!("{:?}", context.lookup_as_of(&OTHERS, argument, time)?)),
                "get-known" => {
                    let known = context.lookup_as_of_waiting(&OTHERS, argument, time)?;
                    context.emit(argument, format!("{known:?}"));
                }
                "try-known" => {
                    // As a function should not: it goes on without the answer.
                    let known = context.lookup_as_of_waiting(&OTHERS, argument, time);
                    context.emit(argument, known.map_or_else(|error| error.to_string(), |known| format!("{known:?}")));
                }
                "panic" => panic!("asked to panic"),
                _ => {}
            }
        }
        Ok(())
    }
}

fn at<const N: usize>(records: [(&str, i64, &str); N]) -> [Input; N] {
    records.map(|(key, time, value)| record(key, value).at(time))
}

#[test]
fn what_each_record_of_a_batch_leaves_is_kept_for_its_time() {
    let mut harness = Harness::<Script>::new("{}");
    let outcome = harness.process(at([
        ("a", 10, "put:1 put:2"),
        ("b", 11, "put:5"),
        ("a", 20, "read put:3"),
        ("a", 30, "delete"),
        ("a", 15, "put:4"),
    ]));
    assert_eq!((outcome.texts(), rejected(&outcome)), (vec!["Some(2)".to_owned()], vec![]));
    let as_of = |time| harness.state_as_of(&PRICES, "a", time);
    assert_eq!(
        [9, 10, 14, 15, 19, 20, 29, 30].map(as_of),
        [None, Some(2), Some(2), Some(4), Some(4), Some(3), Some(3), None]
    );
    assert_eq!((harness.state(&PRICES, "a"), harness.state(&PRICES, "b")), (None, Some(5)));
    assert_eq!(harness.calls(), Calls { get_many: 1, put_many: 2, delete_many: 1, emit: 1, ..Calls::default() });
}

#[test]
fn of_one_time_the_last_record_counts_also_where_it_removes_or_comes_after_a_removal() {
    let mut harness = Harness::<Script>::new("{}");
    harness.process(at([("a", 10, "put:1"), ("a", 10, "delete"), ("a", 10, "put:2")]));
    assert_eq!(harness.state_as_of(&PRICES, "a", 10), Some(2));
    harness.process(at([("a", 20, "put:3"), ("a", 20, "delete")]));
    assert_eq!((harness.state_as_of(&PRICES, "a", 19), harness.state_as_of(&PRICES, "a", 20)), (Some(2), None));
    harness.process([record("a", "put:4")]);
    assert_eq!(harness.state_as_of(&PRICES, "a", 20), Some(4), "without a time it is written at the newest");
}

#[test]
fn a_value_without_an_encoding_is_its_records_fault_though_another_record_follows() {
    let mut harness = Harness::<Script>::new("{}");
    let outcome = harness.process(at([("a", 10, "put-even:2"), ("a", 20, "put-even:3"), ("a", 30, "put-even:4")]));
    assert_eq!(rejected(&outcome), [(1, "failed to encode a value of table `even`: it is odd")]);
    assert_eq!([10, 20, 30].map(|time| harness.state_as_of(&EVEN, "a", time)), [Some(2), Some(2), Some(4)]);
}

#[test]
fn keys_are_looked_up_each_as_of_its_records_time() {
    let mut harness = Harness::<Script>::new("{}");
    harness.other(&OTHERS).put_at("k", 10, &1).put_at("k", 20, &2).delete_at("k", 30).put("l", &7);
    let outcome = harness.process(at([
        ("x", 9, "want:k get:k"),
        ("x", 10, "want:k get:k"),
        ("x", 25, "want:k get:k get:k"),
        ("x", 30, "want:k get:k want:l get:l"),
    ]));
    assert_eq!(outcome.texts(), ["None", "Some(1)", "Some(2)", "Some(2)", "None", "Some(7)"]);
    assert_eq!(harness.calls(), Calls { look_up_many_at: 1, emit: 1, ..Calls::default() });
    harness.process(at([("x", 9, "get:k get:l get:k")]));
    assert_eq!(harness.calls().look_up_many_at, 3, "what nobody wants costs a call a key");
}

#[test]
fn a_record_that_comes_too_early_waits_with_all_behind_it() {
    let mut harness = Harness::<Script>::new("{}");
    harness.other(&OTHERS).put_at("k", 10, &1).reached(19);
    let records = [
        ("x", 18, "want-known:k get-known:k put:1"),
        ("x", 19, "want-known:k get-known:k"),
        ("x", 20, "want-known:k get-known:k put:2"),
        ("x", 3, "get:k"),
        ("y", 4, "panic"),
    ];
    let outcome = harness.process(at(records));
    assert_eq!((outcome.texts(), outcome.waiting), (vec!["Some(1)".to_owned(); 2], vec![2, 3, 4]));
    assert_eq!((outcome.rejected, harness.state(&PRICES, "x")), (vec![], Some(1)));

    harness.other(&OTHERS).put_at("k", 20, &2).reached(20);
    let outcome = harness.process(at(records).into_iter().skip(2));
    assert_eq!((outcome.texts(), outcome.waiting.clone()), (vec!["Some(2)".to_owned(), "None".to_owned()], vec![]));
    assert_eq!((rejected(&outcome), harness.state(&PRICES, "x")), (vec![(2, "panicked: asked to panic")], Some(2)));
}

#[test]
fn a_function_that_goes_on_without_the_answer_waits_all_the_same() {
    let mut harness = Harness::<Script>::new("{}");
    harness.other(&OTHERS).reached(5);
    let outcome = harness.process(at([("x", 5, "try-known:k"), ("x", 6, "try-known:k")]));
    assert_eq!((outcome.texts(), outcome.waiting), (vec!["None".to_owned()], vec![1]));
}

#[test]
fn a_description_carries_the_spans() {
    assert_eq!(Script::describe().versioned_tables(), [("prices", 60_000), ("even", 1)]);
}
