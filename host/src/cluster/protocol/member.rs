//! What each host does: it joins an attempt, follows the leader through its epochs, and leaves it when a peer is lost.

use super::{Action, EndReason, Event, HostId, Message, Outcome, Stage, Status};
use crate::epoch::standing::{Decision, Standing};
use crate::epoch::{Attempt, Epoch};

/// The exit code of a failure that is nobody's but the program's.
const FAULT_CODE: u8 = 1;

/// One host's half of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    own: HostId,
    leader: HostId,
    /// Of each host: whether there is a session with it.
    connected: Vec<bool>,
    /// The highest attempt granted, or known of.
    attempt: Attempt,
    phase: Phase,
    /// Whether the leader has been told what holds now, in this session.
    told: bool,
    /// Whether somebody has asked for a clean stop.
    stop: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// What ran is being torn down, or the state directory looked at.
    Surveying,
    /// Nothing runs.
    Idle(Standing),
    /// `Member::attempt` runs.
    Active(Active),
    /// The leader was told that the job is over, and has not answered yet.
    Over(Outcome),
    Finished,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Active {
    /// The last sealed epoch.
    epoch: Epoch,
    step: Step,
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Joining,
    Ready,
    Open,
    Closed,
    Collecting,
}

/// How far the sealed epoch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pending {
    Appending,
    Prepared,
    Committing,
}

impl Member {
    /// The member `own` of a job of `hosts` hosts, before [`Event::Standing`].
    pub fn new(own: HostId, leader: HostId, hosts: u16) -> Self {
        let connected = (0..hosts).map(|host| HostId(host) == own).collect();
        Self { own, leader, connected, attempt: 0, phase: Phase::Surveying, told: false, stop: false }
    }

    /// The attempt that runs here.
    pub fn attempt(&self) -> Option<Attempt> {
        matches!(self.phase, Phase::Active(_)).then_some(self.attempt)
    }

    /// What it does, and which hosts it is not connected to.
    pub fn status(&self) -> Status {
        let stage = match &self.phase {
            Phase::Surveying | Phase::Idle(_) => Stage::Gathering,
            Phase::Over(_) | Phase::Finished => Stage::Ending,
            Phase::Active(active) => match active.step {
                Step::Joining | Step::Ready => Stage::Joining,
                Step::Open => Stage::Running,
                Step::Closed => Stage::Draining,
                Step::Collecting => Stage::Sealing,
            },
        };
        Status { attempt: self.attempt(), stage, waiting_for: self.missing(), slow: Vec::new(), apart: Vec::new() }
    }

