//! The tables of anyone, as a guest calls for them: each by the name that the operator's `uses` gives it.
//!
//! As in `imports`, everything is checked here and nothing happens before the batch ends. This file knows nothing of where tables lie, of their
//! owners, or of how updates come to them.

use std::time::Duration;

use super::answer::Answer;
use super::bindings::wasmill::operator as wit;
use super::bindings::wasmill::operator::types::Error;
use super::imports::{Host, LOOKUP_KEYS_MAX, batch, column, one};
use super::{Consistency, LookupError, Outcomes, Page, Read, Readers, Sent, Staleness, TableUpdates, Use, Waiting};
use crate::record::{Batch, Column};
use crate::state::update::{Number, Op, Operands, Updates, VALUE_BYTES_MAX};

/// What a guest wants of a table.
#[derive(Debug, Clone, Copy)]
enum Want {
    Read,
    Update,
    Send,
}

impl Want {
    fn is_granted(self, to: &Use) -> bool {
        match self {
            Self::Read => to.read,
            Self::Update => to.update,
            Self::Send => to.send,
        }
    }

    /// The field of the manifest, and what it allows.
    fn described(self) -> (&'static str, &'static str) {
        match self {
            Self::Read => ("read", "look up values of"),
            Self::Update => ("update", "change values of"),
            Self::Send => ("send", "send records to the owner of"),
        }
    }
}

impl Host {
    /// The place of the table `name` among the operator's `uses`, if it may be used so.
    fn used(&self, name: &str, want: Want) -> Result<usize, Error> {
        if self.call.records == 0 {
            return Err(Error::Other("there are no tables outside `process`".to_owned()));
        }
        let Some(index) = self.uses.iter().position(|used| used.name == name) else {
            return Err(Error::UnknownName(self.unknown_table(name)));
        };
        if !want.is_granted(&self.uses[index]) {
            let (field, allows) = want.described();
            return Err(Error::NotAllowed(format!(
                "the manifest does not let this operator {allows} `{name}`: add `uses.{name}.{field} = true`"
            )));
        }
        Ok(index)
    }

    fn unknown_table(&self, name: &str) -> String {
        let name = name.escape_debug();
        if self.uses.is_empty() {
            return format!("the manifest has no `uses.{name}` for this operator; it has none at all");
        }
        let known: Vec<_> = self.uses.iter().map(|used| format!("`{}`", used.name)).collect();
        format!("the manifest has no `uses.{name}` for this operator; it has {}", known.join(", "))
    }

    async fn look_up(
        &mut self,
        table: &str,
        keys: Result<Column, Error>,
        consistency: wit::tables::Consistency,
    ) -> Result<wit::types::OptionalColumn, Error> {
        let (named, keys) = (self.call.readers.take(), keys?);
        let table = self.used(table, Want::Read)?;
        if keys.len() > LOOKUP_KEYS_MAX {
            return Err(Error::LimitExceeded(format!("one lookup takes at most {LOOKUP_KEYS_MAX} keys")));
        }
        let (consistency, staleness) = consistency_of(consistency)?;
        let readers = Readers::named(named.as_deref(), keys.len())?;
        let mut answer = Answer::new(keys.len(), self.limits.memory_bytes_max);
        let mut take = |index: usize, value: Option<&[u8]>| answer.take(index, value);
        let found = self.others.get_many(table, &keys, readers, consistency, &mut take);
        found.map_err(|error| self.lookup_failed(error))?;
        self.take_elsewhere(table, &keys, Read::At(consistency, staleness), &mut answer).await?;
        answer.finish()
    }

    /// Waits for the values of keys that other hosts own.
    async fn take_elsewhere(
        &mut self,
        table: usize,
        keys: &Column,
        read: Read<'_>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let Some(elsewhere) = self.others.get_elsewhere(table, keys, read) else { return Ok(()) };
        for fetched in elsewhere.await.map_err(|error| self.lookup_failed(error))? {
            for (&place, value) in fetched.places.iter().zip(fetched.answer.iter()) {
                answer.take(place, value);
            }
        }
        Ok(())
    }

