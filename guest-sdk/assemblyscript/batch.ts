// The call under way: what is known of the keys that it has come upon, and what its records do. What a refused record has done is taken back here, so that the host gets the effects of good
// records only.

import * as abi from "./abi";
import { Column, allocate } from "./abi";
import { Bytes } from "./bytes";
import { WasmillFunction } from "./index";

export const NO_TIME: i64 = i64.MIN_VALUE;

/** The call under way. */
export let batch: Batch = new Batch(new Column(), new Column(), 0);

/** What a function works on. */
@final
export class Record {
  constructor(
    /** What the stream is partitioned by: all records of a key come to one instance, in order. */
    public key: Bytes,
    /** The record itself. */
    public value: Bytes,
    /** In milliseconds since the Unix epoch; `NO_TIME` where it has none. */
    public time: i64,
  ) {}

  /** A member of the value, which is a JSON object. */
  member(name: string): Bytes | null {
    return this.value.member(name);
  }
}

/** How an update changes the value that it finds; numbers are little-endian. */
export enum Change { Put, PutIfAbsent, Delete, AddS64, AddF32, AddF64, MinS64, MaxS64, MinF32, MaxF32, MinF64, MaxF64 }

// What is known of a key of a table.
class Cell {
  isKnown: bool = false;
  isChanged: bool = false;
  value: Bytes | null = null;
  // The record that has changed it last.
  record: u32 = 0;

  constructor(public key: Bytes) {}
}

// A cell as it was before the record changed it.
class Undo {
  constructor(public cell: Cell, public isKnown: bool, public isChanged: bool, public value: Bytes | null, public record: u32) {}
}

// Bytes as a key of a map: a text of which each unit is a byte.
function unitsOf(bytes: Bytes): string {
  const units = changetype<string>(__new(<usize>bytes.length << 1, idof<string>()));
  for (let at: i32 = 0; at < bytes.length; at++) store<u16>(changetype<usize>(units) + (<usize>at << 1), load<u8>(bytes.data + at));
  return units;
}

// The keys of a table that the batch has come upon: of an own one, or as a lookup sees it.
class Cells {
  isFetched: bool = false;
  byKey: Map<string, Cell> = new Map();
  inOrder: Cell[] = [];

  constructor(public table: string, public isOwn: bool) {}

  of(key: Bytes): Cell {
    const units = unitsOf(key);
    if (this.byKey.has(units)) return this.byKey.get(units);
    const made = new Cell(key.copy());
    this.byKey.set(units, made);
    this.inOrder.push(made);
    return made;
  }

  // Asks the host for all cells that are not known. Returns why it refuses to answer, or null.
  fetch(): string | null {
    const asked: Cell[] = [];
    for (let index = 0; index < this.inOrder.length; index++) {
      if (!this.inOrder[index].isKnown) asked.push(this.inOrder[index]);
    }
    return asked.length ? fetchCells(this.table, this.isOwn, asked) : null;
  }
}

const result = memory.data(32);

function fetchCells(table: string, isOwn: bool, asked: Cell[]): string | null {
  const keys = new Column();
  for (let index = 0; index < asked.length; index++) keys.push(asked[index].key.data, asked[index].key.length);
  const name = Bytes.of(table);
  if (isOwn) abi.stateGetMany(name.data, name.length, keys.bytes, keys.length, keys.ends, keys.count, result);
  else abi.tablesGetMany(name.data, name.length, keys.bytes, keys.length, keys.ends, keys.count, 0, 0, 0, result);
  const refused = refusal();
  if (refused) return refused;
  const values = new Column();
  values.bytes = load<u32>(result, 4);
  values.ends = load<u32>(result, 12);
  const present: usize = load<u32>(result, 20);
  for (let index = 0; index < asked.length; index++) {
    const cell = asked[index];
    cell.isKnown = true;
    cell.value = load<u8>(present + index) ? new Bytes(values.bytes + values.begin(index), values.end(index) - values.begin(index)) : null;
  }
  return null;
}

