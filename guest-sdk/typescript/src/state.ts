/** A table of the function's own, during a batch: what was read of it and what is to be written. */

import { latin1 } from "./bytes.js";
import type { Table } from "./function.js";
import type { Host } from "./host.js";

interface Write {
  id: string;
  key: Uint8Array;
  value: Uint8Array | undefined;
  record: number;
}

/** Values are kept as bytes: what a function does to a value that it was given changes nothing until it puts it. */
export class TableState<T> {
  private apart = false;
  private loaded = false;
  private keys: Uint8Array[] = [];
  private readonly current = new Map<string, Uint8Array | undefined>();
  private readonly before = new Map<string, Uint8Array | undefined>();
  private writes: Write[] = [];

  constructor(
    readonly table: Table<T>,
    private readonly host: Host,
  ) {}

  /** `keys` are those of the batch's records: the first read of one reads them all. */
  beginBatch(keys: Uint8Array[], apart: boolean): void {
    this.keys = keys;
    this.apart = apart;
    this.loaded = false;
    this.current.clear();
    this.before.clear();
    this.writes = [];
  }

  get(key: Uint8Array, record: number): Uint8Array | undefined {
    return this.read(latin1(key), key, record);
  }

  /** Also reads the key: that this task owns it comes out now, not when the batch ends. */
  set(key: Uint8Array, value: Uint8Array | undefined, record: number): void {
    const id = latin1(key);
    const before = this.read(id, key, record);
    if (!this.before.has(id)) this.before.set(id, before);
    this.current.set(id, value);
    this.writes.push({ id, key, value, record });
  }

  endRecord(): void {
    if (this.apart) this.restore();
    this.before.clear();
  }

  /** Takes back what the latest record has changed. */
  dropRecord(record: number): void {
    this.restore();
    this.before.clear();
    while (this.writes.at(-1)?.record === record) this.writes.pop();
  }

  /** Writes what was changed: of each key the last value, or all where each of them counts. */
  handOver(): void {
    let writes = this.writes;
    if (!this.apart && this.table.options.versionedMs === undefined) {
      const last = [...new Map(writes.map((write) => [write.id, write])).values()];
      writes = [...last.filter(({ value }) => value !== undefined), ...last.filter(({ value }) => value === undefined)];
    }
    for (let start = 0, end = 0; start < writes.length; start = end) {
      const isDelete = writes[start]!.value === undefined;
      while (end < writes.length && (writes[end]!.value === undefined) === isDelete) end++;
      const run = writes.slice(start, end);
      const [keys, causes] = [run.map(({ key }) => key), run.map(({ record }) => record)];
      if (isDelete) this.host.deleteMany(this.table.name, keys, causes);
      else this.host.putMany(this.table.name, keys, run.map(({ value }) => value!), causes);
    }
  }

  private read(id: string, key: Uint8Array, record: number): Uint8Array | undefined {
    if (!this.loaded) this.load();
    if (!this.current.has(id)) {
      if (this.apart) this.host.readFor([record]);
      this.current.set(id, this.host.getMany(this.table.name, [key])[0]);
    }
    return this.current.get(id);
  }

  private restore(): void {
    for (const [id, value] of this.before) this.current.set(id, value);
  }

  private load(): void {
    this.loaded = true;
    const all: [string, Uint8Array][] = this.keys.map((key) => [latin1(key), key]);
    const keys = this.apart ? all : [...new Map(all)];
    if (this.apart) this.host.readFor(keys.map((_, index) => index));
    const found = this.host.getMany(this.table.name, keys.map(([, key]) => key));
    keys.forEach(([id], index) => this.current.set(id, found[index]));
  }
}
