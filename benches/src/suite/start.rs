//! From the start of the process to the first record, with the compiled component in its cache.

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::Result;

use crate::bench::{Bench, Group};
use crate::bids;
use crate::manifest::{Checkpoint, Form, Manifest};
use crate::report::{Figure, Target, median};

/// The group.
pub const GROUP: Group =
    Group { name: "start", figures: &["first-start", "first-record", "whole-process"], run: measure };

const WANTED_MS: f64 = 100.0;

/// How often the warm start is measured.
const STARTS: u64 = 9;

/// Each run processes one new record: the file grows by one bid between runs.
fn measure(bench: &mut Bench) -> Result<()> {
    let input = bench.out("start.jsonl");
    let component = bench.example_guest("bid_euro")?;
    let manifest = Manifest::new("start", Checkpoint::EverySecond)
        .file(&input, Form::Json { key: None })
        .operator(&component, &super::throughput::euro_config())
        .files("work");
    let job = bench.job("start", &manifest, 1)?;
    let mut runs = Vec::new();
    for index in 0..=STARTS {
        let mut line = Vec::new();
        bids::append_bid(&mut line, 0, index);
        OpenOptions::new().create(true).append(true).open(&input)?.write_all(&line)?;
        runs.push(job.run()?.expect_records(1)?);
    }
    let elapsed: Vec<f64> = runs.iter().map(|run| run.usage.elapsed.as_secs_f64() * 1e3).collect();
    bench.report(
        Figure::new("start/first-start", elapsed[0], "ms").note("whole process; compiles unless the cache is warm"),
    );
    let warm_elapsed = median(&elapsed[1..]).expect("there are warm starts");
    let first_record: Vec<f64> = runs[1..].iter().filter_map(|run| run.summary.first_record_ms).collect();
    let figure = match median(&first_record) {
        Some(value) => Figure::new("start/first-record", value, "ms"),
        None => {
            Figure::new("start/first-record", warm_elapsed, "ms").note("no such figure in the summary: whole process")
        }
    };
    bench.report(figure.wanted(Target::ValueBelow(WANTED_MS)));
    bench.report(Figure::new("start/whole-process", warm_elapsed, "ms").note("one record, its epoch and the stop"));
    Ok(())
}
