//! Lookups that travel: a job on two and three hosts, each a process of this machine, beside raw `capnp-rpc` that moves the same keys and values.
//!
//! One operator keeps a million keys of 16 bytes with values of 64; each host reads its own share of the records. All hosts share this machine's cores with each other and with
//! the system's work for their connections, so a job on two hosts has half of a machine for each.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::{Bench, Group};
use crate::cluster::{self, Cluster};
use crate::floor;
use crate::keys::{Draw, write_pairs, write_pairs_header, write_pairs_paced};
use crate::manifest::{Checkpoint, Manifest};
use crate::random::mix;
use crate::report::{Figure, Target, median};
use crate::summary::{Lookups, Summary};

/// The group.
pub const GROUP: Group = Group {
    name: "cluster",
    figures: &[
        "floor-lookups",
        "floor-round-trip",
        "lookups",
        "lookups-of-floor",
        "round-trip",
        "half-load-p99",
        "local-throughput",
        "bounded-throughput",
        "live-throughput",
        "live-distinct-throughput",
        "live-linger-0-throughput",
        "live-linger-1ms-throughput",
        "one-host-throughput",
        "two-hosts-throughput",
        "seal-pause-p99",
        "return",
    ],
    run: measure,
};

const KEYS: u64 = 1_000_000;
const RECORDS: u64 = 1_000_000;
/// For some epochs of a second.
const PAUSE_RECORDS: u64 = 8_000_000;
/// The keys that a record of a `fan` asks for.
const FAN: u64 = 32;
/// As in a job: the batch that a host gathers at most, and what is under way at once.
const FLOOR_BATCH: usize = 1_024;
const FLOOR_IN_FLIGHT: usize = 4;
const FLOOR_TIME: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(120);
const LINGER: &str = "100us";
const LINGER_MS: f64 = 0.1;

const WANTED_LOOKUPS: f64 = 1e6;
const WANTED_OF_FLOOR: f64 = 0.4;
const WANTED_ROUND_TRIP: f64 = 1.5;
const WANTED_P99_BEYOND_LINGER_MS: f64 = 1.0;
const WANTED_BOUNDED: f64 = 0.75;
const WANTED_TWO_HOSTS: f64 = 1.6;
const WANTED_PAUSE_MS: f64 = 15.0;
const WANTED_RETURN_S: f64 = 3.0;

fn measure(bench: &mut Bench) -> Result<()> {
    let floor = floor::measure(bench.program(), FLOOR_BATCH, FLOOR_IN_FLIGHT, FLOOR_TIME)?;
    let floor_ms = floor.round_trip.as_secs_f64() * 1e3;
    let note = format!("raw capnp-rpc, {FLOOR_BATCH} keys a batch, {FLOOR_IN_FLIGHT} in flight");
    bench.report(Figure::new("cluster/floor-lookups", floor.lookups_a_second, "keys/s").note(note));
    bench.report(
        Figure::new("cluster/floor-round-trip", floor_ms, "ms")
            .note(format!("one key at a time, {:?} apart", floor::PACE)),
    );

    let mut runs = Runs::prepare(bench, 2)?;
    let rate = runs.median(bench.runs, |runs| runs.lookups_a_second())?;
    let note = "only keys that travel; both hosts together";
    bench
        .report(Figure::new("cluster/lookups", rate, "keys/s").wanted(Target::ValueAtLeast(WANTED_LOOKUPS)).note(note));
    bench.report(
        Figure::new("cluster/lookups-of-floor", rate, "keys/s")
            .beside(floor.lookups_a_second)
            .wanted(Target::RatioAtLeast(WANTED_OF_FLOOR)),
    );
    measure_waiting(bench, &mut runs, floor_ms)?;
    measure_jobs(bench, &mut runs)?;
    runs.remove()?;
    measure_two_hosts(bench)?;
    measure_three_hosts(bench)
}

