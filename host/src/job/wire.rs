//! The wiring: a mailbox for each task and sink, and the routers that send to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use tokio::sync::mpsc::UnboundedReceiver;

use super::{JobError, Meters, SourceMeters};
use crate::cluster::HostId;
use crate::cluster::lookups::{Batching, Lookups};
use crate::connector::extract::JsonPointer;
use crate::epoch::entry::Carried;
use crate::graph::{
    Consumer, Edge, Gathering, Graph, OperatorIndex, OperatorNode, OperatorPlan, Plan, PlannedTable, PlannedUse,
    Routing, SinkIndex, SourceIndex,
};
use crate::lookup::{Directory, OperatorTables, Owner};
use crate::manifest::{self, Manifest, Operator};
use crate::metrics::{Counter, OperatorMeters};
use crate::plugin::callable::Callable;
use crate::plugin::{DEFAULT_PORT, Limits, Use};
use crate::record::Batch;
use crate::state::{StateStore, TableSpec, TaskTables};
use crate::task::flow::Flow;
use crate::task::others::{Others, UsedTable};
use crate::task::progress::Progress;
use crate::task::refuse::Refusals;
use crate::task::remote::Remote;
use crate::task::rounds::Rounds;
use crate::task::route::{Destination, Edge as Way, Router, SinkHandle, SinkMessage};

use crate::task::run::{OperatorSetup, Slot, Task};
use crate::task::{Mailbox, Message, Post};

/// The hosts of a job, as one of them sees them.
#[derive(Clone, Default)]
pub(super) struct Neighbours {
    /// This host, by its place in the list of hosts.
    pub(super) own: HostId,
    /// The way to the tasks of each other host, in that list's order; empty for a job of one host.
    pub(super) posts: Vec<Option<Arc<Post>>>,
    /// Lookups of what they own.
    pub(super) lookups: Option<Lookups>,
}

/// Everything that sends and receives, before it is handed to threads.
pub(super) struct Wiring<'a> {
    manifest: &'a Manifest,
    graph: &'a Graph,
    plan: &'a Plan,
    neighbours: Neighbours,
    flow: Arc<Flow>,
    progress: Arc<Progress>,
    meters: Arc<Meters>,
    /// Of all tasks of the job.
    mailboxes: Vec<Mailbox>,
    receivers: Vec<Option<UnboundedReceiver<Message>>>,
    sinks: Vec<SinkHandle>,
    /// The rules for records that fail, by operator.
    refusals: Vec<Refusals>,
    /// What is counted, by operator.
    operator_meters: Vec<Arc<OperatorMeters>>,
}

