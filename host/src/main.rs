//! The `wasmill` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    wasmill::cli::main()
}
