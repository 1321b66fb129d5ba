"""Lookups in tables of others: keys wanted by a batch, gathered into one call a table, and what came of it, kept until the batch ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .description import UsedTable
from .errors import BatchFailed, HostError, NotYet
from .host import Host
from .vocabulary import LIVE, Bytes, Consistency, to_bytes


class _Shown(NamedTuple):
    """What lookups show: a state of a table, or what was true at event times."""

    table: str
    consistency: Consistency | None
    wait: bool = False


# A key with its time; without one where a state is looked up.
_Place = tuple[bytes, int | None]


class Lookups:
    """All lookups of a batch."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._apart = False
        self._records = 0
        self._wanted: dict[_Shown, dict[tuple[_Place, int | None], None]] = {}
        self._found: dict[_Shown, dict[tuple[_Place, int | None], bytes | None]] = {}

    def begin_batch(self, records: int, apart: bool) -> None:
        self._records, self._apart = records, apart
        self._wanted.clear()
        self._found.clear()

    def want(self, shown: _Shown, place: _Place, record: int) -> None:
        self._wanted.setdefault(shown, {})[place, record if self._apart else None] = None

    def get(self, shown: _Shown, places: Sequence[_Place], record: int) -> list[bytes | None]:
        """The values at `places`, in their order."""
        wanted = self._wanted.pop(shown, None)
        if wanted:
            self._fetch(shown, list(wanted))
        found = self._found.setdefault(shown, {})
        reader = record if self._apart else None
        missing = [(place, reader) for place in dict.fromkeys(places) if (place, reader) not in found]
        if missing:
            self._fetch(shown, missing)
        return [found[place, reader] for place in places]

    def _fetch(self, shown: _Shown, wanted: list[tuple[_Place, int | None]]) -> None:
        keys = [key for (key, _), _ in wanted]
        if self._apart:
            self._host.read_for([reader or 0 for _, reader in wanted])
        try:
            if shown.consistency is not None:
                values = self._host.lookup_many(shown.table, keys, shown.consistency)
            else:
                values = self._host.lookup_many_at(shown.table, keys, [time or 0 for (_, time), _ in wanted], shown.wait)
        except NotYet:
            raise
        except HostError as error:
            # Too much for one call may do in parts.
            if error.kind == "limit-exceeded" and self._records > 1:
                raise BatchFailed(str(error)) from error
            raise
        self._found.setdefault(shown, {}).update(zip(wanted, values, strict=True))


class Wants:
    """What a batch will look up; see `Function.prefetch`."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._record = 0

    def begin_record(self, record: int) -> None:
        self._record = record

    def lookup(self, table: UsedTable[Any], key: Bytes, consistency: Consistency = LIVE) -> None:
        """`key` will be looked up by `Context.lookup`."""
        self._lookups.want(_Shown(table.name, consistency), (to_bytes(key), None), self._record)

    def lookup_as_of(self, table: UsedTable[Any], key: Bytes, time: int, *, wait: bool = False) -> None:
        """`key` will be looked up by `Context.lookup_as_of`, at this time."""
        self._lookups.want(_Shown(table.name, None, wait), (to_bytes(key), time), self._record)


def shown_state(table: str, consistency: Consistency) -> _Shown:
    return _Shown(table, consistency)


def shown_as_of(table: str, wait: bool) -> _Shown:
    return _Shown(table, None, wait)
