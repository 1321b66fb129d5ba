//! What one of several hosts holds after a stop, and what the commit record makes of it. Pure: facts in, verdict out.
//!
//! On several hosts an entry is *prepared* first: durable, but of no effect. Which prepared entries count is decided at one place, the commit record (see
//! [`super::decided`]), and not by what is found beside them: an entry that the record names is committed, any other is dropped (presumed abort), and as long as
//! the record is not known, the entry is in doubt: nothing of it may be published or fed to the materialised state.
//!
//! The record of epoch `n` is written only once every host has said that its entry of `n` is prepared, and every host begins `n + 1` only once every host has
//! committed `n`. So a host is at the record's epoch, or one behind it with the entry that the record names. Everything else is no crash's work.

use super::slots::Record;
use super::{Attempt, Digest, Epoch};

/// Which entry: the epoch, the attempt that sealed it, and the digest that tells it from every other one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct EntryId {
    /// The epoch; 0 stands for "before any".
    pub epoch: Epoch,
    /// The attempt that sealed it.
    pub attempt: Attempt,
    /// The entry's digest.
    pub digest: Digest,
}

impl From<Record> for EntryId {
    fn from(record: Record) -> Self {
        Self { epoch: record.number, attempt: record.attempt, digest: record.digest }
    }
}

/// What a host holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The highest attempt that it has recorded.
    pub attempt: Attempt,
    /// The last entry that is committed for certain.
    pub committed: EntryId,
    /// A whole entry behind it, whose fate the host does not know.
    pub prepared: Option<EntryId>,
}

impl Standing {
    /// The highest attempt that it knows of: every later one must be above.
    pub fn attempt(&self) -> Attempt {
        self.attempt.max(self.committed.attempt).max(self.prepared.map_or(0, |prepared| prepared.attempt))
    }
}

/// What the commit record says of one host: the last decided epoch, and the digest of the host's entry of it. The default is "nothing decided yet".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The last decided epoch; 0 before the first.
    pub epoch: Epoch,
    /// The digest of the host's entry.
    pub digest: Digest,
}

/// What becomes of what a host holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds the decided epoch, and nothing behind it.
    Keep,
    /// Its prepared entry is the decided one: to be committed.
    Commit,
    /// Its prepared entry was never decided: to be dropped.
    Drop,
}

/// Why what a host holds cannot belong to the job that the record is of. Completes "failed to …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// It has committed what was never decided.
    #[error(
        "use the state directory: it has committed epoch {committed}, but the commit record ends at epoch {decided}; it, or the leader's, is not this \
         job's, or an old copy: put the right one back"
    )]
    Ahead {
        /// What it has committed.
        committed: Epoch,
        /// The last decided epoch.
        decided: Epoch,
    },
    /// It lacks what was decided.
    #[error(
        "use the state directory: it has committed epoch {committed} and holds no prepared entry that the commit record of epoch {decided} names; it is not this \
         job's, or an old copy: put the right one back"
    )]
    Behind {
        /// What it has committed.
        committed: Epoch,
        /// The last decided epoch.
        decided: Epoch,
    },
    /// It has committed another entry of the epoch than the decided one.
    #[error(
        "use the state directory: its entry of epoch {0} is not the one that the commit record names; it comes from another history: put the right \
         one back"
    )]
    History(Epoch),
}

/// What becomes of a host's entries under a decision.
///
/// # Errors
/// When the two cannot belong to one job.
pub fn judge(standing: Standing, decision: Decision) -> Result<Verdict, Misfit> {
    let (committed, decided) = (standing.committed.epoch, decision.epoch);
    if committed > decided {
        return Err(Misfit::Ahead { committed, decided });
    }
    if committed == decided {
        return match standing.prepared {
            _ if standing.committed.digest != decision.digest => Err(Misfit::History(decided)),
            Some(_) => Ok(Verdict::Drop),
            None => Ok(Verdict::Keep),
        };
    }
    let is_named = |prepared: EntryId| (prepared.epoch, prepared.digest) == (decision.epoch, decision.digest);
    match standing.prepared {
        Some(prepared) if committed + 1 == decided && is_named(prepared) => Ok(Verdict::Commit),
        _ => Err(Misfit::Behind { committed, decided }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(epoch: Epoch, digest: u128) -> EntryId {
        EntryId { epoch, attempt: 3, digest: Digest(digest) }
    }

    fn check(committed: EntryId, prepared: Option<EntryId>, decided: EntryId) -> Result<Verdict, Misfit> {
        judge(Standing { attempt: 3, committed, prepared }, Decision { epoch: decided.epoch, digest: decided.digest })
    }

    #[test]
    fn an_entry_that_the_record_names_is_committed_and_any_other_is_dropped() {
        assert_eq!(check(id(4, 40), None, id(4, 40)), Ok(Verdict::Keep));
        assert_eq!(check(id(4, 40), Some(id(5, 50)), id(4, 40)), Ok(Verdict::Drop));
        assert_eq!(check(id(4, 40), Some(id(5, 50)), id(5, 50)), Ok(Verdict::Commit));
        assert_eq!(check(EntryId::default(), None, EntryId::default()), Ok(Verdict::Keep));
        assert_eq!(check(EntryId::default(), Some(id(1, 10)), EntryId::default()), Ok(Verdict::Drop));
    }

    #[test]
    fn what_no_crash_leaves_behind_is_an_error() {
        let behind = |committed, decided| Err(Misfit::Behind { committed, decided });
        assert_eq!(check(id(5, 50), None, id(4, 40)), Err(Misfit::Ahead { committed: 5, decided: 4 }));
        assert_eq!(check(id(4, 40), None, id(5, 50)), behind(4, 5));
        assert_eq!(check(id(4, 40), Some(id(5, 51)), id(5, 50)), behind(4, 5));
        assert_eq!(check(id(3, 30), Some(id(4, 40)), id(5, 50)), behind(3, 5));
        assert_eq!(check(EntryId::default(), None, id(2, 20)), behind(0, 2));
        assert_eq!(check(id(4, 41), None, id(4, 40)), Err(Misfit::History(4)));
        assert_eq!(check(id(4, 41), Some(id(5, 50)), id(4, 40)), Err(Misfit::History(4)));
    }
}
