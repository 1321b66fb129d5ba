//! Epochs: what one holds when it is sealed, and the log that makes it durable.
//!
//! [`entry`] is the content of an epoch (data only); [`log`] writes and reads entries and the `committed` file; [`recovery`] decides, from what
//! is found after a stop, which epoch is the last. Where several hosts work on one job, [`standing`] decides it from the commit record that [`decided`] keeps. This room knows nothing of tasks, guests or connectors: it is handed what they sealed.

pub mod attempts;
mod codec;
pub mod decided;
pub mod entry;
pub mod log;
pub mod recovery;
pub(crate) mod slots;
pub mod standing;

/// The number of an epoch. The first that a job seals is 1; 0 stands for "before any".
pub type Epoch = u64;

/// The number of a start of the job: 1 for the first. Everything older than the present one is void.
pub type Attempt = u64;

/// What tells one state directory from all others: 128 random bits, drawn when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobId(pub u128);

impl std::fmt::Display for JobId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// XXH3-128 of a log entry: tells it from every other entry. 0 stands for "no entry", before the first epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub u128);
