/**
 * Testing a function natively, without Wasm: the same code runs it, over a host in memory that keeps the contract as the real one does. A batch's effects are applied together or not at
 * all, a refused record's effects are dropped, and a record that makes the function throw is set aside and the rest is run again on a fresh instance. Endless loops and limits are not
 * simulated.
 */

import { type Bytes, latin1, toBytes, toText } from "./bytes.js";
import { OUT } from "./context.js";
import { BatchFailed, HostError } from "./errors.js";
import { type Description, type FunctionClass, InputRecord, type Table, type UsedTable } from "./function.js";
import type { Found, Given, Host, Level, Outcomes, Records } from "./host.js";
import { Runner } from "./runner.js";
import type { Update } from "./updates.js";

/** A record for `Harness.process`. What is neither bytes nor text becomes JSON. */
export function record(key: Bytes, value: unknown = "", time?: number): InputRecord {
  const content = typeof value === "string" || value instanceof Uint8Array ? value : JSON.stringify(value);
  return new InputRecord(toBytes(key), toBytes(content), time);
}

/** A record that comes back from an update that was asked about (`Ask`). */
export function outcome(key: Bytes, changed: boolean, tag: Bytes = ""): InputRecord {
  return record(key, new Uint8Array([changed ? 1 : 0, ...toBytes(tag)]));
}

/** A record that the function has emitted, or sent to the owner of the table `port`, and the place of the record that caused it. */
export interface Emitted {
  port: string;
  key: Uint8Array;
  value: Uint8Array;
  time: number | undefined;
  cause: number;
}

/** An update of a table of others: `op` as the contract names it, the operand and what is expected as they are encoded. */
export interface Updated {
  table: string;
  key: Uint8Array;
  op: string;
  operand: Uint8Array | undefined;
  expected: Uint8Array | undefined;
  cause: number;
  asked: { port: string; key: Uint8Array; tag: Uint8Array } | undefined;
}

/** Whether `updated` is this update of `table`. */
export function isUpdate<T>(updated: Updated, table: UsedTable<T>, update: Update<NoInfer<T>>): boolean {
  const { op, operand, expected } = update.encoded(table.codec);
  const same = (a?: Bytes, b?: Bytes) => (a && latin1(toBytes(a))) === (b && latin1(toBytes(b)));
  return updated.table === table.name && updated.op === op && same(updated.operand, operand) && same(updated.expected, expected);
}

/** What a batch has come to. */
export class Outcome {
  emitted: Emitted[] = [];
  updates: Updated[] = [];
  sent: Emitted[] = [];
  rejected: { index: number; reason: string }[] = [];
  /** The records that have to wait: the first that asked for what an owner has not come to, and all behind it. */
  waiting: number[] = [];
  log: { level: Level; message: string }[] = [];
  counts: Record<string, number> = {};
  gauges: Record<string, number> = {};

  /** The values emitted on a port, as text. */
  texts(port: string = OUT): string[] {
    return this.emitted.filter((emitted) => emitted.port === port).map(({ value }) => toText(value) ?? latin1(value));
  }
}

/** Runs a function natively over a host in memory. */
export class Harness {
  private readonly host: MemoryHost;
  private readonly config: string;
  private runner: Runner;

  /** `apart` has records kept apart, as in an operator that is serializable; none of them is given again. */
  constructor(
    private readonly of: FunctionClass,
    config: object = {},
    options: { apart?: boolean } = {},
  ) {
    this.config = JSON.stringify(config);
    this.host = new MemoryHost(of.description, options.apart ?? false);
    this.runner = this.fresh();
  }

  /** Processes `records` as one batch, and again without a record that makes it fail. */
  process(records: InputRecord[]): Outcome {
    const result = new Outcome();
    let left = records.map((record, index) => ({ record, index }));
    while (left.length > 0) {
      this.host.beginCall(left.length);
      try {
        this.runner.process(left.map(({ record }) => record));
      } catch (error) {
        const place = this.host.culprit;
        if (!(error instanceof BatchFailed) || place === undefined) throw error;
        this.runner = this.fresh();
        result.log.push(...this.host.logged);
        if (error.early) {
          result.waiting = left.slice(place).map(({ index }) => index);
          left = left.slice(0, place);
        } else {
          result.rejected.push({ index: left[place]!.index, reason: error.message });
          left.splice(place, 1);
        }
        continue;
      }
      result.log.push(...this.host.logged);
      this.host.apply(left.map(({ index }) => index), result);
      break;
    }
    result.rejected.sort((a, b) => a.index - b.index);
    return result;
  }

