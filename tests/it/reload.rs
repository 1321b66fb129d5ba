//! Reloads: a running job goes on with another version of a component, also after a crash, and loses or doubles nothing by it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::asking::{Http, announced, serving};
use crate::harness::{Dice, Ended, Job, Running, TIME_LIMIT, free_addresses, guest, seed, soak_times};

const MARK: &[u8] = b"RELEASE=";
const SCHEMA: &[u8] = b"SCHEMA=";
pub const KEYS: u64 = 200;
const CONTENT_TYPE: &str = "content-type: application/wasm\r\n";

/// The component `tallies` as release number `release`.
pub fn component(release: u64) -> Vec<u8> {
    component_of(release, "1+")
}

/// The same with a schema version, and the ways to it.
fn component_of(release: u64, schema: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(guest("tallies")).unwrap();
    for (mark, text) in [(MARK, format!("{release:08}")), (SCHEMA, schema.to_owned())] {
        let found: Vec<usize> = (0..bytes.len() - mark.len()).filter(|&at| bytes[at..].starts_with(mark)).collect();
        assert_eq!(found.len(), 1, "the component has one place for it");
        bytes[found[0] + mark.len()..][..text.len()].copy_from_slice(text.as_bytes());
    }
    bytes
}

/// A job that follows its input, with release 0 of the component in `work.wasm`.
pub fn job(config: &str) -> Job {
    let manifest = format!(
        r#"
        [job]
        name = "reloaded"
        workers = 2
        [checkpoint]
        interval = "50ms"
        [sources.visits]
        kind = "file"
        path = "visits.txt"
        format = "lines"
        key = "."
        follow = true
        [operators.work]
        component = "work.wasm"
        inputs = ["visits"]
        config = {{ {config} }}
        [sinks.out]
        kind = "files"
        path = "out"
        inputs = ["work"]
        format = "jsonl"
        "#
    );
    let job = Job::new(&manifest).input("visits.txt", "");
    job.write("work.wasm", component(0));
    job
}

fn reload(job: &Job, release: u64) -> Ended {
    reload_as(job, release, "1+")
}

pub fn reload_as(job: &Job, release: u64, schema: &str) -> Ended {
    job.write("new.wasm", component_of(release, schema));
    job.command(["reload", "job.toml", "work", "new.wasm", "--json"])
}

/// What a running job says of its component.
pub fn status(job: &Job, running: &mut Running) -> Value {
    Http::connect(serving(job, running).http).get("/status").ok()["operators"]["work"]["component"].take()
}

pub fn visits(job: &Job, keys: impl IntoIterator<Item = u64>) {
    visits_to(&job.path("visits.txt"), keys);
}

pub fn visits_to(path: &Path, keys: impl IntoIterator<Item = u64>) {
    let mut file = File::options().append(true).open(path).unwrap();
    file.write_all(keys.into_iter().map(|key| format!("k{key}\n")).collect::<String>().as_bytes()).unwrap();
}

/// Count and release of each record of each key, in the order of their counts.
pub fn output(job: &Job) -> BTreeMap<String, Vec<(u64, u64)>> {
    counts(job.output_lines("out"))
}

pub fn counts(lines: Vec<String>) -> BTreeMap<String, Vec<(u64, u64)>> {
    let mut by_key = BTreeMap::<String, Vec<(u64, u64)>>::new();
    for line in lines {
        let line: Value = serde_json::from_str(&line).unwrap();
        let number = |field: &str| line["value"][field].as_u64().unwrap();
        by_key.entry(line["key"].as_str().unwrap().to_owned()).or_default().push((number("n"), number("by")));
    }
    by_key.values_mut().for_each(|records| records.sort());
    by_key
}

pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the job to the end of its input, wherever that is now.
pub fn finish(job: &Job) {
    job.command(["run", "job.toml", "--set", "sources.visits.follow=false"]).succeeded();
}

