/** The component side: the imports as a `Host`, and the exports of a function. */

import { beginRecord, reject } from "wasmill:operator/culprit@0.1.0";
import * as declare from "wasmill:operator/declare@0.1.0";
import { isApart, readFor } from "wasmill:operator/isolation@0.1.0";
import { write } from "wasmill:operator/log@0.1.0";
import { countMany, gaugeMany } from "wasmill:operator/metrics@0.1.0";
import { emit } from "wasmill:operator/output@0.1.0";
import * as state from "wasmill:operator/state@0.1.0";
import * as tables from "wasmill:operator/tables@0.1.0";
import type { Batch, Column, OptionalColumn } from "wasmill:operator/types";
import { type Bytes, joined, latin1 } from "./bytes.js";
import { HostError } from "./errors.js";
import { type FunctionClass, InputRecord, migrate, type Table } from "./function.js";
import type { Found, Given, Host, Outcomes, Records } from "./host.js";
import { Runner } from "./runner.js";

/** The least 64-bit number, which a JavaScript number holds exactly. */
const NO_TIME = -(2 ** 63);

/** The exports of a function. What is thrown is the error that the host is given. */
export function exportsOf(of: FunctionClass) {
  if (typeof of !== "function" || !of.description) throw new Error("the default export of a function's module is a class with a static `description`");
  let runner: Runner | undefined;
  return {
    describe() {
      const { name, version, tables = [], uses = [], ports = [] } = of.description;
      tables.forEach(declareTable);
      for (const used of uses) declare.usesTable(used.name);
      declare.apart();
      return { name, version, tables: tables.map(({ name, options }) => ({ name, schemaVersion: options.schemaVersion ?? 1 })), ports };
    },
    init(config: string) {
      runner = new Runner(of, config, imports);
    },
    process(input: Batch) {
      if (!runner) throw new Error("`process` was called before `init`");
      const values = items(input.values);
      // One string for all, since making one of bytes costs the most.
      const ids = latin1(input.keys.bytes);
      let start = 0;
      const record = (key: Uint8Array, index: number) => {
        const time = input.times[index]!;
        const id = ids.slice(start, (start += key.length));
        return new InputRecord(key, values[index]!, time === NO_TIME ? undefined : time, id);
      };
      runner.process(items(input.keys).map(record));
    },
    migration: {
      migrate(table: string, from: number, keys: Column, values: Column) {
        return column(migrate(of.description, table, from, items(keys), items(values)));
      },
    },
  };
}

function declareTable({ name, options }: Table<any>): void {
  if (options.open) declare.openTable(name);
  if (options.ordered) declare.orderedTable(name);
  if (options.versionedMs !== undefined) declare.versionedTable(name, options.versionedMs);
  for (const version of Object.keys(options.migrates ?? {})) declare.migratesFrom(name, Number(version));
}

const imports: Host = {
  getMany: (table, keys) => asked(() => present(state.getMany(table, column(keys)))),
  putMany: (table, keys, values, causes) => asked(() => state.putMany(table, column(keys), column(values), causes)),
  deleteMany: (table, keys, causes) => asked(() => state.deleteMany(table, column(keys), causes)),
  lookupMany: (table, keys, consistency) => asked(() => present(tables.getMany(table, column(keys), consistency))),
  lookupManyAt: (table, keys, times, wait) => asked(() => present(tables.getManyAt(table, column(keys), times, wait))),
  scan: (table, start, end, limit, consistency) =>
    asked(() => {
      const page = tables.scan(table, start, end, limit, consistency);
      const values = items(page.values);
      return { entries: items(page.keys).map((key, index) => [key, values[index]!] as [Uint8Array, Uint8Array]), next: page.next };
    }),
  updateMany: (table, keys, op, number, operands, causes, outcomes) =>
    asked(() => {
      const values = column(op === "delete" ? [] : operands.map((operand) => operand ?? ""));
      tables.updateMany(table, column(keys), op === "append" ? { tag: op, val: number } : { tag: op }, values, causes, asking(outcomes));
    }),
  compareAndPutMany: (table, keys, expected, values, causes, outcomes) =>
    asked(() => tables.compareAndPutMany(table, column(keys), optional(expected), optional(values), causes, asking(outcomes))),
  send: (table, records) => asked(() => tables.send(table, batch(records), records.causes)),
  emit: (port, records) => asked(() => emit(port, batch(records), records.causes)),
  log: write,
  countMany,
  gaugeMany,
  reject,
  beginRecord,
  isApart,
  readFor,
};

function asked<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    const { tag, val } = (error as { payload?: { tag?: string; val?: string } }).payload ?? {};
    throw tag === undefined ? error : new HostError(tag, val ?? "");
  }
}

function column(items: Bytes[]): Column {
  return joined(items);
}

function items({ bytes, ends }: Column): Uint8Array[] {
  let start = 0;
  return ends.map((end) => {
    const item = bytes.subarray(start, end);
    start = end;
    return item;
  });
}

function optional(found: Given): OptionalColumn {
  const present = new Uint8Array(found.map((item) => (item === undefined ? 0 : 1)));
  return { items: column(found.map((item) => item ?? "")), present };
}

function present({ items: all, present }: OptionalColumn): Found {
  return items(all).map((item, index) => (present[index] === 1 ? item : undefined));
}

function batch(records: Records): Batch {
  return { keys: column(records.keys), values: column(records.values), times: records.times.map((time) => time ?? NO_TIME) };
}

function asking(outcomes: Outcomes | undefined) {
  return outcomes && { port: outcomes.port, keys: column(outcomes.keys), values: column(outcomes.tags) };
}
