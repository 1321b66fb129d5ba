//! Functions that misbehave: each is handled as its operator's `on-error` says, and the results of all other records stay right.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use wasmill::key::KeyHash;

use crate::harness::{Ended, Job};
use crate::plain::{Tally, counts_in_state, numbers_by_key, read_json, running_counts, sorted, tally, text};

/// Records are numbered from 1; with `every = 1000` the function finds those bad whose number is a multiple of it.
const RECORDS: u64 = 5_000;
const EVERY: u64 = 1_000;
const COUNTED_BAD: &str = "work = \"count\", every = 1000";

struct Record {
    number: u64,
    key: String,
    value: String,
}

fn record(number: u64, key: String) -> Record {
    let value = format!(r#"{{"n":{number},"k":"{key}"}}"#);
    Record { number, key, value }
}

fn records(count: u64) -> Vec<Record> {
    (1..=count).map(|number| record(number, format!("k{}", number * 11 % 23))).collect()
}

fn lines(records: &[Record]) -> String {
    records.iter().map(|record| record.value.clone() + "\n").collect()
}

fn bad(records: &[Record], every: u64) -> Vec<&Record> {
    records.iter().filter(|record| record.number.is_multiple_of(every)).collect()
}

fn good_counts(records: &[Record], every: u64) -> Tally {
    tally(records.iter().filter(|record| !record.number.is_multiple_of(every)).map(|record| &*record.key))
}

/// A job that has the function `work` on records, with this config and these further fields of the operator.
fn manifest(config: &str, rules: &str) -> String {
    let bad_sink = if rules.contains("dead-letter") { "[sinks.bad]\nkind = \"files\"\npath = \"bad\"" } else { "" };
    format!(
        r#"
[job]
name = "misbehaviour"
workers = 2
partitions = 4

[checkpoint]
interval = "200ms"

[sources.records]
kind = "file"
path = "records.jsonl"
format = "jsonl"
key = "/k"

[operators.work]
component = "{{guest:misbehaving}}"
inputs = ["records"]
config = {{ {config} }}
{rules}

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["work"]

{bad_sink}
"#
    )
}

fn job_over(records: &[Record], config: &str, rules: &str) -> Job {
    Job::new(&manifest(config, rules)).input("records.jsonl", lines(records))
}

fn job(config: &str, rules: &str) -> Job {
    job_over(&records(RECORDS), config, rules)
}

const DEAD_LETTERS: &str = "on-error = \"dead-letter\"\ndead-letter = \"bad\"\n";

#[track_caller]
fn assert_good_are_counted(job: &Job, records: &[Record], every: u64) {
    let expected = good_counts(records, every);
    assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&expected));
    assert_eq!(counts_in_state(job, "work"), expected);
}

/// Bad records, and no others, are dead letters with everything that can be said of them.
#[track_caller]
fn assert_letters(job: &Job, ended: &Ended, expected: &[&Record], error: &str) {
    let mut found = Vec::new();
    for letter in read_json(&job.output_lines("bad")) {
        assert_eq!(text(&letter, "operator"), "work");
        assert!(text(&letter, "error").contains(error), "`{error}` is not in {letter}");
        found.push((text(&letter, "key"), text(&letter, "value")));
    }
    let expected = expected.iter().map(|record| (record.key.clone(), record.value.clone())).collect();
    assert_eq!(sorted(found), sorted::<(String, String)>(expected));
    assert_eq!(ended.figure("rejected"), found_count(job));
    assert_eq!(ended.figure("operators/work/rejected"), found_count(job));
}

fn found_count(job: &Job) -> u64 {
    job.output_lines("bad").len() as u64
}

