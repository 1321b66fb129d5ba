//! The same counter in all languages: what a function costs by what it is written in.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::mebibytes;
use crate::bench::{Bench, Group};
use crate::digest::Digest;
use crate::job::JobRun;
use crate::manifest::{Checkpoint, Form, Manifest};
use crate::report::{Figure, median};

macro_rules! figures {
    ($($language:literal)*) => {
        &[$(
            concat!($language, "-size"),
            concat!($language, "-compile"),
            concat!($language, "-start"),
            concat!($language, "-throughput"),
            concat!($language, "-memory"),
        )*]
    };
}

/// The group.
pub const GROUP: Group = Group {
    name: "languages",
    figures: figures!["rust" "c" "cpp" "zig" "assemblyscript" "go" "javascript" "typescript" "python"],
    run: measure,
};

const LANGUAGES: [&str; 9] = ["rust", "c", "cpp", "zig", "assemblyscript", "go", "javascript", "typescript", "python"];

const KEYS: u64 = 10_000;
/// As many as the slowest does in some seconds.
const RECORDS_MAX: u64 = 1_000_000;
/// How often a component is started.
const STARTS: usize = 9;

fn measure(bench: &mut Bench) -> Result<()> {
    let records = bench.records.min(RECORDS_MAX);
    let input = Input::make(bench, records)?;
    for language in LANGUAGES {
        let wanted = |figure: &str| bench.wants(&format!("languages/{language}-{figure}"));
        if !["size", "compile", "start", "throughput", "memory"].into_iter().any(wanted) {
            continue;
        }
        match bench.language_guest(language)? {
            Some(component) => measure_one(bench, language, &component, &input)?,
            None => bench.report(Figure::not_measured(
                format!("languages/{language}-size"),
                "KiB",
                "its guest has not been built: `cargo xtask guests` says what is missing",
            )),
        }
    }
    Ok(())
}

fn measure_one(bench: &mut Bench, language: &str, component: &Path, input: &Input) -> Result<()> {
    let name = |figure: &str| format!("languages/{language}-{figure}");
    let size = component.metadata().with_context(|| format!("failed to read {}", component.display()))?.len();
    bench.report(Figure::new(name("size"), size as f64 / 1024.0, "KiB"));

    let cache = bench.out("cache");
    crate::job::remove(&cache)?;
    let milliseconds =
        |bench: &Bench| Ok::<_, anyhow::Error>(bench.inspect(component, &cache)?.elapsed.as_secs_f64() * 1e3);
    let cold = milliseconds(bench)?;
    let starts = (0..STARTS).map(|_| milliseconds(bench)).collect::<Result<Vec<f64>>>()?;
    let start = median(&starts).expect("there are starts");
    bench.report(Figure::new(name("compile"), cold - start, "ms").note("once: compiled code is kept"));
    bench.report(Figure::new(name("start"), start, "ms").note("of a process, until the function has described itself"));

    let (mut elapsed, mut memory) = (Vec::new(), Vec::new());
    let alone = count(bench, component, &input.first, 1)?.usage.elapsed;
    for _ in 0..bench.runs {
        let run = count(bench, component, &input.all, input.records)?;
        elapsed.push(run.usage.elapsed.saturating_sub(alone).as_secs_f64());
        memory.push(mebibytes(run.usage.peak_bytes));
    }
    let seconds = median(&elapsed).expect("there is a run");
    let throughput = Figure::new(name("throughput"), (input.records - 1) as f64 / seconds, "records/s");
    bench.report(throughput.note("two workers; starting and stopping left out"));
    bench.report(
        Figure::new(name("memory"), median(&memory).expect("there is a run"), "MiB").note("of the whole process"),
    );
    Ok(())
}

/// Runs the counter over an input, and checks what it has written.
fn count(bench: &Bench, component: &Path, lines: &Lines, records: u64) -> Result<JobRun> {
    let manifest = Manifest::new("languages", Checkpoint::EverySecond)
        .file(&lines.input, Form::Lines { keyed: true })
        .operator(component, "mode = \"count\"")
        .plus("uses.others = { table = \"work.counts\", read = true }\n")
        .files("work");
    let job = bench.job("languages", &manifest, records)?;
    let run = job.run()?.expect_records(records)?;
    let found = job.output()?;
    ensure!(found == lines.counts, "the output of {} is wrong: {found}, not {}", component.display(), lines.counts);
    job.remove()?;
    Ok(run)
}

/// What is counted.
struct Input {
    records: u64,
    all: Lines,
    first: Lines,
}

/// Lines that are keys, and what comes of counting them.
struct Lines {
    input: PathBuf,
    counts: Digest,
}

impl Input {
    fn make(bench: &Bench, records: u64) -> Result<Self> {
        Ok(Self { records, all: Lines::make(bench, "keys", records)?, first: Lines::make(bench, "first-key", 1)? })
    }
}

impl Lines {
    /// Keys follow each other so that a batch has most of its keys once, and each key comes equally often.
    fn make(bench: &Bench, name: &str, records: u64) -> Result<Self> {
        let input = bench.out(&format!("{name}.txt"));
        let file = File::create(&input).with_context(|| format!("failed to create {}", input.display()))?;
        let (mut writer, mut counts) = (BufWriter::new(file), Digest::default());
        for number in 0..records {
            writeln!(writer, "customer-{:05}", number * 7_919 % KEYS)?;
            counts.add((number / KEYS + 1).to_string().as_bytes());
        }
        writer.flush()?;
        Ok(Self { input, counts })
    }
}