/// How long single lookups take: alone, and at half of the load that the job can bear.
fn measure_waiting(bench: &mut Bench, runs: &mut Runs, floor_ms: f64) -> Result<()> {
    let alone = runs.paced((1.0 / floor::PACE.as_secs_f64()) as u64, Duration::from_secs(5))?;
    let bound = WANTED_ROUND_TRIP * floor_ms + LINGER_MS;
    bench.report(
        Figure::new("cluster/round-trip", alone.p50.context("nothing was looked up")?, "ms")
            .beside(floor_ms)
            .wanted(Target::ValueBelow(bound))
            .note(format!("median, from the question to its answer; with a linger of {LINGER_MS} ms")),
    );
    let full = runs.throughput(Work::live(Draw::Even))?;
    let half = runs.paced((full / 2.0) as u64, Duration::from_secs(5))?;
    bench.report(
        Figure::new("cluster/half-load-p99", half.p99.context("nothing was looked up")?, "ms")
            .wanted(Target::ValueBelow(LINGER_MS + WANTED_P99_BEYOND_LINGER_MS))
            .note(format!("at {:.0} records/s, each with a lookup; read by one host", full / 2.0)),
    );
    Ok(())
}

/// Whole jobs whose records look up a key each, beside one whose records read their own.
fn measure_jobs(bench: &mut Bench, runs: &mut Runs) -> Result<()> {
    let hot = Work::live(Draw::Hot);
    let jobs = [
        ("bounded", Work { config: "work = \"lookup\", consistency = \"bounded\"", ..hot }),
        ("live", hot),
        ("live-distinct", Work::live(Draw::Even)),
        ("live-linger-0", Work { linger: "0ms", ..hot }),
        ("live-linger-1ms", Work { linger: "1ms", ..hot }),
    ];
    let local = runs.median(bench.runs, |runs| runs.throughput(Work { config: "work = \"own\"", ..hot }))?;
    bench.report(Figure::new("cluster/local-throughput", local, "records/s").note("on two hosts, each its own key"));
    for (name, work) in jobs {
        let rate = runs.median(bench.runs, |runs| runs.throughput(work))?;
        let figure = Figure::new(format!("cluster/{name}-throughput"), rate, "records/s").beside(local);
        let figure = if name == "bounded" { figure.wanted(Target::RatioAtLeast(WANTED_BOUNDED)) } else { figure };
        bench.report(figure);
    }
    Ok(())
}

/// What a second host brings, where each has a core of its own.
fn measure_two_hosts(bench: &mut Bench) -> Result<()> {
    let work = Work { config: "work = \"own\"", ..Work::live(Draw::Even) };
    let mut rates = Vec::new();
    for hosts in [1, 2] {
        let mut runs = Runs::prepare_pinned(bench, hosts)?;
        rates.push(runs.median(bench.runs, |runs| runs.throughput(work))?);
        runs.remove()?;
    }
    let note = "one worker a host, and a core";
    bench.report(Figure::new("cluster/one-host-throughput", rates[0], "records/s").note(note));
    let figure = Figure::new("cluster/two-hosts-throughput", rates[1], "records/s").beside(rates[0]);
    bench.report(figure.wanted(Target::RatioAtLeast(WANTED_TWO_HOSTS)).note(note));
    Ok(())
}

/// Pauses over three hosts, and how soon a killed one is missed no more.
fn measure_three_hosts(bench: &mut Bench) -> Result<()> {
    let mut runs = Runs::prepare(bench, 3)?;
    let work = Work { config: "work = \"own\"", ..Work::live(Draw::Even) };
    let (_, summaries) = runs.run(work, PAUSE_RECORDS)?;
    let pause = summaries[0].seal_pause_ms.p99.context("no epoch was sealed")?;
    let note = format!("of {} epochs, as the leader sees them", summaries[0].epochs);
    bench.report(
        Figure::new("cluster/seal-pause-p99", pause, "ms").wanted(Target::ValueBelow(WANTED_PAUSE_MS)).note(note),
    );
    let returned = runs.kill_one(work)?.as_secs_f64();
    let note = "from SIGKILL of one host, started again at once, to the next commit, with an epoch a second";
    bench.report(Figure::new("cluster/return", returned, "s").wanted(Target::ValueBelow(WANTED_RETURN_S)).note(note));
    runs.remove()
}

