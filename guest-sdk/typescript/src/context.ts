/** What a function may do while it works on a record. Effects are gathered, and handed to the host when the batch is done. */

import { type Bytes, toBytes } from "./bytes.js";
import type { Description, InputRecord, Table, UsedTable } from "./function.js";
import { type Consistency, type Host, type Level, LIVE, type Outcomes, Records } from "./host.js";
import { Lookups } from "./lookups.js";
import { type Entry, TableState } from "./state.js";
import type { Ask, EncodedUpdate, Update } from "./updates.js";

/** The port that every operator has. */
export const OUT = "out";

/** Where and when a record is emitted, if not on `out` at the time of the record that is worked on. `time: null` is no time. */
export interface EmitOptions {
  port?: string;
  time?: number | null;
}

interface Pending extends EncodedUpdate {
  table: string;
  key: Uint8Array;
  record: number;
  ask?: Ask;
}

interface Figures {
  values: number[];
  causes: number[];
}

/** What a function may do while it works on a record. */
export class Context {
  /** For the runner. */
  readonly lookups: Lookups;
  private readonly tables: Map<string, TableState<any>>;
  private readonly states: TableState<any>[];
  private readonly uses: Set<string>;
  private readonly ports: Map<string, Records>;
  private readonly sent = new Map<string, Records>();
  private updates: Pending[] = [];
  private readonly counts = new Map<string, Figures>();
  private readonly gauges = new Map<string, Figures>();
  private apart = false;
  private record = 0;
  private time: number | undefined;

  constructor(
    description: Description,
    private readonly host: Host,
  ) {
    this.lookups = new Lookups(host);
    this.tables = new Map((description.tables ?? []).map((table) => [table.name, new TableState(table, host)]));
    this.states = [...this.tables.values()];
    this.uses = new Set((description.uses ?? []).map((table) => table.name));
    this.ports = new Map([OUT, ...(description.ports ?? [])].map((port) => [port, new Records()]));
  }

  /** The entry of the record's own key in `table`, or of another key that this task owns. */
  state<T>(table: Table<T>, key?: Bytes): Entry<T> {
    const state = this.tables.get(table.name) as TableState<T> | undefined;
    if (!state) throw new Error(`table \`${table.name}\` is not in the function's description`);
    return key === undefined ? state.ownEntry() : state.entry(key);
  }

  /** The value of `key` in a table of others, or undefined. */
  lookup<T>(table: UsedTable<T>, key: Bytes, consistency: Consistency = LIVE): T | undefined {
    return this.lookupMany(table, [key], consistency)[0];
  }

  /** The values of `keys`, in their order. */
  lookupMany<T>(table: UsedTable<T>, keys: Bytes[], consistency: Consistency = LIVE): (T | undefined)[] {
    const places = keys.map((key) => ({ key: toBytes(key) }));
    const found = this.lookups.get({ table: this.used(table), consistency }, places, this.record);
    return found.map((value) => (value === undefined ? undefined : table.codec.decode(value)));
  }

  /** The value that `key` had at an event time, on tables that are versioned. With `wait`, the record is worked on again until the owner has come to that time. */
  lookupAsOf<T>(table: UsedTable<T>, key: Bytes, time: number, options: { wait?: boolean } = {}): T | undefined {
    const shown = { table: this.used(table), wait: options.wait ?? false };
    const found = this.lookups.get(shown, [{ key: toBytes(key), time }], this.record)[0];
    return found === undefined ? undefined : table.codec.decode(found);
  }

  /** The keys from `start` to before `end` with their values, ascending, on tables that are ordered; `page` keys a call. */
  *scan<T>(
    table: UsedTable<T>,
    options: { start?: Bytes; end?: Bytes; page?: number; consistency?: Consistency } = {},
  ): Generator<[Uint8Array, T]> {
    const end = options.end === undefined ? undefined : toBytes(options.end);
    let start: Uint8Array | undefined = toBytes(options.start ?? "");
    while (start) {
      if (this.apart) this.host.readFor([this.record]);
      const page = this.host.scan(this.used(table), start, end, options.page ?? 1_000, options.consistency ?? LIVE);
      for (const [key, value] of page.entries) yield [key, table.codec.decode(value)];
      start = page.next;
    }
  }

  /** Has the owner of `table` change a value, exactly once, after this batch has succeeded. `ask` asks for the outcome. */
  update<T>(table: UsedTable<T>, key: Bytes, update: Update<NoInfer<T>>, ask?: Ask): void {
    if (ask) this.port(ask.port);
    this.updates.push({ ...update.encoded(table.codec), table: this.used(table), key: toBytes(key), record: this.record, ask });
  }

