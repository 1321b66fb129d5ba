// Does what a record's value asks for, so that the SDK of AssemblyScript can be seen at work: see tests/function.test.mjs.
import { Bytes, Description, Record, Table, UsedTable, WasmillFunction, count, emit, emitTo, register } from "../../../../../guest-sdk/assemblyscript";

const counts = new Table("counts");
const texts = new Table("texts");
const names = new UsedTable("names");

class Obedient extends WasmillFunction {
  describe(): Description {
    return new Description("obedient", "0.1.0").table(counts).table(texts).port("late").uses(names);
  }

  init(config: Bytes): string | null {
    return config.member("bad") ? "the config is bad" : null;
  }

  process(record: Record): string | null {
    const key = record.key, value = record.value;
    const seen = counts.getI64(key) + 1;
    counts.putI64(key, seen);
    emit(key, value);
    count("seen");
    names.add(key, 1);
    names.send(key, value);
    if (value.is("refuse")) return `told to, at ${seen}`;
    if (value.is("throw")) throw new Error("told to");
    if (value.is("delete")) counts.delete(key);
    if (value.is("late")) emitTo("late", key, value, 5);
    if (value.is("name")) {
      const name = names.lookup(key);
      if (name) texts.put(key, name);
    }
    return null;
  }
}

register(new Obedient());
