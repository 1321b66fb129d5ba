//! Testing a function natively, without Wasm: the same core runs it, over a host in memory.
//!
//! The [`Harness`] keeps the contract as the real host does: a batch's effects are applied together or not at all, a refused record's
//! effects are dropped, a record that makes the function panic is found, set aside and the rest is run again on a fresh instance.

mod memory;
#[cfg(test)]
mod tests;
mod used;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use serde::de::DeserializeOwned;

use crate::bindings::wasmill::operator::types::Batch;
use crate::codec::Codec;
use crate::column::NO_TIME;
use crate::runner::{Runner, report_panic};
use crate::{Function, Level, Table, UsedTable};

pub use memory::Calls;
use memory::{Effects, MemoryHost};
pub use used::{Asked, Change, OtherTable, Sent, Updated, Values};

/// A record for [`Harness::process`], without an event time.
pub fn record(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Input {
    Input { key: key.as_ref().to_vec(), value: value.as_ref().to_vec(), time: None }
}

/// A record that comes back from an update that was asked for by [`Context::update_asking`](crate::Context::update_asking).
pub fn outcome(key: impl AsRef<[u8]>, changed: bool, tag: impl AsRef<[u8]>) -> Input {
    record(key, [&[u8::from(changed)], tag.as_ref()].concat())
}

/// A record to be processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    key: Vec<u8>,
    value: Vec<u8>,
    time: Option<i64>,
}

impl Input {
    /// The same record with an event time, in milliseconds since the Unix epoch.
    pub fn at(self, time: i64) -> Self {
        Self { time: Some(time), ..self }
    }
}

/// A record that the function has emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// The port.
    pub port: String,
    /// The key.
    pub key: Vec<u8>,
    /// The record itself.
    pub value: Vec<u8>,
    /// The event time, in milliseconds since the Unix epoch.
    pub time: Option<i64>,
    /// The place of the record that caused it, in what was given to [`Harness::process`].
    pub cause: usize,
}

impl Emitted {
    /// The key as text, with replacement characters where it is not UTF-8.
    pub fn key_text(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }

    /// The value as text, with replacement characters where it is not UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.value).into_owned()
    }

    /// The value read as JSON.
    ///
    /// # Panics
    /// When the value is not JSON, or does not fit `T`.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.value)
            .unwrap_or_else(|error| panic!("`{}` is not the JSON that the test expects: {error}", self.text()))
    }
}

/// A record that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its place in what was given to [`Harness::process`].
    pub index: usize,
    /// Why, in the function's words.
    pub reason: String,
}

/// What a batch has come to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// What was emitted, port by port in the order of emission.
    pub emitted: Vec<Emitted>,
    /// The updates of tables that are used beside the function's own: those of one table in their order. They are not applied: that is their owner's part.
    pub updates: Vec<Updated>,
    /// What was sent to the owners of such tables.
    pub sent: Vec<Sent>,
    /// The records that failed: refused, or the cause of a panic.
    pub rejected: Vec<Rejected>,
    /// The records that have to wait, by their places: the first that asked for what the owner of a table has not come to, and all behind it. They have had no effect; give them to
    /// [`Harness::process`] again.
    pub waiting: Vec<usize>,
    /// The log lines, those of failed attempts included.
    pub log: Vec<(Level, String)>,
    /// What was counted, by name.
    pub counts: BTreeMap<String, u64>,
    /// The gauges that were set, by name.
    pub gauges: BTreeMap<String, f64>,
}

impl Outcome {
    /// The values emitted on `port`, as text.
    pub fn texts_at(&self, port: &str) -> Vec<String> {
        self.emitted.iter().filter(|emitted| emitted.port == port).map(Emitted::text).collect()
    }

    /// The values emitted on `out`, as text.
    pub fn texts(&self) -> Vec<String> {
        self.texts_at("out")
    }
}

/// Runs a function natively over a host in memory.
pub struct Harness<F> {
    config: String,
    host: Rc<MemoryHost>,
    runner: Runner<F>,
}

impl<F: Function> Harness<F> {
    /// An instance with `config` as JSON; `"{}"` is that of a manifest without one.
    ///
    /// # Panics
    /// When the function's `init` fails; see [`Harness::try_new`].
    pub fn new(config: impl Into<String>) -> Self {
        Self::try_new(config).unwrap_or_else(|error| panic!("`init` failed: {error}"))
    }

    /// As [`Harness::new`].
    ///
    /// # Errors
    /// What the function's `init` says.
    pub fn try_new(config: impl Into<String>) -> Result<Self, String> {
        let config = config.into();
        let host = Rc::new(MemoryHost::new(F::describe()));
        let runner = Runner::new(&config, host.clone())?;
        Ok(Self { config, host, runner })
    }

    /// Says which keys this task owns; without it, all.
    pub fn owning(self, owns: impl Fn(&[u8]) -> bool + 'static) -> Self {
        self.host.set_owner(Box::new(owns));
        self
    }

    /// Processes `records` as one batch, and again without a record that makes it fail, as the host does.
    pub fn process(&mut self, records: impl IntoIterator<Item = Input>) -> Outcome {
        let records: Vec<(usize, Input)> = records.into_iter().enumerate().collect();
        let mut outcome = Outcome::default();
        self.process_part(records, &mut outcome);
        outcome.rejected.sort_by_key(|rejected| rejected.index);
        outcome
    }

