//! Functions of all languages: the same inputs give the same results, errors, metrics and state, whatever a function is written in.
//!
//! The guests lie in `tests/guests/languages`. Each test computes by itself what has to come out, so the languages are held against that and not against each other. A language whose component
//! has not been built is reported as skipped, past what the test runner captures.

use std::io::Write;
use std::path::Path;

use crate::harness::{COMPILE_LIMIT, Ended, Job, guest, repository, run, wasmill};
use crate::plain::{counts_in_state, numbers_by_key, read_json, running_counts, sorted, tally, text};

macro_rules! languages {
    ($($language:ident)*) => {
        $(mod $language {
            fn check(what: fn(&str)) {
                static COMPONENT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
                let component = COMPONENT.get_or_init(|| super::component(stringify!($language)));
                component.as_deref().map(what);
            }

            #[test]
            fn counts_by_key() {
                check(super::counts_by_key);
            }

            #[test]
            fn looks_keys_up_in_a_table_of_others() {
                check(super::looks_keys_up_in_a_table_of_others);
            }

            #[test]
            fn fails_on_its_record_only() {
                check(super::fails_on_its_record_only);
            }

            #[test]
            fn gives_back_what_it_is_given() {
                check(super::gives_back_what_it_is_given);
            }

            #[test]
            fn refuses_a_config_that_does_not_fit() {
                check(super::refuses_a_config_that_does_not_fit);
            }
        })*
    };
}

languages! { rust python typescript javascript c cpp zig go assemblyscript }

/// Records of one batch in many.
const RECORDS: u64 = 5_000;

fn counts_by_key(component: &str) {
    let keys: Vec<String> = (0..RECORDS).map(|number| format!("k{}", number * 11 % 23)).collect();
    let job = Job::new(&manifest(component, "count", "")).input("records.txt", lines(&keys));
    let ended = job.run().succeeded();
    let expected = tally(keys);
    assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&expected));
    assert_eq!(counts_in_state(&job, "work"), expected);
    assert_eq!(ended.figure("records_out"), RECORDS);
}

