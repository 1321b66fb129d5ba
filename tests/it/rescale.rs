//! A job that is moved to other hosts between two runs: nothing is lost or doubled, whichever hosts it had, and whenever the move is interrupted. Results are those of a plain computation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Dice, Ended, Job, Running, free_addresses, output_lines, seed, wasmill};
use crate::plain::{counts_in_state, json_lines, numbers_by_key, read_json, running_counts, sorted, tally, text};
use crate::tables::{ACCOUNTS, OPENING, balances, bytes, endless, head, sink};
use crate::versioned::{Book, MANIFEST, Market, join, market, read_answers};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// A job that has other hosts again and again; none of `hosts` for one without `[cluster]`.
struct Moving {
    job: Job,
    manifest: String,
    hosts: Vec<String>,
}

impl Moving {
    fn new(manifest: &str) -> Self {
        Self { job: Job::new(manifest), manifest: manifest.to_owned(), hosts: Vec::new() }
    }

    /// Has the manifest name these hosts, the first of which `leads` unless it is another's turn.
    fn name_hosts(&mut self, hosts: &[&str], leader: &str) {
        let addresses = free_addresses(hosts.len());
        let mut manifest = self.manifest.clone();
        if !hosts.is_empty() {
            manifest += &format!("\n[cluster]\nleader = \"{leader}\"\n");
        }
        for (host, address) in hosts.iter().zip(addresses) {
            manifest += &format!("[cluster.hosts.{host}]\naddress = \"{address}\"\n");
        }
        self.job.write_manifest(&manifest);
        self.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    }

    fn rescale(&self) -> Ended {
        self.job.command(["rescale", "job.toml"])
    }

    fn move_to(&mut self, hosts: &[&str], leader: &str) -> Ended {
        self.name_hosts(hosts, leader);
        self.rescale().succeeded()
    }

    fn start(&self) -> Vec<Running> {
        match self.hosts.as_slice() {
            [] => vec![self.job.start()],
            hosts => hosts.iter().map(|host| self.job.start_host(host)).collect(),
        }
    }

    /// Runs the job to its end.
    fn finish(&self) -> Vec<Ended> {
        self.start().into_iter().map(|running| running.wait().succeeded()).collect()
    }

    /// Runs the job until so many more epochs are sealed, and stops it.
    fn run_partly(&self, epochs: u64) -> Vec<Ended> {
        let (before, start) = (self.newest_epoch(), Instant::now());
        let mut running = self.start();
        while self.newest_epoch() < before + epochs && running.iter_mut().all(Running::is_running) {
            assert!(start.elapsed() < WAIT_MAX, "at epoch {}", self.newest_epoch());
            std::thread::sleep(Duration::from_millis(1));
        }
        if running[0].is_running() {
            running[0].signal(Signal::TERM);
        }
        running.into_iter().map(|running| running.wait().succeeded()).collect()
    }

    fn state_directory(&self) -> PathBuf {
        self.job.path("state").join(self.hosts.first().map_or("", String::as_str))
    }

    fn newest_epoch(&self) -> u64 {
        let entries = self.state_directory().join("log").read_dir().into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().file_stem()?.to_str()?.parse().ok()).max().unwrap_or(0)
    }

    /// The committed state of a table on all hosts. No two have the same key.
    fn state(&self, table: &str) -> BTreeMap<String, Value> {
        let mut all = BTreeMap::new();
        let hosts = if self.hosts.is_empty() { vec![None] } else { self.hosts.iter().map(Some).collect() };
        for host in hosts {
            let scan = ["state", "scan", "job.toml", table, "--json", "--limit", "10000000"];
            let host = host.iter().flat_map(|host| ["--host", host]);
            let scanned = self.job.command(scan.into_iter().chain(host)).succeeded();
            for line in scanned.stdout.lines() {
                let mut entry: Value = serde_json::from_str(line).unwrap();
                let value = entry["value"].take();
                assert_eq!(all.insert(entry["key"].as_str().unwrap().to_owned(), value), None, "{line} on two hosts");
            }
        }
        all
    }

    fn integers(&self, table: &str) -> BTreeMap<String, i64> {
        let read = |value: Value| i64::from_le_bytes(bytes(&value).try_into().expect("64 bits"));
        self.state(table).into_iter().map(|(key, value)| (key, read(value))).collect()
    }

    fn counts(&self, table: &str) -> BTreeMap<String, u64> {
        self.state(table).into_iter().map(|(key, value)| (key, value.as_u64().expect("a count"))).collect()
    }

    /// What was written by all hosts that there ever were.
    fn output_lines(&self, folder: &str) -> Vec<String> {
        let folder = self.job.path(folder);
        let inner = folder.read_dir().into_iter().flatten().flatten().map(|item| item.path());
        let folders = inner.filter(|path| path.is_dir()).chain([folder.clone()]);
        folders.flat_map(|folder| output_lines(&folder)).collect()
    }
}