/// What a run does with its records.
#[derive(Clone, Copy)]
struct Work {
    /// The inside of the function's config.
    config: &'static str,
    draw: Draw,
    linger: &'static str,
}

impl Work {
    fn live(draw: Draw) -> Self {
        Self { config: "work = \"lookup\"", draw, linger: LINGER }
    }
}

/// The job, the shares of its input, and how often it has run.
struct Runs {
    job: Cluster,
    component: PathBuf,
    shares: Vec<PathBuf>,
    hosts: usize,
    workers: usize,
    started: u64,
}

impl Runs {
    /// A job of `hosts` that has all keys in its state; each host has two workers.
    fn prepare(bench: &Bench, hosts: usize) -> Result<Self> {
        Self::prepare_as(bench, bench.cluster("cluster", hosts)?, hosts, 2)
    }

    /// As [`Runs::prepare`]; each host has one worker, and one core.
    fn prepare_pinned(bench: &Bench, hosts: usize) -> Result<Self> {
        Self::prepare_as(bench, bench.cluster("cluster", hosts)?.pinned(), hosts, 1)
    }

    fn prepare_as(bench: &Bench, job: Cluster, hosts: usize, workers: usize) -> Result<Self> {
        let component = bench.bench_guest("tables")?;
        let shares: Vec<PathBuf> = (0..hosts).map(|share| job.path(&format!("pairs-{share}.csv"))).collect();
        for share in &shares {
            write_pairs_header(&mut File::create(share)?)?;
        }
        let mut runs = Self { job, component, shares, hosts, workers, started: 0 };
        // The first records of all shares together name every key.
        let mut file = BufWriter::new(OpenOptions::new().append(true).open(&runs.shares[0])?);
        write_pairs(&mut file, KEYS, KEYS, Draw::Even, 0)?;
        file.flush()?;
        let work = Work { config: "work = \"own\"", ..Work::live(Draw::Even) };
        runs.job.run(&runs.manifest(work), LIMIT)?;
        runs.started += 1;
        Ok(runs)
    }

    fn manifest(&self, work: Work) -> Manifest {
        let names = ["\"in-a\"", "\"in-b\"", "\"in-c\""];
        let inputs = format!("[{}]", names[..self.hosts].join(", "));
        let manifest = Manifest::new("cluster", Checkpoint::EverySecond)
            .workers(self.workers)
            .shares(&self.shares, self.hosts > 1)
            .operator_of_shares(&self.component, &inputs, work.config)
            .blackhole("work");
        if self.hosts > 1 { manifest.plus(&cluster::section(self.hosts, work.linger)) } else { manifest }
    }

    fn median(&mut self, runs: u32, mut run: impl FnMut(&mut Self) -> Result<f64>) -> Result<f64> {
        let rates = (0..runs).map(|_| run(self)).collect::<Result<Vec<_>>>()?;
        median(&rates).context("nothing has run")
    }

    /// Gives each host its share of [`RECORDS`] more.
    fn append(&mut self, records: u64, draw: Draw) -> Result<()> {
        self.started += 1;
        for (share, path) in (0..).zip(&self.shares) {
            let mut file = BufWriter::new(OpenOptions::new().append(true).open(path)?);
            write_pairs(&mut file, records / self.hosts as u64, KEYS, draw, mix(self.started << 8 | share))?;
            file.flush()?;
        }
        Ok(())
    }

    fn run(&mut self, work: Work, records: u64) -> Result<(Duration, Vec<Summary>)> {
        self.append(records, work.draw)?;
        let (elapsed, summaries) = self.job.run(&self.manifest(work), LIMIT)?;
        let admitted: u64 = summaries.iter().map(|summary| summary.records_in).sum();
        let wanted = records / self.hosts as u64 * self.hosts as u64;
        ensure!(admitted == wanted, "the hosts admitted {admitted} records of {wanted}");
        let start = summaries.iter().filter_map(|summary| summary.first_record_ms).fold(f64::INFINITY, f64::min);
        ensure!(start.is_finite(), "no host says when it admitted its first record");
        Ok((elapsed.saturating_sub(Duration::from_secs_f64(start / 1e3)), summaries))
    }

