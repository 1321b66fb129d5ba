//! Tables by event time: what is found as of a time, with a wait and without, against plain joins over the inputs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Dice, Job};
use crate::plain::json_lines;

/// Two streams with their own pace: prices are many, orders are few, so that orders are read long before the prices of their times.
pub const MANIFEST: &str = r#"[job]
name = "market"
workers = 2
partitions = 8

[checkpoint]
interval = "50ms"

[sources.quotes]
kind = "file"
path = "quotes"
format = "jsonl"
key = "/k"
time = "/t"

[sources.orders]
kind = "file"
path = "orders.jsonl"
format = "jsonl"
key = "/k"
time = "/t"

[operators.prices]
component = "{guest:prices}"
inputs = ["quotes"]
config = { mode = "keep" }
tables.values = { open = true }
uses.prices = { table = "prices.values", read = true }

[operators.ask]
component = "{guest:prices}"
inputs = ["orders"]
config = { mode = "ask-waiting" }
tables.values = { open = true }
uses.prices = { table = "prices.values", read = true }
batch = 100

[sinks.answers]
kind = "files"
path = "answers"
format = "jsonl"
inputs = ["ask"]
"#;

/// A third operator, which asks the second one for what it has kept.
const CHAIN: &str = r#"
[sources.audits]
kind = "file"
path = "audits.jsonl"
format = "jsonl"
key = "/k"
time = "/t"

[operators.audit]
component = "{guest:prices}"
inputs = ["audits"]
config = { mode = "ask-waiting" }
uses.prices = { table = "ask.values", read = true }

[sinks.audited]
kind = "files"
path = "audited"
format = "jsonl"
inputs = ["audit"]
"#;

const KEYS: u64 = 40;

/// A record: its key, its time, and a number or none.
#[derive(Debug, Clone)]
pub struct Event {
    key: String,
    time: i64,
    n: Option<i64>,
}

/// `count` events up to about `end`, in the order of their times, some of which are equal; one in so many has no number.
fn events(dice: &mut Dice, count: u64, end: u64, gone_one_in: u64) -> Vec<Event> {
    let mut times: Vec<i64> = (0..count).map(|_| dice.roll(end) as i64).collect();
    times.sort_unstable();
    let event = |(n, time): (usize, i64)| Event {
        key: format!("k{}", dice.roll(KEYS)),
        time,
        n: (gone_one_in == 0 || dice.roll(gone_one_in) > 0).then_some(n as i64),
    };
    times.into_iter().enumerate().map(event).collect()
}

fn lines(events: &[Event]) -> String {
    let record = |event: &Event| json!({ "k": event.key, "t": event.time, "n": event.n });
    json_lines(&events.iter().map(record).collect::<Vec<_>>())
}

/// A table by event time, kept as a plain list of everything.
#[derive(Default)]
pub struct Book(BTreeMap<String, BTreeMap<i64, Option<i64>>>);

impl Book {
    pub fn of(events: &[Event]) -> Self {
        let mut book = Self::default();
        events.iter().for_each(|event| book.write(&event.key, event.time, event.n));
        book
    }

    fn write(&mut self, key: &str, time: i64, value: Option<i64>) {
        self.0.entry(key.to_owned()).or_default().insert(time, value);
    }

    fn as_of(&self, key: &str, time: i64) -> Option<i64> {
        *self.0.get(key)?.range(..=time).next_back()?.1
    }

    pub fn newest(&self) -> BTreeMap<String, Value> {
        let newest = self.0.iter().filter_map(|(key, values)| Some((key.clone(), (*values.last_key_value()?.1)?)));
        newest.map(|(key, value)| (key, json!(value))).collect()
    }
}

/// What is emitted for each key, in the order in which it came: `n` and the price.
pub type Answers = BTreeMap<String, Vec<(Option<i64>, Option<i64>)>>;

/// The answers to `orders`, and what answering them has kept.
pub fn join(orders: &[Event], book: &Book) -> (Answers, Book) {
    let (mut answers, mut kept) = (Answers::new(), Book::default());
    for order in orders {
        let price = book.as_of(&order.key, order.time);
        answers.entry(order.key.clone()).or_default().push((order.n, price));
        kept.write(&order.key, order.time, price);
    }
    (answers, kept)
}