#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_MAX, "it has not come to that in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A column of what is told of the hosts, which are the only ones with numbers.
fn told_column(told: &str, column: usize) -> Vec<u64> {
    let rows = told.lines().filter(|line| line.starts_with('│'));
    let numbers = rows.map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u64>>());
    numbers.filter_map(|numbers| numbers.get(column).copied()).collect()
}

const FILES: u64 = 12;

/// Transfers with updates of other keys, counts with dead letters, and generated bids straight to a sink.
fn everything(bids: u64) -> String {
    [
        head(1, "20ms", "partitions = 24\nmemory = \"64MiB\""),
        "[sources.events]\nkind = \"file\"\npath = \"events\"\nformat = \"jsonl\"\nkey = \"/account\"\n".to_owned(),
        "[sources.visits]\nkind = \"file\"\npath = \"visits\"\nformat = \"jsonl\"\nkey = \"/user\"\n".to_owned(),
        format!("[sources.bids]\nkind = \"nexmark\"\nevents = {bids}\nsplits = 5\nseed = 3\n"),
        "[operators.transfer]\ncomponent = \"{guest:transfer}\"\ninputs = [\"events\"]\nconfig = { overdraft = true }\n\
         uses.accounts = { table = \"transfer.balances\", read = true, update = true }\n"
            .to_owned(),
        "[operators.count]\ncomponent = \"{guest:misbehaving}\"\ninputs = [\"visits\"]\nretries = 0\n\
         config = { work = \"count\", mode = \"reject\" }\non-error = \"dead-letter\"\ndead-letter = \"dead\"\n"
            .to_owned(),
        sink("counted", "\"count\"", "format = \"jsonl\""),
        sink("dead", "", "").replace("inputs = []\n", ""),
        sink("bid", "\"bids\"", ""),
        "[sinks.refused]\nkind = \"blackhole\"\ninputs = [\"transfer\"]\n".to_owned(),
    ]
    .concat()
}

fn transfers(count: u64, dice: &mut Dice) -> Vec<Value> {
    let accounts = ACCOUNTS as u64;
    let event = |_| {
        let (payer, step) = (dice.roll(accounts), 1 + dice.roll(accounts - 1));
        let payee = (payer + step) % accounts;
        json!({ "account": format!("a{payer}"), "pays": format!("a{payee}"), "cents": 1 + dice.roll(500) })
    };
    (0..count).map(event).collect()
}

fn write_files(job: &Job, folder: &str, stage: usize, records: &[Value]) {
    for file in 0..FILES {
        let lines: Vec<Value> = records.iter().skip(file as usize).step_by(FILES as usize).cloned().collect();
        job.write(&format!("{folder}/{stage}-{file:02}.jsonl"), json_lines(&lines));
    }
}

