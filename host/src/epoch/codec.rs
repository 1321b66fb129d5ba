//! How an epoch's entry lies in its file. It turns entries into bytes and back, and does no I/O of its own.
//!
//! # Format, version 1
//!
//! All integers are little-endian. A file holds one entry:
//!
//! | offset | length | content |
//! |---|---|---|
//! | 0 | 8 | magic `WASMILLE` |
//! | 8 | 4 | format version |
//! | 12 | 4 | number of sections |
//! | 16 | 8 | length of the whole file |
//! | 24 | 16 | the job's id |
//! | 40 | 8 | epoch |
//! | 48 | 8 | attempt |
//! | 56 | 16 | digest of the entry of the epoch before, 0 for the first |
//! | 72 | … | sections |
//! | end − 16 | 16 | the entry's digest: XXH3-128 of all bytes before |
//!
//! Magic, version and digest keep their place and meaning in every later version, so that an entry of a newer format is told from a
//! damaged one. The digest of the entry before makes the entries a chain: a file that is exchanged for another valid one is noticed.
//!
//! A section is a tag (4 bytes), flags (4 bytes; bit 0: whoever does not know the tag must refuse the entry, else skip the section), the
//! length of its content (8 bytes), and the content:
//!
//! - Tag 1, *facts*, exactly once: a JSON object with `positions`, `sinks`, `published`, `finished`, `totals`, and, unless it is empty, `components`.
//! - Tag 2, *changes* of one task in one table, any number of times: length of the table's name (2 bytes), the name (UTF-8), schema version (4
//!   bytes; its highest bit tells that values are sequences of versions, see `state::versions`), number of partitions (4 bytes); then for each partition its number (2 bytes) and its number of changes (4 bytes); then three
//!   columns over all changes, in that order: lengths of keys (4 bytes each); lengths of values (4 bytes each, 2³² − 1 for a tombstone);
//!   the bytes, each key with its value behind it.
//! - Tag 4, *shared*, at most once, empty: the entry is one host's part of an epoch of several hosts, so that being whole is not enough for it to count.

mod carried;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::entry::{Cell, Entry, PartitionDelta, Position, RunningComponent, SinkSeal, TableDelta, TableName};
use super::{Attempt, Digest, Epoch, JobId};
use crate::key::Partition;

/// The newest version of the format.
pub(super) const FORMAT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"WASMILLE";
const HEADER_BYTES: usize = 72;
const DIGEST_BYTES: usize = 16;
const SECTION_HEADER_BYTES: u64 = 16;
const FACTS: u32 = 1;
const CHANGES: u32 = 2;
const CARRIED: u32 = 3;
const SHARED: u32 = 4;
const REQUIRED: u32 = 1;
const TOMBSTONE: u32 = u32::MAX;
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// An entry as it was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decoded {
    /// The job that it belongs to.
    pub job: JobId,
    /// The digest of the entry of the epoch before.
    pub previous: Digest,
    /// Its own digest.
    pub digest: Digest,
    /// Whether it is one host's part of an epoch of several hosts.
    pub shared: bool,
    /// Its content.
    pub entry: Entry,
}

/// Why bytes are not an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DecodeError {
    /// They are not what was once written: torn or damaged.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
    /// They are whole, but of a newer format.
    #[error("it has format version {0}")]
    Newer(u32),
}

/// The part of an entry that is not bulk.
#[derive(Serialize, Deserialize)]
struct Facts<'a> {
    positions: Cow<'a, BTreeMap<String, BTreeMap<String, Position>>>,
    sinks: Cow<'a, BTreeMap<String, SinkSeal>>,
    published: Epoch,
    finished: bool,
    totals: Cow<'a, BTreeMap<String, u64>>,
    #[serde(default, skip_serializing_if = "are_absent")]
    components: Cow<'a, BTreeMap<String, RunningComponent>>,
}

fn are_absent(components: &BTreeMap<String, RunningComponent>) -> bool {
    components.is_empty()
}

