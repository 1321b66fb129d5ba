//! What epochs cost with a million keys of state, each 16 bytes with a value of 64: pauses, commits, feeding redb, restart, memory.
//!
//! One job, started four times on a file that grows. Its function reads and rewrites the value of each record's key; its sink only
//! counts, so that a commit is state alone. Keys come in turns, so that an epoch of 100,000 records has 100,000
//! dirty keys.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bench::{Bench, Group};
use crate::job::{Job, JobRun, settle};
use crate::keys::{write_keys, write_keys_paced};
use crate::manifest::{Checkpoint, Form, Manifest};
use crate::report::{Figure, Target, median};

/// The group.
pub const GROUP: Group = Group {
    name: "checkpoint",
    figures: &[
        "plain-fsync-p50",
        "plain-fsync-max",
        "seal-pause-p99",
        "commit-p50",
        "commit-p99",
        "memory-per-key",
        "restart",
        "restart-whole-process",
        "feed-cpu",
        "paced-cpu",
    ],
    run: measure,
};

const KEYS: u64 = 1_000_000;
const DIRTY_KEYS: u64 = 100_000;

/// The keys of the job whose memory counts as the job's own.
const FEW_KEYS: u64 = 1_000;

/// Rounds over all keys in the measured run: 30 epochs.
const ROUNDS: u64 = 3;

/// What an epoch of [`DIRTY_KEYS`] weighs, about: written plainly, for comparison, so many times.
const PLAIN_BYTES: usize = 10_000_000;
const PLAIN_WRITES: usize = 20;

const PACED_SECONDS: u64 = 40;

const WANTED_SEAL_PAUSE_MS: f64 = 10.0;
const WANTED_COMMIT_MS: f64 = 100.0;
const WANTED_BYTES_A_KEY: f64 = 300.0;
const WANTED_RESTART_S: f64 = 2.0;
const WANTED_FEED_PERCENT: f64 = 10.0;

const KEYED_LINES: Form = Form::Lines { keyed: true };

fn measure(bench: &mut Bench) -> Result<()> {
    let component = bench.bench_guest("hold")?;
    let few = few_keys(bench, &component)?;

    let input = bench.out("keys.txt");
    let manifest = Manifest::new("checkpoint", Checkpoint::EveryRecords(DIRTY_KEYS))
        .file(&input, KEYED_LINES)
        .operator(&component, "")
        .blackhole("work");
    let job = bench.job("checkpoint", &manifest, (1 + ROUNDS) * KEYS)?;
    append(&input, 0..KEYS, KEYS)?;
    let loading = job.run()?.expect_records(KEYS)?;
    append(&input, KEYS..(1 + ROUNDS) * KEYS, KEYS)?;
    let plain = plain_writes(&bench.out("plain.bin"))?;
    let steady = job.run()?.expect_records(ROUNDS * KEYS)?;
    let idle = job.run()?.expect_records(0)?;

    report_epochs(bench, &plain, &steady)?;
    report_memory(bench, &loading, &few);
    report_restart(bench, &steady, &idle);
    job.remove()?;
    fs::remove_file(&input)?;
    paced(bench, &component)
}

/// The same job over as many records, with so few keys that they weigh nothing.
fn few_keys(bench: &Bench, component: &Path) -> Result<JobRun> {
    let input = bench.out("few-keys.txt");
    append(&input, 0..KEYS, FEW_KEYS)?;
    let manifest = Manifest::new("few-keys", Checkpoint::EveryRecords(DIRTY_KEYS))
        .file(&input, KEYED_LINES)
        .operator(component, "")
        .blackhole("work");
    let job = bench.job("few-keys", &manifest, KEYS)?;
    let run = job.run()?.expect_records(KEYS)?;
    job.remove()?;
    fs::remove_file(&input)?;
    Ok(run)
}

fn append(path: &PathBuf, lines: Range<u64>, distinct: u64) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = BufWriter::new(file.with_context(|| format!("failed to open {}", path.display()))?);
    write_keys(&mut file, lines, distinct)?;
    file.flush()?;
    Ok(())
}

/// The milliseconds of writing and syncing a file of [`PLAIN_BYTES`], several times.
fn plain_writes(path: &Path) -> Result<Vec<f64>> {
    settle();
    let part = vec![0x5A; PLAIN_BYTES / 10];
    let mut times = Vec::new();
    for _ in 0..PLAIN_WRITES {
        let start = Instant::now();
        let mut file = File::create(path)?;
        (0..10).try_for_each(|_| file.write_all(&part))?;
        file.sync_all()?;
        times.push(milliseconds(start.elapsed()));
    }
    fs::remove_file(path)?;
    Ok(times)
}

