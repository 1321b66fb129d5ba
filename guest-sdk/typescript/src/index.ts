/**
 * Write functions for Wasmill in TypeScript or JavaScript: a module whose default export is the class of a function. `wasmill/testing` runs it without Wasm.
 *
 * The package knows the contract (`wit/`), and nothing of the host behind it.
 */

export { type Bytes, concat, toBytes, toText } from "./bytes.js";
export { type Codec, float, int, json, type NumberCodec, type NumberKind, numbers, raw, text } from "./codecs.js";
export { Context, type EmitOptions, OUT } from "./context.js";
export { HostError, Reject } from "./errors.js";
export { type Description, type FunctionClass, InputRecord, Table, type TableOptions, UsedTable, type WasmillFunction } from "./function.js";
export { COMMITTED, type Consistency, type Level, LIVE } from "./host.js";
export { Wants } from "./lookups.js";
export type { Entry } from "./state.js";
export { type Ask, items, Update } from "./updates.js";
