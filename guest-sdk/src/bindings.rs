//! The contract as Rust: types, imports and the export macro, generated from `wit/`.
//!
//! Everything else in this crate is written by hand; nothing here is.
#![allow(missing_docs, clippy::too_many_arguments)]

wit_bindgen::generate!({
    world: "migrating-operator",
    path: "wit",
    pub_export_macro: true,
    export_macro_name: "export_operator",
    default_bindings_module: "wasmill_sdk::bindings",
});