#[test]
fn a_new_version_takes_over_at_a_seal_and_runs_after_a_restart_though_the_manifest_names_the_old_one() {
    let job = job("");
    let mut running = job.start();
    serving(&job, &mut running);
    visits(&job, [1, 2, 1]);
    wait_for("the first records", || job.output_lines("out").len() == 3);
    let told: Value = serde_json::from_str(&reload(&job, 7).succeeded().stdout).unwrap();
    assert_eq!((&told["from"]["version"], &told["to"]["version"]), (&"1.0.0".into(), &"1.0.7".into()));
    assert_eq!(status(&job, &mut running)["version"], "1.0.7");
    running.kill();

    let mut running = job.start();
    assert_eq!(status(&job, &mut running), told["to"]);
    visits(&job, [1]);
    wait_for("the last record", || job.output_lines("out").len() == 4);
    running.kill();
    let listed = job.command(["state", "components", "job.toml", "--json"]).succeeded();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(
        (&listed["components"][0]["version"], &listed["components"][0]["reloaded"]),
        (&"1.0.7".into(), &true.into())
    );
    assert_eq!(output(&job)["k1"], [(1, 0), (2, 0), (3, 7)]);

    // Another file where the manifest points to counts as a reload at the start.
    job.write("work.wasm", component(9));
    visits(&job, [1]);
    finish(&job);
    assert_eq!(output(&job)["k1"], [(1, 0), (2, 0), (3, 7), (4, 9)]);
    let mut running = job.start();
    assert_eq!(status(&job, &mut running)["version"], "1.0.9");
    running.kill();
    assert_eq!(job.path("state/components").read_dir().unwrap().count(), 0, "nothing is kept that no epoch names");
}

#[test]
fn a_job_moves_to_other_hosts_once_its_manifest_names_the_component_that_was_reloaded() {
    let job = job("");
    let mut running = job.start();
    serving(&job, &mut running);
    visits(&job, [1, 2, 1]);
    wait_for("the first records", || job.output_lines("out").len() == 3);
    reload(&job, 7).succeeded();
    running.signal(Signal::TERM);
    running.wait().succeeded();
    let mut manifest = std::fs::read_to_string(job.path("job.toml")).unwrap();
    for (host, address) in ["a", "b"].into_iter().zip(free_addresses(2)) {
        manifest += &format!("\n[cluster.hosts.{host}]\naddress = \"{address}\"\n");
    }
    job.write_manifest(&manifest);
    let rescale = || job.command(["rescale", "job.toml"]);
    rescale()
        .failed(3, &["`work` runs a component that was reloaded (version 1.0.7", "put that one's file in its place"]);
    job.write("work.wasm", component(7));
    rescale().succeeded();
    assert!(!job.path("state/components").exists() && !job.path("state/job.json").exists());
    visits(&job, [1, 2]);
    let job = job.arguments(["--set", "sources.visits.follow=false"]);
    let running = ["a", "b"].map(|host| job.start_host(host));
    running.into_iter().for_each(|host| _ = host.wait().succeeded());
    let lines = ["out", "out/a", "out/b"].into_iter().flat_map(|folder| job.output_lines(folder)).collect();
    let expected = [("k1".to_owned(), vec![(1, 0), (2, 0), (3, 7)]), ("k2".to_owned(), vec![(1, 0), (2, 7)])];
    assert_eq!(counts(lines), expected.into());
}

