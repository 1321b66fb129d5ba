/** Lookups in tables of others: keys wanted by a batch, gathered into one call a table, and what came of it, kept until the batch ends. */

import { type Bytes, latin1, toBytes } from "./bytes.js";
import { BatchFailed, HostError } from "./errors.js";
import type { UsedTable } from "./function.js";
import { type Consistency, type Found, type Host, LIVE } from "./host.js";

/** What lookups show: a state of a table, or what was true at event times. */
export type Shown = { table: string; consistency: Consistency } | { table: string; wait: boolean };

/** A key, with its time where lookups are as of times. */
export interface Place {
  key: Uint8Array;
  time?: number;
}

interface Wanted extends Place {
  id: string;
  reader: number;
}

/** All lookups of a batch. */
export class Lookups {
  private apart = false;
  private records = 0;
  private readonly tables = new Map<string, { wanted: Map<string, Wanted>; found: Map<string, Uint8Array | undefined> }>();

  constructor(private readonly host: Host) {}

  beginBatch(records: number, apart: boolean): void {
    this.records = records;
    this.apart = apart;
    this.tables.clear();
  }

  want(shown: Shown, place: Place, record: number): void {
    const wanted = this.wanted(place, record);
    this.of(shown).wanted.set(wanted.id, wanted);
  }

  /** The values at `places`, in their order. */
  get(shown: Shown, places: Place[], record: number): Found {
    const table = this.of(shown);
    if (table.wanted.size > 0) {
      const all = [...table.wanted.values()];
      table.wanted.clear();
      this.fetch(shown, all);
    }
    const asked = places.map((place) => this.wanted(place, record));
    const missing = new Map(asked.filter(({ id }) => !table.found.has(id)).map((wanted) => [wanted.id, wanted]));
    if (missing.size > 0) this.fetch(shown, [...missing.values()]);
    return asked.map(({ id }) => table.found.get(id));
  }

  private fetch(shown: Shown, wanted: Wanted[]): void {
    const keys = wanted.map(({ key }) => key);
    if (this.apart) this.host.readFor(wanted.map(({ reader }) => reader));
    try {
      const found =
        "wait" in shown
          ? this.host.lookupManyAt(shown.table, keys, wanted.map(({ time }) => time ?? 0), shown.wait)
          : this.host.lookupMany(shown.table, keys, shown.consistency);
      const kept = this.of(shown).found;
      wanted.forEach(({ id }, index) => kept.set(id, found[index]));
    } catch (error) {
      // Too much for one call may do in parts.
      if (error instanceof HostError && error.kind === "limit-exceeded" && this.records > 1) throw new BatchFailed(error.message);
      throw error;
    }
  }

  private wanted({ key, time }: Place, record: number): Wanted {
    const id = `${this.apart ? record : ""}/${time ?? ""}/${latin1(key)}`;
    return { id, key, time, reader: record };
  }

  private of(shown: Shown) {
    const id = JSON.stringify(shown);
    let table = this.tables.get(id);
    if (!table) this.tables.set(id, (table = { wanted: new Map(), found: new Map() }));
    return table;
  }
}

/** What a batch will look up; see `WasmillFunction.prefetch`. */
export class Wants {
  record = 0;

  constructor(private readonly lookups: Lookups) {}

  /** `key` will be looked up by `Context.lookup`. */
  lookup(table: UsedTable<any>, key: Bytes, consistency: Consistency = LIVE): void {
    this.lookups.want({ table: table.name, consistency }, { key: toBytes(key) }, this.record);
  }

  /** `key` will be looked up by `Context.lookupAsOf`, at this time. */
  lookupAsOf(table: UsedTable<any>, key: Bytes, time: number, options: { wait?: boolean } = {}): void {
    this.lookups.want({ table: table.name, wait: options.wait ?? false }, { key: toBytes(key), time }, this.record);
  }
}