/// Writes an entry; returns its digest and length. `shared` says that it is one host's part of an epoch of several hosts.
pub(super) fn encode(
    out: &mut dyn Write,
    job: JobId,
    previous: Digest,
    entry: &Entry,
    shared: bool,
) -> io::Result<(Digest, u64)> {
    let facts = serde_json::to_vec(&Facts {
        positions: Cow::Borrowed(&entry.positions),
        sinks: Cow::Borrowed(&entry.sinks),
        published: entry.published,
        finished: entry.finished,
        totals: Cow::Borrowed(&entry.totals),
        components: Cow::Borrowed(&entry.components),
    })?;
    let sections = 1 + (entry.deltas.len() + entry.carried.len() + usize::from(shared)) as u64;
    let length = HEADER_BYTES as u64
        + sections * SECTION_HEADER_BYTES
        + facts.len() as u64
        + entry.deltas.iter().map(changes_length).sum::<u64>()
        + entry.carried.iter().map(carried::length).sum::<u64>()
        + DIGEST_BYTES as u64;
    let section_count = u32::try_from(sections).map_err(|_| too_large("sections"))?;

    let mut writer = DigestWriter::new(out);
    writer.put(MAGIC)?;
    writer.put(&FORMAT_VERSION.to_le_bytes())?;
    writer.put(&section_count.to_le_bytes())?;
    writer.put(&length.to_le_bytes())?;
    writer.put(&job.0.to_le_bytes())?;
    writer.put(&entry.epoch.to_le_bytes())?;
    writer.put(&entry.attempt.to_le_bytes())?;
    writer.put(&previous.0.to_le_bytes())?;
    writer.section(FACTS, facts.len() as u64)?;
    writer.put(&facts)?;
    for delta in &entry.deltas {
        writer.section(CHANGES, changes_length(delta))?;
        encode_changes(&mut writer, delta)?;
    }
    for carried in &entry.carried {
        writer.section(CARRIED, carried::length(carried))?;
        carried::encode(&mut writer, carried)?;
    }
    if shared {
        writer.section(SHARED, 0)?;
    }
    Ok((writer.finish()?, length))
}

fn changes_length(delta: &TableDelta) -> u64 {
    let cells = delta.partitions.iter().flat_map(|partition| &partition.cells);
    2 + delta.table.len() as u64
        + 8
        + 6 * delta.partitions.len() as u64
        + cells.map(|cell| 8 + cell.joined().len() as u64).sum::<u64>()
}

fn encode_changes(writer: &mut DigestWriter<'_>, delta: &TableDelta) -> io::Result<()> {
    let name_length = u16::try_from(delta.table.len()).map_err(|_| too_large("bytes in a table's name"))?;
    writer.put(&name_length.to_le_bytes())?;
    writer.put(delta.table.as_bytes())?;
    writer.put(&delta.schema_version.to_le_bytes())?;
    let partitions = u32::try_from(delta.partitions.len()).map_err(|_| too_large("partitions"))?;
    writer.put(&partitions.to_le_bytes())?;
    for partition in &delta.partitions {
        let changes = u32::try_from(partition.cells.len()).map_err(|_| too_large("changes in a partition"))?;
        writer.put(&partition.partition.0.to_le_bytes())?;
        writer.put(&changes.to_le_bytes())?;
    }
    let cells = || delta.partitions.iter().flat_map(|partition| &partition.cells);
    for cell in cells() {
        writer.put(&cell.key_length().to_le_bytes())?;
    }
    for cell in cells() {
        writer.put(&value_length(cell)?.to_le_bytes())?;
    }
    for cell in cells() {
        writer.put(cell.joined())?;
    }
    Ok(())
}

fn value_length(cell: &Cell) -> io::Result<u32> {
    if !cell.is_present() {
        return Ok(TOMBSTONE);
    }
    let length = cell.joined().len() - cell.key_length() as usize;
    u32::try_from(length).ok().filter(|&length| length != TOMBSTONE).ok_or_else(|| too_large("bytes in a value"))
}

fn too_large(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the entry has too many {what} for its format"))
}

/// Buffers what is written and keeps its digest.
struct DigestWriter<'a> {
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
    hasher: Xxh3,
}

