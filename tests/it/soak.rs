//! What has to hold however long it goes on: in the suite for a moment, by `cargo xtask soak` for as long as one wants.
//!
//! `WASMILL_SOAK` says how many times as much is done; every result is held against a plain computation, whatever its size.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::asking::{Http, announced};
use crate::harness::{Dice, Job, Running, TIME_LIMIT, seed, soak_times, wasmill};
use crate::plain::{json_lines, read_json};
use crate::tables::{
    ACCOUNTS, OPENING, SMALLEST_LIMITS, balances, bouncing, bytes, check_both_ways, committed_balances, endless, head,
    integers, operator, sink, source, transfers,
};

/// How long a life of a job lasts at most before it is killed.
const LIFE: Duration = Duration::from_millis(400);

/// All balances as of an epoch of a running job. `None` when the epoch is not retained any more, or the job has ended.
fn balances_as_of(http: &mut Http, epoch: u64) -> Option<Vec<i64>> {
    let path = format!("/tables/transfer.balances?limit=1000&consistency=as-of:{epoch}");
    let answer = http.get_while_running(&path).filter(|answer| answer.status != 410)?;
    let balance = |entry: &Value| i64::from_le_bytes(bytes(&entry["value"]).try_into().expect("64 bits"));
    Some(answer.ok()["entries"].as_array().expect("entries").iter().map(balance).collect())
}

/// Kills a job of transfers at random moments until it has come to its end. Whatever is committed meanwhile is given to `check`: asked of the running job as of every epoch that is
/// retained, and read from the disk after each kill.
fn watch_and_kill(job: &Job, check: impl Fn(&[i64])) {
    let mut dice = Dice(seed());
    let (mut kills, mut looked_at, mut newest) = (0, 0, 0);
    loop {
        let mut life = job.start();
        let end = Instant::now() + LIFE.mul_f64(0.05 + dice.roll(1_000) as f64 / 1_000.0);
        while life.is_running() && Instant::now() < end {
            looked_at += look(job, &mut newest, end, &check);
            std::thread::sleep(Duration::from_millis(1));
        }
        if !life.is_running() {
            life.wait().succeeded();
            break;
        }
        life.kill();
        kills += 1;
        check(&committed_balances(job).into_values().collect::<Vec<_>>());
    }
    println!("{kills} kills, {looked_at} looks at {newest} epochs");
    assert!(kills > 0 && looked_at > 0, "{kills} kills and {looked_at} looks");
    check(&committed_balances(job).into_values().collect::<Vec<_>>());
}

/// Looks at every epoch that the running job retains, as long as it runs and until `end`. Returns how many could be looked at.
fn look(job: &Job, newest: &mut u64, end: Instant, check: impl Fn(&[i64])) -> u64 {
    // What is announced may be of the life before.
    let Some(mut http) = announced(job).and_then(|told| Http::try_connect(told.http)) else { return 0 };
    let Some(status) = http.get_while_running("/status") else { return 0 };
    let readable = &status.ok()["readable"];
    let epochs = readable["oldest"].as_u64().unwrap()..=readable["newest"].as_u64().unwrap();
    assert!(*epochs.end() >= *newest, "what was committed stays so: {epochs:?} after {newest}");
    *newest = *epochs.end();
    let found = epochs.take_while(|_| Instant::now() < end).filter_map(|epoch| balances_as_of(&mut http, epoch));
    found.inspect(|balances| check(balances)).count() as u64
}

/// As many transfers as the soak wants.
fn many_transfers(opening: i64, fields: &str, records: u64) -> (Job, Vec<Value>) {
    let (job, events) = transfers(records * soak_times(), opening, 500, fields);
    let manifest = std::fs::read_to_string(job.path("job.toml")).unwrap();
    job.write_manifest(&manifest.replace("[checkpoint]\n", "[checkpoint]\nretained = 12\n"));
    (job.time_limit(TIME_LIMIT * soak_times() as u32), events)
}

