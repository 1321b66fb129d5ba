//! What readers from outside cost a job that is busy, and how long they wait: a thousand lookups a second of committed values, by HTTP over one connection, of a million keys.
//!
//! The job is the one of `tables` in which every record changes the value of its own key. Within each run somebody reads every other second, so that what differs from run to run and from minute to minute is on
//! both sides. What readers cost is the CPU of the job's process for a record, that of feeding redb apart, beside that of the second before; the CPU of whoever asks does not count.

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
const RECORDS: u64 = 12_000_000;
const READS_A_SECOND: u32 = 1_000;
/// For so long somebody reads, and then nobody does. As long as an epoch, so that each has its seal and its commit.
const WINDOW: Duration = Duration::from_secs(1);

const WANTED_COST_PERCENT: f64 = 2.0;
const WANTED_P99_MS: f64 = 5.0;

fn measure(bench: &mut Bench) -> Result<()> {
    let mut runs = Runs::prepare(bench)?;
    let mut found = Found::default();
    for _ in 0..bench.runs {
        runs.run(RECORDS, Some(&mut found))?;
    }
    runs.remove()?;
    let Found { mut latencies, costs } = found;
    let reads = latencies.len();
    latencies.sort();
    let at = |part: f64| latencies.get((reads as f64 * part) as usize).copied().unwrap_or_default().as_secs_f64() * 1e3;
    let cost = (median(&costs).context("no run was long enough")? - 1.0) * 100.0;
    let note = format!(
        "of the job's CPU a record; {READS_A_SECOND} reads a second; median of {} pairs of seconds",
        costs.len()
    );
    bench.report(Figure::new("readers/cost", cost, "%").wanted(Target::ValueBelow(WANTED_COST_PERCENT)).note(note));
    bench.report(Figure::new("readers/latency-p50", at(0.5), "ms").note(format!("of {reads} reads, committed")));
    bench.report(Figure::new("readers/latency-p99", at(0.99), "ms").wanted(Target::ValueBelow(WANTED_P99_MS)));
    Ok(())
}

/// What readers have found.
#[derive(Default)]
struct Found {
    /// From when a read was due until it was answered.
    latencies: Vec<Duration>,
    /// The CPU for a record while somebody reads, beside that while nobody does.
    costs: Vec<f64>,
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

    /// Works on `records` more; with `found`, somebody reads now and then.
    fn run(&mut self, records: u64, found: Option<&mut Found>) -> Result<JobRun> {
        let mut file = BufWriter::new(OpenOptions::new().append(true).open(&self.input)?);
        self.started += 1;
        write_pairs(&mut file, records, KEYS, Draw::Even, mix(self.started))?;
        file.flush()?;
        let ended = AtomicBool::new(false);
        let run = std::thread::scope(|scope| {
            let reader = found.map(|found| scope.spawn(|| read(&self.job.path("state/serving"), &ended, found)));
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

/// Reads at an even pace in every other window until the job has ended.
fn read(announced: &Path, ended: &AtomicBool, found: &mut Found) -> Result<()> {
    // What is announced may be of the run before.
    let (mut connection, pid) = loop {
        let connected = answering(announced).and_then(|(address, pid)| Some((TcpStream::connect(address).ok()?, pid)));
        match connected {
            Some((connection, pid)) => break (BufReader::new(connection), pid),
            None if ended.load(Ordering::Relaxed) => return Ok(()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    connection.get_ref().set_nodelay(true)?;
    take_short_turns();
    // A job that ends closes its connections: what was found before counts.
    let _ = read_in_windows(&mut connection, pid, found);
    ensure!(!found.latencies.is_empty(), "the job has answered nobody");
    Ok(())
}

fn read_in_windows(connection: &mut BufReader<TcpStream>, pid: u64, found: &mut Found) -> Result<()> {
    let mut number = 0;
    // The first second is the job's own: it begins.
    std::thread::sleep(WINDOW);
    let mut before = Spent::of(connection, pid)?;
    loop {
        std::thread::sleep(WINDOW);
        let between = Spent::of(connection, pid)?;
        let start = Instant::now();
        for turn in 0..READS_A_SECOND * WINDOW.as_secs() as u32 {
            let due = start + Duration::from_secs(1) * turn / READS_A_SECOND;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            number += 1;
            get(connection, &format!("/tables/work.held/{:016x}", mix(mix(number) % KEYS)))?;
            found.latencies.push(due.elapsed());
        }
        let after = Spent::of(connection, pid)?;
        found.costs.push(between.a_record_until(&after) / before.a_record_until(&between));
        before = after;
    }
}

/// What a job has done, and the CPU that it has taken for that, in nanoseconds.
struct Spent {
    records: u64,
    cpu_ns: u64,
}

impl Spent {
    /// Of all threads of process `pid` but the one that feeds redb: how much of that falls into a second is chance.
    fn of(connection: &mut BufReader<TcpStream>, pid: u64) -> Result<Self> {
        let status: serde_json::Value = serde_json::from_slice(&get(connection, "/status")?)?;
        let records = status["records_in"].as_u64().context("the status does not tell how many records there were")?;
        let mut cpu_ns = 0;
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?.path();
            if fs::read_to_string(thread.join("comm"))?.trim() != "feed-redb" {
                let schedstat = fs::read_to_string(thread.join("schedstat"))?;
                cpu_ns += schedstat.split(' ').next().unwrap_or_default().parse::<u64>()?;
            }
        }
        Ok(Self { records, cpu_ns })
    }

    /// The CPU for each record from here on, in nanoseconds.
    fn a_record_until(&self, later: &Self) -> f64 {
        (later.cpu_ns - self.cpu_ns) as f64 / (later.records - self.records).max(1) as f64
    }
}

/// Where a job answers, and the number of its process.
fn answering(announced: &Path) -> Option<(String, u64)> {
    let told: serde_json::Value = serde_json::from_slice(&fs::read(announced).ok()?).ok()?;
    Some((told["http"].as_str()?.to_owned(), told["pid"].as_u64()?))
}

/// The body of an answer.
fn get(connection: &mut BufReader<TcpStream>, path: &str) -> Result<Vec<u8>> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
    connection.read_exact(&mut body)?;
    Ok(body)
}
