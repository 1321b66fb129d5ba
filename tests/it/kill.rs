//! Exactly once under `kill -9`: a job is killed at random moments again and again, and in the end its output and state must be those of
//! a plain loop over the input.
//!
//! A life is killed either soon after its start, while it recovers, or at a random moment after it has committed something, so that progress is made
//! however slow the machine is. Where a machine is so fast that the input ends first, more input is added.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::harness::{Dice, Job, Running, seed};

const KILLS: u32 = 20;
/// Records at the beginning, over all files.
const RECORDS: u64 = 300_000;
/// Records added when the input has ended before its time.
const RECORDS_MORE: u64 = 60_000;
const KEYS: u64 = 3_000;
/// A killed life lasts at most this long after its first commit.
const LIFE_MS: u64 = 250;
/// A life that is killed early lasts at most this long in all.
const EARLY_MS: u64 = 120;
/// One life in so many is killed early.
const EARLY_ONE_IN: u64 = 4;
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A record of the input.
struct Bid {
    auction: u64,
    price: u64,
}

/// A job's input: written to the job's files, and kept for the plain loop.
struct Input {
    dice: Dice,
    files: Vec<File>,
    /// In the order of the files, one file after another where there is only one.
    bids: Vec<Bid>,
}

impl Input {
    fn new(job: &Job, files: usize, seed: u64) -> Self {
        std::fs::create_dir(job.path("bids")).unwrap();
        let file = |index| File::create(job.path(format!("bids/{index}.jsonl"))).unwrap();
        let mut input = Self { dice: Dice(seed), files: (0..files).map(file).collect(), bids: Vec::new() };
        input.add(RECORDS);
        input
    }

    fn add(&mut self, records: u64) {
        let count = self.files.len() as u64;
        for file in &mut self.files {
            let mut lines = String::new();
            for _ in 0..records.div_ceil(count) {
                // Some keys are far more frequent than others.
                let below = KEYS >> self.dice.roll(8);
                let bid = Bid { auction: self.dice.roll(below), price: self.dice.roll(1_000) };
                lines += &format!("{{\"auction\":{},\"price\":{}}}\n", bid.auction, bid.price);
                self.bids.push(bid);
            }
            file.write_all(lines.as_bytes()).unwrap();
        }
    }
}

/// Kills the job [`KILLS`] times at random moments, then runs it to its end.
fn run_killed(job: &Job, files: usize) -> Input {
    let seed = seed();
    let mut dice = Dice(seed);
    let mut input = Input::new(job, files, seed);
    let (mut kills, mut interrupted) = (0, 0);
    while kills < KILLS {
        let life = job.start();
        if live_and_die(job, life, &mut dice) {
            kills += 1;
            interrupted += u32::from(has_temporaries(job));
        } else {
            input.add(RECORDS_MORE);
        }
    }
    println!(
        "{kills} kills, {interrupted} of them within an epoch; {} epochs, {} records",
        job.newest_epoch(),
        input.bids.len()
    );
    assert!(interrupted > KILLS / 4, "most kills must fall into work: {interrupted} of {kills}");
    println!("the log begins at epoch {}", job.oldest_epoch());
    job.run().succeeded();
    assert!(!has_temporaries(job), "a job that has ended leaves no temporaries");
    let again = job.run().succeeded();
    assert_eq!(again.figure("records_in"), 0, "a finished job has nothing left to read");
    input
}

/// Lets one life go on until a random moment. Whether it was killed; otherwise it has ended by itself.
pub fn live_and_die(job: &Job, mut life: Running, dice: &mut Dice) -> bool {
    let born = Instant::now();
    let before = job.newest_epoch();
    let early = dice.roll(EARLY_ONE_IN) == 0;
    let first = || early || job.newest_epoch() > before;
    while !first() && life.is_running() {
        assert!(born.elapsed() < WAIT_MAX, "nothing was committed: {}", life.kill().stderr);
        std::thread::sleep(Duration::from_micros(500));
    }
    let microseconds = dice.roll(1_000 * if early { EARLY_MS } else { LIFE_MS });
    let end = Instant::now() + Duration::from_micros(microseconds);
    while Instant::now() < end && life.is_running() {
        std::thread::sleep(Duration::from_micros(200));
    }
    if life.is_running() {
        // What ends between the look and the kill counts as killed.
        life.kill();
        return true;
    }
    life.wait().succeeded();
    false
}

fn has_temporaries(job: &Job) -> bool {
    let names = job.path("out").read_dir().into_iter().flatten().flatten();
    names.into_iter().any(|entry| entry.file_name().as_encoded_bytes().starts_with(b".part-"))
}

/// So little memory that redb is fed every few epochs, and that some of the kills meet it.
const TIGHT: &str = "memory = '3MiB'";

/// A manifest of operators between the source `bids`, keyed by auction, and the sink `out`.
fn manifest(memory: &str, operators: &str, last: &str, roll: &str) -> String {
    format!(
        r#"
        [job]
        name = "killed"
        workers = 2
        {memory}
        [checkpoint]
        interval = "100ms"
        [sources.bids]
        kind = "file"
        path = "bids"
        format = "jsonl"
        key = "/auction"
        {operators}
        [sinks.out]
        kind = "files"
        path = "out"
        inputs = ["{last}"]
        format = "jsonl"
        {roll}
        "#
    )
}

const STATS: &str = r#"
    [operators.stats]
    component = "{guest:bid-stats}"
    inputs = ["bids"]
"#;
const COUNT: &str = r#"
    [operators.count]
    component = "{guest:misbehaving}"
    inputs = ["bids"]
    config = { mode = "count" }
