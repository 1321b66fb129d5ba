//! `wasmill componentize`: makes a component of the core module that a compiler without a notion of components has made.

mod encode;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::{Failure, failed, print};

/// What `wasmill componentize` is given.
#[derive(Debug, Args)]
pub struct Componentize {
    /// The core module. It may use WASI's preview 1, and gets one with nothing behind it.
    pub module: PathBuf,
    /// The component to make.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The world that it is made for; by default that which fits the module's exports.
    #[arg(long, value_parser = PossibleValuesParser::new(encode::WORLDS))]
    pub world: Option<String>,
}

/// Makes the component and prints its path and size.
///
/// # Errors
/// When the module cannot be one, with what it lacks.
pub(super) fn run(arguments: &Componentize) -> Result<(), Failure> {
    let Componentize { module: path, output, world } = arguments;
    let module = read(path).map_err(|error| Failure::usage(format!("{error:#}")))?;
    let component = encode::component(&module, world.as_deref());
    let component = component.map_err(|error| Failure::usage(format!("{}: {error:#}", path.display())))?;
    print(&written(output, &component).map_err(failed)?)
}

/// Makes the component of a module that a compiler has just made, without what only a debugger reads. Returns what is to be told of it.
pub(super) fn built(module: &Path, output: &Path) -> Result<String> {
    let bare = encode::without_debug(&read(module)?)?;
    let component =
        encode::component(&bare, None).with_context(|| format!("{} cannot be a component", module.display()))?;
    written(output, &component)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn written(output: &Path, component: &[u8]) -> Result<String> {
    std::fs::write(output, component).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(format!("{} ({})\n", output.display(), bytesize::ByteSize(component.len() as u64)))
}
