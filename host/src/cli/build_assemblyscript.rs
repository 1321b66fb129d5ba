//! `wasmill build-assemblyscript`: builds a function in AssemblyScript to a component, by its compiler, which Node.js runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{Failure, componentize, failed, print, tools};

/// The version that the SDK is written for.
const PACKAGE: &str = "assemblyscript@0.28.20";
const COMPILER: &str = "node_modules/assemblyscript/bin/asc.js";

/// What `wasmill build-assemblyscript` is given.
#[derive(Debug, Args)]
pub struct BuildAssemblyScript {
    /// The function's folder: it is `src/function.ts` with what that imports, its tests are below `tests`.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The folder of the SDK, from the function's folder on.
    #[arg(long, value_name = "DIR", default_value = "wasmill-sdk")]
    pub sdk: String,
    /// The component to make, from the function's folder on.
    #[arg(short, long, value_name = "FILE", default_value = "target/function.wasm")]
    pub output: PathBuf,
    /// Build the function and run its tests, over a host in memory.
    #[arg(long, conflicts_with = "output")]
    pub test: bool,
}

/// Builds the function and prints the path and size of its component, or builds it and runs its tests.
///
/// # Errors
/// When there is no Node.js or compiler, with what to install; when the function does not compile, or a test fails.
pub(super) fn run(arguments: &BuildAssemblyScript) -> Result<(), Failure> {
    let BuildAssemblyScript { dir, sdk, .. } = arguments;
    for (file, remedy) in [
        ("src/function.ts".to_owned(), "a function begins in it"),
        (format!("{sdk}/exports.ts"), "name the folder of the SDK by `--sdk`"),
    ] {
        let file = dir.join(file);
        if !file.is_file() {
            return Err(Failure::usage(format!("{} is not there: {remedy}", file.display())));
        }
    }
    print(&build(arguments).map_err(failed)?)
}

fn build(arguments: &BuildAssemblyScript) -> Result<String> {
    let BuildAssemblyScript { dir, sdk, output, test } = arguments;
    compile(dir, sdk)?;
    if *test {
        tools::run(
            Command::new("node").current_dir(dir).arg("--test").args(tests(&dir.join("tests"))?),
            "the tests failed",
        )?;
        return Ok(String::new());
    }
    componentize::built(&dir.join(MODULE), &dir.join(output))
}

const MODULE: &str = "target/wasm/function.wasm";

/// Compiles the function with what the host calls. Errors of its runtime go through the SDK's `abort`, which logs them.
fn compile(dir: &Path, sdk: &str) -> Result<()> {
    let compiler = find(&dir.join("target"))?;
    let mut command = Command::new("node");
    command.current_dir(dir).arg(compiler).arg("src/function.ts").arg(format!("{sdk}/exports.ts"));
    command.args(["--outFile", MODULE, "--runtime", "minimal", "--exportStart", "_initialize", "-O3", "--debug"]);
    command.arg("--use").arg(format!("abort={sdk}/exports/abort"));
    tools::run(&mut command, "the function was not compiled")
}

/// The compiler, fetched unless it is there.
fn find(target: &Path) -> Result<PathBuf> {
    ensure!(
        tools::works("node", &["--version"]),
        "there is no Node.js here to compile AssemblyScript with: install it from https://nodejs.org and put it on the PATH"
    );
    let compiler = tools::from_npm(&tools::folder(target), PACKAGE, COMPILER);
    let compiler = compiler
        .context("there is no compiler of AssemblyScript here, and npm, which comes with Node.js, cannot fetch it")?;
    compiler.canonicalize().with_context(|| format!("cannot find {}", compiler.display()))
}

/// The tests in a folder, from the function's folder on.
fn tests(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut tests = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))? {
        let name = PathBuf::from(entry?.file_name());
        if name.extension().is_some_and(|extension| extension == "mjs") {
            tests.push(Path::new("tests").join(name));
        }
    }
    ensure!(!tests.is_empty(), "{} has no tests: they end in `.mjs`", folder.display());
    Ok(tests)
}
