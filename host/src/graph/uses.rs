//! The tables that operators use beside their own: whether the manifest, the owner and the user agree on them.
//!
//! What the manifest alone tells is checked with the graph, what the components say with the plan. This file knows nothing of how tables are read or changed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::names::{Names, name_fault};
use super::plan::Declared;
use super::progress::{Flows, Waiting};
use super::{Graph, OperatorIndex, OperatorNode};
use crate::manifest::{At, Cluster, Finding, Operator, Table, Use, did_you_mean, listed};

/// How the manifest has a table of an operator's own kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// Whether other operators may use it.
    pub open: bool,
    /// Whether it can be scanned, also where its component does not say so.
    pub ordered: bool,
    /// For how long it keeps earlier values by event time, in place of what its component says, in milliseconds.
    pub versioned_span_ms: Option<u64>,
}

/// How lookups that travel to another host are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gathering {
    /// The most keys of one, at least 1.
    pub max_batch: u16,
    /// How long one that is not full waits for more keys.
    pub linger: Duration,
}

impl Gathering {
    fn of(used: &Use, cluster: &Cluster) -> Self {
        Self { max_batch: used.max_batch.unwrap_or(cluster.max_batch), linger: used.linger.unwrap_or(cluster.linger).0 }
    }
}

/// A table that an operator uses, as the manifest says; whether there is such a table is for its owner's component to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UseNode {
    /// What the function calls it.
    pub name: String,
    /// The operator that owns it.
    pub owner: OperatorIndex,
    /// What its owner calls it.
    pub table: String,
    /// Whether the function may look up values.
    pub read: bool,
    /// Whether it may change values.
    pub update: bool,
    /// Whether it may send records to the function that owns the table.
    pub send: bool,
    /// How its lookups are gathered, as far as they travel.
    pub gathering: Gathering,
}

/// A table of an operator's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTable {
    /// Its name.
    pub name: String,
    /// The version of its values' encoding.
    pub schema_version: u32,
    /// Whether other operators may use it: its component and the manifest agree.
    pub open: bool,
    /// Whether it can be scanned: its component or the manifest says so.
    pub ordered: bool,
    /// For how long it keeps earlier values by event time, in milliseconds: as the manifest says, or else its component, which declares it in any case.
    pub versioned_span_ms: Option<u64>,
}

/// A table that an operator uses: there, and open to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedUse {
    /// What the function calls it.
    pub name: String,
    /// The operator that owns it.
    pub owner: OperatorIndex,
    /// Its place among the owner's tables, in the order in which its component declares them.
    pub table: usize,
    /// Whether the function may look up values.
    pub read: bool,
    /// Whether it may change values.
    pub update: bool,
    /// Whether it may send records to the function that owns the table.
    pub send: bool,
    /// Whether the table can be scanned.
    pub ordered: bool,
    /// Whether it keeps earlier values by event time.
    pub versioned: bool,
    /// Whether records may wait until its owner has come to a time.
    pub waiting: Waiting,
    /// How its lookups are gathered, as far as they travel.
    pub gathering: Gathering,
}

impl PlannedUse {
    /// Whether the function may look up values with a wait.
    pub(super) fn may_wait(&self) -> bool {
        self.read && self.versioned && self.waiting == Waiting::Allowed
    }
}

/// What the manifest says of the tables of `operator`, which is called `name`.
pub(super) fn table_options(
    name: &str,
    operator: &Operator,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, TableOptions> {
    for table in operator.tables.keys() {
        let at = At::key(["operators", name, "tables", table]);
        findings.extend(name_fault(table).map(|fault| Finding::error(at, fault)));
    }
    let options = |kept: &Table| TableOptions {
        open: kept.open,
        ordered: kept.ordered,
        versioned_span_ms: kept.versioned.map(|span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)),
    };
    operator.tables.iter().map(|(table, kept)| (table.clone(), options(kept))).collect()
}