/// The bad records of `mode` are dead letters with this `error`; the others are counted as if there had been no bad ones.
#[track_caller]
fn check_in(mode: &str, rules: &str, error: &str) {
    let job = job(&format!("mode = {mode}, {COUNTED_BAD}"), &format!("{DEAD_LETTERS}{rules}"));
    let ended = job.run().succeeded();
    let records = records(RECORDS);
    assert_letters(&job, &ended, &bad(&records, EVERY), error);
    assert_good_are_counted(&job, &records, EVERY);
}

#[test]
fn a_trap_is_found_by_halving() {
    check_in("\"trap\"", "", "unreachable");
}

#[test]
fn a_trap_over_a_named_record_costs_that_record() {
    check_in("\"panic-marked\"", "", "unreachable");
}

#[test]
fn a_returned_error_costs_its_record() {
    check_in("\"error\"", "", "is bad");
}

#[test]
fn a_rejected_record_is_refused_alone() {
    check_in("\"reject\"", "", "the record is bad");
}

#[test]
fn a_record_that_wants_too_much_memory_is_refused() {
    check_in("\"memory\"", "limits = { memory = \"8MiB\" }", "`limits.memory` is 8388608");
}

#[test]
fn a_recursion_without_end_costs_its_record() {
    check_in("\"deep-recursion\"", "", "wasm trap");
}

#[test]
fn columns_that_contradict_themselves_are_refused_each_for_what_is_wrong() {
    let faults = [
        ("decreasing-ends", "end"),
        ("overrunning-ends", "end"),
        ("bytes-left-over", "bytes"),
        ("missing-value", "values"),
        ("missing-time", "times"),
        ("missing-index", "2 items, but 1 record indices"),
        ("index-outside", "record index 4294967295 in a batch of"),
    ];
    for (fault, error) in faults {
        check_in(&format!("\"bad-columns\", columns = \"{fault}\""), "", error);
    }
}

#[test]
fn a_loop_is_ended_and_the_other_records_go_on() {
    let (records, every) = (records(600), 200);
    let rules = format!("{DEAD_LETTERS}batch = 64\nlimits = {{ time = \"200ms\" }}");
    let job = job_over(&records, "mode = \"loop\", work = \"count\", every = 200", &rules);
    let ended = job.run().succeeded();
    assert_letters(&job, &ended, &bad(&records, every), "it ran longer than `limits.time`, 200ms");
    assert_good_are_counted(&job, &records, every);
}

#[test]
fn state_of_a_key_that_another_task_owns_cannot_be_written() {
    let partition = |key: &str| KeyHash::of(key.as_bytes()).partition(4);
    let is_elsewhere = |key: &String| partition(&format!("{key}/foreign")) != partition(key);
    let mut keys = (0..).map(|n| format!("k{n}")).filter(is_elsewhere);
    let keys = keys.by_ref().take(20).collect::<Vec<_>>();
    let records = (1..=RECORDS).map(|number| record(number, keys[number as usize % 20].clone())).collect::<Vec<_>>();
    let rules = format!("{DEAD_LETTERS}parallelism = 4");
    let job = job_over(&records, &format!("mode = \"foreign-key\", {COUNTED_BAD}"), &rules);
    let ended = job.run().succeeded();
    assert_letters(&job, &ended, &bad(&records, EVERY), "is not owned by this task");
    assert_good_are_counted(&job, &records, EVERY);
}

#[test]
fn skipped_records_are_counted() {
    let job = job(&format!("mode = \"trap\", {COUNTED_BAD}"), "on-error = \"skip\"");
    let ended = job.run().succeeded();
    let records = records(RECORDS);
    assert_good_are_counted(&job, &records, EVERY);
    assert_eq!(ended.figure("rejected"), bad(&records, EVERY).len() as u64);
    assert_eq!(ended.figure("records_in"), RECORDS);
}

