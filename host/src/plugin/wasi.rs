//! WASI 0.2 with nothing behind it: for components whose language insists on importing it.
//!
//! What is written to the standard output and error goes to the job's log. There are no arguments, variables, files, sockets: what would need one traps, and says so. The clock begins at one second and goes
//! on by a microsecond with each look, and by as much as is waited for; random numbers are always the same ones. So a function still follows from its records, its config and its state. It knows nothing of
//! what else a function may call. `cli/componentize/wasi.wat` is the same for WASI's preview 1.

use wasmtime::StoreContextMut;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, Resource, ResourceAny, ResourceType, Val};

use super::bindings::wasmill::operator::log::{Host as _, Level};
use super::imports::Host;

const FIRST_LOOK_NS: u64 = 1_000_000_000;
const LOOK_NS: u64 = 1_000;
/// The most that one write may hand over.
const WRITE_BYTES_MAX: u64 = 64 << 10;
/// A request for more random bytes traps.
const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// What an instance has had of it.
pub(super) struct Used {
    clock_ns: u64,
    random: u64,
}

impl Default for Used {
    fn default() -> Self {
        Self { clock_ns: FIRST_LOOK_NS, random: 0x9E37_79B9_7F4A_7C15 }
    }
}

impl Used {
    fn look(&mut self) -> u64 {
        self.clock_ns = self.clock_ns.saturating_add(LOOK_NS);
        self.clock_ns
    }