    async fn look_up_as_of_time(
        &mut self,
        name: &str,
        keys: Result<Column, Error>,
        times: &[i64],
        wait: bool,
    ) -> Result<wit::types::OptionalColumn, Error> {
        let (named, keys) = (self.call.readers.take(), keys?);
        let table = self.used(name, Want::Read)?;
        let Use { versioned, waiting, .. } = self.uses[table];
        if !versioned {
            return Err(Error::NotAllowed(format!("`{name}` is not versioned: it keeps no earlier values")));
        }
        if wait {
            check_waiting(name, waiting)?;
        }
        if times.len() != keys.len() {
            return Err(Error::Malformed(format!("{} keys, but {} times", keys.len(), times.len())));
        }
        if keys.len() > LOOKUP_KEYS_MAX {
            return Err(Error::LimitExceeded(format!("one lookup takes at most {LOOKUP_KEYS_MAX} keys")));
        }
        let readers = Readers::named(named.as_deref(), keys.len())?;
        let mut answer = Answer::new(keys.len(), self.limits.memory_bytes_max);
        let mut take = |index: usize, value: Option<&[u8]>| answer.take(index, value);
        let found = self.others.get_many_as_of_time(table, &keys, times, wait, readers, &mut take);
        found.map_err(|error| self.lookup_failed(error))?;
        self.take_elsewhere(table, &keys, Read::AsOfTimes(times), &mut answer).await?;
        answer.finish()
    }

    fn lookup_failed(&mut self, error: LookupError) -> Error {
        match error {
            LookupError::NotYet(text) => {
                self.call.not_yet = Some(text.clone());
                Error::NotYet(text)
            }
            LookupError::Gone(text) => Error::Gone(text),
            LookupError::NotAllowed(text) => Error::NotAllowed(text),
            LookupError::Host(text) => {
                self.call.host_error = Some(text.clone());
                Error::Other(text)
            }
        }
    }

    async fn scan_page(
        &mut self,
        name: &str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: u32,
        consistency: wit::tables::Consistency,
    ) -> Result<Page, Error> {
        let named = self.call.readers.take();
        let table = self.used(name, Want::Read)?;
        if !self.uses[table].ordered {
            return Err(Error::NotAllowed(format!("`{name}` cannot be scanned: its owner does not keep it `ordered`")));
        }
        if limit == 0 {
            return Err(Error::Malformed("a page has at least 1 key, but `limit` is 0".to_owned()));
        }
        let (consistency, _) = consistency_of(consistency)?;
        let limit = (limit as usize).min(LOOKUP_KEYS_MAX);
        let readers = Readers::named(named.as_deref(), 1)?;
        let page = self.others.scan(table, from, to, limit, readers, consistency);
        let mut page = page.map_err(|error| self.lookup_failed(error))?;
        if let Some(elsewhere) = self.others.scan_elsewhere(table, from, to, limit, consistency) {
            let pages = elsewhere.await.map_err(|error| self.lookup_failed(error))?;
            page = Page::merged(std::iter::once(page).chain(pages), limit);
        }
        within_bytes(page, self.limits.memory_bytes_max)
    }

    /// Takes updates in, all but their operands' shapes checked.
    fn take_updates(
        &mut self,
        table: usize,
        updates: Updates,
        records: Vec<u32>,
        outcomes: Option<wit::tables::Outcomes>,
    ) -> Result<(), Error> {
        let count = updates.keys.len();
        self.check_records(&records, count)?;
        let outcomes = outcomes.map(|outcomes| self.outcomes_of(outcomes, count)).transpose()?;
        let Updates { keys, operands, expected, .. } = &updates;
        let given = [keys, &operands.items, &expected.items].map(|column| column.bytes().len());
        let asked = outcomes.as_ref().map_or(0, |outcomes| outcomes.records.byte_len());
        let items = if outcomes.is_some() { 2 * count } else { count };
        self.retain(items, given.iter().sum::<usize>() + asked)?;
        if count > 0 {
            self.call.effects.updates.push(TableUpdates { table, updates, records, outcomes });
        }
        Ok(())
    }

