//! From a graph to tasks: who owns which partitions and which way records take.
//!
//! A plan is a function of the graph (the hosts among it), the number of workers and what the components declare, and of nothing else: two starts with the
//! same three have the same plan, and so have all hosts of a job, each of which knows the tasks of all.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::hosts::shares;
use super::names::name_fault;
use super::placement::{Alone, alone, check_colocation, parallelism};
use super::progress::{Flows, Upstream, yielding as yielding_sources};
use super::uses::{PlannedTable, PlannedUse, check_uses, planned_tables, planned_uses};
use super::{Consumer, DEFAULT_PORT, Edge, Graph, Hosts, OperatorIndex, OperatorNode, Producer};
use crate::key::Partition;
use crate::manifest::{At, Finding, Severity, did_you_mean, listed};

/// The greatest schema version: the bit above it says something else of stored values.
const SCHEMA_VERSION_MAX: u32 = i32::MAX as u32;

/// What an operator's component says of itself, as far as a plan depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// The SHA-256 of the component, in hexadecimal digits.
    pub sha256: String,
    /// The names of its tables, and the version of their values' encoding.
    pub tables: Vec<(String, u32)>,
    /// The tables among them that it opens to other operators.
    pub open: Vec<String>,
    /// The tables among them that it wants to be scanned.
    pub ordered: Vec<String>,
    /// The tables among them that keep earlier values by event time, with the span for which they do, in milliseconds.
    pub versioned: Vec<(String, u64)>,
    /// The names of the tables that it uses beside its own.
    pub uses: Vec<String>,
    /// The ports that it emits on, beside [`DEFAULT_PORT`].
    pub ports: Vec<String>,
}

/// A task, by its place in [`Plan::tasks`]: its number in the whole job, the same on every host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);

/// One parallel instance of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The operator.
    pub operator: OperatorIndex,
    /// Which of the operator's tasks it is, of all hosts, counted from 0.
    pub index: u16,
    /// The partitions that it owns: at least one.
    pub partitions: Range<u16>,
    /// The host that it runs on.
    pub host: u16,
    /// The worker of that host that it runs on, counted from 0.
    pub worker: u16,
}

/// How records come from a producer to the tasks of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Each record goes to the task that owns its key's partition.
    Hash,
    /// Records stay together, and on their host: from the producer's task (or split) `i` to task `i` modulo the number of tasks, of those of [`OperatorPlan::forward_tasks`]. Also for sinks, which have
    /// one writer on each host.
    Forward,
}

/// An operator's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorPlan {
    /// Whether records come to the task that owns their key: the operator keeps tables, or sets a `key`.
    pub is_keyed: bool,
    /// Its tasks on all hosts, as places in [`Plan::tasks`]: in the order of their partitions, which is that of the hosts.
    pub tasks: Range<usize>,
    /// Its own tables, in the order in which its component declares them.
    pub tables: Vec<PlannedTable>,
    /// The tables that it uses beside its own, sorted by name.
    pub uses: Vec<PlannedUse>,
    /// What its records come from, and who else changes its tables: how far it has come in event time depends on these.
    pub upstream: Upstream,
    /// Why all its tasks are on the leader's host, if they are; of a job of one host always `None`.
    pub alone: Option<Alone>,
    /// The index of the owning task for each partition.
    owners: Box<[u16]>,
    /// Its tasks on each host.
    by_host: Box<[Range<usize>]>,
}

impl OperatorPlan {
    /// The index of the owning task for each partition.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// How many tasks it has on all hosts, at least 1.
    pub fn parallelism(&self) -> u16 {
        // At most one task a partition, and these are counted by u16.
        self.tasks.len() as u16
    }

    /// Its tasks on `host`, as places in [`Plan::tasks`]. None on other hosts than the leader's where [`OperatorPlan::alone`] is set.
    ///
    /// # Panics
    /// When the job has no such host.
    pub fn tasks_on(&self, host: u16) -> Range<usize> {
        self.by_host[usize::from(host)].clone()
    }

    /// The tasks that get what comes from `host` by [`Routing::Forward`]: those on it, or all where it has none.
    ///
    /// # Panics
    /// When the job has no such host.
    pub fn forward_tasks(&self, host: u16) -> Range<usize> {
        Some(self.tasks_on(host)).filter(|tasks| !tasks.is_empty()).unwrap_or(self.tasks.clone())
    }