#[test]
fn a_job_grows_from_one_host_to_three_and_shrinks_back_with_equal_results() {
    const BIDS: u64 = 60_000;
    let mut moving = Moving::new(&everything(BIDS));
    moving.name_hosts(&[], "");
    let mut dice = Dice(5);
    let mut events: Vec<Value> =
        (0..ACCOUNTS).map(|account| json!({ "account": format!("a{account}"), "opens": OPENING })).collect();
    write_files(&moving.job, "events", 0, &events);
    let mut visits = Vec::new();
    // Hosts come, go, come back and take the lead from others.
    let layouts: [(&[&str], &str); 6] =
        [(&[], ""), (&["a", "b", "c"], "a"), (&["b", "c"], "c"), (&["a", "b", "c"], "b"), (&["b"], "b"), (&[], "")];
    for (stage, (hosts, leader)) in layouts.iter().enumerate() {
        if stage > 0 {
            let told = moving.move_to(hosts, leader);
            assert!(told.stdout.contains("moved from"), "{}", told.stdout);
        }
        let more = transfers(8_000, &mut dice);
        write_files(&moving.job, "events", stage + 1, &more);
        events.extend(more);
        let visit = |n: u64| {
            let poison = if n.is_multiple_of(97) { " poison" } else { "" };
            json!({ "user": format!("u{}", dice.roll(300)), "page": format!("p{n}{poison}") })
        };
        let more: Vec<Value> = (0..8_000).map(visit).collect();
        write_files(&moving.job, "visits", stage + 1, &more);
        visits.extend(more);
        moving.run_partly(2);
    }
    moving.finish();

    assert_eq!(moving.integers("transfer"), balances(&events, &[]));
    let (poisoned, good): (Vec<Value>, Vec<Value>) =
        visits.into_iter().partition(|visit| text(visit, "page").contains("poison"));
    let expected = tally(good.iter().map(|visit| text(visit, "user")));
    assert_eq!(moving.counts("count"), expected);
    let mut numbers = numbers_by_key(&moving.output_lines("counted"));
    numbers.values_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!(numbers, running_counts(&expected));
    assert_eq!(moving.output_lines("dead").len(), poisoned.len());

    let plain = Job::new(&everything(BIDS)).input("events/0.jsonl", "").input("visits/0.jsonl", "");
    plain.run().succeeded();
    assert_eq!(sorted(moving.output_lines("bid")), sorted(plain.output_lines("bid")));
    assert_eq!(moving.finish().iter().map(|ended| ended.figure("records_in")).sum::<u64>(), 0, "nothing is left to do");
    assert_eq!(counts_in_state(&moving.job, "count"), expected);
}

#[test]
fn transactions_move_with_their_leader() {
    let manifest = everything(10).replace("overdraft = true }", "overdraft = false }\nisolation = \"serializable\"");
    let manifest = manifest
        .replace("[sinks.refused]\nkind = \"blackhole\"", "[sinks.refused]\nkind = \"files\"\npath = \"refused\"");
    let mut moving = Moving::new(&manifest);
    let mut events: Vec<Value> =
        (0..ACCOUNTS).map(|account| json!({ "account": format!("a{account}"), "opens": 500 })).collect();
    write_files(&moving.job, "events", 0, &events);
    moving.job.write("visits/0.jsonl", "");
    let mut dice = Dice(6);
    let layouts: [(&[&str], &str); 4] = [(&["a", "b"], "a"), (&["a", "b"], "b"), (&["b", "c", "d"], "d"), (&[], "")];
    for (stage, (hosts, leader)) in layouts.iter().enumerate() {
        moving.name_hosts(hosts, leader);
        if stage > 0 {
            moving.rescale().succeeded();
        }
        let more = transfers(1_500, &mut dice);
        write_files(&moving.job, "events", stage + 1, &more);
        events.extend(more);
        moving.run_partly(2);
    }
    moving.finish();
    let refused = read_json(&moving.output_lines("refused"));
    assert!(!refused.is_empty(), "nobody was ever short of money");
    let left = moving.integers("transfer");
    assert_eq!(left, balances(&events, &refused));
    assert!(left.values().all(|&cents| cents >= 0), "{left:?}");
}

