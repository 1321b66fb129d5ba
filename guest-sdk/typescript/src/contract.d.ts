/** The contract's imports, as componentize-qjs gives them. */

declare module "wasmill:operator/*" {
  export type Column = { bytes: Uint8Array; ends: number[] };
  export type OptionalColumn = { items: Column; present: Uint8Array };
  export type Batch = { keys: Column; values: Column; times: number[] };
}

declare module "wasmill:operator/state@0.1.0" {
  import type { Column, OptionalColumn } from "wasmill:operator/types";
  export function getMany(table: string, keys: Column): OptionalColumn;
  export function putMany(table: string, keys: Column, values: Column, records: number[]): void;
  export function deleteMany(table: string, keys: Column, records: number[]): void;
}

declare module "wasmill:operator/tables@0.1.0" {
  import type { Batch, Column, OptionalColumn } from "wasmill:operator/types";
  type Outcomes = { port: string; keys: Column; values: Column };
  export function getMany(table: string, keys: Column, consistency: object): OptionalColumn;
  export function getManyAt(table: string, keys: Column, times: number[], wait: boolean): OptionalColumn;
  export function scan(
    table: string,
    from: Uint8Array,
    to: Uint8Array | undefined,
    limit: number,
    consistency: object,
  ): { keys: Column; values: Column; next?: Uint8Array };
  export function updateMany(table: string, keys: Column, op: object, values: Column, records: number[], outcomes?: Outcomes): void;
  export function compareAndPutMany(
    table: string,
    keys: Column,
    expected: OptionalColumn,
    values: OptionalColumn,
    records: number[],
    outcomes?: Outcomes,
  ): void;
  export function send(table: string, sent: Batch, records: number[]): void;
}

declare module "wasmill:operator/output@0.1.0" {
  import type { Batch } from "wasmill:operator/types";
  export function emit(port: string, emitted: Batch, records: number[]): void;
}

declare module "wasmill:operator/log@0.1.0" {
  export function write(level: string, message: string): void;
}

declare module "wasmill:operator/metrics@0.1.0" {
  export function countMany(name: string, by: number[], records: number[]): void;
  export function gaugeMany(name: string, values: number[], records: number[]): void;
}

declare module "wasmill:operator/culprit@0.1.0" {
  export function reject(record: number, reason: string): void;
  export function beginRecord(record: number): void;
}

declare module "wasmill:operator/isolation@0.1.0" {
  export function isApart(): boolean;
  export function readFor(records: number[]): void;
}

declare module "wasmill:operator/declare@0.1.0" {
  export function openTable(table: string): void;
  export function orderedTable(table: string): void;
  export function versionedTable(table: string, spanMs: number): void;
  export function usesTable(name: string): void;
  export function migratesFrom(table: string, schemaVersion: number): void;
  export function apart(): void;
}
