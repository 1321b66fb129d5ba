/** What the author of a function writes, and what it says of itself. */

import { type Bytes, latin1, toText } from "./bytes.js";
import type { Codec } from "./codecs.js";
import type { Context } from "./context.js";
import { Reject } from "./errors.js";
import type { Wants } from "./lookups.js";

/** What a table may be, beside its name and codec. */
export interface TableOptions<T> {
  /** Raise it when the encoding of values changes, and say by `migrates` how older ones are read. */
  schemaVersion?: number;
  /** Other operators may look it up and change it, where the manifest says so, too. */
  open?: boolean;
  /** It can be scanned in the order of its keys. */
  ordered?: boolean;
  /** It keeps earlier values by event time, for this span behind each key's newest one. */
  versionedMs?: number;
  /** By schema version: makes the present value of a key and what that version has stored. */
  migrates?: Record<number, (key: Uint8Array, stored: Uint8Array) => T>;
}

/** A table of the function's own: one value a key, kept by the host. */
export class Table<T> {
  constructor(
    readonly name: string,
    readonly codec: Codec<T>,
    readonly options: TableOptions<T> = {},
  ) {}
}

/** A table of another operator, by the name that the manifest's `uses` gives it. The codec is its owner's. */
export class UsedTable<T> {
  constructor(
    readonly name: string,
    readonly codec: Codec<T>,
  ) {}
}

/** What a function says of itself. Name and version are for people. */
export interface Description {
  name: string;
  version: string;
  // Tables of any types of values.
  tables?: Table<any>[];
  uses?: UsedTable<any>[];
  /** The ports that it emits on, beside `out`. */
  ports?: string[];
}

/**
 * A function over a stream of records. An instance may keep only what follows from its config: it is replaced by a fresh one after any failure. What should last belongs into a
 * table.
 */
export interface WasmillFunction {
  /** Names what `process` will look up for this record, so that one call of the host's serves the whole batch. What it throws is ignored: `process` will meet it again. */
  prefetch?(record: InputRecord, wants: Wants): void;
  /** Works on one record. All records of one key come to one instance, in order. `Reject` refuses the record. */
  process(record: InputRecord, context: Context): void;
}

/** The class of a function: the default export of its module. An error of the constructor stops the job with its text: the config is at fault. */
export interface FunctionClass {
  readonly description: Description;
  new (config: any): WasmillFunction;
}

/** A record: its key and value, and its event time in milliseconds since the Unix epoch, if it has one. */
export class InputRecord {
  constructor(
    readonly key: Uint8Array,
    readonly value: Uint8Array,
    readonly time?: number,
    /** For the SDK: the key as maps have it. */
    readonly id: string = latin1(key),
  ) {}

  /** The key as text; the record is refused where it is not UTF-8. */
  keyText(): string {
    return checkedText(this.key, "key");
  }

  /** The value as text; the record is refused where it is not UTF-8. */
  text(): string {
    return checkedText(this.value, "value");
  }

  /** The value as JSON; the record is refused where it is not. */
  json<T = any>(): T {
    try {
      return JSON.parse(this.text()) as T;
    } catch (error) {
      if (error instanceof Reject) throw error;
      throw new Reject(`the value is not JSON: ${(error as Error).message}`);
    }
  }

  /** What this record says of an update that was asked about (`Ask`). */
  outcome(): { changed: boolean; tag: Uint8Array } {
    if (this.value[0] !== 0 && this.value[0] !== 1) throw new Reject("the record is no outcome of an update");
    return { changed: this.value[0] === 1, tag: this.value.subarray(1) };
  }
}

function checkedText(bytes: Uint8Array, what: string): string {
  const text = toText(bytes);
  if (text === undefined) throw new Reject(`the ${what} is not UTF-8`);
  return text;
}

/** Stored values of another schema version as the present one stores them. */
export function migrate(description: Description, table: string, version: number, keys: Uint8Array[], values: Uint8Array[]): Bytes[] {
  const own = description.tables?.find((own) => own.name === table);
  const read = own?.options.migrates?.[version];
  if (!own || !read) throw new Error(`values of table \`${table}\` in schema version ${version} cannot be read`);
  return keys.map((key, index) => own.codec.encode(read(key, values[index]!)));
}

export type { Bytes };
