//! Functions in C++: over the SDK of C.

use super::language::Language;

pub(super) const CPP: Language = Language {
    name: "cpp",
    component: "target/function.wasm",
    build: "wasmill build-c",
    sdk: &[("c/", "wasmill-sdk/")],
    taken: &[],
};
