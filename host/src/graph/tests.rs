//! What is said about manifests whose parts are right and whose whole is not; plans; what state bears; and that nothing panics.

mod cluster;
mod hosts;
mod identity;
mod progress;
mod uses;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::key::Partition;
use crate::manifest::{Finding, Loaded, Problem, Severity, load_text};

/// A manifest without faults.
const VALID: &str = r#"[job]
name = "job"
partitions = 16

[sources.bids]
kind = "file"
path = "bids.jsonl"
format = "jsonl"
key = "/auction"

[operators.parse]
component = "parse.wasm"
inputs = ["bids"]

[operators.stats]
component = "stats.wasm"
inputs = ["parse"]

[sinks.out]
kind = "files"
path = "out"
inputs = ["stats"]
"#;

fn loaded(text: &str) -> Loaded {
    load_text("job.toml", "/jobs".into(), text, &[]).map_err(|error| format!("{:?}", error.problems())).unwrap()
}

fn edited(edits: &[(&str, &str)]) -> String {
    edits.iter().fold(VALID.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

/// What is said about the manifest after `edits`: `line:column message`, warnings marked.
fn check_edits(edits: &[(&str, &str)], expected: &[&str]) {
    let loaded = loaded(&edited(edits));
    let findings = match check(&loaded.manifest, loaded.directory()) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    assert_eq!(shown(&loaded, findings), expected, "{edits:?}");
}

fn shown(loaded: &Loaded, findings: Vec<Finding>) -> Vec<String> {
    let show = |problem: &Problem| {
        let position = problem.position().unwrap();
        let mark = if problem.severity == Severity::Warning { "warning: " } else { "" };
        format!("{}:{} {mark}{}", position.line, position.column, problem.message)
    };
    loaded.document.problems(findings).iter().map(show).collect()
}

fn graph(text: &str) -> Graph {
    let loaded = loaded(text);
    check(&loaded.manifest, loaded.directory()).unwrap().0
}

#[test]
fn a_straight_job_becomes_its_graph() {
    let graph = graph(VALID);
    let shown: Vec<_> = graph.edges.iter().map(|edge| (edge.from.clone(), edge.to)).collect();
    let from = |operator| Producer::Operator { operator: OperatorIndex(operator), port: "out".to_owned() };
    let expected = [
        (Producer::Source(SourceIndex(0)), Consumer::Operator(OperatorIndex(0))),
        (from(0), Consumer::Operator(OperatorIndex(1))),
        (from(1), Consumer::Sink(SinkIndex(0))),
    ];
    assert_eq!(shown, expected);
    assert!(graph.sources[0].has_key && graph.sinks[0].is_exactly_once);
}

#[test]
fn edges_carry_ports_and_keys() {
    let text = edited(&[("inputs = [\"parse\"]", "inputs = [\"bids\", \"parse.late\"]\nkey = \"/bidder\"")]);
    let graph = graph(&text);
    let stats: Vec<_> = graph.edges_to(Consumer::Operator(OperatorIndex(1))).collect();
    assert_eq!(stats.len(), 2);
    assert_eq!(stats[1].from, Producer::Operator { operator: OperatorIndex(0), port: "late".to_owned() });
    assert!(stats.iter().all(|edge| edge.key.as_deref() == Some("/bidder")));
    assert_eq!((stats[0].input, stats[1].input), (0, 1));
}

#[test]
fn names_are_checked() {
    check_edits(
        &[("\"job\"", "\"my job\"")],
        &["2:8 the name `my job` has a ' '; names have letters, digits, `-` and `_`"],
    );
    check_edits(&[("\"job\"", "\"\"")], &["2:8 a name must not be empty"]);
    check_edits(
        &[("sinks.out", "sinks.\"a/b\"")],
        &["19:8 the name `a/b` has a '/'; names have letters, digits, `-` and `_`"],
    );
    let long = "x".repeat(65);
    check_edits(&[("\"job\"", &format!("\"{long}\""))], &["2:8 the name is 65 bytes long, 64 at most are allowed"]);
    check_edits(&[("sinks.out", "sinks.parse")], &["19:8 the name `parse` is taken by an operator"]);
}

#[test]
fn inputs_must_exist() {
    check_edits(
        &[("[\"parse\"]", "[\"prase\"]")],
        &[
            "11:12 warning: nobody reads the operator `parse`: what it emits is dropped",
            "17:11 unknown input `prase`, did you mean `parse`?",
        ],
    );
    check_edits(&[("[\"parse\"]", "[\"parse\", \"out\"]")], &["17:20 `out` is a sink: nothing can be read from it"]);
    check_edits(&[("[\"parse\"]", "[\"parse\", \"bids.x\"]")], &["17:20 `bids` is a source and has no port `x`"]);
    check_edits(&[("[\"parse\"]", "[\"parse\", \"parse.out\"]")], &["17:20 the input `parse.out` is named twice"]);
    check_edits(
        &[("[\"bids\"]", "[]")],
        &["5:10 warning: nobody reads the source `bids`", "13:10 the operator `parse` has no inputs"],
    );
}

#[test]
fn loops_are_shown() {
    check_edits(&[("[\"bids\"]", "[\"bids\", \"stats\"]")], &["13:10 a loop: `parse` → `stats` → `parse`"]);
    check_edits(&[("[\"parse\"]", "[\"parse\", \"stats.again\"]")], &["17:10 a loop: `stats` → `stats`"]);
}

#[test]
fn loose_ends_are_found() {
    let unused = "[sinks.void]\nkind = \"blackhole\"\n[sinks.out]";
    check_edits(&[("[sinks.out]", unused)], &["19:8 the sink `void` receives nothing"]);
    let fed =
        [("[sinks.out]", unused), ("[\"parse\"]", "[\"parse\"]\non-error = \"dead-letter\"\ndead-letter = \"void\"")];
    check_edits(&fed, &[]);
    check_edits(
        &[(&VALID[VALID.find("[sinks.out]").unwrap()..], "[sinks]\n")],
        &[
            "15:12 warning: nobody reads the operator `stats`: what it emits is dropped",
            "19:2 a job needs at least one sink",
        ],
    );
}

#[test]
fn dead_letters_need_a_sink() {
    let with = |lines: &str| format!("inputs = [\"parse\"]\n{lines}");
    let case = |lines: &str, expected: &[&str]| check_edits(&[("inputs = [\"parse\"]", &with(lines))], expected);
    case("on-error = \"dead-letter\"", &["18:12 `on-error = \"dead-letter\"` needs `dead-letter`"]);
    case("dead-letter = \"out\"", &["18:1 `dead-letter` has no effect here"]);
    case("on-error = \"skip\"\ndead-letter = \"out\"", &["19:1 `dead-letter` has no effect here"]);
    case("on-error = \"dead-letter\"\ndead-letter = \"ot\"", &["19:15 unknown sink `ot`, did you mean `out`?"]);
    case("on-error = \"dead-letter\"\ndead-letter = \"bids\"", &["19:15 `bids` is a source, not a sink"]);
    case("on-error = \"dead-letter\"\ndead-letter = \"out\"", &[]);
}

#[test]
fn standard_input_is_not_for_exactly_once() {
    let stdin = ("kind = \"file\"\npath = \"bids.jsonl\"", "kind = \"stdin\"");
    let fault = "6:8 the sink `out` is exactly-once, but standard input cannot be read again after a crash";
    check_edits(&[stdin], &[fault]);
    check_edits(&[stdin, ("key =", "accept-loss = true\nkey =")], &[]);
    check_edits(&[stdin, ("path = \"out\"", "path = \"out\"\ndelivery = \"at-least-once\"")], &[]);
    let dead = [
        stdin,
        ("kind = \"files\"\npath = \"out\"", "kind = \"stdout\""),
        ("[sinks.out]", "[sinks.bad]\nkind = \"files\"\npath = \"bad\"\n[sinks.out]"),
        ("key =", "on-error = \"dead-letter\"\ndead-letter = \"bad\"\nkey ="),
    ];
    check_edits(&dead, &["6:8 the sink `bad` is exactly-once, but standard input cannot be read again after a crash"]);
    let second = [
        stdin,
        ("key =", "accept-loss = true\nkey ="),
        (
            "[operators.parse]",
            "[sources.more]\nkind = \"stdin\"\nformat = \"lines\"\naccept-loss = true\n[operators.parse]",
        ),
        ("[\"bids\"]", "[\"bids\", \"more\"]"),
    ];
    check_edits(&second, &["12:8 standard input is already read by `bids`"]);
}

#[test]
fn keys_and_times_fit_their_format() {
    let source =
        |lines: &str, expected: &[&str]| check_edits(&[("format = \"jsonl\"\nkey = \"/auction\"", lines)], expected);
    source("format = \"jsonl\"\nkey = \".\"", &[]);
    source(
        "format = \"jsonl\"\nkey = \"auction.id\"",
        &["9:7 `auction.id` is not a JSON pointer: it does not begin with `/`"],
    );
    source("format = \"jsonl\"\nkey = \"/a~b\"", &["9:7 `/a~b` is not a JSON pointer: `~` is not followed by 0 or 1"]);
    source("format = \"jsonl\"\nkey = \"/a~0b~1\"", &[]);
    source("format = \"jsonl\"\ntime = \".\"", &["9:8 `.` is not a JSON pointer: it does not begin with `/`"]);
    source("format = \"csv\"\nkey = \"tail num\"\ntime = \"at\"\ntime-format = \"s\"\ncsv-value = \"raw\"", &[]);
    source("format = \"csv\"\nkey = \"\"", &["9:7 `key` must not be empty"]);
    source("format = \"lines\"\nkey = \"x\"", &["9:7 lines have no fields to take a key from"]);
    source("format = \"lines\"\ntime = \"x\"", &["9:8 lines have no fields to take a time from"]);
    source("format = \"lines\"\ncsv-value = \"raw\"", &["9:1 `csv-value` has no effect here"]);
    source("format = \"lines\"\ntime-format = \"s\"", &["9:1 `time-format` has no effect here"]);
    let operator = |key: &str, expected: &[&str]| {
        check_edits(&[("inputs = [\"parse\"]", &format!("inputs = [\"parse\"]\nkey = \"{key}\""))], expected);
    };
    operator(".", &[]);
    operator("/a/0/b", &[]);
    operator("$.a", &["18:7 `$.a` is not a JSON pointer: it does not begin with `/`"]);
}

#[test]
fn columns_are_for_csv() {
    let sink = |lines: &str, expected: &[&str]| {
        check_edits(&[("path = \"out\"", &format!("path = \"out\"\n{lines}"))], expected)
    };
    sink("format = \"csv\"\ncolumns = [\"key\", \"time\", \"value\", \"/a\"]", &[]);
    sink("format = \"csv\"", &["22:10 `format = \"csv\"` needs `columns`"]);
    sink("columns = [\"key\"]", &["22:1 `columns` has no effect here"]);
    sink("format = \"csv\"\ncolumns = [\"key\", \"count\"]", &["23:19 `count` is not a column"]);
}

#[test]
fn sizes_and_times_have_their_least() {
    check_edits(&[("partitions", "memory = \"64\"\npartitions")], &["3:10 `memory` is 64B, the least is 64KiB"]);
    check_edits(
        &[("[sources", "[checkpoint]\ninterval = \"999us\"\n[sources")],
        &["6:12 `interval` must be at least 1ms"],
    );
    check_edits(&[("path = \"out\"", "path = \"out\"\nroll = \"0s\"")], &["22:8 `roll` must be at least 1ms"]);
    check_edits(&[("component = \"stats.wasm\"", "component = \"\"")], &["16:13 `component` must not be empty"]);
    check_edits(
        &[("inputs = [\"parse\"]", "inputs = [\"parse\"]\nparallelism = 17")],
        &["18:15 `parallelism` is 17, but the job has 16 partitions: each task needs one"],
    );
    check_edits(
        &[("inputs = [\"parse\"]", "inputs = [\"parse\"]\nconfig = { a = [1.0, nan] }")],
        &["18:22 `config` is handed over as JSON, which has no such number"],
    );
    check_edits(&[("key =", "record-max = 0\nkey =")], &["9:14 `record-max` must be at least 1"]);
}

#[test]
fn whoever_can_be_reached_from_elsewhere_has_a_token() {
    let admin =
        |lines: &str, expected: &[&str]| check_edits(&[("[sources", &format!("[admin]\n{lines}\n[sources"))], expected);
    let open = |field: &str, address: &str| {
        format!("`{field} = \"{address}\"` can be reached from elsewhere, and there is no token")
    };
    for address in ["127.0.0.1:0", "127.8.8.8:80", "[::1]:7171"] {
        admin(&format!("listen = \"{address}\"\ncapnp = \"{address}\""), &[]);
    }
    for address in ["0.0.0.0:7171", "[::]:7171", "192.168.0.7:7171", "[::ffff:10.0.0.1]:1"] {
        admin(&format!("listen = \"{address}\""), &[&format!("6:10 {}", open("listen", address))]);
        admin(&format!("capnp = \"{address}\""), &[&format!("6:9 {}", open("capnp", address))]);
        admin(&format!("listen = \"{address}\"\ntoken = \"s\""), &[]);
        admin(&format!("listen = \"{address}\"\ntoken-file = \"secret\""), &[]);
    }
    for address in ["localhost:7171", "127.0.0.1", "7171", ""] {
        admin(&format!("listen = \"{address}\""), &[&format!("6:10 `listen` is not an address: `{address}`")]);
    }
    admin("token = \"\"", &["6:9 `token` must not be empty"]);
    admin("token = \"s\"\ntoken-file = \"f\"", &["7:1 `token` and `token-file` are both set"]);
}

#[test]
fn directories_do_not_overlap() {
    let state =
        |path: &str, expected: &[&str]| check_edits(&[("path = \"out\"", &format!("path = \"{path}\""))], expected);
    let overlap = "21:8 the sink's directory and the state directory `state` overlap";
    state("state", &[overlap]);
    state("state/out", &[overlap]);
    state(".", &[overlap]);
    state("x/../state/", &[overlap]);
    state("/jobs", &[overlap]);
    state("state2", &[]);
    state("/state", &[]);
    let second = "[sinks.other]\nkind = \"files\"\npath = \"./out/\"\ninputs = [\"stats\"]\n[sinks.out]";
    check_edits(&[("[sinks.out]", second)], &["25:8 the sink `other` writes to this directory, too"]);
    let reads = "7:8 the source reads the directory that the sink `out` writes to";
    check_edits(&[("\"bids.jsonl\"", "\"out\"")], &[reads]);
    check_edits(&[("\"bids.jsonl\"", "\"out/*.jsonl\"")], &[reads]);
    check_edits(&[("\"bids.jsonl\"", "\"out/x.jsonl\"")], &[]);
}

#[test]
fn numbers_of_a_manifest_made_in_code_are_checked_too() {
    let mut manifest = loaded(VALID).manifest;
    manifest.job.partitions = 0;
    manifest.operators.get_mut("stats").unwrap().batch = 0;
    manifest.checkpoint.retained = 0;
    let findings = check(&manifest, std::path::Path::new("/jobs")).unwrap_err();
    let messages: Vec<_> = findings.iter().map(|finding| finding.message.as_str()).collect();
    assert_eq!(
        messages,
        ["`partitions` must be at least 1", "`retained` must be at least 1", "`batch` must be at least 1"]
    );
}

#[test]
fn feedback_makes_loops_of_operators() {
    let text = edited(&[("inputs = [\"parse\"]", "inputs = [\"parse\"]\nfeedback = [\"stats.again\"]\nkey = \"/x\"")]);
    let graph = graph(&text);
    let stats: Vec<_> = graph.edges_to(Consumer::Operator(OperatorIndex(1))).collect();
    let again = Producer::Operator { operator: OperatorIndex(1), port: "again".to_owned() };
    assert_eq!(stats.iter().map(|edge| edge.feedback).collect::<Vec<_>>(), [false, true]);
    assert_eq!((&stats[1].from, stats[1].input, stats[1].key.as_deref()), (&again, 0, Some("/x")));
    check_edits(&[("inputs = [\"bids\"]", "inputs = [\"bids\"]\nfeedback = [\"stats\"]")], &[]);
}

#[test]
fn feedback_comes_from_operators_behind() {
    let case = |feedback: &str, expected: &[&str]| {
        check_edits(&[("inputs = [\"bids\"]", &format!("inputs = [\"bids\"]\nfeedback = {feedback}"))], expected);
    };
    case("[\"bids\"]", &["14:13 `bids` is a source: nothing comes back from it"]);
    case("[\"stast\"]", &["14:13 unknown input `stast`, did you mean `stats`?"]);
    case("[\"out\"]", &["14:13 `out` is a sink: nothing can be read from it"]);
    case("[\"stats\", \"stats.out\"]", &["14:22 the input `stats.out` is named twice"]);
    let straight = "inputs = [\"parse\"]\nfeedback = [\"parse.late\"]";
    check_edits(
        &[("inputs = [\"parse\"]", straight)],
        &["18:13 warning: `parse` is not behind `stats`, so this is no loop"],
    );
    let twice = "inputs = [\"parse\"]\nfeedback = [\"parse\"]";
    check_edits(&[("inputs = [\"parse\"]", twice)], &["18:13 the input `parse` is named twice"]);
}

#[test]
fn a_loop_by_inputs_is_told_of_feedback() {
    let loaded = loaded(&edited(&[("[\"parse\"]", "[\"parse\", \"stats\"]")]));
    let findings = check(&loaded.manifest, loaded.directory()).unwrap_err();
    assert!(findings[0].help.as_ref().unwrap().contains("`feedback`"), "{findings:?}");
}

/// An operator's name, its tables and its ports.
type Component<'a> = (&'a str, &'a [(&'a str, u32)], &'a [&'a str]);

