//! Makes modules of their texts: the one that stands in for WASI's preview 1 (see `cli/componentize`), and a guest for the tests of WASI 0.2.

use std::path::Path;

const MODULES: [(&str, &str); 2] =
    [("src/cli/componentize/wasi.wat", "wasi.wasm"), ("src/plugin/wasi/guest.wat", "wasi-guest.wasm")];

fn main() {
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    for (text, name) in MODULES {
        println!("cargo::rerun-if-changed={text}");
        let module = wat::parse_file(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        std::fs::write(Path::new(&folder).join(name), module).expect("cargo's folder can be written");
    }
}
