//! Carrying out what a call did, and what other tasks ask of this one's tables.
//!
//! Nothing here waits, so a batch's effects are never half applied when a seal comes.

use std::fmt::Display;

use super::others::{self, AppliedPart, OwnPart};
use super::refuse::Refused;
use super::run::Task;
use super::{Asked, Message, TaskError, TaskUpdates};
use crate::plugin::{Effects, TableUpdates, Writes};
use crate::record::{Batch, Column, NO_TIME};
use crate::state::update::Updates;
use crate::state::versions::When;
use crate::state::{Updated, Write};

impl Task {
    /// Applies what a call with `batch` did.
    pub(super) fn apply(&mut self, batch: &Batch, effects: Effects) -> Result<(), TaskError> {
        for (record, reason) in &effects.rejects {
            self.refuse(batch, *record as usize, reason)?;
        }
        self.write(&effects.writes, &batch.times)?;
        for updates in effects.updates {
            self.send_updates(updates)?;
        }
        for sent in effects.sent {
            self.operator.others.send(sent.table, sent.batch, &self.flow);
        }
        let meters = &self.operator.meters;
        meters.calls.add(1);
        for emitted in effects.emitted {
            meters.records_out.add(emitted.batch.len() as u64);
            self.router.send(emitted.port, emitted.batch)?;
        }
        if !effects.counts.is_empty() || !effects.gauges.is_empty() {
            let mut own = meters.own.lock();
            effects.counts.iter().for_each(|(name, by)| own.count(name, *by));
            effects.gauges.iter().for_each(|(name, value)| own.gauge(name, *value));
        }
        Ok(())
    }

    /// Applies writes that records of these `times` have caused.
    fn write(&self, writes: &[Writes], times: &[i64]) -> Result<(), TaskError> {
        if writes.is_empty() {
            return Ok(());
        }
        let times = self.tables.keep_versions().then_some(times);
        let writes = writes.iter().flat_map(|writes| {
            (0..writes.keys.len()).map(move |index| Write {
                table: writes.table,
                key: writes.keys.get(index),
                value: writes.values.as_ref().map(|values| values.get(index)),
                when: times.map_or(When::NEWEST, |times| When::At(times[writes.records[index] as usize])),
            })
        });
        self.tables.apply(writes).map_err(|error| self.storage(&error))
    }

    /// Sends updates to the owners of their keys; those of keys that this task owns are applied at once.
    fn send_updates(&self, updates: TableUpdates) -> Result<(), TaskError> {
        if self.recorder.is_some() {
            return self.apply_in_round(updates);
        }
        let own = self.operator.others.send_updates(updates, self.place, &self.me, &self.flow);
        let Some(OwnPart { table, updates, outcomes }) = own else { return Ok(()) };
        let updated = self.update(table, &updates)?;
        match outcomes {
            Some(outcomes) => self.router.send_looped(outcomes.port, told(outcomes.records, &updated)),
            None => Ok(()),
        }
    }

    /// Writes the tables of others: their owners stand still as long as a round is on.
    fn apply_in_round(&self, updates: TableUpdates) -> Result<(), TaskError> {
        let others = &self.operator.others;
        let name = &others.uses()[updates.table].name;
        let applied = others.apply_updates(updates).map_err(|error| self.storage(&error))?;
        for AppliedPart { updates, updated, outcomes } in applied {
            self.refuse_unfit(name, &updates, &updated)?;
            if let Some(outcomes) = outcomes {
                self.router.send_looped(outcomes.port, told(outcomes.records, &updated))?;
            }
        }
        Ok(())
    }

    /// Applies what another task has sent, and tells it what became of it where it asks.
    pub(super) fn take_updates(&self, sent: TaskUpdates) -> Result<(), TaskError> {
        let updated = self.update(sent.table, &sent.updates)?;
        if let Some(Asked { port, records, to }) = sent.asked {
            let records = told(records, &updated);
            let (count, bytes) = (records.len() as u64, records.byte_len() as u64);
            others::post(&to, Message::Outcomes { port, records }, count, bytes, &self.flow);
        }
        Ok(())
    }

    /// Updates one of the task's own tables. What does not fit the value that it finds is refused as a failing record is.
    fn update(&self, table: usize, updates: &Updates) -> Result<Vec<Updated>, TaskError> {
        let updated = self.tables.update(table, updates).map_err(|error| self.storage(&error))?;
        self.operator.meters.updates.add(updated.len() as u64);
        self.refuse_unfit(&self.operator.function.description.tables[table].0, updates, &updated)?;
        Ok(updated)
    }

    /// Refuses the updates that did not fit what they found, as failing records are refused.
    fn refuse_unfit(&self, table: &str, updates: &Updates, updated: &[Updated]) -> Result<(), TaskError> {
        for (index, error) in
            updated.iter().enumerate().filter_map(|(index, updated)| Some((index, updated.as_ref().err()?)))
        {
            let (key, value) = (updates.keys.get(index), updates.operands.get(index).unwrap_or_default());
            let error = format!("an update of table `{table}` failed: {error}");
            let time = updates.times.get(index).copied().unwrap_or(NO_TIME);
            self.operator.refusals.refuse(Refused { key, value, time, place: None, error: &error })?;
        }
        Ok(())
    }

    fn storage(&self, error: &dyn Display) -> TaskError {
        TaskError::Storage(format!("operator `{}`: cannot write its state: {error}", self.operator.name))
    }
}

/// The outcomes of updates as records: a byte that tells whether the value has changed, before what each record already holds.
fn told(asked: Batch, updated: &[Updated]) -> Batch {
    let mut values = Column::with_capacity(asked.len(), asked.values.bytes().len() + asked.len());
    for (index, updated) in updated.iter().enumerate() {
        values.building().push(u8::from(*updated == Ok(true)));
        values.building().extend_from_slice(asked.values.get(index));
        values.end_item();
    }
    Batch { values, ..asked }
}
