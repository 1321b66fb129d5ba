//! Sessions between hosts: what is sent in one arrives in order, up to the point where it breaks; each side learns of that by itself.
//!
//! A direction that is cut takes nothing more. What is under way in it is delivered or not, as chance has it: a side that notices the end of the session throws away what
//! has not been delivered to it. A new session begins only when both sides have noticed the end of the one before.

use std::collections::VecDeque;

use super::work::Record;
use crate::cluster::protocol::{HostId, Message};
use crate::epoch::{Attempt, Epoch};

/// What goes beside the protocol's messages, and in no order with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Parcel {
    /// A record, with the epoch that it was sent in, which only the oracle looks at.
    Record { attempt: Attempt, epoch: Epoch, record: Record },
    /// One record of this attempt was taken.
    Taken { attempt: Attempt },
}

/// One direction of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Line {
    /// Whether the receiver has yet to learn that the session has begun.
    begins: bool,
    messages: VecDeque<Message>,
    parcels: VecDeque<Parcel>,
    is_cut: bool,
}

/// All sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Network {
    hosts: usize,
    /// By sender and receiver: whether the sender knows of a session with the receiver.
    up: Vec<bool>,
    lines: Vec<Line>,
}

/// What comes first on a line.
#[derive(Debug)]
pub(super) enum Arrival {
    Begin,
    Message(Message),
}

impl Network {
    pub(super) fn new(hosts: usize) -> Self {
        Self { hosts, up: vec![false; hosts * hosts], lines: vec![Line::default(); hosts * hosts] }
    }

    fn place(&self, from: HostId, to: HostId) -> usize {
        from.index() * self.hosts + to.index()
    }

    /// Whether `host` knows of a session with `peer`.
    pub(super) fn is_up(&self, host: HostId, peer: HostId) -> bool {
        self.up[self.place(host, peer)]
    }

    /// Whether a session can begin, as far as the connection is concerned.
    pub(super) fn is_free(&self, host: HostId, peer: HostId) -> bool {
        !self.is_up(host, peer) && !self.is_up(peer, host)
    }

    /// Begins a session: `host` knows, `peer` will when the beginning arrives.
    pub(super) fn begin(&mut self, host: HostId, peer: HostId) {
        let (there, back) = (self.place(host, peer), self.place(peer, host));
        self.lines[there] = Line { begins: true, ..Line::default() };
        self.lines[back] = Line::default();
        self.up[there] = true;
    }

    pub(super) fn send(&mut self, from: HostId, to: HostId, message: Message) {
        if let Some(line) = self.line_out(from, to) {
            line.messages.push_back(message);
        }
    }

    pub(super) fn send_parcel(&mut self, from: HostId, to: HostId, parcel: Parcel) {
        if let Some(line) = self.line_out(from, to) {
            line.parcels.push_back(parcel);
        }
    }

    fn line_out(&mut self, from: HostId, to: HostId) -> Option<&mut Line> {
        let is_up = self.is_up(from, to);
        let place = self.place(from, to);
        Some(&mut self.lines[place]).filter(|line| is_up && !line.is_cut)
    }

    pub(super) fn has_message(&self, from: HostId, to: HostId) -> bool {
        let line = &self.lines[self.place(from, to)];
        line.begins || (self.is_up(to, from) && !line.messages.is_empty())
    }

    pub(super) fn has_parcel(&self, from: HostId, to: HostId) -> bool {
        self.is_up(to, from) && !self.lines[self.place(from, to)].parcels.is_empty()
    }

    pub(super) fn next_message(&mut self, from: HostId, to: HostId) -> Option<Arrival> {
        let (there, back) = (self.place(from, to), self.place(to, from));
        let line = &mut self.lines[there];
        if std::mem::take(&mut line.begins) {
            self.up[back] = true;
            return Some(Arrival::Begin);
        }
        line.messages.pop_front().map(Arrival::Message)
    }

    pub(super) fn next_parcel(&mut self, from: HostId, to: HostId) -> Option<Parcel> {
        let place = self.place(from, to);
        self.lines[place].parcels.pop_front()
    }

    /// What `from` sends to `to` from now on does not arrive.
    pub(super) fn cut(&mut self, from: HostId, to: HostId) {
        let place = self.place(from, to);
        self.lines[place].is_cut = true;
    }

    pub(super) fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.lines[self.place(from, to)].is_cut
    }

    /// Whether `host` will find out that its session with `peer` is over.
    pub(super) fn is_broken(&self, host: HostId, peer: HostId) -> bool {
        let has_never_begun = !self.is_up(peer, host) && self.is_cut(host, peer);
        self.is_up(host, peer) && (self.is_cut(peer, host) || has_never_begun)
    }

    /// `host` is done with its session with `peer`.
    pub(super) fn leave(&mut self, host: HostId, peer: HostId) {
        let (there, back) = (self.place(host, peer), self.place(peer, host));
        self.up[there] = false;
        self.lines[there].is_cut = true;
        self.lines[back] = Line { is_cut: true, ..Line::default() };
    }
}