    /// The next of a sequence of numbers (splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Whatever WASI gives handles of. There is nothing behind one but its number.
struct Thing;

const INPUT: u32 = 0;
const OUTPUT: u32 = 1;
const ERROR_OUTPUT: u32 = 2;
const POLLABLE: u32 = 3;

/// Gives `linker` what `component` imports of WASI, and no more.
pub(super) fn define(linker: &mut Linker<Host>, component: &Component) -> wasmtime::Result<()> {
    let engine = linker.engine().clone();
    for (name, import) in component.component_type().imports(&engine) {
        let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
        let Some(interface) = name.strip_prefix("wasi:") else { continue };
        let interface = interface.split('@').next().unwrap_or(interface);
        let mut to = linker.instance(name)?;
        for (item, export) in instance.exports(&engine) {
            match export.ty {
                ComponentItem::ComponentFunc(_) => {
                    let called = format!("{interface} {item}");
                    to.func_new(item, move |store, _, parameters, results| {
                        answer(store, &called, parameters, results)
                    })?;
                }
                ComponentItem::Resource(_) => to.resource(item, ResourceType::host::<Thing>(), |_, _| Ok(()))?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Answers a call of `called`, an interface and a function of it.
fn answer(
    mut store: StoreContextMut<'_, Host>,
    called: &str,
    parameters: &[Val],
    results: &mut [Val],
) -> wasmtime::Result<()> {
    let answer = match (called, parameters) {
        (
            "cli/environment get-environment" | "cli/environment get-arguments" | "filesystem/preopens get-directories",
            [],
        ) => Val::List(Vec::new()),
        ("cli/environment initial-cwd", []) => Val::Option(None),
        (
            "cli/terminal-stdin get-terminal-stdin"
            | "cli/terminal-stdout get-terminal-stdout"
            | "cli/terminal-stderr get-terminal-stderr",
            [],
        ) => Val::Option(None),
        ("cli/stdin get-stdin", []) => handle(&mut store, INPUT)?,
        ("cli/stdout get-stdout", []) => handle(&mut store, OUTPUT)?,
        ("cli/stderr get-stderr", []) => handle(&mut store, ERROR_OUTPUT)?,
        ("io/streams [method]output-stream.check-write", [_]) => ok(Some(Val::U64(WRITE_BYTES_MAX))),
        (
            "io/streams [method]output-stream.write" | "io/streams [method]output-stream.blocking-write-and-flush",
            [Val::Resource(stream), Val::List(bytes)],
        ) => {
            write(&mut store, *stream, bytes)?;
            ok(None)
        }
        ("io/streams [method]output-stream.flush" | "io/streams [method]output-stream.blocking-flush", [_]) => ok(None),
        ("io/streams [method]input-stream.read" | "io/streams [method]input-stream.blocking-read", [_, _]) => closed(),
        ("io/streams [method]input-stream.skip" | "io/streams [method]input-stream.blocking-skip", [_, _]) => closed(),
        ("io/streams [method]output-stream.subscribe" | "io/streams [method]input-stream.subscribe", [_]) => {
            handle(&mut store, POLLABLE)?
        }
        ("io/poll [method]pollable.ready", [_]) => Val::Bool(true),
        ("io/poll [method]pollable.block", [_]) => return Ok(()),
        ("io/poll poll", [Val::List(waited_for)]) => {
            Val::List((0..waited_for.len()).map(|index| Val::U32(index as u32)).collect())
        }
        ("clocks/monotonic-clock now", []) => Val::U64(store.data_mut().wasi.look()),
        ("clocks/monotonic-clock resolution", []) => Val::U64(LOOK_NS),
        ("clocks/monotonic-clock subscribe-duration", [Val::U64(duration_ns)]) => {
            let wasi = &mut store.data_mut().wasi;
            wasi.clock_ns = wasi.clock_ns.saturating_add(*duration_ns);
            handle(&mut store, POLLABLE)?
        }
        ("clocks/monotonic-clock subscribe-instant", [Val::U64(instant_ns)]) => {
            let wasi = &mut store.data_mut().wasi;
            wasi.clock_ns = wasi.clock_ns.max(*instant_ns);
            handle(&mut store, POLLABLE)?
        }
        ("clocks/wall-clock now", []) => datetime(store.data_mut().wasi.look()),
        ("clocks/wall-clock resolution", []) => datetime(LOOK_NS),
        ("random/random get-random-u64" | "random/insecure get-insecure-random-u64", []) => {
            Val::U64(store.data_mut().wasi.random())
        }
        ("random/random get-random-bytes" | "random/insecure get-insecure-random-bytes", [Val::U64(length)])
            if *length <= RANDOM_BYTES_MAX =>
        {
            let wasi = &mut store.data_mut().wasi;
            Val::List((0..*length).map(|_| Val::U8(wasi.random() as u8)).collect())
        }
        ("random/insecure-seed insecure-seed", []) => {
            let wasi = &mut store.data_mut().wasi;
            Val::Tuple(vec![Val::U64(wasi.random()), Val::U64(wasi.random())])
        }
        ("cli/exit exit" | "cli/exit exit-with-code", _) => {
            wasmtime::bail!("the function has ended its process (`wasi:{called}`)")
        }
        _ => wasmtime::bail!(
            "a function cannot have `wasi:{called}`: it gets no files, sockets or other things of the system"
        ),
    };
    if let [result] = results {
        *result = answer;
    }
    Ok(())
}

fn ok(value: Option<Val>) -> Val {
    Val::Result(Ok(value.map(Box::new)))
}

/// What reading comes to where nothing ever comes.
fn closed() -> Val {
    Val::Result(Err(Some(Box::new(Val::Variant("closed".to_owned(), None)))))
}

fn datetime(ns: u64) -> Val {
    let (seconds, nanoseconds) = (ns / 1_000_000_000, (ns % 1_000_000_000) as u32);
    Val::Record(vec![("seconds".to_owned(), Val::U64(seconds)), ("nanoseconds".to_owned(), Val::U32(nanoseconds))])
}

fn handle(store: &mut StoreContextMut<'_, Host>, number: u32) -> wasmtime::Result<Val> {
    Ok(Val::Resource(Resource::<Thing>::new_own(number).try_into_resource_any(store)?))
}

/// Logs what is written, without the line ends behind it. What is not text is shown by a sign in its place.
fn write(store: &mut StoreContextMut<'_, Host>, stream: ResourceAny, bytes: &[Val]) -> wasmtime::Result<()> {
    let stream = stream.try_into_resource::<Thing>(&mut *store)?;
    let level = if stream.rep() == ERROR_OUTPUT { Level::Error } else { Level::Info };
    let bytes: Vec<u8> = bytes.iter().map(|byte| if let Val::U8(byte) = byte { *byte } else { b'?' }).collect();
    let text = String::from_utf8_lossy(&bytes);
    match text.trim_end() {
        "" => Ok(()),
        line => store.data_mut().write(level, line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use wasmtime::component::{ComponentNamedList, Instance, Lift};
    use wasmtime::{Engine, Store};
    use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
    use wit_parser::Resolve;

    use super::*;
    use crate::plugin::instance::Nothing;
    use crate::plugin::{Description, Limits};

    const MODULE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wasi-guest.wasm"));
    /// As much of WASI as the guest imports, and its own world.
    const WORLDS: &[(&str, &str)] = &[
        (
            "io",
            "package wasi:io@0.2.3; interface error { resource error; } interface streams { use error.{error}; variant stream-error { last-operation-failed(error), closed } \
                resource output-stream { blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>; } }",
        ),
        (
            "cli",
            "package wasi:cli@0.2.3; interface environment { get-arguments: func() -> list<string>; } \
                 interface stderr { use wasi:io/streams@0.2.3.{output-stream}; get-stderr: func() -> output-stream; }",
        ),
        ("clocks", "package wasi:clocks@0.2.3; interface monotonic-clock { now: func() -> u64; }"),
        ("random", "package wasi:random@0.2.3; interface random { get-random-u64: func() -> u64; }"),
        (
            "sockets",
            "package wasi:sockets@0.2.3; interface instance-network { resource network; instance-network: func() -> network; }",
        ),
        (
            "guest",
            "package tests:guest; world guest { import wasi:cli/environment@0.2.3; import wasi:cli/stderr@0.2.3; import wasi:clocks/monotonic-clock@0.2.3; \
                   import wasi:random/random@0.2.3; import wasi:sockets/instance-network@0.2.3; \
                   export arguments: func() -> u32; export write: func() -> u32; export now: func() -> u64; export random: func() -> u64; export network: func(); }",
        ),
    ];

    fn component() -> Vec<u8> {
        let mut resolve = Resolve::default();
        let packages: Vec<_> = WORLDS.iter().map(|(name, text)| resolve.push_source(name, text).unwrap()).collect();
        let world = resolve.select_world(&packages[5..], Some("guest")).unwrap();
        let mut module = MODULE.to_vec();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
    }

    /// A new instance of the guest.
    struct Guest {
        store: Store<Host>,
        instance: Instance,
    }

    impl Guest {
        fn new() -> Self {
            let engine = Engine::default();
            let component = Component::from_binary(&engine, &component()).unwrap();
            let mut linker = Linker::new(&engine);
            define(&mut linker, &component).unwrap();
            let limits = Limits {
                memory_bytes_max: 1 << 20,
                run_time_max: Duration::MAX,
                output_bytes_max: 1 << 20,
                log_lines_max: 10,
            };
            let mut store =
                Store::new(&engine, Host::new("test", Arc::new(Description::default()), limits, Arc::new(Nothing)));
            let instance = linker.instantiate(&mut store, &component).unwrap();
            Self { store, instance }
        }

        fn call<R: ComponentNamedList + Lift + Send + Sync + 'static>(
            &mut self,
            function: &str,
        ) -> wasmtime::Result<R> {
            let function = self.instance.get_typed_func::<(), R>(&mut self.store, function)?;
            function.call(&mut self.store, ())
        }
    }

    #[test]
    fn there_are_no_arguments() {
        assert_eq!(Guest::new().call::<(u32,)>("arguments").unwrap(), (0,));
    }

    #[test]
    fn each_instance_sees_the_same_times_and_random_numbers() {
        let seen = |guest: &mut Guest| {
            let mut call = |function| guest.call::<(u64,)>(function).unwrap().0;
            [call("now"), call("now"), call("random"), call("random")]
        };
        let [first, second, one, other] = seen(&mut Guest::new());
        assert!(first < second && one != other);
        assert_eq!(seen(&mut Guest::new()), [first, second, one, other]);
    }

    #[test]
    fn what_is_written_to_the_standard_error_is_a_line_of_the_log() {
        let mut guest = Guest::new();
        assert_eq!(guest.call::<(u32,)>("write").unwrap(), (0,));
        let call = &guest.store.data().call;
        assert_eq!((call.log.lines, call.logged_error.as_deref()), (1, Some("no \u{fffd} text")));
    }

    #[test]
    fn what_a_function_cannot_have_traps_by_name() {
        let error = Guest::new().call::<()>("network").unwrap_err();
        assert!(format!("{error:#}").contains("`wasi:sockets/instance-network instance-network`"), "{error:#}");
    }
}
