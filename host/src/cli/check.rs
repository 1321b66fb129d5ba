//! `wasmill check`: what is wrong in a manifest.

use std::io::{IsTerminal, Write};
use std::path::Path;

use miette::{GraphicalReportHandler, GraphicalTheme};
use serde_json::json;

use super::Failure;
use super::load::{CheckedJob, JobArgs};
use crate::graph::Declared;
use crate::job::worker_count;
use crate::manifest::{At, Finding, ManifestError, Problem, Severity};

/// The exit code for a manifest that is refused.
pub const EXIT_INVALID_MANIFEST: u8 = 2;

/// Says what is wrong in a manifest, and whether its components fit.
#[derive(Debug, Clone, clap::Args)]
pub struct CheckArgs {
    /// The job to check.
    #[command(flatten)]
    pub job: JobArgs,
    /// Check for this host of several, which has the files of no other.
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Print what was found as a JSON array of {file, line, column, message, help, severity}.
    #[arg(long)]
    pub json: bool,
}

/// Checks the job and prints what was found. `declare` loads a component, given the operator's name and the component's path, and says what it
/// declares or why it cannot be used. The exit code is 0 for a job that can run, [`EXIT_INVALID_MANIFEST`] for one that cannot.
pub fn run(args: &CheckArgs, declare: impl FnMut(&str, &Path) -> Result<Declared, String>) -> Result<(), Failure> {
    let (problems, is_valid) = match check(&args.job, args.host.as_deref(), declare) {
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
    host: Option<&str>,
    declare: impl FnMut(&str, &Path) -> Result<Declared, String>,
) -> Result<(CheckedJob, Vec<Problem>), ManifestError> {
    let job = args.load()?;
    let host = host
        .map(|host| job.graph.hosts.chosen(Some(host)))
        .transpose()
        .map_err(|message| job.loaded.document.refusal([Finding::error(At::key(["cluster"]), message)]))?;
    job.check_tls(host)?;
    let declared = job.declared(declare)?;
    let (_, from_plan) = job.plan(worker_count(&job.loaded.manifest), &declared)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"[job]
name = "job"

[sources.bids]
kind = "file"
path = "bids.jsonl"
format = "jsonl"
key = "/auction"

[operators.stats]
component = "stats.wasm"
build = "make"
inputs = ["bids"]

[sinks.out]
kind = "blackhole"
inputs = ["stats"]
"#;

    /// The outcome of a check of `text`, as JSON and with the manifest's directory left out.
    fn check_text(
        text: &str,
        set: &[&str],
        declare: impl FnMut(&str, &Path) -> Result<Declared, String>,
    ) -> (bool, serde_json::Value) {
        let directory = tempfile::tempdir().unwrap();
        let manifest = directory.path().join("job.toml");
        std::fs::write(&manifest, text).unwrap();
        let args = JobArgs { manifest, set: set.iter().map(ToString::to_string).collect() };
        let (is_valid, problems) = match check(&args, None, declare) {
            Ok((_, warnings)) => (true, warnings),
            Err(error) => (false, error.problems().to_vec()),
        };
        let shown = to_json(&problems).to_string().replace(&format!("{}/", directory.path().display()), "");
        (is_valid, shown.parse().unwrap())
    }

    #[test]
    fn a_job_that_fits_its_components_is_valid() {
        let mut asked = Vec::new();
        let (is_valid, problems) = check_text(MANIFEST, &[], |name, path| {
            asked.push((name.to_owned(), path.file_name().unwrap().to_owned(), path.is_absolute()));
            Ok(Declared::default())
        });
        assert!(is_valid);
        assert_eq!(problems, json!([]));
        assert_eq!(asked, [("stats".to_owned(), "stats.wasm".into(), true)]);
    }

    #[test]
    fn a_component_that_cannot_be_used_is_named_at_its_place() {
        let (is_valid, problems) =
            check_text(MANIFEST, &[], |_, _| Err("the component is of another world".to_owned()));
        let help = problems[0]["help"].as_str().unwrap();
        assert!(help.starts_with("build it with `wasmill build"), "{help}");
        let expected = json!([{
            "file": "job.toml", "line": 11, "column": 13, "severity": "error",
            "message": "the component is of another world", "help": help,
        }]);
        assert_eq!((is_valid, problems), (false, expected));
    }

    #[test]
    fn what_components_declare_is_checked_against_the_manifest() {
        let (is_valid, problems) = check_text(MANIFEST, &["sinks.out.inputs=[\"stats.late\"]"], |_, _| {
            Ok(Declared { ports: vec!["late".to_owned(), "early".to_owned()], ..Declared::default() })
        });
        assert!(is_valid);
        assert_eq!(problems[0]["severity"], "warning");
        assert_eq!(problems[0]["line"], 11);
        assert_eq!(problems.as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_manifest_that_cannot_be_read_has_no_line() {
        let args = JobArgs { manifest: "/nowhere/job.toml".into(), set: Vec::new() };
        let error = check(&args, None, |_, _| Ok(Declared::default())).unwrap_err();
        let problems = to_json(error.problems());
        assert_eq!((&problems[0]["line"], &problems[0]["file"]), (&json!(null), &json!("/nowhere/job.toml")));
    }

    #[test]
    fn a_problem_is_shown_with_its_place() {
        let (_, problems) = check_text(&MANIFEST.replace("path", "pth"), &[], |_, _| Ok(Declared::default()));
        assert_eq!(problems[0]["message"], "unknown field `pth`, did you mean `path`?");
        let text = MANIFEST.replace("path", "pth");
        let error = crate::manifest::load_text("job.toml", "/jobs".into(), &text, &[]).unwrap_err();
        let shown = render(&error.problems()[0], true);
        assert!(shown.contains("─[job.toml:6:1]"), "{shown}");
        assert!(shown.contains(" 6 │ pth = \"bids.jsonl\"\n   · ───\n"), "{shown}");
    }
}
