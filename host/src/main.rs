//! The `wasmill` command.

use std::process::ExitCode;

/// Batches are made by one thread and dropped by another; the system's allocator pays dearly for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long memory that was freed is kept for whoever asks next, before the system gets it back. The allocator's own second is long enough for all the
/// maps of a table that have doubled to lie there twice: a sixth of the memory that a million keys take.
const KEPT_MS: libc::c_long = 10;
/// `mi_option_purge_delay`, to which the binding gives no name.
const PURGE_DELAY: libc::c_int = 15;

fn main() -> ExitCode {
    // SAFETY: it sets a number, which the allocator reads when it frees memory.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, KEPT_MS) };
    wasmill::cli::main()
}
