//! Reloads of jobs on several hosts: the new version takes over at the same epoch on all of them, or on none, whoever is asked and whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::harness::{Dice, Ended, TIME_LIMIT, output_files, seed, soak_times};
use crate::reload::{component, counts, job, visits, visits_to, wait_for};

const KEYS: u64 = 100;

fn cluster(config: &str) -> Cluster {
    Cluster::new(job(config).time_limit(3 * TIME_LIMIT), 3)
}

/// Asks one of the hosts.
fn reload(cluster: &Cluster, host: &str, release: u64) -> Ended {
    let file = format!("new-{host}.wasm");
    cluster.job.write(&file, component(release));
    let mut arguments = vec!["reload", "job.toml", "work", &file, "--json", "--host", host];
    arguments.extend(cluster.job.arguments_of_run().iter().map(String::as_str));
    cluster.job.command(arguments)
}

/// The version that runs on each host, once the whole job is under way.
fn versions(cluster: &Cluster) -> BTreeSet<String> {
    let version = |host: &String| {
        let mut version = None;
        wait_for("the status of a host", || {
            version = cluster
                .status(host)
                .and_then(|status| Some(status["operators"]["work"]["component"]["version"].as_str()?.to_owned()));
            version.is_some()
        });
        version.unwrap_or_default()
    };
    cluster.hosts.iter().map(version).collect()
}

fn only(version: &str) -> BTreeSet<String> {
    BTreeSet::from([version.to_owned()])
}

fn wait_for_lines(cluster: &Cluster, count: usize) {
    wait_for("output", || cluster.output_lines("out").len() == count);
}

/// The releases that worked in each epoch, on any host: the files of an epoch bear its number.
fn releases_by_epoch(cluster: &Cluster) -> BTreeMap<String, BTreeSet<u64>> {
    let mut releases = BTreeMap::<String, BTreeSet<u64>>::new();
    for host in &cluster.hosts {
        for file in output_files(&cluster.job.path("out").join(host)) {
            let epoch = file.file_stem().unwrap().to_str().unwrap().to_owned();
            for line in std::fs::read_to_string(&file).unwrap().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                releases.entry(epoch.clone()).or_default().insert(line["value"]["by"].as_u64().unwrap());
            }
        }
    }
    releases
}

#[test]
fn whichever_host_is_asked_all_go_on_with_the_new_version_from_the_same_epoch_on_and_after_a_restart() {
    let mut cluster = cluster("");
    cluster.start_all();
    visits(&cluster.job, 0..KEYS);
    wait_for_lines(&cluster, KEYS as usize);
    assert_eq!(versions(&cluster), only("1.0.0"));
    for (host, release) in [("b", 5), ("a", 7)] {
        let told: Value = serde_json::from_str(&reload(&cluster, host, release).succeeded().stdout).unwrap();
        assert_eq!(told["to"]["version"], format!("1.0.{release}"));
        assert_eq!(versions(&cluster), only(&format!("1.0.{release}")));
    }
    visits(&cluster.job, 0..KEYS);
    wait_for_lines(&cluster, 2 * KEYS as usize);
    // One of them alone, then all: the manifest names the old component still.
    for killed in [&["c"][..], &["a", "b", "c"]] {
        killed.iter().for_each(|host| cluster.kill(host));
        cluster.start_all();
        cluster.wait_for_status("a", |status| status["cluster"]["stage"] == "running");
        assert_eq!(versions(&cluster), only("1.0.7"));
    }
    visits(&cluster.job, 0..KEYS);
    wait_for_lines(&cluster, 3 * KEYS as usize);
    let counts = counts(cluster.output_lines("out"));
    assert_eq!(counts.len() as u64, KEYS);
    for (key, records) in counts {
        assert_eq!(records, [(1, 0), (2, 7), (3, 7)], "{key}");
    }
    for host in ["a", "b", "c"] {
        let kept = cluster.job.path(format!("state/{host}/components")).read_dir().unwrap().count();
        assert_eq!(kept, 1, "what no epoch names is not kept");
    }
}

#[test]
fn what_one_host_refuses_none_takes_and_the_answer_says_who_and_why() {
    let mut cluster = cluster("refused_from = 5");
    cluster.start_all();
    visits(&cluster.job, 0..KEYS);
    wait_for_lines(&cluster, KEYS as usize);
    reload(&cluster, "b", 6).failed(2, &["failed to reload `work`", "release 6 wants another config", "(host `"]);
    assert_eq!(versions(&cluster), only("1.0.0"));
    // Whoever asks next is heard.
    reload(&cluster, "c", 3).succeeded();
    assert_eq!(versions(&cluster), only("1.0.3"));
}

#[test]
fn hosts_killed_while_components_are_reloaded_under_load_lose_and_double_nothing_and_never_differ() {
    let mut cluster = cluster("");
    cluster.start_all();
    let (ended, mut dice) = (AtomicBool::new(false), Dice(seed()));
    let (mut came_through, mut release, mut written) = (0, 0, 0);
    std::thread::scope(|scope| {
        let path = cluster.job.path("visits.txt");
        let load = scope.spawn({
            let ended = &ended;
            move || {
                let mut rounds = 0;
                while !ended.load(Ordering::Relaxed) {
                    visits_to(&path, 0..KEYS);
                    rounds += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                rounds
            }
        });
        for _ in 0..12 * soak_times() {
            release += 1;
            let host = cluster.hosts[dice.roll(3) as usize].clone();
            let victim = (dice.roll(3) == 0).then(|| cluster.hosts[dice.roll(3) as usize].clone());
            cluster.job.write("new.wasm", component(release));
            let mut arguments = ["reload", "job.toml", "work", "new.wasm", "--host", &host].map(str::to_owned).to_vec();
            arguments.extend(cluster.job.arguments_of_run().iter().cloned());
            let asked = cluster.job.start_command(&arguments);
            if let Some(victim) = victim {
                std::thread::sleep(Duration::from_millis(dice.roll(300)));
                cluster.kill(&victim);
                cluster.start(&victim);
            }
            came_through += u64::from(asked.wait().status.success());
            cluster.wait_for_status("a", |status| status["cluster"]["stage"] == "running");
        }
        ended.store(true, Ordering::Relaxed);
        written = load.join().unwrap();
    });
    println!("{came_through} of {release} reloads came through, {} records", written * KEYS);
    assert!(came_through > 0);
    wait_for_lines(&cluster, (written * KEYS) as usize);
    for (key, records) in counts(cluster.output_lines("out")) {
        let numbers: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..=written).collect::<Vec<_>>(), "the records of {key}");
        assert!(records.is_sorted_by_key(|(_, by)| *by), "{key}: an older version worked behind a newer one");
    }
    for (epoch, releases) in releases_by_epoch(&cluster) {
        assert_eq!(releases.len(), 1, "in epoch {epoch} there worked the releases {releases:?}");
    }
    assert_eq!(versions(&cluster).len(), 1);
}
