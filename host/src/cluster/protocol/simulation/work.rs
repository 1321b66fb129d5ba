//! What the simulated job computes, small enough to be checked in one look: every record carries an amount from account to account, one account a host.
//!
//! A record is taken from the account of the host whose input it is read from and added to that of the next host on its way, and so on; the sum over all accounts, and
//! over what is carried over, is zero at every consistent cut, and at no other (amounts are random numbers of 64 bits). Every step writes a line of output.

use std::collections::VecDeque;

use crate::cluster::protocol::{HostId, Reach, Report};
use crate::epoch::{Attempt, Epoch};

use super::disk::Entry;

/// A host asks for a seal when it has moved so much since the last one.
const URGENT_FROM: u64 = 6;

/// The inputs of all hosts.
#[derive(Debug, Clone, Default)]
pub(super) struct Job {
    pub(super) inputs: Vec<Vec<Record>>,
}

/// What travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) amount: u64,
    /// How many accounts it has yet to see behind the next one.
    pub(super) hops: u8,
    /// Whether it has come by a loop, so that a drain does not wait for it: it is carried over.
    pub(super) is_looped: bool,
    /// It waits until the inputs of all hosts have come so far.
    pub(super) waits_for: i64,
}

impl Record {
    /// The host it goes to from `host`.
    fn next(&self, host: HostId, hosts: usize) -> HostId {
        let next = (u64::from(host.0) + (self.amount >> self.hops)) % hosts as u64;
        HostId(u16::try_from(next).expect("there are few hosts"))
    }

    fn line(&self) -> u64 {
        self.amount.rotate_left(17).wrapping_mul(2 * u64::from(self.hops) + 1)
    }

    /// What is left to do once it has been processed.
    fn behind(self) -> Option<Self> {
        let hops = self.hops.checked_sub(1)?;
        Some(Self { hops, is_looped: true, waits_for: i64::MIN, ..self })
    }
}

/// The accounts and the output that all inputs make, computed by a plain loop.
pub(super) fn plain(job: &Job) -> Vec<(u64, u64)> {
    let hosts = job.inputs.len();
    let mut all = vec![(0_u64, 0_u64); hosts];
    for (host, record) in
        (0..).zip(&job.inputs).flat_map(|(host, input)| input.iter().map(move |record| (host, record)))
    {
        let (mut host, mut on_its_way) = (HostId(host), Some(*record));
        while let Some(record) = on_its_way {
            let next = record.next(host, hosts);
            all[host.index()].0 = all[host.index()].0.wrapping_sub(record.amount);
            let (account, output) = &mut all[next.index()];
            (*account, *output) = (account.wrapping_add(record.amount), output.wrapping_add(record.line()));
            (host, on_its_way) = (next, record.behind());
        }
    }
    all
}

/// The state of one host as of an epoch, and what the epoch has put out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Part {
    /// How much of the input has been admitted.
    pub(super) position: usize,
    pub(super) account: u64,
    /// The sum of the epoch's lines.
    pub(super) output: u64,
    pub(super) carried: Vec<Record>,
}

impl Part {
    /// What it and its like on the other hosts sum up to zero with.
    pub(super) fn total(&self) -> u64 {
        self.carried.iter().fold(self.account, |total, record| total.wrapping_add(record.amount))
    }

    /// Whether it has files that are published only after the commit.
    pub(super) fn has_output(&self) -> bool {
        self.output != 0
    }

    pub(super) fn has_ended(&self, input: &[Record]) -> bool {
        self.position == input.len()
    }

    pub(super) fn reach(&self, input: &[Record]) -> Reach {
        let source = if self.has_ended(input) { i64::MAX } else { self.position as i64 };
        let waiting = self.carried.iter().map(|record| record.waits_for).min();
        Reach { sources: vec![source], operators: vec![waiting.unwrap_or(i64::MAX)] }
    }
}

