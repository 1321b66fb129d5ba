//! The command line: parse, dispatch, exit code. One file a subcommand.
//!
//! Exit codes are those of the README's table: 0 the input ended, or a clean stop; 1 something failed that is none of what follows, and may go well
//! another time; 2 the command line, the manifest or a component is at fault; 3 the state or output directory is damaged, in use, or another job's;
//! 4 a record failed and `on-error` is "stop"; 130 a second signal.

mod build;
mod build_assemblyscript;
mod build_c;
mod build_go;
mod build_rust;
mod cases;
mod check;
mod componentize;
mod dev;
mod inspect;
mod load;
mod log;
mod new;
mod plan;
mod progress;
mod reload;
mod rescale;
mod run;
mod schema;
mod state;
mod stored;
mod tools;
mod watch;
mod zig;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::graph::Declared;
use crate::manifest::ManifestError;
use crate::plugin::engine::Engine;

/// A stream processor whose functions are WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "wasmill", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 the input ended, or a clean stop; 1 something else failed, a job can be started again; \
2 the command line, the manifest or a component is at fault; 3 the state or output directory is damaged, in use or another job's; \
4 a record failed and `on-error` is \"stop\"; 130 a second signal ended the job at once.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a job until its input ends, or until SIGINT or SIGTERM.
    Run(run::RunArgs),
    /// Say what is wrong with a manifest and its components.
    Check(check::CheckArgs),
    /// Say which partitions and splits are on which host, worker and task, and what travels between hosts.
    Plan(plan::PlanArgs),
    /// Move the state of a stopped job to the hosts that its manifest names now.
    Rescale(rescale::RescaleArgs),
    /// Build the components that a manifest names.
    Build(build::Build),
    /// Build a Rust crate to a component.
    BuildRust(build_rust::BuildRust),
    /// Build a function in C, C++ or Zig to a component.
    #[command(visible_alias = "build-zig")]
    BuildC(build_c::BuildC),
    /// Build a function in Go to a component.
    BuildGo(build_go::BuildGo),
    /// Build a function in AssemblyScript to a component.
    #[command(name = "build-assemblyscript")]
    BuildAssemblyScript(build_assemblyscript::BuildAssemblyScript),
    /// Make a component of a core module, with or without WASI's preview 1.
    Componentize(componentize::Componentize),
    /// Build the components of a job, run it, and build and reload them whenever their sources change.
    Dev(dev::DevArgs),
    /// Make a new function in a language of choice, with a manifest and sample records.
    New(new::New),
    /// Say what a component is: its world, tables, ports, imports, size.
    Inspect(inspect::InspectArgs),
    /// Have a running job go on with a new version of an operator's component.
    Reload(reload::ReloadArgs),
    /// Try a component on given records and tables, and compare what it does with what is expected.
    Test(cases::TestArgs),
    /// Read the state of a job, stopped or running.
    State(state::StateArgs),
    /// Print the JSON Schema of manifests, or the reference made from it.
    Schema(schema::SchemaArgs),
}

/// What a subcommand ends with.
pub(crate) enum Failure {
    /// Already told, with its own rendering; only the exit code is left.
    Told(u8),
    /// To be told, with its exit code.
    Because(u8, String),
}

impl Failure {
    /// A failure whose fault lies in what was asked for: exit code 2.
    pub(crate) fn usage(message: impl std::fmt::Display) -> Self {
        Self::Because(2, message.to_string())
    }
}

/// A failure for which nobody who uses the program is at fault: exit code 1.
fn failed(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Because(1, format!("{:#}", error.into()))
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Check(arguments) => declaring().and_then(|declare| check::run(&arguments, declare)),
        Command::Plan(arguments) => declaring().and_then(|declare| plan::run(&arguments, declare)),
        Command::Rescale(arguments) => rescale::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::BuildRust(arguments) => build_rust::run(&arguments),
        Command::BuildC(arguments) => build_c::run(&arguments),
        Command::BuildGo(arguments) => build_go::run(&arguments),
        Command::BuildAssemblyScript(arguments) => build_assemblyscript::run(&arguments),
        Command::Componentize(arguments) => componentize::run(&arguments),
        Command::Dev(arguments) => dev::run(&arguments),
        Command::New(arguments) => new::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Reload(arguments) => reload::run(&arguments),
        Command::Test(arguments) => cases::run(&arguments),
        Command::State(arguments) => state::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told(code)) => ExitCode::from(code),
        Err(Failure::Because(code, message)) => {
            tell(&format!("error: {message}"));
            ExitCode::from(code)
        }
    }
}

/// Says what the component at a path declares, loaded as a run would load it.
fn declaring() -> Result<impl FnMut(&str, &Path) -> Result<Declared, String>, Failure> {
    let engine = Engine::new().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(failed)?;
    Ok(move |_: &str, path: &Path| {
        let function = runtime.block_on(engine.load(path)).map_err(|error| error.to_string())?;
        Ok(crate::job::declared(&function))
    })
}

/// Loads and checks a job; prints what is wrong and what is doubtful.
pub(crate) fn load_job(arguments: &load::JobArgs) -> Result<load::CheckedJob, Failure> {
    shown(arguments.load())
}

/// A job that was loaded, once what is wrong or doubtful is printed.
fn shown(loaded: Result<load::CheckedJob, ManifestError>) -> Result<load::CheckedJob, Failure> {
    let job = loaded.map_err(|error| told(&error))?;
    check::print_problems(&job.warnings);
    Ok(job)
}

/// Prints what is wrong with a manifest.
pub(crate) fn told(error: &ManifestError) -> Failure {
    check::print_problems(error.problems());
    Failure::Told(check::EXIT_INVALID_MANIFEST)
}

/// Prints a line to standard error. Nobody is left to tell when that is gone.
fn tell(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints to standard output; a reader that has gone away (`| head`) ends the command quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Because(1, format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
