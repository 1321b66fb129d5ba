//! One of several hosts: it carries out what the epoch protocol decides, and tells it what came of it.
//!
//! The protocol (`cluster::protocol`) decides, the link (`cluster::link`) carries, and an attempt that runs here is the same tasks, sources, sinks and state as those of a job on one host. What
//! happens is taken in turn by one loop, [`Process::run`]; nothing else changes what runs.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::assemble::{JobOptions, Parts, Reached, Running, Serve, Serving};
use super::commit::{Order, Report as Done, Sealed};
use super::coordinate::{DISCOVER_EVERY, LOOK_EVERY, blocking};
use super::stop::Stop;
use super::wire::Neighbours;
use super::{Ended, JobError};
use crate::cluster::HostId;
use crate::cluster::link::{
    self, HEARTBEAT, HostAddress, Identity, Link, LinkSettings, Listen, PeerEvent, PeerStatus, Security,
};
use crate::cluster::lookups::{self, LinkPeers, LookupFigures, LookupMeters, Lookups, LookupsSettings};
use crate::cluster::membership::{LeaderDirectory, Membership, StaticList};
use crate::cluster::protocol::{Action, EndReason, Event, Message, Node, Outcome, Report, Settings, Stage, Status};
use crate::connector::ConnectorError;
use crate::disk::RealDisk;
use crate::epoch::standing::Decision;
use crate::epoch::{Attempt, Epoch};
use crate::graph::Graph;
use crate::manifest::{Host, Loaded, Tls};
use crate::state::{Hush, Pressure, StateError, Undecided};
use crate::task::Post;
use crate::task::remote::{Addressee, Inbound, Served};

/// How often the loop looks around while an epoch is being sealed.
const LOOK_EVERY_CLOSED: Duration = Duration::from_millis(1);
/// How often it is noted how the hosts are, for those who ask.
const NOTE_STATUS_EVERY: Duration = Duration::from_millis(100);
/// How often it is logged whom the job waits for.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long those who read state have to let go of it, when an attempt has ended.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);
const LET_GO_LOOK: Duration = Duration::from_millis(10);
/// How long the link waits at the end for its last words to be heard.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a control message carries: its first byte.
const PROTOCOL: u8 = 0;
const PRESSURE: u8 = 1;

/// How the hosts of a job are, as one of them knows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterStatus {
    /// This host.
    pub host: String,
    /// The host that leads.
    pub leader: String,
    /// The attempt that runs here.
    pub attempt: Option<Attempt>,
    /// What is done now: by the whole job, on the leader; else by this host.
    pub stage: &'static str,
    /// The hosts that are waited for.
    pub waiting_for: Vec<String>,
    /// Those that have been waited for for long, with the seconds. Only the leader knows.
    pub slow: Vec<(String, f64)>,
    /// The connections to the other hosts.
    pub peers: Vec<PeerStatus>,
    /// Why a host was not accepted last, by host.
    pub refused: BTreeMap<String, String>,
    /// Lookups of what other hosts own.
    pub lookups: Vec<RemoteLookups>,
}

/// The lookups of a table at another host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RemoteLookups {
    /// The host.
    pub host: String,
    /// The table, `operator.table`.
    pub table: String,
    /// What is counted of them.
    #[serde(flatten)]
    pub figures: LookupFigures,
}

/// What is heard from outside the process.
enum Heard {
    Control(HostId, Vec<u8>),
    Peer(PeerEvent),
}

/// Passes on what the link hears.
struct Ears(mpsc::UnboundedSender<Heard>);

impl Listen for Ears {
    fn control(&self, from: HostId, message: Vec<u8>) {
        // A loop that no longer listens has ended.
        let _ = self.0.send(Heard::Control(from, message));
    }

    fn event(&self, event: PeerEvent) {
        let _ = self.0.send(Heard::Peer(event));
    }
}

/// What the loop wakes up for.
enum Woken {
    Heard(Heard),
    Done(Done),
    Failed(JobError),
    InputEnded,
    Drained,
    Stop,
    Overdue,
    Time,
}

/// What is here of the job.
enum Place {
    /// A state directory that is looked at.
    Idle(Box<Undecided>),
    Running(Box<Here>),
    /// Neither: between two of these, or at the end.
    Nothing,
}

