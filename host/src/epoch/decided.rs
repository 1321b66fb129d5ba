//! The commit record of a job on several hosts, in the leader's state directory: which epoch counts, and by which entry of each host.
//!
//! It is the one place where an epoch is decided. The record of epoch `n` is written only once the entries of all hosts are durable, and no host commits before it is synced; it is
//! overwritten by that of `n + 2` only once every host has committed `n + 1`.
//!
//! # Format, version 1
//!
//! The file `decided` is two slots of 16,384 bytes, so that a torn write of one leaves the other alone. The record of epoch `n` is written to slot `n % 2`, and synced. All integers are
//! little-endian. A slot is
//!
//! | offset | length | content |
//! |---|---|---|
//! | 0 | 8 | magic `WASMILLD` |
//! | 8 | 4 | format version |
//! | 12 | 4 | 1 for a record, 0 for a slot that never held one |
//! | 16 | 16 | the id of the leader's state directory |
//! | 32 | 8 | epoch; 0 for the record before the first |
//! | 40 | 8 | attempt that sealed it |
//! | 48 | 2 | number of hosts, at most 128 |
//! | 50 | … | for each host: the length of its name (1, at most 100), the name (UTF-8), the digest of its entry (16; 0 before the first epoch) |
//! | … | … | zeros |
//! | 16,376 | 8 | XXH3-64 of the bytes before |
//!
//! # After a crash
//!
//! The file is synced before it is believed: a record that was written but not synced may be the last one's write, and nobody may act on it before it is durable. Of two good slots the newer
//! one counts. A torn slot beside a good one counts for nothing: if it was being written, nobody has acted on it; if it was damaged later, hosts may have, and the leader finds out when they
//! tell what they have committed, which is then ahead of the record.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::log::LogError;
use super::standing::Decision;
use super::{Attempt, Digest, Epoch, JobId};
use crate::disk::Disk;

/// The newest version of the format.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// The most hosts that a job may have.
pub const HOSTS_MAX: usize = 128;
/// The longest name of a host, in bytes.
pub const HOST_NAME_BYTES_MAX: usize = 100;

const FILE: &str = "decided";
const MAGIC: &[u8; 8] = b"WASMILLD";
const SLOT_BYTES: usize = 16_384;
const CHECKSUM_AT: usize = SLOT_BYTES - 8;
const HOSTS_AT: usize = 50;

/// The commit record: which epoch counts, and by which entry of each host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CommitRecord {
    /// The last decided epoch; 0 before the first.
    pub epoch: Epoch,
    /// The attempt that sealed it.
    pub attempt: Attempt,
    /// The digest of each host's entry, in the order of hosts; empty before the first.
    pub digests: Vec<Digest>,
}

impl CommitRecord {
    /// What it says of the host at `index` in the order of hosts.
    pub fn of(&self, index: usize) -> Decision {
        Decision { epoch: self.epoch, digest: self.digests.get(index).copied().unwrap_or_default() }
    }
}

/// The file, for the one process that leads.
#[derive(Debug)]
pub struct Decided {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    job: JobId,
    hosts: Vec<String>,
    /// The last epoch written.
    epoch: Epoch,
    /// Whether a write has failed, so that what is on disk is uncertain.
    failed: bool,
}

/// A slot as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Slot {
    Void,
    Set(CommitRecord, Vec<String>),
    Invalid,
}

