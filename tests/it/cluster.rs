//! Jobs on several hosts: processes on loopback that are killed, stopped and started again. Results are those of a plain computation.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::asking::{Http, Serving};
use crate::harness::{Dice, Ended, Job, Running, free_addresses, output_lines, seed};
use crate::plain::{json_lines, read_json};
use crate::tables::{ACCOUNTS, OPENING, balances, bytes, head, sink};

/// How long a job may take to notice something and be under way again.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// A host that is silent for so long is lost.
pub const LOST_AFTER_MS: u64 = 1_000;
const FILES: usize = 12;

/// A job on hosts `a`, `b`, …
pub struct Cluster {
    pub job: Job,
    pub hosts: Vec<String>,
    networks: Vec<String>,
    running: BTreeMap<String, Running>,
}

impl Cluster {
    /// The job with `hosts` hosts on free addresses.
    pub fn new(job: Job, hosts: usize) -> Self {
        let addresses = free_addresses(hosts);
        Self::reached_at(job, &addresses, &addresses)
    }

    /// The job with a host for each address, at which the others reach it; it listens at another one where that differs.
    pub fn reached_at(job: Job, addresses: &[SocketAddr], listens: &[SocketAddr]) -> Self {
        let names: Vec<String> = (0..addresses.len()).map(|host| char::from(b'a' + host as u8).to_string()).collect();
        let mut arguments = vec!["--set".to_owned(), format!("cluster.lost-after={LOST_AFTER_MS}ms")];
        for (name, (address, listen)) in names.iter().zip(addresses.iter().zip(listens)) {
            arguments.extend(["--set".to_owned(), format!("cluster.hosts.{name}.address={address}")]);
            if listen != address {
                arguments.extend(["--set".to_owned(), format!("cluster.hosts.{name}.listen={listen}")]);
            }
        }
        Self { job: job.arguments(arguments), hosts: names, networks: Vec::new(), running: BTreeMap::new() }
    }

    /// Runs each host in one of these networks.
    pub fn in_networks(self, networks: &[String]) -> Self {
        Self { networks: networks.to_vec(), ..self }
    }

    pub fn start(&mut self, host: &str) {
        let network = self.hosts.iter().position(|name| name == host).and_then(|host| self.networks.get(host));
        self.running.insert(host.to_owned(), self.job.start_host_within(host, network.map(String::as_str)));
    }

    pub fn start_all(&mut self) {
        for host in self.hosts.clone() {
            if !self.running.contains_key(&host) {
                self.start(&host);
            }
        }
    }

    pub fn kill(&mut self, host: &str) {
        self.running.remove(host).expect("the host runs").kill();
    }

    pub fn signal(&self, host: &str, signal: Signal) {
        self.running[host].signal(signal);
    }

    /// Whether all hosts run.
    pub fn is_running(&mut self) -> bool {
        self.running.values_mut().all(Running::is_running)
    }

