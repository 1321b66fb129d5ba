//! Tables of others while jobs run: lookups, updates, sends, loops and transactions, under load, with the smallest limits, stopped, and killed at random moments.
//!
//! The guest `others` keeps a table, uses another, and does by its config what a test wants of it; every result is held against a plain computation over the same input.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Dice, Ended, Job, Running, TIME_LIMIT, seed, soak_times};
use crate::kill::live_and_die;
use crate::plain::{json_lines, read_json, sorted, state};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// The head of a manifest.
pub fn head(workers: u16, interval: &str, more: &str) -> String {
    format!("[job]\nname = \"tables\"\nworkers = {workers}\n{more}\n[checkpoint]\ninterval = \"{interval}\"\n")
}

/// A source of the lines of `NAME.jsonl`, keyed by `k`.
pub fn source(name: &str) -> String {
    format!("[sources.{name}]\nkind = \"file\"\npath = \"{name}.jsonl\"\nformat = \"jsonl\"\nkey = \"/k\"\n")
}

/// An operator of the guest `others`. `fields` are further lines of it.
pub fn operator(name: &str, inputs: &str, used: &str, config: &str, fields: &str) -> String {
    format!(
        "[operators.{name}]\ncomponent = \"{{guest:others}}\"\ninputs = [{inputs}]\ntables.values = {{ open = true }}\n\
         uses.other = {{ table = \"{used}.values\", read = true, update = true, send = true }}\n\
         config = {{ {config} }}\n{fields}\n"
    )
}

/// A sink in the folder of its name.
pub fn sink(name: &str, inputs: &str, fields: &str) -> String {
    format!("[sinks.{name}]\nkind = \"files\"\npath = \"{name}\"\ninputs = [{inputs}]\n{fields}\n")
}

/// The integers that a table holds.
pub fn integers(job: &Job, table: &str) -> BTreeMap<String, i64> {
    let read = |value: Value| i64::from_le_bytes(bytes(&value).try_into().expect("the value is an integer of 64 bits"));
    state(job, table).into_iter().map(|(key, value)| (key, read(value))).collect()
}

/// The bytes of a value, as the state shows it.
pub fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.clone().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        Value::Object(object) => {
            let hex = object["hex"].as_str().expect("bytes are shown as hexadecimal digits").as_bytes();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            hex.chunks(2).map(byte).collect()
        }
        value => panic!("no bytes: {value}"),
    }
}

/// Records `{"k", "to", "n"}` over `keys` keys.
pub fn requests(count: u64, keys: u64, dice: &mut Dice) -> Vec<Value> {
    let key = |dice: &mut Dice| format!("k{}", dice.roll(keys));
    (0..count).map(|_| json!({ "k": key(dice), "to": key(dice), "n": 1 + dice.roll(9) })).collect()
}

fn text(record: &Value, field: &str) -> String {
    record[field].as_str().expect("the field is text").to_owned()
}

fn number(record: &Value) -> i64 {
    record["n"].as_i64().expect("`n` is a number")
}

fn sum_by(records: &[Value], field: &str, sums: &mut BTreeMap<String, i64>) {
    for record in records {
        *sums.entry(text(record, field)).or_default() += number(record);
    }
}

/// Two operators that look each other's tables up and change them, while each writes its own; and what their tables hold at the end.
pub fn both_ways(count: u64, consistency: &str, fields: &str) -> (Job, [BTreeMap<String, i64>; 2]) {
    let mut dice = Dice(11);
    let (left, right) = (requests(count, 50, &mut dice), requests(count, 50, &mut dice));
    let config = format!("mode = \"meet\", consistency = \"{consistency}\"");
    let manifest = [
        head(2, "30ms", "memory = \"2MiB\""),
        source("left-in"),
        source("right-in"),
        operator("left", "\"left-in\"", "right", &config, fields),
        operator("right", "\"right-in\"", "left", &config, fields),
        sink("found", "\"left\", \"right\"", ""),
    ];
    let job = Job::new(&manifest.concat()).time_limit(TIME_LIMIT * soak_times() as u32);
    job.write("left-in.jsonl", json_lines(&left));
    job.write("right-in.jsonl", json_lines(&right));
    let mut sums = [BTreeMap::new(), BTreeMap::new()];
    sum_by(&left, "k", &mut sums[0]);
    sum_by(&right, "to", &mut sums[0]);
    sum_by(&right, "k", &mut sums[1]);
    sum_by(&left, "to", &mut sums[1]);
    (job, sums)
}

