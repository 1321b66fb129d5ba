//! What a function emits and sends, gathered by port and by table until the batch ends.

use std::io;

use serde::Serialize;

use crate::bindings::wasmill::operator::types::Batch;
use crate::description::Port;
use crate::error::{Reject, host_error_text};
use crate::host::Host;
use crate::table::Failure;

/// The value of a record that is being emitted. Bytes go straight into the output column.
#[derive(Debug)]
pub struct Buffer<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Buffer<'_> {
    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a text.
    pub fn push_str(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Appends a byte.
    pub fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Appends `value` as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON (a map whose keys are no strings).
    pub fn push_json(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Reject> {
        serde_json::to_writer(&mut *self.bytes, value)
            .map_err(|error| Reject::new(format_args!("the output is no JSON: {error}")))
    }
}

/// Writing never fails; `write!` works through this.
impl io::Write for Buffer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Records for one port, or for the owner of one table.
struct Gathered {
    to: &'static str,
    batch: Batch,
    records: Vec<u32>,
}

impl Gathered {
    fn new(to: &'static str) -> Self {
        Self { to, batch: Batch::empty(), records: Vec::new() }
    }

    /// Adds a record whose value `write` appends. Where `write` fails, there is no record.
    fn add(
        &mut self,
        record: u32,
        key: &[u8],
        time: i64,
        write: impl FnOnce(&mut Buffer<'_>) -> Result<(), Reject>,
    ) -> Result<(), Reject> {
        let values = &mut self.batch.values;
        if let Err(error) = write(&mut Buffer { bytes: &mut values.bytes }) {
            values.abandon_item();
            return Err(error);
        }
        values.end_item();
        self.batch.keys.push(key);
        self.batch.times.push(time);
        self.records.push(record);
        Ok(())
    }

    /// Removes what `record`, the current one, has caused.
    fn undo(&mut self, record: u32) {
        while self.records.last() == Some(&record) {
            self.records.pop();
            self.batch.keys.pop();
            self.batch.values.pop();
            self.batch.times.pop();
        }
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.records.clear();
    }
}

/// What is gathered for `to`.
fn gathered<'g>(all: &'g mut Vec<Gathered>, to: &'static str) -> &'g mut Gathered {
    let same_name = |gathered: &Gathered| std::ptr::eq(gathered.to, to) || gathered.to == to;
    let index = all.iter().position(same_name).unwrap_or_else(|| {
        all.push(Gathered::new(to));
        all.len() - 1
    });
    &mut all[index]
}

/// The output of a batch.
pub(crate) struct Outputs {
    ports: Vec<Gathered>,
    tables: Vec<Gathered>,
}

impl Outputs {
    pub(crate) fn new(declared: &[Port]) -> Self {
        let names = std::iter::once(Port::OUT.name).chain(declared.iter().map(|port| port.name));
        Self { ports: names.map(Gathered::new).collect(), tables: Vec::new() }
    }

    /// Adds a record for `port` whose value `write` appends. Where `write` fails, there is no record.
    ///
    /// A port that is not declared is gathered, too: the host refuses it by name.
    pub(crate) fn emit(
        &mut self,
        port: Port,
        record: u32,
        key: &[u8],
        time: i64,
        write: impl FnOnce(&mut Buffer<'_>) -> Result<(), Reject>,
    ) -> Result<(), Reject> {
        gathered(&mut self.ports, port.name).add(record, key, time, write)
    }

    /// As [`Outputs::emit`], for the owner of `table`.
    pub(crate) fn send(
        &mut self,
        table: &'static str,
        record: u32,
        key: &[u8],
        time: i64,
        write: impl FnOnce(&mut Buffer<'_>) -> Result<(), Reject>,
    ) -> Result<(), Reject> {
        gathered(&mut self.tables, table).add(record, key, time, write)
    }

    pub(crate) fn undo(&mut self, record: u32) {
        self.ports.iter_mut().chain(&mut self.tables).for_each(|gathered| gathered.undo(record));
    }

    pub(crate) fn hand_over(&self, host: &dyn Host) -> Result<(), Failure> {
        for port in self.ports.iter().filter(|port| !port.records.is_empty()) {
            host.emit(port.to, &port.batch, &port.records).map_err(|error| Failure {
                record: None,
                reason: format!("failed to emit on port `{}`: {}", port.to, host_error_text(error)),
            })?;
        }
        for table in self.tables.iter().filter(|table| !table.records.is_empty()) {
            host.send(table.to, &table.batch, &table.records).map_err(|error| Failure {
                record: None,
                reason: format!("failed to send to the owner of table `{}`: {}", table.to, host_error_text(error)),
            })?;
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.ports.iter_mut().chain(&mut self.tables).for_each(Gathered::clear);
    }
}