impl Decided {
    /// Opens the file in the leader's `state_directory`, which has committed `committed`, and returns the last record, now durable for certain. It is made where nothing was
    /// ever committed. `hosts` are the names of all hosts, in their order.
    ///
    /// # Errors
    /// When it is damaged, foreign, newer or missing, names other hosts, or the system refuses.
    pub fn open(
        disk: Arc<dyn Disk>,
        state_directory: &Path,
        job: JobId,
        hosts: Vec<String>,
        committed: Epoch,
    ) -> Result<(Self, CommitRecord), LogError> {
        let mut decided = Self { disk, path: state_directory.join(FILE), job, hosts, epoch: 0, failed: false };
        decided.check_hosts()?;
        let length = decided.disk.length(&decided.path).map_err(|error| decided.failed_to("look for", error))?;
        if committed == 0 && length.is_none() {
            let first = encode(job, Some(&CommitRecord::default()), &decided.hosts);
            decided.create(&[first, encode(job, None, &[])].concat())?;
        }
        let (record, hosts) = decided.read()?;
        if hosts != decided.hosts {
            let [stored, declared] = [&hosts, &decided.hosts].map(|hosts| format!("`{}`", hosts.join("`, `")));
            return Err(LogError::Hosts { path: decided.path, stored, declared });
        }
        decided.epoch = record.epoch;
        Ok((decided, record))
    }

    /// The last record in a leader's `state_directory`, now durable for certain, with the names of the hosts; `None` where there is no such file.
    ///
    /// # Errors
    /// When it is damaged, foreign or newer, or the system refuses.
    pub fn look(
        disk: Arc<dyn Disk>,
        state_directory: &Path,
        job: JobId,
    ) -> Result<Option<(CommitRecord, Vec<String>)>, LogError> {
        let decided = Self { disk, path: state_directory.join(FILE), job, hosts: Vec::new(), epoch: 0, failed: false };
        match decided.disk.length(&decided.path).map_err(|error| decided.failed_to("look for", error))? {
            Some(_) => decided.read().map(Some),
            None => Ok(None),
        }
    }

    /// Makes the file in a directory that is made to go on behind the epoch before that of `record`.
    ///
    /// # Errors
    /// When the hosts are too many or their names too long, or the system refuses.
    pub fn begin(
        disk: Arc<dyn Disk>,
        state_directory: &Path,
        job: JobId,
        hosts: Vec<String>,
        record: &CommitRecord,
    ) -> Result<(), LogError> {
        let decided = Self { disk, path: state_directory.join(FILE), job, hosts, epoch: record.epoch, failed: false };
        decided.check_hosts()?;
        let before = CommitRecord { epoch: record.epoch - 1, attempt: record.attempt, digests: Vec::new() };
        let mut slots = [&before, record].map(|record| encode(job, Some(record), &decided.hosts));
        if record.epoch.is_multiple_of(2) {
            slots.reverse();
        }
        decided.create(&slots.concat())
    }

    /// Writes the record of the next epoch durably.
    ///
    /// # Errors
    /// When it is not the epoch behind the last one, or the system refuses; the file then takes nothing more, and the next start finds out whether the epoch counts.
    pub fn write(&mut self, record: &CommitRecord) -> Result<(), LogError> {
        if self.failed {
            return Err(LogError::Failed { path: self.path.clone() });
        }
        let expected = self.epoch + 1;
        if record.epoch != expected || record.digests.len() != self.hosts.len() {
            let expected = format!("epoch {expected}, of {} hosts", self.hosts.len());
            return Err(LogError::Order { epoch: record.epoch, expected });
        }
        self.failed = true;
        let offset = (record.epoch % 2) * SLOT_BYTES as u64;
        let slot = encode(self.job, Some(record), &self.hosts);
        self.disk.write_at(&self.path, offset, &slot).map_err(|error| self.failed_to("write", error))?;
        self.disk.sync_file(&self.path).map_err(|error| self.failed_to("sync", error))?;
        (self.failed, self.epoch) = (false, record.epoch);
        Ok(())
    }

    /// Makes the file, durably; it has its name only when it is whole.
    fn create(&self, bytes: &[u8]) -> Result<(), LogError> {
        let temporary = self.path.with_extension("new");
        let directory = self.path.parent().expect("the file lies in the state directory");
        let create = || {
            let mut file = self.disk.create(&temporary)?;
            file.write_all(bytes)?;
            file.flush()?;
            drop(file);
            self.disk.sync_file(&temporary)?;
            self.disk.rename(&temporary, &self.path)?;
            self.disk.sync_directory(directory)
        };
        create().map_err(|error| self.failed_to("create", error))
    }

