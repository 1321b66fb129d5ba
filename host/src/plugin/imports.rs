//! What a guest may call, and the effects of the call under way.
//!
//! Everything a guest hands over is checked here: names, column shapes, record indices, key ownership, limits. A refused import call changes
//! nothing and the guest is told why; only the batch's end makes anything happen.

use std::collections::HashMap;
use std::sync::Arc;

use wasmtime::ResourceLimiter;

use super::answer::Answer;
use super::bindings::wasmill::operator as wit;
use super::bindings::wasmill::operator::types::Error;
use super::declarations::Declarations;
use super::wasi;
use super::{
    BatchLog, Description, Effects, Emitted, Figures, Limits, OtherTables, Readers, Records, StateReadError,
    StateReader, Use, Writes,
};
use crate::record::{Batch, Column};

/// How much of a logged error is kept for the message of a trap that follows it.
const LOGGED_ERROR_CHARS_MAX: usize = 4_096;

/// The data behind an instance's imports.
pub(super) struct Host {
    /// The operator that the instance works for.
    pub(super) operator: String,
    pub(super) description: Arc<Description>,
    pub(super) limits: Limits,
    pub(super) state: Arc<dyn StateReader>,
    pub(super) others: Arc<dyn OtherTables>,
    /// The tables that `others` reaches, in its order.
    pub(super) uses: Arc<[Use]>,
    /// What `describe` has declared so far; none outside of it.
    pub(super) declarations: Option<Declarations>,
    pub(super) memory: Memory,
    pub(super) wasi: wasi::Used,
    pub(super) call: Call,
}

/// The most keys of one lookup.
pub(super) const LOOKUP_KEYS_MAX: usize = 1 << 20;
/// What a call that hands over effects takes beside their bytes, about.
const KEPT_CALL_BYTES: u64 = 256;
/// What each of its items takes beside its bytes, about.
const KEPT_ITEM_BYTES: u64 = 16;
/// A longer reason of a reject, or returned error, is cut.
pub(super) const REASON_BYTES_MAX: usize = 64 << 10;
/// A longer log line is cut.
const LOG_LINE_BYTES_MAX: usize = 16 << 10;
/// A metric with a longer name is left out.
const METRIC_NAME_BYTES_MAX: usize = 256;

/// A key of a table; where records are apart, as the record sees it.
type Place = (usize, Option<u32>, Box<[u8]>);

/// The call under way.
#[derive(Default)]
pub(super) struct Call {
    /// Records in its batch; none outside `process`, where effects are refused.
    pub(super) records: u32,
    /// Whether they are [`Records::Apart`].
    is_apart: bool,
    /// For which of them the next read is, where the guest has said so.
    pub(super) readers: Option<Vec<u32>>,
    pub(super) effects: Effects,
    pub(super) culprit: Option<u32>,
    /// Why the host could not do its part.
    pub(super) host_error: Option<String>,
    /// What it asked for too early.
    pub(super) not_yet: Option<String>,
    /// The beginning of the last line that it logged as an error.
    pub(super) logged_error: Option<Arc<str>>,
    /// What it and earlier calls with the same batch have logged.
    pub(super) log: BatchLog,
    output_bytes: u64,
    /// Whether some of its metrics were left out.
    metrics_left_out: bool,
    /// What the call has written, for its own later reads; filled only once it reads after writing. Where records are apart, it is kept by record.
    written: HashMap<Place, Option<Box<[u8]>>>,
    /// How many of `effects.writes` are in `written`.
    indexed_writes: usize,
}

/// What an instance's memories and tables take.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    /// The size that was refused last.
    pub(super) refused: Option<u64>,
}

impl Memory {
    fn grow(&mut self, by: u64) -> bool {
        let wanted = self.bytes.saturating_add(by);
        if wanted > self.bytes_max {
            self.refused = Some(wanted);
            return false;
        }
        self.bytes = wanted;
        true
    }
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current) as u64))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let elements = desired.saturating_sub(current) as u64;
        Ok(self.grow(elements.saturating_mul(size_of::<usize>() as u64)))
    }
}

impl Host {
    fn table(&self, name: &str) -> Result<usize, Error> {
        let found = self.description.tables.iter().position(|(table, _)| table == name);
        found.ok_or_else(|| Error::UnknownName(format!("`describe` declares no table `{name}`")))
    }