    /// Their times are those of the records that cause them: see [`with_times`].
    fn outcomes_of(&self, outcomes: wit::tables::Outcomes, count: usize) -> Result<Outcomes, Error> {
        let port = self.port(&outcomes.port)?;
        let (keys, values) = (column(outcomes.keys)?, column(outcomes.values)?);
        if keys.len() != count || values.len() != count {
            return Err(Error::Malformed(format!(
                "{count} updates, but {} keys and {} values of outcomes",
                keys.len(),
                values.len()
            )));
        }
        Ok(Outcomes { port, records: Batch { keys, values, times: vec![0; count] } })
    }

    fn update_all(
        &mut self,
        table: &str,
        keys: Column,
        op: wit::tables::Op,
        values: Column,
        records: Vec<u32>,
        outcomes: Option<wit::tables::Outcomes>,
    ) -> Result<(), Error> {
        let table = self.used(table, Want::Update)?;
        let op = op_of(op)?;
        let operands = operands_of(op, &keys, values)?;
        let updates = Updates { op, keys, operands, expected: Operands::default(), times: Vec::new() };
        self.take_updates(table, updates, records, outcomes)
    }

    fn compare_and_put_all(
        &mut self,
        table: &str,
        keys: Column,
        expected: wit::types::OptionalColumn,
        values: wit::types::OptionalColumn,
        records: Vec<u32>,
        outcomes: Option<wit::tables::Outcomes>,
    ) -> Result<(), Error> {
        let table = self.used(table, Want::Update)?;
        let (expected, operands) = (optional("expected", expected)?, optional("values", values)?);
        for (name, items) in [("expected values", &expected.items), ("values", &operands.items)] {
            check_count(&keys, items, name)?;
        }
        check_sizes(&operands.items)?;
        let updates = Updates { op: Op::CompareAndPut, keys, operands, expected, times: Vec::new() };
        self.take_updates(table, updates, records, outcomes)
    }

    fn send_all(&mut self, table: &str, sent: wit::types::Batch, records: Vec<u32>) -> Result<(), Error> {
        let table = self.used(table, Want::Send)?;
        let batch = batch(sent)?;
        self.check_records(&records, batch.len())?;
        self.retain(batch.len(), batch.byte_len())?;
        if !batch.is_empty() {
            self.call.effects.sent.push(Sent { table, batch, records });
        }
        Ok(())
    }
}

/// Gives outcomes, and updates of versioned tables, the event times of the records that cause them. `times` are those of the call's batch, `uses` its operator's.
pub(super) fn with_times(mut updates: Vec<TableUpdates>, times: &[i64], uses: &[Use]) -> Vec<TableUpdates> {
    for TableUpdates { table, updates, records, outcomes } in &mut updates {
        let times = || records.iter().map(|&record| times[record as usize]).collect();
        if let Some(outcomes) = outcomes {
            outcomes.records.times = times();
        }
        if uses[*table].versioned {
            updates.times = times();
        }
    }
    updates
}

/// Whether a lookup may wait.
fn check_waiting(name: &str, waiting: Waiting) -> Result<(), Error> {
    let why = match waiting {
        Waiting::Allowed => return Ok(()),
        Waiting::Serializable => "a serializable operator does not wait",
        Waiting::Circular => {
            "how far the table's owner has come depends on this operator itself, so it would wait for ever"
        }
    };
    Err(Error::NotAllowed(format!("`{name}` cannot be looked up with `wait`: {why}")))
}

/// What is seen, and how much older that may be where it comes from another host: this host's own answer is never older.
fn consistency_of(consistency: wit::tables::Consistency) -> Result<(Consistency, Option<Staleness>), Error> {
    use wit::tables::Consistency as Asked;
    Ok(match consistency {
        Asked::Live => (Consistency::Live, None),
        Asked::BoundedMs(ms) => (Consistency::Live, Some(Staleness::Time(Duration::from_millis(ms)))),
        Asked::BoundedEpochs(epochs) => (Consistency::Live, Some(Staleness::Epochs(epochs))),
        Asked::Committed => (Consistency::Committed, None),
        Asked::AsOf(epoch) => (Consistency::AsOf(epoch), None),
        Asked::Other(name) => {
            return Err(Error::Other(format!("this host knows no consistency `{}`", name.escape_debug())));
        }
    })
}

