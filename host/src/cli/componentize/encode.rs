//! Core module in, component out. It knows the contract in `wit/` and no file.
//!
//! A module may bring a description of its world along, as bindings made by `wit-bindgen` do; for others it is taken to be that of the contract. What it imports of WASI's preview 1 is
//! given by `wasi.wat`, which becomes a part of the component.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rust_embed::RustEmbed;
use wasmparser::{Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata, metadata};
use wit_parser::{PackageId, Resolve, SourceMap};

/// The contract, as it was when this program was built.
#[derive(RustEmbed)]
#[folder = "../wit"]
struct Contract;

/// The worlds of the contract.
pub(super) const WORLDS: [&str; 2] = ["operator", "migrating-operator"];

/// What a module exports, beside the world's own functions, to be called at all.
const NEEDED: [&str; 5] = ["memory", "cabi_realloc", "describe", "init", "process"];
const MIGRATE: &str = "wasmill:operator/migration@0.1.0#migrate";

const WASI: &str = "wasi_snapshot_preview1";
/// Made of `wasi.wat` by the build script.
const WASI_MODULE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wasi.wasm"));
/// What `wasi.wat` itself imports.
const WASI_WORLD: &str = "package wasmill:componentize; world wasi { import wasmill:operator/log@0.1.0; }";

/// Makes a component of `module`, for `world` if it is named.
///
/// # Errors
/// When it is no core module, imports what nobody has, or lacks an export.
pub(super) fn component(module: &[u8], world: Option<&str>) -> Result<Vec<u8>> {
    ensure!(module.starts_with(b"\0asm"), "it is no WebAssembly: it does not begin as that does");
    ensure!(module.get(6..8) != Some(&[1, 0]), "it is a component already: name it in the manifest as it is");
    let interface = Interface::of(module).context("it is no valid module")?;
    let (bare, _) = metadata::decode(module).context("what it says of its own world cannot be read")?;
    let mut module = module.to_vec();
    // Without a description of its own, there was nothing to be stripped off.
    if bare.is_none() || world.is_some() {
        let world = world.unwrap_or_else(|| if interface.exports(MIGRATE) { WORLDS[1] } else { WORLDS[0] });
        interface.check()?;
        module = bare.unwrap_or(module);
        let (resolve, package) = contract()?;
        let world = resolve.select_world(&[package], Some(world))?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    }
    let mut encoder = ComponentEncoder::default().validate(true).module(&module)?;
    if interface.imports.iter().any(|(from, _)| from == WASI) {
        encoder = encoder.adapter(WASI, &wasi()?)?;
    }
    encoder.encode().context("it does not fit its world")
}

/// The module without its debug information. The names of its functions stay, for traps.
///
/// # Errors
/// When it is no module.
pub(super) fn without_debug(module: &[u8]) -> Result<Vec<u8>> {
    let mut bare = Vec::with_capacity(module.len());
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.context("it is no valid module")?;
        if let Payload::Version { range, .. } = &payload {
            bare.extend_from_slice(&module[range.clone()]);
        }
        let is_debug = matches!(&payload, Payload::CustomSection(custom) if custom.name().starts_with(".debug_"));
        if let Some((id, range)) = payload.as_section().filter(|_| !is_debug) {
            bare.push(id);
            bare.extend(leb128(range.len()));
            bare.extend_from_slice(&module[range]);
        }
    }
    Ok(bare)
}

/// A number in the binary format's own encoding: seven bits a byte, the least first.
fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn contract() -> Result<(Resolve, PackageId)> {
    let mut sources = SourceMap::new();
    for path in Contract::iter() {
        let file = Contract::get(&path).expect("every path that is listed is embedded");
        sources.push(Path::new(&*path), String::from_utf8_lossy(&file.data));
    }
    let parsed = sources.parse().map_err(|(_, error)| anyhow::anyhow!("{error:?}"))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_group(parsed)?;
    Ok((resolve, package))
}

/// The module that stands in for WASI, with what it imports of the contract said.
fn wasi() -> Result<Vec<u8>> {
    let (mut resolve, _) = contract()?;
    let package = resolve.push_source("wasi.wit", WASI_WORLD)?;
    let world = resolve.select_world(&[package], Some("wasi"))?;
    let mut module = WASI_MODULE.to_vec();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    Ok(module)
}