#[test]
fn a_refused_reload_says_why_and_changes_nothing() {
    let job = job("refused_from = 5");
    let mut running = job.start();
    let serving = serving(&job, &mut running);
    let before = status(&job, &mut running);
    reload(&job, 5).failed(2, &["failed to reload `work`", "release 5 wants another config"]);
    job.write("new.wasm", "no component");
    job.command(["reload", "job.toml", "work", "new.wasm"]).failed(2, &["is not a valid component"]);
    let new = guest("prices").display().to_string();
    job.command(["reload", "job.toml", "work", &new])
        .failed(2, &["its tables are `values`, those of the version that runs `tallies`"]);
    job.command(["reload", "job.toml", "play", &new]).failed(2, &["no operator `play`"]);
    job.command(["reload", "job.toml", "work", "gone.wasm"]).failed(2, &["cannot read `gone.wasm`"]);
    let ask = |method, path, headers: &str| {
        Http::connect(serving.http).ask(method, path, &format!("{headers}content-length: 0\r\n"))
    };
    assert_eq!(ask("POST", "/operators/work/reload", "").status, 415);
    assert_eq!(
        ask("POST", "/operators/work/reload", &format!("{CONTENT_TYPE}origin: http://localhost\r\n")).status,
        415
    );
    assert_eq!(ask("POST", "/operators/work/reload", "host: evil.example\r\n").status, 421);
    assert_eq!(ask("POST", "/status", CONTENT_TYPE).status, 405);
    assert_eq!(status(&job, &mut running), before);
    assert!(!job.path("state/components").exists(), "nothing was kept");
    visits(&job, [1]);
    wait_for("the record", || job.output_lines("out").len() == 1);
    running.kill();
    assert_eq!(output(&job)["k1"], [(1, 0)]);
    reload(&job, 1).failed(1, &["does it run at all?"]);
}

#[test]
fn a_component_that_is_not_the_pinned_one_is_not_reloaded() {
    let job = job("");
    let shown = job.command(["inspect", "work.wasm", "--json"]).succeeded();
    let digest = serde_json::from_str::<Value>(&shown.stdout).unwrap()["sha256"].as_str().unwrap().to_owned();
    let job = job.arguments(["--set".to_owned(), format!("operators.work.sha256='{digest}'")]);
    let mut running = job.start();
    serving(&job, &mut running);
    reload(&job, 4).failed(2, &["failed to reload `work`", "and the manifest pins", &digest]);
    assert_eq!(status(&job, &mut running)["version"], "1.0.0");
    running.kill();
}

#[test]
fn a_kept_component_that_is_damaged_or_gone_is_named() {
    let job = job("");
    let mut running = job.start();
    serving(&job, &mut running);
    let told: Value = serde_json::from_str(&reload(&job, 3).succeeded().stdout).unwrap();
    running.kill();
    let name = format!("state/components/{}.wasm", told["to"]["sha256"].as_str().unwrap());
    let mut bytes = std::fs::read(job.path(&name)).unwrap();
    bytes[100] ^= 1;
    job.write(&name, &bytes);
    job.run().failed(3, &["run operator `work` as of the last committed epoch", "is damaged"]);
    std::fs::remove_file(job.path(&name)).unwrap();
    job.run().failed(3, &[&name, "is missing"]);
    job.write(&name, component(3));
    let mut running = job.start();
    assert_eq!(status(&job, &mut running)["version"], "1.0.3");
    running.kill();
}

