//! Functions in C.

use super::language::Language;

pub(super) const C: Language = Language {
    name: "c",
    component: "target/function.wasm",
    build: "wasmill build-c",
    sdk: &[("c/", "wasmill-sdk/")],
    taken: &[],
};