/// An attempt that runs here.
struct Here {
    attempt: Attempt,
    running: Running,
    /// Lookups of what other hosts own.
    lookups: lookups::Running,
    /// Since when admission is closed for an epoch, and how long it took until nothing was in flight here.
    closed: Option<Closed>,
    /// What has been collected and is to be appended.
    sealed: Option<Sealed>,
    /// The last report that nobody asked for.
    told: Report,
    last_discovery: Instant,
    /// Whether other hosts have been asked to wait with sending more.
    is_pressed: bool,
    /// Admission is stopped for want of memory; the epoch since whose commit state has been brought to disk.
    full: Option<Option<Epoch>>,
}

struct Closed {
    since: Instant,
    drained: Option<Duration>,
    collected: bool,
    _hush: Hush,
}

/// One of several hosts, while its process runs.
struct Process<'a> {
    parts: &'a Parts<'a>,
    settings: &'a LinkSettings,
    node: Node,
    /// On the leader.
    seat: Option<StaticList>,
    link: Link,
    heard: mpsc::UnboundedReceiver<Heard>,
    place: Place,
    started: Instant,
    stop: Option<oneshot::Receiver<()>>,
    /// When a stop that was asked for here is overdue.
    overdue: Option<tokio::time::Instant>,
    events: VecDeque<Event>,
    /// This host's own failure.
    failure: Option<JobError>,
    outcome: Option<Outcome>,
    last_told: Instant,
    told_waiting: Option<(Stage, Vec<HostId>)>,
    noted_status: Instant,
    refused: BTreeMap<String, String>,
    lookup_meters: Arc<LookupMeters>,
    cache_bytes_max: usize,
    /// Answers others while no attempt runs here.
    serving: Option<Serving>,
    serve: Option<Serve>,
    reached: &'a mut Reached,
}

/// How this host finds the others, and what they must agree on.
fn link_settings(parts: &Parts<'_>, host: &str) -> Result<LinkSettings, JobError> {
    let loaded = parts.loaded;
    let own = parts.plan.hosts.chosen(Some(host)).map_err(JobError::Plan)?;
    let cluster = loaded.manifest.cluster.as_ref().expect("a manifest without it has no host of any name");
    let address = |(name, host): (&String, &Host)| HostAddress { name: name.clone(), address: host.address.clone() };
    let security = cluster.tls.as_ref().map_or(Security::Plain, |tls| {
        let Tls { ca, certificate, key } = tls.of_host(host);
        Security::Tls { ca: loaded.resolve(&ca), certificate: loaded.resolve(&certificate), key: loaded.resolve(&key) }
    });
    let components = parts.graph.operators.iter().map(|node| (node.name.clone(), parts.functions[&node.name].digest));
    Ok(LinkSettings {
        hosts: cluster.hosts.iter().map(address).collect(),
        own: HostId(own),
        identity: Identity {
            wasmill: env!("CARGO_PKG_VERSION").to_owned(),
            job: loaded.manifest.job.name.clone(),
            manifest: loaded.digest(),
            components: components.collect(),
        },
        security,
        heartbeat: HEARTBEAT.min(cluster.lost_after.0 / 10),
        lost_after: cluster.lost_after.0,
        seed: RandomState::new().hash_one(host),
    })
}

