//! `wasmill test`: what a component does is held against what its author expects.

use serde_json::Value;

use crate::harness::{Job, guest, repository};

fn component(name: &str) -> String {
    guest(name).display().to_string()
}

#[test]
fn the_cases_of_the_examples_come_out_as_they_say() {
    for (example, count) in [("word-count", "4 cases"), ("likes", "2 cases")] {
        let cases = repository().join("guest-examples").join(example).join("cases.toml");
        let ended = Job::new("").command(["test", &component(example), cases.to_str().unwrap()]).succeeded();
        assert!(ended.stdout.ends_with(&format!("{count}, all right\n")), "{}", ended.stdout);
        assert!(!ended.stdout.contains("FAIL"), "{}", ended.stdout);
    }
}

/// Cases of which one thing each is other than it says.
const WRONG: &str = r#"
config = { step = "count" }

[[case]]
name = "right"
records = [{ key = "tea" }]
[case.expect]
output.out = [{ key = "tea", value = { word = "tea", count = 1 } }]
state.counts = { tea = { s64 = 1 } }

[[case]]
name = "another output"
records = [{ key = "tea" }]
[case.expect]
output.out = [{ key = "tea", value = { word = "tea", count = 2 } }]
state.counts = { tea = { s64 = 1 } }

[[case]]
name = "an output too few and one state too many"
records = [{ key = "tea" }, { key = "tea" }]
[case.expect]
output.out = [{ key = "tea", value = { word = "tea", count = 1 } }]
state.counts = { tea = { s64 = 2 }, and = { s64 = 1 } }

[[case]]
name = "a failure that does not come"
records = []
[case.expect]
fails = "something"
"#;

#[test]
fn each_difference_is_told_with_what_was_expected_and_what_was_found() {
    let job = Job::new("");
    job.write("cases.toml", WRONG);
    let component = component("word-count");
    let ended = job.command(["test", &component, "cases.toml"]).failed(1, &[]);
    let expected = [
        "ok   right\n",
        "FAIL another output\n  output `out`, 0 counted from 0\n",
        "    expected  key \"tea\", value {\"count\":2,\"word\":\"tea\"}\n    found     key \"tea\", value {\"word\":\"tea\",\"count\":1}\n",
        "  output `out`, 1 counted from 0\n    expected  nothing\n    found     key \"tea\", value {\"word\":\"tea\",\"count\":2}\n",
        "  state `counts`, key `and`\n    expected  {\"hex\":\"0100000000000000\"}\n    found     unchanged\n",
        "  failure\n    expected  … something …\n    found     success\n",
        "4 cases, 3 wrong\n",
    ];
    for expected in expected {
        assert!(ended.stdout.contains(expected), "`{expected}` is not in:\n{}", ended.stdout);
    }
    let ended = job.command(["test", &component, "cases.toml", "--json", "--only", "another"]).failed(1, &[]);
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&told[0]["case"], &told[0]["passed"]), (&"another output".into(), &false.into()));
    assert_eq!(told[0]["differences"].as_array().unwrap().len(), 1);
    job.command(["test", &component, "cases.toml", "--only", "right"]).succeeded();
}

#[test]
fn what_depends_on_how_records_are_gathered_is_found_though_one_call_comes_to_what_is_expected() {
    let job = Job::new("");
    let case = "[[case]]\nname = \"a\"\nconfig = { mode = \"first-only\" }\nrecords = [{ value = \"1\" }, { value = \"2\" }]\n";
    job.write("cases.toml", format!("{case}[case.expect]\noutput.out = [{{ value = \"1\" }}]\n"));
    let ended = job.command(["test", &component("misbehaving"), "cases.toml"]).failed(1, &[]);
    let said = "with a call for each record, as a job may make them: output `out`, 1 counted from 0";
    assert!(ended.stdout.contains(said), "{}", ended.stdout);
}

#[test]
fn a_function_that_traps_or_loops_fails_its_case_and_what_does_not_fit_is_refused() {
    let job = Job::new("");
    let component = component("misbehaving");
    for (mode, said) in [("trap", "unreachable"), ("loop", "limits.time")] {
        let case =
            format!("[[case]]\nname = \"a\"\nconfig = {{ mode = \"{mode}\" }}\nrecords = [{{ value = \"poison\" }}]\n");
        job.write("cases.toml", &case);
        let ended = job.command(["test", &component, "cases.toml"]).failed(1, &[]);
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
        job.write("cases.toml", format!("{case}[case.expect]\nfails = \"{said}\"\n"));
        job.command(["test", &component, "cases.toml"]).succeeded();
    }
    job.write("cases.toml", "[[case]]\nname = \"a\"\nstate.numbers = { a = \"1\" }\n");
    job.command(["test", &component, "cases.toml"])
        .failed(2, &["case `a`: the function has no table `numbers`; it has `counts`"]);
    job.write("cases.toml", "[[case]]\nname = \"a\"\nrecords = 7\n");
    job.command(["test", &component, "cases.toml"]).failed(2, &["`cases.toml`: ", "line 3", "records"]);
    job.command(["test", &component, "none.toml"]).failed(2, &["cannot read `none.toml`"]);
    job.write("cases.toml", "[[case]]\nname = \"a\"\n");
    job.command(["test", "cases.toml", "cases.toml"]).failed(2, &["`cases.toml` is not a valid component"]);
    job.command(["test", &component, "cases.toml", "--only", "b"]).failed(2, &["has no such case; it has `a`"]);
}
