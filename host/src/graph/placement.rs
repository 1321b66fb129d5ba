//! Where operators stand that do not stand everywhere: alone on the leader's host, or where another operator is.
//!
//! A round of serializable operators is taken by all their tasks together, and reads other tables in its midst, so everything that it touches is on one host. This file is
//! pure, and knows of partitions only that each host has some.

use std::collections::{BTreeMap, VecDeque};

use super::plan::Declared;
use super::{Graph, OperatorIndex};
use crate::manifest::{At, Finding};

/// Why all tasks of an operator are on the leader's host, where a job has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    /// It is serializable, and its rounds are taken on one host.
    Serializable,
    /// This operator uses its tables, and is on the leader's host alone.
    UsedBy(OperatorIndex),
    /// It is colocated with this operator, which is on the leader's host alone.
    ColocatedWith(OperatorIndex),
}

/// Which operators of `graph` are on the leader's host alone, by operator. None of a job of one host.
pub(super) fn alone(graph: &Graph) -> Vec<Option<Alone>> {
    let mut alone = needed_alone(graph);
    for operator in 0..alone.len() {
        let root = root(graph, OperatorIndex(operator));
        if alone[operator].is_none() && alone[root.0].is_some() {
            alone[operator] = Some(Alone::ColocatedWith(root));
        }
    }
    alone
}

/// The same without those that only follow another.
fn needed_alone(graph: &Graph) -> Vec<Option<Alone>> {
    let mut alone = vec![None; graph.operators.len()];
    if graph.hosts.count() == 1 {
        return alone;
    }
    let serializable = (0..alone.len()).filter(|operator| graph.operators[*operator].is_serializable);
    let mut open: VecDeque<usize> = serializable.collect();
    open.iter().for_each(|operator| alone[*operator] = Some(Alone::Serializable));
    while let Some(operator) = open.pop_front() {
        for used in &graph.operators[operator].uses {
            if alone[used.owner.0].is_none() {
                alone[used.owner.0] = Some(Alone::UsedBy(OperatorIndex(operator)));
                open.push_back(used.owner.0);
            }
        }
    }
    alone
}

/// The operator whose tasks those of `operator` follow: itself, unless it is colocated with another.
fn root(graph: &Graph, operator: OperatorIndex) -> OperatorIndex {
    let next = |operator: &OperatorIndex| graph.operators[operator.0].colocated_with;
    // As many steps as there are operators lead to the end of any way that is no circle.
    std::iter::successors(Some(operator), next).take(graph.operators.len()).last().unwrap_or(operator)
}

/// How many tasks the operator has on each host, as far as there are partitions for them.
pub(super) fn parallelism(graph: &Graph, operator: OperatorIndex, workers: u16) -> u16 {
    let root = root(graph, operator);
    graph.operators[root.0].parallelism.unwrap_or(workers).clamp(1, graph.partitions.max(1))
}

/// Holds each `colocated-with` against what its two operators are.
pub(super) fn check_colocation(
    graph: &Graph,
    workers: u16,
    declared: &BTreeMap<String, Declared>,
    findings: &mut Vec<Finding>,
) {
    let alone = needed_alone(graph);
    for (index, node) in graph.operators.iter().enumerate() {
        let root = root(graph, OperatorIndex(index));
        let Some(other) = node.colocated_with.map(|other| &graph.operators[other.0]) else { continue };
        let at = |field: &str| At::value(["operators", &node.name, field]);
        let keyed = |node: &super::OperatorNode| {
            node.key.is_some() || declared.get(&node.name).is_some_and(|declared| !declared.tables.is_empty())
        };
        if let Some(unkeyed) = [node, other].into_iter().find(|node| !keyed(node)) {
            let message = format!(
                "`{}` cannot be colocated with `{}`: `{}` keeps no tables and sets no `key`, so its records go to no task by their keys",
                node.name, other.name, unkeyed.name
            );
            let finding = Finding::error(at("colocated-with"), message);
            findings
                .push(finding.help(format!("remove `colocated-with`, or set `key` in `[operators.{}]`", unkeyed.name)));
        }
        let (asked, has) = (node.parallelism, parallelism(graph, OperatorIndex(index), workers));
        if let Some(asked) = asked.filter(|asked| *asked != has) {
            let message = format!(
                "`parallelism` is {asked}, but `{}`, which `{}` is colocated with, has {has}",
                other.name, node.name
            );
            let help = "leave out `parallelism` here: the operators have the same number of tasks";
            findings.push(Finding::error(at("parallelism"), message).help(help));
        }
        if let (Some(why), None) = (alone[index], alone[root.0]) {
            let message = format!(
                "`{}` is on the leader's host alone, since {}, and cannot be colocated with `{}`, which is on all hosts",
                node.name,
                why.reason(graph),
                other.name
            );
            findings.push(Finding::error(at("colocated-with"), message).help("remove `colocated-with`"));
        }
    }
}

impl Alone {
    /// Completes "it is on the leader's host alone, since …".
    pub fn reason(self, graph: &Graph) -> String {
        let name = |operator: OperatorIndex| &graph.operators[operator.0].name;
        match self {
            Self::Serializable => "it is serializable".to_owned(),
            Self::UsedBy(by) if graph.operators[by.0].is_serializable => {
                format!("`{}`, which is serializable, uses its tables", name(by))
            }
            Self::UsedBy(by) => format!("`{}`, which is there, uses its tables", name(by)),
            Self::ColocatedWith(other) => format!("it is colocated with `{}`, which is there", name(other)),
        }
    }
}
