//! What it costs to read and change the state of other keys: a million keys of 16 bytes with values of 64, in tables of two tasks.
//!
//! One operator keeps the keys; each of its records names two of them. The job is started again and again over the same state, each time with
//! another work on another two million records. A lookup or an update costs what a run with it takes more of CPU than one without.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::nanoseconds_a_record;
use crate::bench::{Bench, Group};
use crate::job::{Job, JobRun};
use crate::keys::{Draw, write_pairs, write_pairs_header};
use crate::manifest::{Checkpoint, Manifest};
use crate::random::mix;
use crate::report::{Figure, Target, median};

/// The group.
pub const GROUP: Group = Group {
    name: "tables",
    figures: &[
        "native-read",
        "native-write",
        "lookup",
        "update",
        "update-feed",
        "own-throughput",
        "lookup-throughput",
        "serializable-throughput",
        "zipf-own-throughput",
        "zipf-lookup-throughput",
        "zipf-serializable-throughput",
        "seal-pause-p99",
    ],
    run: measure,
};

const KEYS: u64 = 1_000_000;
const RECORDS: u64 = 2_000_000;
const VALUE_BYTES: usize = 64;

/// The keys that a record names in the works `fan` and `name`: so many that their lookups outweigh the records.
const FAN: u64 = 32;

/// The records of a run that measures CPU.
fn records_of(work: &str) -> u64 {
    if ["fan", "name"].contains(&work) { RECORDS / 8 } else { RECORDS }
}

const WANTED_LOOKUP_RATIO: f64 = 1.5;
const WANTED_LOOKUP_NS: f64 = 40.0;
const WANTED_UPDATE_RATIO: f64 = 3.0;
const WANTED_LOOKUP_JOB: f64 = 0.8;
const WANTED_SERIALIZABLE_JOB: f64 = 0.4;
const WANTED_SEAL_PAUSE_MS: f64 = 10.0;

fn measure(bench: &mut Bench) -> Result<()> {
    let mut runs = Runs::prepare(bench)?;
    let (read, write) = native();
    bench.report(Figure::new("tables/native-read", read, "ns/key").note("a hash map of the same keys, one thread"));
    bench.report(Figure::new("tables/native-write", write, "ns/key"));

    let named = runs.cpu("name", Draw::Even, bench.runs)?.work;
    let looked_up = runs.cpu("fan", Draw::Even, bench.runs)?.work;
    let bound = WANTED_LOOKUP_RATIO * read + WANTED_LOOKUP_NS;
    let lookup = nanoseconds_a_record(looked_up - named, FAN * records_of("fan"));
    let note = "32 keys a record, of any task; CPU beside the same job that only names them";
    bench.report(
        Figure::new("tables/lookup", lookup, "ns/key").beside(read).wanted(Target::ValueBelow(bound)).note(note),
    );

    let nothing = runs.cpu("nothing", Draw::Even, bench.runs)?.work;
    let updated = runs.cpu("update", Draw::Even, bench.runs)?;
    let update = nanoseconds_a_record(updated.work - nothing, RECORDS);
    let bound = WANTED_UPDATE_RATIO * write;
    let note = "until applied and in the epochs' log; adds eight numbers";
    bench.report(
        Figure::new("tables/update", update, "ns/key").beside(write).wanted(Target::ValueBelow(bound)).note(note),
    );
    let feed = nanoseconds_a_record(updated.feed, RECORDS);
    bench.report(Figure::new("tables/update-feed", feed, "ns/key").note("of bringing redb up to date, later"));

    for (prefix, draw) in [("", Draw::Even), ("zipf-", Draw::Zipf)] {
        let own = runs.throughput("own", draw, false, bench.runs)?;
        let lookup = runs.throughput("lookup", draw, false, bench.runs)?;
        let serializable = runs.throughput("lookup", draw, true, bench.runs)?;
        let figure = |name: &str, value| Figure::new(format!("tables/{prefix}{name}"), value, "records/s");
        bench.report(figure("own-throughput", own));
        let wanted = |figure: Figure, ratio| {
            if draw == Draw::Even { figure.wanted(Target::RatioAtLeast(ratio)) } else { figure }
        };
        bench.report(wanted(figure("lookup-throughput", lookup).beside(own), WANTED_LOOKUP_JOB));
        bench.report(wanted(figure("serializable-throughput", serializable).beside(own), WANTED_SERIALIZABLE_JOB));
    }
    let pause = runs.pause_ms.context("no lookup has run")?;
    let figure = Figure::new("tables/seal-pause-p99", pause, "ms").note("the worst of the runs with lookups");
    bench.report(figure.wanted(Target::ValueBelow(WANTED_SEAL_PAUSE_MS)));
    runs.remove()
}