fn report_epochs(bench: &mut Bench, plain: &[f64], steady: &JobRun) -> Result<()> {
    let plain_median = median(plain).context("nothing was written plainly")?;
    let plain_max = plain.iter().copied().fold(0.0, f64::max);
    bench.report(Figure::new("checkpoint/plain-fsync-p50", plain_median, "ms").note("10 MB written and synced"));
    bench.report(Figure::new("checkpoint/plain-fsync-max", plain_max, "ms"));

    let summary = &steady.summary;
    let dirty = summary.records_in as f64 / (summary.epochs.max(1) as f64);
    let epochs = format!("{} epochs of {dirty:.0} dirty keys", summary.epochs);
    let pause = from_summary("checkpoint/seal-pause-p99", "ms", summary.seal_pause_ms.p99);
    bench.report(pause.wanted(Target::ValueBelow(WANTED_SEAL_PAUSE_MS)));
    let commit = from_summary("checkpoint/commit-p50", "ms", summary.commit_ms.p50).beside(plain_median);
    bench.report(commit.wanted(Target::ValueBelow(WANTED_COMMIT_MS)).note(epochs));
    bench.report(from_summary("checkpoint/commit-p99", "ms", summary.commit_ms.p99).beside(plain_max));
    Ok(())
}

fn report_memory(bench: &mut Bench, loading: &JobRun, few: &JobRun) {
    let bytes = bytes_a_key(loading.usage.peak_bytes, few.usage.peak_bytes);
    let figure =
        Figure::new("checkpoint/memory-per-key", bytes, "B/key").note("16 + 64 bytes; peak, with one epoch unsealed");
    bench.report(figure.wanted(Target::ValueBelow(WANTED_BYTES_A_KEY)));
}

fn report_restart(bench: &mut Bench, steady: &JobRun, idle: &JobRun) {
    let whole = idle.usage.elapsed.as_secs_f64();
    let figure = match steady.summary.first_record_ms {
        Some(value) => Figure::new("checkpoint/restart", value / 1e3, "s").note("to the first record, 1 M keys"),
        None => Figure::new("checkpoint/restart", whole, "s").note("no such figure in the summary: whole process"),
    };
    bench.report(figure.wanted(Target::ValueBelow(WANTED_RESTART_S)));
    bench.report(Figure::new("checkpoint/restart-whole-process", whole, "s").note("no new input: start, then stop"));
}

/// A stream of 100,000 new dirty keys a second, by a pipe, with an epoch a second.
fn paced(bench: &mut Bench, component: &Path) -> Result<()> {
    let lines = PACED_SECONDS * DIRTY_KEYS;
    let manifest =
        Manifest::new("paced", Checkpoint::EverySecond).stdin(KEYED_LINES).operator(component, "").blackhole("work");
    let job: Job = bench.job("paced", &manifest, lines)?;
    let run =
        job.run_fed(|mut input| write_keys_paced(&mut input, 0..lines, KEYS, DIRTY_KEYS))?.expect_records(lines)?;
    job.remove()?;
    let seconds = run.usage.elapsed.as_secs_f64();
    let feed = run.summary.feed_cpu_s.map(|cpu| percent(cpu, seconds));
    let figure = from_summary("checkpoint/feed-cpu", "% of a core", feed);
    bench.report(figure.wanted(Target::ValueBelow(WANTED_FEED_PERCENT)));
    let all = percent(run.usage.cpu.as_secs_f64(), seconds);
    bench.report(Figure::new("checkpoint/paced-cpu", all, "% of a core").note("the whole job at 100,000 records/s"));
    Ok(())
}

fn from_summary(name: &str, unit: &'static str, value: Option<f64>) -> Figure {
    match value {
        Some(value) => Figure::new(name, value, unit),
        None => Figure::not_measured(name, unit, "the summary has no such figure"),
    }
}

fn bytes_a_key(peak: u64, peak_with_few: u64) -> f64 {
    (peak as f64 - peak_with_few as f64) / (KEYS - FEW_KEYS) as f64
}

fn percent(cpu_seconds: f64, seconds: f64) -> f64 {
    100.0 * cpu_seconds / seconds
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_a_key_is_what_more_keys_add() {
        let check = |peak, few| bytes_a_key(peak, few);
        assert!((check(299_800_000, 50_000_000) - 249_800_000.0 / 999_000.0).abs() < 1e-9);
        assert!(check(1, 2) < 0.0);
    }

    #[test]
    fn a_share_of_a_core_is_cpu_over_time() {
        assert!((percent(0.5, 10.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_figure_that_the_summary_lacks_is_not_measured() {
        assert_eq!(from_summary("a/b", "ms", Some(1.0)).value, Some(1.0));
        assert_eq!(from_summary("a/b", "ms", None).value, None);
    }
}