/// Runs this host's part of a job until the whole job has ended.
pub(super) async fn run(
    loaded: &Loaded,
    graph: &Graph,
    host: &str,
    options: JobOptions,
    reached: &mut Reached,
) -> Result<Ended, JobError> {
    let JobOptions { started, meters, stop, serve, .. } = options;
    let parts = Parts::new(loaded, graph, started, meters).await?;
    let settings = link_settings(&parts, host)?;
    let own = settings.own;
    let listener = link::Running::bind(&settings.hosts[own.index()].address).map_err(JobError::Link)?;
    let undecided = parts.look_at_state()?;
    let names: Vec<String> = settings.hosts.iter().map(|host| host.name.clone()).collect();
    let hosts = names.len() as u16;
    let leader = HostId(parts.plan.hosts.leader());
    let (seat, node) = if own == leader {
        let directory = LeaderDirectory {
            disk: Arc::new(RealDisk),
            path: undecided.directory().to_owned(),
            job: undecided.job(),
            committed: undecided.standing().committed.epoch,
        };
        let mut seat = StaticList::leader(names, leader, directory).map_err(StateError::from)?;
        let record = seat.record().map_err(StateError::from)?;
        let interval = loaded.manifest.checkpoint.interval.0;
        let rule = Settings { interval, ..Settings::default() };
        (Some(seat), Node::leader(own, hosts, rule, record))
    } else {
        (None, Node::member(own, leader, hosts))
    };
    let (ears, heard) = mpsc::unbounded_channel();
    let link = link::Running::start(settings.clone(), listener, Arc::new(Ears(ears))).map_err(JobError::Link)?;
    tracing::info!(job = %loaded.manifest.job.name, host = %settings.hosts[own.index()].name, "connecting to the other hosts");
    let mut process = Process {
        parts: &parts,
        settings: &settings,
        node,
        seat,
        link: link.link().clone(),
        heard,
        events: VecDeque::from([Event::Standing(undecided.standing())]),
        place: Place::Idle(Box::new(undecided)),
        started: Instant::now(),
        stop: Some(stop),
        overdue: None,
        failure: None,
        outcome: None,
        last_told: Instant::now(),
        told_waiting: None,
        noted_status: Instant::now(),
        refused: BTreeMap::new(),
        lookup_meters: Arc::default(),
        cache_bytes_max: loaded.manifest.cluster.as_ref().map_or(0, |cluster| cluster.cache.0 as usize),
        serving: None,
        serve,
        reached,
    };
    process.serve_status()?;
    let result = process.run().await;
    link.stop(FAREWELL);
    result
}

