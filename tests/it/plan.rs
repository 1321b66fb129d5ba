//! `wasmill plan`, and what `wasmill check` says of several hosts.

use serde_json::{Value, json};

use crate::harness::Job;

/// A keeper of a table and its user on two hosts.
const MANIFEST: &str = r#"[job]
name = "shelves"
partitions = 8
workers = 2

[cluster.hosts.a]
address = "127.0.0.1:7101"

[cluster.hosts.b]
address = "127.0.0.1:7102"

[sources.values]
kind = "file"
path = "values/*.jsonl"
format = "jsonl"
key = "/k"

[sources.requests]
kind = "nexmark"
events = 100
splits = 3
key = "/auction"

[operators.keeper]
component = "{guest:others}"
inputs = ["values"]
tables.values = { open = true }
uses.other = { table = "keeper.values", read = true }

[operators.user]
component = "{guest:others}"
inputs = ["requests"]
uses.other = { table = "keeper.values", read = true, update = true, max-batch = 9, linger = "2ms" }

[sinks.out]
kind = "blackhole"
inputs = ["keeper", "keeper.done", "keeper.again", "user", "user.done", "user.again"]
"#;

const CLUSTER: &str =
    "[cluster.hosts.a]\naddress = \"127.0.0.1:7101\"\n\n[cluster.hosts.b]\naddress = \"127.0.0.1:7102\"\n";

fn edited(edits: &[(&str, &str)]) -> Job {
    let text = edits.iter().fold(MANIFEST.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    (0..6).fold(Job::new(&text), |job, file| job.input(&format!("values/{file}.jsonl"), "this is not read\n"))
}

fn plan(job: &Job) -> Value {
    let ended = job.command(["plan", "job.toml", "--json"]).succeeded();
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}:\n{}", ended.stdout))
}

fn plan_text(job: &Job) -> String {
    job.command(["plan", "job.toml"]).succeeded().stdout
}

/// The rows of the tables that are shown, their columns parted by one space.
fn rows(text: &str) -> Vec<String> {
    let row = |line: &str| line.trim_matches('│').split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().filter(|line| line.starts_with('│')).map(row).collect()
}

#[test]
fn a_plan_names_host_worker_and_partitions_of_each_task() {
    let plan = plan(&edited(&[]));
    let hosts = json!([{ "name": "a", "address": "127.0.0.1:7101" }, { "name": "b", "address": "127.0.0.1:7102" }]);
    assert_eq!((&plan["hosts"], &plan["leader"], &plan["partitions"]), (&hosts, &json!("a"), &json!(8)));
    for (place, name) in ["keeper", "user"].into_iter().enumerate() {
        let operator = &plan["operators"][place];
        let task = |index: usize| {
            let host = if index < 2 { "a" } else { "b" };
            json!({
                "task": place * 4 + index, "index": index, "host": host, "worker": index % 2,
                "partitions": [index * 2, index * 2 + 1],
            })
        };
        assert_eq!(operator["name"], name);
        assert_eq!(operator["tasks"], (0..4).map(task).collect::<Value>());
    }
    let text = plan_text(&edited(&[]));
    assert!(text.starts_with("job shelves: 8 partitions, 2 workers on each of `a`, `b`, led by `a`\n"), "{text}");
    for row in ["keeper a 0 0 0–1", "keeper b 1 3 6–7", "user b 0 2 4–5"] {
        assert!(rows(&text).iter().any(|shown| shown == row), "{row}:\n{text}");
    }
}

