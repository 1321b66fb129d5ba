//! The wiring: a mailbox for each task and sink, and the routers that send to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{JobError, Meters, SourceMeters};
use crate::connector::extract::JsonPointer;
use crate::graph::{Consumer, Edge, Graph, OperatorIndex, OperatorPlan, Plan, Routing, SinkIndex, SourceIndex};
use crate::lookup::{Directory, OperatorTables};
use crate::manifest::{Manifest, Operator};
use crate::metrics::{Counter, OperatorMeters};
use crate::plugin::engine::Function;
use crate::plugin::{DEFAULT_PORT, Limits};
use crate::state::{StateStore, TableSpec, TaskTables};
use crate::task::flow::Flow;
use crate::task::refuse::Refusals;
use crate::task::route::{Destination, Edge as Way, Router, SinkHandle, SinkMessage};
use crate::task::run::{OperatorSetup, Task};
use crate::task::{Mailbox, Message};

/// Everything that sends and receives, before it is handed to threads.
pub(super) struct Wiring<'a> {
    manifest: &'a Manifest,
    graph: &'a Graph,
    plan: &'a Plan,
    flow: Arc<Flow>,
    meters: Arc<Meters>,
    mailboxes: Vec<Mailbox>,
    receivers: Vec<Option<UnboundedReceiver<Message>>>,
    sinks: Vec<SinkHandle>,
    /// The rules for records that fail, by operator.
    refusals: Vec<Refusals>,
}

/// The receiving side of a sink.
pub(super) struct SinkMailbox {
    pub(super) name: String,
    pub(super) receiver: mpsc::Receiver<SinkMessage>,
    pub(super) records_out: Arc<Counter>,
}

impl<'a> Wiring<'a> {
    /// Makes all mailboxes. The sinks' receiving sides come back for their threads.
    pub(super) fn new(
        manifest: &'a Manifest,
        graph: &'a Graph,
        plan: &'a Plan,
        flow: Arc<Flow>,
        meters: Arc<Meters>,
    ) -> (Self, Vec<SinkMailbox>) {
        let (mailboxes, receivers) = plan
            .tasks
            .iter()
            .map(|_| {
                let (mailbox, receiver) = unbounded_channel();
                (mailbox, Some(receiver))
            })
            .unzip();
        let (sinks, sink_mailboxes): (Vec<SinkHandle>, Vec<SinkMailbox>) = graph
            .sinks
            .iter()
            .map(|sink| {
                let (sender, receiver) = mpsc::channel();
                let records_out: Arc<Counter> = Arc::default();
                meters.sinks.lock().insert(sink.name.clone(), Arc::clone(&records_out));
                let mailbox = SinkMailbox { name: sink.name.clone(), receiver, records_out };
                (SinkHandle::new(sender, Arc::clone(&flow)), mailbox)
            })
            .unzip();
        let letters = |sink: Option<SinkIndex>| sink.map(|index| sinks[index.0].clone());
        let refusals = graph
            .operators
            .iter()
            .map(|node| {
                let on_error = manifest.operators[&node.name].on_error;
                Refusals::new("operator", &node.name, on_error, letters(node.dead_letter))
            })
            .collect();
        (Self { manifest, graph, plan, flow, meters, mailboxes, receivers, sinks, refusals }, sink_mailboxes)
    }

    /// The mailboxes of all tasks.
    pub(super) fn mailboxes(&self) -> Vec<Mailbox> {
        self.mailboxes.clone()
    }

    /// The sinks by name.
    pub(super) fn sinks(&self) -> BTreeMap<String, SinkHandle> {
        self.graph.sinks.iter().zip(&self.sinks).map(|(node, sink)| (node.name.clone(), sink.clone())).collect()
    }

    /// The rule and counters of a source, and the way its records take.
    pub(super) fn source(&self, index: usize) -> Result<(Router, Refusals, Arc<SourceMeters>), JobError> {
        let node = &self.graph.sources[index];
        let letters = node.dead_letter.map(|sink| self.sinks[sink.0].clone());
        let (on_error, _) = self.manifest.sources[&node.name].on_error();
        let refusals = Refusals::new("source", &node.name, on_error, letters);
        let meters = Arc::new(SourceMeters { refused: refusals.counter(), ..SourceMeters::default() });
        self.meters.sources.lock().insert(node.name.clone(), Arc::clone(&meters));
        let ways = self.graph.edges.iter().zip(&self.plan.routings);
        let ways = ways.filter(|(edge, _)| edge.from == crate::graph::Producer::Source(SourceIndex(index)));
        let ways = ways.map(|(edge, routing)| self.way(edge, *routing, From::Source { has_key: node.has_key }));
        Ok((Router::new(vec![ways.collect::<Result<_, _>>()?], Arc::clone(&self.flow)), refusals, meters))
    }

