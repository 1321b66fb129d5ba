//! Functions in AssemblyScript.

use super::language::Language;

pub(super) const ASSEMBLYSCRIPT: Language = Language {
    name: "assemblyscript",
    component: "target/function.wasm",
    build: "wasmill build-assemblyscript",
    sdk: &[("assemblyscript/", "wasmill-sdk/")],
    taken: &[],
};
