//! `wasmill build`: makes a job's components by the commands that its manifest names.
//!
//! A command may be anything a shell runs, so that any language fits; nothing here knows one.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;

use super::load::JobArgs;
use super::{Failure, failed};
use crate::manifest::{Manifest, Operator};

/// What `wasmill build` is given.
#[derive(Debug, Args)]
pub struct Build {
    #[command(flatten)]
    job: JobArgs,
}

/// Builds the components of the job.
pub(super) fn run(arguments: &Build) -> Result<(), Failure> {
    let job = super::load_job(&arguments.job)?;
    let (manifest, dir) = (&job.loaded.manifest, job.loaded.directory());
    build(manifest, dir).map_err(failed)?;
    check_components(manifest, dir).map_err(Failure::usage)
}

/// Builds all components of a manifest that lies in `dir`.
pub(super) fn all(manifest: &Manifest, dir: &Path) -> Result<(), String> {
    build(manifest, dir).map_err(|error| format!("{error:#}"))?;
    check_components(manifest, dir)
}

/// Runs the `build` command of each operator in `dir`.
fn build(manifest: &Manifest, dir: &Path) -> anyhow::Result<()> {
    let steps = steps(manifest);
    if steps.is_empty() {
        eprintln!("nothing to build: no operator has a `build` command");
    }
    for step in steps {
        eprintln!("building {}: {}", step.operators.join(", "), step.command);
        run_step(&step, dir)?;
    }
    Ok(())
}

/// A command, and the operators that it builds.
#[derive(Debug, PartialEq, Eq)]
struct Step<'a> {
    command: &'a str,
    operators: Vec<&'a str>,
}

/// The commands of a manifest, each once.
fn steps(manifest: &Manifest) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for (name, operator) in &manifest.operators {
        let Some(command) = operator.build.as_deref() else { continue };
        match steps.iter_mut().find(|step| step.command == command) {
            Some(step) => step.operators.push(name),
            None => steps.push(Step { command, operators: vec![name] }),
        }
    }
    steps
}

fn run_step(step: &Step<'_>, dir: &Path) -> anyhow::Result<()> {
    let named = || format!("`{}`, which builds {},", step.command, step.operators.join(", "));
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(step.command).current_dir(dir).env("PATH", path_with_ourselves()?);
    let status = shell.status().with_context(|| format!("cannot run {}", named()))?;
    ensure!(status.success(), "{} ended badly ({status})", named());
    Ok(())
}

/// The PATH with this program's directory first, so that a command can say `wasmill`.
fn path_with_ourselves() -> anyhow::Result<OsString> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let own = program.parent().map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).context("the PATH cannot be extended")
}

/// Says which component the manifest names that is not there once everything is built.
fn check_components(manifest: &Manifest, dir: &Path) -> Result<(), String> {
    manifest.operators.iter().try_for_each(|(name, operator)| check_component(name, operator, dir))
}

fn check_component(name: &str, operator: &Operator, dir: &Path) -> Result<(), String> {
    let component = dir.join(&operator.component);
    match &operator.build {
        _ if component.is_file() => Ok(()),
        Some(command) => Err(format!(
            "operator `{name}`: `{command}` ended well but {} is not there: correct `component` or `build`",
            component.display()
        )),
        None => Err(format!(
            "operator `{name}`: its component {} is not there, and no `build` command says how to make it",
            component.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dir: &Path, operators: &str) -> Result<(), String> {
        let text = format!("[job]\nname = \"j\"\n[sources]\n[sinks]\n{operators}");
        let manifest = toml::from_str(&text).unwrap();
        all(&manifest, dir)
    }

    #[test]
    fn operators_that_share_a_command_share_its_run() {
        let dir = tempfile::tempdir().unwrap();
        let operators = r#"
            [operators.a]
            component = "a.wasm"
            build = "echo run >> runs; touch a.wasm b.wasm"
            inputs = []
            [operators.b]
            component = "b.wasm"
            build = "echo run >> runs; touch a.wasm b.wasm"
            inputs = []
            [operators.c]
            component = "a.wasm"
            inputs = []
        "#;
        assert_eq!(check(dir.path(), operators), Ok(()));
        assert_eq!(std::fs::read_to_string(dir.path().join("runs")).unwrap(), "run\n");
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_operator() {
        let dir = tempfile::tempdir().unwrap();
        let error = check(dir.path(), "[operators.a]\ncomponent = \"a.wasm\"\nbuild = \"exit 3\"\ninputs = []\n");
        assert_eq!(error, Err("`exit 3`, which builds a, ended badly (exit status: 3)".to_owned()));
    }

    #[test]
    fn a_component_that_is_missing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let without = check(dir.path(), "[operators.a]\ncomponent = \"a.wasm\"\ninputs = []\n").unwrap_err();
        assert!(without.starts_with("operator `a`: its component "), "{without}");
        let with = check(dir.path(), "[operators.a]\ncomponent = \"a.wasm\"\nbuild = \"true\"\ninputs = []\n");
        assert!(with.unwrap_err().starts_with("operator `a`: `true` ended well but "));
    }

    #[test]
    fn commands_find_this_program_first() {
        let path = path_with_ourselves().unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(std::env::split_paths(&path).next().as_deref(), own.parent());
    }
}
