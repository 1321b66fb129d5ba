//! The sink threads: one for each sink, which writes what arrives and ends epochs when told.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};

use super::JobError;
use crate::connector::{ConnectorError, SinkWriter};
use crate::metrics::Counter;
use crate::task::flow::{Flow, Way};
use crate::task::route::SinkMessage;

/// A sink, as its thread uses it.
pub(super) struct SinkSetup {
    pub(super) name: String,
    pub(super) records_out: Arc<Counter>,
    pub(super) flow: Arc<Flow>,
}

impl SinkSetup {
    /// The work of the sink's thread, until nobody can send to it any more.
    pub(super) fn work(
        &self,
        mut writer: Box<dyn SinkWriter>,
        mailbox: &Receiver<SinkMessage>,
    ) -> Result<(), JobError> {
        let failed = |error: ConnectorError| JobError::sink(&self.name, error);
        loop {
            let message = match mailbox.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    writer.flush().map_err(failed)?;
                    match mailbox.recv() {
                        Ok(message) => message,
                        Err(RecvError) => return Ok(()),
                    }
                }
            };
            if !self.take(&mut *writer, message)? {
                return Ok(());
            }
        }
    }

    /// Does what one message asks for. Returns whether more may come.
    pub(super) fn take(&self, writer: &mut dyn SinkWriter, message: SinkMessage) -> Result<bool, JobError> {
        match message {
            // What is left belongs to no epoch, and the next attempt may open the same files.
            SinkMessage::Records(_) if self.flow.is_stopped() => return Ok(false),
            SinkMessage::Records(batch) => {
                // A batch that could not be written stays in flight: no epoch may be sealed without it.
                writer.write(&batch).map_err(|error| JobError::sink(&self.name, error))?;
                self.records_out.add(batch.len() as u64);
                self.flow.remove(Way::Ahead, batch.len() as u64, batch.byte_len() as u64);
            }
            SinkMessage::Seal { epoch, last, reply } => {
                // The coordinator that no longer listens is stopping the job.
                let _ = reply.send(writer.seal(epoch, last));
            }
            SinkMessage::End => return Ok(false),
        }
        Ok(true)
    }
}
