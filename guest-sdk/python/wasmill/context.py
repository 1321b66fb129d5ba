"""What a function may do while it works on a record. Effects are gathered, and handed to the host when the batch is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from .codecs import Codec
from .description import OUT, Description, Port, Table, UsedTable
from .host import Host, Outcomes, Records
from .lookups import Lookups, shown_as_of, shown_state
from .state import TableState
from .updates import Ask, Update
from .vocabulary import LIVE, Bytes, Consistency, Level, to_bytes

T = TypeVar("T")
_SAME: Any = object()
# An update's table, operation with its number, key, operand, expected value, record, and what is asked.
_Pending = tuple[str, str, int, bytes, bytes | None, bytes | None, int, Ask | None]


class Entry(Generic[T]):
    """The value of one key."""

    __slots__ = ("_codec", "_key", "_record", "_state")

    def __init__(self, state: TableState, key: bytes, record: int) -> None:
        self._state, self._key, self._record = state, key, record
        self._codec: Codec[T] = state.table.codec

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        """The value, or `default` where there is none. Changing it changes nothing in the table: `put` does."""
        stored = self._state.get(self._key, self._record)
        return default if stored is None else self._codec.decode(stored)

    def put(self, value: T) -> None:
        """Sets the value."""
        self._state.set(self._key, self._codec.encode(value), self._record)

    def delete(self) -> None:
        """Removes the value."""
        self._state.set(self._key, None, self._record)


class Context:
    """What a function may do while it works on a record."""

    def __init__(self, description: Description, host: Host) -> None:
        self._host = host
        self._tables = {table.name: TableState(table, host) for table in description.tables}
        self._uses = {table.name for table in description.uses}
        self._ports = {port.name: Records() for port in (OUT, *description.ports)}
        self._sent: dict[str, Records] = {}
        self._updates: list[_Pending] = []
        self._counts: dict[str, tuple[list[int], list[int]]] = {}
        self._gauges: dict[str, tuple[list[float], list[int]]] = {}
        self._apart = False
        self.lookups = Lookups(host)
        self._key, self._record = b"", 0
        self._time: int | None = None

    # State

    def state(self, table: Table[T], key: Bytes | None = None) -> Entry[T]:
        """The entry of the record's own key in `table`, or of another key that this task owns."""
        state = self._tables.get(table.name)
        if state is None:
            raise KeyError(f"table `{table.name}` is not in the function's description")
        return Entry(state, self._key if key is None else to_bytes(key), self._record)

    # Tables of others

    def lookup(self, table: UsedTable[T], key: Bytes, consistency: Consistency = LIVE) -> T | None:
        """The value of `key`, or None."""
        return self.lookup_many(table, [key], consistency)[0]

    def lookup_many(self, table: UsedTable[T], keys: Sequence[Bytes], consistency: Consistency = LIVE) -> list[T | None]:
        """The values of `keys`, in their order."""
        places = [(to_bytes(key), None) for key in keys]
        found = self.lookups.get(shown_state(self._used(table), consistency), places, self._record)
        return [None if value is None else table.codec.decode(value) for value in found]

    def lookup_as_of(self, table: UsedTable[T], key: Bytes, time: int, *, wait: bool = False) -> T | None:
        """The value that `key` had at an event time, on tables that are versioned. With `wait`, the record is worked on again until the owner has come to that time."""
        found = self.lookups.get(shown_as_of(self._used(table), wait), [(to_bytes(key), time)], self._record)[0]
        return None if found is None else table.codec.decode(found)

    def scan(
        self, table: UsedTable[T], start: Bytes = b"", end: Bytes | None = None, *, page: int = 1_000, consistency: Consistency = LIVE
    ) -> Iterator[tuple[bytes, T]]:
        """The keys from `start` to before `end` with their values, ascending, on tables that are ordered; `page` keys a call."""
        name, begin = self._used(table), to_bytes(start)
        last = None if end is None else to_bytes(end)
        following: bytes | None = begin
        while following is not None:
            if self._apart:
                self._host.read_for([self._record])
            entries, following = self._host.scan(name, following, last, page, consistency)
            for key, value in entries:
                yield key, table.codec.decode(value)

    def update(self, table: UsedTable[T], key: Bytes, update: Update, ask: Ask | None = None) -> None:
        """Has the owner of `table` change a value, exactly once, after this batch has succeeded. `ask` asks for the outcome."""
        op, number, operand, expected = update.encoded(table.codec)
        if ask is not None:
            self._port(ask.port)
        self._updates.append((self._used(table), op, number, to_bytes(key), operand, expected, self._record, ask))

    def send(self, table: UsedTable[Any], key: Bytes, value: Bytes, *, time: int | None = _SAME) -> None:
        """Gives a record to the function that owns `table`, in the task of `key`."""
        self._append(self._sent.setdefault(self._used(table), Records()), key, value, time)

    # Output, log, metrics

    def emit(self, key: Bytes, value: Bytes, *, port: Port = OUT, time: int | None = _SAME) -> None:
        """Emits a record. Its time is that of the record that is worked on, unless told otherwise."""
        self._append(self._port(port), key, value, time)

    def log(self, level: Level, message: object) -> None:
        """Writes a line to the job's log. It is kept even when the batch fails."""
        self._host.log(level, str(message))

    def debug(self, message: object) -> None:
        """`log` at this level."""
        self._host.log("debug", str(message))

    def info(self, message: object) -> None:
        """`log` at this level."""
        self._host.log("info", str(message))

    def warn(self, message: object) -> None:
        """`log` at this level."""
        self._host.log("warn", str(message))

    def error(self, message: object) -> None:
        """`log` at this level."""
        self._host.log("error", str(message))

    def count(self, name: str, by: int = 1) -> None:
        """Adds to a counter, when the batch succeeds."""
        amounts, causes = self._counts.setdefault(name, ([], []))
        amounts.append(by)
        causes.append(self._record)

    def gauge(self, name: str, value: float) -> None:
        """Sets a gauge, when the batch succeeds."""
        values, causes = self._gauges.setdefault(name, ([], []))
        values.append(value)
        causes.append(self._record)

    # For the runner

    def begin_batch(self, keys: Sequence[bytes]) -> None:
        self._apart = self._host.is_apart()
        for state in self._tables.values():
            state.begin_batch(keys, self._apart)
        self.lookups.begin_batch(len(keys), self._apart)
        self._ports = {name: Records() for name in self._ports}
        self._sent.clear()
        self._updates.clear()
        self._counts.clear()
        self._gauges.clear()

    def begin_record(self, index: int, key: bytes, time: int | None) -> None:
        self._record, self._key, self._time = index, key, time

    def end_record(self) -> None:
        for state in self._tables.values():
            state.end_record()

    def refuse_record(self, reason: str) -> None:
        record = self._record
        for state in self._tables.values():
            state.drop_record(record)
        for records in (*self._ports.values(), *self._sent.values()):
            records.drop_of(record)
        self._updates = [update for update in self._updates if update[6] != record]
        figures: list[tuple[list[Any], list[int]]] = [*self._counts.values(), *self._gauges.values()]
        for amounts, causes in figures:
            while causes and causes[-1] == record:
                causes.pop()
                amounts.pop()
        self._host.reject(record, reason)

    def end_batch(self) -> None:
        for state in self._tables.values():
            state.hand_over()
        self._hand_over_updates()
        for table, records in self._sent.items():
            if records.causes:
                self._host.send(table, records)
        for port, records in self._ports.items():
            if records.causes:
                self._host.emit(port, records)
        for name, (amounts, causes) in self._counts.items():
            self._host.count_many(name, amounts, causes)
        for name, (values, causes) in self._gauges.items():
            self._host.gauge_many(name, values, causes)

    def _hand_over_updates(self) -> None:
        """In runs of what one call can hold, so that the order of a table's updates stays."""
        start, updates = 0, self._updates
        while start < len(updates):
            end = start + 1
            while end < len(updates) and _kind(updates[end]) == _kind(updates[start]):
                end += 1
            table, op, number, *_, ask = updates[start]
            run = updates[start:end]
            keys, operands, expected = [update[3] for update in run], [update[4] for update in run], [update[5] for update in run]
            causes = [update[6] for update in run]
            asks = [update[7] for update in run if update[7] is not None]
            outcomes = ask if ask is None else Outcomes(ask.port.name, [to_bytes(ask.key) for ask in asks], [to_bytes(ask.tag) for ask in asks])
            if op == "compare-and-put":
                self._host.compare_and_put_many(table, keys, expected, operands, causes, outcomes)
            else:
                self._host.update_many(table, keys, op, number, operands, causes, outcomes)
            start = end

    def _append(self, records: Records, key: Bytes, value: Bytes, time: int | None) -> None:
        records.keys.append(key.encode() if isinstance(key, str) else key)
        records.values.append(value.encode() if isinstance(value, str) else value)
        records.times.append(self._time if time is _SAME else time)
        records.causes.append(self._record)

    def _port(self, port: Port) -> Records:
        records = self._ports.get(port.name)
        if records is None:
            raise KeyError(f"port `{port.name}` is not in the function's description")
        return records

    def _used(self, table: UsedTable[Any]) -> str:
        if table.name not in self._uses:
            raise KeyError(f"table `{table.name}` is not among the `uses` of the function's description")
        return table.name


def _kind(update: _Pending) -> tuple[str, str, int, Port | None]:
    """What updates of one call have in common."""
    table, op, number, *_, ask = update
    return table, op, number, None if ask is None else ask.port
