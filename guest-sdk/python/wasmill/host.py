"""What a function's environment can do: the imports of the contract in Python's terms. `component` has the real one, `testing` one in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .vocabulary import Consistency, Level

Keys = Sequence[bytes]
Values = Sequence[bytes | None]
Causes = Sequence[int]


@dataclass(slots=True)
class Records:
    """Records to be handed over, in columns, with the records that caused them."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)
    causes: list[int] = field(default_factory=list)

    def drop_of(self, cause: int) -> None:
        """Takes back what the latest record has caused."""
        while self.causes and self.causes[-1] == cause:
            for column in (self.keys, self.values, self.times, self.causes):
                column.pop()


@dataclass(slots=True)
class Outcomes:
    """Asks for the outcomes of updates."""

    port: str
    keys: list[bytes] = field(default_factory=list)
    tags: list[bytes] = field(default_factory=list)


class Host(Protocol):
    """See the contract (`wit/`) for what each means. Refusals are raised as `HostError`."""

    def get_many(self, table: str, keys: Keys) -> Values: ...
    def put_many(self, table: str, keys: Keys, values: Keys, causes: Causes) -> None: ...
    def delete_many(self, table: str, keys: Keys, causes: Causes) -> None: ...
    def lookup_many(self, table: str, keys: Keys, consistency: Consistency) -> Values: ...
    def lookup_many_at(self, table: str, keys: Keys, times: Sequence[int], wait: bool) -> Values: ...
    def scan(self, table: str, start: bytes, end: bytes | None, limit: int, consistency: Consistency) -> tuple[list[tuple[bytes, bytes]], bytes | None]: ...
    def update_many(self, table: str, keys: Keys, op: str, number: int, operands: Values, causes: Causes, outcomes: Outcomes | None) -> None: ...
    def compare_and_put_many(self, table: str, keys: Keys, expected: Values, values: Values, causes: Causes, outcomes: Outcomes | None) -> None: ...
    def send(self, table: str, records: Records) -> None: ...
    def emit(self, port: str, records: Records) -> None: ...
    def log(self, level: Level, message: str) -> None: ...
    def count_many(self, name: str, by: Sequence[int], causes: Causes) -> None: ...
    def gauge_many(self, name: str, values: Sequence[float], causes: Causes) -> None: ...
    def reject(self, record: int, reason: str) -> None: ...
    def begin_record(self, record: int) -> None: ...
    def is_apart(self) -> bool: ...
    def read_for(self, causes: Causes) -> None: ...
