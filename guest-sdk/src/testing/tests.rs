//! The core over the host in memory: how many host calls a batch costs, and what refusals, panics and foreign keys do.

mod apart;
mod others;
mod versions;

use super::*;
use crate::{Config, Context, Description, Fixed, Json, Port, Record, Reject};

const SUMS: Table<Fixed<i64>> = Table::new("sums");
const NAMES: Table<Json<Vec<String>>> = Table::new("names").schema_version(3);
const UNDECLARED: Table<Fixed<i64>> = Table::new("undeclared");
const OTHER_CODEC: Table<Json<i64>> = Table::new("sums");
const LATE: Port = Port::new("late");
const NOWHERE: Port = Port::new("nowhere");

/// Does what a record's value says, word by word.
struct Script;

impl Function for Script {
    fn describe() -> Description {
        Description::new("script", "1.0.0").table(&SUMS).table(&NAMES).port(&LATE)
    }

    fn init(_config: Config) -> Result<Self, String> {
        Ok(Self)
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        for step in record.text()?.split(' ') {
            let (verb, argument) = step.split_once(':').unwrap_or((step, ""));
            match verb {
                "add" => *context.state(&SUMS)?.or_default() += argument.parse::<i64>()?,
                "add-to" => *context.state_of(&SUMS, argument)?.or_default() += 1,
                "read" => context.emit(record.key(), format!("{:?}", context.state(&SUMS)?.get())),
                "delete" => drop(context.state(&SUMS)?.delete()),
                "name" => context.state(&NAMES)?.or_default().push(argument.to_owned()),
                "emit" => context.emit(record.key(), argument),
                "late" => context.to(&LATE).time(Some(7)).emit("late-key", argument),
                "nowhere" => context.emit_at(&NOWHERE, "", ""),
                "half" => context.emit_with("", |buffer| {
                    buffer.push_str("half");
                    Err(Reject::new("half written"))
                })?,
                "log" => context.info(argument),
                "count" => context.count("things", argument.parse()?),
                "hold-two" => {
                    let _held = context.state(&SUMS)?;
                    context.state_of(&SUMS, "other")?;
                }
                "undeclared" => drop(context.state(&UNDECLARED)?),
                "other-codec" => drop(context.state(&OTHER_CODEC)?),
                "reject" => return Err(Reject::new("asked to")),
                "panic" => panic!("asked to panic"),
                _ => {}
            }
        }
        Ok(())
    }
}

fn harness() -> Harness<Script> {
    Harness::new("{}")
}

/// Records given as `key=value`.
fn records<const N: usize>(specifications: [&str; N]) -> [Input; N] {
    specifications.map(|specification| {
        let (key, value) = specification.split_once('=').unwrap();
        record(key, value)
    })
}

fn rejected(outcome: &Outcome) -> Vec<(usize, &str)> {
    outcome.rejected.iter().map(|rejected| (rejected.index, rejected.reason.as_str())).collect()
}

#[test]
fn a_batch_costs_one_call_of_each_kind_and_table() {
    let mut harness = harness();
    harness.process(records(["a=add:1 emit:x", "b=add:2 late:y", "a=add:3 name:n emit:z", "c=add:4 delete"]));
    let expected = Calls { get_many: 2, put_many: 2, emit: 2, ..Calls::default() };
    assert_eq!(harness.calls(), expected);
    assert_eq!(harness.state(&SUMS, "a"), Some(4));
    assert_eq!(harness.state(&SUMS, "b"), Some(2));
    assert_eq!(harness.state(&SUMS, "c"), None);
    assert_eq!(harness.state(&NAMES, "a"), Some(vec!["n".to_owned()]));
}

#[test]
fn a_batch_that_touches_nothing_costs_no_call() {
    let mut harness = harness();
    harness.process(records(["a=", "b="]));
    assert_eq!(harness.calls(), Calls::default());
}

#[test]
fn reading_alone_writes_nothing_back() {
    let mut harness = harness();
    harness.store("sums", "a", 5i64.to_le_bytes());
    let outcome = harness.process(records(["a=read", "b=read delete", "a=read"]));
    assert_eq!(outcome.texts(), ["Some(5)", "None", "Some(5)"]);
    assert_eq!(harness.calls(), Calls { get_many: 1, emit: 1, ..Calls::default() });
}

#[test]
fn values_and_removals_last_from_batch_to_batch() {
    let mut harness = harness();
    harness.process(records(["a=add:1", "b=add:2", "c=add:3"]));
    let outcome = harness.process(records(["a=read delete read add:5", "b=delete", "c=read"]));
    assert_eq!(outcome.texts(), ["Some(1)", "None", "Some(3)"]);
    assert_eq!(harness.state(&SUMS, "a"), Some(5));
    assert_eq!(harness.state(&SUMS, "b"), None);
    assert_eq!(harness.calls().delete_many, 1);
}

#[test]
fn output_keeps_its_order_and_names_its_cause_key_and_time() {
    let mut harness = harness();
    let [first, second] = records(["a=emit:1 late:2 emit:3", "b=emit:4"]);
    let outcome = harness.process([first.at(10), second]);
    let emitted: Vec<_> = outcome
        .emitted
        .iter()
        .map(|emitted| (emitted.port.as_str(), emitted.key_text(), emitted.text(), emitted.time, emitted.cause))
        .collect();
    let expected = [
        ("out", "a".to_owned(), "1".to_owned(), Some(10), 0),
        ("out", "a".to_owned(), "3".to_owned(), Some(10), 0),
        ("out", "b".to_owned(), "4".to_owned(), None, 1),
        ("late", "late-key".to_owned(), "2".to_owned(), Some(7), 0),
    ];
    assert_eq!(emitted, expected);
}