/// The names that a module imports and exports.
struct Interface {
    imports: Vec<(String, String)>,
    exports: Vec<String>,
}

impl Interface {
    fn of(module: &[u8]) -> Result<Self> {
        let mut interface = Self { imports: Vec::new(), exports: Vec::new() };
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import?;
                        interface.imports.push((import.module.to_owned(), import.name.to_owned()));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        interface.exports.push(export?.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(interface)
    }

    fn exports(&self, name: &str) -> bool {
        self.exports.iter().any(|export| export == name)
    }

    /// Says what it imports that a function cannot have, and what it should export.
    fn check(&self) -> Result<()> {
        let wasi = Self::of(WASI_MODULE)?;
        let is_known = |(from, name): &&(String, String)| match from.as_str() {
            WASI => wasi.exports(name),
            _ => from.starts_with("wasmill:operator/"),
        };
        let listed = |names: Vec<String>| names.join("`, `");
        let unknown: Vec<_> = self.imports.iter().filter(|import| !is_known(import)).collect();
        if !unknown.is_empty() {
            let unknown = listed(unknown.iter().map(|(from, name)| format!("{from} {name}")).collect());
            bail!(
                "it imports `{unknown}`, which nobody gives a function: what there is stands in the contract (`wit/`), and is imported by names such as `wasmill:operator/state@0.1.0 get`"
            );
        }
        let missing: Vec<_> = NEEDED.iter().filter(|name| !self.exports(name)).map(ToString::to_string).collect();
        ensure!(missing.is_empty(), "it does not export `{}`: see the contract's world `operator`", listed(missing));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(module: &[u8], fragment: &str) {
        let error = format!("{:#}", component(module, None).unwrap_err());
        assert!(error.contains(fragment), "{error}");
    }

    #[test]
    fn what_is_no_core_module_is_refused() {
        check_refused(b"fn main() {}", "it is no WebAssembly");
        check_refused(b"\0asm\x0d\0\x01\0", "it is a component already");
        check_refused(b"\0asm\x01\0\0\0\x01\x40", "it is no valid module");
    }

    #[test]
    fn exports_that_are_missing_are_named() {
        check_refused(b"\0asm\x01\0\0\0", "it does not export `memory`, `cabi_realloc`, `describe`, `init`, `process`");
    }

    #[test]
    fn imports_that_nobody_gives_are_named() {
        check_refused(WASI_MODULE, "it imports `env memory`, `__main_module__ cabi_realloc`, which");
    }

    /// The functions of WASI's preview 1, as its specification lists them.
    const PREVIEW_1: &str = "args_get args_sizes_get environ_get environ_sizes_get clock_res_get clock_time_get fd_advise fd_allocate fd_close fd_datasync fd_fdstat_get \
        fd_fdstat_set_flags fd_fdstat_set_rights fd_filestat_get fd_filestat_set_size fd_filestat_set_times fd_pread fd_prestat_get fd_prestat_dir_name fd_pwrite fd_read \
        fd_readdir fd_renumber fd_seek fd_sync fd_tell fd_write path_create_directory path_filestat_get path_filestat_set_times path_link path_open path_readlink \
        path_remove_directory path_rename path_symlink path_unlink_file poll_oneoff proc_exit proc_raise sched_yield random_get sock_accept sock_recv sock_send sock_shutdown";

    #[test]
    fn all_of_wasi_is_there() {
        let wasi = Interface::of(WASI_MODULE).unwrap();
        let missing: Vec<&str> = PREVIEW_1.split_whitespace().filter(|name| !wasi.exports(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn debug_information_goes_and_all_else_stays() {
        let custom = |name: &[u8], length: usize| {
            let content = [&[name.len() as u8], name, &vec![7; length]].concat();
            [&[0][..], &leb128(content.len()), &content].concat()
        };
        let module = |sections: &[Vec<u8>]| [WASI_MODULE, &sections.concat()].concat();
        let bare =
            without_debug(&module(&[custom(b".debug_info", 300), custom(b"producers", 200), custom(b".debug_str", 9)]));
        assert_eq!(bare.unwrap(), module(&[custom(b"producers", 200)]));
    }

    #[test]
    fn the_contract_has_the_worlds_that_can_be_named() {
        let (resolve, package) = contract().unwrap();
        for world in WORLDS {
            assert!(resolve.select_world(&[package], Some(world)).is_ok(), "{world}");
        }
    }
}
