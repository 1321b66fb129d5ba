//! Functions in Go.

use super::language::Language;

/// The SDK lies beside the function as a module of its own. Names of packages that go along are taken.
pub(super) const GO: Language = Language {
    name: "go",
    component: "target/function.wasm",
    build: "wasmill build-go",
    sdk: &[("go/", "wasmill-sdk/")],
    taken: &["wasmill", "main", "std", "cmd", "test", "testing"],
};
