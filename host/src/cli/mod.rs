//! The command line: one file a subcommand.

pub mod build;
pub mod build_rust;
pub mod new;

use clap::{Parser, Subcommand};

/// A stream processor whose user functions are WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "wasmill", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes a Rust guest crate with a job that runs it.
    New(new::New),
    /// Builds a job's components by the commands that its manifest names.
    Build(build::Build),
    /// Builds a Rust guest crate to a component.
    BuildRust(build_rust::BuildRust),
}

/// Parses the command line and runs what it asks for.
///
/// # Errors
/// What the subcommand says.
pub fn run() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::New(arguments) => new::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::BuildRust(arguments) => build_rust::run(&arguments),
    }
}
