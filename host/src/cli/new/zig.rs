//! Functions in Zig: over the SDK of C.

use super::language::Language;

pub(super) const ZIG: Language = Language {
    name: "zig",
    component: "target/function.wasm",
    build: "wasmill build-zig",
    sdk: &[("c/", "wasmill-sdk/")],
    taken: &[],
};
