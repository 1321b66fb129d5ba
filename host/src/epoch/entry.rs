//! What an epoch holds: the data that changes hands at its seal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Attempt, Epoch};
use crate::key::Partition;
use crate::record::Batch;

/// A table of the job: `operator/table`.
pub type TableName = Arc<str>;

/// Where a split stands: what its source needs to go on behind the last admitted record. Only the source reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position(pub serde_json::Value);

/// A key with its value, or with a tombstone in its place: immutable, in one allocation, and shared by reference.
///
/// A sealed set keeps the cells that later writes replace in the tables, so sealing copies no bytes.
#[derive(Clone)]
pub struct Cell {
    /// The key and behind it the value.
    bytes: Arc<[u8]>,
    key_length: u32,
    /// The schema version, and in the highest bit whether there is a value.
    version: u32,
}

/// Set in [`Cell::version`] where there is a value.
const PRESENT: u32 = 1 << 31;

/// Equal cells have the same key and value; the schema version tells how to read it.
impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        self.is_present() == other.is_present() && self.key_length == other.key_length && self.bytes == other.bytes
    }
}

impl Eq for Cell {}

impl Cell {
    /// A cell; without a value it is a tombstone.
    ///
    /// # Panics
    /// When the key is 4 GiB long or longer; keys come in columns, which are shorter.
    pub fn new(key: &[u8], value: Option<&[u8]>) -> Self {
        Self::new_in(&mut Vec::with_capacity(key.len() + value.map_or(0, <[u8]>::len)), key, value)
    }

    /// [`Cell::new`] with a buffer to join key and value in, for making many cells one after another.
    ///
    /// # Panics
    /// As [`Cell::new`].
    pub fn new_in(buffer: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) -> Self {
        let key_length = u32::try_from(key.len()).expect("a key is an item of a column, which holds less than 4 GiB");
        buffer.clear();
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(value.unwrap_or_default());
        Self { bytes: Arc::from(buffer.as_slice()), key_length, version: if value.is_some() { PRESENT } else { 0 } }
    }

    /// A cell from the bytes of its key and, behind them, of its value, as they lie in a log entry; `None` where the key would be
    /// longer than the bytes, or a tombstone had a value.
    pub fn from_joined(joined: &[u8], key_length: u32, present: bool) -> Option<Self> {
        let value_length = joined.len().checked_sub(key_length as usize)?;
        let version = if present { PRESENT } else { 0 };
        (present || value_length == 0).then(|| Self { bytes: Arc::from(joined), key_length, version })
    }

    /// The same cell as one that was written with this schema version, whose highest bit is of no account.
    #[must_use]
    pub fn of_schema_version(self, schema_version: u32) -> Self {
        Self { version: self.version & PRESENT | schema_version & !PRESENT, ..self }
    }

    /// The schema version that it was written with.
    pub fn schema_version(&self) -> u32 {
        self.version & !PRESENT
    }

    /// Asks the processor to fetch the key ahead of its use. Looking up many keys is mostly waiting for memory: who asks for all before
    /// reading any waits once.
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees and never faults; every x86-64 processor has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.bytes.as_ptr().cast());
        }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_length as usize]
    }

    /// The value, or `None` for a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.is_present().then(|| &self.bytes[self.key_length as usize..])
    }

    /// Key and value, one behind the other.
    pub fn joined(&self) -> &[u8] {
        &self.bytes
    }

    /// The length of the key in bytes; unlike [`Cell::key`] it reads nothing but the cell itself.
    pub fn key_length(&self) -> u32 {
        self.key_length
    }

    /// Whether there is a value.
    pub fn is_present(&self) -> bool {
        self.version & PRESENT != 0
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cell({} = ", self.key().escape_ascii())?;
        match self.value() {
            Some(value) => write!(formatter, "{})", value.escape_ascii()),
            None => formatter.write_str("tombstone)"),
        }
    }
}

/// The changed keys of one partition, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionDelta {
    /// The partition that owns the keys.
    pub partition: Partition,
    /// The keys with their values at the seal, in no particular order.
    pub cells: Vec<Cell>,
}

/// What one task changed in one table during an epoch: each key once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDelta {
    /// The table.
    pub table: TableName,
    /// The version of the encoding of all values in it; its highest bit tells that they are sequences of versions by event time.
    pub schema_version: u32,
    /// The changes, by partition.
    pub partitions: Vec<PartitionDelta>,
}

impl TableDelta {
    /// The number of changed keys.
    pub fn changes(&self) -> usize {
        self.partitions.iter().map(|partition| partition.cells.len()).sum()
    }
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
    /// Whether a crash neither loses nor doubles any of the sink's output, also where this epoch has none: such a sink may not be renamed.
    #[serde(default)]
    pub exactly_once: bool,
}

impl SinkSeal {
    /// The files that get their final names only when the epoch is committed.
    pub fn unpublished(&self) -> impl Iterator<Item = &PreparedFile> {
        self.prepared.iter().filter(|file| file.temporary != file.published)
    }
}

/// Records that came by a loop and were not begun in the epoch, or that wait for the progress of an operator: the first that theirs works on in the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    /// The operator whose tasks they wait for.
    pub operator: Arc<str>,
    /// The records, in the order of one task's mailbox.
    pub batch: Arc<Batch>,
}

/// Which version of its component an operator runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningComponent {
    /// SHA-256 of the component that runs, in hexadecimal digits.
    pub sha256: String,
    /// SHA-256 of the file that the manifest named when that was decided. A start that finds the same file runs `sha256`; one that finds another runs that file.
    pub file_sha256: String,
    /// The function's name, for people.
    pub name: String,
    /// The function's own version, for people.
    pub version: String,
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
    /// What is carried over into the next epoch, task by task, each task's in its order.
    pub carried: Vec<Carried>,
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
    /// Which component each operator runs in the next epoch. Empty in the entries of versions of Wasmill that did not record it.
    pub components: BTreeMap<String, RunningComponent>,
}

impl Entry {
    /// Whether files of it are published only after its commit, which a later entry has to note.
    pub fn has_unpublished(&self) -> bool {
        self.sinks.values().any(|seal| seal.unpublished().next().is_some())
    }
}
