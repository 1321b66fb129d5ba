//! One live instance of a function: made, initialised, called with batches.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::{Store, UpdateDeadline};

use super::bindings::wasmill::operator::types as wit;
use super::bindings::{Operator, OperatorPre};
use super::declarations::Declarations;
use super::engine::{Function, SLICE};
use super::imports::{Call, Host, Memory};
use super::others::with_times;
use super::rejected::without_rejected;
use super::run_clock::RunClock;
use super::trap::{self, OverTime};
use super::wasi;
use super::{
    BatchLog, Consistency, Description, Effects, Failure, FailureKind, Limits, LookupError, OtherTables, Page,
    PluginError, Readers, Records, StateReadError, StateReader, Use,
};
use crate::record::{Batch, Column};

/// The limits of `describe`, which runs before the manifest's limits are known to matter.
const DESCRIBE_LIMITS: Limits = Limits {
    memory_bytes_max: 512 << 20,
    run_time_max: Duration::from_secs(10),
    output_bytes_max: 0,
    log_lines_max: 100,
};

/// A live instance. It serves one task and is discarded after any failure.
pub struct Instance {
    store: Store<Host>,
    exports: Operator,
    run_clock: Arc<RunClock>,
}

impl Instance {
    /// Makes an instance of `function` for `operator`, whose name its log lines bear, and hands it `config` (a JSON object). `uses` are the tables of
    /// `others`, in its order.
    ///
    /// # Errors
    /// [`PluginError::Init`] when it cannot be made within its limits, or refuses its config.
    pub async fn new(
        operator: &str,
        function: &Function,
        limits: Limits,
        state: Arc<dyn StateReader>,
        others: Arc<dyn OtherTables>,
        uses: Arc<[Use]>,
        config: &str,
    ) -> Result<Self, PluginError> {
        let description = Arc::clone(&function.description);
        let host = Host { others, uses, ..Host::new(operator, description, limits, state) };
        let made = Self::make(&function.engine, &function.pre, host).await;
        let mut instance = made.map_err(|error| PluginError::Init(error.message))?;
        let call = instance.exports.call_init(&mut instance.store, config);
        match instance.run_clock.running(call).await {
            Ok(Ok(())) => Ok(instance),
            Ok(Err(refused)) => Err(PluginError::Init(refused)),
            Err(error) => Err(PluginError::Init(trap::trapped(&instance.store, &error).message)),
        }
    }

    async fn make(engine: &wasmtime::Engine, pre: &OperatorPre<Host>, host: Host) -> Result<Self, Failure> {
        let limits = host.limits;
        let mut store = Store::new(engine, host);
        store.limiter(|host| &mut host.memory);
        let run_clock = Arc::new(RunClock::new(limits.run_time_max, SLICE));
        let clock = Arc::clone(&run_clock);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            if clock.is_over() { Err(OverTime.into()) } else { Ok(UpdateDeadline::Yield(1)) }
        });
        match run_clock.running(pre.instantiate_async(&mut store)).await {
            Ok(exports) => Ok(Self { store, exports, run_clock }),
            Err(error) => Err(trap::trapped(&store, &error)),
        }
    }

    /// Calls the function with `batch` and gives the batch back with what the call did. What it logs is written under the account of `log`.
    ///
    /// # Errors
    /// [`Failure`] when the call failed; nothing of it has happened, and the instance must be dropped.
    pub async fn process(
        &mut self,
        batch: Batch,
        records: Records,
        log: &mut BatchLog,
    ) -> (Batch, Result<Effects, Failure>) {
        let host = self.store.data_mut();
        host.call = Call::of(batch.len() as u32, records, std::mem::take(log));
        // A function may go on without the memory that an earlier call wanted.
        host.memory.refused = None;
        let input = into_wit(batch);
        self.store.set_epoch_deadline(1);
        let call = self.exports.call_process(&mut self.store, &input);
        let returned = self.run_clock.running(call).await;
        let batch = from_wit(input);
        let result = match returned {
            Ok(Ok(())) => Ok(()),
            Ok(Err(message)) => Err(trap::returned(self.store.data(), message)),
            Err(error) => Err(trap::trapped(&self.store, &error)),
        };
        let call = std::mem::take(&mut self.store.data_mut().call);
        *log = call.log;
        let result = match call.not_yet {
            Some(message) => Err(trap::too_early(message, result.err())),
            None => result,
        };
        let result = match (result, call.host_error) {
            (_, Some(message)) => Err(Failure { kind: FailureKind::Host, message, culprit: None, said: None }),
            (Ok(()), None) => {
                let effects = without_rejected(call.effects);
                let updates = with_times(effects.updates, &batch.times, &self.store.data().uses);
                Ok(Effects { updates, ..effects })
            }
            (Err(failure), None) => Err(failure),
        };
        (batch, result)
    }

    /// How long the last call has run.
    pub(super) fn running_time(&self) -> Duration {
        self.run_clock.spent()
    }
}

