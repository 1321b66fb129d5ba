//! What must hold after every step, whatever has happened; worked out from what lies on the disks, and by no code of the protocol.

use super::host::Host;
use super::network::Parcel;
use super::work::{Job, plain};
use super::{LEADER, Verdict};
use crate::cluster::protocol::{HostId, Outcome};
use crate::epoch::Attempt;
use crate::epoch::decided::CommitRecord;

/// What has been seen so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Oracle {
    decided: CommitRecord,
    /// The last attempt that was at work anywhere.
    attempt: Attempt,
    /// By host, the last attempt that it has joined.
    joined: Vec<Attempt>,
    /// What the job may come to for having been told so.
    allowed: Vec<Outcome>,
}

macro_rules! hold {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(format!($($text)*));
        }
    };
}

impl Oracle {
    pub(super) fn new(hosts: usize) -> Self {
        Self { joined: vec![0; hosts], ..Self::default() }
    }

    /// From now on the job may come to this.
    pub(super) fn allow(&mut self, outcome: Outcome) {
        if !self.allowed.contains(&outcome) {
            self.allowed.push(outcome);
        }
    }

    /// All processes have ended: what they were told before is of no effect any more.
    pub(super) fn forget(&mut self) {
        self.allowed.clear();
    }

    /// Holds of the whole world.
    pub(super) fn check(&mut self, hosts: &[Host], job: &Job) -> Verdict {
        self.check_decision(hosts, job)?;
        hosts.iter().try_for_each(|host| self.check_disk(host))?;
        hosts.iter().try_for_each(|host| self.check_run(host))
    }

    /// An epoch is decided once, behind the one before, and is a consistent cut of entries that are durable.
    fn check_decision(&mut self, hosts: &[Host], job: &Job) -> Verdict {
        let record = hosts[LEADER.index()].disk.record.durable();
        if *record == self.decided {
            return Ok(());
        }
        let (epoch, before) = (record.epoch, self.decided.epoch);
        hold!(epoch == before + 1, "epoch {epoch} is decided behind {before}");
        hold!(record.digests.len() == hosts.len(), "epoch {epoch} is not decided of all hosts");
        let mut total = 0_u64;
        let mut finished = Vec::new();
        for (host, digest) in hosts.iter().zip(&record.digests) {
            let own = host.own;
            let Some(entry) = host.disk.last.durable().as_ref().filter(|entry| entry.id.digest == *digest) else {
                return Err(format!("epoch {epoch} is decided, but its entry on {own:?} is not durable"));
            };
            let id = (entry.id.epoch, entry.id.attempt);
            hold!(id == (epoch, record.attempt), "epoch {epoch} is decided with an entry of {id:?} on {own:?}");
            let is_done = entry.part.has_ended(&job.inputs[own.index()]) && entry.part.carried.is_empty();
            hold!(is_done || !entry.finished, "epoch {epoch} is said to be the end, but something is left on {own:?}");
            total = total.wrapping_add(entry.part.total());
            finished.push(entry.finished);
        }
        hold!(total == 0, "epoch {epoch} is no consistent cut: a record was split by its seal");
        hold!(finished.iter().all(|one| *one == finished[0]), "hosts do not agree on whether epoch {epoch} is the end");
        self.decided = record.clone();
        Ok(())
    }

    /// A host has committed what the record names, or is one behind it, with the entry that the record names; and has published nothing else.
    fn check_disk(&self, host: &Host) -> Verdict {
        let (own, decided) = (host.own, self.decided.of(host.own.index()));
        let committed = host.disk.committed.read().id;
        let is_named = (committed.epoch, committed.digest) == (decided.epoch, decided.digest);
        let last = host.disk.last.durable().as_ref().map(|entry| (entry.id.epoch, entry.id.digest));
        let is_about_to_be = committed.epoch + 1 == decided.epoch && last == Some((decided.epoch, decided.digest));
        hold!(is_named || is_about_to_be, "{own:?} has committed {committed:?}, the record says {decided:?}");
        let published = host.disk.published.read().epoch;
        hold!(published <= committed.epoch, "{own:?} has published epoch {published} before its commit");
        Ok(())
    }