"#;
const COUNT_TWICE: &str = r#"
    [operators.count]
    component = "{guest:misbehaving}"
    inputs = ["bids"]
    config = { mode = "count" }
    [operators.reached]
    component = "{guest:misbehaving}"
    inputs = ["count"]
    key = "."
    config = { mode = "count" }
"#;

/// A line of the output. The value stays text: numbers with fractions are not read exactly.
#[derive(Deserialize)]
struct Line<'a> {
    key: &'a str,
    #[serde(borrow)]
    value: &'a RawValue,
}

/// Values as they are written, by key, in the order in which they were published.
type Lines = BTreeMap<String, Vec<String>>;

fn output_by_key(job: &Job) -> Lines {
    let mut by_key = Lines::new();
    for line in job.output_lines("out") {
        let Line { key, value } = serde_json::from_str(&line).unwrap();
        by_key.entry(key.to_owned()).or_default().push(value.get().to_owned());
    }
    by_key
}

/// Compares without printing all of it.
fn assert_same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &BTreeMap<String, T>,
    expected: &BTreeMap<String, T>,
) {
    for (key, expected) in expected {
        assert_eq!(found.get(key), Some(expected), "{what} of {key}");
    }
    assert_eq!(found.len(), expected.len(), "{what}: the number of keys");
}

/// An auction's count, maximum and sum after each of its bids.
fn running_stats(bids: &[Bid]) -> BTreeMap<u64, Vec<[u64; 3]>> {
    let mut stats = BTreeMap::<u64, Vec<[u64; 3]>>::new();
    for bid in bids {
        let of_auction = stats.entry(bid.auction).or_default();
        let [count, maximum, total] = of_auction.last().copied().unwrap_or_default();
        of_auction.push([count + 1, maximum.max(bid.price), total + bid.price]);
    }
    stats
}

/// What `bid-stats` emits for each auction.
fn stats_lines(stats: &BTreeMap<u64, Vec<[u64; 3]>>) -> Lines {
    let line = |auction: u64, [count, maximum, total]: [u64; 3]| {
        let mean = serde_json::to_string(&(total as f64 / count as f64)).unwrap();
        format!(r#"{{"auction":{auction},"count":{count},"maximum":{maximum},"mean":{mean}}}"#)
    };
    let lines = |(&auction, stats): (&u64, &Vec<[u64; 3]>)| {
        (auction.to_string(), stats.iter().map(|stats| line(auction, *stats)).collect())
    };
    stats.iter().map(lines).collect()
}

/// The state of `bid-stats` for each auction: three integers of 64 bits, little-endian, as hexadecimal digits.
fn stats_state(stats: &BTreeMap<u64, Vec<[u64; 3]>>) -> BTreeMap<String, Value> {
    let hex = |numbers: &[u64; 3]| numbers.map(|number| format!("{:016x}", number.swap_bytes())).concat();
    let last =
        |(auction, stats): (&u64, &Vec<[u64; 3]>)| (auction.to_string(), json!({ "hex": stats.last().map(hex) }));
    stats.iter().map(last).collect()
}

fn counts(keys: impl Iterator<Item = String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    keys.for_each(|key| *counts.entry(key).or_default() += 1);
    counts
}

/// 1, 2, … up to the count of each key: what a counter emits.
fn running_counts(counts: &BTreeMap<String, u64>) -> Lines {
    counts.iter().map(|(key, count)| (key.clone(), (1..=*count).map(|count| count.to_string()).collect())).collect()
}

fn as_values(counts: &BTreeMap<String, u64>) -> BTreeMap<String, Value> {
    counts.iter().map(|(key, count)| (key.clone(), Value::from(*count))).collect()
}

fn sorted(mut by_key: Lines) -> Lines {
    by_key.values_mut().for_each(|values| values.sort_by_key(|value| value.parse::<u64>().unwrap()));
    by_key
}

/// Output and state of `bid-stats` over one split.
fn check_stats(job: &Job, bids: &[Bid]) {
    let stats = running_stats(bids);
    assert_same("output", &output_by_key(job), &stats_lines(&stats));
    assert_same("state", &job.state("stats"), &stats_state(&stats));
}

#[test]
fn killed_again_and_again_each_key_has_its_output_record_for_record() {
    let job = Job::new(&manifest("", STATS, "stats", ""));
    let input = run_killed(&job, 1);
    check_stats(&job, &input.bids);
}

#[test]
fn killed_again_and_again_with_files_that_span_epochs() {
    let job = Job::new(&manifest("", STATS, "stats", "roll = '1s'"));
    let input = run_killed(&job, 1);
    check_stats(&job, &input.bids);
}

#[test]
fn killed_again_and_again_several_splits_feed_a_key() {
    let job = Job::new(&manifest(TIGHT, COUNT, "count", ""));
    let input = run_killed(&job, 4);
    let expected = counts(input.bids.iter().map(|bid| bid.auction.to_string()));
    assert_same("output", &sorted(output_by_key(&job)), &running_counts(&expected));
    assert_same("state", &job.state("count"), &as_values(&expected));
}

#[test]
fn killed_again_and_again_two_keyed_operators_in_a_row() {
    let job = Job::new(&manifest(TIGHT, COUNT_TWICE, "reached", ""));
    let input = run_killed(&job, 1);
    let first = counts(input.bids.iter().map(|bid| bid.auction.to_string()));
    let second = counts(first.values().flat_map(|count| 1..=*count).map(|reached| reached.to_string()));
    assert_same("output", &sorted(output_by_key(&job)), &running_counts(&second));
    assert_same("state of the first", &job.state("count"), &as_values(&first));
    assert_same("state of the second", &job.state("reached"), &as_values(&second));
}
