//! Functions in native code, called where a job calls its components: they read through the same tables and hand over the same effects.
//!
//! A call may be suspended between any two records, as a guest is at the end of its slice, and fails now and then after it has done its work.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::dice::Dice;
use crate::plugin::callable::{Callable, Process, Surroundings};
use crate::plugin::{
    BatchLog, Consistency, Description, Effects, Emitted, Failure, FailureKind, LookupError, OtherTables, Outcomes,
    PluginError, Readers, Records, Sent, StateReader, TableUpdates, Use, Writes,
};
use crate::record::{Batch, Column};
use crate::state::update::{Op, Operands, Updates};

/// A call fails once in so many times.
const FAILS_ONCE_IN: usize = 40;
/// A call is suspended behind a record once in so many times.
const SUSPENDED_ONCE_IN: usize = 4;

/// What a function does with one record.
type OnRecord = fn(&mut Call<'_>, &[u8], &[u8]);

/// A function, with the chance that its calls are subject to.
pub(super) struct Native {
    description: Description,
    on_record: OnRecord,
    fails: bool,
    dice: Mutex<Dice>,
}

impl Native {
    /// A function that keeps `tables`, which are open to all, uses others by the names `uses`, and emits on `ports` beside the first.
    pub(super) fn new(tables: &[&str], uses: &[&str], ports: &[&str], on_record: OnRecord, dice: Dice) -> Self {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
        let description = Description {
            tables: tables.iter().map(|&name| (name.to_owned(), 1)).collect(),
            open_tables: names(tables),
            ordered_tables: names(tables),
            uses: names(uses),
            ports: [&[crate::plugin::DEFAULT_PORT], ports].concat().into_iter().map(str::to_owned).collect(),
            ..Description::default()
        };
        Self { description, on_record, fails: true, dice: Mutex::new(dice) }
    }
}

impl Native {
    /// The same function, whose tables keep what they have had for a span.
    pub(super) fn versioned(mut self, span_ms: u64) -> Self {
        let tables = self.description.tables.iter();
        self.description.versioned_tables = tables.map(|(name, _)| (name.clone(), span_ms)).collect();
        self
    }
}

impl Native {
    /// The same function, which says that it keeps records apart.
    pub(super) fn apart(mut self) -> Self {
        self.description.apart = true;
        self
    }

    /// The same function, whose calls do not fail.
    pub(super) fn calm(mut self) -> Self {
        self.fails = false;
        self
    }

    /// The same function; chance says whether it keeps records apart.
    pub(super) fn perhaps_apart(self) -> Self {
        let is_apart = self.dice.lock().once_in(2);
        if is_apart { self.apart() } else { self }
    }
}

impl Callable for Native {
    type Instance = NativeInstance;

    fn description(&self) -> &Description {
        &self.description
    }

    async fn instance(&self, surroundings: Surroundings<'_>) -> Result<NativeInstance, PluginError> {
        let Surroundings { state, others, uses, .. } = surroundings;
        let places = self.description.uses.iter().map(|name| {
            uses.iter().position(|used| used.name == *name).expect("the manifest names every table that is used")
        });
        let (places, dice) = (places.collect(), self.dice.lock().split());
        let (on_record, fails) = (self.on_record, self.fails);
        Ok(NativeInstance { state, others, uses, places, on_record, fails, dice })
    }
}

/// An instance of a [`Native`].
pub(super) struct NativeInstance {
    state: Arc<dyn StateReader>,
    others: Arc<dyn OtherTables>,
    uses: Arc<[Use]>,
    /// The place of each table that the function uses among those of the operator.
    places: Vec<usize>,
    on_record: OnRecord,
    fails: bool,
    dice: Dice,
}

impl Process for NativeInstance {
    async fn process(&mut self, batch: Batch, records: Records, _: &mut BatchLog) -> (Batch, Result<Effects, Failure>) {
        let mut call = Call {
            state: &*self.state,
            others: &*self.others,
            uses: &self.uses,
            places: &self.places,
            is_apart: records == Records::Apart,
            record: 0,
            time: 0,
            too_early: None,
            written: HashMap::new(),
            effects: Effects::default(),
        };
        for record in 0..batch.len() {
            if self.dice.once_in(SUSPENDED_ONCE_IN) {
                tokio::task::yield_now().await;
            }
            (call.record, call.time) = (record as u32, batch.times[record]);
            if call.is_apart {
                call.written.clear();
            }
            (self.on_record)(&mut call, batch.keys.get(record), batch.values.get(record));
        }
        if let Some(message) = call.too_early {
            return (batch, Err(Failure { kind: FailureKind::NotYet, message, culprit: None, said: None }));
        }
        let effects = call.effects;
        if self.dice.once_in(SUSPENDED_ONCE_IN) {
            tokio::task::yield_now().await;
        }
        if self.fails && self.dice.once_in(FAILS_ONCE_IN) {
            let message = "the simulation has it fail".to_owned();
            return (batch, Err(Failure { kind: FailureKind::Trap, message, culprit: None, said: None }));
        }
        (batch, Ok(effects))
    }

    fn running_time(&self) -> Duration {
        Duration::ZERO
    }
}

/// A call under way.
pub(super) struct Call<'a> {
    state: &'a dyn StateReader,
    others: &'a dyn OtherTables,
    uses: &'a [Use],
    places: &'a [usize],
    /// Whether each record is on its own, and what it reads is read for it.
    is_apart: bool,
    record: u32,
    /// The record's event time.
    time: i64,
    /// What it has asked for too early.
    too_early: Option<String>,
    written: HashMap<(usize, Vec<u8>), Vec<u8>>,
    effects: Effects,
}

