// Functions for Wasmill in AssemblyScript: one record at a time, with state, output and the tables of others.
//
// A function is a class that extends `WasmillFunction` and is given to `register` where the module begins. Behind it, a batch of records crosses the boundary at once: state is read by one call
// for all keys of a batch, kept until the batch is done, and written back by one call, and so is all else.
//
// `Bytes` that are given to a function live until the call is done; those that it gives are copied. A call that the host refuses does nothing, and the record is refused with the host's reason:
// nothing has to be checked for that.

import * as abi from "./abi";
import { Change, Record, batch } from "./batch";
import { Bytes } from "./bytes";

export { Change, NO_TIME, Record } from "./batch";
export { Bytes } from "./bytes";

/** What is compiled to a component. An instance may keep only what follows from its config: it is replaced after any failure. */
export abstract class WasmillFunction {
  abstract describe(): Description;

  /** Prepares the instance. `config` is a JSON object. Returns what is wrong with it, or null. */
  init(config: Bytes): string | null {
    return null;
  }

  /** Says by `UsedTable.want` what `process` will look up. It is called for all records of a batch before the first is worked on. */
  prefetch(record: Record): void {}

  /** Works on a record. Returns why the record is refused, or null. What it has done for a refused record is undone. */
  abstract process(record: Record): string | null;
}

let registered: WasmillFunction | null = null;

/** Says which function the component has. */
export function register(made: WasmillFunction): void {
  registered = made;
}

export function theFunction(): WasmillFunction {
  return assert(registered, "no function was given to `register`");
}

/** What a function says of itself. */
export class Description {
  tables: Table[] = [];
  ports: string[] = [];
  used: UsedTable[] = [];

  constructor(public name: string, public version: string) {}

  table(table: Table): this {
    this.tables.push(table);
    return this;
  }

  port(name: string): this {
    this.ports.push(name);
    return this;
  }

  uses(table: UsedTable): this {
    this.used.push(table);
    return this;
  }
}

/** A table of the function's own. Raise the version when the encoding of its values changes. */
export class Table {
  /** Whether the rest of the job may read and change it, where the manifest says so, too. */
  isOpen: bool = false;
  /** Whether it can be scanned. */
  isOrdered: bool = false;

  constructor(public name: string, public schemaVersion: u32 = 1) {}

  /** The value of a key; null where it has none. */
  get(key: Bytes): Bytes | null {
    return batch.read(batch.cellsOf(this.name, true), key);
  }

  put(key: Bytes, value: Bytes): void {
    batch.change(this.name, key, value, true);
  }

  delete(key: Bytes): void {
    batch.change(this.name, key, key, false);
  }

  /** A value that is a number of 64 bits; 0 where there is none. */
  getI64(key: Bytes): i64 {
    const value = this.get(key);
    return value && value.length == 8 ? load<i64>(value.data) : 0;
  }

  putI64(key: Bytes, number: i64): void {
    this.put(key, Bytes.ofI64(number));
  }
}

/** A table of anyone, by the name that `uses.NAME` in the manifest has. */
export class UsedTable {
  constructor(public name: string) {}

  /** The value of a key, as of the latest batch that its owner has applied; null where it has none. */
  lookup(key: Bytes): Bytes | null {
    return batch.read(batch.cellsOf(this.name, false), key);
  }

  /** For `prefetch`: `lookup` of this key will find its value without a call of its own. */
  want(key: Bytes): void {
    batch.cellsOf(this.name, false).of(key);
  }

  /** Changes a value, exactly once, after the batch has succeeded. */
  update(key: Bytes, change: Change, operand: Bytes): void {
    batch.update(this.name, key, change, operand);
  }

  add(key: Bytes, number: i64): void {
    this.update(key, Change.AddS64, Bytes.ofI64(number));
  }

  /** Gives a record to the function that owns the table. */
  send(key: Bytes, value: Bytes): void {
    batch.leave(this.name, true, key, value, batch.time);
  }
}

/** Emits a record on the port `out`, with the time of the record that is worked on. */
export function emit(key: Bytes, value: Bytes): void {
  batch.leave("out", false, key, value, batch.time);
}

/** Emits a record on a port, with a time. */
export function emitTo(port: string, key: Bytes, value: Bytes, time: i64): void {
  batch.leave(port, false, key, value, time);
}

export enum Level { Trace, Debug, Info, Warn, Error }

export function log(level: Level, line: string): void {
  const bytes = Bytes.of(line);
  abi.logWrite(level, bytes.data, bytes.length);
}

/** Adds to a counter; not for a refused record. */
export function count(name: string, by: u64 = 1): void {
  batch.figure(name, false, by);
}

export function gauge(name: string, value: f64): void {
  batch.figure(name, true, reinterpret<u64>(value));
}

/** Says that the record which is worked on is to blame if the call now traps or never ends. */
export function atFault(): void {
  abi.atFault();
}
