//! What the README and the docs show is what happens: the tutorial, pasted, the manifest, and the excerpts of examples.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use crate::harness::{COMPILE_LIMIT, Job, guest, repository, run};

/// The blocks between fences of a section of the README.
fn blocks(section: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, rest) = readme.split_once(&format!("\n## {section}\n")).expect("the section is there");
    let text = rest.split("\n## ").next().unwrap_or_default();
    let blocks = text.split("```").skip(1).step_by(2);
    // Behind a fence stands the language.
    blocks.map(|block| block.split_once('\n').unwrap_or_default().1.to_owned()).collect()
}

#[test]
fn the_tutorial_works_when_it_is_pasted() {
    let examples = repository().join("guest-examples");
    _ = guest("word-count");
    let pasted = blocks("Five minutes").concat();
    // The command is the one under test, and the guest finds what the examples have compiled.
    let share = format!("cd visits\nln -s '{0}/target' target\ncp '{0}/Cargo.lock' .", examples.display());
    let script = pasted.replace("cargo install --path host\n", "").replace("cd visits", &share);
    let dir = tempfile::tempdir().unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_wasmill")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.current_dir(&dir).env("PATH", path).env_remove("CARGO_TARGET_DIR").args(["-e", "-c", &script]);
    let ended = run(shell, COMPILE_LIMIT).succeeded();
    let said = [
        "job.toml is valid: 1 source, 1 operator, 1 sink",
        r#"{"user":"ada","count":5,"slowest_page":"/order","slowest_milliseconds":205}"#,
        "summary/visits",
        "as of epoch 2",
        "dia\t{\"count\":2,\"slowest_page\":\"/item/17\",\"slowest_milliseconds\":39}",
        r#"{"user":"ada","count":6,"slowest_page":"/late","slowest_milliseconds":900}"#,
    ];
    let mut rest = ended.stdout.as_str();
    for said in said {
        let (_, behind) = rest.split_once(said).unwrap_or_else(|| panic!("`{said}` is missing in:\n{}", ended.stdout));
        rest = behind;
    }
}

#[test]
fn the_manifest_of_the_readme_is_a_manifest() {
    let [manifest] = &blocks("A manifest")[..] else { panic!("one block") };
    let job = Job::new(manifest);
    let component = format!("operators.count.component={}", guest("misbehaving").display());
    let ended = job.command(["check", "job.toml", "--set", &component]).succeeded();
    assert_eq!(ended.stdout, "job.toml is valid: 1 source, 1 operator, 2 sinks\n");
}

/// The lines of a text, without what stands around them.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

#[test]
fn what_is_shown_of_the_examples_of_tables_is_in_them() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).unwrap();
    let examples = ["likes", "enrich", "transfer", "components"];
    let sources = examples.map(|example| read(&format!("guest-examples/{example}/src/lib.rs"))).concat();
    let manifests = examples.map(|example| read(&format!("guest-examples/{example}/job.toml"))).concat();
    let all = sources + &manifests + &read("guest-examples/transfer/serializable.toml");
    let all: HashSet<&str> = lines(&all).collect();
    let docs = read("docs/tables.md");
    for block in docs.split("```").skip(1).step_by(2) {
        let (language, excerpt) = block.split_once('\n').expect("behind a fence stands the language");
        // The paths of components are shortened, and comments are those of the page.
        let is_shown = |line: &&str| !line.starts_with("component =") && !line.starts_with("//");
        for line in lines(excerpt).filter(is_shown) {
            assert!(all.contains(line), "`{line}` ({language}) is in no example");
        }
    }
}
