//! What the host adds to a record that nobody does anything to: lines in, a function that hands its columns back, nothing out.
//!
//! ```text
//! host = (CPU of the whole job over n records - CPU of the same job over one record) / n
//! ```
//!
//! There is no key, so no parse for it; the function returns its input columns as they are, so its own work is a list of n
//! record indices, about a nanosecond a record, and is counted against the host. Everything else (reading the file, finding lines, batching,
//! routing, crossing into the guest and back, checking columns, the sink, epochs) is the host's. Beside it stand the same job without
//! the function, which is the host's share before the first guest, and a plain loop over the lines.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::nanoseconds_a_record;
use crate::bench::{Bench, Group};
use crate::digest::Digest;
use crate::manifest::{Checkpoint, Form, Manifest};
use crate::report::{Figure, Target, median};
use crate::yardstick::Program;

/// The group.
pub const GROUP: Group =
    Group { name: "pass-through", figures: &["native-lines", "host-without-guest", "host"], run: measure };

const WANTED_NS: f64 = 150.0;

fn measure(bench: &mut Bench) -> Result<()> {
    let input = bench.bids()?;
    let component = bench.bench_guest("echo")?;
    let one_line = bench.out("one-line.txt");
    fs::write(&one_line, "one\n")?;
    Digest::of_path(&input)?;

    let without =
        |path: &Path| Manifest::new("pass-through", Checkpoint::EverySecond).file(path, LINES).blackhole("in");
    let with = |path: &Path| {
        Manifest::new("pass-through", Checkpoint::EverySecond)
            .file(path, LINES)
            .operator(&component, "")
            .blackhole("work")
    };
    let native = median_of(bench.runs, || {
        Ok(bench.yardstick(Program::Lines, &input, &bench.out("yardstick.out"))?.cpu.as_secs_f64())
    })?;
    let without_guest = cost(bench, &without(&input), &without(&one_line))?;
    let host = cost(bench, &with(&input), &with(&one_line))?;

    let native = nanoseconds_a_record(native, bench.records);
    bench.report(Figure::new("pass-through/native-lines", native, "ns/record"));
    bench.report(Figure::new("pass-through/host-without-guest", without_guest, "ns/record").beside(native));
    let figure = Figure::new("pass-through/host", host, "ns/record").beside(native);
    bench.report(figure.wanted(Target::ValueBelow(WANTED_NS)));
    Ok(())
}

const LINES: Form = Form::Lines { keyed: false };

/// CPU nanoseconds a record of the job `whole`, less those of starting and ending it, which `one`, over one record, shows.
fn cost(bench: &Bench, whole: &Manifest, one: &Manifest) -> Result<f64> {
    // The first start compiles the function; it is not counted.
    cpu_of(bench, one, 1)?;
    let start = median_of(bench.runs, || cpu_of(bench, one, 1))?;
    let all = median_of(bench.runs, || cpu_of(bench, whole, bench.records))?;
    Ok(nanoseconds_a_record(all - start, bench.records))
}

fn cpu_of(bench: &Bench, manifest: &Manifest, records: u64) -> Result<f64> {
    let job = bench.job("pass-through", manifest, records)?;
    Ok(job.run()?.expect_records(records)?.usage.cpu.as_secs_f64())
}

fn median_of(runs: u32, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let values = (0..runs).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    Ok(median(&values).expect("at least one run is asked for"))
}
