//! Functions in TypeScript.

use super::language::Language;

/// The package lies beside the function, with what makes a component of it.
pub(super) const TYPESCRIPT: Language = Language {
    name: "ts",
    component: "function.wasm",
    build: "node wasmill-sdk/build.mjs function.ts -o function.wasm",
    sdk: &[
        ("typescript/build.mjs", "wasmill-sdk/build.mjs"),
        ("typescript/src/", "wasmill-sdk/src/"),
        ("wit/", "wasmill-sdk/wit/"),
    ],
    taken: &["node_modules", "wasmill-sdk"],
};
