//! The job's graph: from a manifest to checked nodes and edges, from these to tasks and partition ranges.
//!
//! Everything here is pure: it reads no file, starts nothing and knows neither components nor threads. What is wrong is said as
//! [`crate::manifest::Finding`]s, by place in the manifest.

mod check;
mod cluster;
mod hosts;
mod identity;
mod names;
mod placement;
mod plan;
mod progress;
mod rules;
#[cfg(test)]
mod tests;
mod travel;
mod uses;

pub use check::check;
pub use hosts::{Dealing, Hosts, shares, split_host};
pub use identity::StateIdentity;
pub use placement::Alone;
pub use plan::{Declared, OperatorPlan, Plan, Routing, Task, TaskId};
pub use progress::{Upstream, Waiting};
pub use travel::Travel;
pub use uses::{Gathering, PlannedTable, PlannedUse, TableOptions, UseNode};

use std::collections::BTreeMap;

/// The port that every operator has.
pub const DEFAULT_PORT: &str = "out";

/// A source, by its place in [`Graph::sources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceIndex(pub usize);

/// An operator, by its place in [`Graph::operators`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorIndex(pub usize);

/// A sink, by its place in [`Graph::sinks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SinkIndex(pub usize);

/// A checked job: every name resolved, no loops but by feedback. Nodes are in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// The job's name.
    pub job: String,
    /// How many partitions keys are spread over, at least 1.
    pub partitions: u16,
    /// The hosts that it runs on.
    pub hosts: Hosts,
    /// Where records come from.
    pub sources: Vec<SourceNode>,
    /// The functions.
    pub operators: Vec<OperatorNode>,
    /// Where records go.
    pub sinks: Vec<SinkNode>,
    /// Who reads what, in the order of consumers (operators, then sinks) and their inputs; an operator's feedback stands behind its inputs.
    pub edges: Vec<Edge>,
}

/// A source in the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceNode {
    /// Its name.
    pub name: String,
    /// Whether its records have keys.
    pub has_key: bool,
    /// The sink for records that cannot be read, with `on-error = "dead-letter"`.
    pub dead_letter: Option<SinkIndex>,
    /// How its splits are shared out.
    pub dealing: Dealing,
    /// The hosts that read it, in their order: at least one.
    pub hosts: Vec<u16>,
}

impl SourceNode {
    /// The host that reads the split of that number and name.
    pub fn split_host(&self, number: usize, name: &str) -> u16 {
        split_host(self.dealing, number, name, &self.hosts)
    }
}

/// An operator in the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorNode {
    /// Its name.
    pub name: String,
    /// The SHA-256 that its component must have, in hexadecimal digits.
    pub sha256: Option<String>,
    /// How its input is keyed anew: a JSON pointer into the value, `.` for the whole value.
    pub key: Option<String>,
    /// How many tasks the manifest asks for, on each host: between 1 and the number of partitions.
    pub parallelism: Option<u16>,
    /// The operator whose tasks own the same partitions on the same workers.
    pub colocated_with: Option<OperatorIndex>,
    /// The sink for records that fail, with `on-error = "dead-letter"`.
    pub dead_letter: Option<SinkIndex>,
    /// Whether the reads and writes of one of its records are one transaction.
    pub is_serializable: bool,
    /// How the manifest has its own tables kept, by name, as far as it says so.
    pub tables: BTreeMap<String, TableOptions>,
    /// The tables that it uses beside its own, sorted by name.
    pub uses: Vec<UseNode>,
}

/// A sink in the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkNode {
    /// Its name.
    pub name: String,
    /// Whether a crash neither loses nor doubles any of its output.
    pub is_exactly_once: bool,
}

/// What an edge comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Producer {
    /// A source.
    Source(SourceIndex),
    /// What an operator emits on a port.
    Operator {
        /// The operator.
        operator: OperatorIndex,
        /// The port: [`DEFAULT_PORT`] or one that its component declares.
        port: String,
    },
}

/// What an edge leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// An operator.
    Operator(OperatorIndex),
    /// A sink.
    Sink(SinkIndex),
}

/// A stream from a producer to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Where its records come from.
    pub from: Producer,
    /// Where they go.
    pub to: Consumer,
    /// How they are keyed anew on the way: a JSON pointer into the value, `.` for the whole value. `None` keeps their keys.
    pub key: Option<String>,
    /// Which of the consumer's inputs it is, or which of its feedback, counted from 0.
    pub input: usize,
    /// Whether it leads back, from an operator to itself or to one before it.
    pub feedback: bool,
}

impl Graph {
    /// The edges that come from `source`.
    pub fn edges_from_source(&self, source: SourceIndex) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == Producer::Source(source))
    }

    /// The edges that come from `operator`, of all ports.
    pub fn edges_from_operator(&self, operator: OperatorIndex) -> impl Iterator<Item = &Edge> {
        self.edges
            .iter()
            .filter(move |edge| matches!(&edge.from, Producer::Operator { operator: from, .. } if *from == operator))
    }

    /// The edges that lead to `consumer`.
    pub fn edges_to(&self, consumer: Consumer) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.to == consumer)
    }
}