    /// Waits until each host has noted another epoch, or one has ended; whether all run.
    #[track_caller]
    pub fn goes_on(&mut self) -> bool {
        let newest = |cluster: &Self| -> Vec<u64> {
            cluster.hosts.iter().map(|host| cluster.job.newest_epoch_of(host)).collect()
        };
        let (start, first) = (Instant::now(), newest(self));
        while newest(self).iter().zip(&first).any(|(now, first)| now <= first) {
            if !self.is_running() {
                return false;
            }
            assert!(start.elapsed() < RECOVERY_MAX, "in {RECOVERY_MAX:?} no epoch was noted after {first:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.is_running()
    }

    /// Waits until all hosts have ended.
    pub fn wait(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.running).into_values().map(Running::wait).collect()
    }

    pub fn serving(&self, host: &str) -> Option<Serving> {
        let told: Value =
            serde_json::from_slice(&std::fs::read(self.job.path(format!("state/{host}/serving"))).ok()?).ok()?;
        Some(Serving { http: told["http"].as_str()?.parse().ok()?, capnp: None, pid: told["pid"].as_u64()? })
    }

    pub fn status(&self, host: &str) -> Option<Value> {
        let mut http = Http::try_connect(self.serving(host)?.http)?;
        Some(http.get_while_running("/status")?.json())
    }

    /// Waits until a host's status is as it should be.
    #[track_caller]
    pub fn wait_for_status(&self, host: &str, is_so: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        let mut last = None;
        while start.elapsed() < RECOVERY_MAX {
            last = self.status(host).or(last);
            if last.as_ref().is_some_and(&is_so) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("host {host} says {last:?}");
    }

    /// The committed values of a table on all hosts, which do not run. No two have the same key.
    pub fn values(&self, table: &str) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        for host in &self.hosts {
            let scan = ["state", "scan", "job.toml", table, "--json", "--limit", "10000000", "--host", host];
            let mut arguments: Vec<String> = scan.map(str::to_owned).to_vec();
            arguments.extend(self.job.arguments_of_run().iter().cloned());
            let scanned = self.job.command(arguments).succeeded();
            for line in scanned.stdout.lines() {
                let entry: Value = serde_json::from_str(line).unwrap();
                let (key, value) = (entry["key"].as_str().unwrap().to_owned(), bytes(&entry["value"]));
                assert_eq!(all.insert(key, value), None, "{line} on two hosts");
            }
        }
        all
    }

    /// The same of a table of integers.
    pub fn integers(&self, table: &str) -> BTreeMap<String, i64> {
        self.values(table).into_iter().map(|(key, value)| (key, integer(&value))).collect()
    }

    pub fn output_lines(&self, folder: &str) -> Vec<String> {
        self.hosts.iter().flat_map(|host| output_lines(&self.job.path(folder).join(host))).collect()
    }

    /// All values of a table, named `operator.table`, as of an epoch that every host retains, while they run.
    pub fn values_as_of(&self, table: &str, epoch: u64) -> Option<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for host in &self.hosts {
            let mut http = Http::try_connect(self.serving(host)?.http)?;
            let path = format!("/tables/{table}?limit=1000&consistency=as-of:{epoch}");
            let answer = http.get_while_running(&path)?;
            if answer.status != 200 {
                return None;
            }
            let told = answer.json();
            all.extend(told["entries"].as_array().unwrap().iter().map(|entry| bytes(&entry["value"])));
        }
        Some(all)
    }

    /// All balances as of such an epoch.
    pub fn balances_as_of(&self, epoch: u64) -> Option<Vec<i64>> {
        let values = self.values_as_of("transfer.balances", epoch)?;
        Some(values.iter().map(|value| integer(value)).collect())
    }

    /// The newest epoch that every running host has committed, and whether all answer.
    pub fn newest_epoch(&self) -> Option<u64> {
        let newest = |host: &String| self.status(host)?["readable"]["newest"].as_u64();
        self.hosts.iter().map(newest).collect::<Option<Vec<u64>>>()?.into_iter().min()
    }
}

fn integer(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("64 bits"))
}

/// Transfers between accounts, spread over files. `fields` are further lines of the operator.
pub fn transfers(count: u64, opening: i64, cents_max: u64, fields: &str) -> (Job, Vec<Value>) {
    let manifest = format!(
        "{}[sources.events]\nkind = \"file\"\npath = \"events\"\nformat = \"jsonl\"\nkey = \"/account\"\n\
         [operators.transfer]\ncomponent = \"{{guest:transfer}}\"\ninputs = [\"events\"]\n\
         uses.accounts = {{ table = \"transfer.balances\", read = true, update = true }}\n{fields}\n{}",
        head(1, "50ms", "memory = \"64MiB\"").replace("[checkpoint]\n", "[checkpoint]\nretained = 12\n"),
        sink("refused", "\"transfer\"", "")
    );
    let mut dice = Dice(11);
    let accounts = ACCOUNTS as u64;
    let opens = (0..accounts).map(|account| json!({ "account": format!("a{account}"), "opens": opening }));
    let mut events: Vec<Value> = opens.collect();
    events.extend((0..count).map(|_| {
        let (payer, step) = (dice.roll(accounts), 1 + dice.roll(accounts - 1));
        let payee = (payer + step) % accounts;
        json!({ "account": format!("a{payer}"), "pays": format!("a{payee}"), "cents": 1 + dice.roll(cents_max) })
    }));
    (spread(Job::new(&manifest), &events), events)
}