/// Asks a component what it is.
pub(super) async fn describe(engine: &wasmtime::Engine, pre: &OperatorPre<Host>) -> Result<Description, String> {
    let description = Arc::new(Description::default());
    let host = Host::new("describe", description, DESCRIBE_LIMITS, Arc::new(Nothing));
    let host = Host { declarations: Some(Declarations::default()), ..host };
    let mut instance = Instance::make(engine, pre, host).await.map_err(|error| error.message)?;
    let call = instance.exports.call_describe(&mut instance.store);
    let told =
        instance.run_clock.running(call).await.map_err(|error| trap::trapped(&instance.store, &error).message)?;
    instance.store.data_mut().declarations.take().unwrap_or_default().complete(told)
}

impl Host {
    /// A host without tables beside the instance's own.
    pub(super) fn new(
        operator: &str,
        description: Arc<Description>,
        limits: Limits,
        state: Arc<dyn StateReader>,
    ) -> Self {
        Self {
            operator: operator.to_owned(),
            description,
            limits,
            state,
            others: Arc::new(Nothing),
            uses: Arc::default(),
            declarations: None,
            memory: Memory { bytes_max: limits.memory_bytes_max, ..Memory::default() },
            wasi: wasi::Used::default(),
            call: Call::default(),
        }
    }
}

/// No tables: what `describe` finds, and an operator that uses none beside its own.
pub struct Nothing;

impl StateReader for Nothing {
    fn read(
        &self,
        _: usize,
        _: &Column,
        _: Readers<'_>,
        _: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError> {
        Ok(())
    }

    fn owns(&self, _: &[u8]) -> bool {
        false
    }
}

impl OtherTables for Nothing {
    fn get_many(
        &self,
        _: usize,
        _: &Column,
        _: Readers<'_>,
        _: Consistency,
        _: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        Err(LookupError::NotAllowed("there are no tables beside the operator's own".to_owned()))
    }

    fn get_many_as_of_time(
        &self,
        _: usize,
        _: &Column,
        _: &[i64],
        _: bool,
        _: Readers<'_>,
        _: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        Err(LookupError::NotAllowed("there are no tables beside the operator's own".to_owned()))
    }

    fn scan(
        &self,
        _: usize,
        _: &[u8],
        _: Option<&[u8]>,
        _: usize,
        _: Readers<'_>,
        _: Consistency,
    ) -> Result<Page, LookupError> {
        Err(LookupError::NotAllowed("there are no tables beside the operator's own".to_owned()))
    }
}

fn into_wit(batch: Batch) -> wit::Batch {
    let column = |column: Column| {
        let (bytes, ends) = column.into_parts();
        wit::Column { bytes, ends }
    };
    wit::Batch { keys: column(batch.keys), values: column(batch.values), times: batch.times }
}

fn from_wit(batch: wit::Batch) -> Batch {
    let column = |column: wit::Column| {
        Column::from_parts(column.bytes, column.ends).expect("the parts of a column that the call did not change")
    };
    Batch { keys: column(batch.keys), values: column(batch.values), times: batch.times }
}
