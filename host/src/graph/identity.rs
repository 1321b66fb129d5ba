//! What of a job its stored state depends on, and what may change between two starts.
//!
//! The identity is stored in the state directory. State belongs to a job, an operator, a table and a partition; positions to a
//! source; output in flight to an exactly-once sink. What these are called may not change under the state; what is added may.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::placement::alone;
use super::{Declared, Graph, SourceNode};
use crate::manifest::listed;

/// The part of a job that stored state depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateIdentity {
    /// The job's name.
    pub job: String,
    /// How many partitions keys are spread over.
    pub partitions: u16,
    /// The schema version of each table, by operator and table. Operators without tables have an empty map.
    pub operators: BTreeMap<String, BTreeMap<String, u32>>,
    /// The tables among them, as `operator/table`, that keep earlier values by event time.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub versioned: BTreeSet<String>,
    /// The names of the sources.
    pub sources: BTreeSet<String>,
    /// The names of the exactly-once sinks; others have nothing in the state.
    pub sinks: BTreeSet<String>,
    /// In a job of several hosts: of each operator with tables, whether all its tasks are on the leader's host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub alone: BTreeMap<String, bool>,
    /// In a job of several hosts: of each source the hosts that read it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub readers: BTreeMap<String, Vec<String>>,
    /// The ids of all state directories that the job has or had, by host, without `[cluster]` under the empty name: known since its state was moved, so that a host that comes back is known by
    /// its output.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub directories: BTreeMap<String, String>,
}

impl StateIdentity {
    /// The identity of `graph` whose operators declare `declared`, by name.
    pub fn new(graph: &Graph, declared: &BTreeMap<String, Declared>) -> Self {
        let tables = |name: &str| -> BTreeMap<String, u32> {
            declared.get(name).into_iter().flat_map(|declared| declared.tables.iter().cloned()).collect()
        };
        let versioned = |name: &str| {
            let tables = declared.get(name).map(|declared| declared.versioned.as_slice()).unwrap_or_default();
            tables.iter().map(|(table, _)| format!("{name}/{table}")).collect::<Vec<_>>()
        };
        let is_spread = graph.hosts.count() > 1;
        let alone = alone(graph);
        let placed = graph.operators.iter().zip(&alone).filter(|(node, _)| !tables(&node.name).is_empty());
        let placed = placed.map(|(node, alone)| (node.name.clone(), alone.is_some()));
        let readers = |node: &SourceNode| {
            let names = node.hosts.iter().filter_map(|&host| graph.hosts.name(host)).map(str::to_owned);
            (node.name.clone(), names.collect())
        };
        Self {
            job: graph.job.clone(),
            partitions: graph.partitions,
            operators: graph.operators.iter().map(|node| (node.name.clone(), tables(&node.name))).collect(),
            versioned: graph.operators.iter().flat_map(|node| versioned(&node.name)).collect(),
            sources: graph.sources.iter().map(|node| node.name.clone()).collect(),
            sinks: graph.sinks.iter().filter(|node| node.is_exactly_once).map(|node| node.name.clone()).collect(),
            alone: if is_spread { placed.collect() } else { BTreeMap::new() },
            readers: if is_spread { graph.sources.iter().map(readers).collect() } else { BTreeMap::new() },
            directories: BTreeMap::new(),
        }
    }

    /// Whether state and positions lie on the hosts that `now` wants, as far as the job's hosts are the same.
    pub fn is_placed_as(&self, now: &Self) -> bool {
        let mut changes = Vec::new();
        self.compare_placement(now, &mut changes);
        changes.is_empty()
    }

    /// The same for state that has been moved to where `now` wants it, to these `directories`.
    #[must_use]
    pub fn placed_as(self, now: &Self, directories: BTreeMap<String, String>) -> Self {
        Self { alone: now.alone.clone(), readers: now.readers.clone(), directories, ..self }
    }

    /// The same with what has joined the job since it was stored: tables that the state holds by now (`operator/table`, with a schema version, and whether they keep
    /// earlier values), and sources and exactly-once sinks that the last epoch knows of.
    #[must_use]
    pub fn joined_by<'a>(
        mut self,
        tables: impl IntoIterator<Item = (&'a str, u32, bool)>,
        sources: impl IntoIterator<Item = &'a str>,
        sinks: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        for (name, version, is_versioned) in tables {
            if let Some((operator, table)) = name.split_once('/') {
                self.operators.entry(operator.to_owned()).or_default().entry(table.to_owned()).or_insert(version);
            }
            if is_versioned {
                self.versioned.insert(name.to_owned());
            }
        }
        self.sources.extend(sources.into_iter().map(str::to_owned));
        self.sinks.extend(sinks.into_iter().map(str::to_owned));
        self
    }

