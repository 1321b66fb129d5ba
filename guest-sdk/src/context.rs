//! What a function can do while it works on a record: state, output, log, metrics; in `others`, tables of others.

mod others;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use serde::Serialize;

use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::types::Batch;
use crate::codec::Codec;
use crate::column::NO_TIME;
use crate::description::{Description, Port};
use crate::error::{Reject, StateError};
use crate::host::Host;
use crate::keys::KeyIndex;
use crate::lookup::Lookups;
use crate::output::{Buffer, Outputs};
use crate::table::{Caches, Entry, Failure, Table};
use crate::update::Updates;

/// What a function can do while it works on a record.
///
/// Nothing that has an effect reaches the host before the batch ends, except log lines. An entry may be held while records are emitted and other
/// tables are used; two entries of one table may not be held at once.
pub struct Context {
    host: Rc<dyn Host>,
    input: Rc<Batch>,
    /// Whether the batch's records are apart: each sees the state as the call found it, and shares nothing with the others.
    is_apart: Cell<bool>,
    record: Cell<u32>,
    time: Cell<i64>,
    keys: RefCell<KeyIndex>,
    caches: Caches,
    outputs: RefCell<Outputs>,
    metrics: RefCell<Metrics>,
    /// The names of the tables that are used beside the function's own.
    uses: Vec<&'static str>,
    lookups: RefCell<Lookups>,
    updates: RefCell<Updates>,
    /// Why the batch fails as a whole.
    batch_failure: RefCell<Option<String>>,
}

