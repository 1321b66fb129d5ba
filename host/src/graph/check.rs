//! From a manifest to its graph: names resolved, loops and loose ends found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use super::cluster::{check_cluster, find_circles, reading_hosts};
use super::names::Names;
use super::rules::check_fields;
use super::uses::{check_isolation, table_options, use_nodes};
use super::{
    Consumer, Dealing, Edge, Graph, Hosts, OperatorIndex, OperatorNode, Producer, SinkIndex, SinkNode, SourceIndex,
    SourceNode,
};
use crate::manifest::{At, Finding, Isolation, Manifest, OnError, Operator, Severity, Source};

/// Checks `manifest`, whose paths are relative to `directory`, and makes its graph. The findings beside the graph are warnings.
///
/// # Errors
/// Everything that was found, when there is an error among it.
pub fn check(manifest: &Manifest, directory: &Path) -> Result<(Graph, Vec<Finding>), Vec<Finding>> {
    let mut findings = Vec::new();
    check_fields(manifest, directory, &mut findings);
    check_cluster(manifest, &mut findings);
    let names = Names::of(manifest, &mut findings);
    let graph = build(manifest, &names, &mut findings);
    check_not_empty(&graph, &mut findings);
    check_fed(manifest, &graph, &mut findings);
    find_loops(&graph, &mut findings);
    find_straight_feedback(&graph, &mut findings);
    find_circles(&graph, &mut findings);
    find_loose_ends(&graph, &mut findings);
    check_isolation(&graph, &mut findings);
    check_stdin(manifest, &graph, &mut findings);
    match findings.iter().any(|finding| finding.severity == Severity::Error) {
        true => Err(findings),
        false => Ok((graph, findings)),
    }
}

/// The graph as far as names resolve.
fn build(manifest: &Manifest, names: &Names<'_>, findings: &mut Vec<Finding>) -> Graph {
    let mut graph = Graph {
        job: manifest.job.name.clone(),
        partitions: manifest.job.partitions,
        hosts: Hosts::of(manifest),
        sources: Vec::new(),
        operators: Vec::new(),
        sinks: Vec::new(),
        edges: Vec::new(),
    };
    for (name, source) in &manifest.sources {
        let dead_letter = dead_letter(["sources", name], source.on_error(), names, findings);
        let dealing = match source {
            Source::File(_) => Dealing::ByName,
            Source::Stdin(_) | Source::Nexmark(_) => Dealing::InTurn,
        };
        let hosts = reading_hosts(name, source, &graph.hosts, findings);
        graph.sources.push(SourceNode {
            name: name.clone(),
            has_key: source.key().is_some(),
            dead_letter,
            dealing,
            hosts,
        });
    }
    let cluster = manifest.cluster.clone().unwrap_or_default();
    for (index, (name, operator)) in manifest.operators.iter().enumerate() {
        let on_error = (operator.on_error, operator.dead_letter.as_deref());
        graph.operators.push(OperatorNode {
            name: name.clone(),
            sha256: pinned(name, operator, findings),
            key: operator.key.clone(),
            parallelism: operator.parallelism,
            colocated_with: colocated_with(name, operator, names, findings),
            dead_letter: dead_letter(["operators", name], on_error, names, findings),
            is_serializable: operator.isolation == Isolation::Serializable,
            tables: table_options(name, operator, findings),
            uses: use_nodes(name, operator, &cluster, names, findings),
        });
        let to = Consumer::Operator(OperatorIndex(index));
        let inputs = edges(["operators", name], &operator.inputs, to, operator.key.as_ref(), names, findings);
        let feedback = feedback(name, operator, to, &inputs, names, findings);
        graph.edges.extend(inputs.into_iter().chain(feedback));
    }
    for (index, (name, sink)) in manifest.sinks.iter().enumerate() {
        graph.sinks.push(SinkNode { name: name.clone(), is_exactly_once: sink.is_exactly_once() });
        let to = Consumer::Sink(SinkIndex(index));
        graph.edges.extend(edges(["sinks", name], sink.inputs(), to, None, names, findings));
    }
    graph
}

