//! Graphs of every shape: what arrives at each sink, and what each operator remembers, is what a plain loop over the input says.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::Job;
use crate::plain::{
    Tally, counts_in_state, json_lines, numbers_by_key, read_json, running_counts, sorted, tally, text,
};

const VISITS: u64 = 6_000;

/// Short epochs and several tasks an operator, so that records cross threads and seals fall among them.
const HEAD: &str = r#"
[job]
name = "shape"
workers = 2

[checkpoint]
records = 1000
"#;

const VISITS_SOURCE: &str = r#"
[sources.visits]
kind = "file"
path = "visits.jsonl"
format = "jsonl"
key = "/user"
"#;

/// Visits of 97 users to 13 pages; both unevenly spread.
fn visits() -> Vec<Value> {
    let visit = |n: u64| json!({ "n": n, "user": format!("u{}", n * n % 97), "page": format!("p{}", n * 7 % 13) });
    (0..VISITS).map(visit).collect()
}

fn by(visits: &[Value], field: &str) -> Tally {
    tally(visits.iter().map(|visit| text(visit, field)))
}

fn job(rest: &str) -> Job {
    Job::new(&format!("{HEAD}{VISITS_SOURCE}{rest}")).input("visits.jsonl", json_lines(&visits()))
}

#[track_caller]
fn assert_counted(job: &Job, folder: &str, table: &str, expected: &Tally) {
    assert_eq!(numbers_by_key(&job.output_lines(folder)), running_counts(expected), "{folder}");
    assert_eq!(&counts_in_state(job, table), expected, "{table}");
}

fn lines(records: &[Value]) -> Vec<String> {
    sorted(json_lines(records).lines().map(str::to_owned).collect())
}

