// Bytes outside of what is collected, and what can be read from them.

import { allocate } from "./abi";

/** Some bytes, a text for instance, outside of what is collected. */
@final
export class Bytes {
  constructor(public data: usize, public length: i32) {}

  /** A text as UTF-8. */
  static of(text: string): Bytes {
    const length = String.UTF8.byteLength(text);
    const data = allocate(length);
    String.UTF8.encodeUnsafe(changetype<usize>(text), text.length, data);
    return new Bytes(data, length);
  }

  /** A number of 64 bits, little-endian. */
  static ofI64(number: i64): Bytes {
    const data = allocate(8);
    store<i64>(data, number);
    return new Bytes(data, 8);
  }

  static concat(parts: Bytes[]): Bytes {
    let length = 0;
    for (let index = 0; index < parts.length; index++) length += parts[index].length;
    const joined = new Bytes(allocate(length), length);
    let at = joined.data;
    for (let index = 0; index < parts.length; index++) {
      memory.copy(at, parts[index].data, parts[index].length);
      at += parts[index].length;
    }
    return joined;
  }

  /** As a text: what is not UTF-8 is replaced. */
  text(): string {
    return String.UTF8.decodeUnsafe(this.data, this.length);
  }

  equals(other: Bytes): bool {
    return this.length == other.length && memory.compare(this.data, other.data, this.length) == 0;
  }

  is(text: string): bool {
    return this.equals(Bytes.of(text));
  }

  /** The same in memory that lives until the call is done. */
  copy(): Bytes {
    const data = allocate(this.length);
    memory.copy(data, this.data, this.length);
    return new Bytes(data, this.length);
  }

  /** The member `name` of a JSON object, as it stands there: a text with its quotes. */
  member(name: string): Bytes | null {
    return jsonMember(this, Bytes.of(name));
  }

  /** What is between the quotes of a JSON text; none where it is no text, or has escapes. */
  unquoted(): string | null {
    if (this.length < 2 || load<u8>(this.data) != 0x22) return null;
    for (let at: i32 = 0; at < this.length; at++) if (load<u8>(this.data + at) == 0x5c) return null;
    return new Bytes(this.data + 1, this.length - 2).text();
  }

  /** Whether it is a whole number in decimal digits. */
  isNumber(): bool {
    let at: i32 = this.length > 0 && load<u8>(this.data) == 0x2d ? 1 : 0;
    if (at == this.length || this.length - at > 18) return false;
    for (; at < this.length; at++) if (load<u8>(this.data + at) - 0x30 > 9) return false;
    return true;
  }

  /** The number that it is; 0 where it is none. */
  number(): i64 {
    if (!this.isNumber()) return 0;
    const negative = load<u8>(this.data) == 0x2d;
    let value: i64 = 0;
    for (let at: i32 = negative ? 1 : 0; at < this.length; at++) value = value * 10 + (load<u8>(this.data + at) - 0x30);
    return negative ? -value : value;
  }
}

// ---- JSON ----

function skipSpace(json: Bytes, at: i32): i32 {
  while (at < json.length) {
    const byte = load<u8>(json.data + at);
    if (byte != 0x20 && byte != 0x09 && byte != 0x0a && byte != 0x0d) break;
    at++;
  }
  return at;
}

// Behind the text that begins at `at` with its quote, or -1 where it does not end.
function skipText(json: Bytes, at: i32): i32 {
  for (at++; at < json.length; at++) {
    const byte = load<u8>(json.data + at);
    if (byte == 0x5c) at++;
    else if (byte == 0x22) return at + 1;
  }
  return -1;
}

// Behind the value that begins at `at`, or -1 where it does not end.
function skipValue(json: Bytes, at: i32): i32 {
  let depth = 0;
  while (at < json.length) {
    const byte = load<u8>(json.data + at);
    if (byte == 0x22) {
      at = skipText(json, at);
      if (at < 0) return -1;
    } else if (byte == 0x7b || byte == 0x5b) {
      depth++;
      at++;
    } else if (byte == 0x7d || byte == 0x5d) {
      if (!depth) return at;
      depth--;
      at++;
    } else if (!depth && (byte == 0x2c || byte <= 0x20)) {
      return at;
    } else {
      at++;
      continue;
    }
    if (!depth) return at;
  }
  return depth ? -1 : at;
}

function jsonMember(object: Bytes, wanted: Bytes): Bytes | null {
  let at = skipSpace(object, 0);
  if (at == object.length || load<u8>(object.data + at) != 0x7b) return null;
  for (at++; at < object.length; at++) {
    at = skipSpace(object, at);
    if (at >= object.length || load<u8>(object.data + at) != 0x22) return null;
    const nameEnd = skipText(object, at);
    if (nameEnd < 0) return null;
    const found = new Bytes(object.data + at + 1, nameEnd - at - 2);
    at = skipSpace(object, nameEnd);
    if (at >= object.length || load<u8>(object.data + at) != 0x3a) return null;
    at = skipSpace(object, at + 1);
    const valueEnd = skipValue(object, at);
    if (valueEnd <= at) return null;
    if (found.equals(wanted)) return new Bytes(object.data + at, valueEnd - at);
    at = skipSpace(object, valueEnd);
    if (at >= object.length || load<u8>(object.data + at) != 0x2c) return null;
  }
  return null;
}
