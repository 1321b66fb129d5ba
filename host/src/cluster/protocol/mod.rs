//! One epoch over all hosts: who decides what, and in which order. Pure: events and times in, actions out; no I/O, no clock, no chance.
//!
//! Every host runs a [`Member`]; one of them, the leader, runs a [`Leader`] beside it. [`Node`] is both for one process, and passes on what the two have to say to each
//! other. Whoever drives it carries out the [`Action`]s in their order and reports what came of them as [`Event`]s.
//!
//! # An attempt
//!
//! A host tells the leader what its state directory holds (`Hello`), once it is connected to all others and nothing of an older attempt runs in it any more. When the
//! leader has that of everyone, it takes the next attempt number, which is greater than any before, and grants it together with what the commit record says of the host
//! (`Granted`). The host commits or drops its prepared entry accordingly, opens its state and says so (`Joined`); when all have, the leader lets admission begin
//! (`Start`). Every later message carries the attempt, and what carries another one is dropped.
//!
//! When a host loses a peer, the leader ends the attempt everywhere (`End`), and everything begins again with `Hello`. When something fails for a reason of its own, or
//! the job has come to its end, `End` says what the whole job came to, and every process ends with it; the leader's is the last, when the others have answered (`Bye`).
//!
//! # An epoch
//!
//! `Close` stops admission. `Poll` asks how things stand; two successive rounds in which every host is idle and nothing has moved on any of them mean that nothing is in
//! flight: whatever is under way is on the count of some host at every moment, and a host that was idle in both rounds without moving was idle at the moment between the
//! two, as was every other. `Seal` has each host collect its part, `Open` lets admission go on with the progress that all parts together make. Behind that each host
//! makes its entry durable (`Prepared`); with all digests the leader writes the commit record; only then hosts commit (`Commit`, `Committed`). The next epoch is closed
//! only when every host has committed: at most one is between its seal and its commit, and no host is ever more than one behind the record.
//!
//! # What is asked of the connections
//!
//! Messages between two hosts arrive in the order in which they were sent, each at most once. A session begins with [`Event::Connected`] and ends with [`Event::Lost`] on
//! both ends, if at different times; what one session has not delivered no later one delivers; no session begins before both ends have seen the end of the one before. What a host says before it has
//! come to look at the end of a session may go out in the next one.

mod codec;
mod leader;
mod member;
mod node;
mod outcome;
#[cfg(test)]
mod simulation;

use std::time::Duration;

pub use codec::{FORMAT_VERSION, MESSAGE_BYTES_MAX, MessageError};
pub use leader::{Leader, Settings};
pub use member::Member;
pub use node::Node;
pub use outcome::{EndReason, Outcome, REASON_BYTES_MAX};

pub use super::HostId;
pub use crate::epoch::decided::CommitRecord;
use crate::epoch::standing::{Decision, Standing};
use crate::epoch::{Attempt, Digest, Epoch};

/// How things stand on one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// Nothing is in flight on it, what its peers have not acknowledged included.
    pub idle: bool,
    /// A number that grows whenever something is admitted or enqueued on it.
    pub moved: u64,
    /// All its splits have ended.
    pub ended: bool,
    /// Something is carried over on it.
    pub carried: bool,
    /// A seal would make something of it durable, or move on what waits for progress.
    pub needs: bool,
    /// It asks for a seal before the interval is over: by its rule of records, for want of memory, or because much waits for progress.
    pub urgent: bool,
    /// Its last sealed epoch says that all input had ended.
    pub finished: bool,
    /// Its last sealed epoch has files of whose publication no entry says anything yet.
    pub unnoted: bool,
}

/// How far event time has come on one host, or on all of them: lists in the order of the job's sources and operators, the same on every host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Reach {
    /// Of each source: the time up to which the host's splits have brought everything; `i64::MAX` where it has none left.
    pub sources: Vec<i64>,
    /// Of each operator: the time up to which nothing is carried over to it; `i64::MAX` where nothing is.
    pub operators: Vec<i64>,
}

impl Reach {
    /// What both together have come to: the lesser of each; `None` where the lists are not those of one job.
    pub fn merged(&self, other: &Self) -> Option<Self> {
        let least = |left: &[i64], right: &[i64]| {
            let is_same = left.len() == right.len();
            is_same.then(|| left.iter().zip(right).map(|(left, right)| *left.min(right)).collect())
        };
        Some(Self {
            sources: least(&self.sources, &other.sources)?,
            operators: least(&self.operators, &other.operators)?,
        })
    }
}

