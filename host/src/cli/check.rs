//! `wasmill check`: what is wrong in a manifest.

use std::io::{IsTerminal, Write};
use std::path::Path;

use miette::{GraphicalReportHandler, GraphicalTheme};
use serde_json::json;

use super::Failure;
use super::load::{CheckedJob, JobArgs};
use crate::graph::Declared;
use crate::manifest::{ManifestError, Problem, Severity};

/// The exit code for a manifest that is refused.
pub const EXIT_INVALID_MANIFEST: u8 = 2;

/// Says what is wrong in a manifest, and whether its components fit.
#[derive(Debug, Clone, clap::Args)]
pub struct CheckArgs {
    /// The job to check.
    #[command(flatten)]
    pub job: JobArgs,
    /// Print what was found as a JSON array of {file, line, column, message, help, severity}.
    #[arg(long)]
    pub json: bool,
}

/// Checks the job and prints what was found. `declare` loads a component, given the operator's name and the component's path, and says what it
/// declares or why it cannot be used. The exit code is 0 for a job that can run, [`EXIT_INVALID_MANIFEST`] for one that cannot.
pub fn run(args: &CheckArgs, declare: impl FnMut(&str, &Path) -> Result<Declared, String>) -> Result<(), Failure> {
    let (problems, is_valid) = match check(&args.job, declare) {
        Ok((job, warnings)) => {
            if !args.json {
                print(&mut std::io::stdout(), &format!("{}\n", summary(&job)));
            }
            (warnings, true)
        }
        Err(error) => (error.problems().to_vec(), false),
    };
    if args.json {
        print(&mut std::io::stdout(), &format!("{:#}\n", to_json(&problems)));
    } else {
        print_problems(&problems);
    }
    if is_valid { Ok(()) } else { Err(Failure::Told(EXIT_INVALID_MANIFEST)) }
}

/// Prints problems for people, each with its place in the text, to the standard error.
pub fn print_problems(problems: &[Problem]) {
    let is_plain = !std::io::stderr().is_terminal() || std::env::var_os("NO_COLOR").is_some();
    for problem in problems {
        print(&mut std::io::stderr(), &render(problem, is_plain));
    }
}

/// Lines are not wrapped: terminals do it, and names in a message stay whole.
fn render(problem: &Problem, is_plain: bool) -> String {
    let theme = if is_plain { GraphicalTheme::unicode_nocolor() } else { GraphicalTheme::unicode() };
    let handler = GraphicalReportHandler::new_themed(theme).with_wrap_lines(false);
    let mut text = String::new();
    match handler.render_report(&mut text, problem) {
        Ok(()) => text,
        Err(_) => format!("{problem}\n"),
    }
}

/// A reader that has gone away does not change what was found.
fn print(target: &mut dyn Write, text: &str) {
    _ = target.write_all(text.as_bytes());
}

/// The job and its warnings.
fn check(
    args: &JobArgs,
    declare: impl FnMut(&str, &Path) -> Result<Declared, String>,
) -> Result<(CheckedJob, Vec<Problem>), ManifestError> {
    let job = args.load()?;
    let declared = job.declared(declare)?;
    let (_, from_plan) = job.plan(job.loaded.manifest.job.workers.unwrap_or(1), &declared)?;
    let warnings = [job.warnings.clone(), from_plan].concat();
    Ok((job, warnings))
}

fn summary(job: &CheckedJob) -> String {
    let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    format!(
        "{} is valid: {}, {}, {}",
        job.loaded.document.file(),
        count(job.graph.sources.len(), "source"),
        count(job.graph.operators.len(), "operator"),
        count(job.graph.sinks.len(), "sink"),
    )
}

/// `line` and `column` are null for a problem with a file as a whole.
fn to_json(problems: &[Problem]) -> serde_json::Value {
    let one = |problem: &Problem| {
        let position = problem.position();
        json!({
            "file": problem.file,
            "line": position.map(|position| position.line),
            "column": position.map(|position| position.column),
            "message": problem.message,
            "help": problem.help,
            "severity": match problem.severity {
                Severity::Warning => "warning",
                Severity::Error => "error",
            },
        })
    };
    problems.iter().map(one).collect()
}
