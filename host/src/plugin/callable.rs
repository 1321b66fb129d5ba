//! What a task needs of a function: to make instances of it, and to call them.
//!
//! Compiled components are one kind of function; a simulation of a job has its own, so that all that surrounds a call is the code that jobs run.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Function;
use super::instance::Instance;
use super::{BatchLog, Description, Effects, Failure, Limits, OtherTables, PluginError, Records, StateReader, Use};
use crate::record::Batch;
use crate::state::{Encoding, Migrate};

/// What an instance is made with.
pub struct Surroundings<'a> {
    /// The operator's name, which the instance's log lines bear.
    pub operator: &'a str,
    /// What the instance may use.
    pub limits: Limits,
    /// The tables of its task.
    pub state: Arc<dyn StateReader>,
    /// The tables that its operator uses beside its own.
    pub others: Arc<dyn OtherTables>,
    /// What the function calls these, and may do with them, in the order of `others`.
    pub uses: Arc<[Use]>,
    /// A JSON object.
    pub config: &'a str,
}

/// A function that tasks call by instances of it.
pub trait Callable: Send + Sync + 'static {
    /// A live instance. It serves one task and is discarded after any failure.
    type Instance: Process;

    /// What the function says of itself.
    fn description(&self) -> &Description;

    /// The SHA-256 of the component, in hexadecimal digits; empty where it is none.
    fn sha256(&self) -> String {
        String::new()
    }

    /// What brings values of other schema versions to those of its tables, if it can.
    fn migration(&self) -> Option<Arc<dyn Migrate>> {
        None
    }

    /// How the values of its tables are written and read, in the order of `tables`.
    fn encoding<'t>(&self, tables: impl Iterator<Item = &'t str>) -> Encoding {
        let Description { tables: declared, migrates_from, .. } = self.description();
        let version = |table: &str| declared.iter().find(|(name, _)| name == table).map_or(0, |(_, version)| *version);
        let readable =
            |table: &str| migrates_from.iter().filter(|(name, _)| name == table).map(|(_, from)| *from).collect();
        let (versions, readable) = tables.map(|table| (version(table), readable(table))).unzip();
        Encoding::new(versions, readable, self.migration())
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// When it cannot be made within its limits, or refuses its config.
    fn instance(&self, surroundings: Surroundings<'_>) -> impl Future<Output = Result<Self::Instance, PluginError>>;
}

/// An instance that works on batches.
pub trait Process: Send {
    /// Calls the function with `batch` and gives the batch back with what the call did. What it logs is written under the account of `log`. Several records
    /// may be [`Records::Apart`] only where the function's description says so.
    ///
    /// # Errors
    /// [`Failure`] when the call failed; nothing of it has happened, and the instance must be dropped.
    fn process(
        &mut self,
        batch: Batch,
        records: Records,
        log: &mut BatchLog,
    ) -> impl Future<Output = (Batch, Result<Effects, Failure>)>;

    /// How long the last call has run; what it waited for does not count.
    fn running_time(&self) -> Duration;
}

impl Callable for Function {
    type Instance = Instance;

    fn description(&self) -> &Description {
        &self.description
    }

    fn sha256(&self) -> String {
        Function::sha256(self)
    }

    fn migration(&self) -> Option<Arc<dyn Migrate>> {
        self.migration.clone().map(|migration| migration as Arc<dyn Migrate>)
    }

    async fn instance(&self, surroundings: Surroundings<'_>) -> Result<Instance, PluginError> {
        let Surroundings { operator, limits, state, others, uses, config } = surroundings;
        Instance::new(operator, self, limits, state, others, uses, config).await
    }
}

impl Process for Instance {
    fn process(
        &mut self,
        batch: Batch,
        records: Records,
        log: &mut BatchLog,
    ) -> impl Future<Output = (Batch, Result<Effects, Failure>)> {
        Instance::process(self, batch, records, log)
    }

    fn running_time(&self) -> Duration {
        Instance::running_time(self)
    }
}
