//! What a new user does first: `wasmill new`, `wasmill build`, `wasmill run`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{COMPILE_LIMIT, Ended, guest, output_lines, repository, run, wasmill};

#[test]
fn a_new_guest_passes_its_test_builds_and_runs_as_it_is() {
    let (_dir, guest) = new_guest();
    share_what_the_examples_built(&guest);
    let mut cargo = Command::new(env!("CARGO"));
    // A target directory set for the outer cargo may be locked by it.
    cargo.args(["test", "--quiet"]).current_dir(&guest).env_remove("CARGO_TARGET_DIR");
    run(cargo, COMPILE_LIMIT).succeeded();
    in_guest(&guest, &["build", "job.toml"]).succeeded();
    in_guest(&guest, &["run", "job.toml"]).succeeded();
    assert_eq!(visits_in_output(&guest.join("out")), visits_in_sample(&guest.join("data/sample.jsonl")));
}

/// A new function in a language that another program compiles, built, tested and run.
#[track_caller]
fn check_language(language: &str, build: &str, lacking: &str) {
    let (_dir, guest) = new_in(language);
    if told_to_skip(language, lacking, &in_guest(&guest, &["build", "job.toml"])) {
        return;
    }
    in_guest(&guest, &[build, "--test"]).succeeded();
    in_guest(&guest, &["run", "job.toml"]).succeeded();
    assert_eq!(visits_in_output(&guest.join("out")), visits_in_sample(&guest.join("data/sample.jsonl")));
}

fn new_in(language: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    in_guest(dir.path(), &["new", "--lang", language, "page-visits"]).succeeded();
    let guest = dir.path().join("page-visits");
    (dir, guest)
}

/// Where the program that builds is not here and cannot be fetched, the build says what to install, and the test that it is skipped. Any other failure fails the test.
#[track_caller]
fn told_to_skip(language: &str, lacking: &str, built: &Ended) -> bool {
    let is_lacking = built.stderr.contains(lacking);
    if is_lacking {
        // By the stream itself: what is printed by macros is only shown of tests that fail.
        let told = format!("SKIPPED: functions in `{language}`: {}\n", built.stderr.trim_end());
        std::io::stderr().write_all(told.as_bytes()).unwrap();
    }
    assert!(is_lacking || built.status.success(), "{language}: {}{}", built.stdout, built.stderr);
    is_lacking
}

const NO_ZIG: &str = "there is no Zig here";
const NO_GO: &str = "there is no Go ";
/// Neither Node.js nor, by its npm, the compiler.
const NO_ASSEMBLYSCRIPT: &str = "there is no ";

#[test]
fn a_new_function_in_c_builds_passes_its_test_and_runs() {
    check_language("c", "build-c", NO_ZIG);
}

#[test]
fn a_new_function_in_cpp_builds_passes_its_test_and_runs() {
    check_language("cpp", "build-c", NO_ZIG);
}

#[test]
fn a_new_function_in_zig_builds_passes_its_test_and_runs() {
    check_language("zig", "build-zig", NO_ZIG);
}

#[test]
fn a_new_function_in_go_builds_passes_its_test_and_runs() {
    check_language("go", "build-go", NO_GO);
}

#[test]
fn a_new_function_in_assemblyscript_builds_passes_its_test_and_runs() {
    check_language("assemblyscript", "build-assemblyscript", NO_ASSEMBLYSCRIPT);
}

#[test]
fn the_sdk_of_c_keeps_its_promises() {
    let test = ["build-c", "tests/guests/obedient/c", "--sdk", "../../../../guest-sdk/c", "--test"];
    told_to_skip("c", NO_ZIG, &in_guest(repository(), &test));
}

#[test]
fn the_sdk_of_go_keeps_its_promises() {
    told_to_skip("go", NO_GO, &in_guest(repository(), &["build-go", "guest-sdk/go", "--test"]));
}

