//! From a graph to tasks: who owns which partitions and which way records take.
//!
//! A plan is a function of the graph, the number of workers and what the components declare, and of nothing else: two starts with the
//! same three have the same plan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::names::name_fault;
use super::progress::{Flows, Upstream, yielding as yielding_sources};
use super::uses::{PlannedTable, PlannedUse, check_uses, planned_tables, planned_uses};
use super::{Consumer, DEFAULT_PORT, Edge, Graph, OperatorIndex, OperatorNode, Producer};
use crate::key::Partition;
use crate::manifest::{At, Finding, Severity, did_you_mean, listed};

/// The greatest schema version: the bit above it says something else of stored values.
const SCHEMA_VERSION_MAX: u32 = i32::MAX as u32;

/// What an operator's component says of itself, as far as a plan depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
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

/// A task, by its place in [`Plan::tasks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);

/// One parallel instance of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The operator.
    pub operator: OperatorIndex,
    /// Which of the operator's tasks it is, counted from 0.
    pub index: u16,
    /// The partitions that it owns: at least one.
    pub partitions: Range<u16>,
    /// The host that it runs on, by its place in the list of hosts.
    pub host: u16,
    /// The worker of its host that it runs on, counted from 0.
    pub worker: u16,
}

/// How records come from a producer to the tasks of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Each record goes to the task that owns its key's partition.
    Hash,
    /// Records stay together: from the producer's task (or split) `i` to task `i` modulo the number of tasks. Also for sinks, which have one writer.
    Forward,
}

/// An operator's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorPlan {
    /// Whether records come to the task that owns their key: the operator keeps tables, or sets a `key`.
    pub is_keyed: bool,
    /// Its tasks, as places in [`Plan::tasks`].
    pub tasks: Range<usize>,
    /// Its own tables, in the order in which its component declares them.
    pub tables: Vec<PlannedTable>,
    /// The tables that it uses beside its own, sorted by name.
    pub uses: Vec<PlannedUse>,
    /// What its records come from, and who else changes its tables: how far it has come in event time depends on these.
    pub upstream: Upstream,
    /// The index of the owning task for each partition.
    owners: Box<[u16]>,
}

impl OperatorPlan {
    /// The index of the owning task for each partition.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// How many tasks it has, at least 1.
    pub fn parallelism(&self) -> u16 {
        // At most one task a partition, and these are counted by u16.
        self.tasks.len() as u16
    }
}

/// Who does what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The number of workers, at least 1.
    pub workers: u16,
    /// All tasks: operator by operator, in the order of their partitions.
    pub tasks: Vec<Task>,
    /// By operator, in the graph's order.
    pub operators: Vec<OperatorPlan>,
    /// By edge, in the graph's order.
    pub routings: Vec<Routing>,
    /// By source, in the graph's order: whether it makes room for others while much waits for them. It feeds who waits, and nobody who is waited for.
    pub yielding: Vec<bool>,
}

impl Plan {
    /// Distributes the operators of `graph` over `workers` (0 counts as 1). `declared` is by operator name; an operator that is not in it declares
    /// nothing. The findings beside the plan are warnings.
    ///
    /// # Errors
    /// Everything that does not fit, when there is an error among it: a port that is read but not declared, a declaration that contradicts itself, a
    /// table without keys to keep it by, a table that is used but not there or not open.
    pub fn new(
        graph: &Graph,
        workers: u16,
        declared: &BTreeMap<String, Declared>,
    ) -> Result<(Self, Vec<Finding>), Vec<Finding>> {
        let findings = findings(graph, declared);
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        let workers = workers.max(1);
        let (tasks, operators, routings, yielding) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { workers, tasks, operators, routings, yielding };
        let nothing = Declared::default();
        let declared = |node: &OperatorNode| declared.get(&node.name).unwrap_or(&nothing);
        let tables: Vec<_> = graph.operators.iter().map(|node| planned_tables(node, declared(node))).collect();
        let flows = Flows::of(graph, &tables);
        let bound = bound_to_leader(graph);
        for (index, node) in graph.operators.iter().enumerate() {
            let hosts = if bound.contains(&index) { 1 } else { graph.hosts.clamp(1, graph.partitions.max(1)) };
            let parallelism = node.parallelism.unwrap_or(workers);
            let (tasks, owners) = plan.add_tasks(OperatorIndex(index), graph.partitions.max(1), hosts, parallelism);
            plan.operators.push(OperatorPlan {
                is_keyed: !tables[index].is_empty() || node.key.is_some(),
                tasks,
                tables: tables[index].clone(),
                uses: planned_uses(graph, OperatorIndex(index), &tables, &flows),
                upstream: flows.upstream(OperatorIndex(index)),
                owners,
            });
        }
        plan.routings = graph.edges.iter().map(|edge| plan.routing(edge)).collect();
        plan.yielding = yielding_sources(graph.sources.len(), &plan.operators);
        Ok((plan, findings))
    }

    /// Adds the tasks of an operator, at most `parallelism` a host. Returns their places, and the index of the owning one for each partition.
    fn add_tasks(
        &mut self,
        operator: OperatorIndex,
        partitions: u16,
        hosts: u16,
        parallelism: u16,
    ) -> (Range<usize>, Box<[u16]>) {
        let first = self.tasks.len();
        let mut owners = vec![0; usize::from(partitions)];
        for (host, share) in (0..).zip(ranges(partitions, hosts)) {
            let length = share.end - share.start;
            for (number, range) in (0..).zip(ranges(length, parallelism.clamp(1, length))) {
                let range = share.start + range.start..share.start + range.end;
                let index = (self.tasks.len() - first) as u16;
                owners[usize::from(range.start)..usize::from(range.end)].fill(index);
                self.tasks.push(Task { operator, index, partitions: range, host, worker: number % self.workers });
            }
        }
        (first..self.tasks.len(), owners.into())
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

    /// The task of `operator` that gets what comes from task or split number `from` by [`Routing::Forward`].
    ///
    /// # Panics
    /// When the operator is not of this plan's graph.
    pub fn forward(&self, operator: OperatorIndex, from: usize) -> TaskId {
        let tasks = &self.operators[operator.0].tasks;
        TaskId(tasks.start + from % tasks.len())
    }
}

/// The operators whose tasks are all on the leader's host: the serializable ones, whose rounds stand still together, and those whose tables they use.
fn bound_to_leader(graph: &Graph) -> BTreeSet<usize> {
    let serializable = graph.operators.iter().enumerate().filter(|(_, node)| node.is_serializable);
    serializable.flat_map(|(index, node)| node.uses.iter().map(|used| used.owner.0).chain([index])).collect()
}

/// The partitions in `parts` runs whose lengths differ by one at most, the longer ones first.
fn ranges(partitions: u16, parts: u16) -> impl Iterator<Item = Range<u16>> {
    let (length, longer) = (partitions / parts, partitions % parts);
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
        find_keyless(graph, OperatorIndex(index), own, &mut findings);
        check_ports(graph, OperatorIndex(index), own, &mut findings);
        check_uses(graph, OperatorIndex(index), declared, &mut findings);
    }
    findings
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