fn declared(of: &[Component<'_>]) -> BTreeMap<String, Declared> {
    let declared = |tables: &[(&str, u32)], ports: &[&str]| Declared {
        tables: tables.iter().map(|(name, version)| (name.to_string(), *version)).collect(),
        ports: ports.iter().map(ToString::to_string).collect(),
        ..Declared::default()
    };
    of.iter().map(|(name, tables, ports)| (name.to_string(), declared(tables, ports))).collect()
}

/// What is said about the components of the manifest after `edits`.
fn check_declared(edits: &[(&str, &str)], of: &[Component<'_>], expected: &[&str]) {
    let text = edited(edits);
    let findings = match Plan::new(&graph(&text), 2, &declared(of)) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    assert_eq!(shown(&loaded(&text), findings), expected, "{edits:?} {of:?}");
}

#[test]
fn ports_must_be_declared() {
    let late = ("[\"parse\"]", "[\"parse.late\"]");
    check_declared(&[late], &[("parse", &[], &["late"])], &[]);
    check_declared(
        &[late],
        &[("parse", &[], &["lates"])],
        &[
            "12:13 warning: nobody reads the port `lates` of `parse`: what is emitted there is dropped",
            "17:11 the operator `parse` has no port `late`, did you mean `lates`?",
        ],
    );
    check_declared(&[late], &[], &["17:11 the operator `parse` has no port `late`"]);
    check_declared(
        &[],
        &[("parse", &[], &["out"])],
        &["12:13 the component declares the port `out`, which every operator has"],
    );
}

#[test]
fn declarations_are_checked() {
    let one = |tables: &[(&str, u32)], expected: &[&str]| check_declared(&[], &[("stats", tables, &[])], expected);
    one(&[("a", 1), ("b_2", 3)], &[]);
    one(&[("a", 0)], &["16:13 the component declares schema version 0 for the table `a`; versions start at 1"]);
    one(&[("a", 1), ("a", 1)], &["16:13 the component declares the table `a` twice"]);
    one(
        &[("a/b", 1)],
        &["16:13 the component declares a table: the name `a/b` has a '/'; names have letters, digits, `-` and `_`"],
    );
}

#[test]
fn tables_need_keys() {
    let no_key = ("key = \"/auction\"\n", "");
    let keyless = "12:11 `parse` keeps `counts` by key, but the source `bids` has no key";
    check_declared(&[no_key], &[("parse", &[("counts", 1)], &[])], &[keyless]);
    check_declared(&[no_key], &[], &[]);
    check_declared(&[], &[("parse", &[("counts", 1)], &[])], &[]);
    check_declared(&[no_key, ("[\"bids\"]", "[\"bids\"]\nkey = \"/x\"")], &[("parse", &[("counts", 1)], &[])], &[]);
    check_declared(&[no_key], &[("stats", &[("counts", 1)], &[])], &[]);
}

#[test]
fn keyed_operators_are_reached_by_hash_and_others_forward() {
    let (plan, _) = Plan::new(&graph(VALID), 2, &declared(&[("stats", &[("counts", 1)], &[])])).unwrap();
    assert_eq!(plan.operators.iter().map(|operator| operator.is_keyed).collect::<Vec<_>>(), [false, true]);
    assert_eq!(plan.routings, [Routing::Forward, Routing::Hash, Routing::Forward]);
    let keyed = edited(&[("[\"bids\"]", "[\"bids\"]\nkey = \"/x\"")]);
    let (plan, _) = Plan::new(&graph(&keyed), 2, &BTreeMap::new()).unwrap();
    assert_eq!(plan.routings, [Routing::Hash, Routing::Forward, Routing::Forward]);
}

proptest! {
    #[test]
    fn each_partition_is_owned_once_by_ranges_in_order(
        partitions in 1..2_000u16,
        workers in 0..40u16,
        wanted in proptest::option::of(1..2_000u16),
    ) {
        let mut graph = graph(VALID);
        graph.partitions = partitions;
        graph.operators[1].parallelism = wanted.map(|wanted| wanted.min(partitions));
        let (plan, _) = Plan::new(&graph, workers, &BTreeMap::new()).unwrap();
        prop_assert_eq!(&plan, &Plan::new(&graph, workers, &BTreeMap::new()).unwrap().0);
        for (index, operator) in plan.operators.iter().enumerate() {
            let tasks = &plan.tasks[operator.tasks.clone()];
            let expected = graph.operators[index].parallelism.unwrap_or(workers.max(1)).min(partitions);
            prop_assert_eq!(tasks.len(), usize::from(expected));
            let mut next = 0;
            for (number, task) in tasks.iter().enumerate() {
                prop_assert_eq!(task.operator, OperatorIndex(index));
                prop_assert_eq!(usize::from(task.index), number);
                prop_assert_eq!(task.partitions.start, next);
                prop_assert_eq!(usize::from(task.worker), number % usize::from(workers.max(1)));
                next = task.partitions.end;
            }
            prop_assert_eq!(next, partitions);
            let lengths = || tasks.iter().map(|task| task.partitions.len());
            prop_assert!(lengths().min() >= Some(1) && lengths().max().unwrap() - lengths().min().unwrap() <= 1);
            for partition in 0..partitions {
                let owner = plan.owner(OperatorIndex(index), Partition(partition));
                prop_assert!(operator.tasks.contains(&owner.0) && plan.tasks[owner.0].partitions.contains(&partition));
            }
            for from in 0..50 {
                prop_assert!(operator.tasks.contains(&plan.forward(OperatorIndex(index), 0, from).0));
            }
        }
    }
}

/// Replaces a piece of the text by something else, between two characters.
fn edit(text: &str, at: usize, length: usize, new: &str) -> String {
    let start = text.floor_char_boundary(at % (text.len() + 1));
    let end = text.ceil_char_boundary((start + length).min(text.len()));
    format!("{}{new}{}", &text[..start], &text[end..])
}

fn new_text() -> impl Strategy<Value = String> {
    let pieces = [
        "",
        "\n",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        "\"",
        "'''",
        ".",
        ",",
        "0",
        "-1",
        "é",
        "🦀",
        "\u{feff}",
        "\r\n",
        "#",
        "inf",
        "1979-05-27",
        "kind",
        "[a.b]\n",
    ];
    prop_oneof![proptest::sample::select(pieces.to_vec()).prop_map(str::to_owned), any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_makes_loading_panic(
        edits in proptest::collection::vec((any::<usize>(), 0..12usize, new_text()), 0..6),
        sets in proptest::collection::vec((proptest::sample::select(["job.name", "sources.bids.kind", "sinks", "operators.stats.inputs", "x.y"].as_slice()), new_text()), 0..2),
        wild in proptest::option::of(any::<String>()),
    ) {
        let clustered = format!("{VALID}{}", cluster::CLUSTER);
        let text = edits.iter().fold(clustered, |text, (at, length, new)| edit(&text, *at, *length, new));
        let overrides: Vec<_> = sets.iter().map(|(path, value)| format!("{path}={value}")).chain(wild).collect();
        let problems = match load_text("job.toml", "/jobs".into(), &text, &overrides) {
            Ok(loaded) => match check(&loaded.manifest, loaded.directory()) {
                Ok((_, warnings)) => loaded.document.problems(warnings),
                Err(findings) => loaded.document.refusal(findings).problems().to_vec(),
            },
            Err(error) => {
                prop_assert!(!error.problems().is_empty());
                error.problems().to_vec()
            }
        };
        let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::unicode_nocolor());
        for problem in problems {
            let (Some(span), Some(text)) = (problem.span(), problem.text()) else {
                return Err(TestCaseError::fail(format!("without a place: {problem:?}")));
            };
            prop_assert!(text.get(span).is_some(), "{:?}", problem);
            prop_assert!(handler.render_report(&mut String::new(), &problem).is_ok(), "{:?}", problem);
        }
    }
}
