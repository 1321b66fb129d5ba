//! What a job of several hosts comes to, and why an attempt ends.

use super::HostId;

/// The longest text of a reason, in bytes; longer ones are cut.
pub const REASON_BYTES_MAX: usize = 4096;

/// What the whole job came to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All input was read and processed.
    InputEnded,
    /// Somebody asked for it.
    Stopped,
    /// Somebody asked for it, but what was under way did not end in time: at the last committed epoch.
    StoppedShort,
    /// Whoever read a host's standard output has gone: at the last committed epoch.
    OutputClosed,
    /// It failed; see [`Outcome::failed`].
    Failed {
        /// The host whose failure it was.
        host: HostId,
        /// The exit code that goes with it.
        code: u8,
        /// What happened, in the words of the host's error, of at most [`REASON_BYTES_MAX`] bytes.
        reason: String,
    },
}

impl Outcome {
    /// A failure, its reason cut where it is too long.
    pub fn failed(host: HostId, code: u8, reason: &str) -> Self {
        let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end));
        Self::Failed { host, code, reason: reason[..end.unwrap_or(0)].to_owned() }
    }
}

/// Why an attempt ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// One host has lost another; the job goes on with a new attempt as soon as all are there again.
    Lost {
        /// Who has noticed.
        by: HostId,
        /// Who was lost.
        host: HostId,
    },
    /// The job is over.
    Over(Outcome),
}