impl<'a> DigestWriter<'a> {
    fn new(out: &'a mut dyn Write) -> Self {
        Self { out, buffer: Vec::with_capacity(WRITE_BUFFER_BYTES), hasher: Xxh3::new() }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > WRITE_BUFFER_BYTES {
            self.drain()?;
        }
        if bytes.len() > WRITE_BUFFER_BYTES {
            self.hasher.update(bytes);
            return self.out.write_all(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn section(&mut self, tag: u32, length: u64) -> io::Result<()> {
        self.put(&tag.to_le_bytes())?;
        self.put(&REQUIRED.to_le_bytes())?;
        self.put(&length.to_le_bytes())
    }

    fn drain(&mut self) -> io::Result<()> {
        self.hasher.update(&self.buffer);
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<Digest> {
        self.drain()?;
        let digest = self.hasher.digest128();
        self.out.write_all(&digest.to_le_bytes())?;
        self.out.flush()?;
        Ok(Digest(digest))
    }
}

/// Reads an entry. Any bytes give an entry or an error, in memory proportional to their number.
pub(super) fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    if bytes.len() < HEADER_BYTES + DIGEST_BYTES {
        return Err(invalid("it is too short to be an entry"));
    }
    let (content, stated) = bytes.split_at(bytes.len() - DIGEST_BYTES);
    let digest = Digest(u128::from_le_bytes(stated.try_into().expect("the split leaves 16 bytes")));
    let mut header = Cursor(content);
    if header.take(8)? != MAGIC {
        return Err(invalid("it does not begin as an entry does"));
    }
    if xxh3_128(content) != digest.0 {
        return Err(invalid("its content does not match its checksum"));
    }
    let version = header.u32()?;
    if version != FORMAT_VERSION {
        return Err(DecodeError::Newer(version));
    }
    let sections = header.u32()?;
    if header.u64()? != bytes.len() as u64 {
        return Err(invalid("its length is not the one it states"));
    }
    let job = JobId(header.u128()?);
    let epoch = header.u64()?;
    let attempt = header.u64()?;
    let previous = Digest(header.u128()?);
    let (entry, shared) = decode_sections(header, sections, epoch, attempt)?;
    Ok(Decoded { job, previous, digest, shared, entry })
}

/// The entry, and whether it is shared.
fn decode_sections(
    mut rest: Cursor<'_>,
    sections: u32,
    epoch: Epoch,
    attempt: Attempt,
) -> Result<(Entry, bool), DecodeError> {
    let mut facts: Option<Facts<'_>> = None;
    let mut shared = false;
    let mut entry = Entry { epoch, attempt, ..Entry::default() };
    for _ in 0..sections {
        let tag = rest.u32()?;
        let flags = rest.u32()?;
        let length = usize::try_from(rest.u64()?).map_err(|_| invalid("a section is longer than the entry"))?;
        let content = rest.take(length)?;
        match tag {
            FACTS if facts.is_some() => return Err(invalid("it has two sections of facts")),
            FACTS => facts = Some(serde_json::from_slice(content).map_err(|error| invalid_facts(&error))?),
            CARRIED => entry.carried.push(carried::decode(Cursor(content))?),
            CHANGES => entry.deltas.push(decode_changes(Cursor(content))?),
            SHARED if shared || !content.is_empty() => {
                return Err(invalid("its section `shared` is not as it has to be"));
            }
            SHARED => shared = true,
            _ if flags & REQUIRED == 0 => {}
            _ => return Err(invalid("it has a section that this program does not know")),
        }
    }
    if !rest.0.is_empty() {
        return Err(invalid("there are bytes behind its last section"));
    }
    let facts = facts.ok_or_else(|| invalid("it has no section of facts"))?;
    entry.positions = facts.positions.into_owned();
    entry.sinks = facts.sinks.into_owned();
    entry.published = facts.published;
    entry.finished = facts.finished;
    entry.totals = facts.totals.into_owned();
    entry.components = facts.components.into_owned();
    Ok((entry, shared))
}

fn decode_changes(mut rest: Cursor<'_>) -> Result<TableDelta, DecodeError> {
    let name_length = rest.u16()?;
    let name = std::str::from_utf8(rest.take(usize::from(name_length))?)
        .map_err(|_| invalid("the name of a table is not UTF-8"))?;
    let table = TableName::from(name);
    let schema_version = rest.u32()?;
    let partition_count = rest.u32()? as usize;
    let mut index = Cursor(rest.items(partition_count, 6)?);
    let mut counts = Vec::with_capacity(partition_count);
    let mut total = 0usize;
    for _ in 0..partition_count {
        let partition = Partition(index.u16()?);
        let count = index.u32()? as usize;
        total = total.checked_add(count).ok_or_else(|| invalid("it has more changes than bytes"))?;
        counts.push((partition, count));
    }
    let mut key_lengths = Cursor(rest.items(total, 4)?);
    let mut value_lengths = Cursor(rest.items(total, 4)?);
    let mut partitions = Vec::with_capacity(partition_count);
    for (partition, count) in counts {
        let mut cells = Vec::with_capacity(count);
        for _ in 0..count {
            let cell = decode_cell(&mut rest, key_lengths.u32()?, value_lengths.u32()?)?;
            cells.push(cell.of_schema_version(schema_version));
        }
        partitions.push(PartitionDelta { partition, cells });
    }
    if !rest.0.is_empty() {
        return Err(invalid("there are bytes behind the last change of a table"));
    }
    Ok(TableDelta { table, schema_version, partitions })
}

fn decode_cell(rest: &mut Cursor<'_>, key_length: u32, value_length: u32) -> Result<Cell, DecodeError> {
    let present = value_length != TOMBSTONE;
    let length =
        if present { (key_length as usize).checked_add(value_length as usize) } else { Some(key_length as usize) };
    let joined = rest.take(length.ok_or_else(too_short)?)?;
    Cell::from_joined(joined, key_length, present).ok_or_else(|| invalid("a key is longer than its cell"))
}

fn invalid(what: &'static str) -> DecodeError {
    DecodeError::Invalid(Cow::Borrowed(what))
}

fn invalid_facts(error: &serde_json::Error) -> DecodeError {
    DecodeError::Invalid(Cow::Owned(format!("its facts cannot be read: {error}")))
}

fn too_short() -> DecodeError {
    invalid("it ends in the middle of a section")
}

/// Bytes still to be read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(too_short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn items(&mut self, count: usize, size: usize) -> Result<&'a [u8], DecodeError> {
        self.take(count.checked_mul(size).ok_or_else(too_short)?)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("take returns the length asked for"))
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Result<u128, DecodeError> {
        self.array().map(u128::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::entry::Carried;
    use super::*;
    use crate::record::Batch;

    fn encoded(entry: &Entry) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (_, length) = encode(&mut bytes, JobId(3), Digest(4), entry, false).unwrap();
        assert_eq!(length, bytes.len() as u64);
        bytes
    }

    #[test]
    fn a_shared_entry_says_so_and_differs_in_nothing_else() {
        let mut bytes = Vec::new();
        let (_, length) = encode(&mut bytes, JobId(3), Digest(4), &example(), true).unwrap();
        assert_eq!(length, bytes.len() as u64);
        assert_eq!(length, encoded(&example()).len() as u64 + SECTION_HEADER_BYTES);
        let decoded = decode(&bytes).unwrap();
        assert!(decoded.shared && !decode(&encoded(&example())).unwrap().shared);
        assert_eq!(decoded.entry, example());
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 1 << (at % 8);
            assert!(matches!(decode(&broken), Err(DecodeError::Invalid(_))), "byte {at}");
        }
    }

    fn seal_again(bytes: &mut [u8]) {
        let at = bytes.len() - DIGEST_BYTES;
        let digest = xxh3_128(&bytes[..at]);
        bytes[at..].copy_from_slice(&digest.to_le_bytes());
    }

    fn example() -> Entry {
        let cells = vec![Cell::new(b"key", Some(b"value")), Cell::new(b"", Some(b"")), Cell::new(b"gone", None)];
        let partitions = vec![PartitionDelta { partition: Partition(9), cells }];
        Entry {
            epoch: 5,
            attempt: 2,
            deltas: vec![TableDelta { table: "stats/counts".into(), schema_version: 7, partitions }],
            carried: Vec::new(),
            positions: [("bids".into(), [("0".into(), Position(serde_json::json!({ "offset": 17 })))].into())].into(),
            sinks: [("out".into(), SinkSeal::default())].into(),
            published: 4,
            finished: true,
            totals: [("records_in".into(), 12)].into(),
            components: BTreeMap::new(),
        }
    }

    #[test]
    fn which_components_run_is_recorded_and_entries_without_it_are_read() {
        let component = RunningComponent {
            sha256: "ab".into(),
            file_sha256: "cd".into(),
            name: "stats".into(),
            version: "1.2.0".into(),
        };
        let entry = Entry { components: [("stats".into(), component)].into(), ..example() };
        assert_eq!(decode(&encoded(&entry)).unwrap().entry, entry);
        let without = encoded(&example());
        assert!(!without.windows(b"components".len()).any(|bytes| bytes == b"components"));
        assert_eq!(decode(&without).unwrap().entry, example());
    }

    prop_compose! {
        fn deltas()(
            tables in prop::collection::vec(
                ("[a-z]{1,6}", any::<u32>(), prop::collection::vec(
                    (any::<u16>(), prop::collection::vec(
                        (prop::collection::vec(any::<u8>(), 0..9), prop::option::of(prop::collection::vec(any::<u8>(), 0..9))), 0..5)),
                    0..4)),
                0..4)
        ) -> Vec<TableDelta> {
            tables.into_iter().map(|(name, schema_version, partitions)| TableDelta {
                table: name.into(),
                schema_version,
                partitions: partitions.into_iter().map(|(partition, cells)| PartitionDelta {
                    partition: Partition(partition),
                    cells: cells.iter().map(|(key, value)| Cell::new(key, value.as_deref())).collect(),
                }).collect(),
            }).collect()
        }
    }

    proptest! {
        #[test]
        fn an_entry_comes_back_as_it_was(
            deltas in deltas(),
            carried in prop::collection::vec(("[a-z]{1,6}", prop::collection::vec((".{0,5}", ".{0,5}", any::<i64>()), 0..4)), 0..3),
            epoch: u64,
            attempt: u64,
        ) {
            let carried = carried.into_iter().map(|(operator, records)| {
                let mut batch = Batch::default();
                records.iter().for_each(|(key, value, time)| batch.push(key.as_bytes(), value.as_bytes(), *time));
                Carried { operator: operator.into(), batch: Arc::new(batch) }
            }).collect();
            let entry = Entry { epoch, attempt, deltas, carried, ..example() };
            let decoded = decode(&encoded(&entry)).unwrap();
            prop_assert_eq!(decoded.entry, entry);
            prop_assert_eq!((decoded.job, decoded.previous), (JobId(3), Digest(4)));
        }

        #[test]
        fn any_bytes_decode_to_an_entry_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&bytes);
            let mut dressed = encoded(&example());
            let at = HEADER_BYTES.min(dressed.len());
            dressed.truncate(at);
            dressed[12..16].copy_from_slice(&[3, 0, 0, 0]);
            dressed.extend_from_slice(&bytes);
            dressed.extend_from_slice(&[0; DIGEST_BYTES]);
            let length = dressed.len() as u64;
            dressed[16..24].copy_from_slice(&length.to_le_bytes());
            seal_again(&mut dressed);
            let _ = decode(&dressed);
        }

