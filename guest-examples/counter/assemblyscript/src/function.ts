// For each page, how often it has been seen so far.
import { Bytes, Description, Record, Table, WasmillFunction, emit, register } from "../../../../guest-sdk/assemblyscript";

const counts = new Table("seen");

class Counter extends WasmillFunction {
  describe(): Description {
    return new Description("counter", "0.1.0").table(counts);
  }

  process(record: Record): string | null {
    const seen = counts.getI64(record.key) + 1;
    counts.putI64(record.key, seen);
    const page = record.key.text();
    emit(record.key, Bytes.of(`{"page":"${page}","seen":${seen}}`));
    return null;
  }
}

register(new Counter());
