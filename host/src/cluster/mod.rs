//! Several hosts as one job.
//!
//! [`protocol`] decides: which attempt runs, when an epoch is sealed, and whether it counts. It does no I/O.

pub mod protocol;