// Why the host refused the last call, or null.
function refusal(): string | null {
  if (!load<u8>(result)) return null;
  return String.UTF8.decodeUnsafe(load<u32>(result, 8), load<u32>(result, 12));
}

// Records on their way: emitted on a port, or sent to the owner of a table.
class Leaving {
  keys: Column = new Column();
  values: Column = new Column();
  times: StaticQueue = new StaticQueue(8);
  records: StaticQueue = new StaticQueue(4);

  constructor(public name: string, public isSent: bool) {}
}

// Numbers in the memory of the call, as the host reads them.
class StaticQueue {
  data: usize = 0;
  count: i32 = 0;
  private capacity: i32 = 0;

  constructor(private width: i32) {}

  push(number: u64): void {
    if (this.count == this.capacity) {
      this.capacity = this.capacity ? this.capacity * 2 : 16;
      const larger = allocate(<usize>(this.capacity * this.width));
      memory.copy(larger, this.data, <usize>(this.count * this.width));
      this.data = larger;
    }
    const at = this.data + <usize>(this.count * this.width);
    if (this.width == 4) store<u32>(at, <u32>number);
    else store<u64>(at, number);
    this.count++;
  }

  // How many there are before those at the end that are this number, of numbers of 32 bits.
  without(number: u32): i32 {
    let count = this.count;
    while (count && load<u32>(this.data + (<usize>(count - 1) << 2)) == number) count--;
    return count;
  }
}

// Updates of one kind in a row.
class Updates {
  keys: Column = new Column();
  values: Column = new Column();
  records: StaticQueue = new StaticQueue(4);

  constructor(public table: string, public change: Change) {}
}

// Changes of a metric.
class Figures {
  values: StaticQueue = new StaticQueue(8);
  records: StaticQueue = new StaticQueue(4);

  constructor(public name: string, public isGauge: bool) {}
}

class Batch {
  record: u32 = 0;
  time: i64 = NO_TIME;
  cells: Cells[] = [];
  leaving: Leaving[] = [];
  updates: Updates[] = [];
  figures: Figures[] = [];
  undo: Undo[] = [];
  // Why the host refused a call of this record.
  refused: string | null = null;

  constructor(public keys: Column, public values: Column, public times: usize) {}

  begin(index: i32): Record {
    this.record = index;
    abi.begin(index);
    this.time = load<i64>(this.times + (<usize>index << 3));
    return new Record(itemOf(this.keys, index), itemOf(this.values, index), this.time);
  }

  cellsOf(table: string, isOwn: bool): Cells {
    for (let index = 0; index < this.cells.length; index++) {
      const each = this.cells[index];
      if (each.isOwn == isOwn && each.table == table) return each;
    }
    const made = new Cells(table, isOwn);
    this.cells.push(made);
    return made;
  }

  // The value of a key; where it is not known, it is asked for, the first time along with the keys of all records.
  read(cells: Cells, key: Bytes): Bytes | null {
    const found = cells.of(key);
    if (!found.isKnown && cells.isOwn && !cells.isFetched) {
      cells.isFetched = true;
      for (let index = 0; index < this.keys.count; index++) cells.of(itemOf(this.keys, index));
      // Where some key is not this task's, all stay not known: each is asked for alone.
      cells.fetch();
    }
    if (!found.isKnown) {
      const refused = fetchCells(cells.table, cells.isOwn, [found]);
      if (refused && !this.refused) this.refused = refused;
    }
    return found.value;
  }

  change(table: string, key: Bytes, value: Bytes, isPresent: bool): void {
    const cell = this.cellsOf(table, true).of(key);
    this.undo.push(new Undo(cell, cell.isKnown, cell.isChanged, cell.value, cell.record));
    cell.isKnown = cell.isChanged = true;
    cell.value = isPresent ? value.copy() : null;
    cell.record = this.record;
  }