/// The digest that the component must have, if the manifest says so.
fn pinned(name: &str, operator: &Operator, findings: &mut Vec<Finding>) -> Option<String> {
    const DIGITS: usize = 64;
    let digest = operator.sha256.as_ref()?;
    if digest.len() != DIGITS || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let message = format!("`sha256` is {DIGITS} hexadecimal digits, as `wasmill inspect` shows them");
        findings.push(Finding::error(At::value(["operators", name, "sha256"]), message));
        return None;
    }
    Some(digest.to_ascii_lowercase())
}

/// The operator that `colocated-with` names.
fn colocated_with(
    name: &str,
    operator: &Operator,
    names: &Names<'_>,
    findings: &mut Vec<Finding>,
) -> Option<OperatorIndex> {
    let at = At::value(["operators", name, "colocated-with"]);
    match names.operator(operator.colocated_with.as_ref()?, at) {
        Ok(other) => Some(other),
        Err(finding) => {
            findings.push(finding);
            None
        }
    }
}

fn edges(
    consumer: [&str; 2],
    inputs: &[String],
    to: Consumer,
    key: Option<&String>,
    names: &Names<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let at = At::value([consumer[0], consumer[1], "inputs", &index.to_string()]);
        match names.producer(input, at.clone()) {
            Ok(from) if edges.iter().any(|edge| edge.from == from) => {
                findings.push(Finding::error(at, format!("the input `{input}` is named twice")));
            }
            Ok(from) => edges.push(Edge { from, to, key: key.cloned(), input: index, feedback: false }),
            Err(finding) => findings.push(finding),
        }
    }
    edges
}

/// What comes back to an operator from those behind it.
fn feedback(
    name: &str,
    operator: &Operator,
    to: Consumer,
    inputs: &[Edge],
    names: &Names<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for (index, input) in operator.feedback.iter().enumerate() {
        let at = At::value(["operators", name, "feedback", &index.to_string()]);
        match names.producer(input, at.clone()) {
            Ok(Producer::Source(_)) => findings.push(
                Finding::error(at, format!("`{input}` is a source: nothing comes back from it"))
                    .help("write it in `inputs`"),
            ),
            Ok(from) if edges.iter().chain(inputs).any(|edge| edge.from == from) => {
                findings.push(Finding::error(at, format!("the input `{input}` is named twice")));
            }
            Ok(from) => edges.push(Edge { from, to, key: operator.key.clone(), input: index, feedback: true }),
            Err(finding) => findings.push(finding),
        }
    }
    edges
}

fn dead_letter(
    node: [&str; 2],
    (on_error, sink): (OnError, Option<&str>),
    names: &Names<'_>,
    findings: &mut Vec<Finding>,
) -> Option<SinkIndex> {
    let [table, name] = node;
    match (on_error, sink) {
        (OnError::DeadLetter, None) => findings.push(
            Finding::error(At::value([table, name, "on-error"]), "`on-error = \"dead-letter\"` needs `dead-letter`")
                .help("add `dead-letter = \"SINK\"` with the name of a sink"),
        ),
        (OnError::Stop | OnError::Skip, Some(_)) => findings.push(
            Finding::error(At::key([table, name, "dead-letter"]), "`dead-letter` has no effect here")
                .help("add `on-error = \"dead-letter\"`, or remove `dead-letter`"),
        ),
        _ => {}
    }
    let sink = names.sink(sink?, At::value([table, name, "dead-letter"]));
    match sink {
        Ok(sink) => (on_error == OnError::DeadLetter).then_some(sink),
        Err(finding) => {
            findings.push(finding);
            None
        }
    }
}

fn check_not_empty(graph: &Graph, findings: &mut Vec<Finding>) {
    if graph.sources.is_empty() {
        findings.push(Finding::error(At::key(["sources"]), "a job needs at least one source"));
    }
    if graph.sinks.is_empty() {
        findings.push(Finding::error(At::key(["sinks"]), "a job needs at least one sink"));
    }
}

