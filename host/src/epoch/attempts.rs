//! The numbers of a job's starts: each is greater than every one before, also where a record of it is torn.
//!
//! The file `attempt` is one of two slots (see `slots`), whose record is the last number taken. On several hosts the leader takes the numbers; the others record in
//! theirs what they were granted, so that the leader learns of it even where its own file is an old one.

use std::path::Path;

use super::log::{LogError, slots_error};
use super::slots::{self, Record, Slot};
use super::{Attempt, Digest, JobId};
use crate::disk::Disk;

const MAGIC: slots::Magic = b"WASMILLA";

/// Makes the file, before any start.
pub(crate) fn create(disk: &dyn Disk, path: &Path, job: JobId) -> Result<(), LogError> {
    slots::create(disk, path, MAGIC, job, Record::default()).map_err(|error| failed("write", path, error))
}

/// Takes the number of the next start durably: higher than every one that was ever recorded, and than `above`.
///
/// # Errors
/// When the file is damaged, foreign or newer, or the system refuses.
pub fn next(disk: &dyn Disk, path: &Path, job: JobId, above: Attempt) -> Result<Attempt, LogError> {
    let attempt = match read(disk, path, job)? {
        [Slot::Set(first), Slot::Set(second)] => first.number.max(second.number) + 1,
        [Slot::Set(first), Slot::Void] => first.number + 1,
        // The torn record may be of the number above the good one. Three more is above that, and in the torn record's place.
        [Slot::Set(good), Slot::Invalid] | [Slot::Invalid, Slot::Set(good)] => good.number + 3,
        _ => return Err(damaged(path)),
    };
    let attempt = attempt.max(above.saturating_add(1));
    write(disk, path, job, attempt)?;
    Ok(attempt)
}

/// Records a number that another host has taken, unless it is known already.
///
/// # Errors
/// As [`next`].
pub fn record(disk: &dyn Disk, path: &Path, job: JobId, attempt: Attempt) -> Result<(), LogError> {
    if last(disk, path, job)? >= attempt { Ok(()) } else { write(disk, path, job, attempt) }
}

/// The highest number that can be read.
///
/// # Errors
/// As [`next`].
pub fn last(disk: &dyn Disk, path: &Path, job: JobId) -> Result<Attempt, LogError> {
    let numbers = read(disk, path, job)?.into_iter().filter_map(|slot| match slot {
        Slot::Set(record) => Some(record.number),
        Slot::Void | Slot::Invalid => None,
    });
    numbers.max().ok_or_else(|| damaged(path))
}

fn read(disk: &dyn Disk, path: &Path, job: JobId) -> Result<[Slot; 2], LogError> {
    slots::read(disk, path, MAGIC, job).map_err(|error| slots_error(path, job, error))
}

fn write(disk: &dyn Disk, path: &Path, job: JobId, attempt: Attempt) -> Result<(), LogError> {
    let record = Record { number: attempt, attempt, digest: Digest::default() };
    slots::write(disk, path, MAGIC, job, record).map_err(|error| failed("write", path, error))
}

fn damaged(path: &Path) -> LogError {
    LogError::Damaged { path: path.to_owned(), what: "neither of its two records can be read".to_owned() }
}

fn failed(action: &'static str, path: &Path, error: std::io::Error) -> LogError {
    LogError::Io { action, path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::crash::{CrashDisk, Unsynced};

    const PATH: &str = "/job/attempt";
    const JOB: JobId = JobId(5);

    fn new_disk() -> CrashDisk {
        let (disk, directory) = (CrashDisk::new(), Path::new("/job"));
        disk.create_directory(directory).unwrap();
        create(&disk, Path::new(PATH), JOB).unwrap();
        disk.sync_directory(directory).unwrap();
        disk
    }

    #[test]
    fn numbers_grow_over_crashes_at_every_step() {
        for step in 0..24 {
            for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn(step), Unsynced::Torn(!step)] {
                let disk = new_disk();
                let mut highest = next(&disk, Path::new(PATH), JOB, 0).unwrap();
                disk.stop_after(step);
                while let Ok(number) = next(&disk, Path::new(PATH), JOB, 0) {
                    assert!(number > highest);
                    highest = number;
                }
                let after = disk.crash(unsynced);
                assert!(next(&after, Path::new(PATH), JOB, 0).unwrap() > highest, "step {step}, {unsynced:?}");
            }
        }
    }

    #[test]
    fn a_number_is_above_all_that_others_know_and_is_recorded_once() {
        let disk = new_disk();
        let path = Path::new(PATH);
        assert_eq!(next(&disk, path, JOB, 0).unwrap(), 1);
        assert_eq!(next(&disk, path, JOB, 6).unwrap(), 7);
        assert_eq!(next(&disk, path, JOB, 6).unwrap(), 8);
        record(&disk, path, JOB, 4).unwrap();
        assert_eq!(last(&disk, path, JOB).unwrap(), 8);
        record(&disk, path, JOB, 12).unwrap();
        assert_eq!(last(&disk, path, JOB).unwrap(), 12);
        assert_eq!(next(&disk, path, JOB, 0).unwrap(), 13);
    }
}
