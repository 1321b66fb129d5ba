/** A table of the function's own, during a batch: what was read of it and what is to be written. */

import { type Bytes, latin1, toBytes } from "./bytes.js";
import type { InputRecord, Table } from "./function.js";
import type { Host } from "./host.js";

const NOBODY = -1;

/** The value of one key. */
export class Entry<T> {
  /** The record that has written it last in this batch. */
  private writer = NOBODY;

  /** `stored` is what was put, or is in the table. What a function does to a value that it was given changes nothing until it puts it. */
  constructor(
    private readonly state: TableState<T>,
    private readonly key: Uint8Array,
    private stored: Bytes | undefined,
  ) {}

  /** The value, or undefined. Changing it changes nothing in the table: `put` does. */
  get(): T | undefined {
    const { stored } = this;
    return stored === undefined ? undefined : this.state.table.codec.decode(typeof stored === "string" ? toBytes(stored) : stored);
  }

  /** Sets the value. */
  put(value: T): void {
    this.set(this.state.table.codec.encode(value));
  }

  /** Removes the value. */
  delete(): void {
    this.set(undefined);
  }

  private set(value: Bytes | undefined): void {
    const { state } = this;
    state.undo.push({ entry: this, stored: this.stored, writer: this.writer });
    this.stored = value;
    this.writer = state.record;
    if (state.keepsAll) state.all.push(this.written());
  }

  /** For the table, as what follows. */
  restore(stored: Bytes | undefined, writer: number): void {
    this.stored = stored;
    this.writer = writer;
  }

  isWritten(): boolean {
    return this.writer !== NOBODY;
  }

  written(): Write {
    return { key: this.key, value: this.stored, record: this.writer };
  }
}

interface Write {
  key: Uint8Array;
  value: Bytes | undefined;
  record: number;
}

/** The entries of a table that a batch has come upon. Objects are what costs most in QuickJS: there is one for each key. */
export class TableState<T> {
  /** The record that is worked on. */
  record = 0;
  /** What it has changed, in order. */
  undo: { entry: Entry<T>; stored: Bytes | undefined; writer: number }[] = [];
  /** Where each write counts and not only the last of a key: all of them. */
  all: Write[] = [];
  keepsAll = false;
  private apart = false;
  private records: InputRecord[] = [];
  /** The entries of the records' own keys, once they have been read. */
  private own: Entry<T>[] | undefined;
  private readonly entries = new Map<string, Entry<T>>();

  constructor(
    readonly table: Table<T>,
    private readonly host: Host,
  ) {}

  beginBatch(records: InputRecord[], apart: boolean): void {
    this.records = records;
    this.apart = apart;
    this.keepsAll = apart || this.table.options.versionedMs !== undefined;
    this.own = undefined;
    this.undo = [];
    this.all = [];
    this.entries.clear();
  }

  /** The entry of the key of the record that is worked on. The first time, all records' keys are read. */
  ownEntry(): Entry<T> {
    return (this.own ??= this.load())[this.record]!;
  }

  /** The entry of another key. */
  entry(bytes: Bytes): Entry<T> {
    this.own ??= this.load();
    const key = toBytes(bytes);
    const id = latin1(key);
    let entry = this.entries.get(id);
    if (!entry) {
      if (this.apart) this.host.readFor([this.record]);
      entry = new Entry(this, key, this.host.getMany(this.table.name, [key])[0]);
      this.entries.set(id, entry);
    }
    return entry;
  }

  beginRecord(record: number): void {
    this.record = record;
    if (this.undo.length > 0) this.undo = [];
  }

  endRecord(): void {
    if (this.apart) this.restore();
  }

  /** Takes back what the record has changed. */
  dropRecord(): void {
    this.restore();
    while (this.all.at(-1)?.record === this.record) this.all.pop();
  }

  /** Writes what was changed: of each key the last value, or all where each of them counts. */
  handOver(): void {
    if (this.keepsAll) return this.handOverInOrder();
    const [puts, deletes]: [Write[], Write[]] = [[], []];
    for (const entry of this.entries.values()) {
      if (!entry.isWritten()) continue;
      const write = entry.written();
      (write.value === undefined ? deletes : puts).push(write);
    }
    this.write(puts);
    this.write(deletes);
  }

  private handOverInOrder(): void {
    const { all } = this;
    for (let start = 0, end = 0; start < all.length; start = end) {
      const isDelete = all[start]!.value === undefined;
      while (end < all.length && (all[end]!.value === undefined) === isDelete) end++;
      this.write(all.slice(start, end));
    }
  }

  /** Either all of `writes` are deletions, or none is. */
  private write(writes: Write[]): void {
    if (writes.length === 0) return;
    const keys = writes.map((write) => write.key);
    const causes = writes.map((write) => write.record);
    if (writes[0]!.value === undefined) this.host.deleteMany(this.table.name, keys, causes);
    else this.host.putMany(this.table.name, keys, writes.map((write) => write.value!), causes);
  }

  private restore(): void {
    for (let at = this.undo.length - 1; at >= 0; at--) {
      const { entry, stored, writer } = this.undo[at]!;
      entry.restore(stored, writer);
    }
    this.undo = [];
  }

  private load(): Entry<T>[] {
    const { records } = this;
    let wanted = records;
    if (this.apart) this.host.readFor(records.map((_, index) => index));
    else wanted = [...new Map(records.map((record) => [record.id, record])).values()];
    const found = this.host.getMany(this.table.name, wanted.map((record) => record.key));
    for (let index = 0; index < wanted.length; index++) {
      const { id, key } = wanted[index]!;
      if (!this.entries.has(id)) this.entries.set(id, new Entry(this, key, found[index]));
    }
    return records.map((record) => this.entries.get(record.id)!);
  }
}