    /// The value that `table` has for `key`.
    ///
    /// # Panics
    /// When the stored value does not decode.
    pub fn state<C: Codec>(&self, table: &Table<C>, key: impl AsRef<[u8]>) -> Option<C::Value> {
        let bytes = self.host.stored(table.name(), key.as_ref())?;
        Some(C::decode(&bytes).unwrap_or_else(|error| panic!("a value of table `{}`: {error}", table.name())))
    }

    /// The value that a versioned `table` had for `key` at an event time. Nothing is ever forgotten here, however short its span.
    ///
    /// # Panics
    /// When the stored value does not decode.
    pub fn state_as_of<C: Codec>(&self, table: &Table<C>, key: impl AsRef<[u8]>, time: i64) -> Option<C::Value> {
        let bytes = self.host.stored_as_of(table.name(), key.as_ref(), time)?;
        Some(C::decode(&bytes).unwrap_or_else(|error| panic!("a value of table `{}`: {error}", table.name())))
    }

    /// Sets the stored bytes of a key, as an earlier batch or an earlier version of the function would have.
    pub fn store(&mut self, table: &str, key: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) {
        self.host.store(table, key.as_ref(), bytes.as_ref());
    }

    /// Stores a value as another version of the function has, for which `table` stands, and migrates it.
    ///
    /// # Panics
    /// When the function does not migrate it.
    pub fn store_migrated<C: Codec>(&mut self, table: &Table<C>, key: impl AsRef<[u8]>, value: &C::Value) {
        let (mut keys, mut values) = (
            crate::bindings::wasmill::operator::types::Column::empty(),
            crate::bindings::wasmill::operator::types::Column::empty(),
        );
        keys.push(key.as_ref());
        let encoded = C::encode(value, &mut values.bytes);
        encoded.unwrap_or_else(|error| panic!("a value of table `{}`: {error}", table.name()));
        values.end_item();
        let made = F::describe().migrations().migrate(table.name(), table.schema_version, &keys, &values);
        let made = made.unwrap_or_else(|error| panic!("{error}"));
        self.host.store(table.name(), key.as_ref(), made.get(0));
    }

    /// A table that the function uses beside its own, to be filled by the test. Whatever consistency the function asks for, it finds what is there
    /// now; every table can be scanned.
    ///
    /// # Panics
    /// When the function has not declared the table.
    pub fn other<C: Codec>(&mut self, table: &UsedTable<C>) -> OtherTable<'_, C> {
        OtherTable::new(&self.host, table)
    }

    /// The host calls made so far, failed attempts included.
    pub fn calls(&self) -> Calls {
        self.host.calls()
    }

    /// Returns whether what comes behind `records` may go on; else they wait.
    fn process_part(&mut self, mut records: Vec<(usize, Input)>, outcome: &mut Outcome) -> bool {
        while !records.is_empty() {
            let result = self.attempt(&records);
            let is_early = self.host.take_not_yet();
            let effects = self.host.take_effects(result.is_ok() && !is_early);
            outcome.log.extend(effects.log.iter().cloned());
            let reason = match result {
                Ok(()) if !is_early => {
                    self.apply(effects, &records, outcome);
                    return true;
                }
                result => result.err().unwrap_or_default(),
            };
            self.runner = Runner::new(&self.config, self.host.clone())
                .unwrap_or_else(|error| panic!("`init` succeeded at first, and then failed: {error}"));
            let is_alone = records.len() == 1;
            let culprit = effects.culprit.map(|record| record as usize).or(is_alone.then_some(0));
            match culprit.filter(|_| !is_early) {
                Some(culprit) => {
                    let (index, _) = records.remove(culprit);
                    outcome.rejected.push(Rejected { index, reason });
                }
                None if is_alone => {
                    outcome.waiting.extend(records.iter().map(|(index, _)| *index));
                    return false;
                }
                None => {
                    let second = records.split_off(records.len() / 2);
                    if !self.process_part(std::mem::replace(&mut records, second), outcome) {
                        outcome.waiting.extend(records.iter().map(|(index, _)| *index));
                        return false;
                    }
                }
            }
        }
        true
    }

    fn attempt(&mut self, records: &[(usize, Input)]) -> Result<(), String> {
        let mut batch = Batch::empty();
        for (_, record) in records {
            batch.keys.push(&record.key);
            batch.values.push(&record.value);
            batch.times.push(record.time.unwrap_or(NO_TIME));
        }
        self.host.begin_batch(&batch);
        catch_unwind(AssertUnwindSafe(|| self.runner.process(batch))).unwrap_or_else(|panic| {
            let message = format!("panicked: {}", panic_text(&*panic));
            report_panic(&*self.host, &message);
            Err(message)
        })
    }

    fn apply(&self, effects: Effects, records: &[(usize, Input)], outcome: &mut Outcome) {
        for (record, reason) in &effects.rejected {
            outcome.rejected.push(Rejected { index: records[*record as usize].0, reason: reason.clone() });
        }
        for emitted in effects.emitted {
            let cause = records[emitted.cause].0;
            outcome.emitted.push(Emitted { cause, ..emitted });
        }
        for updated in effects.updates {
            outcome.updates.push(Updated { cause: records[updated.cause].0, ..updated });
        }
        for sent in effects.sent {
            outcome.sent.push(Sent { cause: records[sent.cause].0, ..sent });
        }
        for (name, by) in effects.counts {
            *outcome.counts.entry(name).or_default() += by;
        }
        outcome.gauges.extend(effects.gauges);
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(without a message)")
}
