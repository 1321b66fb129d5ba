"""Testing a function natively, without Wasm: the same code runs it, over a host in memory.

The `Harness` keeps the contract as the real host does: a batch's effects are applied together or not at all, a refused record's effects are dropped, and a record
that makes the function raise is set aside and the rest is run again on a fresh instance. Endless loops and limits are not simulated::

    harness = Harness(WordCount)
    outcome = harness.process([record("tea"), record("cup"), record("tea")])
    assert outcome.texts() == ["1", "1", "2"]
    assert harness.state(COUNTS, "tea") == 2
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .codecs import Codec
from .description import OUT, Description, Port, Table, UsedTable
from .errors import BatchFailed, HostError, NotYet
from .function import Function
from .host import Outcomes, Records
from .records import Record
from .runner import Runner
from .updates import Update
from .vocabulary import Bytes, Consistency, Level, to_bytes

T = TypeVar("T")


def record(key: Bytes, value: Bytes | Mapping[str, Any] | Sequence[Any] = b"", *, time: int | None = None) -> Record:
    """A record for `Harness.process`. What is neither bytes nor text becomes JSON."""
    content = to_bytes(value) if isinstance(value, (bytes, str)) else json.dumps(value).encode()
    return Record(to_bytes(key), content, time)


def outcome(key: Bytes, changed: bool, tag: Bytes = b"") -> Record:
    """A record that comes back from an update that was asked about (`Ask`)."""
    return record(key, bytes([changed]) + to_bytes(tag))


@dataclass(frozen=True)
class Emitted:
    """A record that the function has emitted, and the place of the record that caused it."""

    port: str
    key: bytes
    value: bytes
    time: int | None
    cause: int

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode(errors="replace")

    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value)


@dataclass(frozen=True)
class Updated:
    """An update of a table of others: `op` as the contract names it, the operand and what is expected as they are encoded."""

    table: str
    key: bytes
    op: str
    operand: bytes | None
    expected: bytes | None
    cause: int
    asked: tuple[str, bytes, bytes] | None
    """The outcome's port, key and tag."""

    def is_of(self, table: UsedTable[Any], update: Update) -> bool:
        """Whether it is this update of `table`."""
        op, _, operand, expected = update.encoded(table.codec)
        return (self.table, self.op, self.operand, self.expected) == (table.name, op, operand, expected)


E = TypeVar("E", Emitted, Updated)


@dataclass(frozen=True)
class Rejected:
    """A record that has failed."""

    index: int
    reason: str


