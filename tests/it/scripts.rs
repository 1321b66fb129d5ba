//! Functions in Python, TypeScript and JavaScript as their authors meet them: what `wasmill new` makes passes its test, builds and runs, and the SDKs pass theirs.
//!
//! Builds use the tools that `cargo xtask` has put below the target directory. Where they are missing, that is told, past what the test runner captures.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{COMPILE_LIMIT, output_lines, repository, run, wasmill};
use crate::plain::{read_json, text};

#[test]
fn a_new_function_in_python_passes_its_test_builds_and_runs() {
    check_new("python", "python", &["python3", "-m", "unittest"]);
}

#[test]
fn a_new_function_in_typescript_passes_its_test_builds_and_runs() {
    check_new("ts", "node", &["node", "wasmill-sdk/build.mjs", "--test", "function.test.ts"]);
}

#[test]
fn a_new_function_in_javascript_passes_its_test_builds_and_runs() {
    check_new("js", "node", &["node", "wasmill-sdk/build.mjs", "--test", "function.test.js"]);
}

#[test]
fn the_sdk_of_python_keeps_what_it_promises() {
    let Some(tools) = tools("python") else { return };
    run_in(&repository().join("guest-sdk/python"), &tools, &["python3", "-m", "unittest", "tests/test_sdk.py"]);
}

#[test]
fn the_sdk_of_typescript_keeps_what_it_promises() {
    let Some(tools) = tools("node") else { return };
    let sdk = repository().join("guest-sdk/typescript");
    run_in(&sdk, &tools, &["node", "build.mjs", "--test", "tests/sdk.test.ts"]);
}

#[test]
fn the_examples_pass_their_tests() {
    let examples = repository().join("guest-examples");
    if let Some(tools) = tools("python") {
        run_in(&examples.join("word-count-python"), &tools, &["python3", "-m", "unittest"]);
    }
    if let Some(tools) = tools("node") {
        let test = ["node", "../../guest-sdk/typescript/build.mjs", "--test", "word-count.test.ts"];
        run_in(&examples.join("word-count-typescript"), &tools, &test);
    }
}

/// The last that is told of a user is what the sample comes to: ada has been seen five times.
fn check_new(language: &str, tool: &str, test: &[&str]) {
    let Some(tools) = tools(tool) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut new = wasmill(dir.path());
    new.args(["new", "--lang", language, "page-visits"]);
    run(new, COMPILE_LIMIT).succeeded();
    let folder = dir.path().join("page-visits");
    run_in(&folder, &tools, test);
    for words in ["build", "run"] {
        let mut command = wasmill(&folder);
        command.args([words, "job.toml"]).env("WASMILL_TOOLS", &tools);
        run(command, COMPILE_LIMIT).succeeded();
    }
    let summaries = read_json(&output_lines(&folder.join("out")));
    let of_ada = summaries.iter().filter(|summary| text(summary, "user") == "ada").collect::<Vec<_>>();
    assert_eq!((summaries.len(), of_ada.len()), (12, 5));
    assert_eq!((of_ada[4]["count"].as_u64(), of_ada[4]["slowest_milliseconds"].as_u64()), (Some(5), Some(205)));
}

fn run_in(folder: &Path, tools: &Path, words: &[&str]) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder).env("WASMILL_TOOLS", tools).env("PYTHONDONTWRITEBYTECODE", "1");
    run(command, COMPILE_LIMIT).succeeded();
}

/// The folder of the tools, if this one is there.
fn tools(tool: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_wasmill"))
        .parent()
        .and_then(Path::parent)
        .expect("it lies in a target directory");
    let tools = target.join("tools");
    if !tools.join(tool).is_dir() {
        let line =
            format!("skipped: {tool}: {} is not there; `cargo xtask guests` makes it\n", tools.join(tool).display());
        std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written to");
        return None;
    }
    Some(tools)
}
