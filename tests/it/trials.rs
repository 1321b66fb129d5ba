//! Trials of new versions: one that fails leaves no trace, neither in the output nor in the state, and the job goes on.

use std::time::Duration;

use serde_json::Value;

use crate::asking::serving;
use crate::harness::{Ended, Job};
use crate::reload::{KEYS, component, finish, job, output, status, visits, wait_for};

/// Asks for a reload with a trial of half a second.
fn try_out(job: &Job, release: u64, more: &[&str]) -> Ended {
    job.write("new.wasm", component(release));
    let arguments = ["reload", "job.toml", "work", "new.wasm", "--json", "--trial", "10"];
    job.command(arguments.iter().chain(more))
}

/// The job's only output is that of releases that were not rolled back, and no record is lost or doubled.
#[track_caller]
fn check_output(job: &Job, rounds: u64, releases: &[u64]) {
    let output = output(job);
    assert_eq!(output.len() as u64, KEYS);
    for (key, records) in output {
        let numbers: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..=rounds).collect::<Vec<_>>(), "the records of {key}");
        assert!(records.iter().all(|(_, by)| releases.contains(by)), "{key}: {records:?}");
        assert!(records.is_sorted_by_key(|(_, by)| *by), "{key}: {records:?}");
    }
}

/// Writes rounds of records until `done` returns; how many.
fn under_load<T: Send>(job: &Job, done: impl FnOnce() -> T + Send) -> (u64, T) {
    std::thread::scope(|scope| {
        let done = scope.spawn(done);
        let mut rounds = 0;
        while !done.is_finished() {
            visits(job, 0..KEYS);
            rounds += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        (rounds, done.join().unwrap())
    })
}

#[test]
fn a_version_that_fails_in_its_trial_leaves_no_trace_and_one_that_stands_it_goes_on() {
    let job = job("panics_from = 5").arguments(["--set", "operators.work.on-error='skip'"]);
    let mut running = job.start();
    serving(&job, &mut running);
    visits(&job, 0..KEYS);
    wait_for("the first records", || job.output_lines("out").len() as u64 == KEYS);
    let (failing, _) = under_load(&job, || {
        try_out(&job, 5, &[]).failed(2, &["its trial has failed", "calls failed, of the version before 0 of"])
    });
    assert_eq!(status(&job, &mut running)["version"], "1.0.0");
    let (standing, told) = under_load(&job, || try_out(&job, 3, &[]).succeeded());
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((&told["from"]["version"], &told["to"]["version"]), (&"1.0.0".into(), &"1.0.3".into()));
    assert_eq!(status(&job, &mut running)["version"], "1.0.3");
    visits(&job, 0..KEYS);
    let rounds = 2 + failing + standing;
    wait_for("all records", || job.output_lines("out").len() as u64 == rounds * KEYS);
    running.signal(rustix::process::Signal::TERM);
    running.wait().succeeded();
    check_output(&job, rounds, &[0, 3]);
}

#[test]
fn a_trial_ends_a_job_neither_by_a_record_that_stops_it_nor_by_a_kill_in_between() {
    let job = job("panics_from = 5").arguments(["--set", "operators.work.on-error='stop'"]);
    let mut running = job.start();
    serving(&job, &mut running);
    // By the job's end or by its share of failures, whichever is seen first.
    let (rounds, ended) = under_load(&job, || try_out(&job, 5, &[]));
    assert!(ended.code() == Some(2) && ended.stderr.contains("its trial has failed"), "{}", ended.stderr);
    // Killed in the middle of a trial, the job goes on with the version before.
    job.write("new.wasm", component(4));
    let asked = job.start_command(["reload", "job.toml", "work", "new.wasm", "--trial", "1000000"]);
    visits(&job, 0..KEYS);
    std::thread::sleep(Duration::from_millis(300));
    running.kill();
    asked.wait().failed(1, &[]);
    finish(&job);
    check_output(&job, rounds + 1, &[0]);
}

#[test]
fn a_version_that_is_slower_than_it_may_be_is_rolled_back() {
    let job = job("slow_from = 5");
    let mut running = job.start();
    serving(&job, &mut running);
    (0..20).for_each(|_| visits(&job, 0..KEYS));
    wait_for("the first records", || job.output_lines("out").len() as u64 == 20 * KEYS);
    let (rounds, _) = under_load(&job, || {
        try_out(&job, 5, &["--slower-than", "8"]).failed(2, &["its trial has failed", "more than 8 times as long"])
    });
    running.kill();
    finish(&job);
    check_output(&job, 20 + rounds, &[0]);
}

#[test]
fn what_cannot_be_tried_is_refused() {
    let job = job("");
    let mut running = job.start();
    serving(&job, &mut running);
    try_out(&job, 1, &["--slower-than", "0"]).failed(2, &["how many times slower it may be is a number above 0"]);
    job.command(["reload", "job.toml", "work", "new.wasm", "--slower-than", "2"]).failed(2, &["--trial"]);
    job.command(["reload", "job.toml", "work", "new.wasm", "--trial", "0"]).failed(2, &["at least 1 epoch"]);
    running.kill();
}
