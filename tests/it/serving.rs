//! Asking a job while it runs: by HTTP, by Cap'n Proto, by the command line. What is committed is held against a plain count of the input that it covers.

use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::asking::{Http, announced, serving, values, with_tables};
use crate::harness::{Job, Running};
use crate::plain::{Tally, tally};

const MANIFEST: &str = r#"[job]
name = "visits"

[checkpoint]
interval = "30ms"
retained = 1000

[admin]
capnp = "127.0.0.1:0"

[sources.visits]
kind = "file"
path = "visits.jsonl"
format = "jsonl"
key = "/user"
follow = true

[operators.count]
component = "{guest:misbehaving}"
inputs = ["visits"]
config = { mode = "count" }
parallelism = 2
tables.counts.ordered = true

[sinks.out]
kind = "files"
path = "out"
format = "jsonl"
inputs = ["count"]
"#;

const WAIT_MAX: Duration = Duration::from_secs(60);

fn user(number: u64) -> String {
    format!("u{}", number * number % 17)
}

fn lines(range: std::ops::Range<u64>) -> String {
    range.map(|number| format!("{{\"user\":\"{}\"}}\n", user(number))).collect()
}

/// How often each user is in the first `records` of the input.
fn counted(records: u64) -> Tally {
    tally((0..records).map(user))
}

fn job() -> Job {
    Job::new(MANIFEST).input("visits.jsonl", "")
}

fn append(job: &Job, range: std::ops::Range<u64>) {
    let mut input = std::fs::File::options().append(true).open(job.path("visits.jsonl")).unwrap();
    input.write_all(lines(range).as_bytes()).unwrap();
}

/// All of the table as a page tells it, with the epoch.
fn listed(page: &Value) -> (Option<u64>, Tally) {
    assert_eq!(page["next"], Value::Null, "one page has it all");
    let entries = page["entries"].as_array().unwrap().iter();
    let entry = |entry: &Value| (entry["key"].as_str().unwrap().to_owned(), entry["value"].as_u64().unwrap());
    (page["epoch"].as_u64(), entries.map(entry).collect())
}

