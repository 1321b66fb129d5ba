//! What is said about `[cluster]` and what refers to it.

use super::*;

/// A cluster of two hosts without faults.
pub(super) const CLUSTER: &str = r#"
[cluster]
leader = "beta"

[cluster.hosts.alpha]
address = "127.0.0.1:7101"

[cluster.hosts.beta]
address = "127.0.0.1:7102"
"#;

/// The valid manifest with `CLUSTER` behind it, of which `[cluster]` is line 25.
fn clustered(edits: &[(&str, &str)]) -> String {
    let text = format!("{}{CLUSTER}", VALID.replace("partitions = 16", "partitions = 16\nworkers = 2"));
    edits.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

fn check_clustered(edits: &[(&str, &str)], expected: &[&str]) {
    let loaded = loaded(&clustered(edits));
    let findings = match check(&loaded.manifest, loaded.directory()) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    assert_eq!(shown(&loaded, findings), expected, "{edits:?}");
}

#[test]
fn hosts_are_in_the_order_of_their_names() {
    let hosts = graph(&clustered(&[])).hosts;
    assert_eq!((hosts.names(), hosts.count(), hosts.leader()), (&["alpha".to_owned(), "beta".to_owned()][..], 2, 1));
    let hosts = graph(&clustered(&[("leader = \"beta\"\n", "")])).hosts;
    assert_eq!((hosts.leader(), hosts.name(1)), (0, Some("beta")));
    let hosts = graph(VALID).hosts;
    assert_eq!((hosts.names(), hosts.count(), hosts.leader(), hosts.name(0)), (&[][..], 1, 0, None));
}

#[test]
fn a_process_is_told_which_host_it_is() {
    let hosts = graph(&clustered(&[])).hosts;
    assert_eq!((hosts.chosen(Some("alpha")), hosts.chosen(Some("beta"))), (Ok(0), Ok(1)));
    assert_eq!(
        hosts.chosen(Some("bta")).unwrap_err(),
        "unknown host `bta`, did you mean `beta`?; the hosts are `alpha`, `beta`"
    );
    assert!(hosts.chosen(None).unwrap_err().ends_with("of `alpha`, `beta`"));
    let alone = graph(VALID).hosts;
    assert_eq!(alone.chosen(None), Ok(0));
    assert!(alone.chosen(Some("alpha")).unwrap_err().contains("no `[cluster]`"));
}

#[test]
fn hosts_that_are_named_must_be_there() {
    check_clustered(&[], &[]);
    check_clustered(&[("leader = \"beta\"", "leader = \"bta\"")], &["26:10 unknown host `bta`, did you mean `beta`?"]);
    check_clustered(&[("key = \"/auction\"", "hosts = [\"alpha\", \"gamma\"]")], &["10:19 unknown host `gamma`"]);
    check_clustered(
        &[("key = \"/auction\"", "hosts = [\"alpha\", \"alpha\"]")],
        &["10:19 the host `alpha` is named twice"],
    );
    check_clustered(&[("key = \"/auction\"", "hosts = []")], &["10:9 no host reads the source `bids`"]);
    check_edits(&[("key = \"/auction\"", "hosts = [\"alpha\"]")], &["9:1 `hosts` has no effect here"]);
    check_clustered(
        &[("hosts.alpha", "hosts.\"al/pha\"")],
        &["28:16 the name `al/pha` has a '/'; names have letters, digits, `-` and `_`"],
    );
}

#[test]
fn a_cluster_has_hosts_partitions_and_workers() {
    let without = CLUSTER.split_once("[cluster.hosts.alpha]").unwrap();
    check_clustered(
        &[(&format!("[cluster.hosts.alpha]{}", without.1), ""), ("leader = \"beta\"\n", "")],
        &["25:2 `[cluster]` has no hosts"],
    );
    check_clustered(&[("workers = 2\n", "")], &["1:2 `workers` is needed where a job has several hosts"]);
    let third = "[cluster.hosts.c]\naddress = \"127.0.0.1:7103\"\n[cluster.hosts.alpha]";
    check_clustered(
        &[("partitions = 16", "partitions = 2"), ("[cluster.hosts.alpha]", third)],
        &["3:14 the job has 2 partitions for 3 hosts: each host needs one"],
    );
    check_clustered(&[("leader", "lost-after = \"100ms\"\nleader")], &["26:14 `lost-after` must be at least 200ms"]);
}

#[test]
fn components_of_several_hosts_are_not_reloaded_by_watching_them() {
    let watched = ("workers = 2", "workers = 2\nreload = \"watch\"");
    let said = "5:10 `reload = \"watch\"` is for a job of one host: leave it out, and bring a new component to all hosts by `wasmill reload`";
    check_clustered(&[watched], &[said]);
}

#[test]
fn addresses_can_be_connected_to() {
    let case = |address: &str, expected: &[&str]| {
        let expected: Vec<_> = expected.iter().map(|message| format!("30:11 {message}")).collect();
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        check_clustered(&[("127.0.0.1:7101", address), ("leader", "insecure = true\nleader")], &expected);
    };
    for address in
        ["127.0.0.1:1", "10.0.0.7:7101", "[::1]:7101", "[fd00::1]:65535", "localhost:7101", "db-1.example.org:80"]
    {
        case(address, &[]);
    }
    for address in ["127.0.0.1", "db1", "", "::1", "[::1]", "fd00::7:7101"] {
        case(address, &[&format!("`{address}` is not an address: it has no port")]);
    }
    for (address, why) in [
        ("db1:", "its port is no number up to 65535"),
        ("db1:x", "its port is no number up to 65535"),
        ("db1:65536", "its port is no number up to 65535"),
        ("db1:0", "others must know the port, so it cannot be 0"),
        (":7101", "it names no host"),
        ("0.0.0.0:7101", "others cannot connect to it"),
        ("[::]:7101", "others cannot connect to it"),
        ("[db1]:7101", "there is no IPv6 address in the brackets"),
        ("http://db1:7101", "it is neither an IP address nor a name"),
    ] {
        case(address, &[&format!("`{address}` is not an address: {why}")]);
    }
    check_clustered(&[("7102", "7101")], &["32:11 the host `alpha` has the address `127.0.0.1:7101`, too"]);
    check_clustered(
        &[("127.0.0.1:7101", "LOCALHOST:1"), ("127.0.0.1:7102", "localhost:1")],
        &["32:11 the host `alpha` has the address `localhost:1`, too"],
    );
}

#[test]
fn a_host_may_listen_elsewhere_than_others_connect_to() {
    let listens = |at: &str| format!("address = \"127.0.0.1:7101\"\nlisten = \"{at}\"");
    let case = |at: &str, expected: &[&str]| {
        let edits = [("address = \"127.0.0.1:7101\"", &*listens(at))];
        check_clustered(&edits, expected);
    };
    case("127.0.0.1:7201", &[]);
    case("7201", &["30:10 `7201` is not an address: it has no port"]);
    case("0.0.0.0:7201", &["30:10 `0.0.0.0:7201` can be reached from elsewhere, and there is no `[cluster.tls]`"]);
    let edits = [("address = \"127.0.0.1:7101\"", &*listens("[::]:7201")), ("leader", "insecure = true\nleader")];
    check_clustered(&edits, &[]);
}

#[test]
fn addresses_of_other_machines_need_tls_or_a_word() {
    let open =
        |address: &str| format!("29:11 `{address}` can be reached from elsewhere, and there is no `[cluster.tls]`");
    for address in ["10.0.0.7:7101", "[fd00::1]:7101", "db1:7101", "[::ffff:10.0.0.1]:1"] {
        check_clustered(&[("127.0.0.1:7101", address)], &[&open(address)]);
        check_clustered(&[("127.0.0.1:7101", address), ("leader", "insecure = true\nleader")], &[]);
        let tls =
            "[cluster.tls]\nca = \"ca.pem\"\ncertificate = \"{host}.pem\"\nkey = \"{host}.key\"\n[cluster.hosts.alpha]";
        check_clustered(&[("127.0.0.1:7101", address), ("[cluster.hosts.alpha]", tls)], &[]);
        check_clustered(
            &[("127.0.0.1:7101", address), ("[cluster.hosts.alpha]", tls), ("leader", "insecure = true\nleader")],
            &["26:1 `insecure` has no effect beside `[cluster.tls]`"],
        );
    }
}

#[test]
fn lookups_between_hosts_are_set_for_all_or_for_one_use() {
    let uses = |fields: &str| {
        let line = format!("inputs = [\"parse\"]\nuses.own = {{ table = \"stats.counts\", {fields} }}");
        clustered(&[("inputs = [\"parse\"]", &line), ("leader", "max-batch = 7\nleader")])
    };
    let gathering = |text: &str| {
        let gathering = graph(text).operators[1].uses[0].gathering;
        (gathering.max_batch, gathering.linger.as_micros())
    };
    assert_eq!(gathering(&uses("read = true")), (7, 100));
    assert_eq!(gathering(&uses("read = true, max-batch = 9, linger = \"0s\"")), (9, 0));
    let loaded = loaded(&uses("update = true, max-batch = 9, linger = \"2s\""));
    let findings = check(&loaded.manifest, loaded.directory()).unwrap_err();
    assert_eq!(
        shown(&loaded, findings),
        [
            "19:53 `max-batch` has no effect here: it is for lookups",
            "19:68 `linger` has no effect here: it is for lookups",
            "19:77 `linger` must be at most 1s",
        ]
    );
}

#[test]
fn colocated_operators_are_there_and_follow_one() {
    let case = |parse: &str, stats: &str, expected: &[&str]| {
        let edits = [
            ("inputs = [\"bids\"]", format!("inputs = [\"bids\"]\n{parse}")),
            ("inputs = [\"parse\"]", format!("inputs = [\"parse\"]\n{stats}")),
        ];
        check_edits(&edits.each_ref().map(|(from, to)| (*from, to.as_str())), expected);
    };
    case("", "colocated-with = \"parse\"", &[]);
    case("", "colocated-with = \"prase\"", &["19:18 unknown operator `prase`, did you mean `parse`?"]);
    case("", "colocated-with = \"bids\"", &["19:18 `bids` is a source, not an operator"]);
    case("", "colocated-with = \"stats\"", &["19:18 a circle: `stats` → `stats`"]);
    case("colocated-with = \"stats\"", "colocated-with = \"parse\"", &["14:18 a circle: `parse` → `stats` → `parse`"]);
    case("colocated-with = \"stats\"", "colocated-with = \"stats\"", &["19:18 a circle: `stats` → `stats`"]);
}

#[test]
fn nothing_is_read_from_where_a_host_writes() {
    let reads = "8:8 the source reads the directory that the sink `out` writes to";
    check_clustered(&[("\"bids.jsonl\"", "\"out/alpha/*.jsonl\"")], &[reads]);
    check_clustered(&[("\"bids.jsonl\"", "\"out/gamma/*.jsonl\"")], &[]);
}
