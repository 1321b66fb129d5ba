//! Puts together what a state directory holds: the log's last committed epoch, redb behind it, and the entries between the two. It changes nothing in the log.

use std::collections::{BTreeMap, BTreeSet};

use super::StateError;
use super::identity::{Identity, Paths};
use super::redb::{Meta, Room, Storage};
use crate::disk::Disk;
use crate::epoch::entry::{Entry, TableDelta, TableName};
use crate::epoch::log::Survey;
use crate::epoch::{Digest, Epoch};

/// What a directory holds, and where the parts fit together.
#[derive(Debug)]
pub(super) struct Recovered {
    pub survey: Survey,
    pub room: Room,
    /// What redb says of itself.
    pub meta: Meta,
    /// The last committed entry, without its deltas.
    pub last: Option<Entry>,
    /// The entries that are not noted as published, without their deltas.
    pub unpublished: Vec<Entry>,
    /// What redb lacks, in the order of epochs.
    pub unfed: Vec<Unfed>,
    /// The tables, with the schema versions of their values.
    pub tables: BTreeMap<TableName, BTreeSet<u32>>,
}

/// The changes of a committed epoch that redb lacks.
#[derive(Debug)]
pub(super) struct Unfed {
    pub epoch: Epoch,
    pub digest: Digest,
    pub deltas: Vec<TableDelta>,
}

/// Reads what lies behind the `survey` of a directory that [`super::identity::load`] knows.
pub(super) fn recover(
    disk: &dyn Disk,
    storage: &Storage,
    paths: &Paths,
    identity: &Identity,
    mut survey: Survey,
    cache_bytes: u64,
) -> Result<Recovered, StateError> {
    let (room, meta) = Room::open(storage, &paths.redb, identity.job, cache_bytes)?;
    let damaged = |what: String| StateError::Damaged { path: paths.redb.clone(), what };
    let committed = survey.committed();
    if meta.epoch > committed {
        return Err(damaged(format!("it holds epoch {}, but the last committed one is {committed}", meta.epoch)));
    }
    let entries = needed_entries(disk, &mut survey, &meta)?;
    let mut recovered = Recovered {
        tables: meta.tables.clone(),
        survey,
        room,
        meta,
        last: None,
        unpublished: Vec::new(),
        unfed: Vec::new(),
    };
    let published = entries.last().map_or(0, |(entry, _)| entry.published);
    for (mut entry, digest) in entries {
        let (epoch, deltas) = (entry.epoch, std::mem::take(&mut entry.deltas));
        if epoch == recovered.meta.epoch && digest != recovered.meta.digest {
            return Err(damaged(format!("what it holds of epoch {epoch} comes from another history than the log")));
        }
        if epoch > recovered.meta.epoch {
            for delta in &deltas {
                recovered.tables.entry(delta.table.clone()).or_default().insert(delta.schema_version);
            }
            recovered.unfed.push(Unfed { epoch, digest, deltas });
        }
        if epoch > published {
            recovered.unpublished.push(entry.clone());
        }
        recovered.last = Some(entry);
    }
    Ok(recovered)
}

/// The entries behind redb's epoch, those not noted as published, and in any case the last.
fn needed_entries(disk: &dyn Disk, survey: &mut Survey, meta: &Meta) -> Result<Vec<(Entry, Digest)>, StateError> {
    let Some(last) = survey.last() else { return Ok(Vec::new()) };
    let first = (meta.epoch.min(last.published) + 1).min(last.epoch);
    let previous = if first == meta.epoch + 1 {
        Some(meta.digest)
    } else if first == 1 {
        Some(Digest::default())
    } else {
        None
    };
    Ok(survey.entries(disk, first, previous)?)
}
