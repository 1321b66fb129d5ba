//! Inputs of every sort, as they come to be in the world: what is read, what is refused, and what is said of it.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::harness::{Job, TIME_LIMIT, run};
use crate::plain::{counts_in_state, numbers_by_key, read_json, running_counts, sorted, tally, text};

/// A job that passes its input on as it was read. `source` is the rest of a source of files.
fn pass(source: &str) -> Job {
    let letters = if source.contains("dead-letter") { "[sinks.bad]\nkind = \"files\"\npath = \"bad\"" } else { "" };
    Job::new(&format!(
        r#"
[job]
name = "input"
workers = 2

[sources.input]
kind = "file"
{source}

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["input"]

{letters}
"#
    ))
}

/// A job that counts its input's records by key.
fn count(source: &str) -> Job {
    Job::new(&format!(
        r#"
[job]
name = "input"
workers = 2

{source}

[operators.count]
component = "{{guest:misbehaving}}"
inputs = ["input"]
config = {{ mode = "count" }}

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["count"]
"#
    ))
}

const LINES: &str = "path = \"in.txt\"\nformat = \"lines\"\nkey = \".\"";
const JSON: &str = "path = \"in.jsonl\"\nformat = \"jsonl\"\nkey = \"/k\"";

fn check_read(source: &str, file: &str, content: impl AsRef<[u8]>, expected: &[Value]) {
    let job = pass(source).input(file, content);
    let ended = job.run().succeeded();
    assert_eq!(read_json(&job.output_lines("out")), expected, "{source}");
    assert_eq!(ended.figure("records_in"), expected.len() as u64);
    assert_eq!(ended.figure("rejected"), 0);
}

fn line(text: &str) -> Value {
    json!({ "key": text, "value": text })
}

#[test]
fn an_empty_file_is_read_to_its_end() {
    check_read(LINES, "in.txt", "", &[]);
    check_read(JSON, "in.jsonl", "", &[]);
    check_read("path = \"in.csv\"\nformat = \"csv\"", "in.csv", "", &[]);
}

#[test]
fn a_last_line_may_lack_its_end() {
    check_read(LINES, "in.txt", "one\ntwo", &[line("one"), line("two")]);
    let expected = [json!({ "key": "a", "value": { "k": "a" } }), json!({ "key": "b", "value": { "k": "b" } })];
    check_read(JSON, "in.jsonl", "{\"k\":\"a\"}\n{\"k\":\"b\"}", &expected);
}

#[test]
fn carriage_returns_and_a_byte_order_mark_are_no_part_of_records() {
    check_read(LINES, "in.txt", "\u{feff}one\r\ntwo\r\n\r\n", &[line("one"), line("two"), line("")]);
    let expected = [json!({ "key": "a", "value": { "k": "a" } }), json!({ "key": "b", "value": { "k": "b" } })];
    check_read(JSON, "in.jsonl", "\u{feff}{\"k\":\"a\"}\r\n\r\n{\"k\":\"b\"}\r\n", &expected);
    let expected = [json!({ "key": "1", "value": { "k": "1", "v": "x" } })];
    check_read("path = \"in.csv\"\nformat = \"csv\"\nkey = \"k\"", "in.csv", "\u{feff}k,v\r\n1,x\r\n", &expected);
}

#[test]
fn a_record_of_ten_megabytes_is_one_record() {
    let long = "x".repeat(10 << 20);
    let content = format!("{{\"k\":\"a\",\"v\":\"{long}\"}}\n{{\"k\":\"b\"}}\n");
    let job = count(&format!("[sources.input]\nkind = \"file\"\n{JSON}")).input("in.jsonl", &content);
    job.run().succeeded();
    assert_eq!(counts_in_state(&job, "count"), tally(["a", "b"]));
    let expected =
        [json!({ "key": "a", "value": { "k": "a", "v": long } }), json!({ "key": "b", "value": { "k": "b" } })];
    check_read(JSON, "in.jsonl", &content, &expected);
}

#[test]
fn a_record_longer_than_allowed_is_refused_and_the_next_is_read() {
    let source = format!("{LINES}\nrecord-max = \"1KiB\"\non-error = \"dead-letter\"\ndead-letter = \"bad\"");
    let job = pass(&source).input("in.txt", format!("one\n{}\ntwo\n", "x".repeat(5_000)));
    let ended = job.run().succeeded();
    assert_eq!(read_json(&job.output_lines("out")), [line("one"), line("two")]);
    let letters = read_json(&job.output_lines("bad"));
    assert_eq!((letters.len(), ended.figure("rejected")), (1, 1));
    assert!(text(&letters[0], "error").contains("longer than `record-max` (1024 bytes)"), "{letters:?}");
}

