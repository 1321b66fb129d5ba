//! The `wasmill` command.

use std::process::ExitCode;

/// Batches are made by one thread and dropped by another; the system's allocator pays dearly for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wasmill::cli::main()
}
