// What the functions of all languages do alike, by `mode`: see tests/it/languages.rs.
import { Bytes, Description, Record, Table, UsedTable, WasmillFunction, atFault, count, emit, register } from "../../../../../guest-sdk/assemblyscript";

const counts = new Table("counts");
const others = new UsedTable("others");
const MODES = ["count", "join", "fail", "echo"];

class Behaviour extends WasmillFunction {
  mode: i32 = -1;

  describe(): Description {
    return new Description("behaviour", "0.1.0").table(counts).uses(others);
  }

  init(config: Bytes): string | null {
    const member = config.member("mode");
    const mode = member ? member.unquoted() : null;
    this.mode = mode ? MODES.indexOf(mode) : -1;
    return this.mode < 0 ? "the config has no mode of count, join, fail, echo" : null;
  }

  prefetch(record: Record): void {
    if (this.mode == 1) others.want(record.key);
  }

  process(record: Record): string | null {
    if (this.mode == 0) return countUp(record);
    if (this.mode == 1) return join(record);
    if (this.mode == 2) return fail(record);
    return echo(record);
  }
}

function countUp(record: Record): string | null {
  const text = counts.get(record.key);
  if (text && !text.isNumber()) return "the count is no number";
  const next = Bytes.of(((text ? text.number() : 0) + 1).toString());
  counts.put(record.key, next);
  emit(record.key, next);
  return null;
}

function join(record: Record): string | null {
  const value = others.lookup(record.key);
  emit(record.key, Bytes.concat([record.key, Bytes.of("="), value ? value : Bytes.of("-")]));
  return null;
}

function fail(record: Record): string | null {
  if (record.value.is("reject")) return "told to";
  if (record.value.is("trap")) throw new Error("told to trap");
  if (record.value.is("loop")) {
    atFault();
    while (true) {}
  }
  return echo(record);
}

function echo(record: Record): string | null {
  emit(record.key, record.value);
  count("echoed");
  return null;
}

register(new Behaviour());
