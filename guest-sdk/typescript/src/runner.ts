/** Runs a function over a batch, record by record. */

import { Context } from "./context.js";
import { BatchFailed, HostError, Reject } from "./errors.js";
import type { FunctionClass, InputRecord, WasmillFunction } from "./function.js";
import type { Host } from "./host.js";
import { Wants } from "./lookups.js";

/** An instance of a function, with all that it needs to run. After a `BatchFailed` it is done with. */
export class Runner {
  private readonly instance: WasmillFunction;
  private readonly context: Context;
  private readonly wants: Wants;

  constructor(
    of: FunctionClass,
    config: string,
    private readonly host: Host,
  ) {
    this.context = new Context(of.description, host);
    this.wants = new Wants(this.context.lookups);
    this.instance = new of(JSON.parse(config));
  }

  /** Works on a batch and hands its effects to the host. */
  process(records: InputRecord[]): void {
    this.context.beginBatch(records);
    if (this.instance.prefetch) records.forEach((record, index) => this.prefetch(record, index));
    records.forEach((record, index) => {
      this.context.beginRecord(index, record);
      try {
        this.instance.process(record, this.context);
      } catch (error) {
        this.failed(error, index);
        return;
      }
      this.context.endRecord();
    });
    try {
      this.context.endBatch();
    } catch (error) {
      throw new BatchFailed(messageOf(error));
    }
  }

  private prefetch(record: InputRecord, index: number): void {
    this.wants.record = index;
    try {
      this.instance.prefetch!(record, this.wants);
    } catch {
      // `process` will meet it again.
    }
  }

  private failed(error: unknown, index: number): void {
    if (error instanceof BatchFailed) throw error;
    const early = error instanceof HostError && error.kind === "not-yet";
    if (!early && (error instanceof Reject || error instanceof HostError)) return this.context.refuseRecord(error.message);
    if (!early) this.host.log("error", told(error));
    this.host.beginRecord(index);
    throw new BatchFailed(messageOf(error), early);
  }
}

function messageOf(error: unknown): string {
  return String(error);
}

/** The error with its stack, which some engines begin with the message and others do not. */
function told(error: unknown): string {
  const stack = error instanceof Error ? (error.stack ?? "") : "";
  const message = messageOf(error);
  return (stack.startsWith(message) ? stack : `${message}\n${stack}`).trimEnd();
}