    /// The record that counts, with the names of the hosts that it was written for.
    fn read(&self) -> Result<(CommitRecord, Vec<String>), LogError> {
        let bytes = match self.disk.read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self
                    .damaged("it is missing (if another host has led the job, move the state by `wasmill rescale`, or put `cluster.leader` back as it was)"));
            }
            bytes => bytes.map_err(|error| self.failed_to("read", error))?,
        };
        if bytes.len() != 2 * SLOT_BYTES {
            return Err(self.damaged("it is not as long as it has to be"));
        }
        self.disk.sync_file(&self.path).map_err(|error| self.failed_to("sync", error))?;
        let (first, second) = bytes.split_at(SLOT_BYTES);
        let in_place = |record: &CommitRecord, index: u64| record.epoch % 2 == index;
        match (self.decode(first)?, self.decode(second)?) {
            (Slot::Set(even, hosts_even), Slot::Set(odd, hosts_odd))
                if in_place(&even, 0) && in_place(&odd, 1) && even.epoch.abs_diff(odd.epoch) == 1 =>
            {
                Ok(if even.epoch > odd.epoch { (even, hosts_even) } else { (odd, hosts_odd) })
            }
            (Slot::Set(first, hosts), Slot::Void) if first.epoch == 0 => Ok((first, hosts)),
            (Slot::Set(even, hosts), Slot::Invalid) if in_place(&even, 0) => Ok((even, hosts)),
            (Slot::Invalid, Slot::Set(odd, hosts)) if in_place(&odd, 1) => Ok((odd, hosts)),
            (Slot::Invalid, Slot::Invalid) => Err(self.damaged("neither of its two records can be read")),
            _ => Err(self.damaged("its two records contradict each other")),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Slot, LogError> {
        if bytes[..8] != MAGIC[..] || bytes[CHECKSUM_AT..] != checksum(bytes) {
            return Ok(Slot::Invalid);
        }
        let found = u32::from_le_bytes(field(bytes, 8));
        if found != FORMAT_VERSION {
            return Err(LogError::Newer { path: self.path.clone(), found, known: FORMAT_VERSION });
        }
        let found = JobId(u128::from_le_bytes(field(bytes, 16)));
        if found != self.job {
            return Err(LogError::Foreign { path: self.path.clone(), found, job: self.job });
        }
        Ok(match u32::from_le_bytes(field(bytes, 12)) {
            0 => Slot::Void,
            1 => decode_record(bytes).map_or(Slot::Invalid, |(record, hosts)| Slot::Set(record, hosts)),
            _ => Slot::Invalid,
        })
    }

    fn check_hosts(&self) -> Result<(), LogError> {
        let is_name = |name: &String| !name.is_empty() && name.len() <= HOST_NAME_BYTES_MAX;
        if (1..=HOSTS_MAX).contains(&self.hosts.len()) && self.hosts.iter().all(is_name) {
            return Ok(());
        }
        Err(LogError::Hosts {
            path: self.path.clone(),
            stored: format!("of a job, 1 to {HOSTS_MAX} with names of 1 to {HOST_NAME_BYTES_MAX} bytes"),
            declared: format!("{} others", self.hosts.len()),
        })
    }

    fn damaged(&self, what: &str) -> LogError {
        LogError::Damaged { path: self.path.clone(), what: what.to_owned() }
    }

    fn failed_to(&self, action: &'static str, error: io::Error) -> LogError {
        LogError::Io { action, path: self.path.clone(), error }
    }
}

