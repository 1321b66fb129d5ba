//! Makes the module that stands in for WASI's preview 1 (see `cli/componentize`) of its text.

use std::path::Path;

fn main() {
    let text = "src/cli/componentize/wasi.wat";
    println!("cargo::rerun-if-changed={text}");
    let module = wat::parse_file(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&folder).join("wasi.wasm"), module).expect("cargo's folder can be written");
}
