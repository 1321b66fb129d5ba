//! An attempt on one of several hosts: how it begins and ends, and what the protocol has it do meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::super::JobError;
use super::super::assemble::{LET_GO_LOOK, LET_GO_WITHIN, Parts, Running};
use super::super::commit::{Order, Sealed};
use super::super::coordinate::blocking;
use super::super::reload::Reloads;
use super::super::stop::Stop;
use super::super::wire::Neighbours;
use super::reload::Reloading;
use super::{Place, Process};
use crate::cluster::HostId;
use crate::cluster::lookups::{self, LinkPeers, Lookups, LookupsSettings};
use crate::cluster::protocol::{Action, EndReason, Event, Report};
use crate::epoch::standing::Decision;
use crate::epoch::{Attempt, Epoch};
use crate::state::{Hush, Pressure, StateError, Undecided};
use crate::task::Post;
use crate::task::remote::{Addressee, Inbound, Served};

/// An attempt that runs here.
pub(super) struct Here {
    pub(super) attempt: Attempt,
    pub(super) running: Running,
    /// Lookups of what other hosts own.
    pub(super) lookups: lookups::Running,
    /// Since when admission is closed for an epoch, and how long it took until nothing was in flight here.
    pub(super) closed: Option<Closed>,
    /// What has been collected and is to be appended.
    sealed: Option<Sealed>,
    /// The last report that nobody asked for.
    pub(super) told: Report,
    pub(super) last_discovery: Instant,
    /// Whether other hosts have been asked to wait with sending more.
    pub(super) is_pressed: bool,
    /// Admission is stopped for want of memory; the epoch since whose commit state has been brought to disk.
    pub(super) full: Option<Option<Epoch>>,
    /// The tasks that have been asked to forget what is on disk, and have not answered: one may wait for another host.
    relieving: Vec<oneshot::Receiver<()>>,
    /// Whether admission was opened.
    has_begun: bool,
    /// Makes new versions of functions ready.
    pub(super) reloads: Reloads,
    pub(super) reloading: Reloading,
}

pub(super) struct Closed {
    pub(super) since: Instant,
    pub(super) drained: Option<Duration>,
    collected: bool,
    /// Keeps the feeder of redb out of the way.
    hush: Option<Hush>,
}

impl Process<'_> {
    /// Opens the state under `decision`, and makes everything ready to run.
    pub(super) async fn join(&mut self, attempt: Attempt, decision: Decision) -> Result<(), JobError> {
        let Place::Idle(undecided) = std::mem::replace(&mut self.place, Place::Nothing) else {
            return Err(JobError::Plan("an attempt begins while one runs; this is a defect of wasmill".to_owned()));
        };
        self.serving = None;
        let opened = undecided.open(attempt, decision)?;
        let (kept, parts) = self.parts.as_recorded(&opened).await?;
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
        let mut running = parts.start(opened, neighbours, nobody, self.serve.as_ref()).await?;
        let (reloads, requests) = Reloads::new();
        parts.reloader(&mut running, kept).start(Arc::new(tokio::sync::Mutex::new(requests)))?;
        let flow = Arc::clone(&running.coordinator.flow);
        if self.overdue.is_some() {
            flow.hasten();
        }
        let inbound = Inbound::new(flow, addressees(&parts, &running));
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
            relieving: Vec::new(),
            has_begun: false,
            reloads,
            reloading: Reloading::default(),
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

    /// Ends the attempt here, and looks at what the state directory holds now.
    pub(super) async fn end_attempt(&mut self, attempt: Attempt, reason: &EndReason) -> Result<(), JobError> {
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
}

/// All tasks of the job, as far as what comes for them is checked.
fn addressees(parts: &Parts<'_>, running: &Running) -> Vec<Addressee> {
    let Parts { graph, plan, code, .. } = parts;
    let addressee = |(task, mailbox): (&crate::graph::Task, &crate::task::Mailbox)| {
        let operator = &plan.operators[task.operator.0];
        let function = &code.functions[&graph.operators[task.operator.0].name];
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

impl Here {
    /// Carries out what concerns the attempt that runs; what is done at once is reported.
    pub(super) async fn carry_out(&mut self, action: Action) -> Result<Option<Event>, JobError> {
        let attempt = self.attempt;
        match action {
            Action::Reopen { progress } => {
                self.running.coordinator.clock.move_to(&progress)?;
                self.has_begun = true;
                self.reopen();
                // The leader forgets what was reported before.
                self.told = Report::default();
                Ok(None)
            }
            Action::Close { .. } => {
                let coordinator = &self.running.coordinator;
                let hush = coordinator.store.hush();
                coordinator.flow.close();
                coordinator.tell(|| crate::task::Message::Hurry);
                self.closed = Some(Closed { since: Instant::now(), drained: None, collected: false, hush: Some(hush) });
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
    pub(super) fn report(&self) -> Report {
        let coordinator = &self.running.coordinator;
        let (idle, moved, carried) = coordinator.flow.standing();
        let since_seal = coordinator.splits.since_seal().load(Ordering::Relaxed);
        let is_due = coordinator.rule.records.is_some_and(|records| since_seal >= records);
        Report {
            idle,
            moved,
            carried,
            ended: coordinator.splits.have_ended(),
            // A split that has ended moves on what waits on other hosts.
            needs: self.reloading.wants_seal()
                || coordinator.is_needed()
                || coordinator.clock.has_moved(&coordinator.splits.reached()),
            urgent: self.reloading.wants_seal() || is_due || self.full.is_some() || coordinator.flow.wants_seal(),
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
        if !last && let Some(swap) = self.reloading.due(epoch)? {
            coordinator.swaps.push(swap);
            coordinator.swap(epoch);
        }
        let entry = coordinator.entry(epoch, finished, collected, stand);
        self.sealed = Some(Sealed { entry, sealed_at: Instant::now() });
        if let Some(closed) = &mut self.closed {
            closed.collected = true;
            if last {
                // Admission stays closed, but nobody waits for it any more.
                closed.hush = None;
            }
        }
        Ok(Event::Collected { attempt: self.attempt, epoch, reach, unnoted: coordinator.has_unnoted_output })
    }

    /// State has outgrown its memory, and what is in it is not on disk yet: admission stops here, the epoch is sealed early, and once it is committed, state is brought to disk.
    pub(super) async fn make_room(&mut self) -> Result<(), JobError> {
        let mut lost = false;
        self.relieving.retain_mut(|answer| match answer.try_recv() {
            Ok(()) => false,
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Closed) => {
                lost = true;
                false
            }
        });
        if lost {
            return Err(JobError::Lost("a task".to_owned()));
        }
        if !self.relieving.is_empty() {
            return Ok(());
        }
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
            self.relieving = coordinator.ask(crate::task::Message::Relieve);
            self.full = Some(Some(coordinator.epoch));
            return Ok(());
        }
        if coordinator.store.pressure() != Pressure::Full {
            self.full = None;
            if self.has_begun && self.closed.is_none() {
                coordinator.reopen();
            }
        } else if relieved == Some(coordinator.epoch) && coordinator.flow.moved() == coordinator.moved_at_seal {
            return Err(JobError::Memory(coordinator.store.memory()));
        }
        Ok(())
    }
}
