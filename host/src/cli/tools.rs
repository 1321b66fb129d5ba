//! Compilers that a machine may lack: found where they are, or fetched from a package index into the folder of what is built.
//!
//! Nothing is installed for the machine or the user. What cannot be had is an error of one line that says what to install.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Where fetched tools lie: in this folder if it is named, so that several functions can share them.
const FOLDER_VARIABLE: &str = "WASMILL_TOOLS";

/// The folder of fetched tools for a function that is built in `target`, as an absolute path: compilers are started in folders of their own.
pub(super) fn folder(target: &Path) -> PathBuf {
    let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    let folder = named.map_or_else(|| target.join("tools"), PathBuf::from);
    std::path::absolute(&folder).unwrap_or(folder)
}

/// The file `tool` of a package of PyPI, whose version is a part of its name as pip has it (`ziglang==0.17.1`). It is fetched into `tools` unless it is there.
///
/// # Errors
/// When there is no pip, or it cannot get the package.
pub(super) fn from_pypi(tools: &Path, package: &str, tool: &str) -> Result<PathBuf> {
    fetched(tools, package, tool, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .arg(folder)
            .arg(package);
        pip
    })
}

/// As [`from_pypi`], of a package of npm (`assemblyscript@0.28.20`).
///
/// # Errors
/// When there is no npm, or it cannot get the package.
pub(super) fn from_npm(tools: &Path, package: &str, tool: &str) -> Result<PathBuf> {
    fetched(tools, package, tool, |folder| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--loglevel=error", "--no-audit", "--no-fund", "--prefix"]).arg(folder).arg(package);
        npm
    })
}

/// The file `tool` in the folder of a package, into which `fetch` gets it unless it is there. Two builds may do so at the same time.
fn fetched(tools: &Path, package: &str, tool: &str, fetch: impl Fn(&Path) -> Command) -> Result<PathBuf> {
    let folder = tools.join(package.replace(['=', '@', '/'], "-"));
    let file = folder.join(tool);
    if file.is_file() {
        return Ok(file);
    }
    eprintln!("fetching {package} into {}", folder.display());
    std::fs::create_dir_all(tools).with_context(|| format!("cannot make {}", tools.display()))?;
    let new = tools.join(format!(".new-{}-{}", std::process::id(), package.replace(['=', '@', '/'], "-")));
    let mut command = fetch(&new);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        let _ = std::fs::remove_dir_all(&new);
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        bail!("{} could not get {package}: {last}", command.get_program().to_string_lossy());
    }
    // Whoever comes second has fetched the same.
    if std::fs::rename(&new, &folder).is_err() {
        let _ = std::fs::remove_dir_all(&new);
    }
    ensure!(file.is_file(), "{package} has no {tool}");
    Ok(file)
}

/// Whether `program` can be started with `arguments` and ends well.
pub(super) fn works(program: impl AsRef<OsStr>, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command, whose messages are for the user to read.
///
/// # Errors
/// When it cannot be started or ends badly: then `what` was not done.
pub(super) fn run(command: &mut Command, what: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{what}: see the messages of {program} above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> impl Fn(&Path) -> Command {
        move |folder| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(folder);
            command
        }
    }

    #[test]
    fn what_is_there_is_not_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        let get = "mkdir \"$1\" && echo first > \"$1/tool\"";
        let first = fetched(dir.path(), "some/tool@1.2", "tool", shell(get)).unwrap();
        let second = fetched(dir.path(), "some/tool@1.2", "tool", shell("exit 1")).unwrap();
        assert_eq!((std::fs::read_to_string(&first).unwrap().as_str(), second), ("first\n", first));
    }

    #[test]
    fn what_cannot_be_had_is_told_in_one_line_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let fail = "mkdir \"$1\"; echo first >&2; echo no such package >&2; exit 1";
        let error = fetched(dir.path(), "tool==1", "tool", shell(fail)).unwrap_err();
        assert_eq!(error.to_string(), "sh could not get tool==1: no such package");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_package_without_the_tool_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = fetched(dir.path(), "tool==1", "tool", shell("mkdir \"$1\"")).unwrap_err();
        assert_eq!(error.to_string(), "tool==1 has no tool");
    }
}