  /** The value that `table` has for `key`. */
  state<T>(table: Table<T>, key: Bytes): T | undefined {
    const stored = this.host.tables.get(table.name)!.get(latin1(toBytes(key)));
    return stored && table.codec.decode(stored);
  }

  /** Sets the stored bytes of a key, as an earlier batch would have. */
  store(table: Table<any>, key: Bytes, stored: Bytes): void {
    this.host.tables.get(table.name)!.set(latin1(toBytes(key)), toBytes(stored));
  }

  /** Sets a value of a table of others; with `time`, what holds from that event time on. Whatever consistency the function asks for, it finds what is there now. */
  other<T>(table: UsedTable<T>, key: Bytes, value: T, time = -Infinity): this {
    const versions = this.host.others.get(table.name)!;
    const id = latin1(toBytes(key));
    const kept = (versions.get(id) ?? []).filter((version) => version.time !== time);
    versions.set(id, [...kept, { time, value: toBytes(table.codec.encode(value)) }].sort((a, b) => a.time - b.time));
    return this;
  }

  /** How far in event time the owner of a table of others has come; without it, as far as anyone asks. */
  reached(table: UsedTable<any>, time: number): this {
    this.host.reached.set(table.name, time);
    return this;
  }

  /** How often the function has called the host, by the name of the call. */
  get calls(): Record<string, number> {
    return this.host.calls;
  }

  private fresh(): Runner {
    return new Runner(this.of, this.config, this.host);
  }
}

type Stored = Map<string, Uint8Array>;

/** A `Host` in memory. Keys of its maps are bytes as characters. */
class MemoryHost implements Host {
  readonly tables: Map<string, Stored>;
  readonly others: Map<string, Map<string, { time: number; value: Uint8Array }[]>>;
  readonly reached = new Map<string, number>();
  readonly calls: Record<string, number> = {};
  culprit: number | undefined;
  logged: { level: Level; message: string }[] = [];
  private records = 0;
  private refused = new Map<number, string>();
  private effects = new Outcome();
  private writes: { table: string; id: string; value: Uint8Array | undefined; cause: number }[] = [];
  private figures: { kind: "counts" | "gauges"; name: string; value: number; cause: number }[] = [];

  constructor(
    description: Description,
    private readonly apart: boolean,
  ) {
    this.tables = new Map((description.tables ?? []).map(({ name }) => [name, new Map()]));
    this.others = new Map((description.uses ?? []).map(({ name }) => [name, new Map()]));
  }

  beginCall(records: number): void {
    this.records = records;
    this.culprit = undefined;
    this.logged = [];
    this.refused = new Map();
    this.effects = new Outcome();
    this.writes = [];
    this.figures = [];
  }

  /** Applies the call's effects, and tells them with the places that records had in the whole batch. */
  apply(indices: number[], result: Outcome): void {
    const kept = <T extends { cause: number }>(effects: T[]): T[] => effects.filter(({ cause }) => !this.refused.has(cause));
    const placed = <T extends { cause: number }>(effects: T[]): T[] => kept(effects).map((effect) => ({ ...effect, cause: indices[effect.cause]! }));
    for (const { table, id, value } of kept(this.writes)) {
      const stored = this.tables.get(table)!;
      if (value) stored.set(id, value);
      else stored.delete(id);
    }
    result.emitted.push(...placed(this.effects.emitted));
    result.updates.push(...placed(this.effects.updates));
    result.sent.push(...placed(this.effects.sent));
    for (const { kind, name, value } of kept(this.figures)) result[kind][name] = kind === "counts" ? (result.counts[name] ?? 0) + value : value;
    for (const [place, reason] of this.refused) result.rejected.push({ index: indices[place]!, reason });
  }

  getMany(table: string, keys: Uint8Array[]): Found {
    this.called("getMany");
    return keys.map((key) => this.tables.get(table)!.get(latin1(key)));
  }

  putMany(table: string, keys: Uint8Array[], values: Bytes[], causes: number[]): void {
    this.called("putMany");
    keys.forEach((key, place) => this.writes.push({ table, id: latin1(key), value: toBytes(values[place]!), cause: this.checked(causes[place]) }));
  }