    /// For each partition the task, as a place in [`OperatorPlan::forward_tasks`], that gets its records from `host`, where those of one key shall stay in order without being partitioned over all
    /// hosts. The same as [`OperatorPlan::owners`] in a job of one host.
    ///
    /// # Panics
    /// When the job has no such host.
    pub fn forward_owners(&self, host: u16) -> Vec<u16> {
        // No more than there are tasks, which are counted by u16.
        let tasks = self.forward_tasks(host).len() as u16;
        let partitions = self.owners.len() as u16;
        ranges(partitions, tasks).zip(0..).flat_map(|(range, task)| range.map(move |_| task)).collect()
    }
}

/// Who does what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The hosts.
    pub hosts: Hosts,
    /// The number of workers of each host, at least 1.
    pub workers: u16,
    /// All tasks of all hosts: operator by operator, in the order of their partitions, which is that of the hosts.
    pub tasks: Vec<Task>,
    /// By operator, in the graph's order.
    pub operators: Vec<OperatorPlan>,
    /// By edge, in the graph's order.
    pub routings: Vec<Routing>,
    /// By source, in the graph's order: whether it makes room for others while much waits for them. It feeds who waits, and nobody who is waited for.
    pub yielding: Vec<bool>,
}

impl Plan {
    /// Distributes the operators of `graph` over its hosts, each with `workers` (0 counts as 1). `declared` is by operator name; an operator that is not in it declares
    /// nothing. The findings beside the plan are warnings.
    ///
    /// # Errors
    /// Everything that does not fit, when there is an error among it: a port that is read but not declared, a declaration that contradicts itself, a
    /// table without keys to keep it by, a table that is used but not there or not open, operators that are colocated and do not fit each other.
    pub fn new(
        graph: &Graph,
        workers: u16,
        declared: &BTreeMap<String, Declared>,
    ) -> Result<(Self, Vec<Finding>), Vec<Finding>> {
        let workers = workers.max(1);
        let mut findings = findings(graph, declared);
        check_colocation(graph, workers, declared, &mut findings);
        find_few_partitions(graph, &mut findings);
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        let (tasks, operators, routings, yielding) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { hosts: graph.hosts.clone(), workers, tasks, operators, routings, yielding };
        let nothing = Declared::default();
        let declared = |node: &OperatorNode| declared.get(&node.name).unwrap_or(&nothing);
        let tables: Vec<_> = graph.operators.iter().map(|node| planned_tables(node, declared(node))).collect();
        let flows = Flows::of(graph, &tables);
        let alone = alone(graph);
        for (index, node) in graph.operators.iter().enumerate() {
            let first = plan.tasks.len();
            let parallelism = parallelism(graph, OperatorIndex(index), workers);
            let shares = plan.shares(graph.partitions.max(1), alone[index].is_some());
            let by_host = (0..)
                .zip(shares)
                .map(|(host, share)| plan.add_tasks(OperatorIndex(index), host, share, parallelism))
                .collect();
            plan.operators.push(OperatorPlan {
                is_keyed: !tables[index].is_empty() || node.key.is_some(),
                tasks: first..plan.tasks.len(),
                tables: tables[index].clone(),
                uses: planned_uses(graph, OperatorIndex(index), &tables, &flows),
                upstream: flows.upstream(OperatorIndex(index)),
                alone: alone[index],
                owners: plan.owners_of(first, graph.partitions.max(1)),
                by_host,
            });
        }
        plan.routings = graph.edges.iter().map(|edge| plan.routing(edge)).collect();
        plan.yielding = yielding_sources(graph.sources.len(), &plan.operators);
        Ok((plan, findings))
    }

    /// The partitions of an operator on each host: all on the leader's where it stands alone.
    fn shares(&self, partitions: u16, is_alone: bool) -> Vec<Range<u16>> {
        if !is_alone {
            return shares(partitions, self.hosts.count()).collect();
        }
        let share = |host: u16| if host == self.hosts.leader() { 0..partitions } else { 0..0 };
        (0..self.hosts.count()).map(share).collect()
    }

