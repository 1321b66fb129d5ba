//! What loading says about manifests that are not right.

use super::*;

/// A manifest without faults.
const VALID: &str = r#"[job]
name = "job"
partitions = 16

[checkpoint]
interval = "1s"

[sources.bids]
kind = "file"
path = "bids.jsonl"
format = "jsonl"
key = "/auction"

[operators.stats]
component = "stats.wasm"
inputs = ["bids"]
config = { rate = 0.92 }

[sinks.out]
kind = "files"
path = "out"
inputs = ["stats"]
"#;

fn load_edited(from: &str, to: &str, overrides: &[&str]) -> Result<Loaded, ManifestError> {
    assert!(VALID.contains(from), "{from}");
    let overrides: Vec<_> = overrides.iter().map(ToString::to_string).collect();
    load_text("job.toml", "/jobs".into(), &VALID.replacen(from, to, 1), &overrides)
}

/// What is said about the manifest in which `from` is replaced by `to`: `line:column message`.
fn check(from: &str, to: &str, expected: &[&str]) {
    let error = load_edited(from, to, &[]).expect_err(to);
    assert_eq!(shown(&error), expected, "{to}");
}

/// What is said about overrides of the valid manifest, with the text at fault: `file:line:column text: message`.
fn check_set(overrides: &[&str], expected: &[&str]) {
    let error = load_edited("", "", overrides).expect_err("overrides");
    let shown: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| {
            let position = problem.position().unwrap();
            let fault = &problem.text().unwrap()[problem.span().unwrap()];
            format!("{}:{}:{} {fault}: {}", problem.file, position.line, position.column, problem.message)
        })
        .collect();
    assert_eq!(shown, expected);
}

fn shown(error: &ManifestError) -> Vec<String> {
    let show = |problem: &Problem| {
        let position = problem.position().unwrap();
        format!("{}:{} {}", position.line, position.column, problem.message)
    };
    error.problems().iter().map(show).collect()
}

#[test]
fn a_valid_manifest_loads_with_its_defaults() {
    let manifest = load_edited("", "", &[]).unwrap().manifest;
    assert_eq!(manifest.job.partitions, 16);
    assert_eq!(manifest.job.memory, ByteSize(1 << 30));
    let Source::File(bids) = &manifest.sources["bids"] else { panic!("{:?}", manifest.sources) };
    assert_eq!((bids.key.as_deref(), bids.compression), (Some("/auction"), Compression::Auto));
    assert_eq!(manifest.operators["stats"].limits, Limits::default());
    assert_eq!(manifest.operators["stats"].config["rate"].as_float(), Some(0.92));
}

#[test]
fn unknown_fields_are_named_with_what_was_meant() {
    check("path = \"bids", "pth = \"bids", &["10:1 unknown field `pth`, did you mean `path`?"]);
    check("inputs = [\"bids\"]", "input = [\"bids\"]", &["16:1 unknown field `input`, did you mean `inputs`?"]);
    check("partitions", "Partitions", &["3:1 unknown field `Partitions`, did you mean `partitions`?"]);
    check("config = {", "zebra = {", &["17:1 unknown field `zebra`"]);
    check("[sinks.out]", "[sink.out]", &["19:2 unknown field `sink`, did you mean `sinks`?"]);
    check(
        "config = {",
        "limits = { memry = 1, rate = 1 }\nconfig = {",
        &["17:12 unknown field `memry`, did you mean `memory`?", "17:23 unknown field `rate`"],
    );
}

#[test]
fn missing_fields_are_named_at_their_table() {
    check("format = \"jsonl\"\n", "", &["8:10 missing field `format` in `sources.bids`"]);
    check("kind = \"files\"\n", "", &["19:8 missing field `kind` in `sinks.out`"]);
    check("name = \"job\"\n", "", &["1:2 missing field `name` in `job`"]);
    check(
        VALID,
        "",
        &["1:1 missing table `[job]`", "1:1 missing table `[sources.NAME]`", "1:1 missing table `[sinks.NAME]`"],
    );
}

#[test]
fn unknown_words_are_named_with_what_was_meant() {
    check("\"jsonl\"", "\"jsnl\"", &["11:10 unknown value `jsnl` for `format`, did you mean `jsonl`?"]);
    check("\"file\"", "\"fil\"", &["9:8 unknown kind `fil`, did you mean `file`?"]);
    check("\"file\"", "\"kafka\"", &["9:8 unknown kind `kafka`"]);
    check("\"files\"", "3", &["20:8 `kind` must be a string, not a whole number"]);
}

