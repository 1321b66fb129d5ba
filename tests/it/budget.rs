//! State that is larger than its memory, and input that comes slowly, grows, or cannot be read again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Job, Running};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// A manifest of a counter between a source and the sink `out`.
fn counter(job: &str, source: &str, operator: &str, sinks: &str) -> String {
    format!(
        r#"
        [job]
        name = "counter"
        workers = 2
        {job}
        [sources.in]
        format = "lines"
        key = "."
        {source}
        [operators.count]
        component = "{{guest:misbehaving}}"
        inputs = ["in"]
        config = {{ mode = "count" }}
        {operator}
        [sinks.out]
        kind = "files"
        path = "out"
        format = "jsonl"
        inputs = ["count"]
        {sinks}
        "#
    )
}

const FILE: &str = "kind = 'file'\npath = 'in.txt'";
const FOLLOWED: &str = "kind = 'file'\npath = 'in.txt'\nfollow = true";
const OFTEN: &str = "[checkpoint]\ninterval = '50ms'";

fn counts<'a>(lines: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    lines.into_iter().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
    counts
}

/// Output and state must be those of a counter over these lines.
fn check_counted<'a>(job: &Job, lines: impl IntoIterator<Item = &'a str>) {
    let expected = counts(lines);
    let mut found = BTreeMap::<String, u64>::new();
    for line in job.output_lines("out") {
        let record: Value = serde_json::from_str(&line).unwrap();
        let count = found.entry(record["key"].as_str().unwrap().to_owned()).or_default();
        *count += 1;
        assert_eq!(record["value"], *count, "{line}");
    }
    assert!(found == expected, "{} keys in the output, {} expected, or other counts", found.len(), expected.len());
    let state: BTreeMap<_, _> =
        job.state("count").into_iter().map(|(key, count)| (key, count.as_u64().unwrap())).collect();
    assert!(state == expected, "{} keys in the state, {} expected, or other counts", state.len(), expected.len());
}

