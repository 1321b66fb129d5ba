//! The Wasm engine of a process, and components loaded into it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Config, WasmBacktraceDetails};

use super::bindings::{Operator, OperatorPre};
use super::cache::Cache;
use super::imports::Host;
use super::instance::describe;
use super::migration::Migration;
use super::wasi;
use super::{Description, PluginError};

/// How long a guest runs before its worker looks at other tasks.
pub(super) const SLICE: Duration = Duration::from_millis(2);

/// Compiles and holds functions. One for each process.
pub struct Engine {
    pub(super) inner: wasmtime::Engine,
    linker: Linker<Host>,
    cache: Cache,
    stopped: Arc<AtomicBool>,
}

/// A loaded function: compiled, and known to implement the contract.
pub struct Function {
    /// Where it was loaded from.
    pub path: PathBuf,
    /// SHA-256 of the component.
    pub digest: [u8; 32],
    /// The component's size in bytes.
    pub size: usize,
    /// What it says of itself.
    pub description: Arc<Description>,
    /// The names of what it imports and exports, for people.
    pub imports: Vec<String>,
    /// See `imports`.
    pub exports: Vec<String>,
    /// What brings values of other schema versions to its own, if it can.
    pub migration: Option<Arc<Migration>>,
    pub(super) pre: OperatorPre<Host>,
    pub(super) engine: wasmtime::Engine,
}

impl Engine {
    /// Starts the engine, and the thread that cuts guests' running time into slices.
    ///
    /// # Errors
    /// [`PluginError::Engine`] when the machine lacks what compiled code needs.
    pub fn new() -> Result<Self, PluginError> {
        Self::with_cache(Cache::of_user())
    }

    pub(super) fn with_cache(cache: Cache) -> Result<Self, PluginError> {
        let failed = |error: wasmtime::Error| PluginError::Engine(format!("{error:#}"));
        let mut config = Config::new();
        config.epoch_interruption(true).concurrency_support(false).wasm_backtrace_details(WasmBacktraceDetails::Enable);
        let inner = wasmtime::Engine::new(&config).map_err(failed)?;
        let mut linker = Linker::new(&inner);
        Operator::add_to_linker::<_, HasSelf<_>>(&mut linker, |host: &mut Host| host).map_err(failed)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (engine, stop) = (inner.clone(), Arc::clone(&stopped));
        std::thread::Builder::new()
            .name("guest-slices".to_owned())
            .spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(SLICE);
                    engine.increment_epoch();
                }
            })
            .map_err(|error| PluginError::Engine(format!("no thread to be had: {error}")))?;
        Ok(Self { inner, linker, cache, stopped })
    }

    /// Loads the component at `path`, from the cache of compiled code if it is there, and asks it to describe itself.
    ///
    /// # Errors
    /// When it cannot be read, is no component, is for another world, or describes something impossible.
    pub async fn load(&self, path: &Path) -> Result<Function, PluginError> {
        let bytes = std::fs::read(path).map_err(|error| PluginError::Read { path: path.to_owned(), error })?;
        self.load_bytes(path, &bytes).await
    }

    /// As [`Engine::load`], of a component whose content is at hand; messages name `path`.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub async fn load_bytes(&self, path: &Path, bytes: &[u8]) -> Result<Function, PluginError> {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let component = self.compile(path, bytes, &digest)?;
        let component_type = component.component_type();
        let imports = component_type.imports(&self.inner).map(|(name, _)| name.to_owned()).collect();
        let exports = component_type.exports(&self.inner).map(|(name, _)| name.to_owned()).collect();
        let world = |error: wasmtime::Error| PluginError::World { path: path.to_owned(), error: format!("{error:#}") };
        let mut linker = self.linker.clone();
        wasi::define(&mut linker, &component).map_err(world)?;
        let pre = OperatorPre::new(linker.instantiate_pre(&component).map_err(world)?).map_err(world)?;
        let described = describe(&self.inner, &pre).await;
        let description = described.map_err(|error| PluginError::Describe { path: path.to_owned(), error })?;
        let migration = match description.migrates_from.first() {
            None => None,
            Some((table, _)) => {
                let missing = || format!("it says that it migrates values of `{table}`, but exports no `migration`");
                let found = Migration::of(&self.inner, &component).map_err(world)?;
                Some(found.ok_or_else(|| PluginError::Describe { path: path.to_owned(), error: missing() })?)
            }
        };
        Ok(Function {
            path: path.to_owned(),
            digest,
            size: bytes.len(),
            description: Arc::new(description),
            imports,
            exports,
            migration,
            pre,
            engine: self.inner.clone(),
        })
    }

    fn compile(&self, path: &Path, bytes: &[u8], digest: &[u8; 32]) -> Result<Component, PluginError> {
        if !bytes.starts_with(b"\0asm") {
            let error = "it does not begin as Wasm does".to_owned();
            return Err(PluginError::Compile { path: path.to_owned(), error });
        }
        // A core module has layer 0 where a component has 1; see the binary format's preamble.
        if bytes.get(6..8) == Some(&[0, 0]) {
            return Err(PluginError::CoreModule { path: path.to_owned() });
        }
        if let Some(component) = self.cache.load(&self.inner, digest) {
            return Ok(component);
        }
        let compiled = Component::from_binary(&self.inner, bytes);
        let component =
            compiled.map_err(|error| PluginError::Compile { path: path.to_owned(), error: format!("{error:#}") })?;
        self.cache.store(&self.inner, digest, &component);
        Ok(component)
    }
}

impl Function {
    /// [`Function::digest`] in hexadecimal digits.
    pub fn sha256(&self) -> String {
        self.digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The same function with its tables and ports in the order of `like`, and those behind them that it alone declares: what refers to them by their places there stays right.
    #[must_use]
    pub fn arranged(mut self, like: &Description) -> Self {
        let mut description = (*self.description).clone();
        let table = |name: &str| like.tables.iter().position(|(known, _)| known == name).unwrap_or(usize::MAX);
        let port = |name: &str| like.ports.iter().position(|known| known == name).unwrap_or(usize::MAX);
        description.tables.sort_by_key(|(name, _)| table(name));
        description.ports.sort_by_key(|name| port(name));
        self.description = Arc::new(description);
        self
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
