//! Carrying out what a call did, and what other tasks ask of this one's tables.
//!
//! Nothing here waits, so a batch's effects are never half applied when a seal comes.

use std::fmt::Display;

use super::others::{AppliedPart, OwnPart};
use super::refuse::{Refusals, Refused};
use super::run::{OperatorSetup, Task};
use super::{Asked, Message, TaskError, TaskUpdates};
use crate::plugin::callable::Callable;
use crate::plugin::{Effects, Figures, TableUpdates, Writes};
use crate::record::{Batch, Column, NO_TIME};
use crate::state::update::Updates;
use crate::state::versions::When;
use crate::state::{Updated, UpdatesOf, Write};

impl<F: Callable> Task<F> {
    /// Applies what a call with `batch` did.
    pub(super) fn apply(&mut self, batch: &Batch, effects: Effects) -> Result<(), TaskError> {
        for (record, reason) in &effects.rejects {
            self.refuse(batch, *record as usize, reason)?;
        }
        if self.recorder.is_some() {
            self.write(&effects.writes, &batch.times, Vec::new())?;
            effects.updates.into_iter().try_for_each(|updates| self.apply_in_round(updates))?;
        } else {
            let send = |updates| self.operator.others.send_updates(updates, self.place, &self.me, &self.flow);
            let own = effects.updates.into_iter().filter_map(send).collect();
            self.write(&effects.writes, &batch.times, own)?;
        }
        for sent in effects.sent {
            self.operator.others.send(sent.table, sent.batch, &self.flow);
        }
        let meters = &self.operator.meters;
        for emitted in effects.emitted {
            meters.records_out.add(emitted.batch.len() as u64);
            self.router.send(emitted.port, emitted.batch)?;
        }
        if !effects.counts.is_empty() || !effects.gauges.is_empty() {
            let mut own = meters.own.lock();
            for Figures { name, values, .. } in &effects.counts {
                values.iter().for_each(|by| own.count(name, *by));
            }
            for Figures { name, values, .. } in &effects.gauges {
                values.iter().for_each(|value| own.gauge(name, *value));
            }
        }
        Ok(())
    }

    /// Applies what records of these `times` have written by a call, and what of its updates is of the task's own keys: as one, so that nobody sees half of it.
    fn write(&self, writes: &[Writes], times: &[i64], own: Vec<OwnPart>) -> Result<(), TaskError> {
        let times = self.tables.keep_versions().then_some(times);
        let writes = writes.iter().flat_map(|writes| {
            (0..writes.keys.len()).map(move |index| Write {
                table: writes.table,
                key: writes.keys.get(index),
                value: writes.values.as_ref().map(|values| values.get(index)),
                when: times.map_or(When::NEWEST, |times| When::At(times[writes.records[index] as usize])),
            })
        });
        if own.is_empty() {
            return self.tables.apply(writes).map_err(|error| self.storage(&error));
        }
        let updates: Vec<UpdatesOf<'_>> =
            own.iter().map(|part| UpdatesOf { table: part.table, updates: &part.updates }).collect();
        let updated = self.tables.write_and_update(writes.collect(), &updates).map_err(|error| self.storage(&error))?;
        for (OwnPart { table, updates, outcomes }, updated) in own.into_iter().zip(updated) {
            self.note_updates(table, &updates, &updated)?;
            if let Some(outcomes) = outcomes {
                self.router.send_looped(outcomes.port, told(outcomes.records, &updated))?;
            }
        }
        Ok(())
    }

    /// Writes the tables of others: their owners stand still as long as a round is on.
    fn apply_in_round(&self, updates: TableUpdates) -> Result<(), TaskError> {
        let (others, used) = (&self.operator.others, self.operator.others.used(updates.table));
        let applied = others.apply_updates(updates).map_err(|error| self.storage(&error))?;
        for AppliedPart { updates, updated, outcomes } in applied {
            used.meters.updates.add(updated.len() as u64);
            refuse_unfit(&used.refusals, &used.name, &updates, &updated)?;
            if let Some(outcomes) = outcomes {
                self.router.send_looped(outcomes.port, told(outcomes.records, &updated))?;
            }
        }
        Ok(())
    }

    /// Applies what another task has sent, and tells it what became of it where it asks.
    pub(super) fn take_updates(&self, sent: TaskUpdates) -> Result<(), TaskError> {
        let updated = self.tables.update(sent.table, &sent.updates).map_err(|error| self.storage(&error))?;
        self.note_updates(sent.table, &sent.updates, &updated)?;
        if let Some(Asked { port, records, to }) = sent.asked {
            to.post(Message::Outcomes { port, records: told(records, &updated) }, &self.flow);
        }
        Ok(())
    }

    /// Counts updates of one of the task's own tables. What did not fit the value that it found is refused as a failing record is.
    fn note_updates(&self, table: usize, updates: &Updates, updated: &[Updated]) -> Result<(), TaskError> {
        let OperatorSetup { meters, function, refusals, .. } = &*self.operator;
        meters.updates.add(updated.len() as u64);
        refuse_unfit(refusals, &function.current().description().tables[table].0, updates, updated)
    }

    pub(super) fn storage(&self, error: &dyn Display) -> TaskError {
        TaskError::Storage(format!("operator `{}`: cannot write its state: {error}", self.operator.name))
    }
}

/// Refuses the updates of `table` that did not fit what they found, as its owner has failing records refused.
fn refuse_unfit(refusals: &Refusals, table: &str, updates: &Updates, updated: &[Updated]) -> Result<(), TaskError> {
    for (index, error) in
        updated.iter().enumerate().filter_map(|(index, updated)| Some((index, updated.as_ref().err()?)))
    {
        let (key, value) = (updates.keys.get(index), updates.operands.get(index).unwrap_or_default());
        let error = format!("an update of table `{table}` failed: {error}");
        let time = updates.times.get(index).copied().unwrap_or(NO_TIME);
        refusals.refuse(Refused { key, value, time, place: None, error: &error })?;
    }
    Ok(())
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
