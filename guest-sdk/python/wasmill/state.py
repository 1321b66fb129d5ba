"""A table of the function's own, during a batch: what was read of it and what is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .description import Table
from .host import Host
from typing import Any


class TableState:
    """Values are kept as bytes: what a function does to a value that it was given changes nothing until it puts it."""

    def __init__(self, table: Table[Any], host: Host) -> None:
        self.table = table
        self._host = host
        self._apart = False
        self._loaded = False
        self._keys: Sequence[bytes] = ()
        self._current: dict[bytes, bytes | None] = {}
        self._before: dict[bytes, bytes | None] = {}
        self._writes: list[tuple[bytes, bytes | None, int]] = []

    def begin_batch(self, keys: Sequence[bytes], apart: bool) -> None:
        """`keys` are those of the batch's records: the first read of one reads them all."""
        self._keys, self._apart, self._loaded = keys, apart, False
        self._current.clear()
        self._before.clear()
        self._writes.clear()

    def get(self, key: bytes, record: int) -> bytes | None:
        if not self._loaded:
            self._load()
        current = self._current
        if key not in current:
            if self._apart:
                self._host.read_for([record])
            current[key] = self._host.get_many(self.table.name, [key])[0]
        return current[key]

    def set(self, key: bytes, value: bytes | None, record: int) -> None:
        """Also reads the key: that this task owns it comes out now, not when the batch ends."""
        before = self.get(key, record)
        self._before.setdefault(key, before)
        self._current[key] = value
        self._writes.append((key, value, record))

    def end_record(self) -> None:
        if self._before:
            if self._apart:
                self._current.update(self._before)
            self._before.clear()

    def drop_record(self, record: int) -> None:
        """Takes back what the latest record has changed."""
        self._current.update(self._before)
        self._before.clear()
        while self._writes and self._writes[-1][2] == record:
            self._writes.pop()

    def hand_over(self) -> None:
        """Writes what was changed: of each key the last value, or all where each of them counts."""
        if not self._writes:
            return
        if self._apart or self.table.versioned_ms is not None:
            writes = self._writes
        else:
            last = {write[0]: write for write in self._writes}
            writes = sorted(last.values(), key=lambda write: write[1] is None)
        for is_delete, run in groupby(writes, lambda write: write[1] is None):
            keys, values, causes = zip(*run, strict=True)
            if is_delete:
                self._host.delete_many(self.table.name, keys, causes)
            else:
                self._host.put_many(self.table.name, keys, values, causes)

    def _load(self) -> None:
        self._loaded = True
        if self._apart:
            keys = list(self._keys)
            self._host.read_for(range(len(keys)))
        else:
            keys = list(dict.fromkeys(self._keys))
        self._current.update(zip(keys, self._host.get_many(self.table.name, keys), strict=True))