/// Waits until the last committed epoch covers so many records.
fn wait_for(http: &mut Http, running: &mut Running, records: u64) -> u64 {
    let start = Instant::now();
    loop {
        let (epoch, found) = listed(&http.get("/tables/count.counts?limit=1000").ok());
        if found.values().sum::<u64>() == records {
            return epoch.unwrap();
        }
        assert!(start.elapsed() < WAIT_MAX && running.is_running(), "{found:?} of {records} records");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn every_retained_epoch_is_a_count_of_a_part_of_the_input_for_whomever_asks() {
    let job = job();
    let mut running = job.start();
    let told = serving(&job, &mut running);
    let mut http = Http::connect(told.http);
    let mut newest = 0;
    for round in 0..12 {
        append(&job, round * 50..(round + 1) * 50);
        newest = wait_for(&mut http, &mut running, (round + 1) * 50);
    }
    let status = http.get("/status").ok();
    assert_eq!((&status["job"], &status["readable"]), (&json!("visits"), &json!({ "oldest": 0, "newest": newest })));
    assert_eq!((&status["records_in"], &status["operators"]["count"]["records_in"]), (&json!(600), &json!(600)));
    let users: Vec<String> = counted(600).into_keys().chain(["nobody".to_owned()]).collect();
    let (mut before, mut epochs_with_more) = (0, 0);
    for epoch in 0..=newest {
        let page = http.get(&format!("/tables/count.counts?limit=1000&consistency=as-of:{epoch}")).ok();
        let (as_of, found) = listed(&page);
        let records = found.values().sum();
        assert_eq!((as_of, &found), (Some(epoch), &counted(records)), "as of epoch {epoch}");
        assert!(records >= before, "counts only grow");
        epochs_with_more += u64::from(records > before);
        before = records;
        let expected: Vec<Option<String>> = users.iter().map(|user| found.get(user).map(ToString::to_string)).collect();
        let capnp =
            with_tables(told.capnp.unwrap(), "", async |tables| values(&tables, "count.counts", &users, epoch).await);
        assert_eq!(capnp.unwrap(), expected, "as of epoch {epoch}");
        for user in &users {
            let answer = http.get(&format!("/tables/count.counts/{user}?consistency=as-of:{epoch}"));
            let expected = match found.get(user) {
                Some(count) => json!({ "table": "count.counts", "epoch": epoch, "key": user, "value": count }),
                None => json!({ "table": "count.counts", "epoch": epoch, "key": user, "absent": true }),
            };
            assert_eq!((answer.status, answer.json()), (if found.contains_key(user) { 200 } else { 404 }, expected));
        }
    }
    assert!(before == 600 && epochs_with_more >= 12, "{epochs_with_more} epochs had something new");
    let epoch = format!("as-of:{}", newest / 2);
    let scan = ["state", "scan", "job.toml", "count", "--json", "--consistency", &epoch];
    let page = http.get(&format!("/tables/count.counts?limit=1000&consistency={epoch}")).ok();
    let expected: String = page["entries"].as_array().unwrap().iter().map(|entry| format!("{entry}\n")).collect();
    assert_eq!(job.command(scan).succeeded().stdout, expected);
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn live_values_run_ahead_of_committed_ones_and_never_behind() {
    let job = job().arguments(["--set", "checkpoint.interval=1h", "--set", "checkpoint.records=1000"]);
    append(&job, 0..100);
    let mut running = job.start();
    let mut http = Http::connect(serving(&job, &mut running).http);
    let start = Instant::now();
    loop {
        let (epoch, found) = listed(&http.get("/tables/count.counts?limit=1000&consistency=live").ok());
        assert_eq!(epoch, None);
        if found == counted(100) {
            break;
        }
        assert!(start.elapsed() < WAIT_MAX && running.is_running(), "{found:?}");
    }
    assert_eq!(listed(&http.get("/tables/count.counts").ok()), (Some(0), Tally::new()), "nothing is committed");
    let live = http.get("/tables/count/u4?consistency=live").ok();
    assert_eq!((&live["epoch"], &live["value"]), (&Value::Null, &json!(counted(100)["u4"])));
    assert_eq!(http.get("/tables/count/u4").status, 404);
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn the_command_line_says_the_same_of_a_running_job_and_of_a_stopped_one() {
    let job = job();
    append(&job, 0..500);
    let mut running = job.start();
    let mut http = Http::connect(serving(&job, &mut running).http);
    let epoch = wait_for(&mut http, &mut running, 500);
    let questions: Vec<Vec<&str>> = vec![
        vec!["tables", "job.toml"],
        vec!["tables", "job.toml", "--json"],
        vec!["get", "job.toml", "count", "u4"],
        vec!["get", "job.toml", "count/counts", "u4", "--json"],
        vec!["get", "job.toml", "count", "u4", "--consistency", "live"],
        vec!["get", "job.toml", "count", "nobody"],
        vec!["get", "job.toml", "counts", "u4"],
        vec!["scan", "job.toml", "count"],
        vec!["scan", "job.toml", "count", "--json", "--limit", "3"],
        vec!["scan", "job.toml", "count", "--prefix", "u1"],
        vec!["scan", "job.toml", "count", "--prefix", "u1", "--from", "u13", "--limit", "2"],
    ];
    // The stop may seal one more epoch; the state in it is the same.
    let newest = |tables: &str| serde_json::from_str::<Value>(tables).unwrap()["epoch"].as_u64().unwrap();
    let ask = |question: &Vec<&str>, epoch: u64| {
        let ended = job.command([&["state"], question.as_slice()].concat());
        let plain = |text: String| {
            let text = text.replace(&format!("epoch {epoch}\n"), "epoch E\n");
            text.replace(&format!("\"epoch\": {epoch},"), "\"epoch\": E,")
        };
        (ended.code(), plain(ended.stdout), plain(ended.stderr))
    };
    let of_running: Vec<_> = questions.iter().map(|question| ask(question, epoch)).collect();
    running.signal(Signal::TERM);
    running.wait().succeeded();
    let at_the_end = newest(&job.command(["state", "tables", "job.toml", "--json"]).succeeded().stdout);
    for (question, of_running) in questions.iter().zip(&of_running) {
        assert_eq!(of_running, &ask(question, at_the_end), "{question:?}");
    }
    let as_of = format!("as-of:{at_the_end}");
    let found = job.command(["state", "get", "job.toml", "count", "u4", "--consistency", &as_of]).succeeded();
    assert_eq!(found.stdout, of_running[2].1);
    let [tables, _, value, ..] = of_running.as_slice() else { panic!("there are more questions") };
    let keys = counted(500).len().to_string();
    assert!(tables.1.contains("count/counts") && tables.1.contains(&keys), "{tables:?}");
    assert_eq!(value.1, format!("{}\n", counted(500)["u4"]));
    let elsewhere = ["state", "get", "job.toml", "count", "u4", "--consistency", "as-of:99999"];
    job.command(elsewhere).failed(3, &["epoch 99999 cannot be read"]);
    job.command(["state", "watch", "job.toml", "count", "u4"]).failed(3, &["the job is not running"]);
}

#[test]
fn who_watches_a_key_is_told_of_each_epoch_in_which_it_changes_until_the_job_ends() {
    let job = job();
    append(&job, 0..17);
    let mut running = job.start();
    let mut http = Http::connect(serving(&job, &mut running).http);
    wait_for(&mut http, &mut running, 17);
    let watch = ["state", "watch", "job.toml", "count", "u4", "--json"];
    let told = std::thread::scope(|scope| {
        let watching = scope.spawn(|| job.command(watch).succeeded().stdout);
        for round in 1..8 {
            append(&job, round * 17..(round + 1) * 17);
            wait_for(&mut http, &mut running, (round + 1) * 17);
        }
        let limited = job.command(["state", "watch", "job.toml", "count", "u4", "--limit", "1"]).succeeded().stdout;
        assert!(limited.ends_with(&format!("\t{}\n", counted(136)["u4"])), "{limited}");
        running.signal(Signal::TERM);
        running.wait().succeeded();
        watching.join().unwrap()
    });
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers = |field: &str| told.iter().map(|told| told[field].as_u64().unwrap()).collect::<Vec<_>>();
    let (epochs, values) = (numbers("epoch"), numbers("value"));
    assert!(epochs.is_sorted_by(|a, b| a < b) && values.is_sorted_by(|a, b| a < b), "{told:?}");
    assert_eq!(values.last(), Some(&counted(136)["u4"]));
    // Whenever the watching began, nothing was left out from then on: each round adds two visits of this user.
    assert_eq!(counted(17)["u4"], 2);
    assert!(values.windows(2).all(|pair| pair[1] - pair[0] <= 2), "{values:?}");
}

#[test]
fn ranges_are_paged_and_every_key_can_be_named() {
    let keys = ["a/b", "ä", "%", "?x=1&y", "\u{7f}\u{1}", "zz"];
    let input: String = keys.iter().map(|key| format!("{}\n", json!({ "user": key }))).collect();
    let job = job().input("visits.jsonl", input);
    let mut running = job.start();
    let mut http = Http::connect(serving(&job, &mut running).http);
    wait_for_any(&mut http, &mut running, keys.len());
    for key in keys {
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        for path in [format!("/tables/count.counts/{encoded}"), format!("/tables/count.counts?key-hex={hex}")] {
            assert_eq!(http.get(&path).ok()["value"], 1, "{path}");
        }
    }
    assert_eq!(http.get("/tables/count.counts?key-hex=").status, 404, "the empty key");
    let (mut found, mut path) = (Vec::new(), "/tables/count.counts?limit=2&to=zz".to_owned());
    loop {
        let page = http.get(&path).ok();
        let entries = page["entries"].as_array().unwrap();
        assert!(entries.len() <= 2);
        found.extend(entries.iter().map(|entry| entry["key"].clone()));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut path),
            None => break,
        }
    }
    // In the order of their bytes, and before the end that was asked for.
    assert_eq!(found, [json!("%"), json!("?x=1&y"), json!("a/b")]);
    let wrong = [
        ("/tables/count.counts?limt=2", 400, "bad-request"),
        ("/tables/count.counts?consistency=yesterday", 400, "bad-request"),
        ("/tables/count.counts?key-hex=1", 400, "bad-request"),
        ("/tables/count.counts?key-hex=61&limit=1", 400, "bad-request"),
        ("/tables/count.counts?from=a&from-hex=61", 400, "bad-request"),
        ("/tables/count.none/a", 404, "unknown-table"),
        ("/table", 404, "unknown-path"),
        ("/tables/count.counts/a?consistency=as-of:999999", 410, "gone"),
    ];
    for (path, status, code) in wrong {
        let answer = http.get(path);
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{path}");
    }
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

/// Waits until so many keys are committed.
fn wait_for_any(http: &mut Http, running: &mut Running, keys: usize) {
    let start = Instant::now();
    while http.get("/tables/count.counts").ok()["entries"].as_array().unwrap().len() < keys {
        assert!(start.elapsed() < WAIT_MAX && running.is_running(), "waited in vain for {keys} keys");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn nothing_can_be_written_and_the_reason_is_said() {
    let job = job();
    append(&job, 0..10);
    let mut running = job.start();
    let mut http = Http::connect(serving(&job, &mut running).http);
    wait_for(&mut http, &mut running, 10);
    for method in ["PUT", "POST", "DELETE", "PATCH"] {
        for path in ["/tables/count.counts/u4", "/tables", "/"] {
            let answer = http.ask(method, path, "content-length: 0\r\n");
            assert_eq!(answer.status, 405, "{method} {path}");
            assert!(answer.head.to_ascii_lowercase().contains("allow: get, head"), "{}", answer.head);
            assert!(answer.body.contains("could not be replayed") && answer.body.contains("source"), "{}", answer.body);
        }
    }
    for verb in ["put", "set", "delete", "update"] {
        let write = ["state", verb, "job.toml", "count", "u4", "--value", "7"];
        job.command(write).failed(2, &["could not be replayed", "let it come in through a source"]);
    }
    assert_eq!(http.get("/tables/count/u4").ok()["value"], counted(10)["u4"]);
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn where_there_is_a_token_nobody_asks_without_it() {
    let job = job().arguments(["--set", "admin.token=open sesame"]);
    append(&job, 0..10);
    let mut running = job.start();
    let told = serving(&job, &mut running);
    let mut http = Http::connect(told.http);
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    for headers in [String::new(), with("open sesam"), with(""), "authorization: Basic open sesame\r\n".to_owned()] {
        for path in ["/status", "/tables", "/tables/count/u4", "/none"] {
            let answer = http.ask("GET", path, &headers);
            assert_eq!(answer.status, 401, "{path} with {headers:?}");
            assert!(!answer.body.contains("sesame"), "{}", answer.body);
        }
    }
    assert_eq!(http.ask("GET", "/status", &with("open sesame")).status, 200);
    let ask = |token: &str| {
        with_tables(told.capnp.unwrap(), token, async |tables| {
            Ok(tables.tables_request().send().promise.await?.get()?.get_tables()?.len())
        })
    };
    assert!(ask("").unwrap_err().to_string().contains("another token"));
    assert_eq!(ask("open sesame").unwrap(), 1);
    let tables = |token: &str| job.command(["state", "tables", "job.toml", "--set", &format!("admin.token={token}")]);
    tables("open sesame").succeeded();
    tables("something else").failed(2, &["asks for a token"]);
    job.write("secret", "open sesame\n");
    job.command(["state", "tables", "job.toml", "--set", "admin.token-file=secret"]).succeeded();
    job.command(["state", "tables", "job.toml", "--set", "admin.token-file=none"]).failed(3, &["none"]);
    assert!(!std::fs::read_to_string(job.path("state/serving")).unwrap().contains("sesame"));
    running.signal(Signal::TERM);
    let ended = running.wait().succeeded();
    assert!(!ended.stderr.contains("sesame"), "{}", ended.stderr);
}

#[test]
fn only_this_machine_is_answered_without_a_token() {
    let job = job();
    for field in ["listen", "capnp"] {
        let open = format!("admin.{field}=0.0.0.0:0");
        for command in ["check", "run"] {
            job.command([command, "job.toml", "--set", &open]).failed(2, &["can be reached from elsewhere", "token"]);
        }
    }
    let mut running = job.start();
    let mut http = Http::connect(serving(&job, &mut running).http);
    let rebound = http.ask("GET", "/tables", "host: evil.example\r\n");
    assert_eq!((rebound.status, &rebound.json()["code"]), (421, &json!("wrong-host")));
    assert_eq!(http.get("/tables").status, 200);
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn an_epoch_that_is_not_kept_any_longer_is_gone_and_which_are_kept_is_said() {
    let job = job().arguments(["--set", "checkpoint.retained=2"]);
    let mut running = job.start();
    let told = serving(&job, &mut running);
    let mut http = Http::connect(told.http);
    let mut newest = 0;
    for round in 0..5 {
        append(&job, round * 10..(round + 1) * 10);
        newest = wait_for(&mut http, &mut running, (round + 1) * 10);
    }
    let oldest = newest - 1;
    let said = format!("only epochs {oldest} to {newest} can be read");
    let gone = http.get("/tables/count/u4?consistency=as-of:1");
    assert_eq!((gone.status, &gone.json()["code"]), (410, &json!("gone")));
    assert!(gone.body.contains(&said), "{}", gone.body);
    job.command(["state", "get", "job.toml", "count", "u4", "--consistency", "as-of:1"]).failed(3, &[&said]);
    let capnp = with_tables(told.capnp.unwrap(), "", async |tables| {
        values(&tables, "count.counts", &["u4".to_owned()], 1).await
    });
    assert!(capnp.unwrap_err().to_string().contains(&said));
    for epoch in [oldest, newest] {
        assert_eq!(http.get(&format!("/tables/count/u4?consistency=as-of:{epoch}")).status, 200);
    }
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn where_a_job_answers_is_told_as_long_as_it_does() {
    let job = job();
    append(&job, 0..10);
    let mut running = job.start();
    let first = serving(&job, &mut running);
    wait_for(&mut Http::connect(first.http), &mut running, 10);
    running.kill();
    assert_eq!(announced(&job).map(|told| told.pid), Some(first.pid), "a crash leaves it lying");
    let found = job.command(["state", "get", "job.toml", "count", "u4"]).succeeded();
    assert_eq!(found.stdout, format!("{}\n", counted(10)["u4"]));
    let mut running = job.start();
    let start = Instant::now();
    while announced(&job).is_none_or(|told| told.pid == first.pid) {
        assert!(start.elapsed() < WAIT_MAX && running.is_running());
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_for(&mut Http::connect(serving(&job, &mut running).http), &mut running, 10);
    running.signal(Signal::TERM);
    running.wait().succeeded();
    assert!(announced(&job).is_none());
    let off = ["--set", "admin.enabled=false"];
    let silent = Job::new(MANIFEST).input("visits.jsonl", lines(0..10)).arguments(off);
    let running = silent.start();
    let start = Instant::now();
    while silent.output_lines("out").len() < 10 {
        assert!(start.elapsed() < WAIT_MAX);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(announced(&silent).is_none());
    let ask = ["state", "tables", "job.toml", "--set", "admin.enabled=false"];
    silent.command(ask).failed(3, &["`admin.enabled = false`"]);
    running.signal(Signal::TERM);
    running.wait().succeeded();
}

#[test]
fn an_address_that_is_taken_ends_the_job_before_it_begins() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let job = job();
    append(&job, 0..10);
    for field in ["listen", "capnp"] {
        let set = format!("admin.{field}={address}");
        let said = format!("failed to listen on {address} as `admin.{field}` says");
        job.command(["run", "job.toml", "--set", &set]).failed(2, &[&said]);
        assert!(job.output_lines("out").is_empty() && announced(&job).is_none());
    }
}

#[test]
fn readers_without_a_pause_do_not_fail_and_the_job_goes_on() {
    const READS: u64 = 3_000;
    let manifest = MANIFEST.replace(
        "kind = \"file\"\npath = \"visits.jsonl\"\nformat = \"jsonl\"\nkey = \"/user\"\nfollow = true",
        "kind = \"nexmark\"\nevents = 1000000000\nsplits = 2\nonly = [\"bid\"]\nkey = \"/auction\"",
    );
    let job = Job::new(
        &manifest
            .replace("retained = 1000", "retained = 2")
            .replace("kind = \"files\"\npath = \"out\"\nformat = \"jsonl\"", "kind = \"blackhole\""),
    );
    let mut running = job.start();
    let told = serving(&job, &mut running);
    let sums: Vec<u64> = std::thread::scope(|scope| {
        let readers = (0..2).map(|reader| {
            scope.spawn(move || {
                let mut http = Http::connect(told.http);
                let (mut last, mut found) = (0, 0);
                for read in 0..READS {
                    let answer = http.get(&format!("/tables/count.counts/{}", 1000 + (read * 7 + reader) % 500));
                    assert!(matches!(answer.status, 200 | 404), "{answer:?}");
                    let answer = answer.json();
                    let epoch = answer["epoch"].as_u64().unwrap();
                    assert!(epoch >= last, "back in time");
                    last = epoch;
                    found += u64::from(answer["value"].is_u64());
                }
                let status = http.get("/status").ok();
                assert!(status["records_in"].as_u64().unwrap() > 0);
                found
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert!(sums.iter().all(|&found| found > 0), "{sums:?}");
    assert!(running.is_running());
    running.signal(Signal::TERM);
    running.wait().succeeded();
}