/// Each record of [`both_ways`] has brought one line, with a value that its key has had.
pub fn check_found(lines: &[String], count: u64, sums: &[BTreeMap<String, i64>; 2]) {
    let found = read_json(lines);
    assert_eq!(found.len() as u64, 2 * count);
    for record in found {
        let most = sums.iter().filter_map(|sums| sums.get(&text(&record, "to"))).max();
        assert!(record["found"].as_i64().unwrap_or(0) <= *most.unwrap(), "{record}");
    }
}

/// Runs [`both_ways`] and holds its tables and output against what they must be.
pub fn check_both_ways(count: u64, consistency: &str, fields: &str) -> Ended {
    let (job, sums) = both_ways(count, consistency, fields);
    let ended = job.run().succeeded();
    assert_eq!([integers(&job, "left"), integers(&job, "right")], sums);
    check_found(&job.output_lines("found"), count, &sums);
    ended
}

/// A record a call, and hardly any room for it.
pub const SMALLEST_LIMITS: &str = "batch = 1\nparallelism = 2\nlimits = { memory = \"4MiB\", output = \"64KiB\" }";

#[test]
fn lookups_both_ways_go_on_with_the_smallest_limits() {
    check_both_ways(2_000, "live", SMALLEST_LIMITS);
}

#[test]
fn lookups_both_ways_of_what_is_committed_go_on() {
    check_both_ways(2_000, "committed", "batch = 7\nparallelism = 3");
}

/// A job that updates the table of another operator.
fn updating(config: &str, requests: &[Value], fields: &str) -> Job {
    let manifest = [
        head(2, "20ms", ""),
        source("requests"),
        operator("keeper", "", "keeper", "", "parallelism = 3"),
        operator("user", "\"requests\"", "keeper", config, fields),
        sink("out", "\"user\"", ""),
    ];
    Job::new(&manifest.concat()).input("requests.jsonl", json_lines(requests))
}

/// Runs updates and makes of the same requests, by a plain loop, what they should leave. `step` goes from a value, if there is one, and a number, to a value. Each
/// key is updated by one task only, so that the order of its updates is known.
#[track_caller]
fn check_updates(config: &str, step: impl Fn(Option<&Vec<u8>>, i64) -> Vec<u8>) {
    let mut dice = Dice(5);
    let request = |_| {
        let key = dice.roll(40);
        json!({ "k": format!("k{key}"), "to": format!("of-k{key}"), "n": dice.roll(100) as i64 - 50 })
    };
    let requests: Vec<Value> = (0..3_000).map(request).collect();
    let mut expected = BTreeMap::new();
    for request in &requests {
        let key = text(request, "to");
        let value = step(expected.get(&key), number(request));
        expected.insert(key, value);
    }
    for mode in ["update", "update-singly"] {
        let job = updating(&format!("mode = \"{mode}\", {config}"), &requests, "batch = 100");
        job.run().succeeded();
        let found = state(&job, "keeper").into_iter().map(|(key, value)| (key, bytes(&value)));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{config} {mode}");
    }
}

/// A step on integers.
fn on_integers(step: impl Fn(Option<i64>, i64) -> i64) -> impl Fn(Option<&Vec<u8>>, i64) -> Vec<u8> {
    move |value, number| {
        let value = value.map(|bytes| i64::from_le_bytes(bytes.as_slice().try_into().unwrap()));
        step(value, number).to_le_bytes().to_vec()
    }
}

