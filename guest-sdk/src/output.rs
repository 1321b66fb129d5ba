//! What a function emits, gathered by port until the batch ends.

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

struct PortOutput {
    name: &'static str,
    emitted: Batch,
    records: Vec<u32>,
}

impl PortOutput {
    fn new(name: &'static str) -> Self {
        Self { name, emitted: Batch::empty(), records: Vec::new() }
    }

    /// Removes what `record`, the current one, has emitted.
    fn undo(&mut self, record: u32) {
        while self.records.last() == Some(&record) {
            self.records.pop();
            self.emitted.keys.pop();
            self.emitted.values.pop();
            self.emitted.times.pop();
        }
    }

    fn clear(&mut self) {
        self.emitted.clear();
        self.records.clear();
    }
}

/// The output of a batch.
pub(crate) struct Outputs {
    ports: Vec<PortOutput>,
}

impl Outputs {
    pub(crate) fn new(declared: &[Port]) -> Self {
        let names = std::iter::once(Port::OUT.name).chain(declared.iter().map(|port| port.name));
        Self { ports: names.map(PortOutput::new).collect() }
    }

    /// Adds a record whose value `write` appends. Where `write` fails, there is no record.
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
        let output = self.port(port);
        let values = &mut output.emitted.values;
        if let Err(error) = write(&mut Buffer { bytes: &mut values.bytes }) {
            values.abandon_item();
            return Err(error);
        }
        values.end_item();
        output.emitted.keys.push(key);
        output.emitted.times.push(time);
        output.records.push(record);
        Ok(())
    }

    fn port(&mut self, port: Port) -> &mut PortOutput {
        let same_name = |output: &PortOutput| std::ptr::eq(output.name, port.name) || output.name == port.name;
        let index = self.ports.iter().position(same_name).unwrap_or_else(|| {
            self.ports.push(PortOutput::new(port.name));
            self.ports.len() - 1
        });
        &mut self.ports[index]
    }

    pub(crate) fn undo(&mut self, record: u32) {
        self.ports.iter_mut().for_each(|port| port.undo(record));
    }

    pub(crate) fn hand_over(&self, host: &dyn Host) -> Result<(), Failure> {
        for port in self.ports.iter().filter(|port| !port.records.is_empty()) {
            host.emit(port.name, &port.emitted, &port.records).map_err(|error| Failure {
                record: None,
                reason: format!("failed to emit on port `{}`: {}", port.name, host_error_text(error)),
            })?;
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.ports.iter_mut().for_each(PortOutput::clear);
    }
}
