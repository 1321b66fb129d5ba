//! Several hosts that run one job.
//!
//! [`link`] is the connections between them. This room knows nothing of guests, of tasks or of how a job is run.

pub mod link;
