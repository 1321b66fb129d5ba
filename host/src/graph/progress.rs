//! Whose progress in event time an operator's depends on, and who may wait for whom.
//!
//! An operator has come as far as everything has that may still change its tables: the sources and operators that its records come from, by whatever way, and the operators
//! that change its tables by updates or send records to it. A record that waits for an operator's progress holds back its own operator's. So nobody may wait for an
//! operator that depends on them, be it by such a wait: it would never come. This file is pure; how far anybody has come is not its business.

use std::collections::BTreeSet;

use super::uses::PlannedTable;
use super::{Consumer, Graph, OperatorIndex, OperatorPlan, Producer, SourceIndex};

/// Whether records of an operator may wait until another has come to a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// They may.
    Allowed,
    /// No: the operator is serializable, and a round does not outlast an epoch.
    Serializable,
    /// No: how far the other has come depends on the operator itself.
    Circular,
}

/// What the progress of an operator depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upstream {
    /// The sources, in the graph's order.
    pub sources: Vec<SourceIndex>,
    /// The operators, in the graph's order; it is among them itself.
    pub operators: Vec<OperatorIndex>,
}

/// Who depends on whom.
pub(super) struct Flows {
    /// By operator: the sources that it depends on directly.
    sources: Vec<Vec<SourceIndex>>,
    /// By operator: the operators that it depends on directly.
    operators: Vec<BTreeSet<usize>>,
    /// By operator: the operators that it may wait for.
    waits: Vec<BTreeSet<usize>>,
}

impl Flows {
    /// Of `graph`, whose operators keep `tables`, in its order.
    pub(super) fn of(graph: &Graph, tables: &[Vec<PlannedTable>]) -> Self {
        let count = graph.operators.len();
        let mut flows = Self {
            sources: vec![Vec::new(); count],
            operators: vec![BTreeSet::new(); count],
            waits: vec![BTreeSet::new(); count],
        };
        for edge in &graph.edges {
            let Consumer::Operator(to) = edge.to else { continue };
            match &edge.from {
                Producer::Source(source) => flows.sources[to.0].push(*source),
                Producer::Operator { operator, .. } => _ = flows.operators[to.0].insert(operator.0),
            }
        }
        for (index, node) in graph.operators.iter().enumerate() {
            for used in &node.uses {
                if used.update || used.send {
                    flows.operators[used.owner.0].insert(index);
                }
                let is_versioned = tables[used.owner.0]
                    .iter()
                    .any(|table| table.name == used.table && table.versioned_span_ms.is_some());
                if used.read && is_versioned && !node.is_serializable {
                    flows.waits[index].insert(used.owner.0);
                }
            }
        }
        flows
    }

    /// What the progress of `operator` depends on, waits apart.
    pub(super) fn upstream(&self, operator: OperatorIndex) -> Upstream {
        let operators = reached(operator.0, |operator| self.operators[operator].iter().copied());
        let sources: BTreeSet<SourceIndex> =
            operators.iter().flat_map(|&operator| self.sources[operator].iter().copied()).collect();
        let operators = operators.into_iter().map(OperatorIndex).collect();
        Upstream { sources: sources.into_iter().collect(), operators }
    }

    /// Whether records of `operator` may wait for `owner`.
    pub(super) fn waiting(&self, graph: &Graph, operator: OperatorIndex, owner: OperatorIndex) -> Waiting {
        let depends = |operator: usize| self.operators[operator].iter().chain(&self.waits[operator]).copied();
        match graph.operators[operator.0].is_serializable {
            true => Waiting::Serializable,
            false if reached(owner.0, depends).contains(&operator.0) => Waiting::Circular,
            false => Waiting::Allowed,
        }
    }
}

/// Which of `sources` sources feed operators that may wait, and none that they may wait for.
pub(super) fn yielding(sources: usize, operators: &[OperatorPlan]) -> Vec<bool> {
    let waits = |operator: &&OperatorPlan| operator.uses.iter().any(|used| used.may_wait());
    let awaited = operators.iter().flat_map(|operator| &operator.uses).filter(|used| used.may_wait());
    let awaited: BTreeSet<OperatorIndex> = awaited.map(|used| used.owner).collect();
    let needed: BTreeSet<SourceIndex> =
        awaited.iter().flat_map(|owner| operators[owner.0].upstream.sources.iter().copied()).collect();
    let fed: BTreeSet<SourceIndex> =
        operators.iter().filter(waits).flat_map(|operator| operator.upstream.sources.iter().copied()).collect();
    (0..sources).map(SourceIndex).map(|source| fed.contains(&source) && !needed.contains(&source)).collect()
}

/// What is reached from `start` by `next`, itself included.
fn reached<I: Iterator<Item = usize>>(start: usize, next: impl Fn(usize) -> I) -> BTreeSet<usize> {
    let (mut seen, mut open) = (BTreeSet::from([start]), vec![start]);
    while let Some(operator) = open.pop() {
        open.extend(next(operator).filter(|next| seen.insert(*next)));
    }
    seen
}
