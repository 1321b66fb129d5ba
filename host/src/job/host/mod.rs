//! One of several hosts: it carries out what the epoch protocol decides, and tells it what came of it.
//!
//! The protocol (`cluster::protocol`) decides, the link (`cluster::link`) carries, and an attempt that runs here is the same tasks, sources, sinks and state as those of a job on one host. What
//! happens is taken in turn by one loop, [`Process::run`]; nothing else changes what runs.

mod attempt;
mod reload;
mod settings;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

pub use status::{ClusterStatus, RemoteLookups};

use self::attempt::Here;
use self::reload::RELOAD;
use self::settings::link_settings;
use super::assemble::{JobOptions, Parts, Reached, Serve, Serving};
use super::commit::Report as Done;
use super::coordinate::{DISCOVER_EVERY, LOOK_EVERY, REASON_WAIT, Swap, blocking};
use super::reload::{ReloadError, ReloadRequests, Reloaded, Request};
use super::{Ended, JobError};
use crate::cluster::HostId;
use crate::cluster::link::{self, Link, LinkSettings, Listen, PeerEvent};
use crate::cluster::lookups::LookupMeters;
use crate::cluster::membership::{LeaderDirectory, Membership, StaticList};
use crate::cluster::protocol::{Action, Event, Message, Node, Outcome, Settings, Stage};
use crate::connector::ConnectorError;
use crate::disk::RealDisk;
use crate::epoch::Attempt;
use crate::graph::Graph;
use crate::manifest::Loaded;
use crate::state::{StateError, Undecided};

/// How often the loop looks around while an epoch is being sealed.
const LOOK_EVERY_CLOSED: Duration = Duration::from_millis(1);
/// How often it is noted how the hosts are, for those who ask.
const NOTE_STATUS_EVERY: Duration = Duration::from_millis(100);
/// How often it is logged whom the job waits for.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long the link waits at the end for its last words to be heard.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a control message carries: its first byte.
const PROTOCOL: u8 = 0;
const PRESSURE: u8 = 1;

