//! Lookups: reading any table of the job from any thread.
//!
//! [`Directory`] knows the tables of all tasks by name and finds the owner of a key, here or on another host. Within a host a lookup is a memory read: it takes one lock an owning task, one
//! after another, never two at a time; what memory does not hold is read from redb. `get` answers keys, `scan` ranges. This room knows nothing of guests, of tasks'
//! mailboxes or of how updates travel.

pub mod generated;
mod get;
mod scan;
pub mod serve;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use tokio::sync::watch;

pub use get::Part;
pub use scan::Page;

use crate::epoch::Epoch;
use crate::key::KeyHash;
use crate::state::{EpochView, Epochs, TableSpec, TablesError, TaskTables};

/// Which state a lookup sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The latest batch that the owner has applied.
    Live,
    /// The last committed epoch.
    Committed,
    /// A committed epoch that is still retained.
    AsOf(Epoch),
}

impl Consistency {
    /// The epoch that is asked for by its number.
    pub fn epoch(self) -> Option<Epoch> {
        if let Self::AsOf(epoch) = self { Some(epoch) } else { None }
    }
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Live => formatter.write_str("live"),
            Self::Committed => formatter.write_str("committed"),
            Self::AsOf(epoch) => write!(formatter, "as-of:{epoch}"),
        }
    }
}

impl std::str::FromStr for Consistency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("as-of:").map(str::parse)) {
            ("live", _) => Ok(Self::Live),
            ("committed", _) => Ok(Self::Committed),
            (_, Some(Ok(epoch))) => Ok(Self::AsOf(epoch)),
            _ => Err(format!("`{text}` is no consistency: there are `committed`, `live` and `as-of:EPOCH`")),
        }
    }
}

/// Why a lookup has no answer. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// No table has this name.
    #[error("find the table `{name}`: there is no such table; there are: {known}")]
    UnknownTable {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The epoch asked for cannot be read.
    #[error(
        "read the state as of epoch {asked}: only epochs {oldest} to {newest} can be read; `checkpoint.retained` and `checkpoint.retained-bytes` say how many are kept"
    )]
    Gone {
        /// The epoch asked for.
        asked: Epoch,
        /// The oldest that can be read.
        oldest: Epoch,
        /// The last committed one.
        newest: Epoch,
    },
    /// The table has no order to scan it by.
    #[error(
        "scan the table `{table}`: it is not ordered; declare it so in its component, or by `tables.NAME.ordered = true` in the manifest"
    )]
    NotOrdered {
        /// The table.
        table: String,
    },
    /// Another host owns the key.
    #[error("look up the key here: the host `{host}` owns it; ask that one (`wasmill state … --host {host}`)")]
    Elsewhere {
        /// The host's name.
        host: String,
    },
    /// State on disk could not be read.
    #[error(transparent)]
    Tables(TablesError),
}

impl From<TablesError> for LookupError {
    fn from(error: TablesError) -> Self {
        match error {
            TablesError::Gone { asked, oldest, newest } => Self::Gone { asked, oldest, newest },
            TablesError::NotOrdered { table } => Self::NotOrdered { table: table.replacen('/', ".", 1) },
            error => Self::Tables(error),
        }
    }
}

/// A table of the job, by its place in the [`Directory`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    operator: usize,
    table: usize,
}

impl TableId {
    /// Table number `table` of operator number `operator`, as the directory was made with them.
    pub fn new(operator: usize, table: usize) -> Self {
        Self { operator, table }
    }

    /// The operator and the table, as in [`TableId::new`].
    pub fn parts(self) -> (usize, usize) {
        (self.operator, self.table)
    }

    /// A number that no other table of the job has.
    pub fn number(self) -> u64 {
        (self.operator as u64) << 32 | self.table as u64
    }
}

/// A table, for a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Where it is.
    pub id: TableId,
    /// `operator.table`.
    pub name: String,
    /// The version of its values' encoding.
    pub schema_version: u32,
    /// Whether it can be scanned by ranges of keys as it is at present.
    pub ordered: bool,
    /// For how long it keeps earlier values by event time, if it does, in milliseconds.
    pub versioned_span_ms: Option<u64>,
}

/// Who owns a partition of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One of its tasks of this host, counted from the first of these.
    Task(u16),
    /// Another host, by its place in the list of hosts.
    Host(u16),
}

/// An operator's tables: which task owns which partition.
#[derive(Debug)]
pub struct OperatorTables {
    /// The operator's name.
    pub operator: String,
    /// Its tables' names, in the order in which the tasks know them.
    pub tables: Vec<String>,
    /// What they are.
    pub specs: Vec<TableSpec>,
    /// The tables of each of its tasks of this host.
    pub tasks: Vec<Arc<TaskTables>>,
    /// The owner of each partition.
    pub owners: Vec<Owner>,
}

impl OperatorTables {
    /// Who owns `key`.
    pub fn owner(&self, key: &[u8]) -> Owner {
        let partition = KeyHash::of(key).partition(self.owners.len() as u16);
        self.owners[usize::from(partition.0)]
    }
}

/// What a lookup looks at: the present, or a committed epoch held fast. Of a committed one, every lookup of every table shows the same moment.
///
/// It is to be kept for one answer, not longer: redb keeps pages for it.
#[derive(Debug)]
pub struct Moment(Option<EpochView>);

