// What the SDK of AssemblyScript promises, over its host in memory.
import assert from "node:assert/strict";
import test from "node:test";
import { Harness } from "../../../../../guest-sdk/assemblyscript/testing.mjs";

const begun = (config) => Harness.of("target/wasm/function.wasm", config);
const values = (effects) => effects.map(({ value }) => value);
const countOf = (harness, key) => harness.state("counts", key) && new DataView(harness.state("counts", key).slice().buffer).getBigInt64(0, true);

test("a refused record has done nothing", async () => {
  const harness = await begun();
  const outcome = harness.process([["a", "1"], ["a", "refuse"], ["b", "refuse"], ["a", "2"]]);
  assert.deepEqual(values(outcome.emitted), ["1", "2"]);
  assert.deepEqual(values(outcome.sent), ["1", "2"]);
  assert.deepEqual(outcome.emitted.map(({ record }) => record), [0, 3]);
  assert.equal(outcome.updated.length, 2);
  assert.equal(outcome.counts.get("seen"), 2n);
  assert.deepEqual([...outcome.rejected], [[1, "told to, at 2"], [2, "told to, at 1"]]);
  assert.deepEqual([countOf(harness, "a"), countOf(harness, "b")], [2n, undefined]);
});

test("state lasts from batch to batch until it is deleted", async () => {
  const harness = await begun();
  harness.process([["a", "1"], ["b", "1"]]);
  harness.process([["a", "1"], ["b", "delete"]]);
  assert.deepEqual([countOf(harness, "a"), countOf(harness, "b")], [2n, undefined]);
  harness.process([["b", "1"]]);
  assert.equal(countOf(harness, "b"), 1n);
});

test("others are looked up and updated", async () => {
  const harness = await begun();
  harness.other("names", "a", "ada");
  const outcome = harness.process([["a", "name"], ["b", "name"]]);
  assert.equal(new TextDecoder().decode(harness.state("texts", "a")), "ada");
  assert.equal(harness.state("texts", "b"), undefined);
  const { to, key, change, operand } = outcome.updated[1];
  assert.deepEqual([to, key, change, [...operand]], ["names", "b", 3, [1, 0, 0, 0, 0, 0, 0, 0]]);
});

test("an exception traps, and is logged before", async () => {
  const harness = await begun();
  assert.throws(() => harness.process([["a", "throw"]]), WebAssembly.RuntimeError);
});

test("a config that is bad is refused", async () => {
  await assert.rejects(begun('{"bad": true}'), /the config is bad/);
});

test("many batches with many keys and long values take no more memory than one", async () => {
  const harness = await begun();
  const long = "x".repeat(200_000);
  const records = Array.from({ length: 2_000 }, (_, index) => [`key ${index}`, index === 7 ? long : "late"]);
  for (let round = 0; round < 20; round++) {
    const outcome = harness.process(records);
    assert.equal(outcome.emitted.length, 2 * records.length - 1);
    assert.equal(countOf(harness, "key 7"), BigInt(round + 1));
    if (round === 4) harness.settled = harness.memoryBytes();
  }
  assert.equal(harness.memoryBytes(), harness.settled);
});