/// What runs on a host in one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) attempt: Attempt,
    /// The epoch that is under way.
    pub(super) epoch: Epoch,
    pub(super) part: Part,
    pub(super) mailbox: VecDeque<Record>,
    /// What peers have not acknowledged yet.
    pub(super) unacknowledged: usize,
    /// Whether admission was ever open.
    pub(super) has_begun: bool,
    pub(super) is_open: bool,
    /// Whether it asks for a seal before its time.
    pub(super) is_urgent: bool,
    /// How far the inputs of all hosts had come when they were last told so.
    pub(super) progress: i64,
    moved: u64,
    moved_at_seal: u64,
    /// What the last sealed epoch said, of itself.
    finished: bool,
    unnoted: bool,
    /// What the leader was last told unasked.
    pub(super) reported: Option<Report>,
}

impl Run {
    /// Goes on behind a committed entry.
    pub(super) fn new(attempt: Attempt, committed: &Entry) -> Self {
        Self {
            attempt,
            epoch: committed.id.epoch + 1,
            part: Part { output: 0, ..committed.part.clone() },
            mailbox: VecDeque::new(),
            unacknowledged: 0,
            has_begun: false,
            is_open: false,
            is_urgent: false,
            progress: i64::MIN,
            moved: 0,
            moved_at_seal: 0,
            finished: committed.finished,
            unnoted: committed.part.has_output(),
            reported: None,
        }
    }

    /// Opens admission, and begins what was carried over and need not wait any more.
    pub(super) fn open(&mut self, progress: &Reach) {
        self.progress = progress.sources.first().copied().unwrap_or(i64::MIN);
        (self.has_begun, self.is_open, self.reported) = (true, true, None);
        let carried = std::mem::take(&mut self.part.carried);
        let (begun, waiting) = carried.into_iter().partition::<Vec<_>, _>(|record| record.waits_for <= self.progress);
        self.part.carried = waiting;
        begun.into_iter().for_each(|record| self.take(record));
    }

    /// Whether nothing is in flight here.
    pub(super) fn is_idle(&self) -> bool {
        self.mailbox.is_empty() && self.unacknowledged == 0
    }

    /// Whether a seal would make something durable.
    pub(super) fn needs_seal(&self) -> bool {
        self.moved > self.moved_at_seal
    }

    /// Takes what has come, from here or elsewhere.
    pub(super) fn take(&mut self, record: Record) {
        self.mailbox.push_back(record);
        self.moved += 1;
    }

    /// Admits the next record of the input; returns it where it goes to another host.
    pub(super) fn admit(&mut self, own: HostId, job: &Job) -> Option<(HostId, Record)> {
        let record = *job.inputs[own.index()].get(self.part.position)?;
        self.part.position += 1;
        self.send(own, job, record)
    }

    /// Processes what came first; returns what goes to another host for it.
    pub(super) fn process(&mut self, own: HostId, job: &Job) -> Option<(HostId, Record)> {
        let record = self.mailbox.pop_front()?;
        if record.waits_for > self.progress || (record.is_looped && !self.is_open) {
            self.part.carried.push(record);
            return None;
        }
        self.part.account = self.part.account.wrapping_add(record.amount);
        self.part.output = self.part.output.wrapping_add(record.line());
        self.send(own, job, record.behind()?)
    }

    fn send(&mut self, own: HostId, job: &Job, record: Record) -> Option<(HostId, Record)> {
        self.part.account = self.part.account.wrapping_sub(record.amount);
        let next = record.next(own, job.inputs.len());
        if next == own {
            self.take(record);
            return None;
        }
        self.moved += 1;
        self.unacknowledged += 1;
        Some((next, record))
    }

    pub(super) fn report(&self, input: &[Record]) -> Report {
        let since = self.moved - self.moved_at_seal;
        Report {
            idle: self.is_idle(),
            moved: self.moved,
            ended: self.part.has_ended(input),
            carried: !self.part.carried.is_empty(),
            needs: self.needs_seal(),
            urgent: since >= URGENT_FROM || self.is_urgent,
            finished: self.finished,
            unnoted: self.unnoted,
        }
    }

    /// Hands over the epoch under way.
    pub(super) fn seal(&mut self, finished: bool) -> Entry {
        let entry = Entry::new(self.epoch, self.attempt, self.part.clone(), finished);
        (self.finished, self.unnoted) = (finished, self.part.has_output());
        (self.moved_at_seal, self.is_urgent) = (self.moved, false);
        self.epoch += 1;
        self.part.output = 0;
        entry
    }
}