    /// The tasks of all operators, by worker, and where all their tables are found.
    pub(super) fn tasks(
        &mut self,
        functions: &BTreeMap<String, Arc<Function>>,
        store: &StateStore,
    ) -> Result<(Vec<Vec<Task>>, Arc<Directory>), JobError> {
        let setups: Vec<Arc<OperatorSetup>> = (0..self.graph.operators.len())
            .map(|index| {
                let name = &self.graph.operators[index].name;
                let setup = self.setup(index, &self.manifest.operators[name], Arc::clone(&functions[name]));
                self.meters.operators.lock().insert(name.clone(), Arc::clone(&setup.meters));
                Arc::new(setup)
            })
            .collect();
        let open = |planned: &crate::graph::Task| {
            store.open_task(planned.partitions.clone(), &self.table_specs(&setups[planned.operator.0]))
        };
        let tables: Vec<Arc<TaskTables>> = self.plan.tasks.iter().map(open).collect::<Result<_, _>>()?;
        let directory = Arc::new(self.directory(&setups, &tables, store));
        let mut workers: Vec<Vec<Task>> = (0..self.plan.workers).map(|_| Vec::new()).collect();
        for ((id, planned), tables) in self.plan.tasks.iter().enumerate().zip(tables) {
            let setup = &setups[planned.operator.0];
            let router = self.operator_router(planned.operator, usize::from(planned.index), setup)?;
            let mailbox = self.receivers[id].take().expect("each task's mailbox is handed out once");
            let task = Task::new(Arc::clone(setup), tables, router, Arc::clone(&self.flow), mailbox);
            workers[usize::from(planned.worker)].push(task);
        }
        Ok((workers, directory))
    }

    /// Where the tables of all tasks are found.
    fn directory(&self, setups: &[Arc<OperatorSetup>], tables: &[Arc<TaskTables>], store: &StateStore) -> Directory {
        let of_operator = |(setup, plan): (&Arc<OperatorSetup>, &OperatorPlan)| OperatorTables {
            operator: setup.name.clone(),
            tables: setup.function.description.tables.iter().map(|(name, _)| name.clone()).collect(),
            tasks: tables[plan.tasks.clone()].to_vec(),
            owners: plan.owners().to_vec(),
        };
        Directory::new(setups.iter().zip(&self.plan.operators).map(of_operator).collect(), store.epochs())
    }

    /// The tables of an operator, by their names in the job. A table is ordered when its component or the manifest says so.
    fn table_specs(&self, setup: &OperatorSetup) -> Vec<TableSpec> {
        let (description, own) = (&setup.function.description, &self.manifest.operators[&setup.name].tables);
        let spec = |(table, version): &(String, u32)| TableSpec {
            name: format!("{}/{table}", setup.name).into(),
            schema_version: *version,
            ordered: description.ordered_tables.contains(table) || own.get(table).is_some_and(|own| own.ordered),
        };
        description.tables.iter().map(spec).collect()
    }

    fn setup(&self, index: usize, operator: &Operator, function: Arc<Function>) -> OperatorSetup {
        let limits = &operator.limits;
        let refusals = self.refusals[index].clone();
        let meters = OperatorMeters { refused: refusals.counter(), ..OperatorMeters::default() };
        OperatorSetup {
            name: self.graph.operators[index].name.clone(),
            function,
            config: operator.config_json().to_string(),
            limits: Limits {
                memory_bytes_max: limits.memory.0,
                run_time_max: limits.time.0,
                output_bytes_max: limits.output.0,
                log_lines_max: limits.log_lines,
            },
            batch_records_max: usize::from(operator.batch),
            linger: operator.linger.0,
            retries: operator.retries,
            refusals,
            meters: Arc::new(meters),
        }
    }

    /// The way on from task number `task` of an operator, by port.
    fn operator_router(&self, operator: OperatorIndex, task: usize, setup: &OperatorSetup) -> Result<Router, JobError> {
        let ports = &setup.function.description.ports;
        let mut ways: Vec<Vec<Way>> = ports.iter().map(|_| Vec::new()).collect();
        for (edge, routing) in self.graph.edges.iter().zip(&self.plan.routings) {
            let crate::graph::Producer::Operator { operator: from, port } = &edge.from else { continue };
            if *from != operator {
                continue;
            }
            let port = ports.iter().position(|name| name == port).ok_or_else(|| {
                JobError::Plan(format!("operator `{}` has no port `{port}` beside `{DEFAULT_PORT}`", setup.name))
            })?;
            ways[port].push(self.way(edge, *routing, From::Task(task))?);
        }
        Ok(Router::new(ways, Arc::clone(&self.flow)))
    }

    fn way(&self, edge: &Edge, routing: Routing, from: From) -> Result<Way, JobError> {
        let key = edge.key.as_deref().map(JsonPointer::parse).transpose();
        let key = key.map_err(|error| JobError::Plan(error.to_string()))?.map(Arc::new);
        let (to, refusals) = match edge.to {
            Consumer::Sink(sink) => (Destination::Sink(self.sinks[sink.0].clone()), None),
            Consumer::Operator(operator) => {
                (self.destination(operator, routing, from), Some(self.refusals[operator.0].clone()))
            }
        };
        Ok(Way { key, refusals, to })
    }

    fn destination(&self, operator: OperatorIndex, routing: Routing, from: From) -> Destination {
        let plan = &self.plan.operators[operator.0];
        let tasks: Arc<[Mailbox]> = self.mailboxes[plan.tasks.clone()].into();
        match (routing, from) {
            // Records of one key stay in order also where no table asks for it.
            (Routing::Hash, _) | (Routing::Forward, From::Source { has_key: true }) => {
                Destination::Partitioned { tasks, owners: plan.owners().into() }
            }
            (Routing::Forward, From::Source { has_key: false }) => {
                Destination::Spread { tasks, sent: Arc::new(AtomicUsize::new(0)) }
            }
            (Routing::Forward, From::Task(task)) => Destination::Task(tasks[task % tasks.len()].clone()),
        }
    }
}

/// What a way begins at.
#[derive(Clone, Copy)]
enum From {
    Source { has_key: bool },
    Task(usize),
}