/// JSON lines of which the second has no key, the third is not UTF-8, the fourth is no JSON.
const BAD_JSON: &[u8] = b"{\"k\":\"a\"}\n{\"j\":1}\n{\"k\":\"\xff\"}\nno json\n{\"k\":7}\n";

#[test]
fn records_that_cannot_be_read_go_to_the_dead_letters_with_their_places() {
    let job = pass(&format!("{JSON}\non-error = \"dead-letter\"\ndead-letter = \"bad\"")).input("in.jsonl", BAD_JSON);
    let ended = job.run().succeeded();
    let expected = [json!({ "key": "a", "value": { "k": "a" } }), json!({ "key": "7", "value": { "k": 7 } })];
    assert_eq!(read_json(&job.output_lines("out")), expected);
    let letters = read_json(&job.output_lines("bad"));
    let told = |letter: &Value| (text(letter, "source"), text(letter, "place"));
    let places = ["in.jsonl:2, byte 10", "in.jsonl:3, byte 18", "in.jsonl:4, byte 28"];
    assert_eq!(letters.iter().map(told).collect::<Vec<_>>(), places.map(|place| ("input".into(), place.into())));
    for (letter, error) in letters.iter().zip(["`/k`", "not UTF-8 at byte 6", "`/k`"]) {
        assert!(text(letter, "error").contains(error), "`{error}` is not in {letter}");
    }
    assert_eq!((&letters[0]["value"], &letters[2]["value"]), (&json!("{\"j\":1}"), &json!("no json")));
    assert_eq!(letters[1]["value_hex"], "7b226b223a22ff227d");
    assert_eq!((ended.figure("records_in"), ended.figure("sources/input/rejected")), (5, 3));
}

#[test]
fn records_that_cannot_be_read_are_counted_where_they_are_skipped() {
    let job = pass(&format!("{JSON}\non-error = \"skip\"")).input("in.jsonl", BAD_JSON);
    let ended = job.run().succeeded();
    assert_eq!((ended.figure("records_in"), ended.figure("records_out"), ended.figure("rejected")), (5, 2, 3));
    assert!(ended.stderr.contains("at in.jsonl:3, byte 18"), "{}", ended.stderr);
}

#[test]
fn a_record_that_cannot_be_read_stops_a_job_that_says_nothing_else() {
    let job = pass(JSON).input("in.jsonl", BAD_JSON);
    job.run().failed(4, &["source `input` failed on a record at in.jsonl:2, byte 10", "`/k`", "on-error"]);
    assert_eq!(job.output_lines("out"), [""; 0]);
}

#[test]
fn lines_may_be_any_bytes() {
    let job = pass("path = \"in.txt\"\nformat = \"lines\"").input("in.txt", b"a\xff\0b\nc\n");
    job.write_manifest(&std::fs::read_to_string(job.path("job.toml")).unwrap().replace("\"jsonl\"", "\"raw\""));
    job.run().succeeded();
    assert_eq!(crate::harness::output(&job.path("out")), b"a\xff\0b\nc\n");
}

#[test]
fn one_key_may_have_all_records() {
    let records = 20_000;
    let job = count(&format!("[sources.input]\nkind = \"file\"\n{JSON}"));
    job.write("in.jsonl", "{\"k\":\"only\"}\n".repeat(records));
    job.run().succeeded();
    let expected = tally(std::iter::repeat_n("only", records));
    assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&expected));
    assert_eq!(counts_in_state(&job, "count"), expected);
}

#[test]
fn every_record_may_have_a_key_of_its_own() {
    let keys = 300_000;
    let job = count("[sources.input]\nkind = \"file\"\npath = \"in.txt\"\nformat = \"lines\"\nkey = \".\"");
    job.write("in.txt", (0..keys).map(|n| format!("key-{n:x}\n")).collect::<String>());
    let ended = job.run().succeeded();
    assert_eq!(ended.figure("records_out"), keys);
    let tables = job.command(["state", "tables", "job.toml", "--json"]).succeeded();
    let tables: Value = serde_json::from_str(&tables.stdout).unwrap();
    assert_eq!(tables["tables"], json!([{ "name": "count/counts", "keys": keys, "schema_versions": [1] }]));
    let output = job.output_lines("out");
    assert!(output.iter().all(|line| line.ends_with("\"value\":1}")));
    assert_eq!(output.iter().collect::<BTreeSet<_>>().len() as u64, keys);
}