  leave(name: string, isSent: bool, key: Bytes, value: Bytes, time: i64): void {
    let to: Leaving | null = null;
    for (let index = 0; index < this.leaving.length; index++) {
      if (this.leaving[index].isSent == isSent && this.leaving[index].name == name) to = this.leaving[index];
    }
    if (!to) {
      to = new Leaving(name, isSent);
      this.leaving.push(to);
    }
    to.keys.push(key.data, key.length);
    to.values.push(value.data, value.length);
    to.times.push(time);
    to.records.push(this.record);
  }

  update(table: string, key: Bytes, change: Change, operand: Bytes): void {
    const last = this.updates.length - 1;
    // In the order of their calls: only those that follow each other go together.
    if (last < 0 || this.updates[last].change != change || this.updates[last].table != table) this.updates.push(new Updates(table, change));
    const to = this.updates[this.updates.length - 1];
    to.keys.push(key.data, key.length);
    if (change != Change.Delete) to.values.push(operand.data, operand.length);
    to.records.push(this.record);
  }

  figure(name: string, isGauge: bool, value: u64): void {
    let to: Figures | null = null;
    for (let index = 0; index < this.figures.length; index++) {
      if (this.figures[index].isGauge == isGauge && this.figures[index].name == name) to = this.figures[index];
    }
    if (!to) {
      to = new Figures(name, isGauge);
      this.figures.push(to);
    }
    to.values.push(value);
    to.records.push(this.record);
  }

  // Takes back what the record has done so far.
  takeBack(): void {
    while (this.undo.length) {
      const last = this.undo.pop();
      last.cell.isKnown = last.isKnown;
      last.cell.isChanged = last.isChanged;
      last.cell.value = last.value;
      last.cell.record = last.record;
    }
    for (let index = 0; index < this.leaving.length; index++) {
      const each = this.leaving[index];
      const length = each.records.without(this.record);
      each.keys.cut(length);
      each.values.cut(length);
      each.times.count = each.records.count = length;
    }
    for (let index = 0; index < this.updates.length; index++) {
      const each = this.updates[index];
      const length = each.records.without(this.record);
      each.keys.cut(length);
      if (each.change != Change.Delete) each.values.cut(length);
      each.records.count = length;
    }
    for (let index = 0; index < this.figures.length; index++) {
      const each = this.figures[index];
      each.values.count = each.records.count = each.records.without(this.record);
    }
  }

  // Works on all records. Returns why the call as a whole has failed, or null.
  work(made: WasmillFunction): string | null {
    for (let index = 0; index < this.keys.count; index++) made.prefetch(this.begin(index));
    // What the host refuses for all keys together is asked for, and refused, key by key.
    for (let index = 0; index < this.cells.length; index++) this.cells[index].fetch();
    for (let index = 0; index < this.keys.count; index++) {
      const record = this.begin(index);
      this.undo = [];
      this.refused = null;
      let reason = made.process(record);
      if (!reason) reason = this.refused;
      if (!reason) continue;
      this.takeBack();
      const bytes = Bytes.of(reason);
      abi.culpritReject(this.record, bytes.data, bytes.length);
    }
    return this.handOver();
  }

  // Gives the host all that the records have done. Returns why it refuses to take it, or null.
  private handOver(): string | null {
    let refused: string | null = null;
    for (let index = 0; index < this.cells.length && !refused; index++) if (this.cells[index].isOwn) refused = handOverState(this.cells[index]);
    for (let index = 0; index < this.updates.length && !refused; index++) if (this.updates[index].records.count) refused = handOverUpdates(this.updates[index]);
    for (let index = 0; index < this.leaving.length && !refused; index++) if (this.leaving[index].records.count) refused = handOverRecords(this.leaving[index]);
    for (let index = 0; index < this.figures.length && !refused; index++) if (this.figures[index].records.count) handOverFigures(this.figures[index]);
    return refused;
  }
}

