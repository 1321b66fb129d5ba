//! Tables of others: what is said before a job runs, where the manifest and the components do not agree on them.

use serde_json::{Value, json};

use crate::harness::{Job, guest};

/// One operator keeps a table, another one uses it.
const MANIFEST: &str = r#"[job]
name = "shelves"

[sources.values]
kind = "file"
path = "values.jsonl"
format = "jsonl"
key = "/k"

[sources.requests]
kind = "file"
path = "requests.jsonl"
format = "jsonl"
key = "/k"

[operators.keeper]
component = "{guest:others}"
inputs = ["values"]
tables.values = { open = true }
uses.other = { table = "keeper.values", read = true }

[operators.user]
component = "{guest:others}"
inputs = ["requests"]
uses.other = { table = "keeper.values", read = true, update = true, send = true }
config = { mode = "look-up" }

[sinks.kept]
kind = "blackhole"
inputs = ["keeper", "keeper.done", "keeper.again"]

[sinks.found]
kind = "blackhole"
inputs = ["user", "user.done", "user.again"]
"#;

fn edited(edits: &[(&str, &str)]) -> Job {
    let text = edits.iter().fold(MANIFEST.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    Job::new(&text)
}

/// What `wasmill check` says after `edits`: `line:column severity message`.
fn said(edits: &[(&str, &str)]) -> Vec<String> {
    let ended = edited(edits).command(["check", "job.toml", "--json"]);
    let problems: Value = serde_json::from_str(&ended.stdout).expect("it is JSON");
    let show = |problem: &Value| {
        let text = |field: &str| problem[field].as_str().unwrap().to_owned();
        format!("{}:{} {} {}", problem["line"], problem["column"], text("severity"), text("message"))
    };
    problems.as_array().expect("it is a list").iter().map(show).collect()
}

#[track_caller]
fn check(edits: &[(&str, &str)], expected: &[&str]) {
    assert_eq!(said(edits), expected, "{edits:?}");
}

const USE: &str = "uses.other = { table = \"keeper.values\", read = true, update = true, send = true }";

#[test]
fn operators_that_agree_on_their_tables_are_valid() {
    check(&[], &[]);
    let looped = ("inputs = [\"requests\"]", "inputs = [\"requests\"]\nfeedback = [\"user.again\"]");
    check(&[looped], &[]);
}

#[test]
fn a_component_needs_every_table_that_it_uses() {
    check(
        &[(USE, "")],
        &["23:13 error the component uses a table that it calls `other`, but the manifest does not say which"],
    );
    let misnamed = USE.replace("uses.other", "uses.othre");
    check(
        &[(USE, &misnamed)],
        &[
            "23:13 error the component uses a table that it calls `other`, but the manifest does not say which",
            "25:6 warning the component of `user` uses no table that it calls `othre`, did you mean `other`?",
        ],
    );
}

#[test]
fn a_used_table_is_there_and_open() {
    let table = |table: &str| USE.replace("keeper.values", table);
    check(
        &[(USE, &table("keeper.vales"))],
        &["25:24 error the operator `keeper` has no table `vales`, did you mean `values`?"],
    );
    check(&[(USE, &table("keepr.values"))], &["25:24 error unknown operator `keepr`, did you mean `keeper`?"]);
    check(&[(USE, &table("values.values"))], &["25:24 error `values` is a source and has no tables"]);
    check(&[("open = true", "open = false")], &["25:24 error the table `values` of `keeper` is not open to others"]);
    check(
        &[(USE, "uses.other = { table = \"keeper.values\" }")],
        &["25:6 error `other` is allowed nothing: it needs `read`, `update` or `send`"],
    );
    check(
        &[("tables.values", "tables.valus")],
        &[
            "19:8 error the operator `keeper` has no table `valus`, did you mean `values`?",
            "25:24 error the table `values` of `keeper` is not open to others",
        ],
    );
}

#[test]
fn a_component_that_does_not_open_its_table_keeps_it() {
    let keeper = "component = \"{guest:others}\"\ninputs = [\"values\"]\ntables.values = { open = true }\nuses.other = { table = \"keeper.values\", read = true }";
    let closed = "component = \"{guest:misbehaving}\"\ninputs = [\"values\"]\ntables.counts = { open = true }";
    let edits =
        [(keeper, closed), ("\"keeper.values\"", "\"keeper.counts\""), (", \"keeper.done\", \"keeper.again\"", "")];
    check(
        &edits,
        &[
            "19:19 error the component of `keeper` does not open its table `counts`",
            "24:24 error the component of `keeper` does not open its table `counts` to others",
        ],
    );
}

#[test]
fn a_loop_by_inputs_is_told_of_feedback() {
    let looped = edited(&[("inputs = [\"requests\"]", "inputs = [\"requests\", \"user.again\"]")]);
    for command in ["check", "run"] {
        looped.command([command, "job.toml"]).failed(2, &["a loop: `user` → `user`", "`feedback`"]);
    }
}

#[test]
fn inspect_shows_which_tables_are_open_and_which_are_used() {
    let component = guest("others");
    let job = edited(&[]);
    let shown = job.command(["inspect", component.to_str().unwrap()]).succeeded();
    let lines: Vec<_> =
        shown.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in ["tables values (schema version 1, open, ordered)", "uses other"] {
        assert!(lines.iter().any(|shown| shown == line), "`{line}` is not in:\n{}", shown.stdout);
    }
    let told = job.command(["inspect", component.to_str().unwrap(), "--json"]).succeeded();
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    let table = json!({ "name": "values", "schema_version": 1, "open": true, "ordered": true, "versioned_ms": null });
    assert_eq!((&told["tables"], &told["uses"]), (&json!([table]), &json!(["other"])));
}
