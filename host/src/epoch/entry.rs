//! What an epoch holds: the data that changes hands at its seal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Attempt, Epoch};
use crate::key::Partition;

/// A stored value. Shared, so that a sealed set keeps what a later write replaces.
pub type Value = Arc<[u8]>;

/// A table of the job: `operator/table`.
pub type TableName = Arc<str>;

/// Where a split stands: what its source needs to go on behind the last admitted record. Only the source reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position(pub serde_json::Value);

/// One changed key of a sealed set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The partition that owns the key.
    pub partition: Partition,
    /// The key.
    pub key: Box<[u8]>,
    /// Its value at the seal, or `None` for a tombstone.
    pub value: Option<Value>,
}

/// What one task changed in one table during an epoch: each key once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDelta {
    /// The table.
    pub table: TableName,
    /// The version of the encoding of all values in it.
    pub schema_version: u32,
    /// The changes, in no particular order.
    pub changes: Vec<Change>,
}

/// A file that a sink has written, ready to be renamed once its epoch is committed. Names are relative to the sink's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedFile {
    /// The name it was written under.
    pub temporary: String,
    /// The name it is published under.
    pub published: String,
    /// Its length in bytes.
    pub length: u64,
    /// XXH3-64 of its content.
    pub digest: u64,
}

/// A file that a sink goes on writing in the next epoch; what lies behind `length` is not part of any epoch yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// The name it is written under.
    pub temporary: String,
    /// The bytes that belong to sealed epochs.
    pub length: u64,
    /// XXH3-64 of those bytes.
    pub digest: u64,
    /// The first epoch with a record in it.
    pub first_epoch: Epoch,
}

/// What a sink hands over at a seal. The default is a sink that has nothing to publish (stdout, blackhole).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkSeal {
    /// Complete files, to be published when the epoch is committed.
    pub prepared: Vec<PreparedFile>,
    /// The file that spans further epochs, if any.
    pub open: Option<OpenFile>,
}

/// Everything that one epoch makes durable.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Entry {
    /// The epoch.
    pub epoch: Epoch,
    /// The attempt that sealed it.
    pub attempt: Attempt,
    /// The sealed sets of all tasks.
    pub deltas: Vec<TableDelta>,
    /// The position of every split, by `source` and split name.
    pub positions: BTreeMap<String, BTreeMap<String, Position>>,
    /// What each sink handed over, by name.
    pub sinks: BTreeMap<String, SinkSeal>,
    /// The last epoch known to be published when this one was sealed.
    pub published: Epoch,
    /// Whether all input had ended and everything was processed.
    pub finished: bool,
    /// Counters of the whole life of the job (`records_in`, …), carried over restarts.
    pub totals: BTreeMap<String, u64>,
}