#[test]
fn the_sdk_of_assemblyscript_keeps_its_promises() {
    let sdk = "../../../../guest-sdk/assemblyscript";
    let test = ["build-assemblyscript", "tests/guests/obedient/assemblyscript", "--sdk", sdk, "--test"];
    told_to_skip("assemblyscript", NO_ASSEMBLYSCRIPT, &in_guest(repository(), &test));
}

#[test]
fn a_core_module_becomes_a_component() {
    let (_dir, guest) = new_in("c");
    if told_to_skip("c", NO_ZIG, &in_guest(&guest, &["build", "job.toml"])) {
        return;
    }
    let module = "target/wasm/function.wasm";
    in_guest(&guest, &["inspect", module]).failed(2, &["is a core Wasm module", "wasmill componentize"]);
    in_guest(&guest, &["componentize", module, "-o", "again.wasm"]).succeeded();
    let inspected = in_guest(&guest, &["inspect", "again.wasm"]).succeeded();
    assert!(inspected.stdout.contains("page-visits 0.1.0"), "{}", inspected.stdout);
    in_guest(&guest, &["componentize", "again.wasm", "-o", "twice.wasm"]).failed(2, &["it is a component already"]);
    in_guest(&guest, &["componentize", module, "-o", "migrating.wasm", "--world", "migrating-operator"])
        .failed(2, &["wasmill:operator/migration@0.1.0"]);
}

#[test]
fn a_build_that_fails_is_named_with_its_operator() {
    let (_dir, guest) = new_guest();
    let manifest = std::fs::read_to_string(guest.join("job.toml")).unwrap();
    std::fs::write(guest.join("job.toml"), manifest.replace("wasmill build-rust", "exit 7")).unwrap();
    in_guest(&guest, &["build", "job.toml"]).failed(1, &["`exit 7`, which builds summary, ended badly"]);
}

#[test]
fn a_folder_that_is_there_is_left_alone() {
    let (dir, guest) = new_guest();
    let manifest = std::fs::read(guest.join("job.toml")).unwrap();
    in_guest(dir.path(), &["new", "page-visits"]).failed(2, &["page-visits is there already"]);
    assert_eq!(std::fs::read(guest.join("job.toml")).unwrap(), manifest);
}

fn new_guest() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    in_guest(dir.path(), &["new", "page-visits"]).succeeded();
    let guest = dir.path().join("page-visits");
    (dir, guest)
}

fn in_guest(dir: &Path, arguments: &[&str]) -> Ended {
    let mut command = wasmill(dir);
    // What is fetched is fetched once for all tests.
    command.args(arguments).env("WASMILL_TOOLS", repository().join("target/tools"));
    run(command, COMPILE_LIMIT)
}

/// Building the standard library takes a minute: the examples have it already, in the same versions.
fn share_what_the_examples_built(dir: &Path) {
    _ = guest("word-count");
    let examples = repository().join("guest-examples");
    std::os::unix::fs::symlink(examples.join("target"), dir.join("target")).unwrap();
    std::fs::copy(examples.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
}

/// For each user, how many visits, and the time of the slowest.
type Visits = BTreeMap<String, (u64, u64)>;

fn visits_in_sample(file: &Path) -> Visits {
    let mut visits = Visits::new();
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let visit: Value = serde_json::from_str(line).unwrap();
        let (count, slowest) = visits.entry(visit["user"].as_str().unwrap().to_owned()).or_default();
        *count += 1;
        *slowest = (*slowest).max(visit["milliseconds"].as_u64().unwrap());
    }
    visits
}

/// The last line of each user.
fn visits_in_output(folder: &Path) -> Visits {
    let mut visits = Visits::new();
    for line in output_lines(folder) {
        let summary: Value = serde_json::from_str(&line).unwrap();
        let figures = (summary["count"].as_u64().unwrap(), summary["slowest_milliseconds"].as_u64().unwrap());
        visits.insert(summary["user"].as_str().unwrap().to_owned(), figures);
    }
    visits
}
