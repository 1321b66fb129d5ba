//! The host's side of the contract, generated from `wit/`. Imports never suspend today; exports are called by fibers.
#![allow(missing_docs, reason = "generated from wit/, which documents every item")]

wasmtime::component::bindgen!({
    path: "../wit",
    world: "operator",
    imports: { default: trappable },
    exports: { default: async },
});