        #[test]
        fn a_change_that_matches_its_checksum_never_panics(at: prop::sample::Index, byte: u8) {
            let mut bytes = encoded(&example());
            let at = at.index(bytes.len() - DIGEST_BYTES);
            bytes[at] = byte;
            seal_again(&mut bytes);
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let whole = encoded(&example());
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1 << (at % 8);
            assert!(matches!(decode(&broken), Err(DecodeError::Invalid(_))), "byte {at}");
            assert!(matches!(decode(&whole[..at]), Err(DecodeError::Invalid(_))), "cut at {at}");
        }
    }

    #[test]
    fn an_unknown_section_is_skipped_unless_it_is_required() {
        let check = |flags: u32| {
            let mut bytes = encoded(&example());
            bytes.truncate(bytes.len() - DIGEST_BYTES);
            for part in [&77u32.to_le_bytes()[..], &flags.to_le_bytes(), &2u64.to_le_bytes(), b"hi", &[0; DIGEST_BYTES]]
            {
                bytes.extend_from_slice(part);
            }
            bytes[12] += 1;
            let length = bytes.len() as u64;
            bytes[16..24].copy_from_slice(&length.to_le_bytes());
            seal_again(&mut bytes);
            decode(&bytes).map(|decoded| decoded.entry)
        };
        assert_eq!(check(0), Ok(example()));
        assert!(matches!(check(REQUIRED), Err(DecodeError::Invalid(_))));
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = encoded(&example());
        bytes[8] = 2;
        assert!(matches!(decode(&bytes), Err(DecodeError::Invalid(_))));
        seal_again(&mut bytes);
        assert_eq!(decode(&bytes), Err(DecodeError::Newer(2)));
    }
}
