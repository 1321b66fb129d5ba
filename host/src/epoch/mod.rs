//! Epochs: what one holds when it is sealed, and the log that makes it durable.
//!
//! [`entry`] is the content of an epoch (data only); [`log`] writes and reads entries and the `committed` file; [`recovery`] decides, from what
//! is found after a stop, which epoch is the last. This room knows nothing of tasks, guests or connectors: it is handed what they sealed.

mod codec;
pub mod entry;
pub mod log;
pub mod recovery;
mod slots;

/// The number of an epoch. The first that a job seals is 1; 0 stands for "before any".
pub type Epoch = u64;

/// The number of a start of the job: 1 for the first. Everything older than the present one is void.
pub type Attempt = u64;
