//! The ends of a simulated job: sources that read from memory, and a sink that keeps what survives a crash apart from what does not.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::connector::{BadRecord, ConnectorError, ReadOutcome, Sink, SinkWriter, Source, SplitReader};
use crate::dice::Dice;
use crate::epoch::entry::{Position, PreparedFile, SinkSeal};
use crate::epoch::{Attempt, Epoch, JobId};
use crate::record::Batch;

/// A key and a value.
pub(super) type Record = (Vec<u8>, Vec<u8>);

/// The event time of a record: a value that begins with `@` and a number tells it, others are of time 0.
pub(super) fn time_of(value: &[u8]) -> i64 {
    match value.strip_prefix(b"@") {
        Some(_) => super::parsed(&super::words(value)[0][1..]),
        None => 0,
    }
}

/// The most records of one read.
const READ_RECORDS_MAX: usize = 6;

/// A source of splits in memory. How many records a read brings is left to chance.
pub(super) struct MemorySource {
    pub(super) splits: Arc<Vec<Vec<Record>>>,
    pub(super) dice: Mutex<Dice>,
}

struct MemoryReader {
    splits: Arc<Vec<Vec<Record>>>,
    split: usize,
    next: usize,
    dice: Dice,
}

impl Source for MemorySource {
    fn splits(&self) -> Result<Vec<String>, ConnectorError> {
        Ok((0..self.splits.len()).map(|split| split.to_string()).collect())
    }

    fn open(&self, split: &str, from: Option<&Position>) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let next = from.map_or(0, |position| position.0.as_u64().expect("written by `position`") as usize);
        let split = split.parse().expect("one of the names above");
        Ok(Box::new(MemoryReader { splits: Arc::clone(&self.splits), split, next, dice: self.dice.lock().split() }))
    }
}

impl SplitReader for MemoryReader {
    fn read(
        &mut self,
        _: usize,
        _: usize,
        batch: &mut Batch,
        _: &mut Vec<BadRecord>,
    ) -> Result<ReadOutcome, ConnectorError> {
        let records = &self.splits[self.split];
        let end = records.len().min(self.next + 1 + self.dice.below(READ_RECORDS_MAX));
        for (key, value) in &records[self.next.min(end)..end] {
            batch.push(key, value, time_of(value));
        }
        self.next = end;
        Ok(if end == records.len() { ReadOutcome::End } else { ReadOutcome::More })
    }

    fn position(&self) -> Position {
        Position(self.next.into())
    }
}

/// What a sink has on disk.
#[derive(Debug, Default)]
pub(super) struct Output {
    prepared: BTreeMap<String, Vec<Record>>,
    published: BTreeMap<String, Vec<Record>>,
}

impl Output {
    /// What readers see.
    pub(super) fn published(&self) -> Vec<Record> {
        self.published.values().flatten().cloned().collect()
    }
}

/// A sink with a file an epoch.
pub(super) struct MemorySink {
    pub(super) attempt: Attempt,
    pub(super) disk: Arc<Mutex<Output>>,
    /// Files that were written and not synced.
    written: Arc<Mutex<BTreeMap<String, Vec<Record>>>>,
}

impl MemorySink {
    pub(super) fn new(attempt: Attempt, disk: Arc<Mutex<Output>>) -> Self {
        Self { attempt, disk, written: Arc::default() }
    }
}

struct MemoryWriter {
    attempt: Attempt,
    records: Vec<Record>,
    written: Arc<Mutex<BTreeMap<String, Vec<Record>>>>,
}

impl Sink for MemorySink {
    fn recover(&self, _: JobId, unpublished: &[(Epoch, SinkSeal)], _: Option<&SinkSeal>) -> Result<(), ConnectorError> {
        for (_, seal) in unpublished {
            self.publish(seal)?;
        }
        self.disk.lock().prepared.clear();
        Ok(())
    }

    fn writer(&self, _: Option<&SinkSeal>) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let (attempt, written) = (self.attempt, Arc::clone(&self.written));
        Ok(Box::new(MemoryWriter { attempt, records: Vec::new(), written }))
    }

    fn sync(&self, seal: &SinkSeal) -> Result<(), ConnectorError> {
        for file in &seal.prepared {
            let records = self.written.lock().remove(&file.temporary).expect("it was written before its seal");
            self.disk.lock().prepared.insert(file.temporary.clone(), records);
        }
        Ok(())
    }

    fn publish(&self, seal: &SinkSeal) -> Result<(), ConnectorError> {
        let mut disk = self.disk.lock();
        for file in &seal.prepared {
            match disk.prepared.remove(&file.temporary) {
                Some(records) => assert!(disk.published.insert(file.published.clone(), records).is_none()),
                None => assert!(disk.published.contains_key(&file.published), "{} is lost", file.published),
            }
        }
        Ok(())
    }

    fn is_exactly_once(&self) -> bool {
        true
    }
}

impl SinkWriter for MemoryWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), ConnectorError> {
        let records = (0..batch.len()).map(|index| (batch.keys.get(index).to_vec(), batch.values.get(index).to_vec()));
        self.records.extend(records);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn seal(&mut self, epoch: Epoch, _: bool) -> Result<SinkSeal, ConnectorError> {
        if self.records.is_empty() {
            return Ok(SinkSeal::default());
        }
        let (temporary, published) = (format!("{epoch:08}-{}", self.attempt), format!("{epoch:08}"));
        let length = self.records.len() as u64;
        self.written.lock().insert(temporary.clone(), std::mem::take(&mut self.records));
        Ok(SinkSeal { prepared: vec![PreparedFile { temporary, published, length, digest: 0 }], ..SinkSeal::default() })
    }
}