/// Something must come to an operator: by an input, or from a function that sends to it or changes its tables.
fn check_fed(manifest: &Manifest, graph: &Graph, findings: &mut Vec<Finding>) {
    for (index, (name, operator)) in manifest.operators.iter().enumerate() {
        let others = graph.operators.iter().enumerate().filter(|(other, _)| *other != index);
        let mut uses = others.flat_map(|(_, other)| &other.uses);
        let is_fed = uses.any(|used| used.owner == OperatorIndex(index) && (used.update || used.send));
        if operator.inputs.is_empty() && !is_fed {
            let at = At::value(["operators", name, "inputs"]);
            findings.push(Finding::error(at, format!("the operator `{name}` has no inputs")));
        }
    }
}

/// The operators that read each operator otherwise than by feedback.
fn successors(graph: &Graph) -> Vec<Vec<usize>> {
    let mut successors = vec![Vec::new(); graph.operators.len()];
    for edge in graph.edges.iter().filter(|edge| !edge.feedback) {
        if let (Producer::Operator { operator: from, .. }, Consumer::Operator(to)) = (&edge.from, edge.to) {
            successors[from.0].push(to.0);
        }
    }
    successors
}

/// Feedback from an operator that is not behind the one that it leads to makes no loop, but is handled as slowly as one.
fn find_straight_feedback(graph: &Graph, findings: &mut Vec<Finding>) {
    let successors = successors(graph);
    for edge in graph.edges.iter().filter(|edge| edge.feedback) {
        let (Producer::Operator { operator: from, .. }, Consumer::Operator(to)) = (&edge.from, edge.to) else {
            continue;
        };
        if !is_reached(to.0, from.0, &successors) {
            let [from, to] = [from, &to].map(|operator| &graph.operators[operator.0].name);
            let at = At::value(["operators", to, "feedback", &edge.input.to_string()]);
            let message = format!("`{from}` is not behind `{to}`, so this is no loop");
            findings.push(Finding::warning(at, message).help("write it in `inputs`"));
        }
    }
}

/// Whether records come from operator `start` to operator `end`, which may be the same.
fn is_reached(start: usize, end: usize, successors: &[Vec<usize>]) -> bool {
    let mut seen = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(operator) = open.pop() {
        if operator == end {
            return true;
        }
        open.extend(successors[operator].iter().filter(|next| seen.insert(**next)));
    }
    false
}

/// Reports each loop of operators once, at its first operator by name.
fn find_loops(graph: &Graph, findings: &mut Vec<Finding>) {
    let successors = successors(graph);
    let name = |operator: &usize| graph.operators[*operator].name.as_str();
    let mut reported = BTreeSet::new();
    for start in 0..successors.len() {
        if reported.contains(&start) {
            continue;
        }
        let Some(way) = shortest_loop(start, &successors) else { continue };
        let shown: Vec<_> = way.iter().chain([&start]).map(|operator| format!("`{}`", name(operator))).collect();
        reported.extend(way);
        findings.push(
            Finding::error(At::value(["operators", name(&start), "inputs"]), format!("a loop: {}", shown.join(" → ")))
                .help("records flow from sources to sinks; where they shall come back, name the way back in `feedback` rather than in `inputs`"),
        );
    }
}

/// The operators on a shortest way from `start` back to itself, `start` first.
fn shortest_loop(start: usize, successors: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut came_from = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(operator) = queue.pop_front() {
        for &next in &successors[operator] {
            if next == start {
                let back = std::iter::successors(Some(operator), |at| came_from.get(at).copied());
                let mut way: Vec<_> = back.collect();
                way.reverse();
                return Some(way);
            }
            came_from.entry(next).or_insert_with(|| {
                queue.push_back(next);
                operator
            });
        }
    }
    None
}