impl Context {
    /// The value that `table` has for the record's own key.
    ///
    /// # Errors
    /// When the table is not declared or an entry of it is still held, when the stored value does not decode, and when the host refuses the read.
    pub fn state<C: Codec>(&self, table: &Table<C>) -> Result<Entry<'_, C>, StateError> {
        let keys = &mut *self.keys.borrow_mut();
        keys.build(&self.input);
        let slot = keys.slot_of_record(self.record.get());
        self.caches.entry(table, slot, self.record.get(), keys, &self.input, &*self.host)
    }

    /// The value that `table` has for any key that this task owns: the keys of its own records. A key that no record of the
    /// batch has costs a host call of its own.
    ///
    /// # Errors
    /// As [`Context::state`]; also when the key belongs to another task.
    pub fn state_of<C: Codec>(&self, table: &Table<C>, key: impl AsRef<[u8]>) -> Result<Entry<'_, C>, StateError> {
        let keys = &mut *self.keys.borrow_mut();
        keys.build(&self.input);
        let slot = keys.slot_of_key(&self.input, self.record.get(), key.as_ref());
        self.caches.entry(table, slot, self.record.get(), keys, &self.input, &*self.host)
    }

    /// Emits a record on `out`, with the event time of the record being worked on.
    pub fn emit(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.to(&Port::OUT).emit(key, value);
    }

    /// As [`Context::emit`], on another port.
    pub fn emit_at(&self, port: &Port, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.to(port).emit(key, value);
    }

    /// As [`Context::emit`], with `value` as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON (a map whose keys are no strings); nothing is emitted then.
    pub fn emit_json(&self, key: impl AsRef<[u8]>, value: &(impl Serialize + ?Sized)) -> Result<(), Reject> {
        self.to(&Port::OUT).emit_json(key, value)
    }

    /// As [`Context::emit`], with a value that `write` puts together in its place: no copy, no allocation.
    ///
    /// # Errors
    /// What `write` returns; nothing is emitted then.
    ///
    /// # Panics
    /// When `write` itself emits.
    pub fn emit_with(
        &self,
        key: impl AsRef<[u8]>,
        write: impl FnOnce(&mut Buffer<'_>) -> Result<(), Reject>,
    ) -> Result<(), Reject> {
        self.to(&Port::OUT).emit_with(key, write)
    }

    /// What to emit with: a port, and a time other than the record's where [`Emitter::time`] sets one.
    pub fn to(&self, port: &Port) -> Emitter<'_> {
        Emitter { context: self, port: *port, time: self.time.get() }
    }

    /// Writes a line to the job's log. It is kept even when the batch fails; lines past the operator's limit are counted only.
    pub fn log(&self, level: Level, message: impl fmt::Display) {
        self.host.log(level, &message.to_string());
    }

    /// [`Context::log`] at level `debug`.
    pub fn debug(&self, message: impl fmt::Display) {
        self.log(Level::Debug, message);
    }

    /// [`Context::log`] at level `info`.
    pub fn info(&self, message: impl fmt::Display) {
        self.log(Level::Info, message);
    }

    /// [`Context::log`] at level `warn`.
    pub fn warn(&self, message: impl fmt::Display) {
        self.log(Level::Warn, message);
    }

    /// [`Context::log`] at level `error`.
    pub fn error(&self, message: impl fmt::Display) {
        self.log(Level::Error, message);
    }

    /// Adds to a counter, for the people who run the job. It counts once the batch succeeds; what a refused record has counted is dropped.
    pub fn count(&self, name: &'static str, by: u64) {
        self.metrics.borrow_mut().of_record.push((name, Metric::Count(by)));
    }

    /// Sets a gauge, as [`Context::count`] counts.
    pub fn gauge(&self, name: &'static str, value: f64) {
        self.metrics.borrow_mut().of_record.push((name, Metric::Gauge(value)));
    }

    pub(crate) fn new(description: &Description, host: Rc<dyn Host>) -> Self {
        Self {
            host,
            input: Rc::new(Batch::empty()),
            is_apart: Cell::new(false),
            record: Cell::new(0),
            time: Cell::new(NO_TIME),
            keys: RefCell::new(KeyIndex::empty()),
            caches: Caches::new(description.caches()),
            outputs: RefCell::new(Outputs::new(description.ports())),
            metrics: RefCell::default(),
            uses: description.used().to_vec(),
            lookups: RefCell::default(),
            updates: RefCell::default(),
            batch_failure: RefCell::default(),
        }
    }

    /// Takes a batch in, and forgets the one before.
    pub(crate) fn begin_batch(&mut self, input: Rc<Batch>) {
        self.keys.get_mut().clear();
        self.caches.clear();
        self.outputs.get_mut().clear();
        self.lookups.get_mut().clear();
        self.updates.get_mut().clear();
        *self.metrics.get_mut() = Metrics::default();
        self.input = input;
        let is_apart = self.host.is_apart();
        self.is_apart.set(is_apart);
        self.keys.get_mut().set_apart(is_apart);
        self.lookups.get_mut().set_apart(is_apart);
    }

    /// Says which record's lookups are gathered.
    pub(crate) fn begin_prefetch(&self, record: u32) {
        self.record.set(record);
    }

    pub(crate) fn begin_record(&mut self, record: u32, time: i64) {
        self.record.set(record);
        self.time.set(time);
        self.caches.begin_record();
    }

    pub(crate) fn end_record(&mut self) {
        self.metrics.get_mut().keep(self.record.get(), self.is_apart.get());
    }

    /// Takes back all effects of the current record and reports it to the host.
    ///
    /// # Errors
    /// When its changes of state cannot be told apart from those of earlier records: then the whole batch has to fail, and be run again without it.
    pub(crate) fn refuse_record(&mut self, reject: Reject) -> Result<(), Failure> {
        let record = self.record.get();
        if !self.caches.undo(record) {
            return Err(Failure { record: Some(record), reason: reject.into_reason() });
        }
        self.outputs.get_mut().undo(record);
        self.updates.get_mut().undo(record);
        self.metrics.get_mut().of_record.clear();
        self.host.reject(record, reject.reason());
        Ok(())
    }

    /// Hands all effects of the batch to the host.
    ///
    /// # Errors
    /// When a value has no encoding, or the host refuses an effect.
    pub(crate) fn end_batch(&mut self) -> Result<(), Failure> {
        self.caches.write_back(self.keys.get_mut(), &self.input, &*self.host)?;
        self.outputs.get_mut().hand_over(&*self.host)?;
        self.updates.get_mut().hand_over(&*self.host)?;
        self.metrics.get_mut().hand_over(&*self.host);
        Ok(())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("record", &self.record.get()).finish_non_exhaustive()
    }
}

