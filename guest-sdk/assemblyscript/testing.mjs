// A host in memory, for tests of functions by `node --test`. It calls the core module that the component is made of, and gives it what the contract has. Limits, endless loops and scans are not in it.

import { readFile } from "node:fs/promises";

const LEVELS = ["trace", "debug", "info", "warn", "error"];
const NO_TIME = -(2n ** 63n);

export class Harness {
  #exports;
  #own = new Map();
  #others = new Map();
  #outcome;
  #writes;

  /** An instance of the module in a file, with a config. */
  static async of(path, config = "{}") {
    const harness = new Harness();
    const { instance } = await WebAssembly.instantiate(await readFile(path), harness.#imports());
    harness.#exports = instance.exports;
    instance.exports._initialize?.();
    instance.exports.cabi_post_describe?.(instance.exports.describe());
    const [data, length] = harness.#give(new TextEncoder().encode(config));
    harness.#finish("init", instance.exports.init(data, length));
    return harness;
  }

  /** Fills a table of others. */
  other(table, key, value) {
    this.#others.set(`${table}\0${key}`, new TextEncoder().encode(value));
  }

  /** The stored bytes of a key of an own table, or undefined. */
  state(table, key) {
    return this.#own.get(`${table}\0${key}`);
  }

  /** How large the function's memory is. */
  memoryBytes() {
    return this.#exports.memory.buffer.byteLength;
  }

  /** Has records, pairs of key and value, worked on as one batch. Throws where the call as a whole fails: nothing of it has happened then. */
  process(records) {
    this.#outcome = { emitted: [], sent: [], updated: [], rejected: new Map(), counts: new Map() };
    this.#writes = [];
    const encode = (text) => (typeof text === "string" ? new TextEncoder().encode(text) : text);
    const keys = this.#giveColumn(records.map(([key]) => encode(key)));
    const values = this.#giveColumn(records.map(([, value]) => encode(value)));
    const times = this.#give(new Uint8Array(new BigInt64Array(records.map(([, , time]) => time ?? NO_TIME)).buffer));
    this.#finish("process", this.#exports.process(...keys, ...values, times[0], records.length));
    for (const [place, value] of this.#writes) value ? this.#own.set(place, value) : this.#own.delete(place);
    return this.#outcome;
  }

  // result<_, string>
  #finish(name, at) {
    const refused = this.#bytes().getUint8(at) ? this.#text(this.#u32(at + 4), this.#u32(at + 8)) : null;
    this.#exports[`cabi_post_${name}`]?.(at);
    if (refused !== null) throw new Error(refused);
  }

  #bytes() {
    return new DataView(this.#exports.memory.buffer);
  }

  #u32(at) {
    return this.#bytes().getUint32(at, true);
  }

  #slice(at, length) {
    return new Uint8Array(this.#exports.memory.buffer, at, length).slice();
  }