#[test]
fn times_may_come_in_any_order_and_form() {
    let times = [5_000, 1_000, -3_000, 4_000];
    let content = times.map(|time| format!("{{\"t\":{time}}}\n")).concat();
    let expected = times.map(|time| json!({ "key": "", "time": time, "value": { "t": time } }));
    check_read("path = \"in.jsonl\"\nformat = \"jsonl\"\ntime = \"/t\"", "in.jsonl", content, &expected);
    let content = "at,v\n2013-01-01T05:15:00Z,a\n2013-01-01T06:14:59.5+01:00,b\n";
    let expected = [
        json!({ "key": "", "time": 1_357_017_300_000_u64, "value": { "at": "2013-01-01T05:15:00Z", "v": "a" } }),
        json!({ "key": "", "time": 1_357_017_299_500_u64, "value": { "at": "2013-01-01T06:14:59.5+01:00", "v": "b" } }),
    ];
    let source = "path = \"in.csv\"\nformat = \"csv\"\ntime = \"at\"\ntime-format = \"rfc3339\"";
    check_read(source, "in.csv", content, &expected);
}

fn gzip(content: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(content: &str) -> Vec<u8> {
    zstd::encode_all(content.as_bytes(), 1).unwrap()
}

#[test]
fn compressed_files_are_read_also_of_several_parts() {
    let lines = (0..5_000).map(|n| format!("line {n}")).collect::<Vec<_>>();
    let content = lines.join("\n");
    let (start, end) = content.split_at(content.len() / 3);
    let expected = lines.iter().map(|text| line(text)).collect::<Vec<_>>();
    let source = |path: &str| format!("path = \"{path}\"\nformat = \"lines\"\nkey = \".\"");
    check_read(&source("in.gz"), "in.gz", gzip(&content), &expected);
    check_read(&source("in.gz"), "in.gz", [gzip(start), gzip(end)].concat(), &expected);
    check_read(&source("in.zst"), "in.zst", zstd(&content), &expected);
    check_read(&source("in.zst"), "in.zst", [zstd(start), zstd(end)].concat(), &expected);
    check_read(&format!("{}\ncompression = \"zstd\"", source("in")), "in", zstd(&content), &expected);
}

#[test]
fn a_compressed_file_that_is_cut_short_is_an_error_with_its_name() {
    let content = (0..5_000).map(|n| format!("line {n}\n")).collect::<String>();
    for (name, whole) in [("in.gz", gzip(&content)), ("in.zst", zstd(&content))] {
        let source = format!("path = \"{name}\"\nformat = \"lines\"");
        let job = pass(&source).input(name, &whole[..whole.len() / 2]);
        job.run().failed(1, &["source `input`", name]);
    }
}

#[test]
fn quoted_columns_hold_commas_quotes_and_lines() {
    let content = "id,\"the \"\"text\"\"\"\r\n1,\"a, b\"\r\n2,\"say \"\"no\"\"\"\r\n3,\"two\nlines\"\r\n4,\r\n";
    let value = |id: &str, text: &str| json!({ "key": id, "value": { "id": id, "the \"text\"": text } });
    let expected = [value("1", "a, b"), value("2", "say \"no\""), value("3", "two\nlines"), value("4", "")];
    check_read("path = \"in.csv\"\nformat = \"csv\"\nkey = \"id\"", "in.csv", content, &expected);
}

#[test]
fn the_files_of_a_directory_and_of_a_glob_are_splits() {
    let file = |number: u64| (0..500).map(|n| format!("{}\n", n * number % 40)).collect::<String>();
    let all = (1..=20).map(file).collect::<String>();
    let expected = tally(all.lines());
    for path in ["data", "data/part-*"] {
        let job =
            count(&format!("[sources.input]\nkind = \"file\"\npath = \"{path}\"\nformat = \"lines\"\nkey = \".\""));
        for number in 1..=20 {
            let name = format!("data/part-{number}.txt");
            match number % 2 {
                0 => job.write(&format!("{name}.gz"), gzip(&file(number))),
                _ => job.write(&name, file(number)),
            }
        }
        let ended = job.run().succeeded();
        assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&expected), "{path}");
        assert_eq!((ended.figure("records_in"), counts_in_state(&job, "count")), (10_000, expected.clone()), "{path}");
    }
}

#[test]
fn a_file_that_is_missing_is_an_error_with_its_name() {
    pass(LINES).run().failed(1, &["source `input`", "in.txt"]);
}

