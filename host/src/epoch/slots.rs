//! Files of two slots, for a small record that is replaced often and must never be lost: `committed` and `attempt`.
//!
//! # Format, version 1
//!
//! The file is two slots of 4,096 bytes, so that a torn write of one leaves the other alone. The record with number `n` is written to slot
//! `n % 2`, over the one with `n - 2`, and synced. All integers are little-endian. A slot is
//!
//! | offset | length | content |
//! |---|---|---|
//! | 0 | 8 | magic: what the file is for |
//! | 8 | 4 | format version |
//! | 12 | 4 | 1 for a record, 0 for a slot that never held one |
//! | 16 | 16 | the job's id |
//! | 32 | 8 | number |
//! | 40 | 8 | attempt that wrote it |
//! | 48 | 16 | digest of the log entry that the record commits, 0 for none |
//! | 64 | 4,024 | zeros |
//! | 4,088 | 8 | XXH3-64 of the bytes before |

use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::{Attempt, Digest, JobId};
use crate::disk::Disk;

/// The newest version of the format.
pub(crate) const FORMAT_VERSION: u32 = 1;

const SLOT_BYTES: usize = 4096;
const CHECKSUM_AT: usize = SLOT_BYTES - 8;

/// What a file of two slots is for: its first eight bytes.
pub(crate) type Magic = &'static [u8; 8];

/// What one slot says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// The epoch, or the attempt, that the file is about.
    pub number: u64,
    /// The attempt that wrote it.
    pub attempt: Attempt,
    /// The digest of the entry that it commits.
    pub digest: Digest,
}

/// A slot as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// It never held a record.
    Void,
    /// It holds a record.
    Set(Record),
    /// It is not what was once written: torn, damaged or missing.
    Invalid,
}

/// Why a file of slots cannot be used at all.
#[derive(Debug)]
pub(crate) enum SlotsError {
    /// The system refused to read it.
    Io(io::Error),
    /// It belongs to another job.
    Foreign(JobId),
    /// It has a newer format.
    Newer(u32),
}

/// Writes a file whose first record is in slot 0 and whose other slot is void, and syncs it, but not its name.
pub(crate) fn create(disk: &dyn Disk, path: &Path, magic: Magic, job: JobId, first: Record) -> io::Result<()> {
    let mut bytes = encode(magic, job, Some(first)).to_vec();
    bytes.extend_from_slice(&encode(magic, job, None));
    let mut file = disk.create(path)?;
    file.write_all(&bytes)?;
    file.flush()?;
    drop(file);
    disk.sync_file(path)
}

/// Writes `record` to the slot of its number and syncs it.
pub(crate) fn write(disk: &dyn Disk, path: &Path, magic: Magic, job: JobId, record: Record) -> io::Result<()> {
    let offset = (record.number % 2) * SLOT_BYTES as u64;
    disk.write_at(path, offset, &encode(magic, job, Some(record)))?;
    disk.sync_file(path)
}

/// Reads both slots; a file of another length has invalid slots.
pub(crate) fn read(disk: &dyn Disk, path: &Path, magic: Magic, job: JobId) -> Result<[Slot; 2], SlotsError> {
    let bytes = disk.read(path).map_err(SlotsError::Io)?;
    if bytes.len() > 2 * SLOT_BYTES {
        return Ok([Slot::Invalid; 2]);
    }
    let mut slots = [Slot::Invalid; 2];
    for (slot, part) in slots.iter_mut().zip(bytes.chunks(SLOT_BYTES)) {
        *slot = decode(part, magic, job)?;
    }
    Ok(slots)
}

fn encode(magic: Magic, job: JobId, record: Option<Record>) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(magic);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&u32::from(record.is_some()).to_le_bytes());
    bytes[16..32].copy_from_slice(&job.0.to_le_bytes());
    let record = record.unwrap_or_default();
    bytes[32..40].copy_from_slice(&record.number.to_le_bytes());
    bytes[40..48].copy_from_slice(&record.attempt.to_le_bytes());
    bytes[48..64].copy_from_slice(&record.digest.0.to_le_bytes());
    let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
    bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], magic: Magic, job: JobId) -> Result<Slot, SlotsError> {
    if bytes.len() != SLOT_BYTES || bytes[..8] != magic[..] || field::<8>(bytes, CHECKSUM_AT) != checksum(bytes) {
        return Ok(Slot::Invalid);
    }
    let version = u32::from_le_bytes(field(bytes, 8));
    if version != FORMAT_VERSION {
        return Err(SlotsError::Newer(version));
    }
    let found = JobId(u128::from_le_bytes(field(bytes, 16)));
    if found != job {
        return Err(SlotsError::Foreign(found));
    }
    Ok(match u32::from_le_bytes(field(bytes, 12)) {
        0 => Slot::Void,
        1 => Slot::Set(Record {
            number: u64::from_le_bytes(field(bytes, 32)),
            attempt: u64::from_le_bytes(field(bytes, 40)),
            digest: Digest(u128::from_le_bytes(field(bytes, 48))),
        }),
        _ => Slot::Invalid,
    })
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    xxh3_64(&bytes[..CHECKSUM_AT]).to_le_bytes()
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the caller checked that the slot is whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);
    const RECORD: Record = Record { number: 5, attempt: 3, digest: Digest(99) };

    #[test]
    fn every_flipped_bit_makes_a_slot_invalid() {
        let whole = encode(b"TESTTEST", JOB, Some(RECORD));
        assert_eq!(decode(&whole, b"TESTTEST", JOB).unwrap(), Slot::Set(RECORD));
        for at in 0..SLOT_BYTES {
            let mut broken = whole;
            broken[at] ^= 1 << (at % 8);
            assert_eq!(decode(&broken, b"TESTTEST", JOB).unwrap(), Slot::Invalid, "byte {at}");
        }
    }

    #[test]
    fn another_jobs_slot_is_told_from_a_damaged_one() {
        let whole = encode(b"TESTTEST", JobId(8), Some(RECORD));
        assert!(matches!(decode(&whole, b"TESTTEST", JOB), Err(SlotsError::Foreign(JobId(8)))));
        assert_eq!(decode(&whole, b"OTHERONE", JobId(8)).unwrap(), Slot::Invalid);
    }
}
