//! The rules for `[cluster]` and for what refers to it: addresses, names of hosts, and what several hosts need to be told.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::names::name_fault;
use super::{Graph, Hosts, OperatorIndex};
use crate::manifest::{At, Cluster, Finding, HumanDuration, Manifest, Reload, Source, did_you_mean, listed};

/// The least time without a word after which a host is lost: twice as long as hosts are silent anyway.
const LOST_AFTER_MIN: Duration = Duration::from_millis(200);

/// The longest that a lookup may wait for more keys.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// Checks `[cluster]` and what the job needs where it has one.
pub(super) fn check_cluster(manifest: &Manifest, findings: &mut Vec<Finding>) {
    check_gathering(manifest, findings);
    let Some(cluster) = &manifest.cluster else { return };
    if cluster.hosts.is_empty() {
        let finding = Finding::error(At::key(["cluster", "hosts"]), "`[cluster]` has no hosts");
        findings.push(finding.help("add `[cluster.hosts.NAME]` with an `address` for each, or remove `[cluster]`"));
    }
    if let Some(leader) = cluster.leader.as_ref().filter(|leader| !cluster.hosts.contains_key(*leader)) {
        findings.push(unknown_host(leader, cluster.hosts.keys(), At::value(["cluster", "leader"])));
    }
    if cluster.lost_after.0 < LOST_AFTER_MIN {
        let message = format!("`lost-after` must be at least {}", HumanDuration(LOST_AFTER_MIN));
        let finding = Finding::error(At::value(["cluster", "lost-after"]), message);
        findings.push(finding.help("hosts that are only busy would be taken for lost"));
    }
    check_addresses(cluster, findings);
    check_tls(cluster, findings);
    check_shared(manifest, cluster, findings);
}

/// What lookups between hosts may be told.
fn check_gathering(manifest: &Manifest, findings: &mut Vec<Finding>) {
    let mut check = |path: &[&str], max_batch: Option<u16>, linger: Option<HumanDuration>| {
        let at = |field: &str| At::value([path, &[field]].concat());
        if max_batch == Some(0) {
            findings.push(Finding::error(at("max-batch"), "`max-batch` must be at least 1"));
        }
        if linger.is_some_and(|linger| linger.0 > LINGER_MAX) {
            let message = format!("`linger` must be at most {}", HumanDuration(LINGER_MAX));
            let finding = Finding::error(at("linger"), message);
            findings.push(finding.help("it is how long a lookup waits for more keys, such as \"100us\""));
        }
    };
    if let Some(cluster) = &manifest.cluster {
        check(&["cluster"], Some(cluster.max_batch), Some(cluster.linger));
    }
    for (name, operator) in &manifest.operators {
        for (alias, used) in &operator.uses {
            check(&["operators", name, "uses", alias], used.max_batch, used.linger);
        }
    }
    let uses =
        manifest.operators.iter().flat_map(|(name, operator)| operator.uses.iter().map(move |used| (name, used)));
    for (name, (alias, used)) in uses.filter(|(_, (_, used))| !used.read) {
        let written = [("max-batch", used.max_batch.is_some()), ("linger", used.linger.is_some())];
        for (field, _) in written.into_iter().filter(|(_, is_written)| *is_written) {
            let message = format!("`{field}` has no effect here: it is for lookups");
            let at = At::key(["operators", name, "uses", alias, field]);
            findings.push(Finding::error(at, message).help(format!("add `read = true`, or remove `{field}`")));
        }
    }
}