  deleteMany(table: string, keys: Uint8Array[], causes: number[]): void {
    this.called("deleteMany");
    keys.forEach((key, place) => this.writes.push({ table, id: latin1(key), value: undefined, cause: this.checked(causes[place]) }));
  }

  lookupMany(table: string, keys: Uint8Array[]): Found {
    this.called("lookupMany");
    return keys.map((key) => this.asOf(table, key, Infinity));
  }

  lookupManyAt(table: string, keys: Uint8Array[], times: number[], wait: boolean): Found {
    this.called("lookupManyAt");
    const reached = this.reached.get(table) ?? Infinity;
    if (wait && times.some((time) => time > reached)) throw new HostError("not-yet", `the owner of \`${table}\` has come to ${reached} only`);
    return keys.map((key, place) => this.asOf(table, key, times[place]!));
  }

  scan(table: string, start: Uint8Array, end: Uint8Array | undefined, limit: number) {
    this.called("scan");
    const all = this.others.get(table)!;
    const ids = [...all.keys()].filter((id) => id >= latin1(start) && (!end || id < latin1(end))).sort();
    const bytes = (id: string) => Uint8Array.from(id, (char) => char.charCodeAt(0));
    const entries = ids.slice(0, limit).map((id): [Uint8Array, Uint8Array] => [bytes(id), all.get(id)!.at(-1)!.value]);
    const next = ids[limit];
    return { entries, next: next === undefined ? undefined : bytes(next) };
  }

  updateMany(table: string, keys: Uint8Array[], op: string, _number: number, operands: Given, causes: number[], outcomes?: Outcomes): void {
    this.called("updateMany");
    this.updated(table, keys, op, operands, [], causes, outcomes);
  }

  compareAndPutMany(table: string, keys: Uint8Array[], expected: Given, values: Given, causes: number[], outcomes?: Outcomes): void {
    this.called("compareAndPutMany");
    this.updated(table, keys, "compare-and-put", values, expected, causes, outcomes);
  }

  send(table: string, records: Records): void {
    this.called("send");
    this.effects.sent.push(...this.recordsOf(table, records));
  }

  emit(port: string, records: Records): void {
    this.called("emit");
    this.effects.emitted.push(...this.recordsOf(port, records));
  }

  log(level: Level, message: string): void {
    this.logged.push({ level, message });
  }

  countMany(name: string, by: number[], causes: number[]): void {
    by.forEach((value, place) => this.figures.push({ kind: "counts", name, value, cause: this.checked(causes[place]) }));
  }

  gaugeMany(name: string, values: number[], causes: number[]): void {
    values.forEach((value, place) => this.figures.push({ kind: "gauges", name, value, cause: this.checked(causes[place]) }));
  }

  reject(record: number, reason: string): void {
    this.refused.set(this.checked(record), reason);
  }

  beginRecord(record: number): void {
    this.culprit = this.checked(record);
  }

  isApart(): boolean {
    return this.apart;
  }

  readFor(causes: number[]): void {
    causes.forEach((cause) => this.checked(cause));
  }

  private called(name: string): void {
    this.calls[name] = (this.calls[name] ?? 0) + 1;
  }

  private checked(cause: number | undefined): number {
    if (cause === undefined || cause < 0 || cause >= this.records) throw new HostError("malformed", `the batch has no record ${cause}`);
    return cause;
  }

  private asOf(table: string, key: Uint8Array, time: number): Uint8Array | undefined {
    const versions = this.others.get(table)!.get(latin1(key)) ?? [];
    return versions.filter((version) => version.time <= time).at(-1)?.value;
  }

  private updated(table: string, keys: Uint8Array[], op: string, operands: Given, expected: Given, causes: number[], outcomes?: Outcomes): void {
    keys.forEach((key, place) => {
      const asked = outcomes && { port: outcomes.port, key: toBytes(outcomes.keys[place]!), tag: toBytes(outcomes.tags[place]!) };
      const [operand, known] = [operands[place], expected[place]].map((given) => (given === undefined ? undefined : toBytes(given)));
      this.effects.updates.push({ table, key, op, operand, expected: known, cause: this.checked(causes[place]), asked });
    });
  }

  private recordsOf(port: string, { keys, values, times, causes }: Records): Emitted[] {
    return keys.map((key, place) => ({ port, key: toBytes(key), value: toBytes(values[place]!), time: times[place], cause: this.checked(causes[place]) }));
  }
}