/// The CPU seconds of a run.
struct Cpu {
    /// All of it but `feed`.
    work: f64,
    /// Of bringing redb up to date.
    feed: f64,
}

/// The job, its input, and how often it has run.
struct Runs {
    job: Job,
    input: PathBuf,
    component: PathBuf,
    started: u64,
    pause_ms: Option<f64>,
}

impl Runs {
    /// A job that has all keys in its state.
    fn prepare(bench: &Bench) -> Result<Self> {
        let (component, input) = (bench.bench_guest("tables")?, bench.out("pairs.csv"));
        write_pairs_header(&mut File::create(&input)?)?;
        let job = bench.job("tables", &manifest(&component, &input, "own", false), 100 * RECORDS)?;
        let mut runs = Self { job, input, component, started: 0, pause_ms: None };
        runs.append(KEYS, Draw::Even)?;
        runs.job.run()?.expect_records(KEYS)?;
        Ok(runs)
    }

    /// The CPU of a run that does `work` on every record, without that of starting.
    fn cpu(&mut self, work: &str, draw: Draw, runs: u32) -> Result<Cpu> {
        let idle = self.run(work, draw, false, 0)?.usage.cpu.as_secs_f64();
        let (mut seconds, mut feeds) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let run = self.run(work, draw, false, records_of(work))?;
            let feed = run.summary.feed_cpu_s.context("the summary does not tell what redb has cost")?;
            seconds.push(run.usage.cpu.as_secs_f64() - idle - feed);
            feeds.push(feed);
        }
        let median = |figures: &[f64]| median(figures).context("nothing has run");
        Ok(Cpu { work: median(&seconds)?, feed: median(&feeds)? })
    }

    /// The records a second of such a run, from its first record on.
    fn throughput(&mut self, work: &str, draw: Draw, serializable: bool, runs: u32) -> Result<f64> {
        let mut rates = Vec::new();
        for _ in 0..runs {
            let run = self.run(work, draw, serializable, RECORDS)?;
            let start = run.summary.first_record_ms.unwrap_or_default() / 1e3;
            rates.push(RECORDS as f64 / (run.usage.elapsed.as_secs_f64() - start));
            if work == "lookup" {
                let pauses = self.pause_ms.into_iter().chain(run.summary.seal_pause_ms.p99);
                self.pause_ms = pauses.reduce(f64::max);
            }
        }
        median(&rates).context("nothing has run")
    }

    fn run(&mut self, work: &str, draw: Draw, serializable: bool, records: u64) -> Result<JobRun> {
        self.append(records, draw)?;
        self.job.change(&manifest(&self.component, &self.input, work, serializable))?;
        self.job.run()?.expect_records(records)
    }

    fn append(&mut self, records: u64, draw: Draw) -> Result<()> {
        let mut file = BufWriter::new(OpenOptions::new().append(true).open(&self.input)?);
        self.started += 1;
        write_pairs(&mut file, records, KEYS, draw, mix(self.started))?;
        Ok(file.flush()?)
    }

    fn remove(self) -> Result<()> {
        self.job.remove()?;
        Ok(fs::remove_file(self.input)?)
    }
}

fn manifest(component: &Path, input: &Path, work: &str, serializable: bool) -> Manifest {
    Manifest::new("tables", Checkpoint::EverySecond)
        .pairs(input)
        .operator_with_others(component, &format!("work = \"{work}\""), serializable)
        .blackhole("work")
}

/// Nanoseconds of reading and of writing one of [`KEYS`] keys in a hash map of this process.
fn native() -> (f64, f64) {
    let key = |number: u64| format!("{:016x}", mix(number)).into_bytes();
    let mut map: HashMap<Vec<u8>, Vec<u8>, foldhash::fast::FixedState> = HashMap::default();
    for number in 0..KEYS {
        map.insert(key(number), vec![1; VALUE_BYTES]);
    }
    let asked: Vec<Vec<u8>> = (0..RECORDS).map(|number| key(mix(number) % KEYS)).collect();
    let mut copy = Vec::with_capacity(VALUE_BYTES * asked.len());
    let start = Instant::now();
    for key in &asked {
        copy.extend_from_slice(&map[key]);
    }
    let read = start.elapsed().as_secs_f64();
    black_box(&copy);
    let start = Instant::now();
    for (key, value) in asked.iter().zip(copy.chunks(VALUE_BYTES)) {
        map.insert(key.clone(), value.to_vec());
    }
    let write = start.elapsed().as_secs_f64();
    black_box(&map);
    (nanoseconds_a_record(read, RECORDS), nanoseconds_a_record(write, RECORDS))
}