  /** Gives a record to the function that owns `table`, in the task of `key`. */
  send(table: UsedTable<any>, key: Bytes, value: Bytes, options: { time?: number | null } = {}): void {
    const name = this.used(table);
    let records = this.sent.get(name);
    if (!records) this.sent.set(name, (records = new Records()));
    records.push(key, value, this.timeOf(options.time), this.record);
  }

  /** Emits a record. */
  emit(key: Bytes, value: Bytes, options?: EmitOptions): void {
    this.port(options?.port ?? OUT).push(key, value, this.timeOf(options?.time), this.record);
  }

  /** Emits a record whose value is JSON. */
  emitJson(key: Bytes, value: unknown, options?: EmitOptions): void {
    this.emit(key, JSON.stringify(value), options);
  }

  /** Writes a line to the job's log. It is kept even when the batch fails. */
  log(level: Level, message: unknown): void {
    this.host.log(level, String(message));
  }

  /** Adds to a counter, when the batch succeeds. */
  count(name: string, by = 1): void {
    this.figure(this.counts, name, by);
  }

  /** Sets a gauge, when the batch succeeds. */
  gauge(name: string, value: number): void {
    this.figure(this.gauges, name, value);
  }

  /** For the runner, as what follows. */
  beginBatch(records: InputRecord[]): void {
    this.apart = this.host.isApart();
    for (const state of this.states) state.beginBatch(records, this.apart);
    this.lookups.beginBatch(records.length, this.apart);
    for (const port of this.ports.keys()) this.ports.set(port, new Records());
    this.updates = [];
    for (const map of [this.sent, this.counts, this.gauges]) map.clear();
  }

  beginRecord(index: number, record: InputRecord): void {
    this.record = index;
    for (const state of this.states) state.beginRecord(index);
    this.time = record.time;
  }

  endRecord(): void {
    if (this.apart) for (const state of this.states) state.endRecord();
  }

  refuseRecord(reason: string): void {
    const { record } = this;
    for (const state of this.states) state.dropRecord();
    for (const records of [...this.ports.values(), ...this.sent.values()]) records.dropOf(record);
    this.updates = this.updates.filter((update) => update.record !== record);
    for (const { values, causes } of [...this.counts.values(), ...this.gauges.values()]) {
      while (causes.at(-1) === record) {
        causes.pop();
        values.pop();
      }
    }
    this.host.reject(record, reason);
  }

  endBatch(): void {
    for (const state of this.states) state.handOver();
    this.handOverUpdates();
    for (const [table, records] of this.sent) if (records.causes.length > 0) this.host.send(table, records);
    for (const [port, records] of this.ports) if (records.causes.length > 0) this.host.emit(port, records);
    for (const [name, { values, causes }] of this.counts) this.host.countMany(name, values, causes);
    for (const [name, { values, causes }] of this.gauges) this.host.gaugeMany(name, values, causes);
  }

  /** In runs of what one call can hold, so that the order of a table's updates stays. */
  private handOverUpdates(): void {
    const { updates } = this;
    const kind = ({ table, op, number, ask }: Pending) => JSON.stringify([table, op, number, ask?.port]);
    for (let start = 0, end = 0; start < updates.length; start = end) {
      const { table, op, number, ask } = updates[start]!;
      while (end < updates.length && kind(updates[end]!) === kind(updates[start]!)) end++;
      const run = updates.slice(start, end);
      const keys = run.map(({ key }) => key);
      const operands = run.map(({ operand }) => operand);
      const causes = run.map(({ record }) => record);
      let outcomes: Outcomes | undefined;
      if (ask) outcomes = { port: ask.port, keys: run.map(({ ask }) => ask!.key), tags: run.map(({ ask }) => ask!.tag ?? "") };
      if (op === "compare-and-put") this.host.compareAndPutMany(table, keys, run.map(({ expected }) => expected), operands, causes, outcomes);
      else this.host.updateMany(table, keys, op, number, operands, causes, outcomes);
    }
  }

  private figure(figures: Map<string, Figures>, name: string, value: number): void {
    let of = figures.get(name);
    if (!of) figures.set(name, (of = { values: [], causes: [] }));
    of.values.push(value);
    of.causes.push(this.record);
  }

  private timeOf(time: number | null | undefined): number | undefined {
    return time === undefined ? this.time : (time ?? undefined);
  }

  private port(port: string): Records {
    const records = this.ports.get(port);
    if (!records) throw new Error(`port \`${port}\` is not in the function's description`);
    return records;
  }

  private used(table: UsedTable<any>): string {
    if (!this.uses.has(table.name)) throw new Error(`table \`${table.name}\` is not among the \`uses\` of the function's description`);
    return table.name;
  }
}