fn op_of(op: wit::tables::Op) -> Result<Op, Error> {
    use wit::tables::Op as Asked;
    Ok(match op {
        Asked::Put => Op::Put,
        Asked::PutIfAbsent => Op::PutIfAbsent,
        Asked::Delete => Op::Delete,
        Asked::AddS64 => Op::Add(Number::S64),
        Asked::AddF32 => Op::Add(Number::F32),
        Asked::AddF64 => Op::Add(Number::F64),
        Asked::MinS64 => Op::Min(Number::S64),
        Asked::MaxS64 => Op::Max(Number::S64),
        Asked::MinF32 => Op::Min(Number::F32),
        Asked::MaxF32 => Op::Max(Number::F32),
        Asked::MinF64 => Op::Min(Number::F64),
        Asked::MaxF64 => Op::Max(Number::F64),
        Asked::Append(0) => return Err(Error::Malformed("`append` keeps at least 1 item, not 0".to_owned())),
        Asked::Append(items_max) => Op::Append { items_max },
        Asked::Other(name) => {
            return Err(Error::Other(format!("this host knows no operation `{}`", name.escape_debug())));
        }
    })
}

fn operands_of(op: Op, keys: &Column, values: Column) -> Result<Operands, Error> {
    if op == Op::Delete {
        if !values.is_empty() {
            return Err(Error::Malformed(format!("`delete` takes no values, but there are {}", values.len())));
        }
        let nothing = keys.iter().map(|_| b"".as_slice()).collect();
        return Ok(Operands { items: nothing, present: vec![false; keys.len()] });
    }
    check_count(keys, &values, "values")?;
    check_sizes(&values)?;
    if let Op::Add(number) | Op::Min(number) | Op::Max(number) = op {
        check_widths(&values, number.width())?;
    }
    Ok(Operands { items: values, present: Vec::new() })
}

fn check_count(keys: &Column, items: &Column, name: &str) -> Result<(), Error> {
    if items.len() == keys.len() {
        return Ok(());
    }
    Err(Error::Malformed(format!("{} keys, but {} {name}", keys.len(), items.len())))
}

fn check_widths(operands: &Column, width: usize) -> Result<(), Error> {
    match operands.iter().enumerate().find(|(_, operand)| !operand.len().is_multiple_of(width)) {
        None => Ok(()),
        Some((index, operand)) => Err(Error::Malformed(format!(
            "value {index} has {} bytes, which is no vector of numbers of {width} bytes",
            operand.len()
        ))),
    }
}

fn check_sizes(values: &Column) -> Result<(), Error> {
    match values.iter().find(|value| value.len() > VALUE_BYTES_MAX) {
        None => Ok(()),
        Some(value) => Err(Error::LimitExceeded(format!(
            "a value of an update has at most {VALUE_BYTES_MAX} bytes; reached {}",
            value.len()
        ))),
    }
}

fn optional(name: &str, given: wit::types::OptionalColumn) -> Result<Operands, Error> {
    let items = column(given.items)?;
    if given.present.len() != items.len() {
        return Err(Error::Malformed(format!(
            "`{name}` has {} items, but says of {} whether they are there",
            items.len(),
            given.present.len()
        )));
    }
    let absent = |index: &usize| given.present[*index] == 0;
    if let Some(index) = (0..items.len()).filter(absent).find(|&index| !items.get(index).is_empty()) {
        return Err(Error::Malformed(format!("item {index} of `{name}` is absent, but not empty")));
    }
    let present = given.present.iter().map(|&present| present != 0).collect();
    Ok(Operands { items, present })
}