impl Moment {
    /// The epoch; `None` for the present, which is in no epoch yet.
    pub fn epoch(&self) -> Option<Epoch> {
        self.0.as_ref().map(EpochView::epoch)
    }
}

/// The tables of all operators of the job.
#[derive(Debug)]
pub struct Directory {
    operators: Vec<OperatorTables>,
    by_name: BTreeMap<String, TableId>,
    epochs: Epochs,
    /// Whether other hosts own some partitions.
    is_spread: bool,
    /// The names of the job's hosts, if it has several.
    hosts: Vec<String>,
}

impl Directory {
    /// A directory of the operators' tables, in the store that `epochs` comes from.
    pub fn new(operators: Vec<OperatorTables>, epochs: Epochs) -> Self {
        let mut by_name = BTreeMap::new();
        for (operator, tables) in operators.iter().enumerate() {
            for (table, name) in tables.tables.iter().enumerate() {
                by_name.insert(format!("{}.{name}", tables.operator), TableId { operator, table });
            }
        }
        let mut owners = operators.iter().flat_map(|operator| &operator.owners);
        let is_spread = owners.any(|owner| matches!(owner, Owner::Host(_)));
        Self { operators, by_name, epochs, is_spread, hosts: Vec::new() }
    }

    /// The same in a job of several hosts, with their names.
    #[must_use]
    pub fn on_hosts(self, names: &[String]) -> Self {
        Self { hosts: names.to_vec(), ..self }
    }

    /// The tables of an operator.
    ///
    /// # Panics
    /// When `table` is of another directory.
    pub fn operator(&self, table: TableId) -> &OperatorTables {
        &self.operators[table.operator]
    }

    /// The tables of an operator, if it has any.
    pub fn of_operator(&self, name: &str) -> Option<&OperatorTables> {
        self.operators.iter().find(|operator| operator.operator == name && !operator.tables.is_empty())
    }

    /// The tables of the operator of a table, if there is such a table.
    pub fn checked(&self, table: TableId) -> Option<&OperatorTables> {
        self.operators.get(table.operator).filter(|operator| table.table < operator.tables.len())
    }

    /// The other hosts that own some of a table's keys.
    pub fn hosts_elsewhere(&self, table: TableId) -> BTreeSet<u16> {
        let host = |owner: &Owner| if let Owner::Host(host) = owner { Some(*host) } else { None };
        self.operators[table.operator].owners.iter().filter_map(host).collect()
    }

    /// The table `operator.table`.
    pub fn find(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    /// The table that a person means: `operator.table`, `operator/table`, or the operator alone where it has one table.
    ///
    /// # Errors
    /// [`LookupError::UnknownTable`] with the names there are.
    pub fn resolve(&self, name: &str) -> Result<TableId, LookupError> {
        let only = || match self.operators.iter().position(|operator| operator.operator == name) {
            Some(operator) if self.operators[operator].tables.len() == 1 => Some(TableId { operator, table: 0 }),
            _ => None,
        };
        self.find(name).or_else(|| self.find(&name.replacen('/', ".", 1))).or_else(only).ok_or_else(|| {
            let known: Vec<&str> = self.names().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            LookupError::UnknownTable { name: name.to_owned(), known }
        })
    }

    /// A table's name, `operator.table`.
    pub fn name(&self, table: TableId) -> String {
        let operator = &self.operators[table.operator];
        format!("{}.{}", operator.operator, operator.tables[table.table])
    }

    /// The names of all tables, `operator.table`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// All tables, in the order of their names.
    pub fn tables(&self) -> Vec<TableInfo> {
        let info = |(name, id): (&String, &TableId)| {
            let spec = &self.operators[id.operator].specs[id.table];
            TableInfo {
                id: *id,
                name: name.clone(),
                schema_version: self.schema_version(*id),
                ordered: spec.ordered,
                versioned_span_ms: spec.versioned_span_ms,
            }
        };
        self.by_name.iter().map(info).collect()
    }

    /// The schema version that a table's values are written with, and read as.
    fn schema_version(&self, table: TableId) -> u32 {
        let operator = &self.operators[table.operator];
        let declared = operator.specs[table.table].schema_version;
        operator.tasks.first().map_or(declared, |task| task.encoding().versions[table.table])
    }

    /// Whether a table can be scanned by ranges of keys as it is at present.
    pub fn is_ordered(&self, table: TableId) -> bool {
        self.operators[table.operator].specs[table.table].ordered
    }

    /// The epochs that can be read: from the oldest retained to the last committed one. 0 stands for the state before the first.
    pub fn readable(&self) -> RangeInclusive<Epoch> {
        self.epochs.readable()
    }

    /// Tells of each commit: the value is the last committed epoch.
    pub fn subscribe(&self) -> watch::Receiver<Epoch> {
        self.epochs.subscribe()
    }

    /// What lookups of this consistency look at from now on.
    ///
    /// # Errors
    /// [`LookupError::Gone`] for an epoch that cannot be read; or when redb is broken.
    pub fn moment(&self, consistency: Consistency) -> Result<Moment, LookupError> {
        Ok(Moment(match consistency {
            Consistency::Live => None,
            Consistency::Committed => Some(self.epochs.view(None)?),
            Consistency::AsOf(epoch) => Some(self.epochs.view(Some(epoch))?),
        }))
    }
}
