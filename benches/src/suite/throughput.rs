//! `bid-euro` and `bid-stats`: whole jobs beside whole programs, over the same file, with the same lines as result.

use std::path::Path;

use anyhow::{Result, ensure};

use super::mebibytes;
use crate::bench::{Bench, Group};
use crate::digest::Digest;
use crate::job::JobRun;
use crate::manifest::{Checkpoint, Form, Manifest};
use crate::process::Usage;
use crate::report::{Figure, Target, median};
use crate::yardstick::{EURO_RATE, Program};

const FIGURES: &[&str] =
    &["yardstick-throughput", "throughput", "yardstick-cpu", "cpu", "memory", "epochs", "seal-pause-p99", "commit-p99"];

/// Stateless: a price converted.
pub const BID_EURO: Group = Group {
    name: "bid-euro",
    figures: FIGURES,
    run: |bench| {
        measure(bench, &Subject { program: Program::BidEuro, component: "bid_euro", key: None, config: euro_config })
    },
};

/// Keyed: count, maximum and mean per auction, one output a record.
pub const BID_STATS: Group = Group {
    name: "bid-stats",
    figures: FIGURES,
    run: |bench| {
        measure(
            bench,
            &Subject { program: Program::BidStats, component: "bid_stats", key: Some("/auction"), config: String::new },
        )
    },
};

/// The `config` of the function `bid-euro`.
pub fn euro_config() -> String {
    format!("rate = {EURO_RATE}")
}

const WANTED_RATIO: f64 = 0.75;
const WANTED_CPU_S: f64 = 6.0;
const WANTED_MEMORY_MIB: f64 = 250.0;

/// The number of records that the wanted CPU time is for.
const CPU_RECORDS: f64 = 5e6;

struct Subject {
    program: Program,
    component: &'static str,
    key: Option<&'static str>,
    config: fn() -> String,
}

fn measure(bench: &mut Bench, subject: &Subject) -> Result<()> {
    let input = bench.bids()?;
    let component = bench.example_guest(subject.component)?;
    let manifest = Manifest::new(subject.program.name(), Checkpoint::EverySecond)
        .file(&input, Form::Json { key: subject.key })
        .operator(&component, &(subject.config)())
        .files("work");
    let mut pairs = Vec::new();
    // The first reading of the input warms the page cache for all.
    Digest::of_path(&input)?;
    for _ in 0..bench.runs {
        let (yardstick, expected) = run_yardstick(bench, subject.program, &input)?;
        pairs.push((yardstick, run_job(bench, subject, &manifest, expected)?));
    }
    report(bench, subject.program.name(), &pairs);
    Ok(())
}

fn run_yardstick(bench: &Bench, program: Program, input: &Path) -> Result<(Usage, Digest)> {
    let output = bench.out("yardstick.out");
    let usage = bench.yardstick(program, input, &output)?;
    let digest = Digest::of_path(&output)?;
    std::fs::remove_file(&output)?;
    Ok((usage, digest))
}

fn run_job(bench: &Bench, subject: &Subject, manifest: &Manifest, expected: Digest) -> Result<JobRun> {
    let job = bench.job(subject.program.name(), manifest, bench.records)?;
    let run = job.run()?.expect_records(bench.records)?;
    let found = job.output()?;
    ensure!(found == expected, "the job's output is wrong: {found}, where the yardstick wrote {expected}");
    job.remove()?;
    Ok(run)
}

fn report(bench: &mut Bench, group: &str, pairs: &[(Usage, JobRun)]) {
    let of_yardstick = |what: fn(&Usage) -> f64| middle(pairs.iter().map(|(usage, _)| what(usage)));
    let of_job = |what: fn(&Usage) -> f64| middle(pairs.iter().map(|(_, run)| what(&run.usage)));
    let records = bench.records as f64;
    let elapsed: fn(&Usage) -> f64 = |usage| usage.elapsed.as_secs_f64();
    let cpu: fn(&Usage) -> f64 = |usage| usage.cpu.as_secs_f64();
    let peak: fn(&Usage) -> f64 = |usage| mebibytes(usage.peak_bytes);

    let (yardstick_rate, job_rate) = (records / of_yardstick(elapsed), records / of_job(elapsed));
    bench.report(Figure::new(format!("{group}/yardstick-throughput"), yardstick_rate, "records/s"));
    let throughput = Figure::new(format!("{group}/throughput"), job_rate, "records/s").beside(yardstick_rate);
    bench.report(throughput.wanted(Target::RatioAtLeast(WANTED_RATIO)).note("output equals the yardstick's"));

    let scale = CPU_RECORDS / records;
    let (yardstick_cpu, job_cpu) = (of_yardstick(cpu) * scale, of_job(cpu) * scale);
    bench.report(Figure::new(format!("{group}/yardstick-cpu"), yardstick_cpu, "s/5M"));
    let figure = Figure::new(format!("{group}/cpu"), job_cpu, "s/5M").beside(yardstick_cpu);
    bench.report(figure.wanted(Target::ValueAtMost(WANTED_CPU_S)));
    let memory = Figure::new(format!("{group}/memory"), of_job(peak), "MiB").beside(of_yardstick(peak));
    bench.report(memory.wanted(Target::ValueAtMost(WANTED_MEMORY_MIB)));
    report_epochs(bench, group, pairs);
}

fn report_epochs(bench: &mut Bench, group: &str, pairs: &[(Usage, JobRun)]) {
    let summaries = || pairs.iter().map(|(_, run)| &run.summary);
    bench.report(Figure::new(format!("{group}/epochs"), middle(summaries().map(|summary| summary.epochs as f64)), ""));
    let quantiles = [
        ("seal-pause-p99", summaries().filter_map(|summary| summary.seal_pause_ms.p99).collect::<Vec<_>>()),
        ("commit-p99", summaries().filter_map(|summary| summary.commit_ms.p99).collect()),
    ];
    for (what, values) in quantiles {
        let name = format!("{group}/{what}");
        bench.report(match median(&values) {
            Some(value) => Figure::new(name, value, "ms"),
            None => Figure::not_measured(name, "ms", "the summary has no such figure"),
        });
    }
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(&values.collect::<Vec<_>>()).expect("at least one run is asked for")
}