#[test]
fn updates_that_set_values_leave_what_a_plain_loop_leaves() {
    check_updates("op = \"put\"", on_integers(|_, number| number));
    check_updates("op = \"put-if-absent\"", on_integers(|value, number| value.unwrap_or(number)));
}

#[test]
fn updates_that_remove_leave_the_other_keys() {
    let request = |key: i64| json!({ "k": format!("k{key}"), "n": key });
    let put: Vec<Value> = (0..500).map(request).collect();
    let removed: Vec<Value> = (0..500).filter(|key| key % 3 == 0).map(request).collect();
    let job = updating("mode = \"update\"", &put, "");
    job.run().succeeded();
    assert_eq!(integers(&job, "keeper").len(), put.len());
    job.write("requests.jsonl", json_lines(&put) + &json_lines(&removed));
    let job = job.arguments(["--set", "operators.user.config.op=delete"]);
    job.run().succeeded();
    let left = put.iter().filter(|request| number(request) % 3 != 0);
    assert_eq!(integers(&job, "keeper"), left.map(|request| (text(request, "k"), number(request))).collect());
}

#[test]
fn updates_of_numbers_leave_what_a_plain_loop_leaves() {
    check_updates("op = \"add\"", on_integers(|value, number| value.unwrap_or(0) + number));
    check_updates("op = \"min\"", on_integers(|value, number| value.map_or(number, |value| value.min(number))));
    check_updates("op = \"max\"", on_integers(|value, number| value.map_or(number, |value| value.max(number))));
    // Sums of whole numbers are exact in floats, too.
    check_updates("op = \"add\", values = \"f32\"", |value, number| {
        let value = value.map_or(0.0, |bytes| f32::from_le_bytes(bytes.as_slice().try_into().unwrap()));
        (value + number as f32).to_le_bytes().to_vec()
    });
    check_updates("op = \"max\", values = \"f64\"", |value, number| {
        let value = value.map(|bytes| f64::from_le_bytes(bytes.as_slice().try_into().unwrap()));
        value.map_or(number as f64, |value| value.max(number as f64)).to_le_bytes().to_vec()
    });
}

#[test]
fn appended_items_keep_the_order_in_which_one_task_sent_them() {
    check_updates("op = \"append\", values = \"text\", limit = 5", |value, number| {
        let mut items = Vec::new();
        let mut rest = value.map_or(&[][..], Vec::as_slice);
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (item, after) = behind.split_at(u32::from_le_bytes(*length) as usize);
            items.push(item.to_vec());
            rest = after;
        }
        items.push(number.to_string().into_bytes());
        let kept = &items[items.len().saturating_sub(5)..];
        kept.iter().flat_map(|item| [&(item.len() as u32).to_le_bytes()[..], item].concat()).collect()
    });
}

#[test]
fn an_update_that_does_not_fit_goes_where_its_owner_sends_what_fails() {
    let manifest = [
        head(2, "1s", ""),
        source("values"),
        source("requests"),
        operator(
            "keeper",
            "\"values\"",
            "keeper",
            "values = \"text\"",
            "on-error = \"dead-letter\"\ndead-letter = \"bad\"",
        ),
        operator("user", "\"requests\", \"keeper\"", "keeper", "mode = \"update\", op = \"add\"", ""),
        sink("bad", "", ""),
    ];
    let job =
        Job::new(&manifest.concat()).input("values.jsonl", "{\"k\":\"a\",\"n\":123}\n").input("requests.jsonl", "");
    job.run().succeeded();
    let bad = read_json(&job.output_lines("bad"));
    assert_eq!((bad.len(), &bad[0]["key"]), (1, &json!("a")), "{bad:?}");
    let error = text(&bad[0], "error");
    assert!(error.contains("an update of table `values` failed: the value has 3 bytes and the operand 8"), "{error}");
    assert_eq!(state(&job, "keeper"), BTreeMap::from([("a".to_owned(), json!(123))]));
}

