//! `wasmill build`: makes a job's components by the commands that its manifest names.
//!
//! A command may be anything a shell runs, so that any language fits; nothing here knows one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::manifest::{Manifest, Operator};

/// What `wasmill build` is given.
#[derive(Debug, Args)]
pub struct Build {
    /// The job's manifest.
    #[arg(default_value = "job.toml")]
    pub manifest: PathBuf,
}

/// Runs the `build` command of each operator, then checks that every component is there.
///
/// # Errors
/// When a command fails, or a component is missing.
pub fn run(arguments: &Build) -> anyhow::Result<()> {
    let manifest = load(&arguments.manifest)?;
    let dir = directory_of(&arguments.manifest);
    for step in steps(&manifest) {
        eprintln!("building {}: {}", step.operators.join(", "), step.command);
        run_step(&step, dir)?;
    }
    manifest.operators.iter().try_for_each(|(name, operator)| check_component(name, operator, dir))
}

fn load(path: &Path) -> anyhow::Result<Manifest> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a manifest", path.display()))
}

fn directory_of(manifest: &Path) -> &Path {
    manifest.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
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

fn check_component(name: &str, operator: &Operator, dir: &Path) -> anyhow::Result<()> {
    let component = dir.join(&operator.component);
    match &operator.build {
        _ if component.is_file() => Ok(()),
        Some(command) => bail!(
            "operator `{name}`: `{command}` ended well but {} is not there: correct `component` or `build`",
            component.display()
        ),
        None => bail!(
            "operator `{name}`: its component {} is not there, and no `build` command says how to make it",
            component.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(operators: &str) -> String {
        format!("[job]\nname = \"j\"\n[sources]\n[sinks]\n{operators}")
    }

    fn build(dir: &Path, operators: &str) -> Result<(), String> {
        let path = dir.join("job.toml");
        std::fs::write(&path, manifest(operators)).unwrap();
        run(&Build { manifest: path }).map_err(|error| format!("{error:#}"))
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
        assert_eq!(build(dir.path(), operators), Ok(()));
        assert_eq!(std::fs::read_to_string(dir.path().join("runs")).unwrap(), "run\n");
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_operator() {
        let dir = tempfile::tempdir().unwrap();
        let error = build(dir.path(), "[operators.a]\ncomponent = \"a.wasm\"\nbuild = \"exit 3\"\ninputs = []\n");
        assert_eq!(error, Err("`exit 3`, which builds a, ended badly (exit status: 3)".to_owned()));
    }

    #[test]
    fn a_component_that_is_missing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let without = build(dir.path(), "[operators.a]\ncomponent = \"a.wasm\"\ninputs = []\n").unwrap_err();
        assert!(without.starts_with("operator `a`: its component "), "{without}");
        let with = build(dir.path(), "[operators.a]\ncomponent = \"a.wasm\"\nbuild = \"true\"\ninputs = []\n");
        assert!(with.unwrap_err().starts_with("operator `a`: `true` ended well but "));
    }

    #[test]
    fn commands_find_this_program_first() {
        let path = path_with_ourselves().unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(std::env::split_paths(&path).next().as_deref(), own.parent());
    }
}
