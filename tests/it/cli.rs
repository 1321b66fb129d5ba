//! The command line: what is said to people and to programs, exit codes, signals.

use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Job, Running, TIME_LIMIT, guest, run};
use crate::plain::{Tally, counts_in_state, numbers_by_key, running_counts, tally};

const MANIFEST: &str = r#"[job]
name = "visits"

[checkpoint]
interval = "50ms"

[sources.visits]
kind = "file"
path = "visits.jsonl"
format = "jsonl"
key = "/user"

[operators.count]
component = "{guest:misbehaving}"
inputs = ["visits"]
config = { mode = "count" }

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["count"]
"#;

fn users(from: u64, to: u64) -> Vec<String> {
    (from..to).map(|n| format!("u{}", n * n % 17)).collect()
}

fn lines(users: &[String]) -> String {
    users.iter().map(|user| format!("{{\"user\":\"{user}\"}}\n")).collect()
}

fn job() -> Job {
    Job::new(MANIFEST).input("visits.jsonl", lines(&users(0, 2_000)))
}

fn expected() -> Tally {
    tally(users(0, 2_000))
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

#[test]
fn check_underlines_a_misspelt_field_and_says_what_was_meant() {
    let job = job();
    job.write_manifest(&MANIFEST.replace("path = \"visits", "pth = \"visits"));
    let ended = job.command(["check", "job.toml"]).failed(2, &["unknown field `pth`, did you mean `path`?"]);
    let shown = ended.stderr.lines().map(str::trim_end).collect::<Vec<_>>();
    let place = shown.iter().position(|line| line.contains("job.toml:9:1")).expect("file, line and column");
    let at =
        shown[place..].iter().position(|line| line.trim_start().starts_with("9 ")).expect("the line itself") + place;
    assert!(shown[at].ends_with("pth = \"visits.jsonl\""), "{shown:#?}");
    let column = shown[at].chars().position(|char| char == 'p').unwrap();
    let underlined = shown[at + 1].chars().enumerate().filter(|(_, char)| *char == '─').map(|(column, _)| column);
    assert_eq!(underlined.collect::<Vec<_>>(), (column..column + 3).collect::<Vec<_>>(), "{shown:#?}");
}

#[test]
fn check_tells_programs_the_same() {
    let job = job();
    assert_eq!(parse(&job.command(["check", "job.toml", "--json"]).succeeded().stdout), json!([]));
    job.write_manifest(&MANIFEST.replace("path = \"visits", "pth = \"visits"));
    let ended = job.command(["check", "job.toml", "--json"]).failed(2, &[]);
    let problems = parse(&ended.stdout);
    let [problem] = problems.as_array().unwrap().as_slice() else { panic!("one problem: {problems}") };
    assert_eq!(problem["message"], "unknown field `pth`, did you mean `path`?");
    let place = (&problem["file"], &problem["line"], &problem["column"], &problem["severity"]);
    assert_eq!(place, (&json!("job.toml"), &json!(9), &json!(1), &json!("error")));
}

#[test]
fn check_finds_what_is_wrong_between_the_parts() {
    let cases = [
        ("inputs = [\"visits\"]", "inputs = [\"visit\"]", "visits"),
        ("inputs = [\"count\"]", "inputs = [\"count.late\"]", "late"),
        ("key = \"/user\"", "key = \"user\"", "did you mean `/user`?"),
        ("key = \"/user\"", "", "key"),
        ("interval = \"50ms\"", "interval = \"50\"", "50"),
        ("kind = \"files\"", "kind = \"file\"", "did you mean `files`?"),
    ];
    for (right, wrong, said) in cases {
        let job = job();
        job.write_manifest(&MANIFEST.replacen(right, wrong, 1));
        for command in ["check", "run"] {
            job.command([command, "job.toml"]).failed(2, &["job.toml:", said]);
        }
    }
}

#[test]
fn check_names_a_job_that_is_right_and_what_it_has() {
    let ended = job().command(["check", "job.toml"]).succeeded();
    assert_eq!(ended.stdout, "job.toml is valid: 1 source, 1 operator, 1 sink\n");
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_component_that_is_not_the_pinned_one_is_refused_wherever_it_is_used() {
    let job = job();
    let component = guest("misbehaving");
    let told = parse(&job.command(["inspect", component.to_str().unwrap(), "--json"]).succeeded().stdout);
    let digest = told["sha256"].as_str().unwrap();
    let pinned = |digest: &str| {
        MANIFEST.replacen("inputs = [\"visits\"]", &format!("inputs = [\"visits\"]\nsha256 = \"{digest}\""), 1)
    };
    job.write_manifest(&pinned(&digest.to_ascii_uppercase()));
    job.command(["check", "job.toml"]).succeeded();
    for (other, said) in [
        ("0".repeat(64), &format!("the component's SHA-256 is {digest}, and the manifest pins 000")[..]),
        ("abc".to_owned(), "64 hexadecimal digits"),
    ] {
        job.write_manifest(&pinned(&other));
        for command in ["check", "run"] {
            job.command([command, "job.toml"]).failed(2, &["job.toml:", said]);
        }
    }
}

#[test]
fn build_says_that_there_is_nothing_to_build() {
    let ended = job().command(["build", "job.toml"]).succeeded();
    assert_eq!(ended.stderr, "nothing to build: no operator has a `build` command\n");
}

#[test]
fn inspect_says_what_a_component_is() {
    let job = job();
    let component = guest("misbehaving");
    let path = component.to_str().unwrap();
    let size = std::fs::metadata(&component).unwrap().len();
    let ended = job.command(["inspect", path]).succeeded();
    let said = ["misbehaving 0.1.0", "wasmill:operator/operator@0.1.0", "counts (schema version 1)", "process"];
    for said in said.into_iter().chain(["wasmill:operator/state@0.1.0", &format!("{size} bytes")]) {
        assert!(ended.stdout.contains(said), "`{said}` is not in:\n{}", ended.stdout);
    }
    let told = parse(&job.command(["inspect", path, "--json"]).succeeded().stdout);
    assert_eq!((&told["world"], &told["name"]), (&json!("wasmill:operator/operator@0.1.0"), &json!("misbehaving")));
    let table = json!({ "name": "counts", "schema_version": 1, "open": false, "ordered": false, "versioned_ms": null });
    assert_eq!((&told["tables"], &told["uses"]), (&json!([table]), &json!([])));
    assert_eq!((&told["ports"], &told["size_bytes"]), (&json!(["out"]), &json!(size)));
    assert_eq!(told["sha256"].as_str().map(str::len), Some(64));
    let has = |field: &str, item: &str| told[field].as_array().unwrap().contains(&json!(item));
    assert!(has("imports", "wasmill:operator/output@0.1.0") && has("exports", "describe"), "{told}");
}

#[test]
fn set_overrides_any_value_of_the_manifest() {
    let job = job().arguments(["--set", "sources.visits.path=other.jsonl", "--set", "sinks.out.path=elsewhere"]);
    job.write("other.jsonl", lines(&users(0, 10)));
    let job = job.arguments(["--set", "operators.count.parallelism=2"]);
    job.run().succeeded();
    assert_eq!(numbers_by_key(&job.output_lines("elsewhere")), running_counts(&tally(users(0, 10))));
    let set = ["run", "job.toml", "--set", "sources.visits.pth=x"];
    job.command(set).failed(2, &["unknown field `pth`, did you mean `path`?", "--set"]);
}

#[test]
fn the_summary_has_every_figure() {
    let ended = job().run().succeeded();
    let summary = ended.summary.as_ref().expect("a summary was asked for");
    assert_eq!((ended.figure("records_in"), ended.figure("records_out"), ended.figure("rejected")), (2_000, 2_000, 0));
    assert_eq!((&summary["job"], &summary["ended"]), (&json!("visits"), &json!("input-ended")));
    let positive = |pointer: &str| {
        let figure = summary.pointer(pointer).and_then(Value::as_f64);
        assert!(figure.is_some_and(|figure| figure > 0.0), "{pointer} is {figure:?} in {summary:#}");
        figure.unwrap()
    };
    for field in ["/elapsed_s", "/cpu_s", "/peak_memory_bytes", "/epochs", "/log_bytes", "/first_record_ms"] {
        positive(field);
    }
    for field in ["seal_pause_ms", "commit_ms"] {
        let [p50, p99, max] = ["p50", "p99", "max"].map(|figure| positive(&format!("/{field}/{figure}")));
        assert!(p50 <= p99 && p99 <= max, "{field}: {summary:#}");
    }
    assert_eq!((&summary["error"], &summary["exit_code"]), (&Value::Null, &json!(0)));
    // Seventeen keys, each with a count and its place in a table.
    assert!((500..50_000).contains(&ended.figure("state_memory/tables_bytes")), "{summary:#}");
    let count = &summary["operators"]["count"];
    assert_eq!((&count["records_in"], &count["records_out"]), (&json!(2_000), &json!(2_000)));
    assert_eq!((&count["rejected"], &count["failures"]), (&json!(0), &json!(0)));
    assert!(count["calls"].as_u64().unwrap() > 0);
    let read = lines(&users(0, 2_000)).len();
    assert_eq!((&summary["sources"]["visits"]["bytes_read"], &summary["sinks"]["out"]), (&json!(read), &json!(2_000)));
}

#[test]
fn the_summary_goes_to_standard_output_where_it_is_asked_to() {
    let ended = job().command(["run", "job.toml", "--summary", "-"]).succeeded();
    assert_eq!(parse(&ended.stdout)["records_in"], 2_000);
}

#[test]
fn a_job_that_fails_writes_the_figures_it_reached_and_why() {
    let job = job();
    // The first part is committed; then comes a record that cannot be read.
    let committed = job.run().succeeded().figure("committed_epoch");
    let good = lines(&users(0, 3_000));
    job.write("visits.jsonl", good.clone() + "nonsense\n");
    let ended = job.run().failed(4, &["visits.jsonl:3001"]);
    let summary = ended.summary.as_ref().expect("a summary was asked for");
    assert_eq!((&summary["job"], &summary["ended"]), (&json!("visits"), &json!("failed")));
    assert_eq!((ended.figure("exit_code"), ended.figure("committed_epoch")), (4, committed));
    let error = summary["error"].as_str().unwrap();
    assert!(ended.stderr.contains(&format!("the job stopped: {error}")), "{error} is not in {}", ended.stderr);
    assert!((1..=1_001).contains(&ended.figure("records_in")), "{summary:#}");
    // Also where nothing was begun.
    let unusable = job.command(["run", "job.toml", "--summary", "-", "--set", "operators.count.component=none.wasm"]);
    let summary = parse(&unusable.failed(2, &["none.wasm"]).stdout);
    assert_eq!(
        (&summary["ended"], &summary["exit_code"], &summary["records_in"]),
        (&json!("failed"), &json!(2), &json!(0))
    );
    assert!(summary["error"].as_str().unwrap().contains("none.wasm"), "{summary:#}");
}

#[test]
fn a_reader_that_goes_away_ends_the_job_quietly_and_loses_nothing() {
    let count = 100_000;
    let to_stdout = MANIFEST.replace("kind = \"files\"\npath = \"out\"", "kind = \"stdout\"").replace("50ms", "1h");
    let job = Job::new(&to_stdout).input("visits.jsonl", lines(&users(0, count)));
    let program = env!("CARGO_BIN_EXE_wasmill");
    let mut shell = std::process::Command::new("sh");
    let script = format!("{{ {program} run job.toml --summary summary.json; echo $? > code; }} | head -n 1");
    shell.args(["-c", &script]).current_dir(job.path("")).env("NO_COLOR", "1");
    let ended = run(shell, TIME_LIMIT).succeeded();
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    assert_eq!(std::fs::read_to_string(job.path("code")).unwrap(), "0\n", "{}", ended.stderr);
    assert!(ended.stderr.contains("the reader of standard output has gone"), "{}", ended.stderr);
    for scary in ["rror", "WARN", "panicked"] {
        assert!(!ended.stderr.contains(scary), "{}", ended.stderr);
    }
    let summary = parse(&std::fs::read_to_string(job.path("summary.json")).unwrap());
    assert_eq!((&summary["ended"], &summary["committed_epoch"]), (&json!("output-closed"), &json!(0)));
    // Nothing was committed: the next start begins anew, and all of it comes.
    let again = job.run().succeeded();
    let told = again.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    let expected = tally(users(0, count));
    assert_eq!(numbers_by_key(&told), running_counts(&expected));
    assert_eq!(counts_in_state(&job, "count"), expected);
}

#[test]
fn every_log_line_is_json_where_that_is_asked_for_also_when_the_job_fails() {
    let check = |job: &Job, set: &[&str], code: i32, level: &str, said: &str| {
        let ended = job.command(["run", "job.toml", "--log", "json"].iter().chain(set));
        assert_eq!(ended.code(), Some(code), "{}", ended.stderr);
        let told = ended.stderr.lines().map(parse).collect::<Vec<_>>();
        let last = told.last().expect("something is said of the end");
        assert!(told.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()), "{told:#?}");
        assert_eq!(last["level"], level);
        assert!(last["message"].as_str().unwrap().contains(said), "`{said}` is not in {last}");
        last.clone()
    };
    check(&job(), &[], 0, "INFO", "input ended");
    let bad = job();
    bad.write("visits.jsonl", "{\"user\":\"a\"}\nnonsense\n");
    check(&bad, &[], 4, "ERROR", "source `visits` failed on a record at visits.jsonl:2, byte 13");
    let misspelt = check(&job(), &["--set", "job.nam=x"], 2, "ERROR", "unknown field `nam`, did you mean `name`?");
    assert_eq!(misspelt["file"], "--set job.nam=x");
    check(&job(), &["--set", "operators.count.component=none.wasm"], 2, "ERROR", "none.wasm");
}

#[test]
fn the_state_of_a_stopped_job_can_be_read() {
    let job = job();
    job.run().succeeded();
    let expected = expected();
    let ask = |arguments: &[&str]| job.command([&["state"], arguments].concat()).succeeded().stdout;
    let tables = ask(&["tables", "job.toml"]);
    assert!(tables.contains("count/counts") && tables.contains(&expected.len().to_string()), "{tables}");
    let told = parse(&ask(&["tables", "job.toml", "--json"]));
    let table = json!({ "name": "count/counts", "keys": expected.len(), "schema_versions": [1] });
    assert_eq!(told["tables"], json!([table]));
    assert!(told["epoch"].as_u64().unwrap() >= 1);
    for table in ["count", "count/counts"] {
        assert_eq!(ask(&["get", "job.toml", table, "u4"]), format!("{}\n", expected["u4"]));
    }
    let found = parse(&ask(&["get", "job.toml", "count", "u4", "--json"]));
    assert_eq!(found, json!({ "key": "u4", "value": expected["u4"] }));
    let scan = expected.iter().map(|(key, count)| format!("{key}\t{count}\n"));
    assert_eq!(ask(&["scan", "job.toml", "count"]), scan.clone().collect::<String>());
    assert_eq!(ask(&["scan", "job.toml", "count", "--limit", "2"]), scan.clone().take(2).collect::<String>());
    let with = |wanted: fn(&str) -> bool| scan.clone().filter(|line| wanted(line)).collect::<String>();
    assert_eq!(ask(&["scan", "job.toml", "count", "--prefix", "u1"]), with(|line| line.starts_with("u1")));
    assert_eq!(ask(&["scan", "job.toml", "count", "--from", "u16"]), with(|line| line >= "u16"));
    assert_eq!(counts_in_state(&job, "count"), expected);
}

#[test]
fn what_is_not_in_the_state_is_said() {
    let job = job();
    job.command(["state", "tables", "job.toml"]).failed(3, &["state"]);
    assert!(!job.path("state").exists(), "reading makes nothing");
    job.run().succeeded();
    job.command(["state", "get", "job.toml", "count", "nobody"]).failed(1, &["`count/counts` has no key `nobody`"]);
    job.command(["state", "scan", "job.toml", "counts"]).failed(2, &["no table `counts`", "count/counts"]);
}

#[test]
fn exit_codes_are_those_of_the_readme() {
    let job = job();
    assert_eq!(job.run().code(), Some(0));
    job.command(["run", "job.toml", "--no-such-option"]).failed(2, &["--no-such-option"]);
    job.command(["run", "none.toml"]).failed(2, &["none.toml"]);
    let other_name = ["run", "job.toml", "--set", "job.name=other"];
    job.command(other_name).failed(3, &["visits", "other"]);
    let other_state = ["run", "job.toml", "--set", "job.state=elsewhere"];
    job.command(other_state).failed(3, &["out"]);
    std::fs::remove_file(job.path("visits.jsonl")).unwrap();
    let fresh = ["--set", "job.state=fresh", "--set", "sinks.out.path=fresh-out"];
    job.command(["run", "job.toml"].iter().chain(&fresh)).failed(1, &["visits.jsonl"]);
    job.write("visits.jsonl", "{\"user\":\"a\"}\n{}\n");
    job.command(["run", "job.toml"].iter().chain(&fresh)).failed(4, &["visits.jsonl:2"]);
}

#[test]
fn exit_codes_of_the_other_commands_are_those_of_the_readme_too() {
    let job = job();
    let check = |code: i32, arguments: &[&str], said: &str| _ = job.command(arguments).failed(code, &[said]);
    check(2, &["new", "9lives"], "cannot name a function");
    check(2, &["new", "match"], "is taken in the language `rust`");
    job.write("there/is.txt", "");
    check(2, &["new", "there"], "there is there already");
    check(1, &["new", "visits.jsonl/inside"], "cannot make visits.jsonl");
    check(2, &["build-rust", "there"], "has no Cargo.toml");
    check(2, &["build-c", "there"], "name the folder of the SDK by `--sdk`");
    check(2, &["build-go", "there"], "has no go.mod");
    check(2, &["build-assemblyscript", "there"], "there/src/function.ts is not there");
    check(2, &["componentize", "none.wasm", "-o", "made.wasm"], "cannot read none.wasm");
    check(2, &["componentize", "there/is.txt", "-o", "made.wasm"], "it is no WebAssembly");
    check(2, &["build", "none.toml"], "none.toml");
    check(2, &["check", "none.toml"], "none.toml");
    check(2, &["state", "tables", "none.toml"], "none.toml");
    check(2, &["inspect", "none.wasm"], "none.wasm");
    check(2, &["schema", "--no-such-option"], "--no-such-option");
    let with = |fields: &str| {
        job.write_manifest(&MANIFEST.replace("inputs = [\"visits\"]", &format!("inputs = [\"visits\"]\n{fields}")));
        job.write_manifest(
            &std::fs::read_to_string(job.path("job.toml")).unwrap().replace("misbehaving.wasm", "none.wasm"),
        );
    };
    with("");
    check(2, &["build", "job.toml"], "no `build` command says how to make it");
    with("build = \"true\"");
    check(2, &["build", "job.toml"], "`true` ended well but");
    with("build = \"false\"");
    check(1, &["build", "job.toml"], "`false`, which builds count, ended badly");
}

#[test]
fn settings_that_contradict_each_other_are_the_manifest_s_fault() {
    let job = job();
    job.write("visits.jsonl.gz", "");
    let set = ["--set", "sources.visits.path=visits.jsonl.gz", "--set", "sources.visits.follow=true"];
    job.command(["run", "job.toml"].iter().chain(&set)).failed(2, &["a compressed file cannot be read as it grows"]);
}

#[test]
fn a_file_that_cannot_be_written_is_not_damage() {
    let job = job();
    job.write("taken", "a file where a directory is wanted");
    job.command(["run", "job.toml", "--set", "job.state=taken/state"]).failed(1, &["taken/state"]);
}

#[test]
fn a_state_directory_serves_one_process_at_a_time() {
    let job = followed();
    let running = job.start();
    wait_for(&job, &running, 2_000);
    job.command(["run", "job.toml"]).failed(3, &["state"]);
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn signals_end_a_job_with_a_last_checkpoint_from_which_the_next_start_goes_on() {
    let job = followed();
    for (signal, name, records) in [(Signal::TERM, "SIGTERM", 2_000), (Signal::INT, "SIGINT", 3_000)] {
        let mut input = std::fs::File::options().append(true).open(job.path("visits.jsonl")).unwrap();
        if records > 2_000 {
            input.write_all(lines(&users(2_000, records)).as_bytes()).unwrap();
        }
        let running = job.start();
        wait_for(&job, &running, records as usize);
        running.signal(signal);
        let ended = running.wait().succeeded();
        assert!(ended.stderr.contains(name), "{}", ended.stderr);
        assert_eq!(ended.summary.as_ref().unwrap()["ended"], "stopped");
        let expected = tally(users(0, records));
        assert_eq!(numbers_by_key(&job.output_lines("out")), running_counts(&expected), "after {name}");
        assert_eq!(counts_in_state(&job, "count"), expected);
    }
}

/// A job that does not end by itself.
fn followed() -> Job {
    job().arguments(["--set", "sources.visits.follow=true"])
}

fn wait_for(job: &Job, running: &Running, records: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while job.output_lines("out").len() < records {
        assert!(Instant::now() < deadline, "{} of {records} records: {running:?}", job.output_lines("out").len());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_schema_is_json_and_knows_every_table() {
    let schema = parse(&job().command(["schema"]).succeeded().stdout);
    let properties = schema["properties"].as_object().unwrap();
    for table in ["job", "checkpoint", "sources", "operators", "sinks"] {
        assert!(properties.contains_key(table), "{table}");
    }
    assert!(schema["$schema"].is_string());
}

#[test]
fn help_tells_the_exit_codes() {
    let ended = job().command(["--help"]).succeeded();
    assert!(ended.stdout.contains("Exit codes: 0"), "{}", ended.stdout);
}
