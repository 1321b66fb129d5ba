/** What goes wrong, and what becomes of it. */

/** Thrown by `process`: refuses the record. What it has emitted, changed and counted is dropped, and it goes where `on-error` says. */
export class Reject extends Error {}

/** The host has refused a call; `kind` is its reason, as the contract names it. If it is not caught, the record is refused; after `not-yet`, it is worked on again later. */
export class HostError extends Error {
  constructor(
    readonly kind: string,
    message: string,
  ) {
    super(message);
  }
}

/** The call as a whole fails: the host runs it again without the record at fault, or in parts where it is not known. */
export class BatchFailed extends Error {
  constructor(
    message: string,
    readonly early = false,
  ) {
    super(message);
  }
}
