// The contract of Wasmill as AssemblyScript sees it: what `wit/` says, in the layout that the component model's canonical ABI gives it; and the memory of a call.

// ---- Memory: all that a call allocates by hand is forgotten when it is done ----

let firstChunk: usize = 0;
let chunk: usize = 0;

// A chunk begins with the next one's address, its size and how much of it is used.
const HEADER: usize = 16;
const CHUNK_BYTES: usize = 32 << 10;

// Memory that lives until the call is done.
export function allocate(bytes: usize): usize {
  bytes = (bytes + 7) & ~7;
  while (chunk && load<u32>(chunk, 4) - load<u32>(chunk, 8) < <u32>bytes && load<u32>(chunk)) chunk = load<u32>(chunk);
  if (!chunk || load<u32>(chunk, 4) - load<u32>(chunk, 8) < <u32>bytes) {
    const size = max(bytes, chunk ? <usize>load<u32>(chunk, 4) * 2 : CHUNK_BYTES);
    const made = heap.alloc(HEADER + size);
    store<u32>(made, 0);
    store<u32>(made, <u32>size, 4);
    store<u32>(made, 0, 8);
    if (chunk) store<u32>(chunk, <u32>made);
    else firstChunk = made;
    chunk = made;
  }
  const used = load<u32>(chunk, 8);
  store<u32>(chunk, used + <u32>bytes, 8);
  return chunk + HEADER + used;
}

// To be called when a call is done.
export function forget(): void {
  for (let each = firstChunk; each; each = load<u32>(each)) store<u32>(each, 0, 8);
  chunk = firstChunk;
}

// ---- Columns ----

// Byte strings, one after another, and where each ends.
export class Column {
  bytes: usize = 0;
  length: usize = 0;
  ends: usize = 0;
  count: i32 = 0;
  private bytesCapacity: usize = 0;
  private capacity: i32 = 0;

  begin(index: i32): u32 {
    return index == 0 ? 0 : load<u32>(this.ends + (<usize>(index - 1) << 2));
  }

  end(index: i32): u32 {
    return load<u32>(this.ends + (<usize>index << 2));
  }

  push(data: usize, length: usize): void {
    if (this.bytesCapacity - this.length < length) {
      this.bytesCapacity = this.bytesCapacity * 2 + length + 64;
      const larger = allocate(this.bytesCapacity);
      memory.copy(larger, this.bytes, this.length);
      this.bytes = larger;
    }
    if (this.count == this.capacity) {
      this.capacity = this.capacity ? this.capacity * 2 : 16;
      const larger = allocate(<usize>this.capacity << 2);
      memory.copy(larger, this.ends, <usize>this.count << 2);
      this.ends = larger;
    }
    memory.copy(this.bytes + this.length, data, length);
    this.length += length;
    store<u32>(this.ends + (<usize>this.count << 2), <u32>this.length);
    this.count += 1;
  }

  // Leaves the first items only.
  cut(count: i32): void {
    this.count = count;
    this.length = this.begin(count);
  }
}

// ---- What a function calls ----

// @ts-ignore: decorator
@external("wasmill:operator/state@0.1.0", "get-many")
export declare function stateGetMany(table: usize, tableLength: usize, keys: usize, keysLength: usize, ends: usize, count: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/state@0.1.0", "put-many")
export declare function statePutMany(table: usize, tableLength: usize, keys: usize, keysLength: usize, keyEnds: usize, keyCount: usize, values: usize, valuesLength: usize,
  valueEnds: usize, valueCount: usize, records: usize, recordCount: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/state@0.1.0", "delete-many")
export declare function stateDeleteMany(table: usize, tableLength: usize, keys: usize, keysLength: usize, ends: usize, count: usize, records: usize, recordCount: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/tables@0.1.0", "get-many")
export declare function tablesGetMany(table: usize, tableLength: usize, keys: usize, keysLength: usize, ends: usize, count: usize, kind: i32, argument: u64, rest: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/tables@0.1.0", "update-many")
export declare function tablesUpdateMany(parameters: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/tables@0.1.0", "send")
export declare function tablesSend(table: usize, tableLength: usize, keys: usize, keysLength: usize, keyEnds: usize, keyCount: usize, values: usize, valuesLength: usize,
  valueEnds: usize, valueCount: usize, times: usize, timeCount: usize, records: usize, recordCount: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/output@0.1.0", "emit")
export declare function outputEmit(port: usize, portLength: usize, keys: usize, keysLength: usize, keyEnds: usize, keyCount: usize, values: usize, valuesLength: usize,
  valueEnds: usize, valueCount: usize, times: usize, timeCount: usize, records: usize, recordCount: usize, result: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/log@0.1.0", "write")
export declare function logWrite(level: i32, line: usize, length: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/metrics@0.1.0", "count-many")
export declare function metricsCountMany(name: usize, nameLength: usize, by: usize, byCount: usize, records: usize, recordCount: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/metrics@0.1.0", "gauge-many")
export declare function metricsGaugeMany(name: usize, nameLength: usize, values: usize, valueCount: usize, records: usize, recordCount: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/culprit@0.1.0", "reject")
export declare function culpritReject(record: u32, reason: usize, length: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/culprit@0.1.0", "begin-record")
export declare function culpritBeginRecord(record: u32): void;
// @ts-ignore: decorator
@external("wasmill:operator/declare@0.1.0", "open-table")
export declare function declareOpenTable(table: usize, length: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/declare@0.1.0", "ordered-table")
export declare function declareOrderedTable(table: usize, length: usize): void;
// @ts-ignore: decorator
@external("wasmill:operator/declare@0.1.0", "uses-table")
export declare function declareUsesTable(table: usize, length: usize): void;

// ---- The record that is worked on ----

let record: u32 = 0;

export function begin(index: u32): void {
  record = index;
}

// Says that it is to blame if the call now traps or never ends.
export function atFault(): void {
  culpritBeginRecord(record);
}
