//! `wasmill plan job.toml`: who does what, and what travels between hosts, before anything runs. No input is read, though files are listed.

use std::path::Path;

use comfy_table::Table;
use serde_json::{Value, json};

use super::load::{CheckedJob, JobArgs};
use super::{Failure, check, print, told};
use crate::connector::source_from;
use crate::graph::{
    Consumer, DEFAULT_PORT, Declared, Edge, Graph, OperatorIndex, Plan, PlannedUse, Producer, Routing, SourceNode,
    Travel,
};
use crate::job::worker_count;
use crate::manifest::listed;

/// The most splits that are named of one host.
const SPLITS_SHOWN: usize = 8;

/// Says which partitions are where, which host reads what, and what travels.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PlanArgs {
    /// The job to plan.
    #[command(flatten)]
    job: JobArgs,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// `declare` as for `wasmill check`.
pub(super) fn run(
    arguments: &PlanArgs,
    declare: impl FnMut(&str, &Path) -> Result<Declared, String>,
) -> Result<(), Failure> {
    let job = super::load_job(&arguments.job)?;
    let declared = job.declared(declare).map_err(|error| told(&error))?;
    let workers = worker_count(&job.loaded.manifest);
    let (plan, warnings) = job.plan(workers, &declared).map_err(|error| told(&error))?;
    check::print_problems(&warnings);
    let shown = Shown { job: &job, graph: &job.graph, plan: &plan };
    print(&if arguments.json { format!("{:#}\n", shown.json()) } else { shown.text() })
}

/// A plan to be shown.
struct Shown<'a> {
    job: &'a CheckedJob,
    graph: &'a Graph,
    plan: &'a Plan,
}

/// The splits of a source, each with its host, or why they are not known.
type Splits = Result<Vec<(String, u16)>, String>;