#[test]
fn standard_input_is_read_where_loss_is_accepted_and_refused_elsewhere() {
    let job = count("[sources.input]\nkind = \"stdin\"\nformat = \"lines\"\nkey = \".\"");
    job.run().failed(2, &["`out` is exactly-once", "standard input cannot be read again", "accept-loss = true"]);
    job.write("in.txt", "a\nb\na\n");
    let mut shell = Command::new("sh");
    let piped = "cat in.txt | \"$0\" run job.toml --set sources.input.accept-loss=true";
    shell.current_dir(job.path("")).args(["-c", piped, env!("CARGO_BIN_EXE_wasmill")]);
    run(shell, TIME_LIMIT).succeeded();
    assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&tally(["a", "b", "a"])));
}

fn nexmark(rest: &str) -> Vec<Value> {
    let job = Job::new(&format!(
        r#"
[job]
name = "nexmark"
workers = 2

[sources.events]
kind = "nexmark"
{rest}

[sinks.out]
kind = "files"
path = "out"
inputs = ["events"]
"#
    ));
    job.run().succeeded();
    read_json(&job.output_lines("out"))
}

/// Again and again: an error of the last split comes at the moment in which the job may take its input to have ended.
#[test]
fn a_file_that_is_not_what_it_was_is_an_error_at_every_start() {
    let job = pass(LINES).input("in.txt", "one\ntwo\nthree\n");
    job.run().succeeded();
    for (content, error) in [("one\n", "it has shrunk to 4 bytes"), ("eins\nzwei\ndrei\n", "replaced or changed")] {
        job.write("in.txt", content);
        for _ in 0..15 {
            job.run().failed(1, &["source `input`", "in.txt", error]);
        }
    }
    job.write("in.txt", "one\ntwo\nthree\nfour\n");
    let ended = job.run().succeeded();
    assert_eq!((ended.figure("records_in"), job.output_lines("out").len()), (1, 4), "it may grow");
}

#[test]
fn a_record_that_cannot_be_read_stops_every_start_however_often_epochs_are_sealed() {
    let job = pass(JSON).arguments(["--set", "checkpoint.interval=1ms"]);
    job.write("in.jsonl", "{\"k\":\"a\"}\n".repeat(5_000) + "nonsense\n");
    for _ in 0..30 {
        job.run().failed(4, &["at in.jsonl:5001"]);
    }
}

/// As texts, in an order that does not depend on that of the splits.
fn in_order(events: &[Value]) -> Vec<String> {
    sorted(events.iter().map(Value::to_string).collect())
}

#[test]
fn nexmark_events_follow_from_their_seed_and_come_in_the_benchmarks_proportions() {
    let events = nexmark("events = 10000\nseed = 7");
    assert_eq!(events, nexmark("events = 10000\nseed = 7"));
    assert_eq!(in_order(&events), in_order(&nexmark("events = 10000\nseed = 7\nsplits = 3")), "whatever the splits");
    assert_ne!(in_order(&events), in_order(&nexmark("events = 10000\nseed = 8")));
    let of_kind = |field: &str| events.iter().filter(|event| event.get(field).is_some()).count();
    assert_eq!((of_kind("emailAddress"), of_kind("initialBid"), of_kind("bidder")), (200, 600, 9_200));
    let bids = events.iter().filter(|event| event.get("bidder").is_some()).cloned().collect::<Vec<_>>();
    assert_eq!(nexmark("events = 10000\nseed = 7\nonly = [\"bid\"]"), bids);
}

#[test]
fn input_that_is_not_there_is_told_with_the_field_to_correct() {
    let check = |path: &str, set: &[&str], what: &str, place: &str| {
        let job = pass(&format!("path = \"{path}\"\nformat = \"lines\"")).input("empty/_hidden.txt", "not read");
        let remedy = format!("correct `sources.input.path` in {place}, or put the input there");
        let shown = job.path(path.trim_end_matches('/')).display().to_string();
        let named = if set.is_empty() { shown.as_str() } else { "other.txt" };
        job.command(["run", "job.toml"].iter().chain(set)).failed(1, &["source `input`", named, what, &remedy]);
        job.write("in.txt", "one\n");
        job.command(["run", "job.toml", "--set", "sources.input.path=in.txt"]).succeeded();
    };
    check("none.txt", &[], "there is no such file or directory", "job.toml:8:8");
    check("none/in.txt", &[], "there is no such file or directory", "job.toml:8:8");
    check("none/", &[], "there is no such file or directory", "job.toml:8:8");
    check("empty", &[], "there are no files in it", "job.toml:8:8");
    check("none-*.txt", &[], "no file matches", "job.toml:8:8");
    let set = "sources.input.path=other.txt";
    check("none.txt", &["--set", set], "there is no such file or directory", &format!("`--set {set}`"));
}
