//! Plans of several hosts: whose partitions are whose, what stays on a host, who is colocated, who is alone, and who reads which split.

use std::collections::BTreeSet;

use super::*;
use crate::key::KeyHash;

/// A job of hosts with the names of letters, in which `count` and `look` keep tables, `look` uses `count`'s, and `copy` keeps nothing.
fn text(hosts: u8, partitions: u16, edits: &[(&str, &str)]) -> String {
    let mut text = format!(
        r#"[job]
name = "job"
partitions = {partitions}
workers = 2
[sources.bids]
kind = "nexmark"
events = 10
key = "/auction"
splits = 5
[sources.files]
kind = "file"
path = "data/*.jsonl"
format = "jsonl"
[operators.copy]
component = "copy.wasm"
inputs = ["bids"]
[operators.count]
component = "count.wasm"
inputs = ["copy", "files"]
key = "/auction"
tables.counts.open = true
[operators.look]
component = "look.wasm"
inputs = ["count"]
uses.counts = {{ table = "count.counts", read = true }}
[sinks.out]
kind = "blackhole"
inputs = ["look"]
"#
    );
    if hosts > 0 {
        text += "[cluster]\n";
    }
    for host in 0..hosts {
        text += &format!(
            "[cluster.hosts.{}]\naddress = \"127.0.0.1:{}\"\n",
            char::from(b'a' + host),
            7101 + u16::from(host)
        );
    }
    edits.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

fn declarations() -> BTreeMap<String, Declared> {
    let tables = |uses: &[&str], table: &str| Declared {
        tables: vec![(table.to_owned(), 1)],
        open: vec![table.to_owned()],
        uses: uses.iter().map(ToString::to_string).collect(),
        ..Declared::default()
    };
    [("copy", Declared::default()), ("count", tables(&[], "counts")), ("look", tables(&["counts"], "seen"))]
        .map(|(name, declared)| (name.to_owned(), declared))
        .into()
}

const COPY: usize = 0;
const COUNT: usize = 1;
const LOOK: usize = 2;

fn plan(text: &str) -> Plan {
    Plan::new(&graph(text), 2, &declarations()).unwrap_or_else(|findings| panic!("{findings:?}")).0
}

/// What is said of the plan: `line:column message`.
#[track_caller]
fn check_plan(text: &str, expected: &[&str]) {
    let findings = match Plan::new(&graph(text), 2, &declarations()) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    assert_eq!(shown(&loaded(text), findings), expected);
}

/// The tasks of an operator: host, worker, first and last partition.
fn tasks(plan: &Plan, operator: usize) -> Vec<(u16, u16, u16, u16)> {
    let show = |task: &Task| (task.host, task.worker, task.partitions.start, task.partitions.end - 1);
    plan.tasks[plan.operators[operator].tasks.clone()].iter().map(show).collect()
}

#[test]
fn each_host_has_a_range_of_partitions_and_its_own_workers() {
    let plan = plan(&text(2, 8, &[("inputs = [\"count\"]", "inputs = [\"count\"]\nparallelism = 3")]));
    assert_eq!(tasks(&plan, COUNT), [(0, 0, 0, 1), (0, 1, 2, 3), (1, 0, 4, 5), (1, 1, 6, 7)]);
    let three = [(0, 0, 0, 1), (0, 1, 2, 2), (0, 0, 3, 3), (1, 0, 4, 5), (1, 1, 6, 6), (1, 0, 7, 7)];
    assert_eq!(tasks(&plan, LOOK), three);
    assert_eq!(plan.operators[LOOK].tasks_on(1), 11..14);
    assert_eq!(plan.operators[LOOK].parallelism(), 6);
}

#[test]
fn one_host_is_planned_as_a_job_without_a_cluster() {
    let one = Plan { hosts: Hosts::default(), ..plan(&text(1, 16, &[])) };
    assert_eq!(one, plan(&text(0, 16, &[])));
}

#[test]
fn serializable_operators_and_those_whose_tables_they_use_are_on_the_leaders_host() {
    let serializable = |edits: &[(&str, &str)]| {
        let isolation = ("inputs = [\"count\"]", "inputs = [\"count\"]\nisolation = \"serializable\"");
        plan(&text(3, 16, &[&[isolation], edits].concat()))
    };
    let plan = serializable(&[("[cluster]", "[cluster]\nleader = \"c\"")]);
    let alone: Vec<_> = plan.operators.iter().map(|operator| operator.alone).collect();
    assert_eq!(alone, [None, Some(Alone::UsedBy(OperatorIndex(LOOK))), Some(Alone::Serializable)]);
    for operator in [COUNT, LOOK] {
        assert_eq!(tasks(&plan, operator), [(2, 0, 0, 7), (2, 1, 8, 15)]);
        assert!(plan.operators[operator].tasks_on(0).is_empty());
        assert_eq!(plan.operators[operator].forward_tasks(0), plan.operators[operator].tasks);
    }
    assert_eq!(tasks(&plan, COPY).len(), 6);
    let one =
        self::plan(&text(1, 16, &[("inputs = [\"count\"]", "inputs = [\"count\"]\nisolation = \"serializable\"")]));
    assert!(one.operators.iter().all(|operator| operator.alone.is_none()));
}

#[test]
fn tables_that_are_used_on_the_leaders_host_are_there_in_turn() {
    let graph = graph(&text(
        2,
        16,
        &[
            ("inputs = [\"count\"]", "inputs = [\"count\"]\nisolation = \"serializable\""),
            ("tables.counts", "uses.copies = { table = \"copy.copies\", read = true }\ntables.counts"),
        ],
    ));
    let alone = placement::alone(&graph);
    assert_eq!(alone[COPY], Some(Alone::UsedBy(OperatorIndex(COUNT))));
    assert_eq!(alone[COUNT], Some(Alone::UsedBy(OperatorIndex(LOOK))));
}

#[test]
fn what_stays_together_or_keeps_its_key_does_not_travel() {
    let check = |text: &str, edges: &[Travel], lookups: Travel| {
        let (graph, plan) = (graph(text), plan(text));
        let ways = graph.edges.iter().zip(&plan.routings);
        let travels = ways.map(|(edge, routing)| plan.travel_of_edge(edge, *routing)).collect::<Vec<_>>();
        assert_eq!(travels, edges);
        assert_eq!(plan.travel_of_use(OperatorIndex(LOOK), &plan.operators[LOOK].uses[0]), lookups);
    };
    use Travel::{ByKey, Nothing, OtherKeys, ToLeader};
    // Into `copy`, into `count` from `copy` and from the files, into `look`, and out.
    check(&text(1, 16, &[]), &[Nothing; 5], Nothing);
    check(&text(2, 16, &[]), &[Nothing, ByKey, ByKey, OtherKeys, Nothing], OtherKeys);
    let serializable = ("[\"copy\", \"files\"]", "[\"copy\", \"files\"]\nisolation = \"serializable\"");
    check(&text(2, 16, &[serializable]), &[Nothing, ToLeader, ToLeader, ByKey, Nothing], ToLeader);
    let re_keyed = ("inputs = [\"count\"]", "inputs = [\"count\"]\nkey = \"/bidder\"");
    check(&text(2, 16, &[re_keyed]), &[Nothing, ByKey, ByKey, ByKey, Nothing], OtherKeys);
}

#[test]
fn a_colocated_operator_has_the_tasks_of_the_other() {
    let colocated = ("inputs = [\"count\"]", "inputs = [\"count\"]\ncolocated-with = \"count\"");
    let three = ("key = \"/auction\"\ntables", "key = \"/auction\"\nparallelism = 3\ntables");
    let colocated_plan = plan(&text(2, 16, &[colocated, three]));
    assert_eq!(tasks(&colocated_plan, LOOK), tasks(&colocated_plan, COUNT));
    assert_eq!(tasks(&colocated_plan, LOOK).len(), 6);
    let serializable =
        ("inputs = [\"copy\", \"files\"]", "inputs = [\"copy\", \"files\"]\nisolation = \"serializable\"");
    let alone = plan(&text(2, 16, &[colocated, serializable]));
    assert_eq!(alone.operators[LOOK].alone, Some(Alone::ColocatedWith(OperatorIndex(COUNT))));
    assert_eq!(tasks(&alone, LOOK), tasks(&alone, COUNT));
}

#[test]
fn operators_that_do_not_fit_are_not_colocated() {
    let look = |lines: &str| text(2, 16, &[("inputs = [\"count\"]", &format!("inputs = [\"count\"]\n{lines}"))]);
    check_plan(&look("colocated-with = \"count\"\nparallelism = 2"), &[]);
    check_plan(
        &look("colocated-with = \"count\"\nparallelism = 3"),
        &["26:15 `parallelism` is 3, but `count`, which `look` is colocated with, has 2"],
    );
    check_plan(
        &look("colocated-with = \"copy\""),
        &[
            "25:18 `look` cannot be colocated with `copy`: `copy` keeps no tables and sets no `key`, so its records go to no task by their keys",
        ],
    );
    check_plan(&look("isolation = \"serializable\"\ncolocated-with = \"count\""), &[]);
    let used = text(
        2,
        16,
        &[
            ("inputs = [\"count\"]", "inputs = [\"count\"]\nisolation = \"serializable\""),
            ("inputs = [\"bids\"]", "inputs = [\"bids\"]\nkey = \"/auction\""),
            ("tables.counts", "colocated-with = \"copy\"\ntables.counts"),
        ],
    );
    check_plan(
        &used,
        &[
            "22:18 `count` is on the leader's host alone, since `look`, which is serializable, uses its tables, and cannot be colocated with `copy`, which is on all hosts",
        ],
    );
}

#[test]
fn a_host_with_few_partitions_has_few_tasks_and_that_is_said() {
    let text = text(3, 10, &[("inputs = [\"count\"]", "inputs = [\"count\"]\nparallelism = 4")]);
    check_plan(
        &text,
        &[
            "25:15 warning: `parallelism` is 4 on each host, but 3 hosts share 10 partitions, one of them only 3: each task needs one",
        ],
    );
    let plan = plan(&text);
    let counts = (0..3).map(|host| plan.operators[LOOK].tasks_on(host).len()).collect::<Vec<_>>();
    assert_eq!(counts, [4, 3, 3]);
}

#[test]
fn splits_are_read_by_one_host_each() {
    let graph = graph(&text(3, 16, &[("path =", "hosts = [\"a\", \"c\"]\npath =")]));
    let [bids, files] = graph.sources.as_slice() else { panic!("two sources") };
    assert_eq!((0..5).map(|split| bids.split_host(split, "")).collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
    let read_by = |name: &str| files.split_host(7, name);
    for name in ["2024.jsonl", "x/y.gz", ""] {
        assert_eq!(read_by(name), [0, 2][(KeyHash::of(name.as_bytes()).0 % 2) as usize], "{name}");
    }
    let all: BTreeSet<_> = (0..50).map(|file| read_by(&format!("part-{file}"))).collect();
    assert_eq!(all, [0, 2].into());
    let stdin = text(
        3,
        16,
        &[
            ("kind = \"nexmark\"\nevents = 10\n", "kind = \"stdin\"\nformat = \"jsonl\"\n"),
            ("splits = 5\n", ""),
            ("[cluster]", "[cluster]\nleader = \"b\""),
        ],
    );
    assert_eq!(super::graph(&stdin).sources[0].split_host(0, "stdin"), 1);
}

proptest! {
    #[test]
    fn partitions_are_shared_out_evenly_and_colocated_keys_meet(
        hosts in 1..9u8,
        partitions in 9..600u16,
        workers in 1..5u16,
        wanted in proptest::option::of(1..9u16),
    ) {
        let colocated = ("inputs = [\"count\"]", "inputs = [\"count\"]\ncolocated-with = \"count\"");
        let mut graph = graph(&text(hosts, partitions, &[colocated]));
        graph.operators[COUNT].parallelism = wanted;
        let (plan, _) = Plan::new(&graph, workers, &declarations()).unwrap();
        for (index, operator) in plan.operators.iter().enumerate() {
            let mut owned = vec![0; usize::from(partitions)];
            for (place, task) in plan.tasks.iter().enumerate().filter(|(_, task)| task.operator.0 == index) {
                prop_assert!(operator.tasks_on(task.host).contains(&place) && task.worker < workers);
                prop_assert_eq!(operator.tasks.start + usize::from(task.index), place);
                task.partitions.clone().for_each(|partition| owned[usize::from(partition)] += 1);
            }
            prop_assert!(owned.iter().all(|owners| *owners == 1));
            let shares: Vec<usize> = (0..u16::from(hosts))
                .map(|host| plan.tasks[operator.tasks_on(host)].iter().map(|task| task.partitions.len()).sum())
                .collect();
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{:?}", shares);
            for host in 0..u16::from(hosts) {
                let local = operator.forward_tasks(host);
                prop_assert!(plan.tasks[local.clone()].iter().all(|task| task.host == host));
                let owners = operator.forward_owners(host);
                prop_assert_eq!(owners.len(), usize::from(partitions));
                prop_assert!(owners.is_sorted() && owners.iter().all(|owner| usize::from(*owner) < local.len()));
                for from in 0..9 {
                    prop_assert!(local.contains(&plan.forward(OperatorIndex(index), host, from).0));
                }
                if hosts == 1 {
                    prop_assert_eq!(&owners[..], operator.owners());
                }
            }
        }
        for partition in (0..partitions).map(Partition) {
            let [one, other] = [COUNT, LOOK].map(|operator| &plan.tasks[plan.owner(OperatorIndex(operator), partition).0]);
            prop_assert_eq!((one.host, one.worker), (other.host, other.worker));
            // As the hosts' own list has it: see the membership.
            prop_assert_eq!(u32::from(one.host), u32::from(partition.0) * u32::from(hosts) / u32::from(partitions));
        }
    }
}