#[test]
fn the_total_is_the_same_as_of_every_epoch_while_money_moves_by_updates() {
    let (job, events) = many_transfers(OPENING, "config = { overdraft = true }", 60_000);
    watch_and_kill(&job, |balances| {
        let total: i64 = balances.iter().sum();
        // A transfer that was only half there would be seen, since an opening is no round sum.
        assert!(total % OPENING == 0 && total <= ACCOUNTS * OPENING, "there are {total} cents");
    });
    assert_eq!(integers(&job, "transfer"), balances(&events, &[]));
}

#[test]
fn the_total_is_the_same_as_of_every_epoch_and_nobody_owes_while_money_moves_by_transactions() {
    let fields = "config = { overdraft = false }\nisolation = \"serializable\"\nparallelism = 3";
    let (job, events) = many_transfers(503, fields, 15_000);
    watch_and_kill(&job, |balances| {
        let total: i64 = balances.iter().sum();
        assert!(total % 503 == 0 && total <= ACCOUNTS * 503, "there are {total} cents");
        assert!(balances.iter().all(|&cents| cents >= 0), "{balances:?}");
    });
    let refused = read_json(&job.output_lines("refused"));
    assert!(!refused.is_empty(), "nobody was ever short of money");
    assert_eq!(integers(&job, "transfer"), balances(&events, &refused));
}

#[test]
fn lookups_both_ways_under_full_load_never_lock_up() {
    let ended = check_both_ways(3_000 * soak_times(), "live", SMALLEST_LIMITS);
    let (elapsed, epochs) = (ended.summary.as_ref().unwrap()["elapsed_s"].as_f64().unwrap(), ended.figure("epochs"));
    println!("{elapsed} s, {epochs} epochs");
    check_sealed_on_time(Duration::from_secs_f64(elapsed), epochs, 30);
}

/// An epoch is due every `interval_ms`; a disk that is slow to sync may let it come later, never a cycle.
fn check_sealed_on_time(elapsed: Duration, epochs: u64, interval_ms: u64) {
    let due = elapsed.as_millis() as u64 / interval_ms;
    assert!(epochs * 5 >= due, "{epochs} epochs in {elapsed:?}, where {due} were due");
}