impl Process<'_> {
    async fn run(mut self) -> Result<Ended, JobError> {
        let mut look = tokio::time::interval(LOOK_EVERY_CLOSED);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looked = Instant::now();
        while self.outcome.is_none() {
            self.carry_out_all().await;
            if self.outcome.is_some() {
                break;
            }
            let woken = self.wait(&mut look).await;
            let is_time = matches!(woken, Woken::Time);
            self.take(woken);
            let is_closed = matches!(&self.place, Place::Running(here) if here.closed.is_some());
            if is_time && (is_closed || looked.elapsed() >= LOOK_EVERY) {
                looked = Instant::now();
                self.look_around().await;
            }
        }
        self.end()
    }

    /// Waits until something happens.
    async fn wait(&mut self, look: &mut tokio::time::Interval) -> Woken {
        let Self { heard, place, stop, overdue, .. } = self;
        let stop = async {
            match (stop, *overdue) {
                (Some(stop), _) => match stop.await {
                    Ok(()) => Woken::Stop,
                    Err(_) => std::future::pending().await,
                },
                (None, Some(deadline)) => {
                    tokio::time::sleep_until(deadline).await;
                    Woken::Overdue
                }
                (None, None) => std::future::pending().await,
            }
        };
        let running = async {
            let Place::Running(here) = place else { return std::future::pending().await };
            let Here { running, closed, .. } = &mut **here;
            let events = &mut running.events;
            let is_draining = closed.as_ref().is_some_and(|closed| closed.drained.is_none());
            tokio::select! {
                Some(error) = events.failures.recv() => Woken::Failed(error),
                Some(done) = events.commits.recv() => Woken::Done(done),
                Some(()) = events.input_ended.recv() => Woken::InputEnded,
                () = running.coordinator.flow.drained(), if is_draining => Woken::Drained,
                else => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(heard) = heard.recv() => Woken::Heard(heard),
            woken = running => woken,
            woken = stop => woken,
            _ = look.tick() => Woken::Time,
        }
    }

    fn take(&mut self, woken: Woken) {
        match woken {
            Woken::Heard(Heard::Control(from, message)) => self.hear(from, &message),
            Woken::Heard(Heard::Peer(event)) => self.note_peer(event),
            Woken::Done(done) => self.note_done(&done),
            Woken::Failed(error) => self.fail(error),
            Woken::InputEnded => {
                if let Place::Running(here) = &self.place {
                    here.running.coordinator.end_input();
                }
            }
            Woken::Drained => {
                if let Place::Running(here) = &mut self.place
                    && let Some(closed) = &mut here.closed
                {
                    closed.drained = Some(closed.since.elapsed());
                    self.report();
                }
            }
            Woken::Stop => {
                self.stop = None;
                self.overdue = Some(tokio::time::Instant::now() + self.parts.loaded.manifest.job.stop_within.0);
                if let Place::Running(here) = &self.place {
                    here.running.coordinator.flow.hasten();
                }
                self.events.push_back(Event::Stop);
            }
            Woken::Overdue => {
                self.overdue = None;
                self.events.push_back(Event::Over(Outcome::StoppedShort));
            }
            Woken::Time => self.events.push_back(Event::Tick),
        }
    }

    /// Something has come from another host.
    fn hear(&mut self, from: HostId, message: &[u8]) {
        match message.split_first() {
            Some((&PROTOCOL, message)) => match Message::decode(message) {
                Ok(message) => self.events.push_back(Event::Received { from, message }),
                Err(error) => self.fail(JobError::Plan(format!("failed to {error}"))),
            },
            Some((&PRESSURE, &[is_pressed])) => {
                if let Place::Running(here) = &self.place {
                    here.running.coordinator.flow.press(from.0, is_pressed != 0);
                }
            }
            _ => self.fail(JobError::Plan(format!("the host `{}` says what cannot be read", self.name(from)))),
        }
    }

    fn note_peer(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Up { peer } => {
                let host = self.name(peer).to_owned();
                tracing::info!(host, "connected");
                self.refused.remove(&host);
                self.events.push_back(Event::Connected(peer));
            }
            PeerEvent::Lost { peer, reason } => {
                tracing::warn!(host = self.name(peer), "lost: {reason}");
                self.events.push_back(Event::Lost(peer));
            }
            PeerEvent::Refused { peer, reason } => {
                let host = peer.map_or("unknown", |peer| self.name(peer)).to_owned();
                tracing::warn!(host, "not accepted: {reason}");
                self.refused.insert(host, reason);
            }
            PeerEvent::Broken { reason } => self.fail(JobError::Lost(format!("the thread of connections ({reason})"))),
        }
    }

    fn note_done(&mut self, done: &Done) {
        let Place::Running(here) = &mut self.place else { return };
        here.running.coordinator.note(done);
        let attempt = here.attempt;
        self.events.push_back(match done {
            Done::Prepared(epoch, digest) => Event::Appended { attempt, epoch: *epoch, digest: *digest },
            Done::Committed(committed) => Event::Committed { attempt, epoch: committed.epoch },
        });
    }

    /// This host cannot go on: the whole job ends, to be started again where it stood.
    fn fail(&mut self, error: JobError) {
        if self.failure.is_some() {
            return;
        }
        let outcome = match &error {
            // Sealing now would commit what its reader never got.
            JobError::Connector { error: ConnectorError::Closed, .. } => Outcome::OutputClosed,
            error => Outcome::failed(self.settings.own, error.exit_code(), &error.to_string()),
        };
        self.failure = Some(error);
        self.events.push_back(Event::Over(outcome));
    }

    fn name(&self, host: HostId) -> &str {
        self.settings.hosts.get(host.index()).map_or("unknown", |host| &host.name)
    }

    /// What is to be looked at now and then.
    async fn look_around(&mut self) {
        if self.noted_status.elapsed() >= NOTE_STATUS_EVERY {
            self.noted_status = Instant::now();
            self.note_status();
        }
        self.tell_waiting();
        if let Err(error) = self.look_at_running().await {
            self.fail(error);
        }
        self.report();
        self.press();
    }

    async fn look_at_running(&mut self) -> Result<(), JobError> {
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        let coordinator = &here.running.coordinator;
        coordinator.store.check()?;
        coordinator.check_carried()?;
        if coordinator.splits.have_ended() && !coordinator.flow.has_input_ended() {
            coordinator.end_input();
        }
        if here.last_discovery.elapsed() >= DISCOVER_EVERY {
            here.last_discovery = Instant::now();
            let splits = Arc::clone(&coordinator.splits);
            blocking(move || splits.discover()).await?;
        }
        here.make_room().await
    }

    /// Reports how things stand, where that has changed.
    fn report(&mut self) {
        let Place::Running(here) = &mut self.place else { return };
        let report = here.report();
        if report != here.told {
            here.told = report;
            self.events.push_back(Event::Report { attempt: here.attempt, round: None, report });
        }
    }

    /// Asks other hosts to wait with sending more, or not to wait any longer.
    fn press(&mut self) {
        let Place::Running(here) = &mut self.place else { return };
        let is_pressed = here.running.coordinator.flow.is_pressed(here.is_pressed);
        if std::mem::replace(&mut here.is_pressed, is_pressed) != is_pressed {
            self.press_all(is_pressed);
        }
    }

    fn press_all(&self, is_pressed: bool) {
        for host in self.others() {
            // It is short enough.
            let _ = self.link.control(host, vec![PRESSURE, u8::from(is_pressed)]);
        }
    }

    fn others(&self) -> impl Iterator<Item = HostId> {
        let own = self.settings.own;
        (0..self.settings.hosts.len() as u16).map(HostId).filter(move |&host| host != own)
    }

    /// Says in the log whom the job waits for.
    fn tell_waiting(&mut self) {
        let Status { stage, waiting_for, slow, apart, .. } = self.node.status(self.started.elapsed());
        let is_waiting = matches!(stage, Stage::Gathering | Stage::Joining) && !waiting_for.is_empty();
        let waiting = (is_waiting || !slow.is_empty()).then_some((stage, waiting_for));
        if waiting == self.told_waiting || self.last_told.elapsed() < TELL_EVERY {
            return;
        }
        self.last_told = Instant::now();
        if let Some((stage, hosts)) = &waiting {
            let hosts: Vec<&str> = hosts.iter().map(|&host| self.name(host)).collect();
            tracing::info!("waiting for {} ({})", hosts.join(", "), stage.describe());
        }
        for (host, others) in &apart {
            let others: Vec<&str> = others.iter().map(|&host| self.name(host)).collect();
            tracing::info!("{} is not connected to {}", self.name(*host), others.join(", "));
        }
        self.told_waiting = waiting;
    }

    /// Tells the protocol all that has happened, and carries out what it decides.
    async fn carry_out_all(&mut self) {
        while let Some(event) = self.events.pop_front() {
            for action in self.node.on(self.started.elapsed(), event) {
                if let Err(error) = self.carry_out(action).await {
                    self.fail(error);
                }
                if self.outcome.is_some() {
                    return;
                }
            }
        }
    }

    async fn carry_out(&mut self, action: Action) -> Result<(), JobError> {
        match action {
            Action::Send { to, message } => {
                let mut bytes = message.encode();
                bytes.insert(0, PROTOCOL);
                self.link.control(to, bytes).map_err(JobError::Link)
            }
            Action::Join { attempt, decision } => self.join(attempt, decision).await,
            Action::EndAttempt { attempt, reason } => self.end_attempt(attempt, &reason).await,
            Action::Finish(outcome) => {
                self.outcome = Some(outcome);
                Ok(())
            }
            Action::NextAttempt { above } => {
                let seat = self.seat()?;
                let attempt = seat.next_attempt(above).map_err(StateError::from)?;
                self.events.push_back(Event::Attempt(attempt));
                Ok(())
            }
            Action::Decide(record) => {
                self.seat()?.decide(&record).map_err(StateError::from)?;
                self.events.push_back(Event::Decided(record.epoch));
                Ok(())
            }
            action => {
                let Place::Running(here) = &mut self.place else {
                    return Err(JobError::Plan(
                        "the protocol asks for what does not run; this is a defect of wasmill".to_owned(),
                    ));
                };
                if let Some(event) = here.carry_out(action).await? {
                    self.events.push_back(event);
                }
                Ok(())
            }
        }
    }

    fn seat(&mut self) -> Result<&mut StaticList, JobError> {
        let none = || JobError::Plan("only the leader decides; this is a defect of wasmill".to_owned());
        self.seat.as_mut().ok_or_else(none)
    }

    /// Opens the state under `decision`, and makes everything ready to run.
    async fn join(&mut self, attempt: Attempt, decision: Decision) -> Result<(), JobError> {
        let Place::Idle(undecided) = std::mem::replace(&mut self.place, Place::Nothing) else {
            return Err(JobError::Plan("an attempt begins while one runs; this is a defect of wasmill".to_owned()));
        };
        self.serving = None;
        let opened = undecided.open(attempt, decision)?;
        self.parts.check_identity(&opened)?;
        let lookups = lookups::Running::start(LookupsSettings {
            peers: Arc::new(LinkPeers { link: self.link.clone(), attempt }),
            cache_bytes_max: self.cache_bytes_max,
            epoch: decision.epoch + 1,
            meters: Arc::clone(&self.lookup_meters),
        });
        let lookups = lookups.map_err(|error| JobError::Lost(format!("the thread of lookups ({error})")))?;
        let handle = lookups.lookups().clone();
        let neighbours = |failed: &mpsc::UnboundedSender<JobError>| self.neighbours(attempt, handle, failed);
        // Whoever could ask for a stop asks this loop.
        let nobody = |flow| Stop::new(oneshot::channel().1, Duration::MAX, flow);
        let running = self.parts.start(opened, neighbours, nobody, self.serve.as_ref()).await?;
        let flow = Arc::clone(&running.coordinator.flow);
        if self.overdue.is_some() {
            flow.hasten();
        }
        let inbound = Inbound::new(flow, self.addressees(&running));
        let served = Served(Arc::clone(&running.directory));
        self.link.begin(attempt, Arc::new(inbound), Arc::new(served));
        let reach = running.reach.clone();
        self.place = Place::Running(Box::new(Here {
            attempt,
            running,
            lookups,
            closed: None,
            sealed: None,
            told: Report::default(),
            last_discovery: Instant::now(),
            is_pressed: false,
            full: None,
        }));
        self.events.push_back(Event::Joined { attempt, reach });
        Ok(())
    }

    /// The other hosts, as the tasks of this one reach them in an attempt.
    fn neighbours(&self, attempt: Attempt, lookups: Lookups, failed: &mpsc::UnboundedSender<JobError>) -> Neighbours {
        let post = |host: HostId| {
            let failed = failed.clone();
            let tell = move |error| {
                // A loop that no longer listens is ending the attempt already.
                let _ = failed.send(JobError::Task(error));
            };
            Arc::new(Post::new(self.link.clone(), host, attempt, Box::new(tell)))
        };
        let own = self.settings.own;
        let hosts = (0..self.settings.hosts.len() as u16).map(HostId);
        let posts = hosts.map(|host| (host != own).then(|| post(host))).collect();
        Neighbours { own, posts, lookups: Some(lookups) }
    }

    /// All tasks of the job, as far as what comes for them is checked.
    fn addressees(&self, running: &Running) -> Vec<Addressee> {
        let Parts { graph, plan, functions, .. } = self.parts;
        let addressee = |(task, mailbox): (&crate::graph::Task, &crate::task::Mailbox)| {
            let operator = &plan.operators[task.operator.0];
            let function = &functions[&graph.operators[task.operator.0].name];
            Addressee {
                mailbox: mailbox.clone(),
                host: HostId(task.host),
                tables: operator.tables.len(),
                ports: function.description.ports.len(),
                is_keyed: operator.is_keyed,
                partitions: task.partitions.clone(),
                partitions_of_job: operator.owners().len() as u16,
            }
        };
        plan.tasks.iter().zip(&running.mailboxes).map(addressee).collect()
    }

    /// Ends the attempt here, and looks at what the state directory holds now.
    async fn end_attempt(&mut self, attempt: Attempt, reason: &EndReason) -> Result<(), JobError> {
        if let EndReason::Lost { by, host } = reason {
            let (by, host) = (self.name(*by), self.name(*host));
            tracing::warn!(
                attempt,
                "{by} has lost {host}: going back to the last committed epoch, and on when all are there"
            );
        }
        let down = self.tear_down();
        // What went wrong in an attempt that is over anyway shows again where it matters: in what the directory holds.
        if let Err(error) = down {
            tracing::warn!("the attempt that is over has not ended well: {error}");
        }
        let undecided = self.look_at_state().await?;
        self.events.push_back(Event::Standing(undecided.standing()));
        self.place = Place::Idle(Box::new(undecided));
        self.serve_status()
    }

    /// Tells those who ask how the job stands, while no attempt runs here.
    fn serve_status(&mut self) -> Result<(), JobError> {
        self.note_status();
        let serving = self.serve.as_ref().map(|serve| serve(None)).transpose();
        self.serving = serving.map_err(JobError::Serve)?;
        Ok(())
    }

    fn remote_lookups(&self, figures: LookupFigures) -> RemoteLookups {
        let Parts { graph, plan, .. } = self.parts;
        let (operator, table) = figures.table.parts();
        let table = format!("{}.{}", graph.operators[operator].name, plan.operators[operator].tables[table].name);
        RemoteLookups { host: self.name(figures.peer).to_owned(), table, figures }
    }

    /// Notes how the hosts are, for those who ask.
    fn note_status(&self) {
        let status = self.node.status(self.started.elapsed());
        let name = |host: HostId| self.name(host).to_owned();
        let names = |hosts: &[HostId]| hosts.iter().map(|&host| name(host)).collect();
        *self.parts.meters.cluster.lock() = Some(ClusterStatus {
            host: name(self.settings.own),
            leader: name(HostId(self.parts.plan.hosts.leader())),
            attempt: status.attempt,
            stage: status.stage.name(),
            waiting_for: names(&status.waiting_for),
            slow: status.slow.iter().map(|slow| (name(slow.host), slow.since.as_secs_f64())).collect(),
            peers: self.link.status(),
            refused: self.refused.clone(),
            lookups: self.lookup_meters.figures().into_iter().map(|figures| self.remote_lookups(figures)).collect(),
        });
    }

    /// Whoever still answers a lookup holds the state for a moment.
    async fn look_at_state(&self) -> Result<Undecided, JobError> {
        let start = Instant::now();
        loop {
            match self.parts.look_at_state() {
                Err(JobError::State(StateError::Locked { .. })) if start.elapsed() < LET_GO_WITHIN => {
                    tokio::time::sleep(LET_GO_LOOK).await;
                }
                looked => return looked,
            }
        }
    }

    /// Takes down what runs here.
    fn tear_down(&mut self) -> Result<(), JobError> {
        let Place::Running(here) = std::mem::replace(&mut self.place, Place::Nothing) else { return Ok(()) };
        self.link.end();
        let Here { running, lookups, .. } = *here;
        let (memory, feed_cpu, down) = running.tear_down();
        drop(lookups);
        self.reached.memory = memory;
        self.reached.feed_cpu += feed_cpu;
        down
    }

    /// What the job has come to, for this process.
    fn end(mut self) -> Result<Ended, JobError> {
        let down = self.tear_down();
        let Some(outcome) = self.outcome else { return Err(JobError::Lost("the job".to_owned())) };
        let ended = match outcome {
            Outcome::InputEnded => Ended::InputEnded,
            Outcome::Stopped => Ended::Stopped,
            Outcome::StoppedShort => Ended::StoppedShort,
            Outcome::OutputClosed => Ended::OutputClosed,
            Outcome::Failed { host, code, reason } => {
                let elsewhere = || JobError::Elsewhere {
                    host: self
                        .settings
                        .hosts
                        .get(host.index())
                        .map_or_else(|| host.to_string(), |host| host.name.clone()),
                    code,
                    reason,
                };
                return Err(self.failure.filter(|_| host == self.settings.own).unwrap_or_else(elsewhere));
            }
        };
        down.map(|()| ended)
    }
}