#[test]
fn state_follows_through_a_chain_of_versions_and_back_where_there_is_a_way() {
    let job = job("");
    let mut running = job.start();
    let http = serving(&job, &mut running).http;
    let get = |key: &str| Http::connect(http).get(&format!("/tables/work/{key}")).ok()["value"].take();
    let fixed = |numbers: &[u64]| serde_json::json!({ "hex": numbers.iter().map(|n| format!("{:016x}", n.swap_bytes())).collect::<String>() });
    visits(&job, [1, 1, 2, 3]);
    wait_for("the first records", || job.output_lines("out").len() == 4);
    reload_as(&job, 2, "2!").failed(
        2,
        &[
            "`work/tallies`",
            "values of schema version 1, from which the component, whose table has version 2, cannot migrate",
        ],
    );
    assert_eq!(get("k1"), fixed(&[2]));
    reload_as(&job, 2, "2+").succeeded();
    // Nothing has been written since; readers see the new version, of the present and of retained epochs.
    assert_eq!((get("k1"), get("k2")), (serde_json::json!([2]), serde_json::json!([1])));
    visits(&job, [1]);
    wait_for("a record of the second version", || job.output_lines("out").len() == 5);
    running.kill();

    let mut running = job.start();
    serving(&job, &mut running);
    reload_as(&job, 3, "3+").succeeded();
    visits(&job, [2]);
    wait_for("a record of the third version", || job.output_lines("out").len() == 6);
    let listed = job.state("work");
    assert_eq!((&listed["k1"], &listed["k2"], &listed["k3"]), (&fixed(&[3, 3]), &fixed(&[2, 3]), &fixed(&[1, 3])));
    reload(&job, 4)
        .failed(2, &["`work/tallies`", "from which the component, whose table has version 1, cannot migrate"]);
    running.kill();
    // Stopped, each value is shown as it was written, with the version that wrote it.
    let scanned = job.command(["state", "scan", "job.toml", "work", "--json", "--schema-version"]).succeeded();
    let versions: Vec<u64> = scanned
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["schema_version"].as_u64().unwrap())
        .collect();
    // What nobody has touched since was written anew in the background, or was not yet.
    assert!(versions[1] == 3 && versions.iter().all(|version| (1..=3).contains(version)), "{versions:?}");
    job.write("work.wasm", component_of(4, "1+"));
    job.run().failed(3, &["`work/tallies`", "cannot migrate"]);
    job.write("work.wasm", component_of(4, "1-"));
    visits(&job, [1, 2, 3]);
    finish(&job);
    let counts: BTreeMap<String, Vec<u64>> =
        output(&job).into_iter().map(|(key, records)| (key, records.iter().map(|(n, _)| *n).collect())).collect();
    assert_eq!(
        counts,
        [("k1".to_owned(), vec![1, 2, 3, 4]), ("k2".to_owned(), vec![1, 2, 3]), ("k3".to_owned(), vec![1, 2])].into()
    );
}

#[test]
fn reloads_under_load_and_kill_lose_and_double_nothing() {
    const KILLS: u64 = 8;
    let seed = seed();
    let mut dice = Dice(seed);
    let job = job("");
    let ended = AtomicBool::new(false);
    let (mut release, mut acknowledged) = (0, 0);
    let expected = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut dice, mut counts) = (Dice(!seed), BTreeMap::<String, u64>::new());
            while !ended.load(Ordering::Relaxed) {
                let keys: Vec<u64> = (0..500).map(|_| dice.roll(KEYS)).collect();
                keys.iter().for_each(|key| *counts.entry(format!("k{key}")).or_default() += 1);
                visits(&job, keys);
                std::thread::sleep(Duration::from_millis(5));
            }
            counts
        });
        let end = EndOnDrop(&ended);
        for _ in 0..KILLS * soak_times() {
            let mut running = job.start();
            let runs = status(&job, &mut running)["version"].as_str().unwrap()["1.0.".len()..].parse::<u64>().unwrap();
            assert!(
                runs == acknowledged || runs == release,
                "{runs} runs, {acknowledged} was acknowledged, {release} tried"
            );
            acknowledged = runs;
            let life = Instant::now() + Duration::from_millis(dice.roll(1_500));
            while Instant::now() < life {
                release += 1;
                let schema = ["1-", "2-", "3-"][dice.roll(3) as usize];
                let component = component_of(release, schema);
                let Some(serving) = announced(&job) else { break };
                let until = life + Duration::from_millis(dice.roll(100));
                let (done, is_done) = std::sync::mpsc::channel();
                scope.spawn(move || done.send(post(serving.http, &component)));
                match is_done.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(Some(200)) => acknowledged = release,
                    Ok(other) => panic!("release {release} was not taken: {other:?}"),
                    Err(_) => break,
                }
            }
            running.kill();
        }
        drop(end);
        load.join().unwrap()
    });
    job.write("work.wasm", component_of(release + 1, "1-"));
    finish(&job);
    let output = output(&job);
    println!("{release} reloads were tried, {} records", expected.values().sum::<u64>());
    assert!(acknowledged > 0, "a reload must come through");
    assert_eq!(output.len(), expected.len());
    for (key, records) in &output {
        let counts: Vec<u64> = records.iter().map(|(n, _)| *n).collect();
        assert_eq!(counts, (1..=expected[key]).collect::<Vec<_>>(), "the records of {key}");
        assert!(records.is_sorted_by_key(|(_, by)| *by), "{key}: an older version worked behind a newer one");
    }
    let state = job.state("work");
    for (key, count) in &expected {
        let hex = format!("{:016x}", count.swap_bytes());
        assert_eq!(state[key], serde_json::json!({ "hex": hex }), "the state of {key}");
    }
}