/// Sources and operators that nobody reads, sinks that receive nothing.
fn find_loose_ends(graph: &Graph, findings: &mut Vec<Finding>) {
    for (index, source) in graph.sources.iter().enumerate() {
        if graph.edges_from_source(SourceIndex(index)).next().is_none() {
            let message = format!("nobody reads the source `{}`", source.name);
            findings.push(Finding::warning(At::key(["sources", &source.name]), message));
        }
    }
    for (index, operator) in graph.operators.iter().enumerate() {
        let is_used = graph.operators.iter().flat_map(|other| &other.uses).any(|used| used.owner.0 == index);
        if !is_used && graph.edges_from_operator(OperatorIndex(index)).next().is_none() {
            let message = format!("nobody reads the operator `{}`: what it emits is dropped", operator.name);
            findings.push(Finding::warning(At::key(["operators", &operator.name]), message));
        }
    }
    let dead_letters: BTreeSet<_> = dead_letters(graph).collect();
    for (index, sink) in graph.sinks.iter().enumerate() {
        let sink_index = SinkIndex(index);
        let has_inputs = graph.edges_to(Consumer::Sink(sink_index)).next().is_some();
        // An input that does not resolve has its own error.
        let unresolved = findings.iter().any(|finding| finding.at.path.starts_with(&inputs_path(&sink.name)));
        if !has_inputs && !unresolved && !dead_letters.contains(&sink_index) {
            findings.push(
                Finding::error(At::key(["sinks", &sink.name]), format!("the sink `{}` receives nothing", sink.name))
                    .help("add `inputs = [\"NAME\"]`, or name the sink in a `dead-letter`"),
            );
        }
    }
}

fn inputs_path(sink: &str) -> [String; 3] {
    ["sinks".to_owned(), sink.to_owned(), "inputs".to_owned()]
}

fn dead_letters(graph: &Graph) -> impl Iterator<Item = SinkIndex> {
    let of_sources = graph.sources.iter().filter_map(|source| source.dead_letter);
    of_sources.chain(graph.operators.iter().filter_map(|operator| operator.dead_letter))
}

/// Standard input is read once, and by one source.
fn check_stdin(manifest: &Manifest, graph: &Graph, findings: &mut Vec<Finding>) {
    let mut first: Option<&str> = None;
    for (index, (name, source)) in manifest.sources.iter().enumerate() {
        let Source::Stdin(stdin) = source else { continue };
        let at = || At::value(["sources", name, "kind"]);
        match first {
            Some(first) => findings.push(Finding::error(at(), format!("standard input is already read by `{first}`"))),
            None => first = Some(name),
        }
        let sinks = reached_sinks(graph, SourceIndex(index));
        let exact = sinks.into_iter().map(|sink| &graph.sinks[sink.0]).find(|sink| sink.is_exactly_once);
        if let Some(sink) = exact.filter(|_| !stdin.accept_loss) {
            let message = format!(
                "the sink `{}` is exactly-once, but standard input cannot be read again after a crash",
                sink.name
            );
            findings.push(Finding::error(at(), message).help(format!(
                "add `accept-loss = true` to `[sources.{name}]`, or `delivery = \"at-least-once\"` to `[sinks.{}]`, or read a file",
                sink.name
            )));
        }
    }
}

/// The sinks that records of `source` may come to, dead letters included.
fn reached_sinks(graph: &Graph, source: SourceIndex) -> BTreeSet<SinkIndex> {
    let mut sinks: BTreeSet<_> = graph.sources[source.0].dead_letter.into_iter().collect();
    let mut operators = BTreeSet::new();
    let mut consumers: Vec<_> = graph.edges_from_source(source).map(|edge| edge.to).collect();
    while let Some(consumer) = consumers.pop() {
        match consumer {
            Consumer::Sink(sink) => _ = sinks.insert(sink),
            Consumer::Operator(operator) if operators.insert(operator) => {
                sinks.extend(graph.operators[operator.0].dead_letter);
                consumers.extend(graph.edges_from_operator(operator).map(|edge| edge.to));
            }
            Consumer::Operator(_) => {}
        }
    }
    sinks
}
