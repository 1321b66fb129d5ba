//! A component's `migration`: values of another schema version become values of its own.
//!
//! It runs in instances of their own, whose imports all trap and which know neither state nor config: so what comes out depends on what goes in alone, as [`Migrate`] wants it. Calls
//! come from whoever reads, on their own thread, and do not wait for anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, Linker, TypedFunc};
use wasmtime::{Store, UpdateDeadline};

use super::bindings::wasmill::operator::types as wit;
use super::imports::{self, Memory};
use super::trap::OverTime;
use crate::record::Column;
use crate::state::Migrate;

const INTERFACE: &str = "wasmill:operator/migration@0.1.0";
const FUNCTION: &str = "migrate";
/// What an instance may use.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// How long a call may take: of values of a few MiB at most.
const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// Instances that wait for their next call.
const IDLE_MAX: usize = 8;

type Parameters = (String, u32, wit::Column, wit::Column);
type Results = (Result<wit::Column, String>,);

/// The migration of a component.
pub struct Migration {
    engine: wasmtime::Engine,
    pre: InstancePre<Pure>,
    function: ComponentExportIndex,
    idle: Mutex<Vec<Live>>,
}

/// What belongs to an instance.
struct Pure {
    memory: Memory,
    until: Instant,
}

struct Live {
    store: Store<Pure>,
    migrate: TypedFunc<Parameters, Results>,
}

impl std::fmt::Debug for Migration {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Migration").finish_non_exhaustive()
    }
}

impl Migration {
    /// That of `component`, if it exports one.
    ///
    /// # Errors
    /// When it exports something else by that name.
    pub(super) fn of(engine: &wasmtime::Engine, component: &Component) -> wasmtime::Result<Option<Arc<Self>>> {
        let Some(interface) = component.get_export_index(None, INTERFACE) else { return Ok(None) };
        let Some(function) = component.get_export_index(Some(&interface), FUNCTION) else { return Ok(None) };
        let mut linker = Linker::new(engine);
        linker.define_unknown_imports_as_traps(component)?;
        let pre = linker.instantiate_pre(component)?;
        let migration = Self { engine: engine.clone(), pre, function, idle: Mutex::default() };
        let live = migration.instance()?;
        migration.idle.lock().push(live);
        Ok(Some(Arc::new(migration)))
    }

    fn instance(&self) -> wasmtime::Result<Live> {
        let memory = Memory { bytes_max: MEMORY_BYTES_MAX, ..Memory::default() };
        let mut store = Store::new(&self.engine, Pure { memory, until: Instant::now() + CALL_TIME_MAX });
        store.limiter(|pure| &mut pure.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|context| {
            if Instant::now() > context.data().until { Err(OverTime.into()) } else { Ok(UpdateDeadline::Continue(1)) }
        });
        let instance = self.pre.instantiate(&mut store)?;
        let migrate = instance.get_typed_func(&mut store, self.function)?;
        Ok(Live { store, migrate })
    }

    fn call(&self, live: &mut Live, parameters: Parameters) -> wasmtime::Result<Result<wit::Column, String>> {
        live.store.data_mut().until = Instant::now() + CALL_TIME_MAX;
        live.store.set_epoch_deadline(1);
        let (made,) = live.migrate.call(&mut live.store, parameters)?;
        Ok(made)
    }
}

impl Migrate for Migration {
    fn migrate(&self, table: &str, from: u32, keys: &Column, values: &Column) -> Result<Column, String> {
        let column = |column: &Column| {
            let (bytes, ends) = column.clone().into_parts();
            wit::Column { bytes, ends }
        };
        let trapped = |error: wasmtime::Error| format!("`{FUNCTION}` failed: {error:#}");
        let idle = self.idle.lock().pop();
        let mut live = idle.map_or_else(|| self.instance(), Ok).map_err(trapped)?;
        let made = self.call(&mut live, (table.to_owned(), from, column(keys), column(values))).map_err(trapped)??;
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(live);
        }
        drop(idle);
        imports::column(made).map_err(|error| format!("`{FUNCTION}` returned a column that is none: {error:?}"))
    }
}
