//! Hosts in surroundings of their own: each in a network of its own, with an address of its own; and a host whose disk is full. Making such takes root's rights on Linux. Where they
//! are not to be had, the tests say that they are skipped.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use crate::cluster::{Cluster, LOST_AFTER_MS, OVERDRAFT, check_total, transfers};
use crate::harness::{Job, seed};
use crate::tables::{OPENING, balances};

const HOSTS: usize = 3;
const PORT: u16 = 7_400;

/// Runs a command that takes root's rights; whether it came to a good end.
fn is_done(program: &str, arguments: &str) -> bool {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[track_caller]
fn must(program: &str, arguments: &str) {
    assert!(is_done(program, arguments), "`{program} {arguments}` failed");
}

/// Said past the test runner, which keeps what a test prints to itself.
fn skip(test: &str, why: &str) {
    _ = writeln!(io::stderr(), "skipped: {test}: {why}");
}

/// A network for each host, all on one bridge in a network in between. Nothing of it is seen by the machine's own network.
struct Networks {
    bridge: String,
    names: Vec<String>,
}

impl Networks {
    /// Nothing where it is not permitted.
    fn make(hosts: usize) -> Option<Self> {
        let id = std::process::id();
        let bridge = format!("wasmill-{id}-bridge");
        if !is_done("ip", &format!("netns add {bridge}")) {
            return None;
        }
        let mut networks = Self { bridge, names: Vec::new() };
        let bridge = networks.bridge.clone();
        must("ip", &format!("-n {bridge} link add bridge type bridge"));
        must("ip", &format!("-n {bridge} link set bridge up"));
        for host in 0..hosts {
            let name = format!("wasmill-{id}-{host}");
            must("ip", &format!("netns add {name}"));
            networks.names.push(name.clone());
            must("ip", &format!("-n {bridge} link add to{host} type veth peer name wire netns {name}"));
            must("ip", &format!("-n {bridge} link set to{host} master bridge up"));
            must("ip", &format!("-n {name} addr add {}/24 dev wire", Self::address(host).ip()));
            must("ip", &format!("-n {name} link set wire up"));
            must("ip", &format!("-n {name} link set lo up"));
        }
        Some(networks)
    }

    fn address(host: usize) -> SocketAddr {
        SocketAddr::from(([10, 77, 0, 1 + host as u8], PORT))
    }

    /// Plugs the cable of a host in, or pulls it out: nobody is told, packets just don't arrive.
    fn plug(&self, host: usize, in_or_out: bool) {
        must("ip", &format!("-n {} link set to{host} {}", self.bridge, if in_or_out { "up" } else { "down" }));
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.bridge]) {
            is_done("ip", &format!("netns delete {name}"));
        }
    }
}

/// Writes a CA's certificate, and for each host a certificate with its key, as `[cluster.tls]` names them.
fn certify(job: &Job, hosts: &[String]) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    job.write("tls/ca.pem", authority.pem());
    for host in hosts {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([host.clone()]).unwrap().signed_by(&key, &authority).unwrap();
        job.write(&format!("tls/{host}.pem"), certificate.pem());
        job.write(&format!("tls/{host}.key"), key.serialize_pem());
    }
}

#[test]
fn hosts_with_networks_of_their_own_move_money_under_tls_though_cables_are_pulled() {
    let Some(networks) = Networks::make(HOSTS) else {
        return skip("hosts with networks of their own", "`ip netns add` (Debian: iproute2) is not permitted here");
    };
    let (job, events) = transfers(60_000, OPENING, 500, OVERDRAFT);
    let addresses: Vec<SocketAddr> = (0..HOSTS).map(Networks::address).collect();
    let tls = [("ca", "tls/ca.pem"), ("certificate", "tls/{host}.pem"), ("key", "tls/{host}.key")];
    let job =
        job.arguments(tls.iter().flat_map(|(field, path)| ["--set".to_owned(), format!("cluster.tls.{field}={path}")]));
    let mut cluster = Cluster::reached_at(job, &addresses, &addresses).in_networks(&networks.names);
    certify(&cluster.job, &cluster.hosts);
    cluster.start_all();
    let mut pulled = 0;
    for host in (0..HOSTS).chain(0..HOSTS) {
        // Long enough for the host to be taken for lost, and for its connections to have to be made anew.
        if !cluster.goes_on() {
            break;
        }
        networks.plug(host, false);
        std::thread::sleep(Duration::from_millis(2 * LOST_AFTER_MS));
        networks.plug(host, true);
        pulled += 1;
    }
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    assert!(pulled > 2, "the job was over after {pulled} cables");
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

/// A file system of its own size, in a folder.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: PathBuf, mebibytes: u32) -> Option<Self> {
        std::fs::create_dir_all(&folder).unwrap();
        let arguments = format!("-t tmpfs -o size={mebibytes}m tmpfs {}", folder.display());
        is_done("mount", &arguments).then_some(Self(folder))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all the space that is left.
    fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        let full = loop {
            if let Err(error) = filler.write_all(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }

    fn relieve(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        is_done("umount", &self.0.display().to_string());
    }
}

#[test]
fn a_full_disk_on_one_host_ends_the_job_with_the_reason_and_costs_nothing() {
    let (job, events) = transfers(120_000, OPENING, 500, OVERDRAFT);
    let mut cluster = Cluster::new(job, HOSTS);
    let full = cluster.hosts[seed() as usize % HOSTS].clone();
    let Some(disk) = SmallDisk::mount(cluster.job.path(format!("state/{full}")), 64) else {
        return skip("a full disk on one host", "`mount -t tmpfs` is not permitted here");
    };
    for _ in 0..3 {
        cluster.start_all();
        assert!(cluster.goes_on(), "the job was over before its disk was full");
        disk.fill();
        // The others say whose disk it is.
        let named = format!("`{full}`");
        for (host, ended) in cluster.hosts.clone().into_iter().zip(cluster.wait()) {
            let said = ["No space left on device", if host == full { "state" } else { &named }];
            ended.failed(1, &said);
        }
        disk.relieve();
        check_total(&cluster.integers("transfer").into_values().collect::<Vec<_>>());
    }
    cluster.start_all();
    cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}