    /// Records a second, from the first one on.
    fn throughput(&mut self, work: Work) -> Result<f64> {
        Ok(RECORDS as f64 / self.run(work, RECORDS)?.0.as_secs_f64())
    }

    /// Keys a second that have travelled, where records ask for many each.
    fn lookups_a_second(&mut self) -> Result<f64> {
        let (elapsed, summaries) = self.run(Work { config: "work = \"fan\"", ..Work::live(Draw::Even) }, RECORDS)?;
        let travelled: u64 = lookups(&summaries).map(|lookups| lookups.keys_sent).sum();
        ensure!(travelled > RECORDS * FAN / 4, "only {travelled} keys have travelled");
        Ok(travelled as f64 / elapsed.as_secs_f64())
    }

    /// How long lookups take where records come at an even pace, all to the first host.
    fn paced(&mut self, a_second: u64, time: Duration) -> Result<crate::summary::Quantiles> {
        let manifest = Manifest::new("paced", Checkpoint::EverySecond)
            .workers(self.workers)
            .pairs_from_stdin()
            .operator_of_shares(&self.component, "[\"in\"]", Work::live(Draw::Even).config)
            .blackhole("work")
            .plus(&cluster::section(self.hosts, LINGER));
        // Another job, whose table is empty: what is absent travels as far.
        let job = self.job.beside("paced")?;
        job.write(&manifest)?;
        let start = Instant::now();
        let mut processes = vec![job.start(0, Stdio::piped())?, job.start(1, Stdio::null())?];
        let mut input = Cluster::input(&mut processes[0])?;
        write_pairs_paced(&mut input, a_second * time.as_secs(), KEYS, a_second)?;
        drop(input);
        job.wait(&mut processes, start, LIMIT)?;
        let summaries = job.summaries()?;
        job.remove()?;
        let latency = lookups(&summaries[..1]).map(|lookups| lookups.latency_ms).next();
        latency.context("the first host has looked nothing up")
    }

    /// The time from the SIGKILL of the second host, which is started again at once, to the next commit.
    fn kill_one(&mut self, work: Work) -> Result<Duration> {
        self.append(PAUSE_RECORDS, work.draw)?;
        self.job.write(&self.manifest(work))?;
        let start = Instant::now();
        let mut processes =
            (0..self.hosts).map(|host| self.job.start(host, Stdio::null())).collect::<Result<Vec<_>>>()?;
        let serving = self.job.path("state/a/serving");
        let first = wait_for(start, || committed(&serving))?;
        wait_for(start, || committed(&serving).filter(|&epoch| epoch > first + 1))?;
        processes[1].kill()?;
        let killed = Instant::now();
        let last = committed(&serving).unwrap_or(first + 2);
        processes[1] = self.job.start(1, Stdio::null())?;
        wait_for(start, || committed(&serving).filter(|&epoch| epoch > last))?;
        let returned = killed.elapsed();
        self.job.wait(&mut processes, start, LIMIT)?;
        Ok(returned)
    }

    fn remove(self) -> Result<()> {
        self.job.remove()
    }
}

fn lookups(summaries: &[Summary]) -> impl Iterator<Item = &Lookups> {
    summaries.iter().flat_map(|summary| &summary.cluster).flat_map(|cluster| &cluster.lookups)
}

fn wait_for<T>(start: Instant, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        ensure!(start.elapsed() < LIMIT, "nothing has come of it after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The last committed epoch, as the running job tells it.
fn committed(serving: &Path) -> Option<u64> {
    let told: serde_json::Value = serde_json::from_slice(&fs::read(serving).ok()?).ok()?;
    let mut connection = TcpStream::connect(told["http"].as_str()?).ok()?;
    connection.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let status: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
    status["published_epoch"].as_u64()
}
