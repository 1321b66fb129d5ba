//! The job's keyed state: tables in memory, the epoch log and redb behind them, and the way back after a stop.
//!
//! [`StateStore`] is the door: it opens a state directory, decides what the last committed epoch is, and hands each task its [`TaskTables`].
//! This room knows nothing of guests, sources or sinks: it keeps what they hand over and gives it back. Only `redb.rs` names redb.
//!
//! # The state directory
//!
//! | name | content |
//! |---|---|
//! | `job.json` | the job's identity: a random id, the format's version, the caller's fingerprint. Written last when the directory is made |
//! | `initialising` | there only while the directory is being made |
//! | `lock` | locked while a process uses the directory |
//! | `attempt` | the number of the last start |
//! | `committed` | the last committed epoch |
//! | `decided` | only on the leader of several hosts: the commit record, see `epoch::decided` |
//! | `log/` | one entry an epoch |
//! | `components/` | components that run by a reload, by digest: see [`components`] |
//! | `state.redb` | the state as of an epoch at or before the committed one |
//! | `rescale.…` | what [`rescale`] leaves, where state was moved or is being moved |
//!
//! Every file carries the job's id, so that files which strayed from another directory are noticed.

pub mod components;
mod delta;
mod epochs;
mod error;
mod feeder;
mod identity;
mod map;
mod merge;
mod migration;
pub mod offline;
mod read;
mod recover;
mod redb;
pub mod rescale;
mod store;
mod tables;
#[cfg(test)]
mod tests;
pub mod update;
mod updating;
mod versioning;
pub mod versions;

pub use epochs::{EpochView, Epochs};
pub use error::{StateError, TablesError};
pub use merge::{PAGE_BYTES, PAGE_ITEMS_MAX, Slice};
pub use migration::{Encoding, Migrate};
pub use store::{CommitStats, Committer, Hush, MemoryUse, OpenOptions, Opened, StateStore, Undecided};
pub use tables::{Pressure, TableSpec, TaskTables, Write};
pub use updating::{Updated, UpdatesOf};