#[test]
fn outcomes_tell_which_updates_have_changed_something() {
    // Of each key the first claim wins.
    let mut dice = Dice(3);
    let claims: Vec<Value> = (0..2_000).map(|n| json!({ "k": format!("k{}", dice.roll(300)), "n": n })).collect();
    let manifest = [
        head(2, "20ms", ""),
        source("claims"),
        operator("keeper", "", "keeper", "", ""),
        operator("user", "\"claims\"", "keeper", "mode = \"update\", op = \"put-if-absent\", ask = true", ""),
        operator("told", "\"user.done\"", "keeper", "mode = \"echo\"", ""),
        sink("outcomes", "\"told\"", ""),
    ];
    let job = Job::new(&manifest.concat()).input("claims.jsonl", json_lines(&claims));
    job.run().succeeded();
    let (mut expected, mut first) = (Vec::new(), BTreeMap::new());
    for claim in &claims {
        let has_won = first.insert(text(claim, "k"), ()).is_none();
        expected.push(format!("{}{claim}", if has_won { '\u{1}' } else { '\0' }));
    }
    assert_eq!(sorted(job.output_lines("outcomes")), sorted(expected));
}

/// A job that sets values to what it has seen and a little more, if they are still the same, and tries again until they are; and its input. With few keys and
/// several tasks most tries find that another one was faster.
fn claiming(count: u64) -> (Job, Vec<Value>) {
    let claims = requests(count, 5, &mut Dice(4));
    let fields = "feedback = [\"user.done\"]\nparallelism = 3\nbatch = 8";
    let manifest = [
        head(2, "20ms", ""),
        source("claims"),
        operator("keeper", "", "keeper", "", "parallelism = 2"),
        operator("user", "\"claims\"", "keeper", "mode = \"claim\"", fields),
        sink("met", "\"user\"", ""),
    ];
    (Job::new(&manifest.concat()).input("claims.jsonl", json_lines(&claims)), claims)
}

fn check_met(job: &Job, claims: &[Value]) {
    let mut expected = BTreeMap::new();
    sum_by(claims, "to", &mut expected);
    assert_eq!(integers(job, "keeper"), expected);
    assert_eq!(sorted(job.output_lines("met")), sorted(claims.iter().map(Value::to_string).collect()));
}

#[test]
fn who_tries_again_by_the_outcomes_that_come_back_loses_no_update() {
    let (job, claims) = claiming(600);
    job.run().succeeded();
    check_met(&job, &claims);
}

#[test]
fn killed_again_and_again_outcomes_come_back_once() {
    let (job, claims) = claiming(3_000);
    kill_often(&job, 4, || {});
    check_met(&job, &claims);
}

/// Two operators that send records to each other until their numbers are 0.
pub fn bouncing(interval: &str) -> String {
    let manifest = [
        head(2, interval, ""),
        source("balls"),
        operator("left", "\"balls\"", "right", "mode = \"bounce\"", "parallelism = 3\nbatch = 16"),
        operator("right", "", "left", "mode = \"bounce\"", "parallelism = 2\nbatch = 16"),
        sink("down", "\"left\", \"right\"", "format = \"jsonl\""),
    ];
    manifest.concat()
}

fn balls(count: u64, dice: &mut Dice) -> Vec<Value> {
    let ball = |id| json!({ "id": id, "k": format!("k{}", dice.roll(90)), "n": dice.roll(12), "to": format!("t{}", dice.roll(90)) });
    (0..count).map(ball).collect()
}

/// Where each ball comes down, by its id: at its own key after an even number of bounces, else at the other one.
fn check_down(job: &Job, balls: &[Value]) {
    let expected = balls.iter().map(|ball| {
        let key = if number(ball) % 2 == 0 { "k" } else { "to" };
        (ball["id"].as_u64().unwrap(), text(ball, key))
    });
    let down = read_json(&job.output_lines("down"));
    let found = down.iter().map(|record| (record["value"]["id"].as_u64().unwrap(), text(record, "key")));
    assert_eq!(sorted(found.collect()), sorted(expected.collect::<Vec<_>>()));
}