@dataclass
class Outcome:
    """What a batch has come to."""

    emitted: list[Emitted] = field(default_factory=list)
    updates: list[Updated] = field(default_factory=list)
    sent: list[Emitted] = field(default_factory=list)
    """Records sent to the owners of tables, with the table in place of the port."""
    rejected: list[Rejected] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    """The records that have to wait: the first that asked for what an owner has not come to, and all behind it."""
    log: list[tuple[Level, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def texts(self, port: Port = OUT) -> list[str]:
        """The values emitted on `port`, as text."""
        return [emitted.text for emitted in self.emitted if emitted.port == port.name]


class OtherTable:
    """A table of others, to be filled by a test."""

    def __init__(self, codec: Codec[Any], versions: dict[bytes, list[tuple[int, bytes]]], host: MemoryHost, name: str) -> None:
        self._codec, self._versions, self._host, self._name = codec, versions, host, name

    def put(self, key: Bytes, value: Any) -> OtherTable:
        """Sets a value, as if it had ever been so."""
        return self.put_at(key, -(2**63), value)

    def put_at(self, key: Bytes, time: int, value: Any) -> OtherTable:
        """Sets a value that holds from an event time on."""
        versions = self._versions.setdefault(to_bytes(key), [])
        versions[:] = sorted([(when, known) for when, known in versions if when != time] + [(time, self._codec.encode(value))])
        return self

    def reached(self, time: int) -> OtherTable:
        """How far in event time its owner has come; without it, as far as anyone asks."""
        self._host.reached[self._name] = time
        return self


class Harness:
    """Runs a function natively over a host in memory."""

    def __init__(self, function: type[Function], config: Mapping[str, Any] | None = None, *, apart: bool = False) -> None:
        """`apart` has records kept apart, as in an operator that is serializable; none of them is given again."""
        self._function, self._config = function, json.dumps(config or {})
        self.host = MemoryHost(function.description, apart)
        self._runner = self._fresh()

    def process(self, records: Sequence[Record]) -> Outcome:
        """Processes `records` as one batch, and again without a record that makes it fail."""
        result, left = Outcome(), list(enumerate(records))
        while left:
            self.host.begin_call(len(left))
            try:
                self._runner.process([record for _, record in left])
            except BatchFailed as failed:
                self._runner = self._fresh()
                result.log += self.host.logged
                if self.host.culprit is None:
                    raise
                place = self.host.culprit
                if isinstance(failed.__cause__, NotYet):
                    result.waiting = [index for index, _ in left[place:]]
                    left = left[:place]
                else:
                    result.rejected.append(Rejected(left.pop(place)[0], str(failed)))
                continue
            result.log += self.host.logged
            self.host.apply([index for index, _ in left], result)
            break
        result.rejected.sort(key=lambda rejected: rejected.index)
        return result

    def state(self, table: Table[T], key: Bytes) -> T | None:
        """The value that `table` has for `key`."""
        stored = self.host.tables[table.name].get(to_bytes(key))
        return None if stored is None else table.codec.decode(stored)

    def store(self, table: Table[Any], key: Bytes, stored: Bytes) -> None:
        """Sets the stored bytes of a key, as an earlier batch would have."""
        self.host.tables[table.name][to_bytes(key)] = to_bytes(stored)

    def other(self, table: UsedTable[Any]) -> OtherTable:
        """A table of others, to be filled. Whatever consistency the function asks for, it finds what is there now."""
        return OtherTable(table.codec, self.host.others[table.name], self.host, table.name)

    @property
    def calls(self) -> dict[str, int]:
        """How often the function has called the host, by the name of the call."""
        return self.host.calls

    def _fresh(self) -> Runner:
        return Runner(self._function, self._config, self.host)


class MemoryHost:
    """A `Host` in memory."""

    def __init__(self, description: Description, apart: bool) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {table.name: {} for table in description.tables}
        self.others: dict[str, dict[bytes, list[tuple[int, bytes]]]] = {table.name: {} for table in description.uses}
        self.reached: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._apart = apart
        self.begin_call(0)

    def begin_call(self, records: int) -> None:
        self._records = records
        self.culprit: int | None = None
        self.logged: list[tuple[Level, str]] = []
        self._refused: dict[int, str] = {}
        self._writes: list[tuple[str, bytes, bytes | None, int]] = []
        self._emitted: list[Emitted] = []
        self._updates: list[Updated] = []
        self._sent: list[Emitted] = []
        self._counts: list[tuple[str, int, int]] = []
        self._gauges: list[tuple[str, float, int]] = []

    def apply(self, indices: Sequence[int], result: Outcome) -> None:
        """Applies the call's effects, and tells them with the places that records had in the whole batch."""
        for table, key, value, cause in self._writes:
            if cause in self._refused:
                continue
            if value is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value
        result.emitted += [self._placed(effect, indices) for effect in self._emitted if effect.cause not in self._refused]
        result.updates += [self._placed(effect, indices) for effect in self._updates if effect.cause not in self._refused]
        result.sent += [self._placed(effect, indices) for effect in self._sent if effect.cause not in self._refused]
        for name, by, cause in self._counts:
            if cause not in self._refused:
                result.counts[name] = result.counts.get(name, 0) + by
        for name, figure, cause in self._gauges:
            if cause not in self._refused:
                result.gauges[name] = figure
        result.rejected += [Rejected(indices[place], reason) for place, reason in self._refused.items()]

    # The calls of the contract

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._called("get_many")
        return [self.tables[table].get(key) for key in keys]

    def put_many(self, table: str, keys: Sequence[bytes], values: Sequence[bytes | None], causes: Sequence[int]) -> None:
        self._called("put_many")
        self._writes += [(table, key, value, self._checked(cause)) for key, value, cause in zip(keys, values, causes, strict=True)]

    def delete_many(self, table: str, keys: Sequence[bytes], causes: Sequence[int]) -> None:
        self._called("delete_many")
        self._writes += [(table, key, None, self._checked(cause)) for key, cause in zip(keys, causes, strict=True)]

    def lookup_many(self, table: str, keys: Sequence[bytes], consistency: Consistency) -> list[bytes | None]:
        self._called("lookup_many")
        return [self._as_of(table, key, None) for key in keys]

    def lookup_many_at(self, table: str, keys: Sequence[bytes], times: Sequence[int], wait: bool) -> list[bytes | None]:
        self._called("lookup_many_at")
        reached = self.reached.get(table)
        if wait and reached is not None and any(time > reached for time in times):
            raise NotYet("not-yet", f"the owner of `{table}` has come to {reached} only")
        return [self._as_of(table, key, time) for key, time in zip(keys, times, strict=True)]

    def scan(
        self, table: str, start: bytes, end: bytes | None, limit: int, consistency: Consistency
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        self._called("scan")
        keys = sorted(key for key in self.others[table] if key >= start and (end is None or key < end))
        values = [(key, self.others[table][key][-1][1]) for key in keys[:limit]]
        return values, keys[limit] if len(keys) > limit else None

    def update_many(
        self,
        table: str,
        keys: Sequence[bytes],
        op: str,
        number: int,
        operands: Sequence[bytes | None],
        causes: Sequence[int],
        outcomes: Outcomes | None,
    ) -> None:
        self._called("update_many")
        self._update(table, keys, op, operands, [None] * len(keys), causes, outcomes)

    def compare_and_put_many(
        self,
        table: str,
        keys: Sequence[bytes],
        expected: Sequence[bytes | None],
        values: Sequence[bytes | None],
        causes: Sequence[int],
        outcomes: Outcomes | None,
    ) -> None:
        self._called("compare_and_put_many")
        self._update(table, keys, "compare-and-put", values, expected, causes, outcomes)

    def send(self, table: str, records: Records) -> None:
        self._called("send")
        self._sent += self._records_of(table, records)

    def emit(self, port: str, records: Records) -> None:
        self._called("emit")
        self._emitted += self._records_of(port, records)

    def log(self, level: Level, message: str) -> None:
        self.logged.append((level, message))

    def count_many(self, name: str, by: Sequence[int], causes: Sequence[int]) -> None:
        self._counts += [(name, amount, self._checked(cause)) for amount, cause in zip(by, causes, strict=True)]

    def gauge_many(self, name: str, values: Sequence[float], causes: Sequence[int]) -> None:
        self._gauges += [(name, value, self._checked(cause)) for value, cause in zip(values, causes, strict=True)]

    def reject(self, record: int, reason: str) -> None:
        self._refused[self._checked(record)] = reason

    def begin_record(self, record: int) -> None:
        self.culprit = self._checked(record)

    def is_apart(self) -> bool:
        return self._apart

    def read_for(self, causes: Sequence[int]) -> None:
        for cause in causes:
            self._checked(cause)

    def _placed(self, effect: E, indices: Sequence[int]) -> E:
        return replace(effect, cause=indices[effect.cause])

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def _checked(self, cause: int) -> int:
        if not 0 <= cause < self._records:
            raise HostError("malformed", f"the batch has no record {cause}")
        return cause

    def _as_of(self, table: str, key: bytes, time: int | None) -> bytes | None:
        versions = self.others[table].get(key, [])
        count = len(versions) if time is None else bisect_right([when for when, _ in versions], time)
        return versions[count - 1][1] if count else None

    def _update(
        self,
        table: str,
        keys: Sequence[bytes],
        op: str,
        operands: Sequence[bytes | None],
        expected: Sequence[bytes | None],
        causes: Sequence[int],
        outcomes: Outcomes | None,
    ) -> None:
        for place, (key, operand, known, cause) in enumerate(zip(keys, operands, expected, causes, strict=True)):
            asked = None if outcomes is None else (outcomes.port, outcomes.keys[place], outcomes.tags[place])
            self._updates.append(Updated(table, key, op, operand, known, self._checked(cause), asked))

    def _records_of(self, port: str, records: Records) -> list[Emitted]:
        columns = zip(records.keys, records.values, records.times, records.causes, strict=True)
        return [Emitted(port, key, value, time, self._checked(cause)) for key, value, time, cause in columns]