#[test]
fn wrong_types_are_named() {
    check("partitions = 16", "partitions = \"16\"", &["3:14 `partitions` must be a whole number, not a string"]);
    check("\"/auction\"", "[1]", &["12:7 `key` must be a string, not a list"]);
    check("[\"bids\"]", "\"bids\"", &["16:10 `inputs` must be a list, not a string"]);
    check("[\"bids\"]", "[\"bids\", 7]", &["16:19 `an item of inputs` must be a string, not a whole number"]);
    check("key =", "follow = 1\nkey =", &["12:10 `follow` must be `true` or `false`, not a whole number"]);
    check("{ rate = 0.92 }", "1.5", &["17:10 `operators.stats.config` must be a table, not a number with a fraction"]);
    check("[sinks.out]", "[sinks]\nx = 1\n[sinks.out]", &["20:5 `sinks.x` must be a table, not a whole number"]);
    check("[checkpoint]\ninterval = \"1s\"\n", "[[checkpoint]]\n", &["5:1 `checkpoint` must be a table, not a list"]);
}

#[test]
fn numbers_out_of_range_are_named() {
    check("partitions = 16", "partitions = 0", &["3:14 `partitions` must be at least 1, but is 0"]);
    check("partitions = 16", "partitions = 65536", &["3:14 `partitions` must be at most 65535, but is 65536"]);
    check("interval =", "retained = 0\ninterval =", &["6:12 `retained` must be at least 1, but is 0"]);
    check(
        "interval =",
        "retained = 4294967296\ninterval =",
        &["6:12 `retained` must be at most 4294967295, but is 4294967296"],
    );
    check("interval =", "records = -1\ninterval =", &["6:11 `records` must be at least 1, but is -1"]);
    check("partitions = 16", "partitions = 99999999999999999999", &["3:14 the number does not fit 64 bits"]);
}

#[test]
fn bad_units_are_named() {
    let duration = |text: &str, expected: &str| check("\"1s\"", text, &[expected]);
    duration("1", "6:12 `interval` needs a unit: 1 of what?");
    duration("true", "6:12 `interval` must be a span of time with its unit, not a truth value");
    let error = load_edited("\"1s\"", "\"1 fortnight\"", &[]).unwrap_err();
    assert!(error.problems()[0].message.starts_with("`1 fortnight` is not a span of time"), "{error:?}");
    let memory = |text: &str| load_edited("partitions", &format!("memory = {text}\npartitions"), &[]);
    assert_eq!(shown(&memory("-1").unwrap_err()), ["3:10 `memory` must not be negative"]);
    assert!(shown(&memory("\"64XB\"").unwrap_err())[0].starts_with("3:10 `64XB` is not a number of bytes"));
    assert_eq!(memory("4096").unwrap().manifest.job.memory, ByteSize(4096));
    assert_eq!(memory("\"1.5KiB\"").unwrap().manifest.job.memory, ByteSize(1536));
}

#[test]
fn all_faults_are_told_at_once_in_the_order_of_the_text() {
    let text = VALID.replace("path = \"bids", "pth = \"bids").replace("\"1s\"", "5").replace("\"files\"", "\"fils\"");
    let error = load_text("job.toml", "/jobs".into(), &text, &[]).unwrap_err();
    let expected = [
        "6:12 `interval` needs a unit: 5 of what?",
        "10:1 unknown field `pth`, did you mean `path`?",
        "20:8 unknown kind `fils`, did you mean `files`?",
    ];
    assert_eq!(shown(&error), expected);
    assert_eq!(error.to_string(), "`job.toml` is refused for 3 errors");
}

#[test]
fn text_that_is_not_toml_is_placed() {
    for (from, to, line) in [("= 16", "= = 16", 3), ("[sources.bids]", "[sources.bids", 8), ("name", "na me", 2)] {
        let error = load_edited(from, to, &[]).unwrap_err();
        let problem = &error.problems()[0];
        assert_eq!(problem.position().unwrap().line, line, "{error:?}");
        assert!(problem.message.starts_with("not TOML: "), "{error:?}");
    }
    check("name = \"job\"", "name = \"job\"\nname = \"job\"", &["3:1 not TOML: duplicate key"]);
}