#[test]
fn records_sent_back_and_forth_come_down_where_they_should() {
    let balls = balls(3_000, &mut Dice(6));
    let job = Job::new(&bouncing("10ms")).input("balls.jsonl", json_lines(&balls));
    job.run().succeeded();
    check_down(&job, &balls);
}

/// A job most of whose records go round for ever; the others come out soon.
pub fn endless() -> (Job, Vec<Value>) {
    let record = |id: u64| {
        let rounds = if id.is_multiple_of(6) { 3 } else { -1 };
        json!({ "id": id, "k": format!("k{}", id % 70), "n": rounds, "to": format!("t{}", id % 30) })
    };
    let records: Vec<Value> = (0..600).map(record).collect();
    let manifest = [
        head(2, "30ms", ""),
        source("records"),
        operator("round", "\"records\"", "round", "mode = \"loop\"", "feedback = [\"round.again\"]"),
        sink("out", "\"round\"", ""),
    ];
    (Job::new(&manifest.concat()).input("records.jsonl", json_lines(&records)), records)
}

/// Waits until so many more epochs are sealed.
pub fn wait_for_epochs(job: &Job, running: &mut Running, more: u64) {
    let (before, start) = (job.newest_epoch(), Instant::now());
    while job.newest_epoch() < before + more {
        assert!(running.is_running() && start.elapsed() < WAIT_MAX, "at epoch {}", job.newest_epoch());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a job whose records have gone round for ever so that each of them comes out, in other tasks than before, and compares what has come out with what went in.
fn check_all_come_out(job: Job, records: &[Value]) {
    let job = job.arguments(["--set", "operators.round.config.mode=echo", "--set", "operators.round.parallelism=3"]);
    job.run().succeeded();
    let ids =
        |records: &[Value]| sorted(records.iter().map(|record| record["id"].as_u64().unwrap()).collect::<Vec<_>>());
    assert_eq!(ids(&read_json(&job.output_lines("out"))), ids(records));
}

#[test]
fn a_loop_that_never_ends_lets_epochs_seal_and_ends_cleanly_when_told() {
    let (job, records) = endless();
    for _ in 0..2 {
        let mut running = job.start();
        wait_for_epochs(&job, &mut running, 8);
        running.signal(Signal::TERM);
        let ended = running.wait().succeeded();
        assert_eq!(ended.summary.as_ref().unwrap()["ended"], "stopped");
    }
    assert_eq!(job.output_lines("out").len(), records.len() / 6);
    check_all_come_out(job, &records);
}

#[test]
fn what_goes_round_for_ever_is_there_once_after_a_crash() {
    let (job, records) = endless();
    let mut dice = Dice(seed());
    for _ in 0..4 {
        let mut running = job.start();
        wait_for_epochs(&job, &mut running, 1 + dice.roll(4));
        running.kill();
    }
    check_all_come_out(job, &records);
}

#[test]
fn a_loop_that_never_ends_does_not_keep_input_out() {
    let (job, _) = endless();
    // More than sources may have under way.
    let many: String = (0..20_000).map(|id| format!("{{\"id\":{id},\"k\":\"k{id}\",\"n\":-1}}\n")).collect();
    job.write("records.jsonl", many);
    let manifest = std::fs::read_to_string(job.path("job.toml")).unwrap();
    let beside = [
        source("others"),
        operator("beside", "\"others\"", "beside", "mode = \"echo\"", ""),
        // Seen as it is written, since no epoch ends here.
        sink("late", "\"beside\"", "delivery = \"at-least-once\""),
    ];
    job.write_manifest(&(manifest.replace("\"30ms\"", "\"60s\"") + &beside.concat()));
    job.write("others.jsonl", "{\"k\":\"a\"}\n".repeat(20_000));
    let (mut running, start) = (job.start(), Instant::now());
    while job.output_lines("late").len() < 20_000 {
        assert!(running.is_running() && start.elapsed() < WAIT_MAX, "{} records", job.output_lines("late").len());
        std::thread::sleep(Duration::from_millis(5));
    }
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn a_loop_that_grows_for_ever_ends_the_job_with_the_reason() {
    let manifest = [
        head(1, "60s", ""),
        "[sources.records]\nkind = \"file\"\npath = \"records.txt\"\nformat = \"lines\"\nkey = \".\"\n".to_owned(),
        "[operators.flood]\ncomponent = \"{guest:misbehaving}\"\ninputs = [\"records\"]\nfeedback = [\"flood\"]\n"
            .to_owned(),
        "config = { mode = \"flood\" }\nbatch = 1\n".to_owned(),
        sink("out", "", "")
            .replace("inputs = []", "inputs = [\"flood\"]")
            .replace("\"files\"\npath = \"out\"", "\"blackhole\""),
    ];
    let job = Job::new(&manifest.concat()).input("records.txt", "x".repeat(20_000));
    job.run().failed(1, &["what goes round by loops", "more than the 268435456 that an epoch may carry over"]);
}

/// Kills a job at random moments, then runs it to its end. After each kill, `check` looks at what is committed.
fn kill_often(job: &Job, kills: u32, check: impl Fn()) {
    let mut dice = Dice(seed());
    for kill in 0..kills {
        let running = job.start();
        if !live_and_die(job, running, &mut dice) {
            println!("{kill} kills: the input has ended");
            break;
        }
        check();
    }
    job.run().succeeded();
    check();
}

#[test]
fn killed_again_and_again_records_sent_back_and_forth_come_down_once() {
    let balls = balls(40_000, &mut Dice(7));
    let job = Job::new(&bouncing("30ms")).input("balls.jsonl", json_lines(&balls));
    kill_often(&job, 5, || {});
    check_down(&job, &balls);
}

pub const ACCOUNTS: i64 = 60;
pub const OPENING: i64 = 1_000_003;

/// A job of the example `transfer`, and its events: openings first.
pub fn transfers(count: u64, opening: i64, cents_max: u64, fields: &str) -> (Job, Vec<Value>) {
    let manifest = format!(
        "{}[sources.events]\nkind = \"file\"\npath = \"events.jsonl\"\nformat = \"jsonl\"\nkey = \"/account\"\n\
         [operators.transfer]\ncomponent = \"{{guest:transfer}}\"\ninputs = [\"events\"]\n\
         uses.accounts = {{ table = \"transfer.balances\", read = true, update = true }}\n{fields}\n{}",
        head(2, "50ms", ""),
        sink("refused", "\"transfer\"", "")
    );
    let mut dice = Dice(8);
    let accounts = ACCOUNTS as u64;
    let opens = (0..accounts).map(|account| json!({ "account": format!("a{account}"), "opens": opening }));
    let mut events: Vec<Value> = opens.collect();
    events.extend((0..count).map(|_| {
        let (payer, step) = (dice.roll(accounts), 1 + dice.roll(accounts - 1));
        let payee = (payer + step) % accounts;
        json!({ "account": format!("a{payer}"), "pays": format!("a{payee}"), "cents": 1 + dice.roll(cents_max) })
    }));
    (Job::new(&manifest).input("events.jsonl", json_lines(&events)), events)
}

/// The balances after all transfers but the refused ones.
pub fn balances(events: &[Value], refused: &[Value]) -> BTreeMap<String, i64> {
    let mut balances = BTreeMap::<String, i64>::new();
    let mut add = |account: String, cents: i64| *balances.entry(account).or_default() += cents;
    let cents = |event: &Value| event["cents"].as_i64().unwrap();
    for event in events {
        match event["pays"].as_str() {
            None => add(text(event, "account"), event["opens"].as_i64().unwrap()),
            Some(payee) => {
                add(text(event, "account"), -cents(event));
                add(payee.to_owned(), cents(event));
            }
        }
    }
    for event in refused {
        add(text(event, "account"), cents(event));
        add(text(event, "pays"), -cents(event));
    }
    balances
}

/// The balances that are committed; none before anything is. (An epoch that is logged may not be committed yet, when a job is killed.)
pub fn committed_balances(job: &Job) -> BTreeMap<String, i64> {
    let tables = job.command(["state", "tables", "job.toml", "--json"]);
    let is_there = tables.code() == Some(0) && tables.stdout.contains("transfer/balances");
    if is_there { integers(job, "transfer") } else { BTreeMap::new() }
}

/// What is committed is whole: a transfer that was only half there would be seen, since an opening is no round sum.
fn check_whole(job: &Job) {
    let total: i64 = committed_balances(job).values().sum();
    assert!(total % OPENING == 0 && total <= ACCOUNTS * OPENING, "there are {total} cents");
}

#[test]
fn killed_again_and_again_each_update_is_applied_once() {
    let (job, events) = transfers(150_000, OPENING, 500, "config = { overdraft = true }");
    kill_often(&job, 6, || check_whole(&job));
    assert_eq!(integers(&job, "transfer"), balances(&events, &[]));
}

#[test]
fn killed_again_and_again_transactions_spend_no_coin_twice() {
    let serializable = "config = { overdraft = false }\nisolation = \"serializable\"\nparallelism = 3\nbatch = 16";
    let (job, events) = transfers(20_000, 500, 800, serializable);
    let check = || {
        let balances = committed_balances(&job);
        assert!(balances.values().all(|&cents| cents >= 0), "{balances:?}");
        let total: i64 = balances.values().sum();
        assert!(total % 500 == 0 && total <= ACCOUNTS * 500, "there are {total} cents");
    };
    kill_often(&job, 4, check);
    let refused = read_json(&job.output_lines("refused"));
    assert!(!refused.is_empty());
    assert_eq!(integers(&job, "transfer"), balances(&events, &refused));
}

#[test]
fn updates_are_counted_once_by_their_owner() {
    for isolation in ["batch", "serializable"] {
        let (job, events) =
            transfers(500, 500, 800, &format!("config = {{ overdraft = true }}\nisolation = \"{isolation}\""));
        let ended = job.run().succeeded();
        let expected: usize = events.iter().map(|event| if event["pays"].is_null() { 1 } else { 2 }).sum();
        assert_eq!(ended.figure("operators/transfer/updates"), expected as u64, "{isolation}");
    }
}

#[test]
fn without_transactions_a_coin_can_be_spent_twice() {
    // Else the test above would show nothing.
    let (job, _) = transfers(4_000, 500, 800, "config = { overdraft = false }\nparallelism = 3");
    job.run().succeeded();
    assert!(integers(&job, "transfer").values().any(|&cents| cents < 0));
}

/// What a user of the keeper's table is told that is granted `granted` and does `config`.
#[track_caller]
fn check_refused(granted: &str, config: &str, expected: &str) {
    let user = operator("user", "\"requests\"", "keeper", config, "");
    let manifest = [
        head(1, "1s", ""),
        source("requests"),
        operator("keeper", "\"requests\"", "keeper", "", ""),
        user.replace("read = true, update = true, send = true", granted),
        sink("out", "\"user\", \"keeper\"", ""),
    ];
    let job = Job::new(&manifest.concat()).input("requests.jsonl", "{\"k\":\"a\",\"n\":1}\n");
    job.run().failed(4, &[expected]);
}

#[test]
fn what_the_manifest_does_not_grant_is_refused() {
    let not = |allows: &str, field: &str| {
        format!(
            "not-allowed: the manifest does not let this operator {allows} `other`: add `uses.other.{field} = true`"
        )
    };
    check_refused("update = true", "mode = \"look-up\"", &not("look up values of", "read"));
    check_refused("read = true", "mode = \"update\"", &not("change values of", "update"));
    check_refused("read = true, update = true", "mode = \"send\"", &not("send records to the owner of", "send"));
    check_refused(
        "read = true",
        "mode = \"fault\"",
        "unknown-name: the manifest has no `uses.nobody` for this operator; it has `other`",
    );
}
