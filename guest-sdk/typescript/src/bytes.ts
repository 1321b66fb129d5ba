/** Bytes and text. QuickJS, which runs functions, has no `TextEncoder`. */

/** Bytes, or text that stands for its UTF-8. */
export type Bytes = Uint8Array | string;

/** Text as UTF-8; bytes as they are. Half a surrogate pair becomes the replacement character. */
export function toBytes(value: Bytes): Uint8Array {
  if (typeof value !== "string") return value;
  return isAscii(value) ? Uint8Array.from(value, (char) => char.charCodeAt(0)) : utf8(value);
}

/** Whether the text is its own UTF-8, a byte a character. A loop costs less than a regular expression, as it does below. */
function isAscii(text: string): boolean {
  for (let at = 0; at < text.length; at++) if (text.charCodeAt(at) > 0x7f) return false;
  return true;
}

function utf8(value: string): Uint8Array {
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
  if (isAscii(text)) return text;
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
  return joined(parts).bytes;
}

/** Bytes one after another, and where each ends. Text of ASCII is written where it belongs without being made an array first: arrays are what costs most in QuickJS. */
export function joined(parts: Bytes[]): { bytes: Uint8Array; ends: number[] } {
  const ends: number[] = [];
  let end = 0;
  const all = parts.map((part) => {
    const own = typeof part === "string" && !isAscii(part) ? utf8(part) : part;
    ends.push((end += own.length));
    return own;
  });
  const bytes = new Uint8Array(end);
  let at = 0;
  for (const part of all) {
    if (typeof part !== "string") {
      bytes.set(part, at);
      at += part.length;
    } else for (let place = 0; place < part.length; place++) bytes[at++] = part.charCodeAt(place);
  }
  return { bytes, ends };
}
