/** Words of text files, counted: `../word-count` in TypeScript. One component as two operators; `config.step` tells which it is. */

import { type Context, type Description, type InputRecord, int, Table, type WasmillFunction } from "wasmill";

/** How often each word has come. */
export const COUNTS = new Table("counts", int);

/** One step of the count. */
export default class WordCount implements WasmillFunction {
  static readonly description: Description = { name: "word-count", version: "0.1.0", tables: [COUNTS] };
  private readonly isSplit: boolean;

  constructor(config: { step?: string }) {
    if (config.step !== "split" && config.step !== "count") throw new Error("`config.step` is split or count");
    this.isSplit = config.step === "split";
  }

  process(record: InputRecord, context: Context): void {
    if (this.isSplit) {
      for (const word of record.text().toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []) context.emit(word, "");
    } else {
      const entry = context.state(COUNTS);
      const count = (entry.get() ?? 0) + 1;
      entry.put(count);
      context.emitJson(record.key, { word: record.keyText(), count });
    }
  }
}