/// The front part of `page` that takes at most `bytes_max` bytes.
fn within_bytes(page: Page, bytes_max: u64) -> Result<Page, Error> {
    let bytes = |index: usize| (page.keys.range(index).len() + page.values.range(index).len()) as u64;
    let mut sum = 0;
    let first_beyond = (0..page.keys.len()).find(|&index| {
        sum += bytes(index);
        sum > bytes_max
    });
    match first_beyond {
        None => Ok(page),
        Some(0) => {
            Err(Error::LimitExceeded(format!("a key and its value are more than `limits.memory`, {bytes_max} bytes")))
        }
        Some(end) => {
            let front = |column: &Column| {
                let mut front = Column::default();
                front.extend_from(column, 0..end);
                front
            };
            let next = Some(page.keys.get(end).to_vec());
            Ok(Page { keys: front(&page.keys), values: front(&page.values), next })
        }
    }
}

fn into_wit(column: Column) -> wit::types::Column {
    let (bytes, ends) = column.into_parts();
    wit::types::Column { bytes, ends }
}

impl wit::tables::Host for Host {
    async fn get_many(
        &mut self,
        table: String,
        keys: wit::types::Column,
        consistency: wit::tables::Consistency,
    ) -> wasmtime::Result<Result<wit::types::OptionalColumn, Error>> {
        Ok(self.look_up(&table, column(keys), consistency).await)
    }

    async fn get(
        &mut self,
        table: String,
        key: Vec<u8>,
        consistency: wit::tables::Consistency,
    ) -> wasmtime::Result<Result<Option<Vec<u8>>, Error>> {
        let values = self.look_up(&table, Ok(one(&key)), consistency).await;
        Ok(values.map(|values| (values.present == [1]).then_some(values.items.bytes)))
    }

    async fn get_many_at(
        &mut self,
        table: String,
        keys: wit::types::Column,
        times: Vec<i64>,
        wait: bool,
    ) -> wasmtime::Result<Result<wit::types::OptionalColumn, Error>> {
        Ok(self.look_up_as_of_time(&table, column(keys), &times, wait).await)
    }

    async fn scan(
        &mut self,
        table: String,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: u32,
        consistency: wit::tables::Consistency,
    ) -> wasmtime::Result<Result<wit::tables::Page, Error>> {
        let page = self.scan_page(&table, &from, to.as_deref(), limit, consistency).await;
        Ok(page.map(|page| wit::tables::Page {
            keys: into_wit(page.keys),
            values: into_wit(page.values),
            next: page.next,
        }))
    }

    fn update_many(
        &mut self,
        table: String,
        keys: wit::types::Column,
        op: wit::tables::Op,
        values: wit::types::Column,
        records: Vec<u32>,
        outcomes: Option<wit::tables::Outcomes>,
    ) -> wasmtime::Result<Result<(), Error>> {
        let columns = column(keys).and_then(|keys| Ok((keys, column(values)?)));
        Ok(columns.and_then(|(keys, values)| self.update_all(&table, keys, op, values, records, outcomes)))
    }

    fn update(
        &mut self,
        table: String,
        key: Vec<u8>,
        op: wit::tables::Op,
        value: Vec<u8>,
        record_index: u32,
    ) -> wasmtime::Result<Result<(), Error>> {
        let is_nothing = matches!(op, wit::tables::Op::Delete) && value.is_empty();
        let values = if is_nothing { Column::default() } else { one(&value) };
        Ok(self.update_all(&table, one(&key), op, values, vec![record_index], None))
    }

    fn compare_and_put_many(
        &mut self,
        table: String,
        keys: wit::types::Column,
        expected: wit::types::OptionalColumn,
        values: wit::types::OptionalColumn,
        records: Vec<u32>,
        outcomes: Option<wit::tables::Outcomes>,
    ) -> wasmtime::Result<Result<(), Error>> {
        let keys = column(keys);
        Ok(keys.and_then(|keys| self.compare_and_put_all(&table, keys, expected, values, records, outcomes)))
    }

    fn send(
        &mut self,
        table: String,
        sent: wit::types::Batch,
        records: Vec<u32>,
    ) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.send_all(&table, sent, records))
    }
}

#[cfg(test)]
mod tests;
