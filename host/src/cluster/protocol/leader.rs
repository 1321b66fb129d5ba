//! What the leader decides: who may begin, when an epoch is sealed, and which entries count.

use std::time::Duration;

use super::{Action, CommitRecord, EndReason, Event, HostId, Message, Outcome, Reach, Report, Slow, Stage, Status};
use crate::epoch::standing::{Standing, judge};
use crate::epoch::{Attempt, Digest, Epoch};

/// The exit code where state directories do not fit each other, as the README documents it.
const MISFIT_CODE: u8 = 3;
/// The exit code of a failure that is nobody's but the program's.
const FAULT_CODE: u8 = 1;

/// What the leader goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Settings {
    /// An epoch is due when the last one was sealed so long ago.
    pub interval: Duration,
    /// How long hosts that are not idle yet are left alone before they are asked again.
    pub poll_pause: Duration,
    /// A host that keeps the others waiting for so long is named in the status.
    pub slow_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            poll_pause: Duration::from_millis(1),
            slow_after: Duration::from_millis(500),
        }
    }
}

/// The leader's half of the protocol. It lives as long as its process, over all attempts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    own: HostId,
    settings: Settings,
    record: CommitRecord,
    /// The record that is being written.
    deciding: Option<CommitRecord>,
    peers: Vec<Peer>,
    phase: Phase,
    /// Whether the next attempt's number has been asked for.
    numbering: bool,
    stop: bool,
    last_seal: Duration,
    /// Since when the hosts are waited for that the present step waits for.
    since: Duration,
}

/// What is known of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Peer {
    connected: bool,
    /// The last attempt that it was granted in this session.
    granted: Attempt,
    /// Its greeting: the highest attempt that it knows of, and what it holds.
    hello: Option<(Attempt, Standing)>,
    /// Whom it is not connected to.
    missing: Vec<HostId>,
    report: Report,
    /// Whether it knows what the job came to.
    bye: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Gathering,
    Joining { attempt: Attempt, reaches: Vec<Option<Reach>> },
    Running(Running),
    Ending { outcome: Outcome, attempt: Attempt, own_told: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Running {
    attempt: Attempt,
    progress: Reach,
    step: Step,
    pending: Option<Pending>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Open,
    Draining(Drain),
    Sealing(Sealing),
    /// Nothing more is admitted. With `unnoted`, one more epoch notes what the last one publishes.
    Settling {
        finished: bool,
        unnoted: bool,
    },
}

/// Rounds of questions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Drain {
    round: u32,
    answers: Vec<Option<Report>>,
    /// What had moved on each host in the round before, if all were idle in it.
    before: Option<Vec<u64>>,
    /// When to ask again, while no round is under way.
    again_at: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sealing {
    epoch: Epoch,
    last: bool,
    finished: bool,
    reaches: Vec<Option<Reach>>,
    unnoted: bool,
}

/// The sealed epoch on its way to its commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pending {
    epoch: Epoch,
    digests: Vec<Option<Digest>>,
    committed: Vec<bool>,
    since: Duration,
}

impl Leader {
    /// The leader of a job of `hosts` hosts, on the host `own`; `record` is the commit record as it is on disk, durably.
    pub fn new(own: HostId, hosts: u16, settings: Settings, record: CommitRecord) -> Self {
        let mut peers = vec![Peer::default(); usize::from(hosts)];
        if let Some(peer) = peers.get_mut(own.index()) {
            peer.connected = true;
        }
        Self {
            own,
            settings,
            record,
            deciding: None,
            peers,
            phase: Phase::Gathering,
            numbering: false,
            stop: false,
            last_seal: Duration::ZERO,
            since: Duration::ZERO,
        }
    }

    /// The commit record, as far as it is durable for certain.
    pub fn record(&self) -> &CommitRecord {
        &self.record
    }