impl Here {
    /// Carries out what concerns the attempt that runs; what is done at once is reported.
    async fn carry_out(&mut self, action: Action) -> Result<Option<Event>, JobError> {
        let attempt = self.attempt;
        match action {
            Action::Reopen { progress } => {
                self.running.coordinator.clock.move_to(&progress)?;
                self.reopen();
                Ok(None)
            }
            Action::Close { .. } => {
                let coordinator = &self.running.coordinator;
                let hush = coordinator.store.hush();
                coordinator.flow.close();
                coordinator.tell(|| crate::task::Message::Hurry);
                self.closed = Some(Closed { since: Instant::now(), drained: None, collected: false, _hush: hush });
                Ok(None)
            }
            Action::Look { round } => Ok(Some(Event::Report { attempt, round: Some(round), report: self.report() })),
            Action::Collect { epoch, last, finished } => self.collect(epoch, last, finished).await.map(Some),
            Action::Append { .. } => {
                let sealed = self.sealed.take().ok_or_else(|| JobError::Lost("a sealed epoch".to_owned()))?;
                self.running.coordinator.order(Order::Prepare(sealed)).map(|()| None)
            }
            Action::Commit { .. } => self.running.coordinator.order(Order::Conclude).map(|()| None),
            _ => Ok(None),
        }
    }