fn answers(job: &Job, folder: &str) -> Answers {
    read_answers(&job.output_lines(folder))
}

/// The answers that lines of output tell.
pub fn read_answers(lines: &[String]) -> Answers {
    let mut answers = Answers::new();
    for line in lines {
        let line: Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line["value"][name].as_i64();
        answers.entry(line["key"].as_str().unwrap().to_owned()).or_default().push((number("n"), number("price")));
    }
    answers
}

/// Many prices in two files, a few orders.
pub struct Market {
    pub prices: Vec<Event>,
    pub orders: Vec<Event>,
    pub job: Job,
}

pub fn market(manifest: &str, seed: u64, prices: u64) -> Market {
    let mut dice = Dice(seed);
    let end = prices / 3;
    let prices = events(&mut dice, prices, end, 20);
    let orders = events(&mut dice, prices.len() as u64 / 25, end + end / 10, 0);
    // Prices of one key stay together, so that the later of two that have one time is known.
    let (even, odd): (Vec<_>, Vec<_>) = prices.iter().cloned().partition(|event| event.key.len() % 2 == 0);
    let job = Job::new(manifest)
        .input("quotes/even.jsonl", lines(&even))
        .input("quotes/odd.jsonl", lines(&odd))
        .input("orders.jsonl", lines(&orders));
    Market { prices, orders, job }
}

#[track_caller]
fn assert_answered(job: &Job, folder: &str, expected: &Answers) {
    let found = answers(job, folder);
    for (key, expected) in expected {
        assert_eq!(found.get(key), Some(expected), "{folder}: {key}");
    }
    assert_eq!(found.len(), expected.len(), "{folder}");
}

#[test]
fn an_order_that_waits_finds_the_price_of_its_time() {
    let Market { prices, orders, job } = market(MANIFEST, 1, 60_000);
    let ended = job.run().succeeded();
    let book = Book::of(&prices);
    let (expected, kept) = join(&orders, &book);
    assert!(expected.values().flatten().any(|(_, price)| price.is_none()), "some orders find nothing");
    assert_answered(&job, "answers", &expected);
    assert_eq!(ended.figure("operators/ask/records_in"), orders.len() as u64);
    assert!(ended.figure("operators/ask/waited") > 0, "orders are read before the prices of their times");
    assert_eq!(ended.figure("operators/ask/failures"), 0);
    assert_eq!(job.state("prices"), book.newest());
    assert_eq!(job.state("ask"), kept.newest());
    assert_eq!(job.run().succeeded().figure("records_in"), 0, "nothing is left to do");
}

#[test]
fn a_finished_job_whose_input_grows_waits_for_what_has_come() {
    let Market { prices, orders, job } = market(MANIFEST, 8, 30_000);
    let (even, odd): (Vec<_>, Vec<_>) = prices.iter().cloned().partition(|event| event.key.len() % 2 == 0);
    let files = [("quotes/even.jsonl", even), ("quotes/odd.jsonl", odd), ("orders.jsonl", orders.clone())];
    let half = |events: &[Event]| events.partition_point(|event| event.time < 5_000);
    for (file, events) in &files {
        job.write(file, lines(&events[..half(events)]));
    }
    job.run().succeeded();
    for (file, events) in &files {
        job.write(file, lines(events));
    }
    let ended = job.run().succeeded();
    assert!(ended.figure("operators/ask/waited") > 0);
    let (expected, kept) = join(&orders, &Book::of(&prices));
    assert_answered(&job, "answers", &expected);
    assert_eq!(job.state("ask"), kept.newest());
}

#[test]
fn who_waits_for_somebody_who_waits_finds_what_came_of_it() {
    let Market { prices, orders, job } = market(&format!("{MANIFEST}{CHAIN}"), 2, 30_000);
    let audits = events(&mut Dice(3), 2_000, 11_000, 0);
    let job = job.input("audits.jsonl", lines(&audits));
    let ended = job.run().succeeded();
    let (answered, kept) = join(&orders, &Book::of(&prices));
    let (audited, _) = join(&audits, &kept);
    assert_answered(&job, "answers", &answered);
    assert_answered(&job, "audited", &audited);
    assert!(ended.figure("operators/audit/waited") > 0);
}

