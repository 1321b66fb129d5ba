//! Standard output as a sink: visible at once, at least once.

use std::io::{self, Write};
use std::path::Path;

use parking_lot::Mutex;

use super::feed::io_error;
use super::format::Encoder;
use super::{ConnectorError, Sink, SinkWriter};
use crate::epoch::entry::SinkSeal;
use crate::epoch::{Epoch, JobId};
use crate::manifest::StdoutSink;
use crate::record::Batch;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// Standard output as a sink.
pub struct Stdout {
    encoder: Encoder,
    output: Mutex<Option<Box<dyn Write + Send>>>,
}

impl Stdout {
    /// The sink that the manifest describes.
    ///
    /// # Errors
    /// When the columns do not fit the format.
    pub fn new(sink: &StdoutSink) -> Result<Self, ConnectorError> {
        Self::writing(sink, Box::new(io::stdout()))
    }

    /// The same onto another stream.
    ///
    /// # Errors
    /// As [`Stdout::new`].
    pub fn writing(sink: &StdoutSink, output: Box<dyn Write + Send>) -> Result<Self, ConnectorError> {
        Ok(Self { encoder: Encoder::new(sink.format, &sink.columns)?, output: Mutex::new(Some(output)) })
    }
}

impl Sink for Stdout {
    fn recover(
        &self,
        _job: JobId,
        _unpublished: &[(Epoch, SinkSeal)],
        _last: Option<&SinkSeal>,
    ) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn writer(&self, _last: Option<&SinkSeal>) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let output = self.output.lock().take();
        let output = output
            .ok_or_else(|| ConnectorError::Output("write to standard output twice: it has one writer".to_owned()))?;
        let buffer = self.encoder.header();
        Ok(Box::new(StdoutWriter { encoder: self.encoder.clone(), output, buffer }))
    }

    fn sync(&self, _seal: &SinkSeal) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn publish(&self, _seal: &SinkSeal) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn is_exactly_once(&self) -> bool {
        false
    }
}

struct StdoutWriter {
    encoder: Encoder,
    output: Box<dyn Write + Send>,
    buffer: Vec<u8>,
}

impl SinkWriter for StdoutWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), ConnectorError> {
        self.encoder.encode(batch, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        let written = self.output.write_all(&self.buffer).and_then(|()| self.output.flush());
        self.buffer.clear();
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => ConnectorError::Closed,
            _ => io_error("write to", Path::new("standard output"), error),
        })
    }

    fn seal(&mut self, _epoch: Epoch, _last: bool) -> Result<SinkSeal, ConnectorError> {
        self.flush()?;
        Ok(SinkSeal::default())
    }
}
