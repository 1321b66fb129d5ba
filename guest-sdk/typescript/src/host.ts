/** What a function's environment can do: the imports of the contract in JavaScript's terms. `component` has the real one, `testing` one in memory. */

export type Level = "trace" | "debug" | "info" | "warn" | "error";

/** Which state a lookup sees: the latest batch that the owner has applied (`live`), the last committed epoch, a retained one, or `live` up to so much older. */
export type Consistency = { tag: "live" } | { tag: "committed" } | { tag: "as-of" | "bounded-ms" | "bounded-epochs"; val: number };

export const LIVE: Consistency = { tag: "live" };
export const COMMITTED: Consistency = { tag: "committed" };

/** Records to be handed over, in columns, with the records that caused them. */
export class Records {
  readonly keys: Uint8Array[] = [];
  readonly values: Uint8Array[] = [];
  readonly times: (number | undefined)[] = [];
  readonly causes: number[] = [];

  push(key: Uint8Array, value: Uint8Array, time: number | undefined, cause: number): void {
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
  keys: Uint8Array[];
  tags: Uint8Array[];
}

export type Found = (Uint8Array | undefined)[];

/** See the contract (`wit/`) for what each means. Refusals are thrown as `HostError`. */
export interface Host {
  getMany(table: string, keys: Uint8Array[]): Found;
  putMany(table: string, keys: Uint8Array[], values: Uint8Array[], causes: number[]): void;
  deleteMany(table: string, keys: Uint8Array[], causes: number[]): void;
  lookupMany(table: string, keys: Uint8Array[], consistency: Consistency): Found;
  lookupManyAt(table: string, keys: Uint8Array[], times: number[], wait: boolean): Found;
  scan(table: string, start: Uint8Array, end: Uint8Array | undefined, limit: number, consistency: Consistency): { entries: [Uint8Array, Uint8Array][]; next?: Uint8Array };
  updateMany(table: string, keys: Uint8Array[], op: string, number: number, operands: Found, causes: number[], outcomes?: Outcomes): void;
  compareAndPutMany(table: string, keys: Uint8Array[], expected: Found, values: Found, causes: number[], outcomes?: Outcomes): void;
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