    pub(super) fn port(&self, name: &str) -> Result<usize, Error> {
        let found = self.description.ports.iter().position(|port| port == name);
        found.ok_or_else(|| Error::UnknownName(format!("`describe` declares no port `{name}`")))
    }

    /// Checks the record indices of `count` effects.
    pub(super) fn check_records(&self, records: &[u32], count: usize) -> Result<(), Error> {
        if records.len() != count {
            return Err(Error::Malformed(format!("{count} items, but {} record indices", records.len())));
        }
        let batch = self.call.records;
        match records.iter().find(|&&record| record >= batch) {
            None => Ok(()),
            Some(_) if batch == 0 => Err(Error::Malformed("there are no effects outside `process`".to_owned())),
            Some(record) => Err(Error::Malformed(format!("record index {record} in a batch of {batch}"))),
        }
    }

    fn check_owned(&self, keys: &Column) -> Result<(), Error> {
        keys.iter().find(|key| !self.state.owns(key)).map_or(Ok(()), |key| Err(foreign(key)))
    }

    fn read_many(&mut self, table: &str, keys: wit::types::Column) -> Result<wit::types::OptionalColumn, Error> {
        let named = self.call.readers.take();
        let table = self.table(table)?;
        let keys = column(keys)?;
        if keys.len() > LOOKUP_KEYS_MAX {
            return Err(Error::LimitExceeded(format!("one lookup takes at most {LOOKUP_KEYS_MAX} keys")));
        }
        if self.call.records == 0 {
            return Err(Error::Other("there is no state outside `process`".to_owned()));
        }
        let readers = Readers::named(named.as_deref(), keys.len())?;
        let mut answer = Answer::new(keys.len(), self.limits.memory_bytes_max);
        self.call.index_writes();
        let written = &self.call.written;
        let read = if written.is_empty() {
            self.state.read(table, &keys, readers, &mut |index, value| answer.take(index, value))
        } else {
            self.state.read(table, &keys, readers, &mut |index, value| match written.get(&(
                table,
                readers.of(index),
                keys.get(index).into(),
            )) {
                Some(own) => answer.take(index, own.as_deref()),
                None => answer.take(index, value),
            })
        };
        match read {
            Ok(()) => {}
            Err(StateReadError::ForeignKey(index)) => return Err(foreign(keys.get(index))),
            Err(StateReadError::Host(error)) => {
                self.call.host_error = Some(error.clone());
                return Err(Error::Other(error));
            }
        }
        answer.finish()
    }

    fn write_many(
        &mut self,
        table: &str,
        keys: Column,
        values: Option<Column>,
        records: Vec<u32>,
    ) -> Result<(), Error> {
        let table = self.table(table)?;
        self.check_records(&records, keys.len())?;
        if let Some(values) = &values
            && values.len() != keys.len()
        {
            return Err(Error::Malformed(format!("{} keys, but {} values", keys.len(), values.len())));
        }
        self.check_owned(&keys)?;
        self.retain(keys.len(), keys.bytes().len() + values.as_ref().map_or(0, |values| values.bytes().len()))?;
        if !keys.is_empty() {
            self.call.effects.writes.push(Writes { table, keys, values, records });
        }
        Ok(())
    }

    /// Accounts for what is kept until the call ends: `items` of `bytes` bytes in all. Small ones cost more than their bytes.
    pub(super) fn retain(&mut self, items: usize, bytes: usize) -> Result<(), Error> {
        let kept = (bytes as u64).saturating_add(KEPT_CALL_BYTES + items as u64 * KEPT_ITEM_BYTES);
        let reached = self.call.output_bytes.saturating_add(kept);
        if reached > self.limits.output_bytes_max {
            return Err(Error::LimitExceeded(format!(
                "`limits.output` is {} bytes a batch; reached {reached}",
                self.limits.output_bytes_max
            )));
        }
        self.call.output_bytes = reached;
        Ok(())
    }
}

impl Call {
    /// A call with a batch of `count` records, which goes on with the batch's `log`.
    pub(super) fn of(count: u32, records: Records, log: BatchLog) -> Self {
        Self { records: count, is_apart: records == Records::Apart, log, ..Self::default() }
    }

    fn index_writes(&mut self) {
        for writes in &self.effects.writes[self.indexed_writes..] {
            for (index, key) in writes.keys.iter().enumerate() {
                let value = writes.values.as_ref().map(|values| values.get(index).into());
                let writer = self.is_apart.then(|| writes.records[index]);
                self.written.insert((writes.table, writer, key.into()), value);
            }
        }
        self.indexed_writes = self.effects.writes.len();
    }
}

