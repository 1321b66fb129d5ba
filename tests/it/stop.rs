//! A stop that somebody asks for while a function is at work that does not come to an end: it is over in bounded time, and nothing is lost.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Job, Running};
use crate::plain::{counts_in_state, numbers_by_key, running_counts, tally};
use crate::tables::wait_for_epochs;

const RECORDS: usize = 40;
/// Far more than a stop may take here.
const LONG: Duration = Duration::from_secs(60);

/// A job whose function loops on each record, beside a sink that tells what has been read.
fn looping(job_fields: &str, interval: &str, operator: &str) -> Job {
    let manifest = format!(
        r#"
[job]
name = "looping"
workers = 1
{job_fields}

[checkpoint]
interval = "{interval}"

[sources.records]
kind = "file"
path = "records.txt"
format = "lines"
key = "."
follow = true

[operators.work]
component = "{{guest:misbehaving}}"
inputs = ["records"]
config = {{ mode = "loop", work = "count", every = 1 }}
{operator}

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["work"]

[sinks.seen]
kind = "files"
path = "seen"
delivery = "at-least-once"
inputs = ["records"]
"#
    );
    Job::new(&manifest).input("records.txt", lines().map(|line| line + "\n").collect::<String>())
}

fn lines() -> impl Iterator<Item = String> {
    (0..RECORDS).map(|number| format!("{}", number % 7))
}

/// Starts the job, and waits until records are under way.
fn start(job: &Job, records: usize) -> Running {
    let running = job.start();
    let deadline = Instant::now() + LONG;
    while job.output_lines("seen").len() < records {
        assert!(Instant::now() < deadline, "nothing was read: {running:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

#[test]
fn a_stop_is_over_in_time_whatever_a_function_is_at() {
    // With a seal that waits for the batch already, and with none.
    for interval in ["20ms", "1h"] {
        let job = looping("stop-within = \"300ms\"", interval, "limits = { time = \"60s\" }");
        let running = start(&job, RECORDS);
        let asked = Instant::now();
        running.signal(Signal::TERM);
        let ended = running.wait().succeeded();
        assert!(asked.elapsed() < LONG, "it took {:?}", asked.elapsed());
        assert!(ended.stderr.contains("nothing is lost"), "{}", ended.stderr);
        let summary = ended.summary.as_ref().unwrap();
        assert_eq!((&summary["ended"], &summary["committed_epoch"]), (&json!("stopped-short"), &json!(0)));
        let well = ["--set", "operators.work.config.mode=count", "--set", "sources.records.follow=false"];
        job.command(["run", "job.toml"].iter().chain(&well)).succeeded();
        let expected = tally(lines());
        assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&expected));
        assert_eq!(counts_in_state(&job, "work"), expected);
    }
}

#[test]
fn a_clean_stop_completes_a_file_that_spans_epochs_though_nothing_has_come_since_the_last_one() {
    let well = ["--set", "operators.work.config.mode=count", "--set", "sinks.out.roll=1h"];
    let job = looping("", "10ms", "").arguments(well);
    let mut running = start(&job, RECORDS);
    wait_for_epochs(&job, &mut running, 4);
    assert_eq!(job.output_lines("out"), Vec::<String>::new());
    running.signal(Signal::TERM);
    assert_eq!(running.wait().succeeded().summary.unwrap()["ended"], "stopped");
    assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&tally(lines())));
}

#[test]
fn a_second_signal_ends_the_job_at_once() {
    let job = looping("stop-within = \"1h\"", "1h", "limits = { time = \"1h\" }");
    let mut running = start(&job, RECORDS);
    let asked = Instant::now();
    while running.is_running() {
        // Two that come together may count as one.
        running.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(running.wait().code(), Some(130));
    assert!(asked.elapsed() < LONG);
}

#[test]
fn a_record_that_runs_out_of_time_is_not_tried_again_when_a_stop_is_under_way() {
    let job =
        looping("stop-within = \"1h\"", "1h", "retries = 100000\non-error = \"skip\"\nlimits = { time = \"300ms\" }");
    job.write("records.txt", "1\n");
    let running = start(&job, 1);
    running.signal(Signal::TERM);
    let ended = running.wait().succeeded();
    assert_eq!(ended.summary.as_ref().unwrap()["ended"], "stopped");
    assert_eq!((ended.figure("records_in"), ended.figure("rejected")), (1, 1));
    assert!(ended.figure("committed_epoch") > 0);
}