#[test]
fn overrides_change_add_and_replace() {
    let overrides = [
        "sources.bids.path=other file.jsonl",
        "job.partitions=8",
        "operators.stats.limits.memory=64MiB",
        "operators.stats.config.rate=1",
        "sinks.out={ kind = 'blackhole', inputs = ['stats'] }",
        "job.name=\"quoted\"",
        "sources.bids.follow=true",
    ];
    let manifest = load_edited("", "", &overrides).unwrap().manifest;
    let Source::File(bids) = &manifest.sources["bids"] else { panic!("{:?}", manifest.sources) };
    assert_eq!((bids.path.as_str(), bids.follow), ("other file.jsonl", true));
    assert_eq!((manifest.job.partitions, manifest.job.name.as_str()), (8, "quoted"));
    assert_eq!(manifest.operators["stats"].limits.memory, ByteSize(64 << 20));
    assert_eq!(manifest.operators["stats"].config["rate"].as_integer(), Some(1));
    assert_eq!(manifest.sinks["out"], Sink::Blackhole(BlackholeSink { inputs: vec!["stats".to_owned()] }));
}

#[test]
fn a_later_override_wins() {
    let manifest = load_edited("", "", &["job.name=first", "job.name=second"]).unwrap().manifest;
    assert_eq!(manifest.job.name, "second");
}

#[test]
fn a_value_that_would_end_its_line_is_a_string() {
    let manifest = load_edited("", "", &["job.name=1\npartitions = 3"]).unwrap().manifest;
    assert_eq!((manifest.job.name.as_str(), manifest.job.partitions), ("1\npartitions = 3", 16));
}

#[test]
fn a_fault_in_an_override_names_the_override() {
    check_set(
        &["sources.bids.pth=x"],
        &["--set sources.bids.pth=x:1:14 pth: unknown field `pth`, did you mean `path`?"],
    );
    check_set(
        &["job.partitions=many"],
        &["--set job.partitions=many:1:16 many: `partitions` must be a whole number, not a string"],
    );
    check_set(&["job.name"], &["--set job.name:1:1 job.name: an override is written `dotted.path=value`"]);
    check_set(&["job.name.x=1"], &["--set job.name.x=1:1:5 name: `x` cannot be set inside of a string"]);
    check_set(
        &["operators.stats.inputs.0=x"],
        &["--set operators.stats.inputs.0=x:1:17 inputs: `0` cannot be set inside of a list"],
    );
    check_set(
        &["sources.more.kind=fil"],
        &["--set sources.more.kind=fil:1:19 fil: unknown kind `fil`, did you mean `file`?"],
    );
    for bad_path in ["=1", "a..b=1", "job name=1", " =", "\"=1"] {
        let error = load_edited("", "", &[bad_path]).unwrap_err();
        assert!(error.problems()[0].message.contains("is not a dotted path"), "{bad_path}: {error:?}");
        assert_eq!(error.problems()[0].file, format!("--set {bad_path}"));
    }
}

#[test]
fn a_missing_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.toml");
    let error = load(&path, &[]).unwrap_err();
    assert!(error.problems()[0].message.contains(&path.display().to_string()), "{error:?}");
    assert_eq!(error.problems()[0].position(), None);
}

#[test]
fn a_file_that_is_not_utf_8_is_named_with_the_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.toml");
    std::fs::write(&path, b"[job]\nname = \"\xff\"\n").unwrap();
    let error = load(&path, &[]).unwrap_err();
    assert!(error.problems()[0].message.contains("line 2"), "{error:?}");
}

#[test]
fn paths_are_relative_to_the_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.toml");
    std::fs::write(&path, VALID).unwrap();
    let loaded = load(&path, &[]).unwrap();
    assert_eq!(loaded.resolve("data/x"), directory.path().join("data/x"));
    assert_eq!(loaded.resolve("/data/x"), std::path::Path::new("/data/x"));
}

#[test]
fn a_report_underlines_the_fault() {
    let error = load_edited("path = \"bids", "pth = \"bids", &[]).unwrap_err();
    let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::unicode_nocolor());
    let mut report = String::new();
    handler.render_report(&mut report, &error).unwrap();
    assert!(report.contains("job.toml:10:1"), "{report}");
    assert!(report.contains("10 │ pth = \"bids.jsonl\"\n    · ───\n"), "{report}");
}

#[test]
fn a_manifest_written_from_its_types_reads_back() {
    let manifest = load_edited("", "", &["sinks.out.roll=10s", "checkpoint.records=7"]).unwrap().manifest;
    let text = toml::to_string(&manifest).unwrap();
    assert_eq!(load_text("job.toml", "/jobs".into(), &text, &[]).unwrap().manifest, manifest);
}
