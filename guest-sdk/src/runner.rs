//! Runs a function over a batch, record by record.

use std::cell::Cell;
use std::rc::Rc;

use crate::Function;
use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::types::Batch;
use crate::config::Config;
use crate::context::Context;
use crate::host::Host;
use crate::lookup::Wants;
use crate::record::Record;
use crate::table::Failure;

thread_local! {
    /// The record being worked on, for whoever reports a panic.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// An instance of a function, with all that it needs to run.
pub(crate) struct Runner<F> {
    function: F,
    context: Context,
    host: Rc<dyn Host>,
}

impl<F: Function> Runner<F> {
    /// Prepares the function.
    ///
    /// # Errors
    /// What the function's `init` says.
    pub(crate) fn new(config: &str, host: Rc<dyn Host>) -> Result<Self, String> {
        let function = F::init(Config::new(config))?;
        Ok(Self { function, context: Context::new(&F::describe(), Rc::clone(&host)), host })
    }

    /// Works on a batch and hands its effects to the host. After an error, none of them may be applied, and the runner is done with.
    ///
    /// # Errors
    /// Why the batch as a whole has failed; the host has been told the record at fault where it is known.
    pub(crate) fn process(&mut self, input: Batch) -> Result<(), String> {
        let result = self.run(Rc::new(input));
        CURRENT.set(None);
        result.map_err(|failure| {
            if let Some(record) = failure.record {
                self.host.begin_record(record);
            }
            failure.reason
        })
    }

    fn run(&mut self, input: Rc<Batch>) -> Result<(), Failure> {
        self.context.begin_batch(Rc::clone(&input));
        if self.context.uses_tables() {
            for index in 0..input.len() {
                CURRENT.set(Some(index as u32));
                self.context.begin_prefetch(index as u32);
                self.function.prefetch(Record::of(&input, index), &mut Wants::new(&self.context));
            }
        }
        for index in 0..input.len() {
            let record = Record::of(&input, index);
            CURRENT.set(Some(index as u32));
            self.context.begin_record(index as u32, record.raw_time());
            let result = self.function.process(record, &mut self.context);
            self.context.check_batch()?;
            match result {
                Ok(()) => self.context.end_record(),
                Err(reject) => self.context.refuse_record(reject)?,
            }
        }
        CURRENT.set(None);
        self.context.end_batch()
    }
}

/// Tells the host of a panic: its message, and the record that it happened on.
pub(crate) fn report_panic(host: &dyn Host, message: &str) {
    host.log(Level::Error, message);
    if let Some(record) = CURRENT.take() {
        host.begin_record(record);
    }
}
