// Run by `wasmill build-assemblyscript --test`: the host is one in memory.
import assert from "node:assert/strict";
import test from "node:test";
import { Harness } from "../wasmill-sdk/testing.mjs";

test("visits are counted by user and the slowest is kept", async () => {
  const harness = await Harness.of("target/wasm/function.wasm");
  const outcome = harness.process([
    ["ada", '{"milliseconds":30}'],
    ["bo", '{"milliseconds":5}'],
    ["ada", '{"milliseconds":20}'],
    ["ada", "{}"],
  ]);
  assert.equal(outcome.emitted[2].value, '{"user":"ada","count":2,"slowest_milliseconds":30}');
  assert.deepEqual([...outcome.rejected], [[3, "it has no `milliseconds`"]]);
});
