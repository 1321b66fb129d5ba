//! The epoch log: one durable entry an epoch, and the `committed` file that says how far they count.

use std::time::Duration;

/// What writing an entry took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppendStats {
    /// The entry's length.
    pub bytes: u64,
    /// The time spent in encoding and writing.
    pub write: Duration,
    /// The time spent in syncing the file and its name.
    pub sync: Duration,
}

/// Why the log refuses. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum LogError {}
