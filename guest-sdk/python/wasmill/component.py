"""The component side: the imports as a `Host`, and the exports of a function. It can be imported only while a component is built."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from componentize_py_types import Err
from wit_world.imports import culprit, declare, description, isolation, log, metrics, output, state, tables
from wit_world.imports import types as wit

from .errors import BatchFailed, HostError, NotYet
from .function import Function
from .host import Outcomes, Records
from .records import Record
from .runner import Runner
from .vocabulary import Consistency

T = TypeVar("T")
NO_TIME = -(2**63)
_LEVELS = {level.name.lower(): level for level in log.Level}


def exports_of(module: ModuleType) -> tuple[type, type]:
    """The exports of the one function that a module defines: those of the world, and of its interface `migration`."""
    own = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, Function) and thing.__module__ == module.__name__]
    if len(own) != 1:
        names = ", ".join(thing.__name__ for thing in own) or "none"
        raise ImportError(f"{module.__name__}.py has to define one class that is a wasmill.Function; there are: {names}")
    _keep_sources(str(module.__file__).rpartition("/")[0] + "/")
    return _world_of(own[0]), _migration_of(own[0])


def _keep_sources(folder: str) -> None:
    """Keeps the lines of the author's modules, which tracebacks show: a component has no files, and asking for one traps."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.startswith(folder):
            lines = linecache.getlines(file)
            linecache.cache[file] = (0, None, lines, file)
    linecache.checkcache = lambda filename=None: None
    linecache.updatecache = lambda filename, module_globals=None: []


def _world_of(function: type[Function]) -> type:

    # componentize-py makes an object for each call.
    runner: Runner | None = None

    class WitWorld:
        def describe(self) -> description.Descriptor:
            told = function.description
            for table in told.tables:
                _declare(table)
            for used in told.uses:
                declare.uses_table(used.name)
            declare.apart()
            tables = [description.Table(table.name, table.schema_version) for table in told.tables]
            return description.Descriptor(told.name, told.version, tables, [port.name for port in told.ports])

        def init(self, config: str) -> None:
            nonlocal runner
            try:
                runner = Runner(function, config, Imports())
            except Exception as error:
                # What is wrong with a config is said in words; anything else is a fault of the function's and has a name.
                raise Err(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}") from error

        def process(self, input: wit.Batch) -> None:
            if runner is None:
                raise Err("`process` was called before `init`")
            times = [None if time == NO_TIME else time for time in input.times]
            records = list(map(Record, _items(input.keys), _items(input.values), times))
            try:
                runner.process(records)
            except BatchFailed as failed:
                raise Err(str(failed)) from failed

    return WitWorld


def _migration_of(function: type[Function]) -> type:

    class Migration:
        def migrate(self, table: str, from_: int, keys: wit.Column, values: wit.Column) -> wit.Column:
            try:
                return _column(function.description.migrate(table, from_, _items(keys), _items(values)))
            except Exception as error:
                raise Err(f"{type(error).__name__}: {error}") from error

    return Migration


def _declare(table: Any) -> None:
    if table.open:
        declare.open_table(table.name)
    if table.ordered:
        declare.ordered_table(table.name)
    if table.versioned_ms is not None:
        declare.versioned_table(table.name, table.versioned_ms)
    for version in table.migrates:
        declare.migrates_from(table.name, version)