#[test]
fn a_plan_says_which_host_reads_which_split_without_reading_any() {
    let job = edited(&[]);
    let plan_of_all = plan(&job);
    let split = |number: usize, host: &str| json!({ "name": format!("events-0000{number}"), "host": host });
    assert_eq!(plan_of_all["sources"][0]["splits"], json!([split(0, "a"), split(1, "b"), split(2, "a")]));
    let files = plan_of_all["sources"][1]["splits"].as_array().unwrap();
    let names = files.iter().map(|split| split["name"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(names, ["0.jsonl", "1.jsonl", "2.jsonl", "3.jsonl", "4.jsonl", "5.jsonl"]);
    assert!(files.iter().all(|split| split["host"] == "a" || split["host"] == "b"), "{files:?}");
    let of_b = plan(&edited(&[("path = \"values", "hosts = [\"b\"]\npath = \"values")]));
    let files = of_b["sources"][1]["splits"].as_array().unwrap();
    assert!(files.len() == 6 && files.iter().all(|split| split["host"] == "b"), "{files:?}");
    let missing = edited(&[("values/*.jsonl", "nothing/*.jsonl")]);
    let of_missing = plan(&missing);
    assert_eq!(of_missing["sources"][1]["splits"], Value::Null);
    assert!(of_missing["sources"][1]["unknown"].as_str().unwrap().contains("nothing"), "{of_missing}");
    assert!(plan_text(&missing).contains("not known: "));
}

#[test]
fn a_plan_says_what_travels() {
    let plan = plan(&edited(&[("[\"requests\"]", "[\"requests\", \"keeper.again\"]")]));
    let way = |from: &str, to: &str| {
        let ways = plan["ways"].as_array().unwrap();
        let way = ways.iter().find(|way| way["from"] == from && way["to"] == to);
        way.unwrap_or_else(|| panic!("{from} {to}: {plan}"))["travels"].as_str().unwrap()
    };
    assert_eq!(
        (way("values", "keeper"), way("keeper.again", "user"), way("user", "out")),
        ("by-key", "other-keys", "nothing")
    );
    let used = json!({
        "operator": "user", "name": "other", "table": "keeper.values", "access": ["read", "update"],
        "max_batch": 9, "linger_us": 2000, "travels": "other-keys",
    });
    assert_eq!(plan["uses"][1], used);
}

#[test]
fn a_plan_says_why_serializable_operators_are_where_they_are() {
    let edits = [
        ("[cluster.hosts.a]", "[cluster]\nleader = \"b\"\n[cluster.hosts.a]"),
        ("inputs = [\"requests\"]", "isolation = \"serializable\"\ninputs = [\"requests\"]"),
        (", update = true", ""),
    ];
    let job = edited(&edits);
    let text = plan_text(&job);
    for line in [
        "`keeper` is on `b` alone, since `user`, which is serializable, uses its tables",
        "`user` is on `b` alone, since it is serializable",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}:\n{text}");
    }
    let plan = plan(&job);
    for operator in plan["operators"].as_array().unwrap() {
        let tasks = operator["tasks"].as_array().unwrap();
        assert!(tasks.len() == 2 && tasks.iter().all(|task| task["host"] == "b"), "{operator}");
    }
    assert_eq!(plan["ways"][0]["travels"], "to-leader");
    assert_eq!(plan["uses"][1]["travels"], "nothing");
}

#[test]
fn a_job_without_a_cluster_has_a_plan_of_one_host() {
    let job = edited(&[(CLUSTER, "")]);
    let plan = plan(&job);
    assert_eq!((&plan["hosts"], &plan["leader"]), (&json!([]), &Value::Null));
    let first = json!({ "task": 0, "index": 0, "host": null, "worker": 0, "partitions": [0, 3] });
    assert_eq!(plan["operators"][0]["tasks"][0], first);
    assert!(plan["ways"].as_array().unwrap().iter().all(|way| way["travels"] == "nothing"), "{plan}");
    let text = plan_text(&job);
    assert!(text.starts_with("job shelves: 8 partitions, 2 workers\n"), "{text}");
    assert!(rows(&text).contains(&"user this host 1 1 4–7".to_owned()), "{text}");
}

#[test]
fn what_is_wrong_with_hosts_is_told_by_check_and_plan() {
    let cases = [
        ("workers = 2\n", "", "`workers` is needed where a job has several hosts"),
        ("7102", "7101", "the host `a` has the address `127.0.0.1:7101`, too"),
        ("127.0.0.1:7101", "127.0.0.1", "it has no port"),
        ("127.0.0.1:7101", "10.0.0.1:7101", "there is no `[cluster.tls]`"),
        ("splits = 3", "splits = 3\nhosts = [\"c\"]", "unknown host `c`"),
        ("[cluster.hosts.a]", "[cluster]\nleader = \"bb\"\n[cluster.hosts.a]", "unknown host `bb`, did you mean `b`?"),
        (
            "inputs = [\"requests\"]",
            "inputs = [\"requests\"]\nparallelism = 3\ncolocated-with = \"keeper\"",
            "`parallelism` is 3, but `keeper`, which `user` is colocated with, has 2",
        ),
    ];
    for (right, wrong, said) in cases {
        let job = edited(&[(right, wrong)]);
        for command in ["check", "plan"] {
            job.command([command, "job.toml"]).failed(2, &["job.toml:", said]);
        }
    }
}

#[test]
fn check_finds_the_files_of_tls_that_are_missing() {
    let tls = "[cluster.tls]\nca = \"ca.pem\"\ncertificate = \"{host}.pem\"\nkey = \"{host}.key\"\n\n[cluster.hosts.a]";
    let job = edited(&[("[cluster.hosts.a]", tls)]);
    let said = ["there is no file `ca.pem`", "there is no file `a.pem`, `b.pem`", "there is no file `a.key`, `b.key`"];
    job.command(["check", "job.toml"]).failed(2, &said);
    for file in ["ca.pem", "b.pem", "b.key"] {
        job.write(file, "");
    }
    job.command(["check", "job.toml"]).succeeded();
    job.command(["check", "job.toml", "--host", "b"]).succeeded();
    job.command(["check", "job.toml", "--host", "a"])
        .failed(2, &["there is no file `a.pem`", "there is no file `a.key`"]);
    job.command(["check", "job.toml", "--host", "bb"]).failed(2, &["unknown host `bb`, did you mean `b`?"]);
}
