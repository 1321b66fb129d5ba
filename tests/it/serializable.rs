//! Transactions: that functions which keep records apart are called for many at once, that others are called for each, and that a record which fails does so alone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{Dice, Job};
use crate::plain::{json_lines, read_json};
use crate::tables::{balances, head, integers, operator, sink, source, transfers};

const SERIALIZABLE: &str = "config = { overdraft = false }\nisolation = \"serializable\"\nparallelism = 3\n";

#[test]
fn nobody_pays_what_is_not_there_though_a_call_has_many_records() {
    let (job, events) = transfers(20_000, 500, 800, &format!("{SERIALIZABLE}batch = 64"));
    let ended = job.run().succeeded();
    let refused = read_json(&job.output_lines("refused"));
    let left = integers(&job, "transfer");
    assert_eq!(left, balances(&events, &refused));
    assert!(left.values().all(|&cents| cents >= 0), "{left:?}");
    // What was refused could indeed not be paid.
    let can_pay = |event: &&Value| event["balance"].as_i64() >= event["cents"].as_i64();
    assert_eq!(refused.iter().find(can_pay), None);
    let (calls, reruns) = (ended.figure("operators/transfer/calls"), ended.figure("operators/transfer/reruns"));
    assert!(calls < reruns + events.len() as u64 / 8, "{calls} calls for {reruns} records that ran again");
}

#[test]
fn a_refused_record_takes_nothing_of_the_others_with_it() {
    let (job, mut events) = transfers(5_000, 500, 800, &format!("{SERIALIZABLE}on-error = \"skip\"\nbatch = 64"));
    let mut wrong = 0;
    for event in events.iter_mut().skip(200).step_by(7) {
        event["cents"] = json!(-1);
        wrong += 1;
    }
    let job = job.input("events.jsonl", json_lines(&events));
    let ended = job.run().succeeded();
    assert_eq!(ended.figure("rejected"), wrong);
    events.retain(|event| event["cents"] != -1);
    let left = integers(&job, "transfer");
    assert_eq!(left, balances(&events, &read_json(&job.output_lines("refused"))));
    assert!(left.values().all(|&cents| cents >= 0), "{left:?}");
}

#[test]
fn a_record_that_panics_is_found_and_the_others_go_on() {
    let lines: Vec<String> =
        (0..4_000).map(|number| format!("{number}{}", if number % 500 == 77 { " poison" } else { "" })).collect();
    let manifest = format!(
        "{}[sources.lines]\nkind = \"file\"\npath = \"lines.txt\"\nformat = \"lines\"\n\
         [operators.work]\ncomponent = \"{{guest:panicking}}\"\ninputs = [\"lines\"]\nisolation = \"serializable\"\n\
         on-error = \"skip\"\nretries = 1\n{}",
        head(2, "50ms", ""),
        sink("out", "\"work\"", "")
    );
    let job = Job::new(&manifest).input("lines.txt", lines.join("\n") + "\n").arguments(["--log", "json"]);
    let ended = job.run().succeeded();
    let mut left = job.output_lines("out");
    let mut expected: Vec<String> = lines.into_iter().filter(|line| !line.contains("poison")).collect();
    left.sort();
    expected.sort();
    assert_eq!((left, ended.figure("rejected")), (expected, 8));
    // The SDK names the record at fault: a call fails with it, and it fails alone twice, and again, as often as it is tried, in its turn.
    assert!(ended.figure("operators/work/calls") < 200);
    let told = ended.stderr.lines().filter(|line| line.contains("\"ERROR\"") && line.contains("no stomach")).count();
    assert_eq!(told, 8, "what a record fails with is logged once:\n{}", ended.stderr);
}

/// Components of before, and of languages whose SDK does not keep records apart.
#[test]
fn a_function_that_does_not_keep_records_apart_is_called_with_one_at_a_time() {
    let mut dice = Dice(5);
    let mut record = || {
        let (key, to, n) = (dice.roll(40), dice.roll(40), 1 + dice.roll(9));
        json!({ "k": format!("k{key}"), "to": format!("k{to}"), "n": n })
    };
    let records: Vec<Value> = (0..3_000).map(|_| record()).collect();
    let manifest = [
        head(2, "50ms", ""),
        source("records"),
        operator("work", "\"records\"", "work", "mode = \"meet\"", "isolation = \"serializable\"\nparallelism = 3"),
        sink("out", "\"work\"", ""),
    ];
    let job = Job::new(&manifest.concat()).input("records.jsonl", json_lines(&records));
    let ended = job.run().succeeded();
    let mut expected = BTreeMap::<String, i64>::new();
    for record in &records {
        for key in ["k", "to"] {
            *expected.entry(record[key].as_str().unwrap().to_owned()).or_default() += record["n"].as_i64().unwrap();
        }
    }
    assert_eq!(integers(&job, "work"), expected);
    assert_eq!(job.output_lines("out").len(), records.len());
    let reruns = ended.figure("operators/work/reruns");
    assert_eq!(ended.figure("operators/work/calls"), records.len() as u64 + reruns);
}
