//! A sink that counts records and drops them, for measuring and for outputs of no interest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ConnectorError, Sink, SinkWriter};
use crate::epoch::entry::SinkSeal;
use crate::epoch::{Epoch, JobId};
use crate::record::Batch;

/// The sink. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Blackhole {
    records: Arc<AtomicU64>,
}

impl Blackhole {
    /// The records received since the start of the process.
    pub fn count(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }
}

impl Sink for Blackhole {
    fn recover(
        &self,
        _job: JobId,
        _unpublished: &[(Epoch, SinkSeal)],
        _last: Option<&SinkSeal>,
    ) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn writer(&self, _last: Option<&SinkSeal>) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }

    fn sync(&self, _seal: &SinkSeal) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn publish(&self, _seal: &SinkSeal) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// False: there is no output to keep, and so nothing that binds the sink to its job.
    fn is_exactly_once(&self) -> bool {
        false
    }
}

impl SinkWriter for Blackhole {
    fn write(&mut self, batch: &Batch) -> Result<(), ConnectorError> {
        self.records.fetch_add(batch.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn seal(&mut self, _epoch: Epoch, _last: bool) -> Result<SinkSeal, ConnectorError> {
        Ok(SinkSeal::default())
    }
}