/// The tasks of each worker.
type ByWorker<F> = Vec<Vec<Task<F>>>;

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
        neighbours: Neighbours,
        flow: Arc<Flow>,
        progress: Arc<Progress>,
        meters: Arc<Meters>,
    ) -> (Self, Vec<SinkMailbox>) {
        let mailbox = |(number, task): (u32, &crate::graph::Task)| match neighbours.posts.get(usize::from(task.host)) {
            Some(Some(post)) => (Mailbox::there(number, Arc::clone(post)), None),
            _ => {
                let (mailbox, receiver) = Mailbox::here(number);
                (mailbox, Some(receiver))
            }
        };
        let (mailboxes, receivers) = (0..).zip(&plan.tasks).map(mailbox).unzip();
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
        let refusals: Vec<Refusals> = graph
            .operators
            .iter()
            .map(|node| {
                let on_error = manifest.operators[&node.name].on_error;
                Refusals::new("operator", &node.name, on_error, letters(node.dead_letter))
            })
            .collect();
        let counting =
            |refusals: &Refusals| Arc::new(OperatorMeters { refused: refusals.counter(), ..OperatorMeters::default() });
        let operator_meters = refusals.iter().map(counting).collect();
        let wiring = Self {
            manifest,
            graph,
            plan,
            neighbours,
            flow,
            progress,
            meters,
            mailboxes,
            receivers,
            sinks,
            refusals,
            operator_meters,
        };
        (wiring, sink_mailboxes)
    }

    /// This host.
    pub(super) fn own(&self) -> HostId {
        self.neighbours.own
    }

    /// The mailboxes of all tasks of the job.
    pub(super) fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    /// The tasks of this host: each one's mailbox, and its operator.
    pub(super) fn tasks_here(&self) -> Vec<(Mailbox, Arc<str>)> {
        let names: Vec<Arc<str>> = self.graph.operators.iter().map(|node| node.name.as_str().into()).collect();
        let tasks = self.mailboxes.iter().zip(&self.plan.tasks).filter(|(mailbox, _)| mailbox.is_here());
        tasks.map(|(mailbox, task)| (mailbox.clone(), Arc::clone(&names[task.operator.0]))).collect()
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
    pub(super) fn tasks<F: Callable>(
        &mut self,
        functions: &BTreeMap<String, Arc<Slot<F>>>,
        store: &StateStore,
    ) -> Result<(ByWorker<F>, Arc<Directory>), JobError> {
        let functions: Vec<&Arc<Slot<F>>> = self.graph.operators.iter().map(|node| &functions[&node.name]).collect();
        let open = |planned: &crate::graph::Task| {
            let tables = self.plan.operators[planned.operator.0].tables.iter().map(|table| table.name.as_str());
            let encoding = functions[planned.operator.0].current().encoding(tables);
            store.open_task_as(planned.partitions.clone(), &self.table_specs(planned.operator), encoding)
        };
        let is_here = |planned: &crate::graph::Task| planned.host == self.neighbours.own.0;
        let open = |planned| is_here(planned).then(|| open(planned)).transpose();
        let tables: Vec<Option<Arc<TaskTables>>> = self.plan.tasks.iter().map(open).collect::<Result<_, _>>()?;
        let directory = Arc::new(self.directory(&tables, store));
        let setups: Vec<Arc<OperatorSetup<F>>> = functions
            .into_iter()
            .enumerate()
            .map(|(index, function)| {
                let setup = Arc::new(self.setup(index, Arc::clone(function), &directory));
                self.meters.operators.lock().insert(setup.name.clone(), Arc::clone(&setup.meters));
                setup
            })
            .collect();
        // All of them are on one host.
        let is_serializable =
            |planned: &crate::graph::Task| is_here(planned) && self.graph.operators[planned.operator.0].is_serializable;
        let mut seats =
            Rounds::seats(self.plan.tasks.iter().filter(|planned| is_serializable(planned)).count()).into_iter();
        let mut workers: Vec<Vec<Task<F>>> = (0..self.plan.workers).map(|_| Vec::new()).collect();
        for ((id, planned), tables) in self.plan.tasks.iter().enumerate().zip(tables) {
            let Some(tables) = tables else { continue };
            let setup = &setups[planned.operator.0];
            let place = (planned.operator.0, usize::from(planned.index));
            let router = self.operator_router(planned.operator, place.1, setup)?;
            let receiver = self.receivers[id].take().expect("each task's mailbox is handed out once");
            let mailbox = (self.mailboxes[id].clone(), receiver);
            let seat = if is_serializable(planned) { seats.next() } else { None };
            let task = Task::new(Arc::clone(setup), place, tables, router, Arc::clone(&self.flow), mailbox, seat);
            workers[usize::from(planned.worker)].push(task);
        }
        Ok((workers, directory))
    }

    /// Where the tables of all tasks are found.
    fn directory(&self, tables: &[Option<Arc<TaskTables>>], store: &StateStore) -> Directory {
        let of_operator = |(index, (node, plan)): (usize, (&OperatorNode, &OperatorPlan))| {
            let here = plan.tasks_on(self.neighbours.own.0);
            let owner = |&task: &u16| {
                let place = plan.tasks.start + usize::from(task);
                if here.contains(&place) {
                    Owner::Task((place - here.start) as u16)
                } else {
                    Owner::Host(self.plan.tasks[place].host)
                }
            };
            OperatorTables {
                operator: node.name.clone(),
                tables: plan.tables.iter().map(|table| table.name.clone()).collect(),
                specs: self.table_specs(OperatorIndex(index)),
                tasks: tables[here.clone()].iter().flatten().cloned().collect(),
                owners: plan.owners().iter().map(owner).collect(),
            }
        };
        let operators = self.graph.operators.iter().zip(&self.plan.operators).enumerate();
        Directory::new(operators.map(of_operator).collect(), store.epochs()).on_hosts(self.plan.hosts.names())
    }

    /// The tables of an operator, by their names in the state.
    fn table_specs(&self, operator: OperatorIndex) -> Vec<TableSpec> {
        let name = &self.graph.operators[operator.0].name;
        let spec = |table: &PlannedTable| TableSpec {
            name: format!("{name}/{}", table.name).into(),
            schema_version: table.schema_version,
            ordered: table.ordered,
            versioned_span_ms: table.versioned_span_ms,
        };
        self.plan.operators[operator.0].tables.iter().map(spec).collect()
    }

    /// The tables that an operator uses beside its own.
    fn others(&self, operator: usize, directory: &Arc<Directory>) -> Others {
        let uses = &self.plan.operators[operator].uses;
        let used = |used: &PlannedUse| {
            let owner = &self.plan.operators[used.owner.0];
            let name = format!("{}.{}", self.graph.operators[used.owner.0].name, owner.tables[used.table].name);
            UsedTable {
                id: directory.find(&name).expect("a planned use is of a table that is there"),
                owner: used.owner.0,
                table: used.table,
                tasks: self.mailboxes[owner.tasks.clone()].into(),
                owners: owner.owners().into(),
                name: owner.tables[used.table].name.clone(),
                refusals: self.refusals[used.owner.0].clone(),
                meters: Arc::clone(&self.operator_meters[used.owner.0]),
                remote: self.neighbours.lookups.clone().map(|lookups| {
                    let Gathering { max_batch, linger } = used.gathering;
                    Remote::new(lookups, Arc::clone(directory), Batching::new(usize::from(max_batch), linger))
                }),
            }
        };
        let allowed = |used: &PlannedUse| Use {
            name: used.name.clone(),
            read: used.read,
            update: used.update,
            send: used.send,
            ordered: used.ordered,
            versioned: used.versioned,
            waiting: used.waiting,
        };
        let (tables, uses) = (uses.iter().map(used).collect(), uses.iter().map(allowed).collect());
        Others::new(Arc::clone(directory), tables, uses, Arc::clone(&self.progress))
    }

    /// Puts what the last epoch carried over into the mailboxes: the first that their tasks work on.
    pub(super) fn post_carried(&self, carried: &[Carried]) -> Result<(), JobError> {
        for Carried { operator, batch } in carried {
            let index = self.graph.operators.iter().position(|node| *node.name == **operator).ok_or_else(|| {
                JobError::Plan(format!(
                    "the last epoch has records for the operator `{operator}`, which is gone: put it back"
                ))
            })?;
            let to = self.by_key(OperatorIndex(index));
            let way = Way { key: None, refusals: None, to, feedback: true };
            Router::new(vec![vec![way]], Arc::clone(&self.flow)).send(0, Batch::clone(batch))?;
        }
        Ok(())
    }

    fn setup<F>(&self, index: usize, function: Arc<Slot<F>>, directory: &Arc<Directory>) -> OperatorSetup<F> {
        let operator = &self.manifest.operators[&self.graph.operators[index].name];
        let refusals = self.refusals[index].clone();
        let meters = Arc::clone(&self.operator_meters[index]);
        OperatorSetup {
            name: self.graph.operators[index].name.clone(),
            function,
            config: operator.config_json().to_string(),
            limits: limits_of(operator),
            batch_records_max: usize::from(operator.batch),
            linger: operator.linger.0,
            retries: operator.retries,
            refusals,
            meters,
            others: Arc::new(self.others(index, directory)),
        }
    }

    /// The way on from task number `task` of an operator, by port.
    fn operator_router<F: Callable>(
        &self,
        operator: OperatorIndex,
        task: usize,
        setup: &OperatorSetup<F>,
    ) -> Result<Router, JobError> {
        let function = setup.function.current();
        let ports = &function.description().ports;
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
        Ok(Way { key, refusals, to, feedback: edge.feedback })
    }

    fn destination(&self, operator: OperatorIndex, routing: Routing, from: From) -> Destination {
        let own = self.neighbours.own.0;
        match (routing, from) {
            // Records of one key stay in order also where no table asks for it.
            (Routing::Hash, _) | (Routing::Forward, From::Source { has_key: true }) => self.by_key(operator),
            (Routing::Forward, From::Source { has_key: false }) => {
                let tasks = self.mailboxes[self.plan.operators[operator.0].forward_tasks(own)].into();
                Destination::Spread { tasks, sent: Arc::new(AtomicUsize::new(0)) }
            }
            (Routing::Forward, From::Task(task)) => {
                Destination::Task(self.mailboxes[self.plan.forward(operator, own, task).0].clone())
            }
        }
    }

    /// To the tasks of an operator by the records' keys: where it is not keyed, to those that get what comes from this host.
    fn by_key(&self, operator: OperatorIndex) -> Destination {
        let (plan, own) = (&self.plan.operators[operator.0], self.neighbours.own.0);
        let (tasks, owners) = match plan.is_keyed {
            true => (plan.tasks.clone(), plan.owners().into()),
            false => (plan.forward_tasks(own), plan.forward_owners(own).into()),
        };
        Destination::Partitioned { tasks: self.mailboxes[tasks].into(), owners }
    }
}

/// What an instance of an operator's function may use.
pub(super) fn limits_of(operator: &Operator) -> Limits {
    limits(&operator.limits)
}

/// What the manifest's limits come to.
pub fn limits(limits: &manifest::Limits) -> Limits {
    Limits {
        memory_bytes_max: limits.memory.0,
        run_time_max: limits.time.0,
        output_bytes_max: limits.output.0,
        log_lines_max: limits.log_lines,
    }
}

/// Places for functions, each with the one that runs first.
pub(super) fn slots<F>(functions: BTreeMap<String, Arc<F>>) -> BTreeMap<String, Arc<Slot<F>>> {
    functions.into_iter().map(|(name, function)| (name, Arc::new(Slot::new(function)))).collect()
}

/// What a way begins at.
#[derive(Clone, Copy)]
enum From {
    Source { has_key: bool },
    Task(usize),
}