impl Shown<'_> {
    fn host(&self, host: u16) -> &str {
        self.plan.hosts.name(host).unwrap_or("this host")
    }

    fn operator(&self, operator: OperatorIndex) -> &str {
        &self.graph.operators[operator.0].name
    }

    /// By source, in the graph's order.
    fn splits(&self) -> Vec<Splits> {
        let of_source = |node: &SourceNode| -> Splits {
            let source = source_from(&self.job.loaded.manifest.sources[&node.name], self.job.loaded.directory());
            let names = source.and_then(|source| source.splits()).map_err(|error| error.to_string())?;
            let host = |(number, name): (usize, &String)| node.split_host(number, name);
            let hosts: Vec<u16> = names.iter().enumerate().map(host).collect();
            Ok(names.into_iter().zip(hosts).collect())
        };
        self.graph.sources.iter().map(of_source).collect()
    }

    /// What an edge comes from, and what it leads to.
    fn ends(&self, edge: &Edge) -> (String, &str) {
        let from = match &edge.from {
            Producer::Source(source) => self.graph.sources[source.0].name.clone(),
            Producer::Operator { operator, port } if port == DEFAULT_PORT => self.operator(*operator).to_owned(),
            Producer::Operator { operator, port } => format!("{}.{port}", self.operator(*operator)),
        };
        let to = match edge.to {
            Consumer::Operator(operator) => self.operator(operator),
            Consumer::Sink(sink) => &self.graph.sinks[sink.0].name,
        };
        (from, to)
    }

    fn edges(&self) -> impl Iterator<Item = (&Edge, Routing, Travel)> {
        let travel = move |(edge, routing): (_, &Routing)| (edge, *routing, self.plan.travel_of_edge(edge, *routing));
        self.graph.edges.iter().zip(&self.plan.routings).map(travel)
    }

    /// The tables that operators use, each with its full name.
    fn uses(&self) -> impl Iterator<Item = (&str, &PlannedUse, String, Travel)> {
        self.plan.operators.iter().enumerate().flat_map(move |(index, operator)| {
            operator.uses.iter().map(move |used| {
                let table = &self.plan.operators[used.owner.0].tables[used.table].name;
                let name = format!("{}.{table}", self.operator(used.owner));
                let user = OperatorIndex(index);
                (self.operator(user), used, name, self.plan.travel_of_use(user, used))
            })
        })
    }

    fn text(&self) -> String {
        let plan = self.plan;
        let mut text = format!(
            "job {}: {} partitions, {}",
            self.graph.job,
            self.graph.partitions,
            counted(plan.workers, "worker")
        );
        match plan.hosts.names() {
            [] => {}
            names => {
                let names = listed(names.iter().map(String::as_str));
                text += &format!(" on each of {names}, led by `{}`", self.host(plan.hosts.leader()));
            }
        }
        let parts = [self.tasks_text(), self.alone_text(), self.sources_text(), self.ways_text()];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            text += &format!("\n\n{part}");
        }
        text + "\n"
    }

    fn tasks_text(&self) -> String {
        let mut table = table(&["operator", "host", "worker", "task", "partitions"]);
        for task in &self.plan.tasks {
            table.add_row([
                self.operator(task.operator).to_owned(),
                self.host(task.host).to_owned(),
                task.worker.to_string(),
                task.index.to_string(),
                partitions(&task.partitions),
            ]);
        }
        if self.plan.tasks.is_empty() {
            "no operators: what is read is written as it is".to_owned()
        } else {
            table.to_string()
        }
    }

    /// Why operators are where they are, if not everywhere.
    fn alone_text(&self) -> String {
        let leader = self.host(self.plan.hosts.leader());
        let lines = self.plan.operators.iter().zip(&self.graph.operators).filter_map(|(planned, node)| {
            let reason = planned.alone?.reason(self.graph);
            Some(format!("`{}` is on `{leader}` alone, since {reason}", node.name))
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn sources_text(&self) -> String {
        let mut table = table(&["source", "host", "splits"]);
        for (node, splits) in self.graph.sources.iter().zip(self.splits()) {
            for host in &node.hosts {
                let shown = match &splits {
                    Ok(splits) => {
                        split_names(splits.iter().filter(|(_, of)| of == host).map(|(name, _)| name.as_str()))
                    }
                    Err(reason) => format!("not known: {reason}"),
                };
                table.add_row([node.name.as_str(), self.host(*host), &shown]);
            }
        }
        table.to_string()
    }

    fn ways_text(&self) -> String {
        let mut table = table(&["from", "to", "way"]);
        for (edge, routing, travel) in self.edges() {
            let (from, to) = self.ends(edge);
            let to = if edge.feedback { format!("{to} (feedback)") } else { to.to_owned() };
            table.add_row([from, to, self.way_of_records(edge, routing, travel)]);
        }
        for (user, used, name, travel) in self.uses() {
            let way = format!("{}: {}", access(used).join(", "), self.way_of_keys(travel));
            table.add_row([user.to_owned(), name, way]);
        }
        table.to_string()
    }

    fn way_of_records(&self, edge: &Edge, routing: Routing, travel: Travel) -> String {
        match (travel, routing) {
            (Travel::Nothing, _) if matches!(edge.to, Consumer::Sink(_)) => "records: written on their host".to_owned(),
            (Travel::Nothing, Routing::Hash) => "records: by key, on their host".to_owned(),
            (Travel::Nothing, Routing::Forward) => "records: stay on their host".to_owned(),
            (Travel::OtherKeys, _) => "records: by key; those that keep their key stay on their host".to_owned(),
            (Travel::ByKey, _) => "records: by key, to the host that owns it".to_owned(),
            (Travel::ToLeader, _) => format!("records: to `{}`", self.host(self.plan.hosts.leader())),
        }
    }

    fn way_of_keys(&self, travel: Travel) -> String {
        match travel {
            Travel::Nothing => "on its host".to_owned(),
            Travel::OtherKeys => "a record's own key on its host, others at the host that owns them".to_owned(),
            Travel::ByKey => "at the host that owns the key".to_owned(),
            Travel::ToLeader => format!("at `{}`", self.host(self.plan.hosts.leader())),
        }
    }

    fn json(&self) -> Value {
        let (plan, hosts) = (self.plan, &self.plan.hosts);
        let cluster = self.job.loaded.manifest.cluster.as_ref();
        let host =
            |name: &String| json!({ "name": name, "address": cluster.map(|cluster| &cluster.hosts[name].address) });
        let task = |place: usize| {
            let task = &plan.tasks[place];
            json!({
                "task": place,
                "index": task.index,
                "host": hosts.name(task.host),
                "worker": task.worker,
                "partitions": [task.partitions.start, task.partitions.end - 1],
            })
        };
        let operators = plan.operators.iter().zip(&self.graph.operators).map(|(planned, node)| {
            json!({
                "name": node.name,
                "keyed": planned.is_keyed,
                "alone": planned.alone.map(|alone| alone.reason(self.graph)),
                "colocated_with": node.colocated_with.map(|other| self.operator(other)),
                "tasks": planned.tasks.clone().map(task).collect::<Vec<_>>(),
            })
        });
        let sources = self.graph.sources.iter().zip(self.splits()).map(|(node, splits)| {
            let reason = splits.as_ref().err().cloned();
            let split = |(name, host): (String, u16)| json!({ "name": name, "host": hosts.name(host) });
            json!({
                "name": node.name,
                "hosts": node.hosts.iter().filter_map(|host| hosts.name(*host)).collect::<Vec<_>>(),
                "splits": splits.ok().map(|splits| splits.into_iter().map(split).collect::<Vec<_>>()),
                "unknown": reason,
            })
        });
        let ways = self.edges().map(|(edge, routing, travel)| {
            let (from, to) = self.ends(edge);
            let by_key = routing == Routing::Hash;
            json!({ "from": from, "to": to, "by_key": by_key, "feedback": edge.feedback, "travels": word(travel) })
        });
        let uses = self.uses().map(|(user, used, table, travel)| {
            json!({
                "operator": user,
                "name": used.name,
                "table": table,
                "access": access(used),
                "max_batch": used.gathering.max_batch,
                "linger_us": used.gathering.linger.as_micros(),
                "travels": word(travel),
            })
        });
        json!({
            "job": self.graph.job,
            "partitions": self.graph.partitions,
            "workers": plan.workers,
            "hosts": hosts.names().iter().map(host).collect::<Vec<_>>(),
            "leader": hosts.name(hosts.leader()),
            "operators": operators.collect::<Vec<_>>(),
            "sources": sources.collect::<Vec<_>>(),
            "ways": ways.collect::<Vec<_>>(),
            "uses": uses.collect::<Vec<_>>(),
        })
    }
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY).set_header(header);
    table
}

fn counted(number: u16, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The first and the last.
fn partitions(range: &std::ops::Range<u16>) -> String {
    if range.len() == 1 { range.start.to_string() } else { format!("{}–{}", range.start, range.end - 1) }
}

fn split_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let shown = names.iter().take(SPLITS_SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "none".to_owned(),
        more if more > SPLITS_SHOWN => format!("{shown} and {} more", more - SPLITS_SHOWN),
        _ => shown,
    }
}

/// What the function may do with the table.
fn access(used: &PlannedUse) -> Vec<&'static str> {
    let all = [("read", used.read), ("update", used.update), ("send", used.send)];
    all.into_iter().filter(|(_, allowed)| *allowed).map(|(name, _)| name).collect()
}

/// What travels, for programs.
fn word(travel: Travel) -> &'static str {
    match travel {
        Travel::Nothing => "nothing",
        Travel::OtherKeys => "other-keys",
        Travel::ByKey => "by-key",
        Travel::ToLeader => "to-leader",
    }
}
