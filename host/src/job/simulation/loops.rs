//! A loop until nothing changes: connected components.

use std::collections::{BTreeMap, BTreeSet};

use super::native::{Call, Native};
use super::world::{Input, Shape};
use super::{check, key};
use crate::dice::Dice;

const NODES: usize = 20;

pub(super) const COMPONENTS: Shape = Shape {
    manifest: r#"
        [job]
        name = "components"
        partitions = 8
        [sources.input]
        kind = "stdin"
        format = "jsonl"
        key = "/k"
        [operators.nodes]
        component = "x.wasm"
        inputs = ["input"]
        feedback = ["nodes.tell"]
        retries = 30
        batch = 4
        [sinks.out]
        kind = "blackhole"
        inputs = ["nodes"]
    "#,
    functions: |dice| vec![("nodes", Native::new(&["labels", "edges"], &[], &["tell"], on_record, dice.split()))],
    at_commit: |_, _| {},
    at_end: |tables, input, _| {
        let mut labels: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
        let edges: Vec<(&[u8], &[u8])> =
            input["input"].iter().flatten().map(|(from, value)| (from.as_slice(), &value[1..])).collect();
        edges.iter().for_each(|&(from, to)| _ = (labels.insert(from, from), labels.insert(to, to)));
        // By as many rounds as there are nodes, the least label has come everywhere.
        for _ in 0..NODES {
            for &(from, to) in &edges {
                let least = labels[from].min(labels[to]);
                labels.extend([(from, least), (to, least)]);
            }
        }
        for (node, label) in labels {
            assert_eq!(tables.get("nodes.labels", node).as_deref(), Some(label), "{}", node.escape_ascii());
        }
    },
};

/// A node gets a neighbour (`eK`) or a neighbour's label (`lK`).
fn on_record(call: &mut Call<'_>, node: &[u8], value: &[u8]) {
    let known = call.get(0, node);
    let label = known.clone().unwrap_or_else(|| node.to_vec());
    let mut neighbours: BTreeSet<Vec<u8>> = call
        .get(1, node)
        .map(|list| list.split(|&byte| byte == b' ').map(<[u8]>::to_vec).collect())
        .unwrap_or_default();
    let other = &value[1..];
    if value[0] == b'e' {
        neighbours.insert(other.to_vec());
        call.put(1, node, &neighbours.iter().map(Vec::as_slice).collect::<Vec<_>>().join(&b' '));
        call.put(0, node, &label);
        call.emit(0, node, &label);
        call.emit(1, other, &[b"l", label.as_slice()].concat());
    } else if other < label.as_slice() || known.is_none() {
        let least = other.min(label.as_slice());
        call.put(0, node, least);
        call.emit(0, node, least);
        neighbours.iter().for_each(|neighbour| call.emit(1, neighbour, &[b"l", least].concat()));
    }
}

pub(super) fn edges(dice: &mut Dice) -> Input {
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..16).map(|_| (key(dice.below(NODES)), key(dice.below(NODES)))).collect();
    let both = pairs.iter().flat_map(|(from, to)| [(from, to), (to, from)]);
    let records = both.map(|(from, to)| (from.clone(), [b"e", to.as_slice()].concat()));
    BTreeMap::from([("input", vec![records.collect()])])
}

#[test]
fn a_loop_ends_when_nothing_changes_with_the_answer_of_a_plain_computation() {
    check(&COMPONENTS, edges);
}
