//! Several hosts that run one job.
//!
//! [`protocol`] decides which attempt runs, when an epoch is sealed, and whether it counts, and does no I/O; [`membership`] says who belongs to the job, and keeps what they agree on;
//! [`link`] is the connections between the hosts; [`lookups`] gathers what is asked over them. This room knows nothing of guests, of tasks or of how a job is run.

pub mod link;
pub mod lookups;
pub mod membership;
pub mod protocol;

/// A host of the job: its place in the list of the job's hosts, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u16);

impl HostId {
    /// As an index of something that there is one of for each host.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl std::fmt::Display for HostId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "host number {}", self.0)
    }
}
