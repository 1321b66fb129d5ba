//! The host's side of the contract, generated from `wit/`. Imports never suspend today; exports are called by fibers.
#![allow(missing_docs, reason = "generated from wit/, which documents every item")]

wasmtime::component::bindgen!({
    path: "../wit",
    world: "operator",
    // A lookup may have to wait for another host.
    imports: {
        "wasmill:operator/tables.get-many": async | trappable,
        "wasmill:operator/tables.get": async | trappable,
        "wasmill:operator/tables.get-many-at": async | trappable,
        "wasmill:operator/tables.scan": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