class Imports:
    """The real `Host`."""

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return _present(_asked(state.get_many, table, _column(keys)))

    def put_many(self, table: str, keys: Sequence[bytes], values: Sequence[bytes], causes: Sequence[int]) -> None:
        _asked(state.put_many, table, _column(keys), _column(values), list(causes))

    def delete_many(self, table: str, keys: Sequence[bytes], causes: Sequence[int]) -> None:
        _asked(state.delete_many, table, _column(keys), list(causes))

    def lookup_many(self, table: str, keys: Sequence[bytes], consistency: Consistency) -> list[bytes | None]:
        return _present(_asked(tables.get_many, table, _column(keys), _consistency(consistency)))

    def lookup_many_at(self, table: str, keys: Sequence[bytes], times: Sequence[int], wait: bool) -> list[bytes | None]:
        return _present(_asked(tables.get_many_at, table, _column(keys), list(times), wait))

    def scan(
        self, table: str, start: bytes, end: bytes | None, limit: int, consistency: Consistency
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        page = _asked(tables.scan, table, start, end, limit, _consistency(consistency))
        return list(zip(_items(page.keys), _items(page.values), strict=True)), page.next

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
        case = getattr(tables, "Op_" + "".join(word.capitalize() for word in op.split("-")))
        values = _column([] if op == "delete" else [operand or b"" for operand in operands])
        _asked(tables.update_many, table, _column(keys), case(number) if op == "append" else case(), values, list(causes), _outcomes(outcomes))

    def compare_and_put_many(
        self,
        table: str,
        keys: Sequence[bytes],
        expected: Sequence[bytes | None],
        values: Sequence[bytes | None],
        causes: Sequence[int],
        outcomes: Outcomes | None,
    ) -> None:
        _asked(tables.compare_and_put_many, table, _column(keys), _optional(expected), _optional(values), list(causes), _outcomes(outcomes))

    def send(self, table: str, records: Records) -> None:
        _asked(tables.send, table, _batch(records), records.causes)

    def emit(self, port: str, records: Records) -> None:
        _asked(output.emit, port, _batch(records), records.causes)

    def log(self, level: str, message: str) -> None:
        log.write(_LEVELS[level], message)

    def count_many(self, name: str, by: Sequence[int], causes: Sequence[int]) -> None:
        metrics.count_many(name, list(by), list(causes))

    def gauge_many(self, name: str, values: Sequence[float], causes: Sequence[int]) -> None:
        metrics.gauge_many(name, list(values), list(causes))

    def reject(self, record: int, reason: str) -> None:
        culprit.reject(record, reason)

    def begin_record(self, record: int) -> None:
        culprit.begin_record(record)

    def is_apart(self) -> bool:
        return bool(isolation.is_apart())

    def read_for(self, causes: Sequence[int]) -> None:
        isolation.read_for(list(causes))


def _asked(call: Callable[..., T], *arguments: Any) -> T:
    try:
        return call(*arguments)
    except Err as refused:
        _raise(refused.value)


def _raise(error: Any) -> NoReturn:
    name = type(error).__name__.removeprefix("Error_")
    kind = "".join("-" + char.lower() if char.isupper() else char for char in name).removeprefix("-")
    raise (NotYet if kind == "not-yet" else HostError)(kind, error.value) from None


def _column(items: Sequence[bytes]) -> wit.Column:
    ends, end = [], 0
    for item in items:
        end += len(item)
        ends.append(end)
    return wit.Column(b"".join(items), ends)


def _items(column: wit.Column) -> list[bytes]:
    joined, start, items = column.bytes, 0, []
    for end in column.ends:
        items.append(joined[start:end])
        start = end
    return items


def _optional(items: Sequence[bytes | None]) -> wit.OptionalColumn:
    return wit.OptionalColumn(_column([item or b"" for item in items]), bytes(item is not None for item in items))


def _present(column: wit.OptionalColumn) -> list[bytes | None]:
    return [item if present else None for item, present in zip(_items(column.items), column.present, strict=True)]


def _batch(records: Records) -> wit.Batch:
    times = [NO_TIME if time is None else time for time in records.times]
    return wit.Batch(_column(records.keys), _column(records.values), times)


def _outcomes(outcomes: Outcomes | None) -> tables.Outcomes | None:
    return outcomes and tables.Outcomes(outcomes.port, _column(outcomes.keys), _column(outcomes.tags))


def _consistency(consistency: Consistency) -> Any:
    case = getattr(tables, "Consistency_" + "".join(word.capitalize() for word in consistency.kind.split("-")))
    return case() if consistency.kind in ("live", "committed") else case(consistency.value)