fn check_addresses(cluster: &Cluster, findings: &mut Vec<Finding>) {
    let mut seen: Vec<(&str, Address)> = Vec::new();
    for (name, host) in &cluster.hosts {
        findings.extend(name_fault(name).map(|fault| Finding::error(At::key(["cluster", "hosts", name]), fault)));
        let at = || At::value(["cluster", "hosts", name, "address"]);
        let written = &host.address;
        if let Some(listen) = &host.listen {
            let at = || At::value(["cluster", "hosts", name, "listen"]);
            match Address::parse(listen) {
                Ok(address) => findings.extend(exposure(cluster, listen, &address, at())),
                Err((message, help)) => findings.push(Finding::error(at(), message).help(help)),
            }
        }
        let address = match Address::parse(written) {
            Ok(address) if address.is_unspecified() => {
                let message = format!("`{written}` is not an address: others cannot connect to it");
                let help = "`address` is what the others connect to; where it should listen at all addresses, say so by `listen`";
                findings.push(Finding::error(at(), message).help(help));
                continue;
            }
            Ok(address) => address,
            Err((message, help)) => {
                findings.push(Finding::error(at(), message).help(help));
                continue;
            }
        };
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == address) {
            let finding = Finding::error(at(), format!("the host `{other}` has the address `{written}`, too"));
            findings
                .push(finding.help("give each host an address of its own; hosts on one machine differ in the port"));
        }
        findings.extend(exposure(cluster, written, &address, at()));
        seen.push((name, address));
    }
}

/// An address that others can get at, where nothing makes sure who they are.
fn exposure(cluster: &Cluster, written: &str, address: &Address, at: At) -> Option<Finding> {
    let is_safe = address.is_loopback() || cluster.tls.is_some() || cluster.insecure;
    let message = format!("`{written}` can be reached from elsewhere, and there is no `[cluster.tls]`");
    let help = "add `[cluster.tls]`, or, where nobody else can get at the network, `insecure = true` to `[cluster]`";
    (!is_safe).then(|| Finding::error(at, message).help(help))
}

fn check_tls(cluster: &Cluster, findings: &mut Vec<Finding>) {
    let Some(tls) = &cluster.tls else { return };
    if cluster.insecure {
        let message = "`insecure` has no effect beside `[cluster.tls]`";
        findings.push(Finding::error(At::key(["cluster", "insecure"]), message).help("remove one of them"));
    }
    for (field, path) in [("ca", &tls.ca), ("certificate", &tls.certificate), ("key", &tls.key)] {
        if path.is_empty() {
            let at = At::value(["cluster", "tls", field]);
            findings.push(Finding::error(at, format!("`{field}` must not be empty")));
        }
    }
}

/// Each host needs a partition, and all of them the same plan.
fn check_shared(manifest: &Manifest, cluster: &Cluster, findings: &mut Vec<Finding>) {
    let (hosts, partitions) = (cluster.hosts.len(), manifest.job.partitions);
    if hosts > usize::from(partitions) {
        let message = format!("the job has {partitions} partitions for {hosts} hosts: each host needs one");
        let finding = Finding::error(At::value(["job", "partitions"]), message);
        findings.push(finding.help("raise `job.partitions` before the job has state"));
    }
    if manifest.job.reload == Reload::Watch {
        let message = "`reload = \"watch\"` is for a job of one host: leave it out, and bring a new component to all hosts by `wasmill reload`";
        findings.push(Finding::error(At::value(["job", "reload"]), message));
    }
    if hosts > 1 && manifest.job.workers.is_none() {
        let message = "`workers` is needed where a job has several hosts";
        let finding = Finding::error(At::key(["job", "workers"]), message);
        findings.push(
            finding.help(
                "the plan must be the same on all of them, however many cores each has: for example `workers = 2`",
            ),
        );
    }
}

/// The hosts that read a source, in their order.
pub(super) fn reading_hosts(name: &str, source: &Source, hosts: &Hosts, findings: &mut Vec<Finding>) -> Vec<u16> {
    let Some(written) = source.hosts() else {
        return if matches!(source, Source::Stdin(_)) { vec![hosts.leader()] } else { (0..hosts.count()).collect() };
    };
    let at = |index: usize| At::value(["sources", name, "hosts", &index.to_string()]);
    if written.is_empty() {
        let finding =
            Finding::error(At::value(["sources", name, "hosts"]), format!("no host reads the source `{name}`"));
        findings.push(finding.help("leave `hosts` out for all hosts"));
    } else if hosts.names().is_empty() {
        let finding = Finding::error(At::key(["sources", name, "hosts"]), "`hosts` has no effect here");
        findings.push(finding.help("the manifest has no `[cluster]`, so there is one host, which reads everything"));
    }
    let mut reading = BTreeSet::new();
    for (index, host) in written.iter().enumerate().filter(|_| !hosts.names().is_empty()) {
        match hosts.find(host) {
            None => findings.push(unknown_host(host, hosts.names(), at(index))),
            Some(place) if !reading.insert(place) => {
                findings.push(Finding::error(at(index), format!("the host `{host}` is named twice")));
            }
            Some(_) => {}
        }
    }
    reading.into_iter().collect()
}

