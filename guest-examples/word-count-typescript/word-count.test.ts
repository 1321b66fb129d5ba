/** `node ../../guest-sdk/typescript/build.mjs --test word-count.test.ts` in this folder. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { toText } from "wasmill";
import { Harness, record } from "wasmill/testing";
import WordCount, { COUNTS } from "./word-count.js";

test("a line becomes its words in lower case", () => {
  const outcome = new Harness(WordCount, { step: "split" }).process([record("", "Tea, tea -- and TEA."), record("", "Über 7")]);
  assert.deepEqual(outcome.emitted.map(({ key }) => toText(key)), ["tea", "tea", "and", "tea", "über", "7"]);
});

test("a line that is not UTF-8 is refused alone", () => {
  const outcome = new Harness(WordCount, { step: "split" }).process([record("", new Uint8Array([111, 0xff])), record("", "two")]);
  assert.deepEqual([outcome.rejected.map(({ index }) => index), outcome.emitted.length], [[0], 1]);
});

test("words are counted", () => {
  const harness = new Harness(WordCount, { step: "count" });
  const outcome = harness.process([record("tea"), record("cup"), record("tea")]);
  assert.deepEqual(outcome.texts().map((text) => JSON.parse(text).count), [1, 1, 2]);
  assert.equal(harness.state(COUNTS, "tea"), 2);
});
