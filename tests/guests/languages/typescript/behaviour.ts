/** The behaviour guest in TypeScript: see ../rust for what it does. */

import { concat, type Context, type Description, type InputRecord, raw, Reject, Table, text, UsedTable, type WasmillFunction, type Wants } from "wasmill";

const COUNTS = new Table("counts", text);
const OTHERS = new UsedTable("others", raw);
const MODES = ["count", "join", "fail", "echo"];

export default class Behaviour implements WasmillFunction {
  static readonly description: Description = { name: "behaviour", version: "0.1.0", tables: [COUNTS], uses: [OTHERS] };
  private readonly mode: string;

  constructor(config: { mode?: string }) {
    if (!config.mode || !MODES.includes(config.mode)) throw new Error("the config has no mode of count, join, fail, echo");
    this.mode = config.mode;
  }

  prefetch(record: InputRecord, wants: Wants): void {
    if (this.mode === "join") wants.lookup(OTHERS, record.key);
  }

  process(record: InputRecord, context: Context): void {
    if (this.mode === "count") {
      const counted = context.state(COUNTS);
      const count = String(Number(counted.get() ?? "0") + 1);
      counted.put(count);
      context.emit(record.key, count);
    } else if (this.mode === "join") {
      context.emit(record.key, concat(record.key, "=", context.lookup(OTHERS, record.key) ?? "-"));
    } else {
      if (this.mode === "fail") failAs(record);
      context.emit(record.key, record.value);
      context.count("echoed");
    }
  }
}

function failAs(record: InputRecord): void {
  if (is(record.value, "reject")) throw new Reject("told to");
  if (is(record.value, "trap")) throw new Error("told to trap");
  while (is(record.value, "loop")) {}
}

function is(value: Uint8Array, word: string): boolean {
  return value.length === word.length && String.fromCharCode(...value) === word;
}
