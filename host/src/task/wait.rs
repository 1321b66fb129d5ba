//! What a task carries over: what came by loops while a drain was under way, and records that wait until another operator has come to a time.
//!
//! A record that comes too early is not a failure and not held up in a call: the call is undone, and the record goes back. So does whatever comes behind it to this
//! task, so that keys keep their order. All of it is off the count of what is in flight, is part of the next epoch, and is tried again when the epoch has been sealed: what an
//! operator has come to is known at seals only. Updates of the task's tables are applied meanwhile as ever.

use std::sync::Arc;

use super::TaskError;
use super::flow::Way;
use super::run::Task;
use crate::plugin::callable::Callable;
use crate::record::Batch;

impl<F: Callable> Task<F> {
    /// Begins what is carried over, as long as no drain is under way and nothing of it has to wait.
    pub(super) async fn work_on_carried(&mut self) -> Result<(), TaskError> {
        while !self.has_to_wait()
            && let Some(batch) = self.carried.front()
        {
            let (records, bytes) = (batch.len() as u64, batch.byte_len() as u64);
            if !self.flow.begin_carried(records, bytes) {
                break;
            }
            let batch = self.carried.pop_front().map(Arc::unwrap_or_clone).unwrap_or_default();
            match self.work(batch).await? {
                Some(rest) => self.wait_in_front(rest, records),
                None => self.keeps_order &= !self.carried.is_empty(),
            }
            self.flow.remove(Way::Loop, records, bytes);
            self.relieve().await?;
        }
        Ok(())
    }

    /// Whether nothing has become known since the first of what is carried over was found to be too early.
    fn has_to_wait(&self) -> bool {
        !self.carried.is_empty() && self.too_early == Some(self.operator.others.progress_moves())
    }

    /// Whether what comes now has to go behind what waits.
    pub(super) fn is_behind(&self) -> bool {
        self.keeps_order && !self.carried.is_empty()
    }

    /// Takes a batch that is in flight behind what waits.
    pub(super) fn put_off(&mut self, batch: Arc<Batch>, way: Way) {
        let (records, bytes) = (batch.len() as u64, batch.byte_len() as u64);
        self.operator.meters.waited.add(records);
        self.carry(batch);
        self.flow.remove(way, records, bytes);
    }

    /// Takes what is left of a batch that has just come, whose first record is too early. The batch is still counted as in flight.
    pub(super) fn wait_behind(&mut self, rest: Batch) {
        self.operator.meters.waited.add(rest.len() as u64);
        self.wait();
        self.carry(rest.into());
    }

    /// As [`Task::wait_behind`], of a batch of `records` records that was the first of those carried over.
    fn wait_in_front(&mut self, rest: Batch, records: u64) {
        self.wait();
        self.flow.carry_again(rest.byte_len() as u64, rest.len() as u64 == records);
        self.carried.push_front(rest.into());
    }

    fn wait(&mut self) {
        self.keeps_order = true;
        self.too_early = Some(self.operator.others.progress_moves());
    }

    /// Adds a batch to what is carried over: to the last one there, where they fit into one call and no epoch's entry holds that one.
    fn carry(&mut self, batch: Arc<Batch>) {
        let joins = self.carried.back().is_some_and(|last| self.fit_together(last, &batch));
        let bytes = batch.byte_len() as u64;
        match self.carried.back_mut().filter(|_| joins).and_then(Arc::get_mut) {
            Some(last) => {
                last.extend_from(&batch, 0..batch.len());
                self.flow.carry(bytes, true);
            }
            None => {
                self.flow.carry(bytes, false);
                self.carried.push_back(batch);
            }
        }
    }
}