    fn reopen(&mut self) {
        if let Some(closed) = self.closed.take()
            && closed.collected
        {
            let drained = closed.drained.unwrap_or_default();
            self.running.coordinator.note_pause(closed.since.elapsed(), drained);
            self.lookups.lookups().begin_epoch(self.running.coordinator.epoch + 1);
        }
        if self.full.is_none() {
            self.running.coordinator.reopen();
        }
    }

    /// How things stand.
    fn report(&self) -> Report {
        let coordinator = &self.running.coordinator;
        let (idle, moved, carried) = coordinator.flow.standing();
        let since_seal = coordinator.splits.since_seal().load(Ordering::Relaxed);
        let is_due = coordinator.rule.records.is_some_and(|records| since_seal >= records);
        Report {
            idle,
            moved,
            carried,
            ended: coordinator.splits.have_ended(),
            needs: coordinator.is_needed(),
            urgent: is_due || self.full.is_some() || coordinator.flow.wants_seal(),
            finished: coordinator.finished,
            unnoted: coordinator.has_unnoted_output,
        }
    }

    /// Nothing is in flight on any host: takes what the epoch consists of here.
    async fn collect(&mut self, epoch: Epoch, last: bool, finished: bool) -> Result<Event, JobError> {
        let Running { coordinator, events, .. } = &mut self.running;
        coordinator.check_carried()?;
        coordinator.begin_seal();
        let collected = tokio::select! {
            collected = coordinator.collect(epoch, last) => collected?,
            Some(error) = events.failures.recv() => return Err(error),
        };
        let reach = coordinator.clock.note(coordinator.splits.reached(), &collected.carried);
        let stand = coordinator.stand();
        let entry = coordinator.entry(epoch, finished, collected, stand);
        self.sealed = Some(Sealed { entry, sealed_at: Instant::now() });
        if let Some(closed) = &mut self.closed {
            closed.collected = true;
        }
        Ok(Event::Collected { attempt: self.attempt, epoch, reach, unnoted: coordinator.has_unnoted_output })
    }