    /// Adds the tasks of an operator on a host, up to `parallelism`. Returns their places.
    fn add_tasks(&mut self, operator: OperatorIndex, host: u16, share: Range<u16>, parallelism: u16) -> Range<usize> {
        let first = self.tasks.len();
        let before = self.operators.last().map_or(0, |operator| operator.tasks.end);
        let parts = parallelism.min(share.end - share.start);
        for (worker, range) in (0..).zip(ranges(share.end - share.start, parts)) {
            self.tasks.push(Task {
                operator,
                index: (self.tasks.len() - before) as u16,
                partitions: share.start + range.start..share.start + range.end,
                host,
                worker: worker % self.workers,
            });
        }
        first..self.tasks.len()
    }

    /// The index of the owning task for each partition, of an operator whose tasks are those from `first` on.
    fn owners_of(&self, first: usize, partitions: u16) -> Box<[u16]> {
        let mut owners = vec![0; usize::from(partitions)];
        for task in &self.tasks[first..] {
            owners[usize::from(task.partitions.start)..usize::from(task.partitions.end)].fill(task.index);
        }
        owners.into()
    }

    fn routing(&self, edge: &Edge) -> Routing {
        match edge.to {
            Consumer::Operator(operator) if self.operators[operator.0].is_keyed => Routing::Hash,
            _ => Routing::Forward,
        }
    }

    /// The task of `operator` that owns `partition`.
    ///
    /// # Panics
    /// When the operator is not of this plan's graph, or the job has no such partition.
    pub fn owner(&self, operator: OperatorIndex, partition: Partition) -> TaskId {
        let plan = &self.operators[operator.0];
        TaskId(plan.tasks.start + usize::from(plan.owners[usize::from(partition.0)]))
    }

    /// The task of `operator` that gets what comes from task or split number `from` of `host` by [`Routing::Forward`].
    ///
    /// # Panics
    /// When the operator is not of this plan's graph, or the job has no such host.
    pub fn forward(&self, operator: OperatorIndex, host: u16, from: usize) -> TaskId {
        let tasks = self.operators[operator.0].forward_tasks(host);
        TaskId(tasks.start + from % tasks.len())
    }
}

/// The partitions in `parts` runs whose lengths differ by one at most, the longer ones first. Nothing where there are no parts.
fn ranges(partitions: u16, parts: u16) -> impl Iterator<Item = Range<u16>> {
    let (length, longer) = (partitions / parts.max(1), partitions % parts.max(1));
    (0..parts).scan(0, move |start, part| {
        let end = *start + length + u16::from(part < longer);
        Some(std::mem::replace(start, end)..end)
    })
}

fn findings(graph: &Graph, declared: &BTreeMap<String, Declared>) -> Vec<Finding> {
    let nothing = Declared::default();
    let mut findings = Vec::new();
    for (index, operator) in graph.operators.iter().enumerate() {
        let own = declared.get(&operator.name).unwrap_or(&nothing);
        let at = || At::value(["operators", operator.name.as_str(), "component"]);
        findings.extend(declaration_faults(own).into_iter().map(|fault| Finding::error(at(), fault)));
        check_pinned(operator, own, &mut findings);
        find_keyless(graph, OperatorIndex(index), own, &mut findings);
        check_ports(graph, OperatorIndex(index), own, &mut findings);
        check_uses(graph, OperatorIndex(index), declared, &mut findings);
    }
    findings
}

/// A component that is not the one that the manifest pins.
fn check_pinned(operator: &OperatorNode, own: &Declared, findings: &mut Vec<Finding>) {
    let Some(pinned) = operator.sha256.as_ref().filter(|pinned| **pinned != own.sha256) else { return };
    let message = format!("the component's SHA-256 is {}, and the manifest pins {pinned}", own.sha256);
    let help = "put the component in place that is meant, or its digest here (`wasmill inspect` shows it)";
    findings.push(Finding::error(At::value(["operators", operator.name.as_str(), "sha256"]), message).help(help));
}