/// The owner's table is complete, and committed, before the first key is looked up.
fn looks_keys_up_in_a_table_of_others(component: &str) {
    let value = |key: &str| format!(r#"{{"k":"{key}","of":"the owner"}}"#);
    let owned: Vec<String> = (0..50).map(|number| format!("k{}", number * 2)).collect();
    let asked: Vec<String> = (0..3_000).map(|number| format!("k{}", number % 100)).collect();
    let owner = r#"
[sources.changes]
kind = "file"
path = "changes.jsonl"
format = "jsonl"
key = "/k"

[operators.owner]
component = "{guest:keep}"
inputs = ["changes"]
tables.latest = { open = true }
"#;
    let manifest = manifest(component, "join", owner).replace("work.counts", "owner.latest");
    let changes: String = owned.iter().map(|key| value(key) + "\n").collect();
    let job = Job::new(&manifest).input("changes.jsonl", changes).input("records.txt", "");
    job.run().succeeded();
    job.write("records.txt", lines(&asked));
    job.run().succeeded();
    let joined = |key: &String| match owned.contains(key) {
        true => format!("{key}={}", value(key)),
        false => format!("{key}=-"),
    };
    let found = read_json(&job.output_lines("out")).iter().map(|record| text(record, "value")).collect();
    assert_eq!(sorted::<String>(found), sorted(asked.iter().map(joined).collect()));
}

/// Those that are refused, raise or trap, and loop are dead letters; all others come through, and are the only ones that are counted.
fn fails_on_its_record_only(component: &str) {
    let bad = ["reject", "trap", "loop"];
    let good: Vec<String> = (0..300).map(|number| format!("fine {number}")).collect();
    let mut records = good.clone();
    for (place, bad) in [(40, "reject"), (150, "trap"), (260, "loop")] {
        records.insert(place, bad.to_owned());
    }
    let letters = "\n[sinks.bad]\nkind = \"files\"\npath = \"bad\"\n";
    let rules = "on-error = \"dead-letter\"\ndead-letter = \"bad\"\nlimits = { time = \"500ms\" }\n";
    let manifest = manifest(component, "fail", letters)
        .replace("inputs = [\"records\"]\n", &format!("inputs = [\"records\"]\n{rules}"));
    let job = Job::new(&manifest).input("records.txt", lines(&records));
    let ended = job.run().succeeded();
    let found = read_json(&job.output_lines("out")).iter().map(|record| text(record, "value")).collect();
    assert_eq!(sorted::<String>(found), sorted(good.clone()));
    let letters = read_json(&job.output_lines("bad"));
    let refused = letters.iter().map(|letter| text(letter, "value")).collect();
    assert_eq!(sorted::<String>(refused), sorted(bad.map(str::to_owned).to_vec()));
    let reason = |bad: &str| letters.iter().find(|letter| letter["value"] == bad).map(|letter| text(letter, "error"));
    assert_eq!(reason("reject").as_deref(), Some("told to"));
    let over_time = reason("loop").unwrap_or_default();
    assert!(over_time.contains("it ran longer than `limits.time`, 500ms"), "{over_time}");
    assert_eq!(echoed(&ended), good.len() as u64);
    assert_eq!(ended.figure("operators/work/rejected"), 3);
}

/// Large values, bytes that are no text, and thousands of small ones.
fn gives_back_what_it_is_given(component: &str) {
    let mut records: Vec<Vec<u8>> = (0..RECORDS).map(|number| format!("{number}").into_bytes()).collect();
    records.push(vec![b'x'; 1 << 20]);
    records.push((0..=255).filter(|byte| !b"\r\n".contains(byte)).collect());
    records.push(b"\xff\xfe\x80 \xc3( \xed\xa0\x80".to_vec());
    records.push("größer als 東京 🦀".as_bytes().to_vec());
    let input = records.iter().flat_map(|record| [record, &b"\n"[..]].concat()).collect::<Vec<u8>>();
    let manifest = manifest(component, "echo", "").replace("format = \"jsonl\"", "format = \"raw\"");
    let job = Job::new(&manifest).input("records.txt", input);
    let ended = job.run().succeeded();
    let output = crate::harness::output(&job.path("out"));
    let found =
        output.strip_suffix(b"\n").unwrap_or_default().split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    assert!(sorted::<Vec<u8>>(found) == sorted(records.clone()), "{} bytes came out", output.len());
    assert_eq!(echoed(&ended), records.len() as u64);
    check_empty_values(component);
}

/// A column of a line that has nothing in it; its record has neither key nor value.
fn check_empty_values(component: &str) {
    let manifest =
        manifest(component, "echo", "").replace("format = \"lines\"", "format = \"csv\"\ncsv-value = \"raw\"");
    let manifest = manifest.replace("key = \".\"", "key = \"k\"");
    let job = Job::new(&manifest).input("records.txt", "k\n\"\"\na\n\"\"\n");
    let ended = job.run().succeeded();
    let keys = read_json(&job.output_lines("out")).iter().map(|record| text(record, "key")).collect();
    assert_eq!(sorted::<String>(keys), ["", "", "a"]);
    assert_eq!(echoed(&ended), 3);
}

fn refuses_a_config_that_does_not_fit(component: &str) {
    let job = Job::new(&manifest(component, "nonsense", "")).input("records.txt", "a\n");
    job.run().failed(2, &["operator `work`", "config"]);
    assert_eq!(job.output_lines("out"), [""; 0]);
}

/// A job whose operator `work` is the guest in a mode, on lines that are key and value at once.
fn manifest(component: &str, mode: &str, more: &str) -> String {
    format!(
        r#"
[job]
name = "languages"
workers = 2
partitions = 4

[sources.records]
kind = "file"
path = "records.txt"
format = "lines"
key = "."

[operators.work]
component = "{component}"
inputs = ["records"]
config = {{ mode = "{mode}" }}
uses.others = {{ table = "work.counts", read = true }}

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["work"]
{more}
"#
    )
}

fn lines(records: &[String]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

fn echoed(ended: &Ended) -> u64 {
    ended.figure("operators/work/metrics/counts/echoed")
}

/// The component of a language, compiled and in the cache, so that no job's time goes into that; none, which is told, where it has not been built.
fn component(language: &str) -> Option<String> {
    let path = match language {
        "rust" => guest("behaviour"),
        _ => repository().join("tests/guests/languages").join(language).join("behaviour.wasm"),
    };
    if !path.is_file() {
        tell(&format!(
            "skipped: {language}: its guest has not been built; `cargo xtask guests` says what is missing\n"
        ));
        return None;
    }
    let mut inspect = wasmill(Path::new("."));
    inspect.arg("inspect").arg(&path);
    let shown = run(inspect, COMPILE_LIMIT).succeeded().stdout;
    assert!(shown.contains("behaviour 0.1.0") && shown.contains("counts (schema version 1)"), "{shown}");
    Some(path.display().to_string())
}

/// Printed lines are captured while a test succeeds; these are not.
fn tell(line: &str) {
    std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written to");
}