    /// Takes an event; what is another machine's is let pass.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Connected(host) => self.set_connected(host, true, &mut actions),
            Event::Lost(host) => self.set_connected(host, false, &mut actions),
            Event::Received { from, message } if from == self.leader => self.receive(message, &mut actions),
            Event::Standing(standing) if self.phase == Phase::Surveying => {
                self.attempt = self.attempt.max(standing.attempt());
                (self.phase, self.told) = (Phase::Idle(standing), false);
                self.greet(&mut actions);
            }
            Event::Stop => self.stop(&mut actions),
            Event::Over(outcome) => self.end_job(outcome, &mut actions),
            event => self.own_step(event, &mut actions),
        }
        actions
    }

    fn missing(&self) -> Vec<HostId> {
        let hosts = (0..).map(HostId).zip(&self.connected);
        hosts.filter(|(_, connected)| !**connected).map(|(host, _)| host).collect()
    }

    fn has_leader(&self) -> bool {
        self.connected.get(self.leader.index()) == Some(&true)
    }

    fn tell(&self, message: Message, actions: &mut Vec<Action>) {
        if self.has_leader() {
            actions.push(Action::Send { to: self.leader, message });
        }
    }

    fn set_connected(&mut self, host: HostId, connected: bool, actions: &mut Vec<Action>) {
        let Some(link) = self.connected.get_mut(host.index()).filter(|_| host != self.own) else { return };
        *link = connected;
        self.told = false;
        if !connected {
            self.part(host, actions);
        }
        self.greet(actions);
    }

    /// A peer is lost.
    fn part(&mut self, host: HostId, actions: &mut Vec<Action>) {
        if let Phase::Active(_) = self.phase {
            let attempt = self.attempt;
            self.tell(Message::Parted { attempt, host }, actions);
            self.end_attempt(EndReason::Lost { by: self.own, host }, actions);
        }
        if host == self.leader {
            match &self.phase {
                Phase::Over(outcome) => self.finish(outcome.clone(), actions),
                Phase::Finished => {}
                _ if self.stop => self.finish(Outcome::Stopped, actions),
                _ => {}
            }
        }
    }

    /// Tells the leader what is here, or why nothing can begin yet.
    fn greet(&mut self, actions: &mut Vec<Action>) {
        let Phase::Idle(standing) = self.phase else { return };
        if self.told || !self.has_leader() {
            return;
        }
        self.told = true;
        let hosts = self.missing();
        let hello = Message::Hello { attempt: self.attempt, standing };
        self.tell(if hosts.is_empty() { hello } else { Message::Missing { hosts } }, actions);
    }

    fn end_attempt(&mut self, reason: EndReason, actions: &mut Vec<Action>) {
        self.phase = Phase::Surveying;
        actions.push(Action::EndAttempt { attempt: self.attempt, reason });
    }

    fn finish(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        self.phase = Phase::Finished;
        actions.push(Action::Finish(outcome));
    }

    fn stop(&mut self, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Over(_) | Phase::Finished => {}
            _ if self.has_leader() => {
                self.stop = true;
                self.tell(Message::Stop, actions);
            }
            _ => self.finish(Outcome::Stopped, actions),
        }
    }

    /// The job is over for a reason of this host: with a leader, everywhere.
    fn end_job(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Over(_) | Phase::Finished => {}
            _ if self.has_leader() => {
                self.tell(Message::Over { attempt: self.attempt, outcome: outcome.clone() }, actions);
                self.phase = Phase::Over(outcome);
            }
            _ => self.finish(outcome, actions),
        }
    }

    /// Something here is done, or there is something to say.
    fn own_step(&mut self, event: Event, actions: &mut Vec<Action>) {
        let attempt = self.attempt;
        let Phase::Active(active) = &mut self.phase else { return };
        let message = match event {
            Event::Joined { attempt: of, reach } if of == attempt && active.step == Step::Joining => {
                active.step = Step::Ready;
                Message::Joined { attempt, reach }
            }
            Event::Report { attempt: of, round: None, report } if of == attempt => Message::Report { attempt, report },
            Event::Report { attempt: of, round: Some(round), report } if of == attempt => {
                Message::Polled { attempt, round, report }
            }
            Event::Collected { attempt: of, epoch, reach, unnoted }
                if of == attempt && active.step == Step::Collecting && epoch == active.epoch + 1 =>
            {
                *active = Active { epoch, step: Step::Closed, pending: Some(Pending::Appending) };
                actions.push(Action::Append { epoch });
                Message::Sealed { attempt, epoch, reach, unnoted }
            }
            Event::Appended { attempt: of, epoch, digest }
                if of == attempt && epoch == active.epoch && active.pending == Some(Pending::Appending) =>
            {
                active.pending = Some(Pending::Prepared);
                Message::Prepared { attempt, epoch, digest }
            }
            Event::Committed { attempt: of, epoch }
                if of == attempt && epoch == active.epoch && active.pending == Some(Pending::Committing) =>
            {
                active.pending = None;
                Message::Committed { attempt, epoch }
            }
            _ => return,
        };
        self.tell(message, actions);
    }

    fn receive(&mut self, message: Message, actions: &mut Vec<Action>) {
        if let Phase::Finished = self.phase {
            return;
        }
        match message {
            Message::Granted { attempt, decision } if attempt > self.attempt => {
                self.granted(attempt, decision, actions);
            }
            Message::End { reason: EndReason::Over(outcome), .. } => {
                self.tell(Message::Bye, actions);
                self.finish(outcome, actions);
            }
            Message::End { attempt, reason } if self.attempt() == Some(attempt) => self.end_attempt(reason, actions),
            Message::Start { attempt, .. }
            | Message::Close { attempt, .. }
            | Message::Poll { attempt, .. }
            | Message::Seal { attempt, .. }
            | Message::Open { attempt, .. }
            | Message::Commit { attempt, .. }
                if self.attempt() == Some(attempt) =>
            {
                self.follow(message, actions);
            }
            _ => {}
        }
    }

    /// The leader begins an attempt, going by what it was told last.
    fn granted(&mut self, attempt: Attempt, decision: Decision, actions: &mut Vec<Action>) {
        if let Phase::Active(_) = self.phase {
            // The leader has lost this host since it granted what runs here, and takes it for gone.
            self.end_attempt(EndReason::Lost { by: self.leader, host: self.own }, actions);
        }
        self.attempt = attempt;
        let lost = self.missing().first().copied();
        match (&self.phase, lost) {
            (Phase::Over(_), _) => {}
            (Phase::Idle(_), None) => {
                self.phase = Phase::Active(Active { epoch: decision.epoch, step: Step::Joining, pending: None });
                actions.push(Action::Join { attempt, decision });
            }
            (_, lost) => {
                // A peer was lost after the greeting.
                self.tell(Message::Parted { attempt, host: lost.unwrap_or(self.own) }, actions);
                self.told = false;
                self.greet(actions);
            }
        }
    }

    /// A step of the running attempt.
    fn follow(&mut self, message: Message, actions: &mut Vec<Action>) {
        let Phase::Active(active) = &mut self.phase else { return };
        let is_next = |epoch: Epoch| epoch == active.epoch + 1 && active.pending.is_none();
        match (message, active.step) {
            (Message::Start { progress, .. }, Step::Ready) => {
                active.step = Step::Open;
                actions.push(Action::Reopen { progress });
            }
            (Message::Close { epoch, .. }, Step::Open) if is_next(epoch) => {
                active.step = Step::Closed;
                actions.push(Action::Close { epoch });
            }
            (Message::Poll { round, .. }, Step::Closed) => actions.push(Action::Look { round }),
            (Message::Seal { epoch, last, finished, .. }, Step::Closed) if is_next(epoch) => {
                active.step = Step::Collecting;
                actions.push(Action::Collect { epoch, last, finished });
            }
            (Message::Open { epoch, progress, .. }, Step::Closed) if epoch == active.epoch => {
                active.step = Step::Open;
                actions.push(Action::Reopen { progress });
            }
            (Message::Commit { epoch, .. }, _)
                if epoch == active.epoch && active.pending == Some(Pending::Prepared) =>
            {
                active.pending = Some(Pending::Committing);
                actions.push(Action::Commit { epoch });
            }
            _ => {
                let reason =
                    "follow the leader: it asks for what does not come next; run the same program on all hosts";
                self.end_job(Outcome::failed(self.own, FAULT_CODE, reason), actions);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::protocol::Reach;

    const LEADER: HostId = HostId(0);

    fn grant(attempt: Attempt) -> Event {
        Event::Received { from: LEADER, message: Message::Granted { attempt, decision: Decision::default() } }
    }

    /// A member of two hosts that has joined attempt 1.
    fn joined() -> Member {
        let mut member = Member::new(HostId(1), LEADER, 2);
        member.on(Event::Standing(Standing::default()));
        member.on(Event::Connected(LEADER));
        member.on(grant(1));
        member.on(Event::Joined { attempt: 1, reach: Reach::default() });
        assert_eq!(member.attempt(), Some(1));
        member
    }

    #[test]
    fn a_newer_grant_ends_what_runs_and_is_not_taken_for_it() {
        let mut member = joined();
        let actions = member.on(grant(2));
        assert!(matches!(actions[0], Action::EndAttempt { attempt: 1, .. }), "{actions:?}");
        let parted = Message::Parted { attempt: 2, host: HostId(1) };
        assert_eq!(actions[1..], [Action::Send { to: LEADER, message: parted }]);
        assert_eq!(member.attempt(), None);
        let standing = Standing { attempt: 1, ..Standing::default() };
        let hello = Message::Hello { attempt: 2, standing };
        assert_eq!(member.on(Event::Standing(standing)), [Action::Send { to: LEADER, message: hello }]);
    }

    #[test]
    fn an_older_grant_is_let_pass() {
        let mut member = joined();
        assert_eq!(member.on(grant(1)), []);
        assert_eq!(member.attempt(), Some(1));
    }
}