/// Where an operator has fewer tasks on a host than it asks for, since the host has fewer partitions.
fn find_few_partitions(graph: &Graph, findings: &mut Vec<Finding>) {
    let hosts = graph.hosts.count();
    let least = (graph.partitions / hosts).max(1);
    let everywhere = graph.operators.iter().zip(alone(graph)).filter(|(_, alone)| alone.is_none());
    for (node, _) in everywhere {
        let Some(asked) = node.parallelism.filter(|asked| *asked > least && hosts > 1) else { continue };
        let message = format!(
            "`parallelism` is {asked} on each host, but {hosts} hosts share {} partitions, one of them only {least}: each task needs one",
            graph.partitions
        );
        let at = At::value(["operators", &node.name, "parallelism"]);
        findings
            .push(Finding::warning(at, message).help("lower it, or raise `job.partitions` before the job has state"));
    }
}

/// What a component says of itself and should not.
fn declaration_faults(declared: &Declared) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for (table, version) in &declared.tables {
        faults.extend(name_fault(table).map(|fault| format!("the component declares a table: {fault}")));
        if !seen.insert(table) {
            faults.push(format!("the component declares the table `{table}` twice"));
        }
        if *version == 0 {
            faults
                .push(format!("the component declares schema version 0 for the table `{table}`; versions start at 1"));
        }
        if *version > SCHEMA_VERSION_MAX {
            faults.push(format!(
                "the component declares schema version {version} for the table `{table}`; the last is {SCHEMA_VERSION_MAX}"
            ));
        }
    }
    let mut seen = BTreeSet::from([DEFAULT_PORT]);
    for port in &declared.ports {
        faults.extend(name_fault(port).map(|fault| format!("the component declares a port: {fault}")));
        if !seen.insert(port) {
            let why = if port == DEFAULT_PORT { ", which every operator has" } else { " twice" };
            faults.push(format!("the component declares the port `{port}`{why}"));
        }
    }
    faults
}

/// Tables are kept by key: every input must have one.
fn find_keyless(graph: &Graph, operator: OperatorIndex, declared: &Declared, findings: &mut Vec<Finding>) {
    let node = &graph.operators[operator.0];
    if declared.tables.is_empty() || node.key.is_some() {
        return;
    }
    for edge in graph.edges_to(Consumer::Operator(operator)) {
        let Producer::Source(source) = edge.from else { continue };
        let source = &graph.sources[source.0];
        if !source.has_key {
            let tables = listed(declared.tables.iter().map(|(name, _)| name.as_str()));
            let at = At::value(["operators", &node.name, "inputs", &edge.input.to_string()]);
            let message = format!("`{}` keeps {tables} by key, but the source `{}` has no key", node.name, source.name);
            findings.push(Finding::error(at, message).help(format!(
                "set `key` in `[sources.{}]`, or in `[operators.{}]` to key its input",
                source.name, node.name
            )));
        }
    }
}

/// Ports that are read must be declared; those that are declared should be read.
fn check_ports(graph: &Graph, operator: OperatorIndex, declared: &Declared, findings: &mut Vec<Finding>) {
    let name = &graph.operators[operator.0].name;
    let ports = || [DEFAULT_PORT].into_iter().chain(declared.ports.iter().map(String::as_str));
    let mut read = BTreeSet::new();
    for edge in graph.edges_from_operator(operator) {
        let Producer::Operator { port, .. } = &edge.from else { continue };
        read.insert(port.as_str());
        if !ports().any(|known| known == port) {
            let message = format!("the operator `{name}` has no port `{port}`{}", did_you_mean(port, ports()));
            let finding = Finding::error(input_at(graph, edge), message);
            findings.push(finding.help(format!("its component has the ports {}", listed(ports()))));
        }
    }
    // Of an operator that nobody reads at all, the graph's check has told already.
    if !read.is_empty() {
        for port in declared.ports.iter().filter(|port| !read.contains(port.as_str())) {
            let at = At::value(["operators", name, "component"]);
            let message = format!("nobody reads the port `{port}` of `{name}`: what is emitted there is dropped");
            findings.push(Finding::warning(at, message));
        }
    }
}

fn input_at(graph: &Graph, edge: &Edge) -> At {
    let (table, name) = match edge.to {
        Consumer::Operator(operator) => ("operators", &graph.operators[operator.0].name),
        Consumer::Sink(sink) => ("sinks", &graph.sinks[sink.0].name),
    };
    let list = if edge.feedback { "feedback" } else { "inputs" };
    At::value([table, name, list, &edge.input.to_string()])
}