    /// No two attempts are at work at a time. (One that hosts have joined may be over before it begins, and be found out late.)
    fn check_run(&mut self, host: &Host) -> Verdict {
        let run = host.process.as_ref().and_then(|process| process.run.as_ref());
        let Some(run) = run.filter(|run| run.has_begun) else { return Ok(()) };
        let (own, attempt) = (host.own, run.attempt);
        hold!(attempt >= self.attempt, "{own:?} works on attempt {attempt} beside {}", self.attempt);
        self.attempt = attempt;
        Ok(())
    }

    /// A host has joined an attempt.
    pub(super) fn check_joined(&mut self, own: HostId, attempt: Attempt) -> Verdict {
        let last = std::mem::replace(&mut self.joined[own.index()], attempt);
        hold!(attempt > last, "{own:?} joins attempt {attempt} after {last}");
        Ok(())
    }

    /// A record that is taken belongs to the epoch in which it was sent.
    pub(super) fn check_taken(&self, host: &Host, parcel: &Parcel) -> Verdict {
        let (Parcel::Record { attempt, epoch, .. }, own) = (parcel, host.own) else { return Ok(()) };
        let run = host.process.as_ref().and_then(|process| process.run.as_ref());
        let present = run.map_or(0, |run| run.attempt);
        hold!(*attempt <= present || run.is_none(), "{own:?} gets a record of attempt {attempt} in {present}");
        if let Some(run) = run.filter(|run| run.attempt == *attempt) {
            hold!(run.epoch == *epoch, "a record of epoch {epoch} comes to {own:?} in epoch {}", run.epoch);
        }
        Ok(())
    }

    /// A record that has waited is begun only when every host's sealed part of the input has come so far.
    pub(super) fn check_progress(&self, hosts: &[Host], job: &Job) -> Verdict {
        let runs = || hosts.iter().filter_map(|host| Some((host.own, host.process.as_ref()?.run.as_ref()?)));
        for (own, run) in runs() {
            let behind = runs().filter(|(_, other)| other.attempt == run.attempt).find(|(other, part)| {
                let position = part.part.position as i64;
                run.progress > position && !part.part.has_ended(&job.inputs[other.index()])
            });
            hold!(
                behind.is_none(),
                "{own:?} goes by a progress of {}, but {behind:?} has not come to it",
                run.progress
            );
        }
        Ok(())
    }

    /// A process has come to its end: with what somebody asked for, or with everything done, committed and noted everywhere.
    pub(super) fn check_outcome(&self, hosts: &[Host], own: HostId, outcome: &Outcome) -> Verdict {
        if *outcome != Outcome::InputEnded {
            hold!(self.allowed.contains(outcome), "{own:?} ends with {outcome:?}, for which there is no reason");
            return Ok(());
        }
        for host in hosts {
            let committed = host.disk.committed.read();
            let is_last = committed.id.epoch == self.decided.epoch && committed.finished;
            hold!(is_last, "{own:?} says that the input has ended, but {:?} stands at {committed:?}", host.own);
            hold!(!committed.part.has_output(), "{own:?} ends, but output of {:?} is not noted as published", host.own);
        }
        Ok(())
    }

    /// The job has ended: with what a plain loop over the inputs computes.
    pub(super) fn check_end(&self, hosts: &[Host], job: &Job) -> Verdict {
        for (host, (account, output)) in hosts.iter().zip(plain(job)) {
            let own = host.own;
            let part = &host.disk.committed.read().part;
            hold!(part.account == account, "the account of {own:?} is {}, it should be {account}", part.account);
            let sum = host.disk.published.read().sum;
            hold!(sum == output, "{own:?} has published {sum}, it should be {output}");
        }
        Ok(())
    }
}
