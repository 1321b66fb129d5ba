//! The hosts of a job, as far as its plan depends on them: who they are, which partitions each owns, and which splits each reads.
//!
//! Everything here follows from the manifest alone, so that all hosts come to the same without talking to each other.

use std::ops::Range;

use crate::key::KeyHash;
use crate::manifest::{Manifest, did_you_mean, listed};

/// The hosts of a job. A host is known by its place among them, which is that of its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts {
    /// None where the manifest has no `[cluster]`.
    names: Vec<String>,
    leader: u16,
}

impl Hosts {
    /// Those that `manifest` names. A leader that it does not know is the first.
    pub fn of(manifest: &Manifest) -> Self {
        let Some(cluster) = &manifest.cluster else { return Self::default() };
        let names: Vec<String> = cluster.hosts.keys().take(usize::from(u16::MAX)).cloned().collect();
        let leader = cluster.leader.as_ref().and_then(|leader| names.iter().position(|name| name == leader));
        // There are no more than a u16 counts.
        Self { names, leader: leader.unwrap_or(0) as u16 }
    }

    /// How many there are, at least 1.
    pub fn count(&self) -> u16 {
        (self.names.len() as u16).max(1)
    }

    /// The one that decides which epochs count, reads standard input and runs serializable operators.
    pub fn leader(&self) -> u16 {
        self.leader
    }

    /// Their names, in their order. Empty for the one host of a manifest without `[cluster]`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name of `host`; `None` where the manifest has no `[cluster]`.
    pub fn name(&self, host: u16) -> Option<&str> {
        self.names.get(usize::from(host)).map(String::as_str)
    }

    /// The host that `--host NAME` says this process is; without `[cluster]` there is only one, which has no name.
    ///
    /// # Errors
    /// What is wrong with the name, or with leaving it out, for people.
    pub fn chosen(&self, name: Option<&str>) -> Result<u16, String> {
        let listed = || listed(self.names.iter().map(String::as_str));
        match name {
            None if self.names.is_empty() => Ok(0),
            None => {
                Err(format!("the manifest has `[cluster]`: say by `--host NAME` which host this is, of {}", listed()))
            }
            Some(_) if self.names.is_empty() => {
                Err("`--host` is for jobs of several hosts, but the manifest has no `[cluster]`".to_owned())
            }
            Some(name) => self.find(name).ok_or_else(|| {
                let meant = did_you_mean(name, self.names.iter().map(String::as_str));
                format!("unknown host `{name}`{meant}; the hosts are {}", listed())
            }),
        }
    }

    /// The host of that name.
    pub(super) fn find(&self, name: &str) -> Option<u16> {
        self.names.iter().position(|known| known == name).and_then(|place| u16::try_from(place).ok())
    }
}

/// The partitions of each of `hosts` hosts (0 counts as 1), in their order: one range each, whose lengths differ by one at most. Empty ones only where there are fewer partitions than hosts.
pub fn shares(partitions: u16, hosts: u16) -> impl Iterator<Item = Range<u16>> {
    let (hosts, partitions) = (u32::from(hosts.max(1)), u32::from(partitions));
    // At most `partitions`, since `host` is at most `hosts`.
    let start = move |host: u32| (host * partitions).div_ceil(hosts) as u16;
    (0..hosts).map(move |host| start(host)..start(host + 1))
}

/// How the splits of a source are shared out to the hosts that read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dealing {
    /// In turn by their numbers: what splits there are is fixed.
    InTurn,
    /// By their names: splits may appear while the job runs, and no host needs to be told of them.
    ByName,
}

/// The host that reads a split, by its number among the splits of its source and its name, of the `hosts` that read the source. A host keeps the positions of the splits that it reads, so this is
/// as fixed as the hash of keys.
///
/// # Panics
/// When there is no host.
pub fn split_host(dealing: Dealing, number: usize, name: &str, hosts: &[u16]) -> u16 {
    match dealing {
        Dealing::InTurn => hosts[number % hosts.len()],
        Dealing::ByName => hosts[(KeyHash::of(name.as_bytes()).0 % hosts.len() as u64) as usize],
    }
}