function itemOf(column: Column, index: i32): Bytes {
  return new Bytes(column.bytes + column.begin(index), column.end(index) - column.begin(index));
}

function handOverState(from: Cells): string | null {
  const putKeys = new Column(), putValues = new Column(), deletedKeys = new Column();
  const putRecords = new StaticQueue(4), deletedRecords = new StaticQueue(4);
  for (let index = 0; index < from.inOrder.length; index++) {
    const cell = from.inOrder[index];
    if (!cell.isChanged) continue;
    const value = cell.value;
    if (value) {
      putKeys.push(cell.key.data, cell.key.length);
      putValues.push(value.data, value.length);
      putRecords.push(cell.record);
    } else {
      deletedKeys.push(cell.key.data, cell.key.length);
      deletedRecords.push(cell.record);
    }
  }
  const name = Bytes.of(from.table);
  if (putRecords.count) {
    abi.statePutMany(name.data, name.length, putKeys.bytes, putKeys.length, putKeys.ends, putKeys.count, putValues.bytes, putValues.length, putValues.ends, putValues.count,
      putRecords.data, putRecords.count, result);
    const refused = refusal();
    if (refused) return refused;
  }
  if (!deletedRecords.count) return null;
  abi.stateDeleteMany(name.data, name.length, deletedKeys.bytes, deletedKeys.length, deletedKeys.ends, deletedKeys.count, deletedRecords.data, deletedRecords.count, result);
  return refusal();
}

// `update-many` has more parameters than can be given one by one: this is their record.
function handOverUpdates(from: Updates): string | null {
  const name = Bytes.of(from.table);
  const parameters = allocate(104);
  memory.fill(parameters, 0, 104);
  store<u32>(parameters, <u32>name.data);
  store<u32>(parameters, <u32>name.length, 4);
  storeColumn(parameters + 8, from.keys);
  store<u8>(parameters, <u8>from.change, 24);
  storeColumn(parameters + 36, from.values);
  store<u32>(parameters, <u32>from.records.data, 52);
  store<u32>(parameters, <u32>from.records.count, 56);
  abi.tablesUpdateMany(parameters, result);
  return refusal();
}

function storeColumn(at: usize, column: Column): void {
  store<u32>(at, <u32>column.bytes);
  store<u32>(at, <u32>column.length, 4);
  store<u32>(at, <u32>column.ends, 8);
  store<u32>(at, <u32>column.count, 12);
}

function handOverRecords(from: Leaving): string | null {
  const name = Bytes.of(from.name), keys = from.keys, values = from.values, times = from.times, records = from.records;
  if (from.isSent) {
    abi.tablesSend(name.data, name.length, keys.bytes, keys.length, keys.ends, keys.count, values.bytes, values.length, values.ends, values.count, times.data, times.count,
      records.data, records.count, result);
  } else {
    abi.outputEmit(name.data, name.length, keys.bytes, keys.length, keys.ends, keys.count, values.bytes, values.length, values.ends, values.count, times.data, times.count,
      records.data, records.count, result);
  }
  return refusal();
}

function handOverFigures(from: Figures): void {
  const name = Bytes.of(from.name), values = from.values, records = from.records;
  if (from.isGauge) abi.metricsGaugeMany(name.data, name.length, values.data, values.count, records.data, records.count);
  else abi.metricsCountMany(name.data, name.length, values.data, values.count, records.data, records.count);
}

/** Works on a batch. Returns why the call as a whole has failed, or null. */
export function workOn(made: WasmillFunction, keys: Column, values: Column, times: usize): string | null {
  batch = new Batch(keys, values, times);
  return batch.work(made);
}

/** What a call has left is not needed any more. */
export function leaveNothing(): void {
  batch = new Batch(new Column(), new Column(), 0);
}