    /// Takes an event at the time `now`, which never goes back; what is another machine's is let pass.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut turn = Turn { now, actions: Vec::new() };
        match event {
            Event::Connected(host) => self.connected(host, &mut turn),
            Event::Lost(host) => self.lost(host, &mut turn),
            Event::Received { from, message } if self.peers.get(from.index()).is_some_and(|peer| peer.connected) => {
                self.receive(from, message, &mut turn);
            }
            Event::Tick => self.tick(&mut turn),
            Event::Attempt(attempt) => self.numbered(attempt, &mut turn),
            Event::Decided(epoch) => self.decided(epoch, &mut turn),
            _ => {}
        }
        turn.actions
    }

    /// What is done, whom it waits for, and who is slow.
    pub fn status(&self, now: Duration) -> Status {
        let (stage, waiting_for, since) = self.waiting();
        let is_slow = stage != Stage::Gathering && now.saturating_sub(since) >= self.settings.slow_after;
        let slow = waiting_for.iter().filter(|_| is_slow).map(|&host| Slow { host, since: now.saturating_sub(since) });
        let apart = self.hosts().filter(|(_, peer)| !peer.missing.is_empty());
        Status {
            attempt: self.attempt(),
            stage,
            slow: slow.collect(),
            waiting_for,
            apart: apart.map(|(host, peer)| (host, peer.missing.clone())).collect(),
        }
    }

    /// The attempt that is granted or runs.
    pub fn attempt(&self) -> Option<Attempt> {
        match &self.phase {
            Phase::Joining { attempt, .. } | Phase::Running(Running { attempt, .. }) => Some(*attempt),
            Phase::Gathering | Phase::Ending { .. } => None,
        }
    }

    fn hosts(&self) -> impl Iterator<Item = (HostId, &Peer)> {
        (0..).map(HostId).zip(&self.peers)
    }

    /// The stage, whom it waits for, and since when.
    fn waiting(&self) -> (Stage, Vec<HostId>, Duration) {
        fn lacking<T>(items: &[T], lacks: impl Fn(&T) -> bool) -> Vec<HostId> {
            (0..).map(HostId).zip(items).filter(|(_, item)| lacks(item)).map(|(host, _)| host).collect()
        }
        let uncommitted = |pending: &Option<Pending>| match pending {
            Some(pending) if pending.digests.iter().any(Option::is_none) => {
                (lacking(&pending.digests, Option::is_none), pending.since)
            }
            Some(pending) => (lacking(&pending.committed, |committed| !committed), pending.since),
            None => (Vec::new(), self.since),
        };
        match &self.phase {
            Phase::Gathering => {
                // One that misses others waits itself.
                let absent = lacking(&self.peers, |peer| peer.hello.is_none() && peer.missing.is_empty());
                let all = || lacking(&self.peers, |peer| peer.hello.is_none());
                (Stage::Gathering, if absent.is_empty() { all() } else { absent }, self.since)
            }
            Phase::Joining { reaches, .. } => (Stage::Joining, lacking(reaches, Option::is_none), self.since),
            Phase::Ending { .. } => {
                (Stage::Ending, lacking(&self.peers, |peer| peer.connected && !peer.bye), self.since)
            }
            Phase::Running(running) => match &running.step {
                Step::Draining(drain) => {
                    let is_busy = |answer: &Option<Report>| answer.is_none_or(|report| !report.idle);
                    (Stage::Draining, lacking(&drain.answers, is_busy), self.since)
                }
                Step::Sealing(sealing) => (Stage::Sealing, lacking(&sealing.reaches, Option::is_none), self.since),
                Step::Open => {
                    let (hosts, since) = uncommitted(&running.pending);
                    (Stage::Running, hosts, since)
                }
                Step::Settling { .. } => {
                    let (hosts, since) = uncommitted(&running.pending);
                    (Stage::Settling, hosts, since)
                }
            },
        }
    }

    fn connected(&mut self, host: HostId, turn: &mut Turn) {
        if host == self.own || host.index() >= self.peers.len() {
            return;
        }
        if self.peers[host.index()].connected {
            self.lost(host, turn);
        }
        self.peers[host.index()] = Peer { connected: true, ..Peer::default() };
        if let Phase::Ending { outcome, attempt, own_told: false } = &self.phase {
            turn.send(host, Message::End { attempt: *attempt, reason: EndReason::Over(outcome.clone()) });
        }
    }

    fn lost(&mut self, host: HostId, turn: &mut Turn) {
        if host == self.own || !self.peers.get(host.index()).is_some_and(|peer| peer.connected) {
            return;
        }
        self.peers[host.index()] = Peer::default();
        self.end_attempt(EndReason::Lost { by: self.own, host }, turn);
        self.part(turn);
    }

    /// Ends the attempt, if there is one, on all hosts that can be reached.
    fn end_attempt(&mut self, reason: EndReason, turn: &mut Turn) {
        let Some(attempt) = self.attempt() else { return };
        for (host, _) in self.hosts().filter(|(_, peer)| peer.connected) {
            turn.send(host, Message::End { attempt, reason: reason.clone() });
        }
        for peer in &mut self.peers {
            (peer.hello, peer.report) = (None, Report::default());
        }
        self.phase = Phase::Gathering;
        self.since = turn.now;
        if self.stop {
            // What is prepared is decided at the next start.
            self.finish(Outcome::Stopped, turn);
        }
    }

    /// The job is over. The own host is told last: its process ends with that.
    fn finish(&mut self, outcome: Outcome, turn: &mut Turn) {
        if let Phase::Ending { .. } = self.phase {
            return;
        }
        let attempt = self.attempt().unwrap_or(0);
        for (host, _) in self.hosts().filter(|(host, peer)| peer.connected && *host != self.own) {
            turn.send(host, Message::End { attempt, reason: EndReason::Over(outcome.clone()) });
        }
        self.phase = Phase::Ending { outcome, attempt, own_told: false };
        self.since = turn.now;
        self.part(turn);
    }

    /// Ends the own host, once nobody is left to be told.
    fn part(&mut self, turn: &mut Turn) {
        let is_left = self.hosts().any(|(host, peer)| host != self.own && peer.connected && !peer.bye);
        if let Phase::Ending { outcome, attempt, own_told: own_told @ false } = &mut self.phase
            && !is_left
        {
            *own_told = true;
            turn.send(self.own, Message::End { attempt: *attempt, reason: EndReason::Over(outcome.clone()) });
        }
    }

    fn fail(&mut self, host: HostId, code: u8, reason: &str, turn: &mut Turn) {
        self.finish(Outcome::failed(host, code, reason), turn);
    }

    fn receive(&mut self, from: HostId, message: Message, turn: &mut Turn) {
        let attempt = self.attempt();
        let peer = &mut self.peers[from.index()];
        match message {
            // One that was sent before the last grant had come says nothing any more.
            Message::Hello { attempt: known, standing } if known >= peer.granted => {
                peer.missing.clear();
                let reason = EndReason::Lost { by: self.own, host: from };
                self.end_attempt(reason, turn);
                self.peers[from.index()].hello = Some((known, standing));
                self.gather(turn);
            }
            Message::Missing { hosts } => {
                peer.missing = hosts;
                peer.hello = None;
            }
            Message::Stop => self.stop(turn),
            Message::Bye => {
                peer.bye = true;
                self.part(turn);
            }
            Message::Over { outcome, .. } => self.finish(outcome, turn),
            Message::Parted { attempt: of, host } if attempt == Some(of) => {
                self.end_attempt(EndReason::Lost { by: from, host }, turn);
            }
            Message::Joined { attempt: of, reach } if attempt == Some(of) => self.joined(from, reach, turn),
            Message::Report { attempt: of, report } if attempt == Some(of) => {
                peer.report = report;
                self.reported(report, turn);
            }
            Message::Polled { attempt: of, round, report } if attempt == Some(of) => {
                self.polled(from, round, report, turn);
            }
            Message::Sealed { attempt: of, epoch, reach, unnoted } if attempt == Some(of) => {
                self.sealed(from, epoch, reach, unnoted, turn);
            }
            Message::Prepared { attempt: of, epoch, digest } if attempt == Some(of) => {
                self.prepared(from, epoch, digest, turn);
            }
            Message::Committed { attempt: of, epoch } if attempt == Some(of) => self.committed(from, epoch, turn),
            _ => {}
        }
    }

    /// Takes the next attempt, once everyone has said what it holds.
    fn gather(&mut self, turn: &mut Turn) {
        if self.phase != Phase::Gathering || self.deciding.is_some() {
            // Whether a record that is being written counts is known only when it is written.
            return;
        }
        let mut above = self.record.attempt;
        let mut misfit = None;
        for (host, peer) in self.hosts() {
            let Some((known, standing)) = peer.hello else { return };
            above = above.max(known);
            misfit = misfit.or_else(|| Some((host, judge(standing, self.record.of(host.index())).err()?)));
        }
        if let Some((host, misfit)) = misfit {
            return self.fail(host, MISFIT_CODE, &misfit.to_string(), turn);
        }
        if !self.numbering {
            self.numbering = true;
            turn.actions.push(Action::NextAttempt { above });
        }
    }

    fn numbered(&mut self, attempt: Attempt, turn: &mut Turn) {
        self.numbering = false;
        let is_ready = self.phase == Phase::Gathering && self.peers.iter().all(|peer| peer.hello.is_some());
        if !is_ready || self.deciding.is_some() {
            return;
        }
        if self.peers.iter().any(|peer| peer.hello.is_some_and(|(known, _)| known >= attempt)) {
            let reason = "begin an attempt: a host knows of a later one than the leader's state directory; it is an old copy: put the right one back";
            return self.fail(self.own, MISFIT_CODE, reason, turn);
        }
        let record = &self.record;
        for (host, peer) in (0..).map(HostId).zip(&mut self.peers) {
            peer.granted = attempt;
            peer.hello = None;
            turn.send(host, Message::Granted { attempt, decision: record.of(host.index()) });
        }
        self.phase = Phase::Joining { attempt, reaches: vec![None; self.peers.len()] };
        self.since = turn.now;
    }

    fn joined(&mut self, from: HostId, reach: Reach, turn: &mut Turn) {
        let Phase::Joining { attempt, reaches } = &mut self.phase else { return };
        reaches[from.index()] = Some(reach);
        if reaches.iter().any(Option::is_none) {
            return;
        }
        let attempt = *attempt;
        let Some(progress) = merge(reaches) else { return self.fail_to_merge(from, turn) };
        self.tell(&Message::Start { attempt, progress: progress.clone() }, turn);
        self.phase = Phase::Running(Running { attempt, progress, step: Step::Open, pending: None });
        (self.since, self.last_seal) = (turn.now, turn.now);
    }

    fn fail_to_merge(&mut self, host: HostId, turn: &mut Turn) {
        let reason = "run the job with the other hosts: it has another number of sources or operators; run the same manifest on all hosts";
        self.fail(host, FAULT_CODE, reason, turn);
    }

    /// Tells every host.
    fn tell(&self, message: &Message, turn: &mut Turn) {
        self.hosts().for_each(|(host, _)| turn.send(host, message.clone()));
    }

    fn stop(&mut self, turn: &mut Turn) {
        self.stop = true;
        match self.phase {
            Phase::Gathering | Phase::Joining { .. } => self.finish(Outcome::Stopped, turn),
            Phase::Running(_) => self.consider(turn),
            Phase::Ending { .. } => {}
        }
    }

    fn tick(&mut self, turn: &mut Turn) {
        if let Phase::Running(Running { step: Step::Draining(drain), .. }) = &self.phase
            && drain.again_at.is_some_and(|at| turn.now >= at)
        {
            self.ask(turn);
        }
        self.consider(turn);
    }

    fn reported(&mut self, report: Report, turn: &mut Turn) {
        if let Phase::Running(Running { step: Step::Draining(drain), .. }) = &self.phase
            && drain.again_at.is_some()
            && report.idle
        {
            return self.ask(turn);
        }
        self.consider(turn);
    }

    /// Closes an epoch where it is time: not while another one waits for its commit.
    fn consider(&mut self, turn: &mut Turn) {
        let Phase::Running(Running { attempt, step: step @ Step::Open, pending: None, .. }) = &mut self.phase else {
            return;
        };
        let any = |is_so: fn(&Report) -> bool| self.peers.iter().any(|peer| is_so(&peer.report));
        let all = |is_so: fn(&Report) -> bool| self.peers.iter().all(|peer| is_so(&peer.report));
        // Where all input has ended and nothing is under way, only a seal can move on what is left, or end the job.
        let is_still = all(|report| report.ended && report.idle);
        let is_end = is_still && (!any(|report| report.carried) || any(|report| report.needs));
        let is_due = turn.now.saturating_sub(self.last_seal) >= self.settings.interval;
        let is_asked = any(|report| report.needs && report.urgent) || (is_due && any(|report| report.needs));
        if !(self.stop || is_end || is_asked) {
            return;
        }
        let attempt = *attempt;
        *step = Step::Draining(Drain { round: 0, answers: Vec::new(), before: None, again_at: None });
        self.since = turn.now;
        self.tell(&Message::Close { attempt, epoch: self.record.epoch + 1 }, turn);
        self.ask(turn);
    }

    /// Begins a round of questions.
    fn ask(&mut self, turn: &mut Turn) {
        let Phase::Running(Running { attempt, step: Step::Draining(drain), .. }) = &mut self.phase else { return };
        drain.round = drain.round.wrapping_add(1);
        drain.answers = vec![None; self.peers.len()];
        drain.again_at = None;
        let message = Message::Poll { attempt: *attempt, round: drain.round };
        self.tell(&message, turn);
    }

    fn polled(&mut self, from: HostId, round: u32, report: Report, turn: &mut Turn) {
        let Phase::Running(Running { step: Step::Draining(drain), .. }) = &mut self.phase else { return };
        if round != drain.round {
            return;
        }
        drain.answers[from.index()] = Some(report);
        let Some(reports) = drain.answers.iter().copied().collect::<Option<Vec<Report>>>() else { return };
        if !reports.iter().all(|report| report.idle) {
            drain.before = None;
            drain.again_at = Some(turn.now + self.settings.poll_pause);
            return;
        }
        let moved: Vec<u64> = reports.iter().map(|report| report.moved).collect();
        if drain.before.as_ref() == Some(&moved) {
            return self.drained(&reports, turn);
        }
        drain.before = Some(moved);
        self.ask(turn);
    }

    /// Nothing is in flight on any host, and nothing is admitted.
    fn drained(&mut self, reports: &[Report], turn: &mut Turn) {
        let is_done = reports.iter().all(|report| report.ended && !report.carried);
        let last = self.stop || is_done;
        let is_needed = reports.iter().any(|report| report.needs)
            || (is_done && reports.iter().any(|report| !report.finished))
            || (last && reports.iter().any(|report| report.unnoted));
        if is_needed {
            self.seal(last, is_done, turn);
        } else if last {
            self.finish(outcome(is_done), turn);
        } else {
            self.reopen(turn);
        }
    }

    fn seal(&mut self, last: bool, finished: bool, turn: &mut Turn) {
        let epoch = self.record.epoch + 1;
        let hosts = self.peers.len();
        let Phase::Running(Running { attempt, step, pending, .. }) = &mut self.phase else { return };
        let message = Message::Seal { attempt: *attempt, epoch, last, finished };
        *step = Step::Sealing(Sealing { epoch, last, finished, reaches: vec![None; hosts], unnoted: false });
        *pending = Some(Pending { epoch, digests: vec![None; hosts], committed: vec![false; hosts], since: turn.now });
        self.since = turn.now;
        self.tell(&message, turn);
    }

    /// Lets admission go on; what hosts have reported before says nothing any more.
    fn reopen(&mut self, turn: &mut Turn) {
        let sealed = self.record.epoch;
        let Phase::Running(Running { attempt, progress, step, pending }) = &mut self.phase else { return };
        *step = Step::Open;
        let epoch = pending.as_ref().map_or(sealed, |pending| pending.epoch);
        let message = Message::Open { attempt: *attempt, epoch, progress: progress.clone() };
        for peer in &mut self.peers {
            peer.report = Report::default();
        }
        (self.since, self.last_seal) = (turn.now, turn.now);
        self.tell(&message, turn);
    }

    fn sealed(&mut self, from: HostId, epoch: Epoch, reach: Reach, unnoted: bool, turn: &mut Turn) {
        let Phase::Running(Running { progress, step, .. }) = &mut self.phase else { return };
        let Step::Sealing(sealing) = step else { return };
        if epoch != sealing.epoch {
            return;
        }
        sealing.reaches[from.index()] = Some(reach);
        sealing.unnoted |= unnoted;
        if sealing.reaches.iter().any(Option::is_none) {
            return;
        }
        let Some(merged) = merge(&sealing.reaches) else { return self.fail_to_merge(from, turn) };
        *progress = merged;
        if sealing.last {
            *step = Step::Settling { finished: sealing.finished, unnoted: sealing.unnoted };
            self.since = turn.now;
        } else {
            self.reopen(turn);
        }
        self.decide(turn);
    }

    fn prepared(&mut self, from: HostId, epoch: Epoch, digest: Digest, turn: &mut Turn) {
        let Phase::Running(Running { pending: Some(pending), .. }) = &mut self.phase else { return };
        let slot = &mut pending.digests[from.index()];
        if epoch != pending.epoch || slot.is_some() {
            return;
        }
        *slot = Some(digest);
        self.decide(turn);
    }

    /// Writes the commit record, once every host's entry is durable.
    fn decide(&mut self, turn: &mut Turn) {
        let Phase::Running(Running { attempt, step, pending: Some(pending), .. }) = &self.phase else { return };
        if matches!(step, Step::Sealing(_)) || self.deciding.is_some() || pending.epoch != self.record.epoch + 1 {
            return;
        }
        let Some(digests) = pending.digests.iter().copied().collect() else { return };
        let record = CommitRecord { epoch: pending.epoch, attempt: *attempt, digests };
        self.deciding = Some(record.clone());
        turn.actions.push(Action::Decide(record));
    }

    fn decided(&mut self, epoch: Epoch, turn: &mut Turn) {
        let Some(record) = self.deciding.take_if(|record| record.epoch == epoch) else { return };
        self.record = record;
        match &self.phase {
            Phase::Running(Running { attempt, pending: Some(pending), .. }) if pending.epoch == epoch => {
                self.tell(&Message::Commit { attempt: *attempt, epoch }, turn);
            }
            _ => self.gather(turn),
        }
    }

    fn committed(&mut self, from: HostId, epoch: Epoch, turn: &mut Turn) {
        let is_decided = self.record.epoch == epoch;
        let Phase::Running(Running { step, pending, .. }) = &mut self.phase else { return };
        let Some(waiting) = pending.as_mut().filter(|pending| pending.epoch == epoch && is_decided) else { return };
        waiting.committed[from.index()] = true;
        if waiting.committed.iter().any(|committed| !committed) {
            return;
        }
        *pending = None;
        match *step {
            Step::Settling { finished, unnoted: true } => self.seal(true, finished, turn),
            Step::Settling { finished, unnoted: false } => self.finish(outcome(finished), turn),
            _ => self.consider(turn),
        }
    }
}

/// A call of [`Leader::on`].
struct Turn {
    now: Duration,
    actions: Vec<Action>,
}

impl Turn {
    fn send(&mut self, to: HostId, message: Message) {
        self.actions.push(Action::Send { to, message });
    }
}

fn outcome(finished: bool) -> Outcome {
    if finished { Outcome::InputEnded } else { Outcome::Stopped }
}

/// What all hosts together have come to; `None` where they do not run the same job.
fn merge(reaches: &[Option<Reach>]) -> Option<Reach> {
    let mut all = reaches.iter().flatten();
    let first = all.next()?.clone();
    all.try_fold(first, |merged, reach| merged.merged(reach))
}
