//! What readers from outside cost a job that is busy, and how long they wait: a thousand lookups a second of committed values, by HTTP over one connection, of a million keys.
//!
//! The job is the one of `tables` in which every record changes the value of its own key. It runs in turn with and without readers; what they cost is the CPU of the job's process, that of feeding redb apart, beside that of a run
//! without them, so that the CPU of whoever asks does not count.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::{Bench, Group};
use crate::job::{Job, JobRun};
use crate::keys::{Draw, write_pairs, write_pairs_header};
use crate::manifest::{Checkpoint, Manifest};
use crate::process::take_short_turns;
use crate::random::mix;
use crate::report::{Figure, Target, median};

/// The group.
pub const GROUP: Group = Group { name: "readers", figures: &["cost", "latency-p50", "latency-p99"], run: measure };

const KEYS: u64 = 1_000_000;
const RECORDS: u64 = 6_000_000;
const READS_A_SECOND: u32 = 1_000;

const WANTED_COST_PERCENT: f64 = 2.0;
const WANTED_P99_MS: f64 = 5.0;

fn measure(bench: &mut Bench) -> Result<()> {
    let mut runs = Runs::prepare(bench)?;
    let (mut alone, mut asked, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.runs {
        alone.push(cpu_seconds(&runs.run(RECORDS, None)?)?);
        asked.push(cpu_seconds(&runs.run(RECORDS, Some(&mut latencies))?)?);
    }
    runs.remove()?;
    let reads = latencies.len();
    latencies.sort();
    let at = |part: f64| latencies.get((reads as f64 * part) as usize).copied().unwrap_or_default().as_secs_f64() * 1e3;
    let (alone, asked) = (median(&alone).context("nothing has run")?, median(&asked).context("nothing has run")?);
    let cost = (asked / alone - 1.0) * 100.0;
    bench.report(
        Figure::new("readers/cost", cost, "%")
            .wanted(Target::ValueBelow(WANTED_COST_PERCENT))
            .note(format!("of the job's CPU; {READS_A_SECOND} reads a second")),
    );
    bench.report(Figure::new("readers/latency-p50", at(0.5), "ms").note(format!("of {reads} reads, committed")));
    bench.report(Figure::new("readers/latency-p99", at(0.99), "ms").wanted(Target::ValueBelow(WANTED_P99_MS)));
    Ok(())
}

/// The CPU of a run without that of feeding redb, which differs more from run to run than readers cost, and does not depend on them.
fn cpu_seconds(run: &JobRun) -> Result<f64> {
    let feed = run.summary.feed_cpu_s.context("the summary does not tell what redb has cost")?;
    Ok(run.usage.cpu.as_secs_f64() - feed)
}

/// The job, its input, and how often it has run.
struct Runs {
    job: Job,
    input: PathBuf,
    started: u64,
}

impl Runs {
    /// A job that has all keys in its state.
    fn prepare(bench: &Bench) -> Result<Self> {
        let (component, input) = (bench.bench_guest("tables")?, bench.out("read-pairs.csv"));
        write_pairs_header(&mut File::create(&input)?)?;
        let manifest = Manifest::new("readers", Checkpoint::EverySecond)
            .pairs(&input)
            .operator_with_others(&component, "work = \"own\"", false)
            .blackhole("work");
        let mut runs = Self { job: bench.job("readers", &manifest, 20 * RECORDS)?, input, started: 0 };
        runs.run(KEYS, None)?;
        Ok(runs)
    }

    /// Works on `records` more; with `latencies`, somebody reads meanwhile.
    fn run(&mut self, records: u64, latencies: Option<&mut Vec<Duration>>) -> Result<JobRun> {
        let mut file = BufWriter::new(OpenOptions::new().append(true).open(&self.input)?);
        self.started += 1;
        write_pairs(&mut file, records, KEYS, Draw::Even, mix(self.started))?;
        file.flush()?;
        let ended = AtomicBool::new(false);
        let run = std::thread::scope(|scope| {
            let reader =
                latencies.map(|latencies| scope.spawn(|| read(&self.job.path("state/serving"), &ended, latencies)));
            let run = self.job.run();
            ended.store(true, Ordering::Relaxed);
            match reader.map(std::thread::ScopedJoinHandle::join) {
                Some(Ok(read)) => read.and(run),
                Some(Err(_)) => anyhow::bail!("the reader has panicked"),
                None => run,
            }
        });
        run?.expect_records(records)
    }

    fn remove(self) -> Result<()> {
        self.job.remove()?;
        Ok(fs::remove_file(self.input)?)
    }
}

/// Reads at an even pace until the job has ended, and notes how long each answer took from the moment at which it was due.
fn read(announced: &Path, ended: &AtomicBool, latencies: &mut Vec<Duration>) -> Result<()> {
    // What is announced may be of the run before.
    let mut connection = loop {
        match address(announced).and_then(|address| TcpStream::connect(address).ok()) {
            Some(connection) => break BufReader::new(connection),
            None if ended.load(Ordering::Relaxed) => return Ok(()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    connection.get_ref().set_nodelay(true)?;
    take_short_turns();
    let start = Instant::now();
    for number in 0.. {
        let due = start + Duration::from_secs(1) * number / READS_A_SECOND;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A job that ends closes its connections.
        if ask(&mut connection, mix(mix(u64::from(number)) % KEYS)).is_err() || ended.load(Ordering::Relaxed) {
            break;
        }
        latencies.push(due.elapsed());
    }
    ensure!(!latencies.is_empty(), "the job has answered nobody");
    Ok(())
}

fn address(announced: &Path) -> Option<String> {
    let told: serde_json::Value = serde_json::from_slice(&fs::read(announced).ok()?).ok()?;
    Some(told["http"].as_str()?.to_owned())
}

fn ask(connection: &mut BufReader<TcpStream>, key: u64) -> Result<()> {
    let request = format!("GET /tables/work.held/{key:016x} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    ensure!(line.contains(" 200 "), "the job answered `{}`", line.trim());
    let mut length = 0;
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        match line.strip_prefix("content-length:") {
            Some(bytes) => length = bytes.trim().parse()?,
            None if line.is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    Ok(connection.read_exact(&mut body)?)
}
