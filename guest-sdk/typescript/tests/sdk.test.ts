/** The SDK over its host in memory. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Codec, type Context, concat, type Description, float, type InputRecord, int, items, json, numbers, raw, Reject, Table, text, toBytes, toText, Update, UsedTable,
  type WasmillFunction, type Wants,
} from "wasmill";
import { Harness, isUpdate, outcome, record } from "wasmill/testing";

const COUNTS = new Table("counts", int);
const SEEN = new Table("seen", json<(number | undefined)[]>());
const PRICES = new UsedTable("prices", int);
const SALES = new UsedTable("sales", float);
const NOTES = new UsedTable("notes", raw);

/** Does what the value says. */
class Everything implements WasmillFunction {
  static readonly description: Description = { name: "everything", version: "1", tables: [COUNTS, SEEN], uses: [PRICES, SALES, NOTES], ports: ["late"] };

  constructor(config: { bad?: boolean }) {
    if (config.bad) throw new Error("the config is bad");
  }

  prefetch(record: InputRecord, wants: Wants): void {
    const [word, key] = record.text().split(" ");
    if (word === "price") wants.lookup(PRICES, key!);
  }

  process(record: InputRecord, context: Context): void {
    const [word, then] = record.text().split(" ");
    const counted = context.state(COUNTS);
    switch (word) {
      case "count":
        counted.put((counted.get() ?? 0) + 1);
        context.count("counted");
        context.emit(record.key, String(counted.get()));
        if (then === "reject") throw new Reject("told to");
        if (then === "throw") throw new TypeError("told to throw");
        break;
      case "forget":
        return counted.delete();
      case "see": {
        const seen = context.state(SEEN);
        const value = seen.get() ?? [];
        value.push(record.time);
        context.emitJson(record.key, seen.get() ?? null);
        return seen.put(value);
      }
      case "price": {
        const price = context.lookup(PRICES, then!);
        if (price === undefined) throw new Reject("it is not for sale");
        return context.emit(record.key, String(price));
      }
      case "sell":
        return context.update(SALES, record.key, Update.add(Number(then)), { port: "late", key: "asked", tag: then });
      case "note":
        context.update(NOTES, record.key, Update.append("n", 3));
        context.update(NOTES, record.key, Update.compareAndPut(undefined, toBytes("x")));
        return context.send(NOTES, "elsewhere", "sent", { time: null });
      case "as-of":
        return context.emit(record.key, String(context.lookupAsOf(PRICES, "tea", record.time!, { wait: true })));
      case "scan":
        return context.emit(record.key, [...context.scan(PRICES, { start: "a", end: "z", page: 2 })].map(([key]) => toText(key)).join());
      default:
        context.emit(record.key, "", { port: "nowhere" });
    }
  }
}

test("counts add up over batches with one read and one write each", () => {
  const harness = new Harness(Everything);
  assert.deepEqual(harness.process([..."abab"].map((key) => record(key, "count"))).texts(), ["1", "1", "2", "2"]);
  assert.deepEqual(harness.process([record("a", "count")]).texts(), ["3"]);
  assert.equal(harness.state(COUNTS, "a"), 3);
  assert.deepEqual([harness.calls.getMany, harness.calls.putMany], [2, 2]);
});

test("a refused record leaves nothing behind", () => {
  const harness = new Harness(Everything);
  const result = harness.process([record("a", "count"), record("a", "count reject"), record("a", "count")]);
  assert.deepEqual([result.texts(), result.rejected], [["1", "2"], [{ index: 1, reason: "told to" }]]);
  assert.deepEqual([harness.state(COUNTS, "a"), result.counts], [2, { counted: 2 }]);
});

test("an error is logged with its stack and costs its record", () => {
  const result = new Harness(Everything).process([record("a", "count"), record("a", "count throw"), record("a", "count")]);
  assert.deepEqual([result.texts(), result.rejected], [["1", "2"], [{ index: 1, reason: "TypeError: told to throw" }]]);
  assert.match(result.log[0]!.message, /^TypeError: told to throw\n +at /);
});

test("a value changes only when it is put", () => {
  const harness = new Harness(Everything);
  assert.deepEqual(harness.process([record("a", "see", 1), record("a", "see", 2)]).texts(), ["null", "[1]"]);
  assert.deepEqual(harness.state(SEEN, "a"), [1, 2]);
});

