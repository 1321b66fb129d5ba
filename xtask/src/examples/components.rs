//! `components`: a union-find over the same flights finds the same components.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;

use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use flate2::read::GzDecoder;

use super::{Example, Ran, text};

const FLIGHTS: &str = "../flight-delays/data/flights-2013-01.csv.gz";
const ROWS: usize = 8;

pub const EXAMPLE: Example = Example { name: "components", manifests: &["job.toml"], make_input: None, check };

fn check(ran: &Ran<'_>) -> anyhow::Result<String> {
    let mut found = BTreeMap::<String, String>::new();
    for line in ran.output("components")? {
        let (node, component) = (text(&line, "node")?, text(&line, "component")?);
        let before = found.insert(node.to_owned(), component.to_owned());
        ensure!(
            before.is_none_or(|before| *component < *before),
            "`{node}` has gone from a lesser name to {component}"
        );
    }
    let expected = plain_components(&ran.example.join(FLIGHTS))?;
    for (node, component) in &expected {
        let found = found.get(node).with_context(|| format!("`{node}` is in no component"))?;
        ensure!(found == component, "`{node}` is in the component of `{found}`, not of `{component}`");
    }
    ensure!(found.len() == expected.len(), "{} nodes, not {}", found.len(), expected.len());
    let components: BTreeSet<&String> = expected.values().collect();
    println!("\n{}", largest(&found));
    Ok(format!("{} nodes are in {} components, as a union-find has them", found.len(), components.len()))
}

/// Every node with the least node of its component.
fn plain_components(flights: &std::path::Path) -> anyhow::Result<BTreeMap<String, String>> {
    let file = File::open(flights).with_context(|| format!("cannot read {}", flights.display()))?;
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers()?.clone();
    let place =
        |name: &str| names.iter().position(|known| known == name).with_context(|| format!("no column `{name}`"));
    let (carrier, flight, tailnum) = (place("carrier")?, place("flight")?, place("tailnum")?);
    let mut forest = Forest::default();
    for row in reader.records() {
        let row = row?;
        if &row[tailnum] != "NA" {
            forest.unite(&row[tailnum], &format!("{}/{}", &row[carrier], &row[flight]));
        }
    }
    Ok(forest.roots())
}

/// Union-find: a tree a component, its least node at the root.
#[derive(Default)]
struct Forest {
    parents: BTreeMap<String, String>,
}

impl Forest {
    fn root(&mut self, node: &str) -> String {
        let parent = self.parents.entry(node.to_owned()).or_insert_with(|| node.to_owned()).clone();
        if parent == node {
            return parent;
        }
        let root = self.root(&parent);
        self.parents.insert(node.to_owned(), root.clone());
        root
    }

    fn unite(&mut self, one: &str, other: &str) {
        let (one, other) = (self.root(one), self.root(other));
        let (least, greatest) = if one < other { (one, other) } else { (other, one) };
        self.parents.insert(greatest, least);
    }

    fn roots(mut self) -> BTreeMap<String, String> {
        let nodes: Vec<String> = self.parents.keys().cloned().collect();
        nodes.into_iter().map(|node| (node.clone(), self.root(&node))).collect()
    }
}

/// The largest components, as a table for people.
fn largest(components: &BTreeMap<String, String>) -> String {
    let mut fleets = BTreeMap::<&str, (BTreeSet<&str>, usize, usize)>::new();
    for (node, component) in components {
        let (carriers, aircraft, flights) = fleets.entry(component).or_default();
        match node.split_once('/') {
            Some((carrier, _)) => {
                carriers.insert(carrier);
                *flights += 1;
            }
            None => *aircraft += 1,
        }
    }
    let mut fleets: Vec<_> = fleets.into_iter().collect();
    fleets.sort_by_key(|(name, (_, aircraft, _))| (std::cmp::Reverse(*aircraft), *name));
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(["component", "carriers", "aircraft", "flight numbers"]);
    for (name, (carriers, aircraft, flights)) in fleets.iter().take(ROWS) {
        let carriers = carriers.iter().copied().collect::<Vec<_>>().join(" ");
        table.add_row([(*name).to_owned(), carriers, aircraft.to_string(), flights.to_string()]);
    }
    for index in [2, 3] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("The largest fleets ({} in all)\n{table}", fleets.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_called_after_its_least_node() {
        let mut forest = Forest::default();
        for (one, other) in [("d", "c"), ("x", "y"), ("c", "b"), ("b", "a"), ("a", "d")] {
            forest.unite(one, other);
        }
        let roots = forest.roots();
        let of = |node: &str| roots[node].as_str();
        assert_eq!(["a", "b", "c", "d", "x", "y"].map(of), ["a", "a", "a", "a", "x", "x"]);
    }
}