  #text(at, length) {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.#slice(at, length));
  }

  #column(bytes, length, ends, count) {
    const all = this.#slice(bytes, length);
    const end = (index) => (index < 0 ? 0 : this.#u32(ends + 4 * index));
    return Array.from({ length: count }, (_, index) => all.subarray(end(index - 1), end(index)));
  }

  #records(at, count) {
    return Array.from({ length: count }, (_, index) => this.#u32(at + 4 * index));
  }

  #give(bytes) {
    const at = this.#exports.cabi_realloc(0, 0, 8, bytes.length);
    new Uint8Array(this.#exports.memory.buffer, at, bytes.length).set(bytes);
    return [at, bytes.length];
  }

  #giveColumn(items) {
    let end = 0;
    const ends = new Uint32Array(items.map((item) => (end += item.length)));
    const bytes = new Uint8Array(end);
    items.forEach((item, index) => bytes.set(item, ends[index] - item.length));
    return [...this.#give(bytes), this.#give(new Uint8Array(ends.buffer))[0], items.length];
  }

  // A call that went well, and gives nothing.
  #fine(result) {
    this.#bytes().setUint8(result, 0);
  }

  #giveValues(found, result) {
    const values = this.#giveColumn(found.map((value) => value ?? new Uint8Array()));
    const present = this.#give(Uint8Array.from(found, (value) => (value === undefined ? 0 : 1)));
    this.#fine(result);
    [...values, ...present].forEach((word, index) => this.#bytes().setUint32(result + 4 + 4 * index, word, true));
  }

  #leaving(to, name, nameLength, keys, keysLength, keyEnds, keyCount, values, valuesLength, valueEnds, valueCount, times, timeCount, records, recordCount, result) {
    const names = this.#text(name, nameLength);
    const found = this.#column(keys, keysLength, keyEnds, keyCount);
    const given = this.#column(values, valuesLength, valueEnds, valueCount);
    const by = this.#records(records, recordCount);
    const text = (bytes) => new TextDecoder().decode(bytes);
    found.forEach((key, index) => {
      const time = this.#bytes().getBigInt64(times + 8 * index, true);
      to.push({ to: names, key: text(key), value: text(given[index]), bytes: given[index], time: time === NO_TIME ? undefined : time, record: by[index] });
    });
    this.#fine(result);
  }

  #imports() {
    const place = (table, key) => `${table}\0${new TextDecoder().decode(key)}`;
    return {
      "wasmill:operator/state@0.1.0": {
        "get-many": (table, tableLength, keys, keysLength, ends, count, result) => {
          const name = this.#text(table, tableLength);
          this.#giveValues(this.#column(keys, keysLength, ends, count).map((key) => this.#own.get(place(name, key))), result);
        },
        "put-many": (table, tableLength, keys, keysLength, keyEnds, keyCount, values, valuesLength, valueEnds, valueCount, records, recordCount, result) => {
          const name = this.#text(table, tableLength);
          const given = this.#column(values, valuesLength, valueEnds, valueCount);
          this.#column(keys, keysLength, keyEnds, keyCount).forEach((key, index) => this.#writes.push([place(name, key), given[index]]));
          this.#fine(result);
        },
        "delete-many": (table, tableLength, keys, keysLength, ends, count, records, recordCount, result) => {
          const name = this.#text(table, tableLength);
          this.#column(keys, keysLength, ends, count).forEach((key) => this.#writes.push([place(name, key), undefined]));
          this.#fine(result);
        },
      },
      "wasmill:operator/tables@0.1.0": {
        "get-many": (table, tableLength, keys, keysLength, ends, count, kind, argument, rest, result) => {
          const name = this.#text(table, tableLength);
          this.#giveValues(this.#column(keys, keysLength, ends, count).map((key) => this.#others.get(place(name, key))), result);
        },
        "update-many": (at, result) => {
          const word = (index) => this.#u32(at + 4 * index);
          const change = this.#bytes().getUint8(at + 24);
          const operands = this.#column(word(9), word(10), word(11), word(12));
          const by = this.#records(word(13), word(14));
          this.#column(word(2), word(3), word(4), word(5)).forEach((key, index) => {
            this.#outcome.updated.push({ to: this.#text(word(0), word(1)), key: new TextDecoder().decode(key), change, operand: operands[index], record: by[index] });
          });
          this.#fine(result);
        },
        send: (...given) => this.#leaving(this.#outcome.sent, ...given),
      },
      "wasmill:operator/output@0.1.0": { emit: (...given) => this.#leaving(this.#outcome.emitted, ...given) },
      "wasmill:operator/log@0.1.0": { write: (level, line, length) => console.error(`${LEVELS[level]}: ${this.#text(line, length)}`) },
      "wasmill:operator/metrics@0.1.0": {
        "count-many": (name, nameLength, by, byCount) => {
          const metric = this.#text(name, nameLength);
          for (let index = 0; index < byCount; index++) {
            const sum = (this.#outcome.counts.get(metric) ?? 0n) + this.#bytes().getBigUint64(by + 8 * index, true);
            this.#outcome.counts.set(metric, sum);
          }
        },
        "gauge-many": () => {},
      },
      "wasmill:operator/culprit@0.1.0": {
        reject: (record, reason, length) => this.#outcome.rejected.set(record, this.#text(reason, length)),
        "begin-record": () => {},
      },
      "wasmill:operator/declare@0.1.0": { "open-table": () => {}, "ordered-table": () => {}, "uses-table": () => {} },
    };
  }
}
