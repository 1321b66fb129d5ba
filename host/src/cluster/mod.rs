//! Several hosts as one job.
//!
//! [`protocol`] decides which attempt runs, when an epoch is sealed, and whether it counts, and does no I/O; [`membership`] says who belongs to the job, and keeps what they agree on.

pub mod membership;
pub mod protocol;