impl<'a> Readers<'a> {
    /// Those of a read of `keys` keys that the guest has named: one a key, or one for all keys. Without `named` it has named none.
    pub(super) fn named(named: Option<&'a [u32]>, keys: usize) -> Result<Self, Error> {
        match named {
            None => Ok(Self::All),
            Some(&[one]) => Ok(Self::One(one)),
            Some(each) if each.len() == keys => Ok(Self::Each(each)),
            Some(each) => {
                Err(Error::Malformed(format!("a read of {keys} keys, but `read-for` has named {} records", each.len())))
            }
        }
    }
}

pub(super) fn column(column: wit::types::Column) -> Result<Column, Error> {
    Column::from_parts(column.bytes, column.ends).map_err(|error| Error::Malformed(error.to_string()))
}

pub(super) fn batch(batch: wit::types::Batch) -> Result<Batch, Error> {
    let (keys, values) = (column(batch.keys)?, column(batch.values)?);
    Batch::from_columns(keys, values, batch.times).map_err(|error| Error::Malformed(error.to_string()))
}

fn foreign(key: &[u8]) -> Error {
    Error::ForeignKey(format!(
        "key `{}` is not owned by this task; state is kept under the keys of the task's own records",
        key.escape_ascii()
    ))
}

pub(super) fn one(item: &[u8]) -> Column {
    [item].into_iter().collect()
}

impl wit::types::Host for Host {}
impl wit::description::Host for Host {}

impl wit::state::Host for Host {
    fn get_many(
        &mut self,
        table: String,
        keys: wit::types::Column,
    ) -> wasmtime::Result<Result<wit::types::OptionalColumn, Error>> {
        Ok(self.read_many(&table, keys))
    }

    fn put_many(
        &mut self,
        table: String,
        keys: wit::types::Column,
        values: wit::types::Column,
        records: Vec<u32>,
    ) -> wasmtime::Result<Result<(), Error>> {
        let columns = column(keys).and_then(|keys| Ok((keys, column(values)?)));
        Ok(columns.and_then(|(keys, values)| self.write_many(&table, keys, Some(values), records)))
    }

    fn delete_many(
        &mut self,
        table: String,
        keys: wit::types::Column,
        records: Vec<u32>,
    ) -> wasmtime::Result<Result<(), Error>> {
        Ok(column(keys).and_then(|keys| self.write_many(&table, keys, None, records)))
    }

    fn get(&mut self, table: String, key: Vec<u8>) -> wasmtime::Result<Result<Option<Vec<u8>>, Error>> {
        let (bytes, ends) = one(&key).into_parts();
        let values = self.read_many(&table, wit::types::Column { bytes, ends });
        Ok(values.map(|values| (values.present == [1]).then_some(values.items.bytes)))
    }

    fn put(
        &mut self,
        table: String,
        key: Vec<u8>,
        value: Vec<u8>,
        record_index: u32,
    ) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.write_many(&table, one(&key), Some(one(&value)), vec![record_index]))
    }

    fn delete(&mut self, table: String, key: Vec<u8>, record_index: u32) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.write_many(&table, one(&key), None, vec![record_index]))
    }
}

impl wit::output::Host for Host {
    fn emit(
        &mut self,
        port: String,
        emitted: wit::types::Batch,
        records: Vec<u32>,
    ) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.emit_batch(&port, emitted, records))
    }
}

impl Host {
    fn emit_batch(&mut self, port: &str, emitted: wit::types::Batch, records: Vec<u32>) -> Result<(), Error> {
        let port = self.port(port)?;
        let batch = batch(emitted)?;
        self.check_records(&records, batch.len())?;
        self.retain(batch.len(), batch.byte_len())?;
        if !batch.is_empty() {
            self.call.effects.emitted.push(Emitted { port, batch, records });
        }
        Ok(())
    }
}

