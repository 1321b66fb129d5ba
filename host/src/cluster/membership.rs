//! Who belongs to a job of several hosts, who leads it, who owns which partition, and where the commit record is kept: behind one trait, so that an existing coordination system can take the place of
//! the list in the manifest.
//!
//! With the list, the leader's seat is fixed: a leader that is gone halts the job until it is back.

use std::path::PathBuf;
use std::sync::Arc;

use super::protocol::HostId;
use crate::disk::Disk;
use crate::epoch::decided::{CommitRecord, Decided};
use crate::epoch::log::LogError;
use crate::epoch::{Attempt, Epoch, JobId, attempts};
use crate::graph::shares;

/// What a job of several hosts has to agree on beside its epochs.
///
/// The calls that take `&mut self` are the leader's alone, may block, and are durable when they return.
pub trait Membership: Send + std::fmt::Debug {
    /// The names of the hosts: [`HostId`] is the place in this list.
    fn hosts(&self) -> &[String];

    /// Who leads.
    fn leader(&self) -> HostId;

    /// The host that owns each of `partitions` partitions.
    fn assignment(&self, partitions: u16) -> Vec<HostId>;

    /// Takes the number of the next attempt: greater than every one before, and than `above`.
    ///
    /// # Errors
    /// When it cannot be made durable.
    fn next_attempt(&mut self, above: Attempt) -> Result<Attempt, LogError>;

    /// The commit record.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    fn record(&mut self) -> Result<CommitRecord, LogError>;

    /// Writes the commit record of the next epoch.
    ///
    /// # Errors
    /// When it cannot be made durable; whether it counts is then found by [`Membership::record`] of a new start.
    fn decide(&mut self, record: &CommitRecord) -> Result<(), LogError>;
}

/// The list in the manifest: it says who leads, partitions are shared out in equal ranges, and the commit record lies in the leader's state directory.
#[derive(Debug)]
pub struct StaticList {
    hosts: Vec<String>,
    leader: HostId,
    seat: Option<Seat>,
}

/// What the leader has beside the list.
#[derive(Debug)]
struct Seat {
    disk: Arc<dyn Disk>,
    attempts: PathBuf,
    job: JobId,
    decided: Decided,
    record: CommitRecord,
}

/// The leader's state directory, as far as its seat needs it.
#[derive(Debug)]
pub struct LeaderDirectory {
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// Where it lies.
    pub path: PathBuf,
    /// Its id.
    pub job: JobId,
    /// What it has committed for certain.
    pub committed: Epoch,
}

impl StaticList {
    /// The list as a host that does not lead knows it.
    pub fn follower(hosts: Vec<String>, leader: HostId) -> Self {
        Self { hosts, leader, seat: None }
    }

    /// The list on the leader's host, with the commit record in its state `directory`.
    ///
    /// # Errors
    /// When the record is damaged, missing, of other hosts, or the system refuses.
    pub fn leader(hosts: Vec<String>, leader: HostId, directory: LeaderDirectory) -> Result<Self, LogError> {
        let LeaderDirectory { disk, path, job, committed } = directory;
        let (decided, record) = Decided::open(Arc::clone(&disk), &path, job, hosts.clone(), committed)?;
        let seat = Seat { disk, attempts: path.join("attempt"), job, decided, record };
        Ok(Self { hosts, leader, seat: Some(seat) })
    }

    fn seat(&mut self) -> Result<&mut Seat, LogError> {
        let follower = || LogError::Order { epoch: 0, expected: "the leader to do so".to_owned() };
        self.seat.as_mut().ok_or_else(follower)
    }
}

impl Membership for StaticList {
    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn leader(&self) -> HostId {
        self.leader
    }

    fn assignment(&self, partitions: u16) -> Vec<HostId> {
        let hosts = u16::try_from(self.hosts.len()).unwrap_or(u16::MAX);
        let of_host = |(host, share): (u16, std::ops::Range<u16>)| share.map(move |_| HostId(host));
        (0..).zip(shares(partitions, hosts)).flat_map(of_host).collect()
    }

    fn next_attempt(&mut self, above: Attempt) -> Result<Attempt, LogError> {
        let seat = self.seat()?;
        attempts::next(&*seat.disk, &seat.attempts, seat.job, above)
    }

    fn record(&mut self) -> Result<CommitRecord, LogError> {
        Ok(self.seat()?.record.clone())
    }

    fn decide(&mut self, record: &CommitRecord) -> Result<(), LogError> {
        let seat = self.seat()?;
        seat.decided.write(record)?;
        seat.record = record.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::crash::{CrashDisk, Unsynced};
    use crate::epoch::Digest;
    use crate::state::{OpenOptions, StateStore};

    fn names() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).to_vec()
    }

    #[test]
    fn every_host_owns_one_range_and_as_many_partitions_as_the_others() {
        for hosts in 1..=7 {
            let list = StaticList::follower((0..hosts).map(|host| format!("h{host}")).collect(), HostId(0));
            for partitions in [7, 8, 128, 1000] {
                let owners = list.assignment(partitions);
                assert!(owners.is_sorted() && owners.len() == usize::from(partitions));
                let counts = (0..hosts).map(|host| owners.iter().filter(|owner| owner.0 == host).count());
                let counts: Vec<usize> = counts.collect();
                assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            }
        }
    }

    #[test]
    fn the_leader_keeps_attempts_and_decisions_over_a_crash() {
        let open = |disk: &CrashDisk| {
            let options = OpenOptions { partitions: 4, double: Some(disk.clone()), ..OpenOptions::default() };
            let disk: Arc<dyn Disk> = Arc::new(disk.clone());
            let path = PathBuf::from("/job/a");
            let found = StateStore::look(&path, Arc::clone(&disk), &serde_json::Value::Null, options).unwrap();
            let committed = found.standing().committed.epoch;
            StaticList::leader(names(), HostId(1), LeaderDirectory { disk, path, job: found.job(), committed }).unwrap()
        };
        let disk = CrashDisk::new();
        let mut list = open(&disk);
        assert_eq!((list.leader(), list.record().unwrap()), (HostId(1), CommitRecord::default()));
        assert_eq!((list.next_attempt(0).unwrap(), list.next_attempt(7).unwrap()), (1, 8));
        let record = CommitRecord { epoch: 1, attempt: 8, digests: vec![Digest(1), Digest(2), Digest(3)] };
        list.decide(&record).unwrap();
        let mut list = open(&disk.crash(Unsynced::Lost));
        assert_eq!(list.record().unwrap(), record);
        assert_eq!(list.next_attempt(0).unwrap(), 9);
    }

    #[test]
    fn a_follower_neither_numbers_nor_decides() {
        let mut list = StaticList::follower(names(), HostId(0));
        assert_eq!(list.hosts(), names());
        assert!(list.next_attempt(0).is_err() && list.record().is_err());
        assert!(list.decide(&CommitRecord::default()).is_err());
    }
}
