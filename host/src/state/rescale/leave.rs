//! A directory whose state is moved away: what it holds as of its last committed epoch. Nothing in it is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::StateError;
use super::super::identity::{self, Identity, Paths};
use super::super::recover::{Unfed, recover};
use super::super::redb::{Cursor, Room, Snapshot, Storage};
use crate::disk::Disk;
use crate::epoch::entry::{Cell, Entry, TableName};
use crate::epoch::log::Survey;
use crate::epoch::standing::{Decision, Verdict, judge};
use crate::epoch::{Attempt, Epoch, JobId, attempts};
use crate::key::Partition;

const REDB_CACHE_BYTES: u64 = 16 << 20;

/// The changes that redb lacks, each with the schema version of its value, by partition and key.
type Changes = BTreeMap<(Partition, Box<[u8]>), (u32, Cell)>;

/// An old directory.
#[derive(Debug)]
pub struct Leaving {
    host: String,
    identity: Identity,
    attempt: Attempt,
    epoch: Epoch,
    last: Option<Entry>,
    tables: BTreeMap<TableName, BTreeSet<u32>>,
    changes: BTreeMap<TableName, Changes>,
    snapshot: Arc<Snapshot>,
    _room: Room,
}

impl Leaving {
    /// Opens the directory of `host`, which is locked; with the leader's `decision` where there are several.
    pub(super) fn open(
        disk: &dyn Disk,
        paths: Paths,
        host: String,
        decision: Option<Decision>,
    ) -> Result<Self, StateError> {
        let unmovable = |what: &str| {
            let remedy = "start the job as it was once more, stop it (SIGTERM), and move it then";
            StateError::Unmovable { path: paths.directory.clone(), what: format!("{what}; {remedy}") }
        };
        let Some(identity) = identity::read(disk, &paths)? else {
            return Err(StateError::Absent { path: paths.directory });
        };
        let survey = Survey::new(disk, &paths.directory, identity.job)?;
        let standing = survey.standing();
        if let Some(decision) = decision {
            let misfit = |misfit| crate::epoch::log::LogError::Misfit { path: paths.directory.clone(), misfit };
            if judge(standing, decision).map_err(misfit)? != Verdict::Keep {
                return Err(unmovable("the job was not stopped cleanly: an epoch has not come to its end there"));
            }
        }
        let recorded = attempts::last(disk, &paths.attempt, identity.job)?;
        let recovered = recover(disk, &Storage::File, &paths, &identity, survey, REDB_CACHE_BYTES)?;
        let has_open = |entry: &Entry| entry.sinks.values().any(|seal| seal.open.is_some());
        if recovered.last.as_ref().is_some_and(|last| last.has_unpublished() || has_open(last)) {
            return Err(unmovable("the job was not stopped cleanly: it may have output that is not published"));
        }
        Ok(Self {
            host,
            attempt: recorded.max(standing.attempt()),
            epoch: recovered.survey.committed(),
            last: recovered.last,
            tables: recovered.tables,
            changes: changes(recovered.unfed),
            snapshot: recovered.room.snapshot(),
            _room: recovered.room,
            identity,
        })
    }

    /// The host's name; empty where the job had no `[cluster]`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The directory's id.
    pub fn job(&self) -> JobId {
        self.identity.job
    }

    /// What the job recorded of itself when the directory was made.
    pub fn fingerprint(&self) -> &serde_json::Value {
        &self.identity.fingerprint
    }

    /// The highest attempt that it knows of.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The last committed epoch; 0 when there is none.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last committed entry, without its deltas.
    pub fn last(&self) -> Option<&Entry> {
        self.last.as_ref()
    }

    /// The tables, with the schema versions of their values as they are stored.
    pub fn tables(&self) -> &BTreeMap<TableName, BTreeSet<u32>> {
        &self.tables
    }

    /// The values of one partition with their schema versions, in the order of keys.
    ///
    /// # Errors
    /// When redb cannot be read.
    pub fn rows(&self, table: &str, partition: Partition) -> Result<Rows<'_>, StateError> {
        let cursors = self.snapshot.cursors(table, partition.0..partition.0 + 1, &[], None)?;
        let start = (partition, Box::default());
        let changes = self.changes.get(table).map(|changes| changes.range(start..)).into_iter().flatten();
        let changes = changes.take_while(move |((of, _), _)| *of == partition).map(|(_, row)| row);
        let changes: Box<dyn Iterator<Item = &(u32, Cell)>> = Box::new(changes);
        let (stored, stored_next) = (cursors.into_iter().next(), None);
        Ok(Rows { stored, stored_next, changes: changes.peekable() })
    }
}

/// The rows of a partition: what redb has, under the changes that it lacks.
pub struct Rows<'a> {
    stored: Option<Cursor>,
    stored_next: Option<(u32, Cell)>,
    changes: std::iter::Peekable<Box<dyn Iterator<Item = &'a (u32, Cell)> + 'a>>,
}

impl Iterator for Rows<'_> {
    type Item = Result<(u32, Cell), StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.stored_next.is_none() {
                match self.stored.as_mut().and_then(Cursor::next_with_version) {
                    Some(Ok(row)) => self.stored_next = Some(row),
                    Some(Err(error)) => return Some(Err(error)),
                    None => {}
                }
            }
            let stored = self.stored_next.as_ref().map(|(_, cell)| cell.key());
            let changed = self.changes.peek().map(|(_, cell)| cell.key());
            let row = match (stored, changed) {
                (Some(stored), Some(changed)) if stored < changed => self.stored_next.take(),
                (Some(stored), Some(changed)) => {
                    if stored == changed {
                        self.stored_next = None;
                    }
                    self.changes.next().cloned()
                }
                (Some(_), None) => self.stored_next.take(),
                (None, _) => self.changes.next().cloned(),
            };
            match row {
                Some((_, cell)) if !cell.is_present() => {}
                row => return row.map(Ok),
            }
        }
    }
}

fn changes(unfed: Vec<Unfed>) -> BTreeMap<TableName, Changes> {
    let mut all: BTreeMap<TableName, Changes> = BTreeMap::new();
    for delta in unfed.into_iter().flat_map(|unfed| unfed.deltas) {
        let changes = all.entry(delta.table).or_default();
        for part in delta.partitions {
            let row = |cell: Cell| ((part.partition, cell.key().into()), (delta.schema_version, cell));
            changes.extend(part.cells.into_iter().map(row));
        }
    }
    all
}