/// Emits records on one port: see [`Context::to`].
#[derive(Debug, Clone, Copy)]
pub struct Emitter<'c> {
    context: &'c Context,
    port: Port,
    time: i64,
}

impl Emitter<'_> {
    /// Gives what is emitted this event time (milliseconds since the Unix epoch), or none.
    pub fn time(self, time: Option<i64>) -> Self {
        Self { time: time.unwrap_or(NO_TIME), ..self }
    }

    /// As [`Context::emit`].
    pub fn emit(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let bytes = value.as_ref();
        let copied = self.emit_with(key, |buffer| {
            buffer.extend_from_slice(bytes);
            Ok(())
        });
        copied.expect("copying bytes does not fail");
    }

    /// As [`Context::emit_json`].
    ///
    /// # Errors
    /// As [`Context::emit_json`].
    pub fn emit_json(&self, key: impl AsRef<[u8]>, value: &(impl Serialize + ?Sized)) -> Result<(), Reject> {
        self.emit_with(key, |buffer| buffer.push_json(value))
    }

    /// As [`Context::emit_with`].
    ///
    /// # Errors
    /// As [`Context::emit_with`].
    ///
    /// # Panics
    /// As [`Context::emit_with`].
    pub fn emit_with(
        &self,
        key: impl AsRef<[u8]>,
        write: impl FnOnce(&mut Buffer<'_>) -> Result<(), Reject>,
    ) -> Result<(), Reject> {
        let outputs = self.context.outputs.try_borrow_mut();
        let mut outputs = outputs.expect("a closure given to `emit_with` must not emit by itself");
        outputs.emit(self.port, self.context.record.get(), key.as_ref(), self.time, write)
    }
}

#[derive(Default)]
struct Metrics {
    of_record: Vec<(&'static str, Metric)>,
    counts: Vec<Figures<u64>>,
    gauges: Vec<Figures<f64>>,
}

enum Metric {
    Count(u64),
    Gauge(f64),
}

/// What becomes of a metric: of the batch as a whole, or, where its records are apart, of each that changes it.
struct Figures<T> {
    name: &'static str,
    values: Vec<T>,
    /// Empty where they are the batch's.
    records: Vec<u32>,
}

impl Metrics {
    /// Adds what `record`, the current one, has counted to the batch's figures.
    fn keep(&mut self, record: u32, is_apart: bool) {
        let record = is_apart.then_some(record);
        for (name, metric) in self.of_record.drain(..) {
            match metric {
                Metric::Count(by) => {
                    let sum = figure(&mut self.counts, name, record);
                    *sum = sum.saturating_add(by);
                }
                Metric::Gauge(value) => *figure(&mut self.gauges, name, record) = value,
            }
        }
    }

    fn hand_over(&self, host: &dyn Host) {
        for Figures { name, values, records } in &self.counts {
            match records.as_slice() {
                [] => values.iter().for_each(|by| host.count(name, *by)),
                records => host.count_many(name, values, records),
            }
        }
        for Figures { name, values, records } in &self.gauges {
            match records.as_slice() {
                [] => values.iter().for_each(|value| host.gauge(name, *value)),
                records => host.gauge_many(name, values, records),
            }
        }
    }
}

/// The figure of `name` for a record, or for the batch. A function has few: a list is quicker than a map.
fn figure<'m, T: Default>(figures: &'m mut Vec<Figures<T>>, name: &'static str, record: Option<u32>) -> &'m mut T {
    let index = figures.iter().position(|known| known.name == name).unwrap_or_else(|| {
        figures.push(Figures { name, values: Vec::new(), records: Vec::new() });
        figures.len() - 1
    });
    let Figures { values, records, .. } = &mut figures[index];
    if values.is_empty() || records.last().copied() != record {
        values.push(T::default());
        records.extend(record);
    }
    values.last_mut().expect("it has one from just above on")
}
