"""What goes wrong, and what becomes of it."""


class Reject(Exception):
    """Raised by `Function.process`: refuses the record. What it has emitted, changed and counted is dropped, and it goes where `on-error` says."""


class HostError(Exception):
    """The host has refused a call; `kind` is its reason, as the contract names it. If it is not caught, the record is refused."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class NotYet(HostError):
    """A lookup that waits has come too early. Let it through: the record is worked on again when the table's owner has come to its time."""


class BatchFailed(Exception):
    """The call as a whole fails: the host runs it again without the record at fault, or in parts where it is not known."""