#[test]
fn without_a_wait_a_price_may_be_old_but_is_never_of_the_future() {
    let Market { prices, orders, job } = market(&MANIFEST.replace("ask-waiting", "ask"), 4, 40_000);
    let ended = job.run().succeeded();
    assert_eq!(ended.figure("operators/ask/waited"), 0);
    let written: BTreeMap<(&str, i64), i64> =
        prices.iter().filter_map(|price| Some(((price.key.as_str(), price.n?), price.time))).collect();
    let found = answers(&job, "answers");
    assert_eq!(found.values().map(Vec::len).sum::<usize>(), orders.len());
    let mut old = 0;
    let book = Book::of(&prices);
    for (key, answers) in &found {
        let own = orders.iter().filter(|order| order.key == *key);
        for (order, (n, price)) in own.zip(answers) {
            assert_eq!(*n, order.n);
            old += usize::from(*price != book.as_of(key, order.time));
            if let Some(price) = price {
                assert!(written[&(key.as_str(), *price)] <= order.time, "{key} at {}: {price}", order.time);
            }
        }
    }
    assert!(old > 0, "orders are read before the prices of their times");
}

#[test]
fn killed_again_and_again_each_order_finds_the_price_of_its_time_once() {
    let Market { prices, orders, job } = market(MANIFEST, 5, 120_000);
    let (mut dice, mut kills) = (Dice(6), 0);
    while kills < 8 {
        let (mut life, before) = (job.start(), job.newest_epoch());
        let born = Instant::now();
        while job.newest_epoch() <= before && life.is_running() {
            assert!(born.elapsed() < Duration::from_secs(60), "nothing was committed: {}", life.kill().stderr);
            std::thread::sleep(Duration::from_micros(500));
        }
        std::thread::sleep(Duration::from_millis(dice.roll(150)));
        if !life.is_running() {
            break;
        }
        life.kill();
        kills += 1;
    }
    assert!(kills > 3, "the job had ended after {kills} kills");
    job.run().succeeded();
    let (expected, kept) = join(&orders, &Book::of(&prices));
    assert_answered(&job, "answers", &expected);
    assert_eq!(job.state("ask"), kept.newest());
}

#[test]
fn what_is_older_than_the_span_is_not_found() {
    let manifest = MANIFEST.replacen("{ open = true }", "{ open = true, versioned = \"10ms\" }", 1);
    let price = |time: i64| Event { key: "k".to_owned(), time, n: Some(time) };
    let order = |time: i64| Event { key: "k".to_owned(), time, n: None };
    // All prices are known before the first order is answered: it comes last of its time.
    let job = Job::new(&manifest)
        .input("quotes/all.jsonl", lines(&[10, 20, 30, 40, 45].map(price)))
        .input("orders.jsonl", lines(&[50, 44, 40, 35, 34, 29, 10].map(order)));
    job.run().succeeded();
    // What held 10 ms before the newest price, at 35, is kept: that of 30.
    let expected = [Some(45), Some(40), Some(40), Some(30), Some(30), None, None].map(|price| (None, price));
    assert_eq!(answers(&job, "answers")["k"], expected);
}

#[test]
fn a_stopped_job_goes_on_waiting_where_it_was() {
    // Prices have no end, so the orders behind them wait for ever.
    let followed = MANIFEST.replacen("path = \"quotes\"\n", "path = \"quotes\"\nfollow = true\n", 1);
    let price = |time: i64| Event { key: "k".to_owned(), time, n: Some(time) };
    let order = |time: i64| Event { key: "k".to_owned(), time, n: Some(time) };
    let job = Job::new(&followed)
        .input("quotes/all.jsonl", lines(&[10, 20].map(price)))
        .input("orders.jsonl", lines(&[15, 19, 20, 25].map(order)));
    let answered = |job: &Job| answers(job, "answers").remove("k").unwrap_or_default();
    let expected = [(Some(15), Some(10)), (Some(19), Some(10)), (Some(20), Some(20)), (Some(25), Some(20))];
    let running = job.start();
    let born = Instant::now();
    while answered(&job).len() < 2 {
        assert!(born.elapsed() < Duration::from_secs(60), "{}", running.kill().stderr);
        std::thread::sleep(Duration::from_millis(5));
    }
    running.signal(rustix::process::Signal::TERM);
    let ended = running.wait().succeeded();
    assert_eq!(ended.figure("operators/ask/records_in"), 2);
    // More of time 20 may come to the prices, so they are known up to 19.
    assert_eq!(answered(&job), expected[..2]);
    job.write_manifest(MANIFEST);
    job.run().succeeded();
    assert_eq!(answered(&job), expected);
}

