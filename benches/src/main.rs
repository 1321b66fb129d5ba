//! Wasmill's benchmarks: `cargo xtask bench`, or this program itself once everything is built.
//!
//! It measures processes: the built `wasmill` on real jobs, and plain programs (the yardsticks, which it holds itself)
//! on the same input in the same run. `README.md` says what each figure is.

mod bench;
mod bids;
mod cluster;
mod digest;
mod floor;
mod job;
mod keys;
mod lines;
mod manifest;
mod process;
mod random;
mod report;
mod suite;
mod summary;
mod yardstick;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use serde::Serialize;

use bench::{Bench, Group};
use report::{Figure, Verdict};
use yardstick::Program;

/// Measures Wasmill beside plain programs that do the same work.
///
/// Exits with 0 when everything was measured and every output was right, whether or not targets were met; with 1 otherwise.
#[derive(Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only figures whose name contains this.
    filter: Option<String>,
    /// How many bids to process.
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    records: u64,
    /// How often each pair of yardstick and job is run; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Writes the figures to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Lists the figures' names and runs nothing.
    #[arg(long)]
    list: bool,
    /// Exits with 1 when a target was missed, too.
    #[arg(long)]
    strict: bool,
    #[command(subcommand)]
    inner: Option<Inner>,
}

#[derive(Debug, Subcommand)]
enum Inner {
    /// Runs a yardstick program, as the benchmarks do.
    #[command(hide = true)]
    Yardstick {
        #[arg(value_enum)]
        program: Program,
        input: PathBuf,
        output: PathBuf,
    },
    /// The other side of the floor of remote lookups.
    #[command(hide = true)]
    Floor,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.inner {
        Some(Inner::Yardstick { program, input, output }) => yardstick::run(*program, input, output).map(|()| true),
        Some(Inner::Floor) => floor::serve().map(|()| true),
        None if arguments.list => {
            list(arguments.filter.as_deref());
            Ok(true)
        }
        None => measure(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list(filter: Option<&str>) {
    for name in suite::GROUPS.iter().flat_map(names) {
        if filter.is_none_or(|filter| name.contains(filter)) {
            println!("{name}");
        }
    }
}

/// Runs the groups that have a figure asked for; says whether all went well.
fn measure(arguments: &Arguments) -> Result<bool> {
    let mut bench = Bench::new(arguments.records, arguments.runs, arguments.filter.clone())?;
    let groups: Vec<&Group> =
        suite::GROUPS.iter().filter(|group| names(group).any(|name| bench.wants(&name))).collect();
    ensure!(!groups.is_empty(), "no figure's name contains that; `--list` shows all");
    println!("{}", report::heading());
    let mut failed = 0;
    for group in groups {
        if let Err(error) = (group.run)(&mut bench) {
            eprintln!("error: {}: {error:#}", group.name);
            failed += 1;
        }
    }
    if let Some(path) = &arguments.json {
        write_json(path, &bench)?;
    }
    let short = bench.figures().iter().filter(|figure| figure.verdict() == Verdict::Short).count();
    println!("{} figures, {short} short of their targets, {failed} groups failed", bench.figures().len());
    Ok(failed == 0 && (short == 0 || !arguments.strict))
}

fn names(group: &Group) -> impl Iterator<Item = String> {
    group.figures.iter().map(move |figure| format!("{}/{figure}", group.name))
}

/// The form of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    records: u64,
    runs: u32,
    cores: usize,
    figures: Vec<Judged<'a>>,
}

#[derive(Debug, Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    figure: &'a Figure,
    verdict: Verdict,
}

fn write_json(path: &Path, bench: &Bench) -> Result<()> {
    let figures = bench.figures().iter().map(|figure| Judged { figure, verdict: figure.verdict() }).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let report = Report { records: bench.records, runs: bench.runs, cores, figures };
    let mut text = serde_json::to_string_pretty(&report)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["bench", "bid-", "--records", "10000", "--json", "f.json"]);
        assert_eq!((arguments.filter.as_deref(), arguments.records), (Some("bid-"), 10_000));
    }

    #[test]
    fn names_of_figures_are_distinct() {
        let all: Vec<String> = suite::GROUPS.iter().flat_map(names).collect();
        let mut distinct = all.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }
}