#[test]
fn without_a_rule_a_bad_record_stops_the_job_and_is_named() {
    let named = format!("key `{}`", records(EVERY).last().unwrap().key);
    for (mode, error) in [("trap", "unreachable"), ("panic-marked", "unreachable"), ("reject", "the record is bad")] {
        let config = format!("mode = \"{mode}\", work = \"count\", every = {}", EVERY);
        let job = job_over(&records(EVERY + 10), &config, "");
        job.run().failed(4, &["operator `work`", &named, error, "on-error"]);
        // A new start meets the same record.
        job.run().failed(4, &[&named]);
    }
}

#[test]
fn a_job_that_a_record_has_stopped_goes_on_under_another_rule_as_if_it_had_always_been_so() {
    let records = records(RECORDS);
    let job = job(&format!("mode = \"trap\", {COUNTED_BAD}"), "");
    job.run().failed(4, &["operator `work`"]);
    job.command(["run", "job.toml", "--set", "operators.work.on-error=skip"]).succeeded();
    assert_good_are_counted(&job, &records, EVERY);
}

#[test]
fn many_bad_records_of_one_batch_are_found_each() {
    let (records, every) = (records(2_000), 10);
    for mode in ["trap", "panic-marked", "reject"] {
        let config = format!("mode = \"{mode}\", work = \"count\", every = {every}");
        let job = job_over(&records, &config, DEAD_LETTERS);
        let ended = job.run().succeeded();
        assert_letters(&job, &ended, &bad(&records, every), if mode == "reject" { "is bad" } else { "unreachable" });
        assert_good_are_counted(&job, &records, every);
    }
}