#[test]
fn nothing_is_sealed_while_nothing_can_come_of_it() {
    let followed = MANIFEST.replacen("path = \"quotes\"\n", "path = \"quotes\"\nfollow = true\n", 1);
    let event = |time: i64| Event { key: "k".to_owned(), time, n: Some(time) };
    let job = Job::new(&followed)
        .input("quotes/all.jsonl", lines(&[event(10)]))
        .input("orders.jsonl", lines(&[event(9), event(30)]));
    let running = job.start();
    let born = Instant::now();
    while answers(&job, "answers").is_empty() {
        assert!(born.elapsed() < Duration::from_secs(60), "{}", running.kill().stderr);
        std::thread::sleep(Duration::from_millis(5));
    }
    // It takes many intervals until another file is noticed.
    let before = job.newest_epoch();
    job.write("quotes/more.jsonl", lines(&[event(50)]));
    while job.newest_epoch() == before {
        assert!(born.elapsed() < Duration::from_secs(60), "{}", running.kill().stderr);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(job.newest_epoch() <= 6, "{} epochs in which next to nothing happened", job.newest_epoch());
    job.write("quotes/all.jsonl", lines(&[event(10), event(20), event(40)]));
    while answers(&job, "answers")["k"].len() < 2 {
        assert!(born.elapsed() < Duration::from_secs(60), "{}", running.kill().stderr);
        std::thread::sleep(Duration::from_millis(5));
    }
    running.signal(rustix::process::Signal::TERM);
    running.wait().succeeded();
    assert_eq!(answers(&job, "answers")["k"], [(Some(9), None), (Some(30), Some(20))]);
}

#[test]
fn nobody_waits_for_itself() {
    let own = MANIFEST.replacen("mode = \"keep\"", "mode = \"ask-waiting\"", 1);
    let order = Event { key: "k".to_owned(), time: 1, n: Some(1) };
    let job = Job::new(&own).input("quotes/all.jsonl", lines(&[order])).input("orders.jsonl", "");
    job.run().failed(4, &["`prices` cannot be looked up with `wait`", "depends on this operator itself"]);
}

#[test]
fn a_table_stays_versioned_or_not_for_the_life_of_its_state() {
    let Market { job, .. } = market(MANIFEST, 7, 100);
    job.run().succeeded();
    let other = MANIFEST.replacen(
        "component = \"{guest:prices}\"\ninputs = [\"quotes\"]\nconfig = { mode = \"keep\" }",
        "component = \"{guest:others}\"\ninputs = [\"quotes\"]\nconfig = { mode = \"keep\" }",
        1,
    );
    let other = other.replacen("uses.prices =", "uses.other =", 1);
    job.write_manifest(&other);
    job.run().failed(3, &["`values` of the operator `prices` is stored with earlier values (`versioned`)"]);
}

#[test]
fn a_component_that_keeps_no_earlier_values_cannot_be_made_to() {
    let other =
        MANIFEST.replacen("tables.values = { open = true }", "tables.values = { open = true, versioned = \"1h\" }", 1);
    Job::new(&other).command(["check", "job.toml"]).succeeded();
    let other = other.replacen("{guest:prices}", "{guest:others}", 1).replacen("uses.prices =", "uses.other =", 1);
    let said = "the component of `prices` does not declare its table `values` as versioned";
    Job::new(&other).command(["check", "job.toml"]).failed(2, &[said]);
}
