//! Functions in Python.

use super::language::Language;

/// The package lies beside the function, with what makes a component of it.
pub(super) const PYTHON: Language = Language {
    name: "python",
    component: "function.wasm",
    build: "python3 wasmill-sdk/build.py function.py -o function.wasm",
    sdk: &[
        ("python/build.py", "wasmill-sdk/build.py"),
        ("python/wasmill/", "wasmill-sdk/wasmill/"),
        ("wit/", "wasmill-sdk/wit/"),
    ],
    taken: &["wasmill-sdk", "wasmill_sdk"],
};