/// The limit is on the time that a function runs, not on the time that passes: here far more passes than it allows.
#[test]
fn a_process_that_is_stopped_for_a_while_refuses_nothing() {
    let count = 10_000;
    let limit = Duration::from_millis(400);
    let rules = format!("batch = 64\nlimits = {{ time = \"{}ms\" }}", limit.as_millis());
    let job = flood(count, &rules);
    let running = job.start();
    let deadline = Instant::now() + Duration::from_secs(40);
    while !job.path("state/committed").exists() {
        assert!(Instant::now() < deadline, "the job has not begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..4 {
        running.signal(Signal::STOP);
        std::thread::sleep(limit + Duration::from_millis(100));
        running.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = running.wait().succeeded();
    assert_eq!((ended.figure("rejected"), ended.figure("operators/work/failures")), (0, 0));
    assert_eq!(ended.figure("sinks/nowhere"), count * 1_000);
}

#[test]
fn a_failing_record_is_tried_as_often_as_asked_and_a_rejected_one_once() {
    let failures = |mode: &str, rules: &str| {
        let config = format!("mode = \"{mode}\", every = 10");
        let job = job_over(&records(19), &config, &format!("on-error = \"skip\"\nbatch = 1\n{rules}"));
        let ended = job.run().succeeded();
        assert_eq!((ended.figure("rejected"), ended.figure("records_out")), (1, 18));
        ended.figure("operators/work/failures")
    };
    assert_eq!(failures("trap", ""), 1);
    assert_eq!(failures("trap", "retries = 2"), 3);
    assert_eq!(failures("reject", "retries = 2"), 0);
}

fn flood(count: u64, rules: &str) -> Job {
    let to_nowhere = r#"
[sinks.nowhere]
kind = "blackhole"
inputs = ["work"]
"#;
    let manifest = manifest("mode = \"flood\"", rules).replace("inputs = [\"work\"]", "inputs = [\"records\"]");
    Job::new(&format!("{manifest}{to_nowhere}")).input("records.jsonl", lines(&records(count)))
}

#[test]
fn each_record_may_bring_forth_a_thousand() {
    let count = 2_000;
    let ended = flood(count, "").run().succeeded();
    assert_eq!(ended.figure("sinks/nowhere"), count * 1_000);
    assert_eq!(ended.figure("operators/work/records_out"), count * 1_000);
}

#[test]
fn a_batch_that_emits_more_than_it_may_is_run_in_parts() {
    let count = 1_000;
    let ended = flood(count, "limits = { output = \"1MiB\" }").run().succeeded();
    assert_eq!(ended.figure("sinks/nowhere"), count * 1_000);
    assert!(ended.figure("operators/work/failures") > 0);
    assert_eq!(ended.figure("rejected"), 0);
}

#[test]
fn a_record_that_emits_more_than_it_may_alone_is_refused() {
    let count = 100;
    let ended = flood(count, "limits = { output = \"1KiB\" }\non-error = \"skip\"").run().succeeded();
    assert_eq!((ended.figure("sinks/nowhere"), ended.figure("rejected")), (0, count));
}

#[test]
fn a_flood_of_log_lines_is_cut_and_does_no_harm() {
    let job = job(&format!("mode = \"log-flood\", {COUNTED_BAD}"), "");
    let ended = job.run().succeeded();
    let expected = tally(records(RECORDS).iter().map(|record| &*record.key));
    assert_eq!(counts_in_state(&job, "work"), expected);
    let lines = ended.stderr.lines().filter(|line| line.contains("of a flood")).count() as u64;
    let cut = ended.stderr.lines().filter(|line| line.contains("`limits.log-lines` is 100")).count() as u64;
    assert!((1..=RECORDS / EVERY).contains(&cut), "{}", ended.stderr);
    assert_eq!(lines, cut * 100);
}

#[test]
fn the_limit_of_log_lines_is_that_of_a_batch_however_often_it_is_run() {
    let job = job_over(&records(19), "mode = \"log-flood-and-trap\", every = 10", "on-error = \"skip\"\nretries = 2");
    let ended = job.run().succeeded();
    assert!(ended.figure("operators/work/failures") > 3, "the batch was halved");
    let written = |part: &str| ended.stderr.lines().filter(|line| line.contains(part)).count();
    assert_eq!((written("of a flood"), written("`limits.log-lines` is 100")), (100, 1), "{}", ended.stderr);
}

/// Whether the function names the record, and however often it is tried.
#[test]
fn what_a_record_fails_with_is_logged_once() {
    let input = "1 poison\n2\n3 poison\n4\n5 poison\n";
    let manifest = manifest("", "on-error = \"skip\"\nretries = 3").replace("guest:misbehaving", "guest:panicking");
    let manifest = manifest.replace("format = \"jsonl\"\nkey = \"/k\"", "format = \"lines\"");
    let job = Job::new(&manifest).input("records.jsonl", input).arguments(["--log", "json"]);
    let ended = job.run().succeeded();
    assert_eq!(ended.figure("rejected"), 3);
    assert!(ended.figure("operators/work/failures") >= 3 * 4);
    let told = ended.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    let of_level = |level: &str, part: &str| {
        let is_meant = |line: &&Value| line["level"] == level && line["message"].as_str().unwrap().contains(part);
        told.iter().filter(is_meant).count()
    };
    for number in [1, 3, 5] {
        let message = format!("no stomach for `{number} poison`");
        assert_eq!((of_level("ERROR", &message), of_level("WARN", &message)), (1, 1), "{}", ended.stderr);
    }
    // Its back-trace is for people.
    assert_eq!(of_level("WARN", "wasm!core::panicking::panic_fmt"), 3, "{}", ended.stderr);
}

#[test]
fn a_panic_is_logged_with_its_message_and_costs_its_record() {
    let records = records(3_000);
    let poisoned = [5, 1_234, 2_999];
    let mut input = String::new();
    for record in &records {
        let extra = if poisoned.contains(&record.number) { ",\"x\":\"poison\"}" } else { "}" };
        input += &(record.value.strip_suffix('}').unwrap().to_owned() + extra + "\n");
    }
    let manifest = manifest("", DEAD_LETTERS).replace("guest:misbehaving", "guest:panicking");
    let job = Job::new(&manifest).input("records.jsonl", input);
    let ended = job.run().succeeded();
    let letters = read_json(&job.output_lines("bad"));
    let number = |letter: &Value| serde_json::from_str::<Value>(letter["value"].as_str()?).ok()?["n"].as_u64();
    assert_eq!(sorted(letters.iter().filter_map(number).collect()), poisoned);
    assert_eq!(job.output_lines("out").len(), records.len() - poisoned.len());
    for number in poisoned {
        let message = format!("no stomach for `{{\"n\":{number},");
        assert!(ended.stderr.contains(&message), "`{message}` is not in the log:\n{}", ended.stderr);
        let is_told = |letter: &Value| text(letter, "error").contains(&message);
        assert!(letters.iter().any(is_told), "`{message}` is in no dead letter: {letters:?}");
    }
    // The record is named by the SDK, so nothing is run but the batch, the parts beside the record, and the record.
    assert_eq!(ended.figure("operators/work/failures"), 2 * poisoned.len() as u64);
}

#[test]
fn a_refused_config_is_told_before_anything_is_read() {
    let job = job("mode = \"init-error\"", "");
    job.run().failed(2, &["operator `work`", "told by its config to refuse its config", "`config`"]);
    assert_eq!(job.output_lines("out"), [""; 0]);
}

#[test]
fn what_is_no_function_is_refused_with_what_it_is() {
    let cases: [(&str, &[u8], &str); 4] = [
        ("core.wasm", b"\0asm\x01\0\0\0", "is a core Wasm module, not a component"),
        (
            "random.wasm",
            b"\x17random bytes, not Wasm at all",
            "is not a valid component: it does not begin as Wasm does",
        ),
        ("empty.wasm", b"", "is not a valid component"),
        ("cut.wasm", b"\0asm\x0d\0\x01\0\x07", "is not a valid component"),
    ];
    for (file, bytes, message) in cases {
        let job = job("", "");
        job.write(file, bytes);
        check_unusable(&job, file, message);
    }
    let job = job("", "");
    check_unusable(&job, "missing.wasm", "cannot read `");
    let foreign = crate::harness::guest("foreign-world");
    check_unusable(&job, foreign.to_str().unwrap(), "does not implement `wasmill:operator/operator@0.1.0`");
}

#[track_caller]
fn check_unusable(job: &Job, component: &str, message: &str) {
    let set = format!("operators.work.component={component}");
    for command in ["check", "run"] {
        job.command([command, "job.toml", "--set", &set]).failed(2, &["work", component, message]);
    }
    job.command(["inspect", component]).failed(2, &[component, message]);
    assert!(!job.path("state").exists(), "nothing is made for a job that cannot start");
}

/// On the same worker, while the loop still runs: its limit is a minute, and the other branch's output is visible at once.
#[test]
fn an_operator_that_loops_does_not_hold_up_another_branch() {
    // No more than is in flight at once: what a source may admit beyond that has to wait for both branches.
    let count = 400;
    let branch = r#"
[operators.other]
component = "{guest:misbehaving}"
inputs = ["records"]
config = { mode = "count" }

[sinks.other-out]
kind = "files"
path = "other"
delivery = "at-least-once"
format = "jsonl"
inputs = ["other"]
"#;
    let looping = manifest("mode = \"loop\", every = 1", "limits = { time = \"60s\" }");
    let job = Job::new(&format!("{looping}{branch}").replace("workers = 2", "workers = 1"))
        .input("records.jsonl", lines(&records(count)));
    let running = job.start();
    let deadline = Instant::now() + Duration::from_secs(40);
    while job.output_lines("other").len() < count as usize {
        assert!(Instant::now() < deadline, "the other branch made {} records", job.output_lines("other").len());
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = running.kill();
    assert_eq!(ended.code(), None, "the job was still at work: {}", ended.stderr);
    let expected = tally(records(count).iter().map(|record| &*record.key));
    assert_eq!(numbers_by_key(&job.output_lines("other")), running_counts(&expected));
}
