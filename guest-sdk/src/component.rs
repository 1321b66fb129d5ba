//! The component side: the imports as a [`Host`], and what [`export!`](crate::export) expands to.

use std::cell::RefCell;
use std::rc::Rc;

use crate::Function;
use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::tables::{self, Op, Outcomes, Page};
use crate::bindings::wasmill::operator::types::{Batch, Column, Error, OptionalColumn};
use crate::bindings::wasmill::operator::{
    culprit, declare, description::Descriptor, isolation, log, metrics, output, state,
};
use crate::host::Host;
use crate::runner::{Runner, report_panic};
use crate::used::Consistency;

struct Imports;

impl Host for Imports {
    fn get_many(&self, table: &str, keys: &Column) -> Result<OptionalColumn, Error> {
        state::get_many(table, keys)
    }

    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        state::get(table, key)
    }

    fn put_many(&self, table: &str, keys: &Column, values: &Column, records: &[u32]) -> Result<(), Error> {
        state::put_many(table, keys, values, records)
    }

    fn delete_many(&self, table: &str, keys: &Column, records: &[u32]) -> Result<(), Error> {
        state::delete_many(table, keys, records)
    }

    fn look_up_many(&self, table: &str, keys: &Column, consistency: Consistency) -> Result<OptionalColumn, Error> {
        tables::get_many(table, keys, &consistency.into())
    }

    fn look_up(&self, table: &str, key: &[u8], consistency: Consistency) -> Result<Option<Vec<u8>>, Error> {
        tables::get(table, key, &consistency.into())
    }

    fn look_up_many_at(&self, table: &str, keys: &Column, times: &[i64], wait: bool) -> Result<OptionalColumn, Error> {
        tables::get_many_at(table, keys, times, wait)
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: u32,
        consistency: Consistency,
    ) -> Result<Page, Error> {
        tables::scan(table, from, to, limit, &consistency.into())
    }

    fn update_many(
        &self,
        table: &str,
        keys: &Column,
        op: &Op,
        values: &Column,
        records: &[u32],
        outcomes: Option<&Outcomes>,
    ) -> Result<(), Error> {
        tables::update_many(table, keys, op, values, records, outcomes)
    }

    fn compare_and_put_many(
        &self,
        table: &str,
        keys: &Column,
        expected: &OptionalColumn,
        values: &OptionalColumn,
        records: &[u32],
        outcomes: Option<&Outcomes>,
    ) -> Result<(), Error> {
        tables::compare_and_put_many(table, keys, expected, values, records, outcomes)
    }

    fn send(&self, table: &str, sent: &Batch, records: &[u32]) -> Result<(), Error> {
        tables::send(table, sent, records)
    }

    fn emit(&self, port: &str, emitted: &Batch, records: &[u32]) -> Result<(), Error> {
        output::emit(port, emitted, records)
    }

    fn log(&self, level: Level, message: &str) {
        log::write(level, message);
    }

    fn count(&self, name: &str, by: u64) {
        metrics::count(name, by);
    }

    fn count_many(&self, name: &str, by: &[u64], records: &[u32]) {
        metrics::count_many(name, by, records);
    }

    fn gauge(&self, name: &str, value: f64) {
        metrics::gauge(name, value);
    }

    fn gauge_many(&self, name: &str, values: &[f64], records: &[u32]) {
        metrics::gauge_many(name, values, records);
    }

    fn reject(&self, record: u32, reason: &str) {
        culprit::reject(record, reason);
    }

    fn begin_record(&self, record: u32) {
        culprit::begin_record(record);
    }

    fn is_apart(&self) -> bool {
        isolation::is_apart()
    }

    fn read_for(&self, records: &[u32]) {
        isolation::read_for(records);
    }
}

/// The one instance of a component's function.
pub struct Instance<F> {
    runner: RefCell<Option<Runner<F>>>,
}

impl<F: Function> Instance<F> {
    /// An instance that waits for `init`.
    pub const fn new() -> Self {
        Self { runner: RefCell::new(None) }
    }

    /// The export `describe`.
    pub fn describe() -> Descriptor {
        report_panics();
        let description = F::describe();
        description.open_tables().iter().for_each(|table| declare::open_table(table));
        description.ordered_tables().iter().for_each(|table| declare::ordered_table(table));
        description.versioned_tables().iter().for_each(|(table, span_ms)| declare::versioned_table(table, *span_ms));
        description.used().iter().for_each(|table| declare::uses_table(table));
        description.migrations().sources().for_each(|(table, version)| declare::migrates_from(table, version));
        declare::apart();
        description.into_descriptor()
    }

    /// The export `migrate`.
    ///
    /// # Errors
    /// When a value does not migrate.
    pub fn migrate(table: &str, from: u32, keys: &Column, values: &Column) -> Result<Column, String> {
        F::describe().migrations().migrate(table, from, keys, values)
    }

    /// The export `init`.
    ///
    /// # Errors
    /// What the function's `init` says.
    pub fn init(&self, config: &str) -> Result<(), String> {
        report_panics();
        *self.runner.borrow_mut() = Some(Runner::new(config, Rc::new(Imports))?);
        Ok(())
    }

    /// The export `process`.
    ///
    /// # Errors
    /// Why the batch as a whole has failed.
    pub fn process(&self, input: Batch) -> Result<(), String> {
        match &mut *self.runner.borrow_mut() {
            Some(runner) => runner.process(input),
            None => Err("`process` was called before `init`".to_owned()),
        }
    }
}

impl<F: Function> Default for Instance<F> {
    fn default() -> Self {
        Self::new()
    }
}

/// A panic ends in a trap, which says nothing: log it and name the record first.
fn report_panics() {
    std::panic::set_hook(Box::new(|info| report_panic(&Imports, &info.to_string())));
}