impl wit::log::Host for Host {
    fn write(&mut self, level: wit::log::Level, message: String) -> wasmtime::Result<()> {
        let (operator, lines_max) = (self.operator.as_str(), self.limits.log_lines_max);
        let Call { log, logged_error, .. } = &mut self.call;
        if matches!(level, wit::log::Level::Error) {
            *logged_error = Some(message.chars().take(LOGGED_ERROR_CHARS_MAX).collect::<String>().into());
            if *logged_error == log.told {
                return Ok(());
            }
        }
        log.lines = log.lines.saturating_add(1);
        if log.lines > lines_max {
            if log.lines - 1 == lines_max {
                tracing::warn!(operator, "further lines of this batch are left out: `limits.log-lines` is {lines_max}");
            }
            return Ok(());
        }
        let message = shortened(message, LOG_LINE_BYTES_MAX);
        match level {
            wit::log::Level::Trace => tracing::trace!(operator, "{message}"),
            wit::log::Level::Debug => tracing::debug!(operator, "{message}"),
            wit::log::Level::Info => tracing::info!(operator, "{message}"),
            wit::log::Level::Warn => tracing::warn!(operator, "{message}"),
            wit::log::Level::Error => tracing::error!(operator, "{message}"),
        }
        Ok(())
    }
}

impl Host {
    /// Whether `changes` changes of a metric are kept; those past the limits are left out, which is told once a call: metrics never influence a result.
    fn keeps_metric(&mut self, name: &str, changes: usize) -> bool {
        let kept = match name.len() {
            bytes @ ..=METRIC_NAME_BYTES_MAX => self.retain(changes, bytes),
            bytes => {
                Err(Error::LimitExceeded(format!("a name has {bytes} bytes, and may have {METRIC_NAME_BYTES_MAX}")))
            }
        };
        let Err(Error::LimitExceeded(why)) = kept else { return kept.is_ok() };
        if !std::mem::replace(&mut self.call.metrics_left_out, true) {
            tracing::warn!(operator = self.operator, "metrics of this call are left out: {why}");
        }
        false
    }

    fn check_figures(&self, call: &str, count: usize, records: &[u32]) -> wasmtime::Result<()> {
        match self.check_records(records, count) {
            Err(Error::Malformed(error)) => wasmtime::bail!("`metrics.{call}`: {error}"),
            _ => Ok(()),
        }
    }
}

/// `text`, cut where it is longer than `bytes_max`.
pub(super) fn shortened(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}

impl wit::metrics::Host for Host {
    fn count(&mut self, name: String, by: u64) -> wasmtime::Result<()> {
        if self.keeps_metric(&name, 1) {
            self.call.effects.counts.push(Figures { name, values: vec![by], records: Vec::new() });
        }
        Ok(())
    }

    fn count_many(&mut self, name: String, by: Vec<u64>, records: Vec<u32>) -> wasmtime::Result<()> {
        self.check_figures("count-many", by.len(), &records)?;
        if self.keeps_metric(&name, by.len()) {
            self.call.effects.counts.push(Figures { name, values: by, records });
        }
        Ok(())
    }

    fn gauge(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        if self.keeps_metric(&name, 1) {
            self.call.effects.gauges.push(Figures { name, values: vec![value], records: Vec::new() });
        }
        Ok(())
    }

    fn gauge_many(&mut self, name: String, values: Vec<f64>, records: Vec<u32>) -> wasmtime::Result<()> {
        self.check_figures("gauge-many", values.len(), &records)?;
        if self.keeps_metric(&name, values.len()) {
            self.call.effects.gauges.push(Figures { name, values, records });
        }
        Ok(())
    }
}

impl wit::culprit::Host for Host {
    fn reject(&mut self, record_index: u32, reason: String) -> wasmtime::Result<()> {
        if record_index >= self.call.records {
            wasmtime::bail!("`reject` of record {record_index} in a batch of {}", self.call.records);
        }
        let reason = shortened(reason, REASON_BYTES_MAX);
        if let Err(Error::LimitExceeded(error)) = self.retain(1, reason.len()) {
            wasmtime::bail!("{error}");
        }
        self.call.effects.rejects.push((record_index, reason));
        Ok(())
    }

    fn begin_record(&mut self, record_index: u32) -> wasmtime::Result<()> {
        self.call.culprit = (record_index < self.call.records).then_some(record_index);
        Ok(())
    }
}

impl wit::isolation::Host for Host {
    fn is_apart(&mut self) -> wasmtime::Result<bool> {
        Ok(self.call.is_apart)
    }

    fn read_for(&mut self, records: Vec<u32>) -> wasmtime::Result<()> {
        let batch = self.call.records;
        if let Some(record) = records.iter().find(|&&record| record >= batch) {
            wasmtime::bail!("`read-for` record {record} in a batch of {batch}");
        }
        self.call.readers = self.call.is_apart.then_some(records);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
