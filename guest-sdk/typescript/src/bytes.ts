/** Bytes and text. QuickJS, which runs functions, has no `TextEncoder`. */

/** Bytes, or text that stands for its UTF-8. */
export type Bytes = Uint8Array | string;

/** Text as UTF-8; bytes as they are. Half a surrogate pair becomes the replacement character. */
export function toBytes(value: Bytes): Uint8Array {
  if (typeof value !== "string") return value;
  const bytes: number[] = [];
  for (const char of value) {
    let code = char.codePointAt(0)!;
    if (code >= 0xd800 && code <= 0xdfff) code = 0xfffd;
    if (code < 0x80) bytes.push(code);
    else if (code < 0x800) bytes.push(0xc0 | (code >> 6), 0x80 | (code & 63));
    else if (code < 0x10000) bytes.push(0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63));
    else bytes.push(0xf0 | (code >> 18), 0x80 | ((code >> 12) & 63), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63));
  }
  return new Uint8Array(bytes);
}

/** UTF-8 as text, or undefined where it is none. */
export function toText(bytes: Uint8Array): string | undefined {
  const text = latin1(bytes);
  // ASCII, as most are, is the same in both.
  if (!/[\x80-\xff]/.test(text)) return text;
  try {
    return decodeURIComponent(text.replace(/[%\x80-\xff]/g, (char) => "%" + char.charCodeAt(0).toString(16).padStart(2, "0")));
  } catch {
    return undefined;
  }
}

/** Each byte as a character: what bytes are told apart by in a map. */
export function latin1(bytes: Uint8Array): string {
  // No more than an engine takes as the arguments of one call.
  const step = 4096;
  let text = "";
  for (let at = 0; at < bytes.length; at += step) text += String.fromCharCode.apply(null, bytes.subarray(at, at + step) as unknown as number[]);
  return text;
}

/** Bytes one after another. */
export function concat(...parts: Bytes[]): Uint8Array {
  const all = parts.map(toBytes);
  const joined = new Uint8Array(all.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of all) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}