fn wait_until(what: &str, job: &mut Running, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX && job.is_running(), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait_for_lines(job: &Job, running: &mut Running, folder: &str, lines: usize) {
    wait_until(&format!("{lines} lines are in {folder}"), running, || job.output_lines(folder).len() >= lines);
}

fn append(job: &Job, text: &str) {
    let mut file = OpenOptions::new().append(true).open(job.path("in.txt")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn stop(running: Running) -> u64 {
    running.signal(Signal::TERM);
    let ended = running.wait().succeeded();
    assert_eq!(ended.summary.as_ref().unwrap()["ended"], "stopped");
    ended.figure("records_in")
}

const LARGE_KEYS: usize = 150_000;
const LARGE_KEY_BYTES: usize = 800;
const BUDGET: u64 = 8 << 20;
/// What the process takes beside state: code, compiled guests and their memory, buffers, and what its allocator holds ready.
const BESIDE_STATE: u64 = 136 << 20;

#[test]
fn state_far_above_its_memory_is_right_and_stays_within_it() {
    let key = |number: usize| format!("{number:0LARGE_KEY_BYTES$}");
    // Each key once, and then some again from all over the state.
    let again = (0..LARGE_KEYS / 4).map(|number| number * 7_919 % LARGE_KEYS);
    let lines: Vec<String> = (0..LARGE_KEYS).chain(again).map(key).collect();
    let memory = format!("memory = {BUDGET}\n[checkpoint]\ninterval = '100ms'");
    let job = Job::new(&counter(&memory, FILE, "", "")).input("in.txt", lines.join("\n"));
    let mut first = job.start();
    wait_until("it has committed some epochs", &mut first, || job.newest_epoch() >= 4);
    first.kill();
    let ended = job.run().succeeded();
    assert!(ended.figure("records_in") < lines.len() as u64, "it began anew");
    assert!(ended.figure("memory_stops") > 0, "state was never too large");
    let peak = ended.figure("peak_memory_bytes");
    let keys = (LARGE_KEYS * LARGE_KEY_BYTES) as u64;
    println!("{} MiB at most for {} MiB of keys, {} stops", peak >> 20, keys >> 20, ended.figure("memory_stops"));
    assert!(peak < BUDGET + BESIDE_STATE, "{} MiB", peak >> 20);
    check_counted(&job, lines.iter().map(String::as_str));
}

#[test]
fn a_file_that_grows_is_followed_until_a_stop_and_beyond() {
    let job = Job::new(&counter(OFTEN, FOLLOWED, "", "")).input("in.txt", "a\nb\na\n");
    let mut running = job.start();
    wait_for_lines(&job, &mut running, "out", 3);
    // A line counts when it is complete.
    append(&job, "c\nunfin");
    wait_for_lines(&job, &mut running, "out", 4);
    append(&job, "ished\nd\n");
    wait_for_lines(&job, &mut running, "out", 6);
    assert_eq!(stop(running), 6);
    append(&job, "a\n");
    let mut running = job.start();
    wait_for_lines(&job, &mut running, "out", 7);
    append(&job, "b\n");
    wait_for_lines(&job, &mut running, "out", 8);
    assert_eq!(stop(running), 2);
    check_counted(&job, ["a", "b", "a", "c", "unfinished", "d", "a", "b"]);
}

#[test]
fn a_stop_makes_a_last_checkpoint() {
    let seen = "[sinks.seen]\nkind = 'files'\npath = 'seen'\ninputs = ['count']\ndelivery = 'at-least-once'";
    let job = Job::new(&counter("[checkpoint]\ninterval = '1h'", FOLLOWED, "", seen)).input("in.txt", "a\nb\na\n");
    for (signal, lines) in [(Signal::TERM, 3), (Signal::INT, 5)] {
        let mut running = job.start();
        wait_for_lines(&job, &mut running, "seen", lines);
        assert!(job.output_lines("out").len() < lines, "output was visible before its commit");
        running.signal(signal);
        running.wait().succeeded();
        assert_eq!(job.output_lines("out").len(), lines);
        append(&job, "b\nc\n");
    }
    check_counted(&job, ["a", "b", "a", "b", "c"]);
}

/// Changes a followed file while the job runs, and again while it does not: both are named, and with the file put back the job goes on.
fn check_refused_change(change: fn(&Job), while_running: &str, while_stopped: &str) {
    let text = "a\nb\nlonger than what replaces it\n";
    let job = Job::new(&counter(OFTEN, FOLLOWED, "", "")).input("in.txt", text);
    let mut running = job.start();
    wait_for_lines(&job, &mut running, "out", 3);
    change(&job);
    running.wait().failed(1, &["in.txt", while_running, "input files may only grow"]);
    job.run().failed(1, &["in.txt", while_stopped]);
    job.write("in.txt", text.to_owned() + "a\n");
    let mut running = job.start();
    wait_for_lines(&job, &mut running, "out", 4);
    assert_eq!(stop(running), 1);
    check_counted(&job, ["a", "b", "longer than what replaces it", "a"]);
}

#[test]
fn a_followed_file_that_does_not_only_grow_is_refused() {
    let shrink = |job: &Job| File::options().write(true).open(job.path("in.txt")).unwrap().set_len(4).unwrap();
    check_refused_change(shrink, "it shrank to 4 bytes", "it has shrunk to 4 bytes");
    let replace = |job: &Job| {
        job.write("new.txt", "other\nlines that are at least as long as those before them\n");
        fs::rename(job.path("new.txt"), job.path("in.txt")).unwrap();
    };
    check_refused_change(replace, "another file took its place", "it was replaced or changed before byte");
    let remove = |job: &Job| fs::remove_file(job.path("in.txt")).unwrap();
    check_refused_change(remove, "it was removed", "there is no such file");
}

#[test]
fn standard_input_needs_consent_to_loss_where_output_is_exactly_once() {
    let lines = "a\nb\na\n";
    let job = Job::new(&counter("", "kind = 'stdin'", "", "")).input("lines.txt", lines);
    let start = |job: &Job| job.start_reading(File::open(job.path("lines.txt")).unwrap());
    start(&job).wait().failed(2, &["accept-loss"]);
    assert!(!job.path("state").exists() && !job.path("out").exists(), "a refused job leaves nothing behind");
    job.write_manifest(&counter("", "kind = 'stdin'\naccept-loss = true", "", ""));
    start(&job).wait().succeeded();
    check_counted(&job, ["a", "b", "a"]);
    // The next start reads what comes then, on top of the state.
    start(&job).wait().succeeded();
    check_counted(&job, ["a", "b", "a", "a", "b", "a"]);
}

#[test]
fn a_process_that_is_stopped_for_longer_than_a_call_may_take_rejects_nothing() {
    const LIMIT: Duration = Duration::from_millis(300);
    let lines: Vec<String> = (0..200_000).map(|number| format!("key-{}", number % 1_000)).collect();
    let limits = format!("limits = {{ time = '{}ms' }}", LIMIT.as_millis());
    let job = Job::new(&counter(OFTEN, FILE, &limits, "")).input("in.txt", lines.join("\n"));
    let mut running = job.start();
    for stops in 1..=3 {
        wait_for_lines(&job, &mut running, "out", stops);
        running.signal(Signal::STOP);
        std::thread::sleep(2 * LIMIT);
        running.signal(Signal::CONT);
    }
    let ended = running.wait().succeeded();
    assert_eq!(ended.figure("rejected"), 0);
    assert_eq!(ended.figure("operators/count/failures"), 0);
    check_counted(&job, lines.iter().map(String::as_str));
}