/// What a host and the leader say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    // From a member to the leader.
    /// Nothing runs in it, and it is connected to everyone.
    Hello {
        /// The highest attempt that it has been granted, or knows of.
        attempt: Attempt,
        /// What its state directory holds.
        standing: Standing,
    },
    /// What keeps it from saying `Hello`: it is not connected to these.
    Missing {
        /// The hosts.
        hosts: Vec<HostId>,
    },
    /// It has opened its state at the decided epoch.
    Joined {
        /// The attempt.
        attempt: Attempt,
        /// Where its part of the input stands.
        reach: Reach,
    },
    /// How things stand, unasked.
    Report {
        /// The attempt.
        attempt: Attempt,
        /// What it says.
        report: Report,
    },
    /// The answer to `Poll`.
    Polled {
        /// The attempt.
        attempt: Attempt,
        /// The round.
        round: u32,
        /// What it says.
        report: Report,
    },
    /// It has collected its part of an epoch.
    Sealed {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
        /// Where its part of the input stands, and what it carries over.
        reach: Reach,
        /// Whether it holds files that are published only after the commit.
        unnoted: bool,
    },
    /// Its entry is durable.
    Prepared {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
        /// The entry's digest.
        digest: Digest,
    },
    /// It has committed and published.
    Committed {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
    },
    /// It has lost a peer, and ends the attempt.
    Parted {
        /// The attempt.
        attempt: Attempt,
        /// The peer.
        host: HostId,
    },
    /// The job cannot, or need not, go on.
    Over {
        /// The attempt; 0 where none was granted.
        attempt: Attempt,
        /// What the job came to.
        outcome: Outcome,
    },
    /// Somebody asks the host for a clean stop of the job.
    Stop,
    /// It has heard what the job came to.
    Bye,

    // From the leader to a member.
    /// A new attempt.
    Granted {
        /// The attempt.
        attempt: Attempt,
        /// What the commit record says of the member.
        decision: Decision,
    },
    /// Everyone has joined: admission begins.
    Start {
        /// The attempt.
        attempt: Attempt,
        /// How far event time has come.
        progress: Reach,
    },
    /// An epoch is to be sealed: admission stops.
    Close {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
    },
    /// How do things stand?
    Poll {
        /// The attempt.
        attempt: Attempt,
        /// The round.
        round: u32,
    },
    /// Nothing is in flight anywhere: everyone collects.
    Seal {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
        /// Whether no more input is admitted behind it.
        last: bool,
        /// Whether all input has ended and nothing is carried over, on any host.
        finished: bool,
    },
    /// Admission goes on.
    Open {
        /// The attempt.
        attempt: Attempt,
        /// The epoch that was sealed; one less than that of `Close` where none was needed.
        epoch: Epoch,
        /// How far event time has come.
        progress: Reach,
    },
    /// The commit record names everyone's entry.
    Commit {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
    },
    /// The attempt is over.
    End {
        /// The attempt; 0 where none was granted.
        attempt: Attempt,
        /// Why.
        reason: EndReason,
    },
}

/// What has happened. What belongs to an attempt that is over is dropped by whoever takes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A session with a host has begun.
    Connected(HostId),
    /// A session with a host has ended: it was silent for too long, or has gone.
    Lost(HostId),
    /// A message has come.
    Received {
        /// From whom.
        from: HostId,
        /// What.
        message: Message,
    },
    /// Time has passed.
    Tick,
    /// Somebody asks for a clean stop of the job.
    Stop,
    /// The job is over for a reason of this host.
    Over(Outcome),
    /// Nothing of any attempt runs here, and this is what the state directory holds: once at the start, and once after each [`Action::EndAttempt`].
    Standing(Standing),
    /// [`Action::Join`] is done.
    Joined {
        /// The attempt.
        attempt: Attempt,
        /// Where the host's part of the input stands.
        reach: Reach,
    },
    /// How things stand: unasked, where it has changed, or as the answer to [`Action::Look`].
    Report {
        /// The attempt.
        attempt: Attempt,
        /// The round of the question; `None` where nobody has asked.
        round: Option<u32>,
        /// What there is to say.
        report: Report,
    },
    /// [`Action::Collect`] is done.
    Collected {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
        /// Where the host's part of the input stands, and what it carries over.
        reach: Reach,
        /// Whether there are files that are published only after the commit.
        unnoted: bool,
    },
    /// [`Action::Append`] is done.
    Appended {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
        /// The entry's digest.
        digest: Digest,
    },
    /// [`Action::Commit`] is done.
    Committed {
        /// The attempt.
        attempt: Attempt,
        /// The epoch.
        epoch: Epoch,
    },
    /// On the leader's host: the next attempt's number, durably taken.
    Attempt(Attempt),
    /// On the leader's host: [`Action::Decide`] is done, durably.
    Decided(Epoch),
}

