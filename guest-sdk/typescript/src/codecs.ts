/** How values of a table are stored. */

import { type Bytes, toText } from "./bytes.js";

/** Values of type `T` as bytes. An object with these two methods is a codec. */
export interface Codec<T> {
  encode(value: T): Bytes;
  /** An error refuses the record. */
  decode(stored: Uint8Array): T;
}

export type NumberKind = "s64" | "f32" | "f64";

/** A codec whose values updates can add to and compare. */
export interface NumberCodec<T> extends Codec<T> {
  readonly kind: NumberKind;
}

/** Bytes as they are. */
export const raw: Codec<Uint8Array> = { encode: (value) => value, decode: (stored) => stored };

/** Text as UTF-8. */
export const text: Codec<string> = {
  encode: (value) => value,
  decode(stored) {
    const found = toText(stored);
    if (found === undefined) throw new Error("a stored value is not UTF-8");
    return found;
  },
};

/** Whatever JSON can say. `wasmill state` shows it as it is. */
export function json<T>(): Codec<T> {
  return { encode: (value) => JSON.stringify(value), decode: (stored) => JSON.parse(text.decode(stored)) as T };
}

/** A vector of numbers of one kind, of any length: what updates change number by number. `s64` is exact to 2^53. */
export function numbers(kind: NumberKind): NumberCodec<number[]> {
  const width = kind === "f32" ? 4 : 8;
  return {
    kind,
    encode(values) {
      const bytes = new Uint8Array(values.length * width);
      const view = new DataView(bytes.buffer);
      values.forEach((value, index) => {
        if (kind === "s64") view.setBigInt64(index * width, BigInt(value), true);
        else if (kind === "f32") view.setFloat32(index * width, value, true);
        else view.setFloat64(index * width, value, true);
      });
      return bytes;
    },
    decode(stored) {
      if (stored.length % width !== 0) throw new Error(`a stored value of ${stored.length} bytes is no vector of ${kind}`);
      const view = new DataView(stored.buffer, stored.byteOffset, stored.length);
      return Array.from({ length: stored.length / width }, (_, index) => {
        if (kind === "s64") return Number(view.getBigInt64(index * width, true));
        return kind === "f32" ? view.getFloat32(index * width, true) : view.getFloat64(index * width, true);
      });
    },
  };
}

function single(kind: NumberKind): NumberCodec<number> {
  const many = numbers(kind);
  return {
    kind,
    encode: (value) => many.encode([value]),
    decode(stored) {
      const found = many.decode(stored);
      if (found.length !== 1) throw new Error(`a stored value of ${stored.length} bytes is no ${kind}`);
      return found[0]!;
    },
  };
}

/** A whole number of 64 bits with a sign, exact to 2^53: `Fixed<i64>` of the Rust SDK. */
export const int: NumberCodec<number> = single("s64");
/** A float of 64 bits: `Fixed<f64>` of the Rust SDK. */
export const float: NumberCodec<number> = single("f64");

export type { Bytes };