/// What the manifest says of the tables that `operator`, which is called `name`, uses in a job of the hosts of `cluster`. Sorted by name.
pub(super) fn use_nodes(
    name: &str,
    operator: &Operator,
    cluster: &Cluster,
    names: &Names<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<UseNode> {
    let mut nodes = Vec::new();
    for (alias, used) in &operator.uses {
        let at = || At::key(["operators", name, "uses", alias]);
        findings.extend(name_fault(alias).map(|fault| Finding::error(at(), fault)));
        if !(used.read || used.update || used.send) {
            let message = format!("`{alias}` is allowed nothing: it needs `read`, `update` or `send`");
            findings.push(Finding::error(at(), message).help("for example `read = true`"));
        }
        match owner_and_table(used, names, At::value(["operators", name, "uses", alias, "table"])) {
            Ok((owner, table)) => nodes.push(UseNode {
                name: alias.clone(),
                owner,
                table,
                read: used.read,
                update: used.update,
                send: used.send,
                gathering: Gathering::of(used, cluster),
            }),
            Err(finding) => findings.push(finding),
        }
    }
    nodes
}

fn owner_and_table(used: &Use, names: &Names<'_>, at: At) -> Result<(OperatorIndex, String), Finding> {
    let Some((owner, table)) = used.table.split_once('.') else {
        let message = format!("`{}` names no table: a table is written `operator.table`", used.table);
        return Err(Finding::error(at, message).help(names.operators_help()));
    };
    let owner = names.owner(owner, at.clone())?;
    match name_fault(table) {
        None => Ok((owner, table.to_owned())),
        Some(fault) => Err(Finding::error(at, fault)),
    }
}

/// A table that takes part in transactions is written by nobody else: its owner and whoever updates it are serializable, all or none.
pub(super) fn check_isolation(graph: &Graph, findings: &mut Vec<Finding>) {
    for node in &graph.operators {
        for used in node.uses.iter().filter(|used| used.update) {
            let owner = &graph.operators[used.owner.0];
            let (one, other) = match (node.is_serializable, owner.is_serializable) {
                (true, false) => (&owner.name, &node.name),
                (false, true) => (&node.name, &owner.name),
                _ => continue,
            };
            let message = format!(
                "`{one}` writes the table `{}` of `{}` beside the transactions of `{other}`, which is serializable",
                used.table, owner.name
            );
            let at = At::value(["operators", &node.name, "uses", &used.name, "table"]);
            let help = format!("set `isolation = \"serializable\"` in `[operators.{one}]`, too, or in neither");
            findings.push(Finding::error(at, message).help(help));
        }
    }
}

/// The tables of `operator` as its component and the manifest have them.
pub(super) fn planned_tables(operator: &OperatorNode, declared: &Declared) -> Vec<PlannedTable> {
    let tables = declared.tables.iter();
    tables
        .map(|(name, schema_version)| {
            let options = operator.tables.get(name).copied().unwrap_or_default();
            let declared_span = declared.versioned.iter().find(|(table, _)| table == name).map(|(_, span_ms)| *span_ms);
            PlannedTable {
                name: name.clone(),
                schema_version: *schema_version,
                open: options.open && declared.open.contains(name),
                ordered: options.ordered || declared.ordered.contains(name),
                versioned_span_ms: declared_span.map(|span_ms| options.versioned_span_ms.unwrap_or(span_ms)),
            }
        })
        .collect()
}

/// The tables that `operator` uses, once [`check_uses`] has found nothing. `tables` are those of all operators, in the graph's order.
pub(super) fn planned_uses(
    graph: &Graph,
    operator: OperatorIndex,
    tables: &[Vec<PlannedTable>],
    flows: &Flows,
) -> Vec<PlannedUse> {
    let planned = |used: &UseNode| {
        let of_owner = &tables[used.owner.0];
        let table = of_owner.iter().position(|table| table.name == used.table)?;
        Some(PlannedUse {
            name: used.name.clone(),
            owner: used.owner,
            table,
            read: used.read,
            update: used.update,
            send: used.send,
            ordered: of_owner[table].ordered,
            versioned: of_owner[table].versioned_span_ms.is_some(),
            waiting: flows.waiting(graph, operator, used.owner),
            gathering: used.gathering,
        })
    };
    graph.operators[operator.0].uses.iter().filter_map(planned).collect()
}

/// Holds what the manifest says of the tables of `operator`, and of those that it uses, against what the components declare, by operator name.
pub(super) fn check_uses(
    graph: &Graph,
    operator: OperatorIndex,
    declared: &BTreeMap<String, Declared>,
    findings: &mut Vec<Finding>,
) {
    let node = &graph.operators[operator.0];
    let nothing = Declared::default();
    let of = |name: &str| declared.get(name).unwrap_or(&nothing);
    check_options(node, of(&node.name), findings);
    check_aliases(node, of(&node.name), findings);
    for used in &node.uses {
        let owner = &graph.operators[used.owner.0];
        let is_own = used.owner == operator;
        findings.extend(use_fault(node, used, owner, of(&owner.name), is_own));
    }
}

/// What the manifest says of a table that is not there, or opens one against its component's will.
fn check_options(node: &OperatorNode, declared: &Declared, findings: &mut Vec<Finding>) {
    for (table, options) in &node.tables {
        let at =
            |field: &[&str]| At::key([&["operators", node.name.as_str(), "tables", table.as_str()], field].concat());
        if !declared.tables.iter().any(|(name, _)| name == table) {
            findings.push(no_table(node, table, declared, at(&[])));
        } else if options.open && !declared.open.contains(table) {
            let message = format!("the component of `{}` does not open its table `{table}`", node.name);
            let help = "the component must declare it as open, too: in Rust by `.open(&TABLE)` in `describe`";
            findings.push(Finding::error(at(&["open"]), message).help(help));
        } else if options.versioned_span_ms.is_some() && !declared.versioned.iter().any(|(name, _)| name == table) {
            let message = format!("the component of `{}` does not declare its table `{table}` as versioned", node.name);
            let help = "only the component decides that; in Rust by `.versioned(&TABLE, span)` in `describe`. The manifest may set another span";
            findings.push(Finding::error(at(&["versioned"]), message).help(help));
        }
    }
}

/// The names of the function's and those of the manifest must be the same.
fn check_aliases(node: &OperatorNode, declared: &Declared, findings: &mut Vec<Finding>) {
    let name = &node.name;
    for alias in &declared.uses {
        let at = At::value(["operators", name, "component"]);
        if let Some(fault) = name_fault(alias) {
            findings.push(Finding::error(at, format!("the component uses a table: {fault}")));
        } else if !node.uses.iter().any(|used| used.name == *alias) {
            let message =
                format!("the component uses a table that it calls `{alias}`, but the manifest does not say which");
            findings.push(Finding::error(at, message).help(format!(
                "add `uses.{alias} = {{ table = \"OPERATOR.TABLE\", read = true }}` to `[operators.{name}]`"
            )));
        }
    }
    for used in node.uses.iter().filter(|used| !declared.uses.contains(&used.name)) {
        let known = || declared.uses.iter().map(String::as_str);
        let meant = did_you_mean(&used.name, known());
        let message = format!("the component of `{name}` uses no table that it calls `{}`{meant}", used.name);
        findings.push(Finding::warning(At::key(["operators", name, "uses", &used.name]), message));
    }
}

/// Why `node` cannot use the table.
fn use_fault(
    node: &OperatorNode,
    used: &UseNode,
    owner: &OperatorNode,
    declared: &Declared,
    is_own: bool,
) -> Option<Finding> {
    let at = At::value(["operators", &node.name, "uses", &used.name, "table"]);
    let (operator, table) = (&owner.name, &used.table);
    if !declared.tables.iter().any(|(name, _)| name == table) {
        return Some(no_table(owner, table, declared, at));
    }
    if is_own {
        return None;
    }
    if !declared.open.contains(table) {
        let message = format!("the component of `{operator}` does not open its table `{table}` to others");
        return Some(Finding::error(at, message).help(format!("open are {}", open_to(declared))));
    }
    if !owner.tables.get(table).is_some_and(|options| options.open) {
        let message = format!("the table `{table}` of `{operator}` is not open to others");
        let help = format!("add `tables.{table} = {{ open = true }}` to `[operators.{operator}]`");
        return Some(Finding::error(at, message).help(help));
    }
    None
}

fn open_to(declared: &Declared) -> String {
    if declared.open.is_empty() {
        "none of its tables".to_owned()
    } else {
        listed(declared.open.iter().map(String::as_str))
    }
}

fn no_table(owner: &OperatorNode, table: &str, declared: &Declared, at: At) -> Finding {
    let known = || declared.tables.iter().map(|(name, _)| name.as_str());
    let message = format!("the operator `{}` has no table `{table}`{}", owner.name, did_you_mean(table, known()));
    let finding = Finding::error(at, message);
    match declared.tables.is_empty() {
        true => finding.help("its component declares no tables"),
        false => finding.help(format!("its component declares {}", listed(known()))),
    }
}