#[test]
fn a_job_goes_on_whatever_its_sinks_keep() {
    let job = job(r#"
[operators.count]
component = "{guest:misbehaving}"
inputs = ["visits"]
config = { mode = "count" }

[sinks.nowhere]
kind = "blackhole"
inputs = ["count"]

[sinks.seen]
kind = "stdout"
inputs = ["count"]

[sinks.at-once]
kind = "files"
path = "at-once"
delivery = "at-least-once"
inputs = ["count"]
"#);
    assert_eq!(job.run().succeeded().stdout.lines().count(), visits().len());
    job.write("visits.jsonl", json_lines(&[visits(), visits()].concat()));
    assert_eq!(job.run().succeeded().stdout.lines().count(), visits().len());
    let twice = by(&[visits(), visits()].concat(), "user");
    assert_eq!(counts_in_state(&job, "count/counts"), twice);
}

#[test]
fn straight() {
    let job = job(r#"
[operators.count]
component = "{guest:misbehaving}"
inputs = ["visits"]
config = { mode = "count" }
parallelism = 3

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["count"]
"#);
    let ended = job.run().succeeded();
    assert_counted(&job, "out", "count/counts", &by(&visits(), "user"));
    assert_eq!(
        (ended.figure("records_in"), ended.figure("records_out"), ended.figure("rejected")),
        (VISITS, VISITS, 0)
    );
    assert!(ended.figure("epochs") >= 2, "several epochs: {:?}", ended.summary);
}

#[test]
fn fan_out_of_a_source_and_of_an_operator_and_a_source_straight_to_a_sink() {
    let job = job(r#"
[operators.count]
component = "{guest:misbehaving}"
inputs = ["visits"]
config = { mode = "count" }

[operators.echo]
component = "{guest:misbehaving}"
inputs = ["visits"]

[sinks.counts]
kind = "files"
path = "counts"
format = "jsonl"
inputs = ["count"]

[sinks.counts-again]
kind = "files"
path = "counts-again"
format = "jsonl"
inputs = ["count"]

[sinks.echoes]
kind = "files"
path = "echoes"
inputs = ["echo"]

[sinks.straight]
kind = "files"
path = "straight"
inputs = ["visits"]
"#);
    let ended = job.run().succeeded();
    let users = by(&visits(), "user");
    assert_counted(&job, "counts", "count/counts", &users);
    assert_counted(&job, "counts-again", "count", &users);
    assert_eq!(sorted(job.output_lines("echoes")), lines(&visits()));
    assert_eq!(job.output_lines("straight").concat(), json_lines(&visits()).replace('\n', ""), "in the file's order");
    assert_eq!((ended.figure("records_in"), ended.figure("records_out")), (VISITS, 4 * VISITS));
}

#[test]
fn fan_in_of_sources_to_one_operator_and_of_all_to_one_sink() {
    let more = (0..3_000).map(|n| json!({ "page": "p0", "who": format!("u{}", n % 110) })).collect::<Vec<_>>();
    let job = job(r#"
[sources.others]
kind = "file"
path = "others.jsonl"
format = "jsonl"
key = "/who"

[operators.count]
component = "{guest:misbehaving}"
inputs = ["visits", "others"]
config = { mode = "count" }

[operators.echo]
component = "{guest:misbehaving}"
inputs = ["others"]

[sinks.counts]
kind = "files"
path = "counts"
format = "jsonl"
inputs = ["count"]

[sinks.all]
kind = "files"
path = "all"
inputs = ["visits", "echo"]
"#);
    job.write("others.jsonl", json_lines(&more));
    job.run().succeeded();
    let mut expected = by(&visits(), "user");
    by(&more, "who").into_iter().for_each(|(user, count)| *expected.entry(user).or_default() += count);
    assert_counted(&job, "counts", "count/counts", &expected);
    assert_eq!(sorted(job.output_lines("all")), lines(&[visits(), more].concat()));
}

#[test]
fn two_keyed_operators_in_a_row_each_keyed_by_what_its_producer_emits() {
    let words = |n: u64| format!("The w{} of {} and the W{}", n % 31, n % 7, n % 5);
    let text = (0..2_000).map(|n| words(n) + "\n").collect::<String>();
    let job = Job::new(&format!(
        r#"{HEAD}
[sources.lines]
kind = "file"
path = "text.txt"
format = "lines"
key = "."

[operators.lines-seen]
component = "{{guest:misbehaving}}"
inputs = ["lines"]
config = {{ mode = "count" }}

[operators.split]
component = "{{guest:word-count}}"
inputs = ["lines"]
config = {{ step = "split" }}

[operators.words]
component = "{{guest:word-count}}"
inputs = ["split"]
config = {{ step = "count" }}

[operators.words-again]
component = "{{guest:misbehaving}}"
inputs = ["words"]
config = {{ mode = "count" }}
parallelism = 3

[sinks.words-out]
kind = "files"
path = "words"
inputs = ["words"]

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["words-again"]

[sinks.lines-out]
kind = "blackhole"
inputs = ["lines-seen"]
"#
    ))
    .input("text.txt", &text);
    job.run().succeeded();
    let expected = tally(text.split_whitespace().map(str::to_lowercase));
    let mut emitted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in read_json(&job.output_lines("words")) {
        emitted.entry(line["word"].as_str().unwrap().to_owned()).or_default().push(line["count"].as_u64().unwrap());
    }
    assert_eq!(emitted, running_counts(&expected));
    assert_counted(&job, "out", "words-again/counts", &expected);
    assert_eq!(counts_in_state(&job, "lines-seen"), tally(text.lines()));
}

#[test]
fn an_operator_keys_its_input_anew_by_a_field_and_by_the_whole_value() {
    let job = job(r#"
[operators.pass]
component = "{guest:misbehaving}"
inputs = ["visits"]

[operators.pages]
component = "{guest:misbehaving}"
inputs = ["pass"]
key = "/page"
config = { mode = "count" }

# Of each count, how many pages have come to it.
[operators.ladder]
component = "{guest:misbehaving}"
inputs = ["pages"]
key = "."
config = { mode = "count" }

[sinks.pages-out]
kind = "files"
path = "pages"
format = "jsonl"
inputs = ["pages"]

[sinks.ladder-out]
kind = "files"
path = "ladder"
format = "jsonl"
inputs = ["ladder"]
"#);
    job.run().succeeded();
    let pages = by(&visits(), "page");
    assert_counted(&job, "pages", "pages/counts", &pages);
    let ladder = tally(pages.values().flat_map(|count| (1..=*count).map(|step| step.to_string())));
    assert_counted(&job, "ladder", "ladder/counts", &ladder);
}

#[test]
fn one_component_twice_with_other_config() {
    let bids = (0..2_000).map(|n| json!({ "auction": n % 11, "price": n })).collect::<Vec<_>>();
    let job = Job::new(&format!(
        r#"{HEAD}
[sources.bids]
kind = "file"
path = "bids.jsonl"
format = "jsonl"

[operators.half]
component = "{{guest:bid-euro}}"
inputs = ["bids"]
config = {{ rate = 0.5 }}

[operators.double]
component = "{{guest:bid-euro}}"
inputs = ["bids"]
config = {{ rate = 2.0 }}

[sinks.half-out]
kind = "files"
path = "half"
inputs = ["half"]

[sinks.double-out]
kind = "files"
path = "double"
inputs = ["double"]
"#
    ))
    .input("bids.jsonl", json_lines(&bids));
    job.run().succeeded();
    for (folder, rate) in [("half", 0.5), ("double", 2.0)] {
        let at_rate =
            |bid: &Value| json!({ "auction": bid["auction"], "price": bid["price"].as_f64().unwrap() * rate });
        let expected = bids.iter().map(at_rate).collect::<Vec<_>>();
        let found = read_json(&job.output_lines(folder));
        assert_eq!(lines(&found), lines(&expected), "{folder}");
    }
}

/// Every seventh visit has no page.
fn with_gaps() -> Vec<Value> {
    let mut visits = visits();
    for visit in visits.iter_mut().step_by(7) {
        visit.as_object_mut().unwrap().remove("page");
    }
    visits
}

/// A job that keys visits by their page, with this rule for those that have none, and these further sinks.
fn rekeyed(on_error: &str, sinks: &str) -> Job {
    let manifest = format!(
        r#"{HEAD}{VISITS_SOURCE}
[operators.pages]
component = "{{guest:misbehaving}}"
inputs = ["visits"]
key = "/page"
config = {{ mode = "count" }}
{on_error}

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["pages"]
{sinks}
"#
    );
    Job::new(&manifest).input("visits.jsonl", json_lines(&with_gaps()))
}

fn pages_without_gaps() -> Tally {
    tally(with_gaps().iter().filter_map(|visit| visit["page"].as_str()))
}

fn without_page() -> Vec<Value> {
    with_gaps().into_iter().filter(|visit| visit.get("page").is_none()).collect()
}

#[test]
fn records_without_the_new_key_go_to_the_dead_letters_with_all_they_are() {
    let job =
        rekeyed("on-error = \"dead-letter\"\ndead-letter = \"bad\"", "[sinks.bad]\nkind = \"files\"\npath = \"bad\"");
    let ended = job.run().succeeded();
    assert_counted(&job, "out", "pages/counts", &pages_without_gaps());
    let letters = read_json(&job.output_lines("bad"));
    assert_eq!(ended.figure("rejected"), letters.len() as u64);
    let mut values = Vec::new();
    for letter in &letters {
        let value: Value = serde_json::from_str(letter["value"].as_str().unwrap()).unwrap();
        assert_eq!((&letter["operator"], &letter["key"]), (&json!("pages"), &value["user"]));
        assert!(text(letter, "error").contains("no key"), "{letter}");
        values.push(value);
    }
    assert_eq!(lines(&values), lines(&without_page()));
}

#[test]
fn records_without_the_new_key_are_counted_where_they_are_skipped() {
    let job = rekeyed("on-error = \"skip\"", "");
    let ended = job.run().succeeded();
    assert_counted(&job, "out", "pages/counts", &pages_without_gaps());
    assert_eq!(ended.figure("rejected"), without_page().len() as u64);
    assert_eq!(ended.figure("operators/pages/rejected"), without_page().len() as u64);
}

#[test]
fn a_record_without_the_new_key_stops_a_job_that_says_nothing_else() {
    let job = rekeyed("", "");
    job.run().failed(4, &["operator `pages`", "key `u0`", "no key", "on-error"]);
}