#[test]
fn a_record_refused_before_it_changed_state_leaves_no_trace() {
    let mut harness = harness();
    let outcome = harness.process(records([
        "a=emit:1 count:1",
        "a=emit:lost late:lost count:10 reject",
        "a=emit:2 half",
        "a=emit:3",
    ]));
    assert_eq!(rejected(&outcome), [(1, "asked to"), (2, "half written")]);
    assert_eq!(outcome.texts(), ["1", "3"]);
    assert_eq!(outcome.counts["things"], 1);
    assert_eq!(harness.calls(), Calls { emit: 1, reject: 2, ..Calls::default() });
}

#[test]
fn a_refused_record_gives_back_what_it_alone_has_changed() {
    let mut harness = harness();
    harness.store("sums", "a", 5i64.to_le_bytes());
    let outcome =
        harness.process(records(["b=add:1", "a=add:100 name:x add-to:new reject", "a=add:1 read", "new=read"]));
    assert_eq!(rejected(&outcome), [(1, "asked to")]);
    assert_eq!(outcome.texts(), ["Some(6)", "None"]);
    assert_eq!(harness.state(&NAMES, "a"), None);
    let calls = harness.calls();
    assert_eq!((calls.reject, calls.begin_record, calls.put_many), (1, 0, 1));
}

#[test]
fn a_refused_record_whose_changes_were_merged_makes_the_batch_run_again_without_it() {
    let mut harness = harness();
    let outcome =
        harness.process(records(["a=add:1 emit:1", "a=add:100 emit:lost reject", "a=add:2 read", "b=reject"]));
    assert_eq!(rejected(&outcome), [(1, "asked to"), (3, "asked to")]);
    assert_eq!(outcome.texts(), ["1", "Some(3)"]);
    assert_eq!(harness.state(&SUMS, "a"), Some(3));
    let calls = harness.calls();
    assert_eq!((calls.reject, calls.begin_record, calls.put_many), (1, 1, 1));
}

#[test]
fn a_refused_record_alone_in_its_batch_is_rejected_by_itself() {
    let mut harness = harness();
    let outcome = harness.process(records(["a=add:1 emit:1 add:1 reject"]));
    assert_eq!(rejected(&outcome), [(0, "asked to")]);
    assert_eq!(harness.state(&SUMS, "a"), None);
    assert_eq!(harness.calls(), Calls { get_many: 1, reject: 1, ..Calls::default() });
}

#[test]
fn a_panic_is_logged_names_its_record_and_spares_the_others() {
    let mut harness = harness();
    let outcome = harness.process(records(["a=add:1", "b=add:1 log:before panic", "a=add:1 read"]));
    assert_eq!(rejected(&outcome), [(1, "panicked: asked to panic")]);
    assert_eq!(outcome.texts(), ["Some(2)"]);
    assert_eq!(harness.state(&SUMS, "b"), None);
    assert_eq!(harness.calls().begin_record, 1);
    let expected = [(Level::Info, "before".to_owned()), (Level::Error, "panicked: asked to panic".to_owned())];
    assert_eq!(outcome.log, expected);
}

#[test]
fn a_failure_without_a_culprit_is_found_by_halving() {
    let mut harness = harness();
    let outcome = harness.process(records(["a=add:1", "a=add:1", "a=nowhere", "a=add:1 read", "b=add:1"]));
    assert_eq!(rejected(&outcome), [(2, "failed to emit on port `nowhere`: unknown name: port `nowhere`")]);
    assert_eq!(outcome.texts(), ["Some(3)"]);
    assert_eq!(harness.state(&SUMS, "b"), Some(1));
}

#[test]
fn any_owned_key_can_be_read_and_a_foreign_one_refuses_the_record() {
    let mut harness = harness().owning(|key| key != b"foreign");
    let outcome = harness.process(records(["a=add-to:b add-to:new", "b=add:5", "c=emit:lost add-to:foreign"]));
    assert_eq!(rejected(&outcome), [(2, "read table `sums`: key of another task: foreign")]);
    assert_eq!(harness.state(&SUMS, "b"), Some(6));
    assert_eq!(harness.state(&SUMS, "new"), Some(1));
    assert!(outcome.emitted.is_empty());
    assert_eq!(harness.calls(), Calls { get_many: 1, get: 2, put_many: 1, reject: 1, ..Calls::default() });
}

#[test]
fn misuse_of_tables_says_what_to_do() {
    let outcome = harness().process(records(["a=undeclared", "a=other-codec", "a=hold-two"]));
    let expected = [
        (0, "use table `undeclared`: it is not declared; add it to `describe` with `.table(&…)`"),
        (1, "use table `sums`: it is declared with another codec; use one constant for both"),
        (2, "use table `sums`: another entry of it is still held; let go of that one first"),
    ];
    assert_eq!(rejected(&outcome), expected);
}

#[test]
fn a_stored_value_that_does_not_decode_refuses_only_its_records() {
    let mut harness = harness();
    harness.store("sums", "a", "abc");
    let outcome = harness.process(records(["a=add:1", "b=add:1"]));
    assert_eq!(rejected(&outcome), [(0, "decode a value of table `sums`: 3 bytes where 8 are expected")]);
    assert_eq!(harness.state(&SUMS, "b"), Some(1));
}

#[test]
fn a_description_carries_tables_versions_and_ports() {
    let descriptor = Script::describe().into_descriptor();
    let tables: Vec<_> = descriptor.tables.iter().map(|table| (table.name.as_str(), table.schema_version)).collect();
    assert_eq!(tables, [("sums", 1), ("names", 3)]);
    assert_eq!(descriptor.ports, ["late"]);
}