#[test]
fn what_goes_round_for_ever_moves_too() {
    let (job, records) = endless();
    let manifest = std::fs::read_to_string(job.path("job.toml")).unwrap();
    let mut moving = Moving { job, manifest, hosts: Vec::new() };
    moving.run_partly(4);
    let layouts: [(&[&str], &str); 3] = [(&["a", "b"], "a"), (&["b", "c"], "c"), (&[], "")];
    for (hosts, leader) in layouts {
        let told = moving.move_to(hosts, leader);
        let carried = told_column(&told.stdout, 4).iter().sum::<u64>();
        assert_eq!(carried, records.len() as u64 * 5 / 6, "{}", told.stdout);
        moving.run_partly(4);
    }
    assert_eq!(moving.output_lines("out").len(), records.len() / 6);
    moving.manifest = moving.manifest.replace("mode = \"loop\"", "mode = \"echo\"");
    moving.move_to(&["a", "b", "c"], "b");
    moving.finish();
    let ids = |records: &[Value]| sorted(records.iter().map(|record| record["id"].as_u64().unwrap()).collect());
    assert_eq!(ids(&read_json(&moving.output_lines("out"))), ids(&records));
}

#[test]
fn an_order_that_waits_finds_the_price_of_its_time_on_whatever_host() {
    let Market { prices, orders, job } = market(MANIFEST, 12, 60_000);
    let manifest = MANIFEST.replace("interval = \"50ms\"", "interval = \"20ms\"");
    let manifest = manifest.replace("workers = 2", "workers = 1");
    let mut moving = Moving { job, manifest, hosts: Vec::new() };
    moving.name_hosts(&["a", "b"], "a");
    moving.run_partly(3);
    let layouts: [(&[&str], &str); 3] = [(&["a", "b", "c"], "b"), (&["c"], "c"), (&[], "")];
    let mut carried = 0;
    for (hosts, leader) in layouts {
        let told = moving.move_to(hosts, leader);
        carried += told_column(&told.stdout, 4).iter().sum::<u64>();
        moving.run_partly(3);
    }
    assert!(carried > 0, "no order was waiting when the job was moved");
    moving.finish();
    let (mut expected, kept) = join(&orders, &Book::of(&prices));
    let mut found = read_answers(&moving.output_lines("answers"));
    for answers in expected.values_mut().chain(found.values_mut()) {
        answers.sort_unstable();
    }
    assert_eq!(found, expected);
    assert_eq!(moving.state("prices"), Book::of(&prices).newest());
    assert_eq!(moving.state("ask"), kept.newest());
}

/// A job of counts that was stopped midway on `hosts`, and all of its visits.
fn counting(hosts: &[&str]) -> (Moving, Vec<Value>) {
    let mut moving = Moving::new(
        &[
            head(1, "20ms", "partitions = 24\nmemory = \"64MiB\""),
            "[sources.visits]\nkind = \"file\"\npath = \"visits\"\nformat = \"jsonl\"\nkey = \"/user\"\n".to_owned(),
            "[operators.count]\ncomponent = \"{guest:misbehaving}\"\ninputs = [\"visits\"]\nconfig = { work = \"count\" }\n"
                .to_owned(),
            sink("counted", "\"count\"", "format = \"jsonl\""),
        ]
        .concat(),
    );
    moving.name_hosts(hosts, hosts.first().copied().unwrap_or_default());
    let mut dice = Dice(9);
    let visits: Vec<Value> = (0..20_000).map(|_| json!({ "user": format!("u{}", dice.roll(9_000)) })).collect();
    write_files(&moving.job, "visits", 0, &visits[..15_000]);
    moving.finish();
    write_files(&moving.job, "visits", 1, &visits[15_000..]);
    (moving, visits)
}

#[track_caller]
fn check_counted(moving: &Moving, visits: &[Value]) {
    let expected = tally(visits.iter().map(|visit| text(visit, "user")));
    assert_eq!(moving.counts("count"), expected);
    let mut numbers = numbers_by_key(&moving.output_lines("counted"));
    numbers.values_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!(numbers, running_counts(&expected));
}

