/** What a function's environment can do: the imports of the contract in JavaScript's terms. `component` has the real one, `testing` one in memory. */

import type { Bytes } from "./bytes.js";

export type Level = "trace" | "debug" | "info" | "warn" | "error";

/** Which state a lookup sees: the latest batch that the owner has applied (`live`), the last committed epoch, a retained one, or `live` up to so much older. */
export type Consistency = { tag: "live" } | { tag: "committed" } | { tag: "as-of" | "bounded-ms" | "bounded-epochs"; val: number };

export const LIVE: Consistency = { tag: "live" };
export const COMMITTED: Consistency = { tag: "committed" };

/** Records to be handed over, in columns, with the records that caused them. */
export class Records {
  readonly keys: Bytes[] = [];
  readonly values: Bytes[] = [];
  readonly times: (number | undefined)[] = [];
  readonly causes: number[] = [];

  push(key: Bytes, value: Bytes, time: number | undefined, cause: number): void {
    this.keys.push(key);
    this.values.push(value);
    this.times.push(time);
    this.causes.push(cause);
  }

  /** Takes back what the latest record has caused. */
  dropOf(cause: number): void {
    while (this.causes.at(-1) === cause) for (const column of [this.keys, this.values, this.times, this.causes]) column.pop();
  }
}

/** Asks for the outcomes of updates. */
export interface Outcomes {
  port: string;
  keys: Bytes[];
  tags: Bytes[];
}

export type Found = (Uint8Array | undefined)[];
/** What is handed over, where it may be absent. */
export type Given = (Bytes | undefined)[];

/** See the contract (`wit/`) for what each means. Refusals are thrown as `HostError`. */
export interface Host {
  getMany(table: string, keys: Uint8Array[]): Found;
  putMany(table: string, keys: Uint8Array[], values: Bytes[], causes: number[]): void;
  deleteMany(table: string, keys: Uint8Array[], causes: number[]): void;
  lookupMany(table: string, keys: Uint8Array[], consistency: Consistency): Found;
  lookupManyAt(table: string, keys: Uint8Array[], times: number[], wait: boolean): Found;
  scan(table: string, start: Uint8Array, end: Uint8Array | undefined, limit: number, consistency: Consistency): { entries: [Uint8Array, Uint8Array][]; next?: Uint8Array };
  updateMany(table: string, keys: Uint8Array[], op: string, number: number, operands: Given, causes: number[], outcomes?: Outcomes): void;
  compareAndPutMany(table: string, keys: Uint8Array[], expected: Given, values: Given, causes: number[], outcomes?: Outcomes): void;
  send(table: string, records: Records): void;
  emit(port: string, records: Records): void;
  log(level: Level, message: string): void;
  countMany(name: string, by: number[], causes: number[]): void;
  gaugeMany(name: string, values: number[], causes: number[]): void;
  reject(record: number, reason: string): void;
  beginRecord(record: number): void;
  isApart(): boolean;
  readFor(causes: number[]): void;
}