/// What is to be done, in the order in which it is told. Whatever fails is told as [`Event::Over`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a message.
    Send {
        /// To whom.
        to: HostId,
        /// What.
        message: Message,
    },
    /// Open the state under this decision, and make everything ready to run, with admission closed: [`Event::Joined`].
    Join {
        /// The attempt.
        attempt: Attempt,
        /// What becomes of the prepared entry.
        decision: Decision,
    },
    /// Open admission, with this progress: after a join, after a seal, or where a seal was not needed.
    Reopen {
        /// How far event time has come.
        progress: Reach,
    },
    /// Close admission, hurry the tasks.
    Close {
        /// The epoch that is to be sealed.
        epoch: Epoch,
    },
    /// Say how things stand now: [`Event::Report`] with the round.
    Look {
        /// The round.
        round: u32,
    },
    /// Collect what tasks and sinks hand over: [`Event::Collected`].
    Collect {
        /// The epoch.
        epoch: Epoch,
        /// Whether no more input is admitted behind it.
        last: bool,
        /// Whether the entry is to say that all input has ended.
        finished: bool,
    },
    /// Make the collected entry durable as prepared, in the background: [`Event::Appended`].
    Append {
        /// The epoch.
        epoch: Epoch,
    },
    /// Commit the prepared entry, publish, feed, in the background: [`Event::Committed`].
    Commit {
        /// The epoch.
        epoch: Epoch,
    },
    /// Tear down everything of the attempt, wait until it is gone, and look at the state directory again: [`Event::Standing`].
    EndAttempt {
        /// The attempt.
        attempt: Attempt,
        /// Why.
        reason: EndReason,
    },
    /// Tear down what runs; the process ends with this.
    Finish(Outcome),
    /// Take the next attempt's number durably: [`Event::Attempt`]. It has to be greater than `above`; where it would not be, the leader's directory is an old copy.
    NextAttempt {
        /// The highest attempt that any host knows of.
        above: Attempt,
    },
    /// Write the commit record durably: [`Event::Decided`].
    Decide(CommitRecord),
}

/// A host that keeps all others waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// The host.
    pub host: HostId,
    /// For how long.
    pub since: Duration,
}

/// What a job of several hosts is doing, for its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The attempt that runs.
    pub attempt: Option<Attempt>,
    /// What is done now, or waited for.
    pub stage: Stage,
    /// The hosts that are waited for; on a member, those that it is not connected to.
    pub waiting_for: Vec<HostId>,
    /// Those that have been waited for for long.
    pub slow: Vec<Slow>,
    /// Hosts that are connected to the leader, but not to these others.
    pub apart: Vec<(HostId, Vec<HostId>)>,
}

/// The stages of a job of several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Hosts are not all there, or have not torn down the attempt before.
    Gathering,
    /// Hosts open their state.
    Joining,
    /// Input is admitted; an earlier epoch may wait for its commit.
    Running,
    /// Admission is closed, and what is in flight runs out.
    Draining,
    /// Hosts collect what the epoch consists of.
    Sealing,
    /// Nothing is admitted any more, and the last epoch waits for its commit.
    Settling,
    /// The job is over.
    Ending,
}

impl Stage {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Joining => "joining",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Sealing => "sealing",
            Self::Settling => "settling",
            Self::Ending => "ending",
        }
    }

    /// What a host that is waited for has still to do.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Gathering => "to be there",
            Self::Joining => "to open its state",
            Self::Draining => "to work off what is in flight",
            Self::Sealing => "to hand over what an epoch consists of",
            Self::Running | Self::Settling => "to commit the last epoch",
            Self::Ending => "to hear that the job is over",
        }
    }
}