    /// State has outgrown its memory, and what is in it is not on disk yet: admission stops here, the epoch is sealed early, and once it is committed, state is brought to disk.
    async fn make_room(&mut self) -> Result<(), JobError> {
        let coordinator = &self.running.coordinator;
        let is_full = coordinator.store.pressure() == Pressure::Full;
        let relieved = match self.full {
            None if !is_full => return Ok(()),
            None => {
                coordinator.flow.close();
                coordinator.meters.memory_stops.add(1);
                *self.full.insert(None)
            }
            Some(relieved) => relieved,
        };
        if is_full && coordinator.pending == 0 && relieved != Some(coordinator.epoch) {
            let store = Arc::clone(&coordinator.store);
            blocking(move || store.flush().map(drop).map_err(JobError::from)).await?;
            for answer in coordinator.ask(crate::task::Message::Relieve) {
                answer.await.map_err(|_| JobError::Lost("a task".to_owned()))?;
            }
            self.full = Some(Some(coordinator.epoch));
        }
        if coordinator.store.pressure() != Pressure::Full {
            self.full = None;
            if self.closed.is_none() {
                coordinator.reopen();
            }
        } else if relieved == Some(coordinator.epoch) && coordinator.flow.moved() == coordinator.moved_at_seal {
            return Err(JobError::Memory(coordinator.store.memory()));
        }
        Ok(())
    }
}