/// Adds events as input, in turn to each of some files.
pub fn spread(job: Job, events: &[Value]) -> Job {
    for file in 0..FILES {
        let lines: Vec<Value> = events.iter().skip(file).step_by(FILES).cloned().collect();
        job.write(&format!("events/{file:02}.jsonl"), json_lines(&lines));
    }
    job
}

pub const OVERDRAFT: &str = "config = { overdraft = true }";

fn check_transfers(hosts: usize) {
    let (job, events) = transfers(30_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, hosts);
    cluster.start_all();
    let ended: Vec<Ended> = cluster.wait().into_iter().map(Ended::succeeded).collect();
    assert_eq!(ended.iter().map(|ended| ended.figure("records_in")).sum::<u64>(), events.len() as u64);
    assert!(ended.iter().all(|ended| ended.summary.as_ref().unwrap()["ended"] == "input-ended"));
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn money_moved_by_updates_is_where_it_belongs_on_two_hosts_and_on_three() {
    check_transfers(2);
    check_transfers(3);
}

#[test]
fn transactions_on_three_hosts_spend_no_coin_twice() {
    let fields = "config = { overdraft = false }\nisolation = \"serializable\"";
    let (job, events) = transfers(5_000, 500, 800, fields);
    let mut cluster = Cluster::new(job, 3);
    cluster.start_all();
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    let refused = read_json(&cluster.output_lines("refused"));
    assert!(!refused.is_empty(), "nobody was ever short of money");
    let balances_now = cluster.integers("transfer");
    assert_eq!(balances_now, balances(&events, &refused));
    assert!(balances_now.values().all(|&cents| cents >= 0));
}

/// A transfer that was only half there would be seen, since an opening is no round sum.
#[track_caller]
pub fn check_total(balances: &[i64]) {
    let total: i64 = balances.iter().sum();
    assert!(total % OPENING == 0 && total <= ACCOUNTS * OPENING, "there are {total} cents");
}

#[test]
fn hosts_killed_at_random_lose_and_double_nothing() {
    let (job, events) = transfers(120_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 3);
    let mut dice = Dice(seed());
    cluster.start_all();
    let (mut kills, mut looks) = (0, 0);
    while cluster.is_running() {
        let until = Instant::now() + Duration::from_millis(100 + dice.roll(900));
        while Instant::now() < until && cluster.is_running() {
            if let Some(balances) = cluster.newest_epoch().and_then(|epoch| cluster.balances_as_of(epoch)) {
                check_total(&balances);
                looks += 1;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if kills < 6 && cluster.is_running() {
            let host = cluster.hosts[dice.roll(3) as usize].clone();
            cluster.kill(&host);
            kills += 1;
            std::thread::sleep(Duration::from_millis(dice.roll(400)));
            cluster.start(&host);
        }
    }
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    println!("{kills} kills, {looks} looks");
    assert!(kills > 0 && looks > 0);
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn a_host_that_stands_still_is_lost_and_welcome_again() {
    let (job, events) = transfers(60_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 2);
    cluster.start_all();
    cluster.wait_for_status("a", |status| status["epoch"].as_u64() > Some(1));
    cluster.running["b"].signal(Signal::STOP);
    cluster.wait_for_status("a", |status| {
        status["cluster"]["waiting_for"].as_array().is_some_and(|hosts| *hosts == ["b"])
    });
    cluster.running["b"].signal(Signal::CONT);
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn without_its_leader_a_job_stands_still_says_so_and_goes_on_when_it_is_back() {
    let (job, events) = transfers(60_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 2);
    cluster.start_all();
    cluster.wait_for_status("b", |status| status["epoch"].as_u64() > Some(1));
    cluster.kill("a");
    cluster.wait_for_status("b", |status| {
        status["cluster"]["stage"] == "gathering"
            && status["cluster"]["waiting_for"].as_array().is_some_and(|hosts| *hosts == ["a"])
    });
    cluster.start("a");
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn a_stop_of_one_host_stops_the_whole_job_cleanly() {
    let (job, events) = transfers(80_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 2);
    cluster.start_all();
    cluster.wait_for_status("b", |status| status["epoch"].as_u64() > Some(1));
    cluster.running["b"].signal(Signal::TERM);
    for ended in cluster.wait() {
        assert_eq!(ended.succeeded().summary.unwrap()["ended"], "stopped");
    }
    check_total(&cluster.integers("transfer").into_values().collect::<Vec<_>>());
    cluster.start_all();
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn a_host_that_is_asked_for_a_key_of_another_one_says_whose_it_is() {
    let (job, _) = transfers(60_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 2);
    cluster.start_all();
    for host in ["a", "b"] {
        cluster.wait_for_status(host, |status| status["readable"]["newest"].as_u64() > Some(2));
    }
    let mut connections = ["a", "b"].map(|host| Http::try_connect(cluster.serving(host).unwrap().http).unwrap());
    let mut owned = [0, 0];
    for account in 0..20 {
        let path = format!("/tables/transfer.balances/a{account}");
        let answers = connections.each_mut().map(|http| http.get_while_running(&path).expect("the job runs"));
        let owner = answers.iter().position(|answer| answer.status == 200).expect("somebody owns it");
        let other = &answers[1 - owner];
        let said = other.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(other.status, 421, "{said}");
        assert!(said.contains(&format!("the host `{}` owns it", cluster.hosts[owner])), "{said}");
        owned[owner] += 1;
    }
    assert!(owned[0] > 0 && owned[1] > 0, "{owned:?}");
}

#[test]
fn a_host_with_another_manifest_is_not_accepted_and_told_why() {
    let (job, _) = transfers(1_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 2);
    cluster.start("a");
    cluster.wait_for_status("a", |status| status["cluster"]["stage"] == "gathering");
    let manifest = std::fs::read_to_string(cluster.job.path("job.toml")).unwrap();
    cluster.job.write("job.toml", manifest.replace("interval = \"50ms\"", "interval = \"60ms\""));
    cluster.start("b");
    for (host, other) in [("a", "b"), ("b", "a")] {
        cluster.wait_for_status(host, |status| {
            status["cluster"]["refused"].as_object().is_some_and(|refused| {
                refused.iter().any(|(name, why)| {
                    [other, "unknown"].contains(&&**name) && why.as_str().unwrap().contains("manifest")
                })
            })
        });
    }
}

#[test]
fn a_job_of_several_hosts_is_started_with_one_of_them_only() {
    let (job, _) = transfers(1, OPENING, 500, OVERDRAFT);
    let cluster = Cluster::new(job, 2);
    cluster.job.run().failed(2, &["say by `--host NAME` which host this is, of `a`, `b`"]);
    cluster.job.start_host("c").wait().failed(2, &["unknown host `c`"]);
}

#[test]
fn what_would_leave_state_or_positions_behind_is_refused() {
    let (job, _) = transfers(2_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, 2);
    cluster.start_all();
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    let manifest = std::fs::read_to_string(cluster.job.path("job.toml")).unwrap();
    let check = |cluster: &mut Cluster, from: &str, to: &str, said: &str| {
        assert!(manifest.contains(from), "{from} is in the manifest");
        cluster.job.write("job.toml", manifest.replace(from, to));
        cluster.start_all();
        for ended in cluster.wait() {
            ended.failed(3, &[said]);
        }
    };
    check(&mut cluster, OVERDRAFT, &format!("{OVERDRAFT}\nisolation = \"serializable\""), "lies on all hosts");
    check(&mut cluster, "key = \"/account\"", "key = \"/account\"\nhosts = [\"a\"]", "was read by the hosts `a`, `b`");
}

#[test]
fn a_job_ends_where_a_host_has_nothing_to_do_and_sources_are_read_by_one_host_only() {
    let (job, events) = transfers(3_000, OPENING, 500, OVERDRAFT);
    let manifest = std::fs::read_to_string(job.path("job.toml")).unwrap();
    job.write("job.toml", manifest.replace("key = \"/account\"", "key = \"/account\"\nhosts = [\"c\"]"));
    let mut cluster = Cluster::new(job, 3);
    cluster.start_all();
    let records: Vec<u64> = cluster.wait().into_iter().map(|ended| ended.succeeded().figure("records_in")).collect();
    assert_eq!(records, [0, 0, events.len() as u64]);
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}
