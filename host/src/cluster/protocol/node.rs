//! The protocol of one process: its member and, on the leader's host, the leader, which talk to each other without a connection.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Action, CommitRecord, Event, HostId, Leader, Member, Message, Settings, Status};

/// One host's whole part in the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    own: HostId,
    leader_host: HostId,
    member: Member,
    leader: Option<Leader>,
}

impl Node {
    /// A host that is not the leader, of `hosts` hosts.
    pub fn member(own: HostId, leader: HostId, hosts: u16) -> Self {
        Self { own, leader_host: leader, member: Member::new(own, leader, hosts), leader: None }
    }

    /// The leader's host, of `hosts` hosts; `record` is the commit record as it is on disk, durably.
    pub fn leader(own: HostId, hosts: u16, settings: Settings, record: CommitRecord) -> Self {
        let leader = Some(Leader::new(own, hosts, settings, record));
        Self { own, leader_host: own, member: Member::new(own, own, hosts), leader }
    }

    /// Takes an event at the time `now`, which never goes back; returns what is to be done, in order.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let told = self.deliver(now, event);
            for action in told {
                match action {
                    Action::Send { to, message } if to == self.own => {
                        events.push_back(Event::Received { from: self.own, message });
                    }
                    action => actions.push(action),
                }
            }
        }
        actions
    }

    /// What is done, whom it waits for, and who is slow.
    pub fn status(&self, now: Duration) -> Status {
        self.leader.as_ref().map_or_else(|| self.member.status(), |leader| leader.status(now))
    }

    /// The attempt that runs here.
    pub fn attempt(&self) -> Option<crate::epoch::Attempt> {
        self.member.attempt()
    }

    /// The leader, on its host.
    pub fn as_leader(&self) -> Option<&Leader> {
        self.leader.as_ref()
    }

    fn deliver(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let leader = self.leader.as_mut();
        match &event {
            Event::Connected(_) | Event::Lost(_) => {
                let mut actions = leader.map_or_else(Vec::new, |leader| leader.on(now, event.clone()));
                actions.extend(self.member.on(event));
                actions
            }
            Event::Received { message, .. } if is_for_leader(message) => {
                leader.map_or_else(Vec::new, |leader| leader.on(now, event))
            }
            Event::Received { from, .. } if *from != self.leader_host => Vec::new(),
            Event::Tick | Event::Attempt(_) | Event::Decided(_) => {
                leader.map_or_else(Vec::new, |leader| leader.on(now, event))
            }
            _ => self.member.on(event),
        }
    }
}

/// Whether a message goes from a member to the leader.
fn is_for_leader(message: &Message) -> bool {
    match message {
        Message::Hello { .. }
        | Message::Missing { .. }
        | Message::Joined { .. }
        | Message::Report { .. }
        | Message::Polled { .. }
        | Message::Sealed { .. }
        | Message::Prepared { .. }
        | Message::Committed { .. }
        | Message::Parted { .. }
        | Message::Over { .. }
        | Message::Stop
        | Message::Bye => true,
        Message::Granted { .. }
        | Message::Start { .. }
        | Message::Close { .. }
        | Message::Poll { .. }
        | Message::Seal { .. }
        | Message::Open { .. }
        | Message::Commit { .. }
        | Message::End { .. } => false,
    }
}
