//! The workspace's own tasks, `cargo xtask TASK`: whatever takes more than one command.
//!
//! It runs cargo and the built `wasmill` as processes and never links the host, so that it compiles in seconds.

mod demo;
mod examples;
mod guests;
mod languages;
mod results;
mod schema;
mod workspace;

use std::process::ExitCode;

use anyhow::{Context, bail};
use workspace::{Profile, Workspace, run};

const USAGE: &str = "\
usage: cargo xtask TASK

  demo [NAME] [--dev] [--hosts N]
                        build everything, run an example job to its end, show its result and check it where there is a
                        check (default: flight-delays); with --dev in the development build; with --hosts on N hosts
  guests                build the example functions, and the test function of every language whose tools can be had
  capnp [--check]       make the Rust code of the Cap'n Proto schemas; with --check, say whether it is up to date
  test [ARGS]           build everything and run all tests; ARGS go to `cargo test`
  soak [NAME] [--times N]
                        run what has to hold however long it goes on N times as long as the tests do (default: 100, about half an
                        hour), in the release build; NAME is a part of a test's name
  bench [ARGS]          build everything and measure; ARGS go to the benchmarks
";

fn main() -> ExitCode {
    match dispatch(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    let Some((task, rest)) = arguments.split_first() else { bail!("no task is named\n{USAGE}") };
    match task.as_str() {
        "demo" => demo::run(&workspace, rest),
        "guests" => guests(&workspace, rest),
        "capnp" => schema::run(&workspace, rest),
        "test" => test(&workspace, rest),
        "soak" => soak(&workspace, rest),
        "bench" => bench(&workspace, rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        _ => bail!("there is no task `{task}`\n{USAGE}"),
    }
}

fn guests(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    if let Some(argument) = arguments.first() {
        bail!("`guests` takes no arguments, not `{argument}`");
    }
    let profile = workspace.profile_at_hand();
    workspace.build_host(profile)?;
    guests::build(workspace, profile, &["guest-examples"])?;
    languages::build(workspace, profile)
}

fn test(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    // Builds the host's program, too, with exactly the features that the tests have.
    run(workspace.cargo().args(["test", "--workspace", "--no-run"]))?;
    guests::build(workspace, Profile::Dev, &["guest-examples", "tests/guests"])?;
    languages::build(workspace, Profile::Dev)?;
    let mut tests = workspace.cargo();
    tests.arg("test").args((!names_package(arguments)).then_some("--workspace"));
    run(tests.args(arguments))?;
    if arguments.is_empty() {
        for guests in ["guest-examples", "tests/guests"] {
            run(workspace.cargo().arg("test").current_dir(workspace.path(guests)))?;
        }
    }
    Ok(())
}

/// Whether arguments for `cargo test` choose packages themselves.
fn names_package(arguments: &[String]) -> bool {
    let of_cargo = arguments.iter().take_while(|argument| *argument != "--");
    of_cargo
        .into_iter()
        .any(|argument| argument == "--package" || argument.starts_with("--package=") || argument.starts_with("-p"))
}

fn soak(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let (name, times) = soak_arguments(arguments)?;
    workspace.build_host(Profile::Release)?;
    run(workspace.cargo().args(["test", "--workspace", "--no-run"]))?;
    guests::build(workspace, Profile::Release, &["guest-examples", "tests/guests"])?;
    let mut tests = workspace.cargo();
    tests.args(["test", "--workspace", "--test", "it", "--", &format!("soak::{name}")]);
    tests.args(["--nocapture", "--test-threads", "1"]);
    run(tests.env("WASMILL_SOAK", times.to_string()).env("WASMILL_PROGRAM", workspace.wasmill(Profile::Release)))
}

/// The part of a name, and how many times as long as in the suite.
fn soak_arguments(arguments: &[String]) -> anyhow::Result<(&str, u32)> {
    let (mut name, mut times) = ("", 100);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--times" => {
                let told = rest.next().and_then(|times| times.parse().ok()).filter(|&times| times > 0);
                times = told.context("`--times` takes a whole number above 0")?;
            }
            _ if name.is_empty() && !argument.starts_with('-') => name = argument,
            _ => bail!("`soak` does not know what to do with `{argument}`\n{USAGE}"),
        }
    }
    Ok((name, times))
}

fn bench(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    workspace.build_host(Profile::Release)?;
    guests::build(workspace, Profile::Release, &["guest-examples", "benches/guest"])?;
    if arguments.first().is_none_or(|name| name.starts_with('-') || name.starts_with("languages")) {
        guests::build(workspace, Profile::Release, &["tests/guests"])?;
        languages::build(workspace, Profile::Release)?;
    }
    let mut bench = workspace.cargo();
    run(bench.args(["run", "--quiet", "--release", "--package", "wasmill-benches", "--"]).args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soak_has_a_name_and_a_length_if_told() {
        let parse = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            soak_arguments(&arguments).map(|(name, times)| (name.to_owned(), times)).map_err(|error| error.to_string())
        };
        assert_eq!(parse(&[]), Ok((String::new(), 100)));
        assert_eq!(parse(&["zipf", "--times", "7"]), Ok(("zipf".to_owned(), 7)));
        assert!(parse(&["--times", "0"]).is_err() && parse(&["--times"]).is_err() && parse(&["a", "b"]).is_err());
    }

    fn check_names_package(arguments: &str, expected: bool) {
        let arguments = arguments.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(names_package(&arguments), expected, "{arguments:?}");
    }

    #[test]
    fn only_cargos_own_arguments_choose_packages() {
        check_names_package("-p wasmill some_test", true);
        check_names_package("--package=wasmill", true);
        check_names_package("some_test", false);
        check_names_package("some_test -- -p", false);
    }
}