fn unknown_host<'a>(name: &str, hosts: impl IntoIterator<Item = &'a String> + Clone, at: At) -> Finding {
    let known = || hosts.clone().into_iter().map(String::as_str);
    let finding = Finding::error(at, format!("unknown host `{name}`{}", did_you_mean(name, known())));
    finding.help(format!("the hosts are {}", listed(known())))
}

/// Operators that are colocated with each other in a circle: none of them says where they are. Reports each circle once, at its first operator by name.
pub(super) fn find_circles(graph: &Graph, findings: &mut Vec<Finding>) {
    let next = |operator: &OperatorIndex| graph.operators[operator.0].colocated_with;
    for start in (0..graph.operators.len()).map(OperatorIndex) {
        let way: Vec<_> = std::iter::successors(next(&start), next)
            .take(graph.operators.len())
            .take_while(|at| *at != start)
            .collect();
        let closes = way.last().map_or(next(&start), next) == Some(start);
        if closes && way.iter().all(|operator| start < *operator) {
            let names = [start]
                .iter()
                .chain(&way)
                .chain([&start])
                .map(|at| format!("`{}`", graph.operators[at.0].name))
                .collect::<Vec<_>>();
            let at = At::value(["operators", &graph.operators[start.0].name, "colocated-with"]);
            let finding = Finding::error(at, format!("a circle: {}", names.join(" → ")));
            findings.push(finding.help("leave out `colocated-with` in one of them: the others follow it"));
        }
    }
}

/// Where a host listens.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    host: HostPart,
    port: u16,
}

#[derive(Debug, PartialEq, Eq)]
enum HostPart {
    Ip(IpAddr),
    /// In lower case.
    Name(String),
}

impl Address {
    /// What is wrong with it otherwise, and what to do.
    fn parse(written: &str) -> Result<Self, (String, &'static str)> {
        const EXAMPLES: &str = "for example `10.0.0.1:7101`, `[fd00::1]:7101` or `db1.example.org:7101`";
        let wrong = |why: &str| Err((format!("`{written}` is not an address: {why}"), EXAMPLES));
        let is_bare_v6 = written.parse::<Ipv6Addr>().is_ok();
        let Some((host, port)) = written.rsplit_once(':').filter(|_| !is_bare_v6 && !written.ends_with(']')) else {
            return wrong("it has no port");
        };
        let port = match port.parse() {
            Ok(0) => return wrong("others must know the port, so it cannot be 0"),
            Ok(port) => port,
            Err(_) => return wrong("its port is no number up to 65535"),
        };
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let allowed = |character: char| character.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&character);
        let host = match (in_brackets, host.parse::<IpAddr>()) {
            (Some(host), _) => match host.parse::<Ipv6Addr>() {
                Ok(ip) => HostPart::Ip(ip.into()),
                Err(_) => return wrong("there is no IPv6 address in the brackets"),
            },
            (None, Ok(IpAddr::V4(ip))) => HostPart::Ip(ip.into()),
            (None, Ok(IpAddr::V6(_))) => return wrong("an IPv6 address stands in brackets"),
            (None, Err(_)) if host.is_empty() => return wrong("it names no host"),
            (None, Err(_)) if !host.chars().all(allowed) => return wrong("it is neither an IP address nor a name"),
            (None, Err(_)) => HostPart::Name(host.to_ascii_lowercase()),
        };
        Ok(Self { host, port })
    }

    /// Whether it stands for all addresses of a machine.
    fn is_unspecified(&self) -> bool {
        matches!(self.host, HostPart::Ip(ip) if ip.is_unspecified())
    }

    /// Whether only this machine can reach it.
    fn is_loopback(&self) -> bool {
        match &self.host {
            HostPart::Ip(ip) => ip.to_canonical().is_loopback(),
            HostPart::Name(name) => name == "localhost",
        }
    }
}
