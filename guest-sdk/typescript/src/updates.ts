/** Changes of values that others own. */

import type { Bytes } from "./bytes.js";
import type { Codec, NumberCodec } from "./codecs.js";

/** Asks for an update's outcome: a record on `port` with this key; `record.outcome()` reads it and gives `tag` back. */
export interface Ask {
  port: string;
  key: Bytes;
  tag?: Bytes;
}

/** An update as the contract has it. */
export interface EncodedUpdate {
  op: string;
  number: number;
  operand?: Bytes;
  expected?: Bytes;
}

/** A change that a table's owner applies to whatever value it finds. Make one by `Update.add(…)` and the like. */
export class Update<T> {
  private constructor(readonly encoded: (codec: Codec<T>) => EncodedUpdate) {}

  /** Sets the value. */
  static put<T>(value: T): Update<T> {
    return new Update((codec) => ({ op: "put", number: 0, operand: codec.encode(value) }));
  }

  /** Sets the value where there is none. */
  static putIfAbsent<T>(value: T): Update<T> {
    return new Update((codec) => ({ op: "put-if-absent", number: 0, operand: codec.encode(value) }));
  }

  /** Removes the value. */
  static delete<T>(): Update<T> {
    return new Update(() => ({ op: "delete", number: 0 }));
  }

  /** Adds, in tables of `int`, `float` and `numbers`. Where there is no value, it becomes what is added. */
  static add<T extends number | number[]>(value: T): Update<T> {
    return Update.counting("add", value);
  }

  /** Keeps the lesser. */
  static min<T extends number | number[]>(value: T): Update<T> {
    return Update.counting("min", value);
  }

  /** Keeps the greater. */
  static max<T extends number | number[]>(value: T): Update<T> {
    return Update.counting("max", value);
  }

  /** Appends an item and keeps the last `itemsMax`; `items` reads them from a `raw` table. */
  static append(item: Bytes, itemsMax: number): Update<Uint8Array> {
    return new Update(() => ({ op: "append", number: itemsMax, operand: item }));
  }

  /** Sets the value where it equals `expected`. `undefined` stands for no value, on either side. */
  static compareAndPut<T>(expected: T | undefined, value: T | undefined): Update<T> {
    return new Update((codec) => {
      const encode = (value: T | undefined) => (value === undefined ? undefined : codec.encode(value));
      return { op: "compare-and-put", number: 0, operand: encode(value), expected: encode(expected) };
    });
  }

  private static counting<T>(op: string, value: T): Update<T> {
    return new Update((codec) => {
      const kind = (codec as Partial<NumberCodec<T>>).kind;
      if (!kind) throw new TypeError(`Update.${op} is for tables of int, float and numbers`);
      return { op: `${op}-${kind}`, number: 0, operand: codec.encode(value) };
    });
  }
}

/** The items of a value that `Update.append` has made. */
export function items(value: Uint8Array | undefined): Uint8Array[] {
  const found: Uint8Array[] = [];
  let rest = value ?? new Uint8Array();
  while (rest.length > 0) {
    const length = new DataView(rest.buffer, rest.byteOffset).getUint32(0, true);
    found.push(rest.subarray(4, 4 + length));
    rest = rest.subarray(4 + length);
  }
  return found;
}
