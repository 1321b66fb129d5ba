// What the host calls. It is compiled as a module beside the function's own.

import * as abi from "./abi";
import { Column, allocate, forget } from "./abi";
import { leaveNothing, workOn } from "./batch";
import { Bytes } from "./bytes";
import { Level, atFault, log, theFunction } from "./index";

// Where the host puts what it gives.
export function cabi_realloc(old: usize, oldSize: usize, align: usize, size: usize): usize {
  const memory_ = allocate(size);
  memory.copy(memory_, old, oldSize);
  return memory_;
}

function storeText(at: usize, text: string): void {
  const bytes = Bytes.of(text);
  store<u32>(at, <u32>bytes.data);
  store<u32>(at, <u32>bytes.length, 4);
}

export function describe(): usize {
  const description = theFunction().describe();
  const tables = allocate(description.tables.length * 12);
  for (let index = 0; index < description.tables.length; index++) {
    const table = description.tables[index], at = tables + index * 12;
    storeText(at, table.name);
    store<u32>(at, table.schemaVersion, 8);
    if (table.isOpen) abi.declareOpenTable(load<u32>(at), load<u32>(at, 4));
    if (table.isOrdered) abi.declareOrderedTable(load<u32>(at), load<u32>(at, 4));
  }
  const ports = allocate(description.ports.length * 8);
  for (let index = 0; index < description.ports.length; index++) storeText(ports + index * 8, description.ports[index]);
  for (let index = 0; index < description.used.length; index++) {
    const name = Bytes.of(description.used[index].name);
    abi.declareUsesTable(name.data, name.length);
  }
  const descriptor = allocate(32);
  storeText(descriptor, description.name);
  storeText(descriptor + 8, description.version);
  store<u32>(descriptor, <u32>tables, 16);
  store<u32>(descriptor, description.tables.length, 20);
  store<u32>(descriptor, <u32>ports, 24);
  store<u32>(descriptor, description.ports.length, 28);
  return descriptor;
}

// Fine, or a reason why not.
function answer(reason: string | null): usize {
  const at = allocate(12);
  store<u8>(at, reason ? 1 : 0);
  if (reason) storeText(at + 4, reason);
  return at;
}

export function init(config: usize, length: usize): usize {
  return answer(theFunction().init(new Bytes(config, <i32>length)));
}

export function process(keys: usize, keysLength: usize, keyEnds: usize, keyCount: usize, values: usize, valuesLength: usize, valueEnds: usize, valueCount: usize, times: usize,
  timeCount: usize): usize {
  return answer(workOn(theFunction(), columnOf(keys, keysLength, keyEnds, keyCount), columnOf(values, valuesLength, valueEnds, valueCount), times));
}

function columnOf(bytes: usize, length: usize, ends: usize, count: usize): Column {
  const column = new Column();
  column.bytes = bytes;
  column.length = length;
  column.ends = ends;
  column.count = <i32>count;
  return column;
}

// Nothing is on the stack then, so this is when garbage can be collected.
function done(): void {
  leaveNothing();
  forget();
  __collect();
}

export function cabi_post_describe(at: usize): void {
  done();
}

export function cabi_post_init(at: usize): void {
  done();
}

export function cabi_post_process(at: usize): void {
  done();
}

// What a failed assertion, or a `throw`, comes to: its message is logged, its record named, and the batch run again without it.
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  log(Level.Error, (message ? message : "aborted") + " (" + (file ? file : "") + ":" + line.toString() + ":" + column.toString() + ")");
  atFault();
  unreachable();
}
