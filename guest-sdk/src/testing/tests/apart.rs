//! Records that are apart: each sees the state as the batch found it, and what is read is read for somebody.

use super::super::*;
use super::{SUMS, Script, harness, records, rejected};
use crate::{Config, Context, Description, Fixed, Record, Reject, Update, UsedTable, Wants};

const RATES: UsedTable<Fixed<i64>> = UsedTable::new("rates");

fn apart<F: Function>(harness: Harness<F>) -> Harness<F> {
    harness.host.set_apart(true);
    harness
}

#[test]
fn each_record_sees_what_the_batch_found_and_hands_its_own_writes_over() {
    let mut harness: Harness<Script> = apart(harness());
    harness.store("sums", "a", 5i64.to_le_bytes());
    let outcome = harness.process(records(["a=add:1 read", "b=add:2 read", "a=read add:10 read", "a=delete read"]));
    assert_eq!(outcome.texts(), ["Some(6)", "Some(2)", "Some(5)", "Some(15)", "None"]);
    assert_eq!(harness.host.take_reads(), ["0 sums/a", "1 sums/b", "2 sums/a", "3 sums/a"]);
    let expected = Calls { get_many: 1, read_for: 1, put_many: 1, delete_many: 1, emit: 1, ..Calls::default() };
    assert_eq!(harness.calls(), expected);
}

#[test]
fn a_key_that_no_record_has_is_read_for_each_that_asks_for_it() {
    let mut harness = apart(harness());
    harness.process(records(["a=add-to:x add-to:x", "b=add-to:x add-to:a", "x=read"]));
    assert_eq!(harness.host.take_reads(), ["0 sums/a", "1 sums/b", "2 sums/x", "0 sums/x", "1 sums/x", "1 sums/a"]);
    assert_eq!(harness.state(&SUMS, "a"), Some(1));
    assert_eq!(harness.state(&SUMS, "x"), Some(1), "the writes of the first and the second record are the same");
}

#[test]
fn a_refused_record_takes_nothing_of_the_others_with_it() {
    let mut harness = apart(harness());
    let outcome = harness.process(records([
        "a=add:1 count:1 emit:1",
        "a=add:9 count:10 emit:lost reject",
        "a=add:2 count:100 count:1000 emit:2",
    ]));
    assert_eq!(rejected(&outcome), [(1, "asked to")]);
    assert_eq!((outcome.texts(), outcome.counts["things"]), (vec!["1".to_owned(), "2".to_owned()], 1_101));
    assert_eq!(harness.state(&SUMS, "a"), Some(2), "the batch need not be run again: nothing was merged");
    assert_eq!(harness.calls().put_many, 1);
}

/// Adds to the rates that it has looked up: those that it said before, and others.
struct Lookups;

impl Function for Lookups {
    fn describe() -> Description {
        Description::new("lookups", "1.0.0").uses(&RATES)
    }

    fn init(_config: Config<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        wants.lookup(&RATES, record.key());
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let mut sum = context.lookup(&RATES, record.key())?.unwrap_or_default();
        for other in record.text()?.split_whitespace() {
            match other.strip_suffix("..") {
                None => sum += context.lookup(&RATES, other)?.unwrap_or_default(),
                Some(from) => {
                    for entry in context.scan(&RATES, from.., 100)? {
                        sum += entry?.1;
                    }
                }
            }
        }
        Ok(context.update(&RATES, record.key(), Update::put(&sum))?)
    }
}

#[test]
fn lookups_are_gathered_with_the_records_that_want_them() {
    let mut harness = apart(Harness::<Lookups>::new("{}"));
    harness.other(&RATES).put("a", &1).put("b", &2).put("c", &3);
    let outcome = harness.process(records(["a=", "a=c b", "b=c", "c=b.."]));
    let sums: Vec<&Change> = outcome.updates.iter().map(|updated| &updated.change).collect();
    let put = |sum: i64| Change::Put(sum.to_le_bytes().to_vec());
    assert_eq!(sums, [&put(1), &put(6), &put(5), &put(8)]);
    let expected =
        ["0 rates/a", "1 rates/a", "2 rates/b", "3 rates/c", "1 rates/c", "1 rates/b", "2 rates/c", "3 rates/b"];
    assert_eq!(harness.host.take_reads(), expected);
    assert_eq!((harness.calls().look_up_many, harness.calls().look_up), (1, 3));
}