/// The bytes of a slot. The hosts are few and their names short: [`Decided::open`] has checked it.
fn encode(job: JobId, record: Option<&CommitRecord>, hosts: &[String]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SLOT_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&u32::from(record.is_some()).to_le_bytes());
    bytes.extend_from_slice(&job.0.to_le_bytes());
    bytes.extend_from_slice(&record.map_or(0, |record| record.epoch).to_le_bytes());
    bytes.extend_from_slice(&record.map_or(0, |record| record.attempt).to_le_bytes());
    let count = u16::try_from(hosts.len()).expect("there are at most 128 hosts");
    bytes.extend_from_slice(&count.to_le_bytes());
    for (index, name) in hosts.iter().enumerate() {
        bytes.push(u8::try_from(name.len()).expect("a host's name has at most 100 bytes"));
        bytes.extend_from_slice(name.as_bytes());
        let digest = record.map_or(Digest::default(), |record| record.of(index).digest);
        bytes.extend_from_slice(&digest.0.to_le_bytes());
    }
    bytes.resize(CHECKSUM_AT, 0);
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The record of a slot whose checksum is right.
fn decode_record(bytes: &[u8]) -> Option<(CommitRecord, Vec<String>)> {
    let count = usize::from(u16::from_le_bytes(field(bytes, 48)));
    let mut rest = bytes.get(HOSTS_AT..CHECKSUM_AT)?;
    let (mut digests, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..count.min(HOSTS_MAX) {
        let (length, behind) = rest.split_first()?;
        let (name, behind) = behind.split_at_checked(usize::from(*length))?;
        let (digest, behind) = behind.split_at_checked(16)?;
        hosts.push(std::str::from_utf8(name).ok()?.to_owned());
        digests.push(Digest(u128::from_le_bytes(digest.try_into().ok()?)));
        rest = behind;
    }
    let epoch = u64::from_le_bytes(field(bytes, 32));
    let digests = if epoch == 0 { Vec::new() } else { digests };
    Some((CommitRecord { epoch, attempt: u64::from_le_bytes(field(bytes, 40)), digests }, hosts))
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    xxh3_64(&bytes[..CHECKSUM_AT]).to_le_bytes()
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slot is longer than its fields")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::crash::{CrashDisk, Unsynced};

    const JOB: JobId = JobId(9);

    fn hosts() -> Vec<String> {
        ["a", "b", "third"].map(str::to_owned).to_vec()
    }

    fn record(epoch: Epoch) -> CommitRecord {
        let digests = (0..3).map(|host| Digest(u128::from(epoch) << 8 | host)).collect();
        CommitRecord { epoch, attempt: epoch / 3 + 1, digests }
    }

    fn open(disk: &CrashDisk, committed: Epoch) -> Result<(Decided, CommitRecord), LogError> {
        Decided::open(Arc::new(disk.clone()), Path::new("/job"), JOB, hosts(), committed)
    }

    fn expected(epoch: Epoch) -> CommitRecord {
        if epoch == 0 { CommitRecord::default() } else { record(epoch) }
    }

    fn new_disk() -> CrashDisk {
        let disk = CrashDisk::new();
        disk.create_directory(Path::new("/job")).unwrap();
        disk
    }

    /// Writes records until the disk stops; returns the last one whose write returned.
    fn run(disk: &CrashDisk, epochs: Epoch) -> Option<Epoch> {
        let (mut decided, found) = open(disk, 0).ok()?;
        let mut last = found.epoch;
        while last < epochs && decided.write(&record(last + 1)).is_ok() {
            last += 1;
        }
        Some(last)
    }

    #[test]
    fn a_crash_at_any_step_leaves_the_last_record_or_the_one_being_written() {
        let whole = new_disk();
        assert_eq!(run(&whole, 5), Some(5));
        assert!(whole.steps() >= 14, "{}", whole.steps());
        for step in 0..whole.steps() {
            for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn(step), Unsynced::Torn(!step)] {
                let disk = new_disk();
                disk.stop_after(step);
                let known = run(&disk, 5);
                let context = format!("step {step}, {unsynced:?}");
                let after = disk.crash(unsynced);
                let (mut decided, found) = open(&after, 0).unwrap_or_else(|error| panic!("{context}: {error}"));
                let allowed = known.unwrap_or(0)..=known.map_or(0, |known| known + 1);
                assert!(allowed.contains(&found.epoch), "{context}: {found:?}, but {known:?}");
                assert_eq!(found, expected(found.epoch), "{context}");
                // What was read is durable, and life goes on behind it.
                let (_, again) = open(&after.crash(Unsynced::Lost), 0).unwrap();
                assert_eq!(again, found, "{context}");
                decided.write(&record(found.epoch + 1)).unwrap();
                assert_eq!(open(&after, 0).unwrap().1, record(found.epoch + 1), "{context}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_gives_the_last_record_or_the_one_before_or_an_error() {
        let whole = new_disk();
        run(&whole, 4);
        for at in (0..200).chain((200..2 * SLOT_BYTES).step_by(97)).chain(SLOT_BYTES..SLOT_BYTES + 200) {
            let disk = whole.crash(Unsynced::Kept);
            disk.damage(Path::new("/job/decided"), |bytes| bytes[at] ^= 1 << (at % 8));
            let found = open(&disk, 3).unwrap().1;
            // Slot 0 holds epoch 4, slot 1 epoch 3.
            assert_eq!(found, if at < SLOT_BYTES { record(3) } else { record(4) }, "byte {at}");
        }
    }

    #[test]
    fn what_no_crash_leaves_behind_is_an_error_that_names_the_file() {
        let check = |committed, spoil: &dyn Fn(&CrashDisk), what: &str| {
            let disk = new_disk();
            run(&disk, 4);
            spoil(&disk);
            let error = open(&disk, committed).unwrap_err().to_string();
            assert!(error.contains("/job/decided") && error.contains(what), "{error}");
        };
        let path = Path::new("/job/decided");
        check(3, &|disk| disk.remove(path).unwrap(), "missing");
        check(0, &|disk| disk.damage(path, |bytes| bytes.truncate(100)), "not as long");
        let both = |bytes: &mut Vec<u8>| (bytes[20], bytes[SLOT_BYTES + 20]) = (1, 1);
        check(0, &|disk| disk.damage(path, both), "neither");
        check(0, &|disk| disk.damage(path, |bytes| bytes.rotate_left(SLOT_BYTES)), "contradict");
    }

    #[test]
    fn another_list_of_hosts_or_another_directory_is_told_from_damage() {
        let disk = new_disk();
        run(&disk, 2);
        let open = |job, hosts| Decided::open(Arc::new(disk.clone()), Path::new("/job"), job, hosts, 2).unwrap_err();
        let mut others = hosts();
        others.swap(0, 1);
        let error = open(JOB, others).to_string();
        assert!(error.contains("`a`, `b`, `third`") && error.contains("`b`, `a`, `third`"), "{error}");
        assert!(matches!(open(JobId(10), hosts()), LogError::Foreign { found: JOB, .. }));
        assert!(matches!(open(JOB, Vec::new()), LogError::Hosts { .. }));
        assert!(matches!(open(JOB, vec!["x".repeat(101)]), LogError::Hosts { .. }));
    }

    #[test]
    fn records_come_one_by_one_and_none_after_a_failure() {
        let disk = new_disk();
        let (mut decided, _) = open(&disk, 0).unwrap();
        assert!(matches!(decided.write(&record(2)), Err(LogError::Order { .. })));
        assert!(matches!(
            decided.write(&CommitRecord { digests: Vec::new(), ..record(1) }),
            Err(LogError::Order { .. })
        ));
        disk.stop_after(0);
        assert!(matches!(decided.write(&record(1)), Err(LogError::Io { .. })));
        assert!(matches!(decided.write(&record(1)), Err(LogError::Failed { .. })));
    }
}
