//! Several hosts that run one job.
//!
//! [`protocol`] decides which attempt runs, when an epoch is sealed, and whether it counts, and does no I/O; [`membership`] says who belongs to the job, and keeps what they agree on;
//! [`link`] is the connections between the hosts; [`lookups`] gathers what is asked over them. This room knows nothing of guests, of tasks or of how a job is run.

pub mod link;
pub mod lookups;
pub mod membership;
pub mod protocol;