/// What is heard from outside the process.
enum Heard {
    Control(HostId, Vec<u8>),
    Peer(PeerEvent),
    /// Of a component that was made ready here.
    Reloaded {
        attempt: Attempt,
        number: u64,
        result: Box<Result<Reloaded, ReloadError>>,
    },
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
    /// Nobody can ask for a stop any more.
    Unstoppable,
    Overdue,
    /// Somebody asks for a reload.
    Asked(Request),
    /// Nobody can ask any more.
    Unasked,
    /// A component is ready here.
    Swap(Swap),
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

/// One of several hosts, while its process runs.
struct Process<'a> {
    parts: &'a Parts<'a>,
    settings: &'a LinkSettings,
    node: Node,
    leader: HostId,
    /// On the leader.
    seat: Option<StaticList>,
    link: Link,
    heard: mpsc::UnboundedReceiver<Heard>,
    to_self: mpsc::UnboundedSender<Heard>,
    /// What this host is asked to reload; none, when nobody can ask any more.
    requests: Option<ReloadRequests>,
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

/// Runs this host's part of a job until the whole job has ended.
pub(super) async fn run(
    loaded: &Loaded,
    graph: &Graph,
    host: &str,
    options: JobOptions,
    reached: &mut Reached,
) -> Result<Ended, JobError> {
    let JobOptions { started, meters, stop, serve, reloads, .. } = options;
    let parts = Parts::new(loaded, graph, started, meters).await?;
    let settings = link_settings(&parts, host)?;
    let own = settings.own;
    let cluster = loaded.manifest.cluster.as_ref().expect("a manifest without it has no host of any name");
    let listener = link::Running::bind(cluster.hosts[host].listens_at()).map_err(JobError::Link)?;
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
    let (to_self, heard) = mpsc::unbounded_channel();
    let link =
        link::Running::start(settings.clone(), listener, Arc::new(Ears(to_self.clone()))).map_err(JobError::Link)?;
    tracing::info!(job = %loaded.manifest.job.name, host = %settings.hosts[own.index()].name, "connecting to the other hosts");
    let mut process = Process {
        parts: &parts,
        settings: &settings,
        node,
        leader,
        seat,
        link: link.link().clone(),
        heard,
        to_self,
        requests: Some(reloads),
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
        let mut looked = tokio::time::Instant::now();
        while self.outcome.is_none() {
            self.carry_out_all().await;
            if self.outcome.is_some() {
                break;
            }
            let is_closed = matches!(&self.place, Place::Running(here) if here.closed.is_some());
            let pause = if is_closed { LOOK_EVERY_CLOSED } else { LOOK_EVERY };
            let woken = self.wait(looked + pause).await;
            let is_time = matches!(woken, Woken::Time);
            self.take(woken);
            if is_time {
                looked = tokio::time::Instant::now();
                self.look_around().await;
            }
        }
        self.note_status();
        self.end()
    }

    /// Waits until something happens, or it is time to look around.
    async fn wait(&mut self, next_look: tokio::time::Instant) -> Woken {
        let Self { heard, place, stop, overdue, requests, .. } = self;
        let stop = async {
            match (stop, *overdue) {
                (Some(stop), _) => match stop.await {
                    Ok(()) => Woken::Stop,
                    Err(_) => Woken::Unstoppable,
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
                Some(swap) = events.swaps.recv() => Woken::Swap(swap),
                () = running.coordinator.flow.drained(), if is_draining => Woken::Drained,
                else => std::future::pending().await,
            }
        };
        let asked = async {
            let Some(requests) = requests else { return std::future::pending().await };
            requests.next().await.map_or(Woken::Unasked, Woken::Asked)
        };
        tokio::select! {
            biased;
            Some(heard) = heard.recv() => Woken::Heard(heard),
            woken = running => woken,
            woken = stop => woken,
            woken = asked => woken,
            () = tokio::time::sleep_until(next_look) => Woken::Time,
        }
    }

    fn take(&mut self, woken: Woken) {
        match woken {
            Woken::Heard(Heard::Control(from, message)) => self.hear(from, &message),
            Woken::Heard(Heard::Peer(event)) => self.note_peer(event),
            Woken::Heard(Heard::Reloaded { attempt, number, result }) => {
                let noted = self.note_reloaded(attempt, number, *result);
                self.check(noted);
            }
            Woken::Asked(request) => self.ask_reload(request),
            Woken::Unasked => self.requests = None,
            Woken::Swap(swap) => {
                let noted = self.note_swap(swap);
                self.check(noted);
            }
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
            Woken::Unstoppable => self.stop = None,
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
            Some((&PRESSURE, [is_pressed, attempt @ ..])) if attempt.len() == size_of::<Attempt>() => {
                if let Place::Running(here) = &self.place
                    && *attempt == here.attempt.to_le_bytes()
                {
                    here.running.coordinator.flow.press(from.0, *is_pressed != 0);
                }
            }
            Some((&RELOAD, message)) => {
                let heard = self.hear_reload_bytes(from, message);
                self.check(heard);
            }
            _ => self.fail(JobError::Plan(format!("the host `{}` says what cannot be read", self.name(from)))),
        }
    }

    fn check(&mut self, done: Result<(), JobError>) {
        if let Err(error) = done {
            self.fail(error);
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

    /// A thread that fails drops its channels a moment before its reason is told.
    async fn reason(&mut self, error: JobError) -> JobError {
        if let (JobError::Lost(_), Place::Running(here)) = (&error, &mut self.place)
            && let Ok(Some(reason)) = tokio::time::timeout(REASON_WAIT, here.running.events.failures.recv()).await
        {
            return reason;
        }
        error
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
            let error = self.reason(error).await;
            self.fail(error);
        }
        self.report();
        self.press();
        let sent = self.send_part();
        self.check(sent);
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
        let is_pressed = here.full.is_some() || here.running.coordinator.flow.is_pressed(here.is_pressed);
        if std::mem::replace(&mut here.is_pressed, is_pressed) != is_pressed {
            let attempt = here.attempt;
            self.press_all(attempt, is_pressed);
        }
    }

    fn press_all(&self, attempt: Attempt, is_pressed: bool) {
        let mut message = vec![PRESSURE, u8::from(is_pressed)];
        message.extend(attempt.to_le_bytes());
        for host in self.others() {
            // It is short enough.
            let _ = self.link.control(host, message.clone());
        }
    }

    fn others(&self) -> impl Iterator<Item = HostId> {
        let own = self.settings.own;
        (0..self.settings.hosts.len() as u16).map(HostId).filter(move |&host| host != own)
    }

    /// Tells the protocol all that has happened, and carries out what it decides.
    async fn carry_out_all(&mut self) {
        while let Some(event) = self.events.pop_front() {
            for action in self.node.on(self.started.elapsed(), event) {
                if let Err(error) = self.carry_out(action).await {
                    let error = self.reason(error).await;
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

    /// Takes down what runs here.
    fn tear_down(&mut self) -> Result<(), JobError> {
        let Place::Running(here) = std::mem::replace(&mut self.place, Place::Nothing) else { return Ok(()) };
        self.link.end();
        let Here { running, lookups, closed, .. } = *here;
        // The feeder, which has to come to its end, is held back by it.
        drop(closed);
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
