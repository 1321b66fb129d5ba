//! What travels between hosts, as the rest of the process sees it. Pure: how it is written on the wire is `wire`'s.

use std::ops::Range;
use std::sync::Arc;

pub use crate::cluster::HostId;
use crate::record::{Batch, Column};
use crate::state::update::{Op, Operands, Updates};

/// The bytes of a delivery from which on it travels in parts.
pub(super) const PART_BYTES: usize = 4 << 20;
/// The most bytes of one part. Only a single record or update can make a part as large as this.
pub(super) const PART_BYTES_MAX: usize = 48 << 20;
/// The most bytes of a control message.
pub const CONTROL_BYTES_MAX: usize = 4 << 20;

/// Something for a task of another host. Deliveries to one host arrive in the order in which they were sent, each once.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The task, by its number in the job.
    pub task: u32,
    /// What it gets.
    pub load: Load,
}

/// What a task gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// Records to work on.
    Records(Batch),
    /// Records that came by a loop.
    Looped(Arc<Batch>),
    /// Changes of the task's tables.
    Updates(Box<TableUpdates>),
    /// What became of updates that the task has sent.
    Outcomes {
        /// The task's port that they are emitted on.
        port: u32,
        /// One record an update.
        records: Batch,
    },
}

/// Changes of one of a task's tables.
#[derive(Debug, Clone, PartialEq)]
pub struct TableUpdates {
    /// The table, by its place among the task's tables.
    pub table: u32,
    /// The changes.
    pub updates: Updates,
    /// Where their outcomes go, where somebody asks.
    pub asked: Option<Asked>,
}

/// Who wants to know the outcomes of updates.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The port of the asking task that they are emitted on.
    pub port: u32,
    /// The asking task, by its number in the job.
    pub task: u32,
    /// One record an update, as they will be emitted.
    pub records: Batch,
}

impl Load {
    /// About how many bytes it takes on the wire.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Records(records) | Self::Outcomes { records, .. } => batch_bytes(records),
            Self::Looped(records) => batch_bytes(records),
            Self::Updates(sent) => {
                updates_bytes(&sent.updates) + sent.asked.as_ref().map_or(0, |asked| batch_bytes(&asked.records))
            }
        }
    }

    /// The number of its records or updates.
    pub fn items(&self) -> usize {
        match self {
            Self::Records(records) | Self::Outcomes { records, .. } => records.len(),
            Self::Looped(records) => records.len(),
            Self::Updates(sent) => sent.updates.keys.len(),
        }
    }

    /// The load itself, or, where it is large, parts of it in order that come to the same.
    ///
    /// # Errors
    /// The bytes of a record or update that is too large to travel at all.
    pub(super) fn into_parts(self) -> Result<Vec<Load>, usize> {
        if self.bytes() <= PART_BYTES || self.items() <= 1 {
            return if self.bytes() <= PART_BYTES_MAX { Ok(vec![self]) } else { Err(self.bytes()) };
        }
        let (head, tail) = (self.slice(0..self.items() / 2), self.slice(self.items() / 2..self.items()));
        drop(self);
        let mut parts = head.into_parts()?;
        parts.extend(tail.into_parts()?);
        Ok(parts)
    }

    fn slice(&self, range: Range<usize>) -> Load {
        match self {
            Self::Records(records) => Self::Records(records.slice(range)),
            Self::Looped(records) => Self::Looped(Arc::new(records.slice(range))),
            Self::Outcomes { port, records } => Self::Outcomes { port: *port, records: records.slice(range) },
            Self::Updates(sent) => Self::Updates(Box::new(TableUpdates {
                table: sent.table,
                updates: slice_updates(&sent.updates, range.clone()),
                asked: sent.asked.as_ref().map(|asked| Asked {
                    port: asked.port,
                    task: asked.task,
                    records: asked.records.slice(range),
                }),
            })),
        }
    }
}

fn batch_bytes(batch: &Batch) -> usize {
    batch.byte_len() + batch.len() * (2 * size_of::<u32>() + size_of::<i64>())
}

fn operands_bytes(operands: &Operands) -> usize {
    operands.items.bytes().len() + operands.items.len() * size_of::<u32>() + operands.present.len()
}

fn updates_bytes(updates: &Updates) -> usize {
    let columns = operands_bytes(&updates.operands) + operands_bytes(&updates.expected);
    columns
        + updates.keys.bytes().len()
        + updates.keys.len() * size_of::<u32>()
        + updates.times.len() * size_of::<i64>()
}

fn slice_updates(updates: &Updates, range: Range<usize>) -> Updates {
    let mut keys = Column::default();
    keys.extend_from(&updates.keys, range.clone());
    let times = if updates.times.is_empty() { Vec::new() } else { updates.times[range.clone()].to_vec() };
    Updates {
        op: updates.op,
        keys,
        operands: slice_operands(&updates.operands, range.clone()),
        expected: slice_operands(&updates.expected, range),
        times,
    }
}

/// Operands that an operation does not have stay none.
fn slice_operands(operands: &Operands, range: Range<usize>) -> Operands {
    let mut items = Column::default();
    if !operands.items.is_empty() {
        items.extend_from(&operands.items, range.clone());
    }
    let present = if operands.present.is_empty() { Vec::new() } else { operands.present[range].to_vec() };
    Operands { items, present }
}

/// Why a load from outside cannot be what it says. Completes "failed to read a delivery: …".
pub(super) fn check_load(load: &Load) -> Result<(), String> {
    let equal = |name: &str, count: usize, items: usize| {
        if count == items { Ok(()) } else { Err(format!("there are {items} updates, but {count} {name}")) }
    };
    let Load::Updates(sent) = load else { return Ok(()) };
    let TableUpdates { updates, asked, .. } = &**sent;
    let items = updates.keys.len();
    let some_or_equal = |name: &str, count: usize| if count == 0 { Ok(()) } else { equal(name, count, items) };
    equal("operands", updates.operands.items.len(), items)?;
    match updates.op {
        Op::CompareAndPut => equal("expected values", updates.expected.items.len(), items)?,
        Op::Append { items_max: 0 } => return Err("`append` keeps no item".to_owned()),
        _ => some_or_equal("expected values", updates.expected.items.len())?,
    }
    some_or_equal("marks of operands", updates.operands.present.len())?;
    some_or_equal("marks of expected values", updates.expected.present.len())?;
    some_or_equal("times", updates.times.len())?;
    asked.as_ref().map_or(Ok(()), |asked| equal("outcomes", asked.records.len(), items))
}