test("what was put can be deleted in the same batch and again put", () => {
  const harness = new Harness(Everything);
  harness.process([record("a", "count"), record("a", "forget")]);
  assert.equal(harness.state(COUNTS, "a"), undefined);
  assert.deepEqual(harness.process([record("a", "count"), record("a", "forget"), record("a", "count")]).texts(), ["1", "1"]);
});

test("what is prefetched costs one call", () => {
  const harness = new Harness(Everything).other(PRICES, "tea", 3).other(PRICES, "cup", 5);
  const result = harness.process([record("x", "price tea"), record("y", "price yacht"), record("z", "price cup")]);
  assert.deepEqual([result.texts(), harness.calls.lookupMany], [["3", "5"], 1]);
  assert.equal(result.rejected[0]!.reason, "it is not for sale");
});

test("updates and sent records are told in order", () => {
  const { updates, sent } = new Harness(Everything).process([record("a", "sell 2.5", 7), record("b", "note")]);
  assert.ok(isUpdate(updates[0]!, SALES, Update.add(2.5)) && isUpdate(updates[1]!, NOTES, Update.append("n", 3)));
  assert.ok(isUpdate(updates[2]!, NOTES, Update.compareAndPut(undefined, toBytes("x"))));
  assert.deepEqual(updates[0]!.asked, { port: "late", key: toBytes("asked"), tag: toBytes("2.5") });
  assert.deepEqual(sent, [{ port: "notes", key: toBytes("elsewhere"), value: toBytes("sent"), time: undefined, cause: 1 }]);
  assert.deepEqual(outcome("asked", true, "2.5").outcome(), { changed: true, tag: toBytes("2.5") });
});

test("a lookup that waits has its record and all behind it wait", () => {
  const harness = new Harness(Everything).other(PRICES, "tea", 1, 10).other(PRICES, "tea", 2, 20).reached(PRICES, 25);
  const result = harness.process([record("a", "as-of", 15), record("a", "as-of", 30), record("a", "count")]);
  assert.deepEqual([result.texts(), result.waiting, result.rejected], [["1"], [1, 2], []]);
});

test("a scan goes through pages", () => {
  const harness = new Harness(Everything);
  for (const key of "dcbaz") harness.other(PRICES, key, 1);
  assert.deepEqual(harness.process([record("x", "scan")]).texts(), ["a,b,c,d"]);
  assert.equal(harness.calls.scan, 2);
});

test("records apart see the state as the call found it", () => {
  const harness = new Harness(Everything, {}, { apart: true });
  assert.deepEqual(harness.process([record("a", "count"), record("a", "count")]).texts(), ["1", "1"]);
});

test("what is not declared is named, and a config that does not fit says so", () => {
  assert.match(new Harness(Everything).process([record("x", "?")]).rejected[0]!.reason, /port `nowhere` is not in the function's description/);
  assert.throws(() => new Harness(Everything, { bad: true }), /the config is bad/);
});

test("codecs read what they write", () => {
  const check = <T>(codec: Codec<T>, value: T, stored: number[]) => {
    assert.deepEqual([...toBytes(codec.encode(value))], stored);
    assert.deepEqual(codec.decode(new Uint8Array(stored)), value);
  };
  check(int, -2, [254, 255, 255, 255, 255, 255, 255, 255]);
  check(float, 1.5, [0, 0, 0, 0, 0, 0, 248, 63]);
  check(numbers("f32"), [1, -2], [0, 0, 128, 63, 0, 0, 0, 192]);
  check(json<object>(), { ö: [1, null] }, [...Buffer.from('{"ö":[1,null]}')]);
  assert.throws(() => int.decode(new Uint8Array(3)));
});

test("text is UTF-8 as everywhere else", () => {
  for (const sample of ["", "ascii %41", "größer", "東京", "🦀 é", "\ud800"]) {
    assert.deepEqual([...toBytes(text.encode(sample))], [...new TextEncoder().encode(sample)]);
    assert.equal(toText(new TextEncoder().encode(sample)), new TextDecoder().decode(new TextEncoder().encode(sample)));
  }
  for (const broken of [[0xff], [0xc3, 0x28], [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80], [0xe2, 0x82]]) assert.equal(toText(new Uint8Array(broken)), undefined);
});

test("appended items are read", () => {
  assert.deepEqual(items(new Uint8Array([1, 0, 0, 0, 97, 0, 0, 0, 0])), [toBytes("a"), new Uint8Array()]);
  assert.deepEqual([...concat("a", new Uint8Array([1]), "ö")], [97, 1, 195, 182]);
});