fn one(item: &[u8]) -> Column {
    [item].into_iter().collect()
}

fn operand(item: Option<&[u8]>) -> Operands {
    match item {
        Some(item) => Operands { items: one(item), present: Vec::new() },
        None => Operands { items: one(b""), present: vec![false] },
    }
}

fn record(key: &[u8], value: &[u8], time: i64) -> Batch {
    let mut batch = Batch::default();
    batch.push(key, value, time);
    batch
}

impl Call<'_> {
    fn readers(&self) -> Readers<'static> {
        if self.is_apart { Readers::One(self.record) } else { Readers::All }
    }

    /// A value of one of the task's own tables, with what this call has written.
    pub(super) fn get(&self, table: usize, key: &[u8]) -> Option<Vec<u8>> {
        if let Some(value) = self.written.get(&(table, key.to_vec())) {
            return Some(value.clone());
        }
        let mut found = None;
        self.state
            .read(table, &one(key), self.readers(), &mut |_, value| found = value.map(<[u8]>::to_vec))
            .expect("the key is its own");
        found
    }

    /// Writes a value of one of the task's own tables.
    pub(super) fn put(&mut self, table: usize, key: &[u8], value: &[u8]) {
        self.written.insert((table, key.to_vec()), value.to_vec());
        self.effects.writes.push(Writes {
            table,
            keys: one(key),
            values: Some(one(value)),
            records: vec![self.record],
        });
    }

    /// Looks keys of a used table up as they are now, all at once.
    pub(super) fn look_up(&self, used: usize, keys: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let mut values = vec![None; keys.len()];
        let column: Column = keys.iter().copied().collect();
        let found = &mut |index: usize, value: Option<&[u8]>| values[index] = value.map(<[u8]>::to_vec);
        self.others
            .get_many(self.places[used], &column, self.readers(), Consistency::Live, found)
            .expect("it may be read");
        values
    }

    /// What a key of a used table had at the record's time, once its owner has come to it. Before that it is none, and the call is void.
    pub(super) fn look_up_waiting(&mut self, used: usize, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        let found = &mut |_: usize, found: Option<&[u8]>| value = found.map(<[u8]>::to_vec);
        match self.others.get_many_as_of_time(self.places[used], &one(key), &[self.time], true, self.readers(), found) {
            Ok(()) => value,
            Err(LookupError::NotYet(message)) => {
                self.too_early = Some(message);
                None
            }
            Err(error) => panic!("it may be read: {error:?}"),
        }
    }

    /// Changes a key of a used table. With `outcome`, a port and a record, what becomes of it is emitted there.
    pub(super) fn update(
        &mut self,
        used: usize,
        (op, key): (Op, &[u8]),
        (new, expected): (Option<&[u8]>, Option<&[u8]>),
        outcome: Option<(usize, &[u8], &[u8])>,
    ) {
        let is_conditional = op == Op::CompareAndPut;
        let updates = Updates {
            op,
            keys: one(key),
            operands: operand(new),
            expected: if is_conditional { operand(expected) } else { Operands::default() },
            times: if self.uses[self.places[used]].versioned { vec![self.time] } else { Vec::new() },
        };
        let outcomes = outcome.map(|(port, key, value)| Outcomes { port, records: record(key, value, self.time) });
        let (table, records) = (self.places[used], vec![self.record]);
        self.effects.updates.push(TableUpdates { table, updates, records, outcomes });
    }

    /// Adds to a number of a used table.
    pub(super) fn add(&mut self, used: usize, key: &[u8], by: i64) {
        let op = Op::Add(crate::state::update::Number::S64);
        self.update(used, (op, key), (Some(&by.to_le_bytes()), None), None);
    }

    /// Sends a record to the function that owns a used table.
    pub(super) fn send(&mut self, used: usize, key: &[u8], value: &[u8]) {
        let (table, records) = (self.places[used], vec![self.record]);
        self.effects.sent.push(Sent { table, batch: record(key, value, self.time), records });
    }

    /// Emits a record on a port.
    pub(super) fn emit(&mut self, port: usize, key: &[u8], value: &[u8]) {
        self.effects.emitted.push(Emitted { port, batch: record(key, value, self.time), records: vec![self.record] });
    }
}