    /// Whether state that was stored as `self` serves a job that is `now`.
    ///
    /// # Errors
    /// A sentence for each change that the state does not bear, with its remedy.
    pub fn compare(&self, now: &Self) -> Result<(), Vec<String>> {
        let mut changes = Vec::new();
        if self.job != now.job {
            changes.push(format!(
                "the state belongs to the job `{}`, but this is the job `{}`: give this job a state directory of its own (`job.state`)",
                self.job, now.job
            ));
        }
        if self.partitions != now.partitions {
            changes.push(format!(
                "the state has {} partitions, but the manifest says {}: set `partitions = {}` again, or start with an empty state directory",
                self.partitions, now.partitions, self.partitions
            ));
        }
        self.compare_operators(now, &mut changes);
        compare_names("source", "positions", &self.sources, &now.sources, &mut changes);
        compare_names("exactly-once sink", "output", &self.sinks, &now.sinks, &mut changes);
        self.compare_placement(now, &mut changes);
        if changes.is_empty() { Ok(()) } else { Err(changes) }
    }

    /// Where state and positions lie cannot change under them.
    fn compare_placement(&self, now: &Self, changes: &mut Vec<String>) {
        for (name, was) in &self.alone {
            if now.alone.get(name).is_some_and(|is| is != was) {
                let (was, is) = if *was {
                    ("the leader's host alone", "all hosts")
                } else {
                    ("all hosts", "the leader's host alone")
                };
                changes.push(format!(
                    "the state of the operator `{name}` lies on {was}, but the manifest now has it on {is}: move it by `wasmill rescale`, or put back what `isolation`, `uses` and `colocated-with` said"
                ));
            }
        }
        for (name, was) in &self.readers {
            if let Some(is) = now.readers.get(name).filter(|is| *is != was) {
                let [was, is] = [was, is].map(|hosts| listed(hosts.iter().map(String::as_str)));
                changes.push(format!(
                    "the source `{name}` was read by the hosts {was}, which have its positions, but the manifest now says {is}: move them by `wasmill rescale`, or put `hosts` back"
                ));
            }
        }
    }

    fn compare_operators(&self, now: &Self, changes: &mut Vec<String>) {
        for (name, tables) in self.operators.iter().filter(|(_, tables)| !tables.is_empty()) {
            match now.operators.get(name) {
                Some(tables_now) => {
                    compare_tables(name, tables, tables_now, changes);
                    let kept = tables.keys().filter(|table| tables_now.contains_key(*table));
                    kept.for_each(|table| self.compare_versioned(now, name, table, changes));
                }
                None => {
                    let renamed = now.operators.iter().find(|(other, tables_now)| {
                        !self.operators.contains_key(*other) && tables_now.keys().eq(tables.keys())
                    });
                    let held = listed(tables.keys().map(String::as_str));
                    changes.push(gone("operator", name, renamed.map(|(other, _)| other.as_str()), &held));
                }
            }
        }
    }
}

impl StateIdentity {
    /// A table that keeps earlier values is stored otherwise than one that does not.
    fn compare_versioned(&self, now: &Self, operator: &str, table: &str, changes: &mut Vec<String>) {
        let full_name = format!("{operator}/{table}");
        let (was, is) = match (self.versioned.contains(&full_name), now.versioned.contains(&full_name)) {
            (true, false) => ("with earlier values (`versioned`)", "does not declare it so any more"),
            (false, true) => ("without earlier values", "declares it `versioned` now"),
            _ => return,
        };
        changes.push(format!(
            "the table `{table}` of the operator `{operator}` is stored {was}, but the component {is}: go back to a component that declares it as before, or start with an empty state directory"
        ));
    }
}

fn compare_tables(
    operator: &str,
    stored: &BTreeMap<String, u32>,
    now: &BTreeMap<String, u32>,
    changes: &mut Vec<String>,
) {
    // Whether the component reads the schema versions of stored values is found out where they are opened.
    for table in stored.keys().filter(|table| !now.contains_key(*table)) {
        changes.push(format!(
            "the component of the operator `{operator}` has no table `{table}` any more, but the state has: go back to a component that has it, or start with an empty state directory"
        ));
    }
}

fn compare_names(kind: &str, held: &str, stored: &BTreeSet<String>, now: &BTreeSet<String>, changes: &mut Vec<String>) {
    let mut added = now.difference(stored);
    let gone_names: Vec<_> = stored.difference(now).collect();
    // One gone and one new is most likely one renamed.
    let renamed = match (gone_names.as_slice(), added.next(), added.next()) {
        ([_], Some(name), None) => Some(name.as_str()),
        _ => None,
    };
    changes.extend(gone_names.into_iter().map(|name| gone(kind, name, renamed, held)));
}

fn gone(kind: &str, name: &str, renamed: Option<&str>, held: &str) -> String {
    match renamed {
        Some(new) => format!(
            "the {kind} `{name}`, whose {held} the state holds, is gone; was it renamed to `{new}`? Name it `{name}` again, or start with an empty state directory"
        ),
        None => format!(
            "the {kind} `{name}`, whose {held} the state holds, is gone: put it back, or start with an empty state directory"
        ),
    }
}
