/** Runs in Node, without Wasm: `npm test`. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Harness, record } from "wasmill/testing";
import SummariseVisits, { VISITS } from "./function.js";

test("visits are counted by user and the slowest is kept", () => {
  const harness = new Harness(SummariseVisits);
  const outcome = harness.process([
    record("ada", { page: "/", milliseconds: 30 }),
    record("bo", { page: "/help", milliseconds: 5 }),
    record("ada", { page: "/help", milliseconds: 20 }),
  ]);
  const ada = { count: 2, slowest_page: "/", slowest_milliseconds: 30 };
  assert.deepEqual(JSON.parse(outcome.texts()[2]!), { user: "ada", ...ada });
  assert.deepEqual(harness.state(VISITS, "ada"), ada);
});