/// Lets a job that never ends go on for as long as the soak wants, stops it, and looks at how many epochs it has sealed.
fn check_goes_on(job: &Job, interval_ms: u64) {
    let (started, last) = (Instant::now(), Duration::from_secs(1) * soak_times() as u32);
    let mut running: Running = job.start();
    while started.elapsed() < last {
        assert!(running.is_running(), "a job that never ends has ended: {}", running.wait().stderr);
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(Signal::TERM);
    let ended = running.wait().succeeded();
    assert_eq!(ended.summary.as_ref().unwrap()["ended"], "stopped");
    let epochs = ended.figure("epochs");
    println!("{epochs} epochs in {last:?}, {}", ended.summary.as_ref().unwrap()["seal_pause_ms"]);
    check_sealed_on_time(last, epochs, interval_ms);
}

#[test]
fn epochs_of_a_loop_that_never_ends_are_sealed_on_time() {
    let (job, _) = endless();
    check_goes_on(&job.time_limit(TIME_LIMIT * soak_times() as u32), 30);
}

#[test]
fn epochs_of_sends_that_never_end_are_sealed_on_time() {
    let ball =
        |id: u64| json!({ "id": id, "k": format!("k{}", id % 90), "n": i64::MAX, "to": format!("t{}", id % 70) });
    let balls: Vec<Value> = (0..2_000).map(ball).collect();
    let job = Job::new(&bouncing("30ms")).input("balls.jsonl", json_lines(&balls));
    check_goes_on(&job.time_limit(TIME_LIMIT * soak_times() as u32), 30);
}

/// Which keys occur how often.
#[derive(Clone, Copy)]
enum Skew {
    /// By Zipf's law with the exponent 0.99, in its continuous form.
    Zipf,
    /// Every other record is of one key.
    OneHotKey,
}

impl Skew {
    fn draw(self, keys: u64, dice: &mut Dice) -> u64 {
        match self {
            Self::Zipf => {
                let (share, rest) = (dice.roll(1 << 53) as f64 / (1u64 << 53) as f64, 1.0 - 0.99);
                let rank = (((keys as f64).powf(rest) - 1.0) * share + 1.0).powf(1.0 / rest);
                (rank as u64 - 1).min(keys - 1)
            }
            Self::OneHotKey if dice.roll(2) == 0 => 0,
            Self::OneHotKey => dice.roll(keys),
        }
    }
}

/// Records over `keys` keys, each of which adds to its own key, and to another key of another operator's table, which it looks up. Each key comes once before `records` more are drawn.
fn check_skewed(skew: Skew, keys: u64, records: u64) {
    let manifest = [
        head(2, "1s", ""),
        source("requests"),
        operator("keeper", "", "keeper", "", ""),
        operator("user", "\"requests\"", "keeper", "mode = \"meet\"", ""),
        sink("found", "\"user\"", "").replace("\"files\"\npath = \"found\"", "\"blackhole\""),
    ];
    let job = Job::new(&manifest.concat()).time_limit(TIME_LIMIT * soak_times() as u32);
    let (mut dice, mut sums) = (Dice(seed()), [vec![0; keys as usize], vec![0; keys as usize]]);
    let mut input = BufWriter::new(File::create(job.path("requests.jsonl")).unwrap());
    for record in 0..keys + records {
        let (key, to) = match record.checked_sub(keys) {
            None => (record, keys - 1 - record),
            Some(_) => (skew.draw(keys, &mut dice), skew.draw(keys, &mut dice)),
        };
        let number = 1 + dice.roll(9) as i64;
        writeln!(input, "{{\"k\":\"k{key}\",\"to\":\"k{to}\",\"n\":{number}}}").unwrap();
        sums[0][key as usize] += number;
        sums[1][to as usize] += number;
    }
    input.into_inner().unwrap();
    let ended = job.run().succeeded();
    let figure = |name: &str| &ended.summary.as_ref().unwrap()[name];
    println!(
        "{} s, {} bytes at most, pauses {}",
        figure("elapsed_s"),
        figure("peak_memory_bytes"),
        figure("seal_pause_ms")
    );
    for (operator, sums) in ["user", "keeper"].into_iter().zip(sums) {
        assert_eq!(scan(&job, operator, keys as usize), sums, "{operator}");
    }
}

/// The integers in a table of the keys `k0`, `k1` and so on.
fn scan(job: &Job, operator: &str, keys: usize) -> Vec<i64> {
    let mut command: Command = wasmill(&job.path(""));
    command.args(["state", "scan", "job.toml", operator, "--json", "--limit", "100000000"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut found = vec![0; keys];
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let entry: Value = serde_json::from_str(&line.unwrap()).expect("an entry is JSON");
        let key: usize = entry["key"].as_str().and_then(|key| key.strip_prefix('k')?.parse().ok()).expect("a key");
        found[key] = i64::from_le_bytes(bytes(&entry["value"]).try_into().expect("64 bits"));
    }
    assert!(child.wait().unwrap().success());
    found
}

/// Some keys in the suite, and as many as do not fit the memory of the job in a soak.
fn check_skew(skew: Skew) {
    check_skewed(skew, 1_000, 20_000 * soak_times());
    if soak_times() > 1 {
        check_skewed(skew, 100_000 * soak_times().min(100), 20_000 * soak_times());
    }
}

#[test]
fn keys_by_zipfs_law_come_to_what_a_plain_loop_says() {
    check_skew(Skew::Zipf);
}

#[test]
fn one_hot_key_among_others_comes_to_what_a_plain_loop_says() {
    check_skew(Skew::OneHotKey);
}