#[test]
fn where_the_manifest_says_watch_a_component_is_reloaded_when_its_file_changes() {
    let job = job("refused_from = 5").arguments(["--set", "job.reload='watch'"]);
    let mut running = job.start();
    assert_eq!(status(&job, &mut running)["version"], "1.0.0");
    let mut runs = |version: &str| wait_for(version, || status(&job, &mut running)["version"] == version);
    job.write("work.wasm", component(2));
    runs("1.0.2");
    // What is refused is left; the next one is taken.
    job.write("work.wasm", component(6));
    job.write("work.wasm", &component(6)[..1000]);
    job.write("work.wasm", component(4));
    runs("1.0.4");
    let ended = running.kill();
    assert!(!ended.stderr.contains("1.0.6"), "{}", ended.stderr);
    let mut running = job.start();
    assert_eq!(status(&job, &mut running)["version"], "1.0.4");
    running.kill();
    assert!(!job.path("state/components").exists(), "the manifest's own file is not kept");
}

#[test]
fn dev_builds_runs_and_reloads_and_a_build_that_fails_leaves_the_old_version() {
    let job = job("");
    let manifest = std::fs::read_to_string(job.path("job.toml")).unwrap();
    let build = "component = \"work.wasm\"\nbuild = \"sh build.sh\"";
    job.write("job.toml", manifest.replace("component = \"work.wasm\"", build));
    std::fs::remove_file(job.path("work.wasm")).unwrap();
    job.write("source.txt", component(1));
    job.write("build.sh", "cp source.txt work.wasm");
    let mut running = job.start_command(["dev", "job.toml"]);
    let mut runs = |version: &str| wait_for(version, || status(&job, &mut running)["version"] == version);
    runs("1.0.1");
    job.write("source.txt", component(2));
    runs("1.0.2");
    job.write("build.sh", "touch tried; exit 9");
    wait_for("the build", || job.path("tried").exists());
    runs("1.0.2");
    job.write("source.txt", component(3));
    job.write("build.sh", "cp source.txt work.wasm");
    runs("1.0.3");
    let ended = running.kill();
    assert!(
        ended.stderr.contains("`sh build.sh`, which builds work, ended badly (exit status: 9)"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("the version that runs goes on"), "{}", ended.stderr);
}

/// Ends the load, also when the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a component. The status of the answer, if there is one.
fn post(address: std::net::SocketAddr, component: &[u8]) -> Option<u16> {
    let mut http = Http::try_connect(address)?;
    http.post("/operators/work/reload", CONTENT_TYPE, component)
}

#[test]
fn many_reloads_leave_nothing_behind() {
    let times = 60 * soak_times();
    let job = job("").time_limit(TIME_LIMIT * soak_times() as u32);
    let mut running = job.start();
    let address = serving(&job, &mut running).http;
    let mut grown = Vec::new();
    for release in 1..=times {
        visits(&job, 0..KEYS);
        assert_eq!(post(address, &component(release)), Some(200), "release {release}");
        if release == times / 2 || release == times {
            grown.push(memory(&running));
        }
        assert_eq!(job.path("state/components").read_dir().unwrap().count(), 1);
    }
    println!("memory in KiB at half of {times} reloads and at their end: {grown:?}");
    assert!(grown[1] < grown[0] + grown[0] / 5, "memory grows: {grown:?} KiB");
    running.kill();
    finish(&job);
    assert_eq!(job.output_lines("out").len() as u64, KEYS * times);
}

/// The resident memory of a process in KiB.
fn memory(running: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