#[test]
fn a_move_that_is_killed_again_and_again_is_completed_when_it_is_run_again() {
    let (mut moving, visits) = counting(&[]);
    let mut dice = Dice(seed());
    let layouts: [(&[&str], &str); 4] = [(&["a", "b", "c"], "a"), (&["b", "c"], "c"), (&["c"], "c"), (&[], "")];
    for (hosts, leader) in layouts {
        moving.name_hosts(hosts, leader);
        // From how long a whole one takes, which is not tried before: it would have moved all.
        for _ in 0..6 {
            let mut command = wasmill(&moving.job.path(""));
            command
                .args(["rescale", "job.toml"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            let mut child = command.spawn().unwrap();
            std::thread::sleep(Duration::from_millis(dice.roll(700)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        moving.rescale().succeeded();
        assert!(moving.rescale().succeeded().stdout.contains("nothing to move"));
    }
    moving.finish();
    check_counted(&moving, &visits);
}

#[test]
fn what_is_to_be_moved_is_told_and_nothing_is_changed() {
    let (mut moving, visits) = counting(&[]);
    let keys = tally(visits[..15_000].iter().map(|visit| text(visit, "user"))).len() as u64;
    moving.name_hosts(&["a", "b", "c"], "a");
    let told = moving.job.command(["rescale", "job.toml", "--dry-run"]).succeeded().stdout;
    assert_eq!(told_column(&told, 0), [8, 8, 8], "{told}");
    let sum = |column: usize| told_column(&told, column).iter().sum::<u64>();
    assert_eq!((sum(0), sum(1), sum(2), sum(3), sum(4)), (24, keys, keys, FILES, 0), "{told}");
    assert!(!moving.job.path("state/a").exists());
    moving.name_hosts(&[], "");
    moving.finish();
    check_counted(&moving, &visits);
}

#[test]
fn hosts_that_have_changed_are_not_started_without_a_move() {
    const COMMAND: &str = "`wasmill rescale`";
    let (mut moving, visits) = counting(&[]);
    moving.name_hosts(&["a", "b"], "a");
    moving.job.start_host("a").wait().failed(3, &[COMMAND, "holds state of this job"]);
    moving.rescale().succeeded();
    moving.name_hosts(&[], "");
    moving.job.run().failed(3, &[COMMAND]);
    moving.name_hosts(&["a", "b", "c"], "a");
    moving.job.start_host("a").wait().failed(3, &[COMMAND, "names the hosts `a`, `b`"]);
    // It has no state, waits for its leader, and leaves a directory in which nothing was ever committed.
    let stray = moving.job.start_host("c");
    wait_until(|| moving.job.path("state/c/job.json").exists());
    stray.kill();
    moving.name_hosts(&["a", "b"], "b");
    moving.job.start_host("b").wait().failed(3, &[COMMAND]);
    moving.move_to(&["a", "b", "c"], "c");
    moving.finish();
    check_counted(&moving, &visits);
}

#[test]
fn what_cannot_be_moved_as_it_is_is_refused_with_the_reason() {
    let (mut moving, visits) = counting(&["a", "b"]);
    let manifest = std::fs::read_to_string(moving.job.path("job.toml")).unwrap();
    // One of the hosts runs, and waits for the other.
    let running = moving.job.start_host("b");
    wait_until(|| moving.job.path("state/b/serving").exists());
    moving.name_hosts(&["a", "b", "c"], "a");
    moving.rescale().failed(3, &["the job is running in another process"]);
    running.kill();

    // A directory missing.
    let (b, away) = (moving.job.path("state/b"), moving.job.path("away"));
    std::fs::rename(&b, &away).unwrap();
    moving.rescale().failed(3, &["the state of the host `b` is not there"]);
    std::fs::rename(&away, &b).unwrap();
    let (a, away) = (moving.job.path("state/a"), moving.job.path("away"));
    std::fs::rename(&a, &away).unwrap();
    moving.rescale().failed(3, &["not the directory of the host that led them"]);
    std::fs::rename(&away, &a).unwrap();

    // Another job than it was.
    let named = std::fs::read_to_string(moving.job.path("job.toml")).unwrap();
    moving
        .job
        .write("job.toml", named.replace("sources.visits", "sources.calls").replace("[\"visits\"]", "[\"calls\"]"));
    moving
        .rescale()
        .failed(3, &["the source `visits`, whose positions the state holds, is gone; was it renamed to `calls`?"]);
    moving.job.write("job.toml", named.replace("partitions = 24", "partitions = 25"));
    moving.rescale().failed(3, &["the state has 24 partitions, but the manifest says 25"]);

    // An old directory that is put back.
    moving.job.write("job.toml", &named);
    moving.rescale().succeeded();
    let items = std::fs::read_dir(&b).unwrap().flatten().map(|item| item.path());
    let aside = items.into_iter().find(|path| path.to_string_lossy().contains("rescale.before-")).unwrap();
    let now = moving.job.path("now");
    std::fs::rename(&aside, moving.job.path("old")).unwrap();
    std::fs::rename(&b, &now).unwrap();
    std::fs::rename(moving.job.path("old"), &b).unwrap();
    moving.job.write("job.toml", &manifest);
    moving.job.start_host("b").wait().failed(3, &["`wasmill rescale` has moved it to the hosts `a`, `b`, `c`"]);
    std::fs::rename(&b, moving.job.path("old")).unwrap();
    std::fs::rename(&now, &b).unwrap();
    moving.job.write("job.toml", &named);
    moving.finish();
    check_counted(&moving, &visits);
}

#[test]
fn a_job_that_was_killed_with_output_under_way_is_first_to_be_stopped_cleanly() {
    let (mut moving, visits) = counting(&[]);
    let manifest = moving.manifest.clone();
    // A file that goes on over epochs is published when it is full, or the job is stopped.
    moving.manifest = manifest.replace("path = \"counted\"", "path = \"counted\"\nroll = \"1h\"");
    moving.manifest = moving.manifest.replace("path = \"visits\"", "path = \"visits\"\nfollow = true");
    moving.name_hosts(&[], "");
    let before = moving.newest_epoch();
    let running = moving.start();
    wait_until(|| moving.newest_epoch() > before);
    let late = json!({ "user": "late" });
    moving.job.write("visits/2.jsonl", json_lines(std::slice::from_ref(&late)));
    // The entry of an epoch behind another shows that this one is committed.
    wait_until(|| moving.newest_epoch() > before + 1);
    running.into_iter().for_each(|running| _ = running.kill());
    moving.name_hosts(&["a", "b"], "a");
    moving.rescale().failed(3, &["was not stopped cleanly", "stop it (SIGTERM)"]);

    moving.name_hosts(&[], "");
    let serving = moving.job.path("state/serving");
    std::fs::remove_file(&serving).unwrap();
    let running = moving.start();
    wait_until(|| serving.exists());
    running[0].signal(Signal::TERM);
    running.into_iter().for_each(|running| _ = running.wait().succeeded());
    moving.manifest = manifest;
    moving.move_to(&["a", "b"], "a");
    moving.finish();
    check_counted(&moving, &[visits, vec![late]].concat());
}

#[test]
fn hosts_that_are_killed_and_moved_again_and_again_lose_and_double_nothing() {
    let (mut moving, mut visits) = counting(&["a", "b"]);
    let mut dice = Dice(seed());
    let layouts: [(&[&str], &str); 5] =
        [(&["a", "b"], "a"), (&["b", "c", "d"], "d"), (&["a", "c"], "c"), (&[], ""), (&["a", "b"], "b")];
    let mut refused = 0;
    for (stage, layout) in layouts.windows(2).enumerate() {
        let [(hosts, leader), (next, next_leader)] = [layout[0], layout[1]];
        moving.name_hosts(hosts, leader);
        let more: Vec<Value> = (0..6_000).map(|_| json!({ "user": format!("u{}", dice.roll(900)) })).collect();
        write_files(&moving.job, "visits", stage + 2, &more);
        visits.extend(more);
        let (before, mut running) = (moving.newest_epoch(), moving.start());
        wait_until(|| moving.newest_epoch() > before || !running.iter_mut().all(Running::is_running));
        std::thread::sleep(Duration::from_millis(dice.roll(60)));
        running.into_iter().for_each(|running| _ = running.kill());
        moving.name_hosts(next, next_leader);
        let moved = moving.rescale();
        if moved.code() != Some(0) {
            moved.failed(3, &["was not stopped cleanly"]);
            refused += 1;
            moving.name_hosts(hosts, leader);
            moving.run_partly(1);
            moving.move_to(next, next_leader);
        }
    }
    println!("{refused} moves were refused at first");
    moving.finish();
    check_counted(&moving, &visits);
}
