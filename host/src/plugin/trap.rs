//! What a failed call comes to in words: the kind of failure, what the function said of it, and where.

use wasmtime::{Store, WasmBacktrace};

use super::imports::{Host, REASON_BYTES_MAX, shortened};
use super::{Failure, FailureKind};

/// The time that a call may run is over.
#[derive(Debug, thiserror::Error)]
#[error("the running time is over")]
pub(super) struct OverTime;

/// The failure of a call that returned `message` as its error.
pub(super) fn returned(host: &Host, message: String) -> Failure {
    Failure::new(FailureKind::Returned, shortened(message, REASON_BYTES_MAX), host)
}

/// The failure of a call that ended with `error`.
pub(super) fn trapped(store: &Store<Host>, error: &wasmtime::Error) -> Failure {
    let host = store.data();
    if error.is::<OverTime>() {
        let message = format!("it ran longer than `limits.time`, {:?}", host.limits.run_time_max);
        return Failure::new(FailureKind::RunTime, message, host);
    }
    let trap = trap_message(error, host.call.logged_error.as_deref());
    if let Some(wanted) = host.memory.refused {
        let limit = host.limits.memory_bytes_max;
        let message = format!("it wanted {wanted} bytes of memory; `limits.memory` is {limit}\n{trap}");
        return Failure::new(FailureKind::Memory, message, host);
    }
    let kind = if error.is::<wasmtime::Trap>() { FailureKind::Trap } else { FailureKind::Contract };
    Failure::new(kind, trap, host)
}

/// The failure of a call that has asked for something too early, whatever it has made of the refusal; one that went on without end or broke the contract has failed by
/// itself.
pub(super) fn too_early(message: String, failed: Option<Failure>) -> Failure {
    match failed {
        Some(failure) if !matches!(failure.kind, FailureKind::Returned | FailureKind::Trap) => failure,
        _ => Failure { kind: FailureKind::NotYet, message, culprit: None, said: None },
    }
}

impl Failure {
    fn new(kind: FailureKind, message: String, host: &Host) -> Self {
        Self { kind, message, culprit: host.call.culprit, said: host.call.logged_error.clone() }
    }
}

/// What happened, what the function itself said of it (a panic ends in a trap, which says nothing), and where: the most telling first.
fn trap_message(error: &wasmtime::Error, logged: Option<&str>) -> String {
    let backtrace = error.downcast_ref::<WasmBacktrace>();
    // The back-trace is the outermost of the causes.
    let causes = error.chain().skip(usize::from(backtrace.is_some())).map(ToString::to_string).collect::<Vec<_>>();
    let mut message = causes.join(": ");
    if let Some(logged) = logged {
        message += &format!("\nthe function said: {logged}");
    }
    if let Some(backtrace) = backtrace {
        message += &format!("\n{}", demangled(backtrace.to_string().trim_end()));
    }
    message
}

/// A back-trace with the names of Rust's functions as they are written. A frame is `NUMBER: OFFSET - MODULE!FUNCTION`.
fn demangled(backtrace: &str) -> String {
    let lines = backtrace.lines().map(|line| match line.rsplit_once('!') {
        Some((place, name)) => match rustc_demangle::try_demangle(name) {
            Ok(name) => format!("{place}!{name:#}"),
            Err(_) => line.to_owned(),
        },
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rust_are_shown_as_they_are_written_and_others_as_they_are() {
        let backtrace = "error while executing at wasm backtrace:\n    0:   0x8902 - f.wasm!_RNvNtCs6VDZWQTR7g_4core9panicking9panic_fmt\n    \
                         1:   0x312f - f.wasm!_ZN4core6option13unwrap_failed17h0123456789abcdefE\n    2:   0x5ba8 - f.wasm!process\n    3: f.wasm!main.(*T).Do";
        let expected = "error while executing at wasm backtrace:\n    0:   0x8902 - f.wasm!core::panicking::panic_fmt\n    \
                        1:   0x312f - f.wasm!core::option::unwrap_failed\n    2:   0x5ba8 - f.wasm!process\n    3: f.wasm!main.(*T).Do";
        assert_eq!(demangled(backtrace), expected);
    }
}
