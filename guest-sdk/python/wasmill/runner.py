"""Runs a function over a batch, record by record."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence

from .context import Context
from .errors import BatchFailed, HostError, NotYet, Reject
from .function import Function
from .host import Host
from .lookups import Wants
from .records import Record


class Runner:
    """An instance of a function, with all that it needs to run. After a `BatchFailed` it is done with."""

    def __init__(self, function: type[Function], config: str, host: Host) -> None:
        self._host = host
        self._function = function()
        self._prefetches = function.prefetch is not Function.prefetch
        self._context = Context(function.description, host)
        self._wants = Wants(self._context.lookups)
        self._function.init(json.loads(config))

    def process(self, records: Sequence[Record]) -> None:
        """Works on a batch and hands its effects to the host."""
        context, process = self._context, self._function.process
        context.begin_batch([record.key for record in records])
        if self._prefetches:
            self._prefetch(records)
        for index, record in enumerate(records):
            context.begin_record(index, record.key, record.time)
            try:
                process(record, context)
            except Reject as refusal:
                context.refuse_record(str(refusal))
            except NotYet as early:
                self._host.begin_record(index)
                raise BatchFailed(str(early)) from early
            except HostError as refusal:
                context.refuse_record(str(refusal))
            except BatchFailed:
                raise
            except Exception as error:
                raise self._failed(index, error) from error
            except BaseException:
                self._host.begin_record(index)
                raise
            else:
                context.end_record()
        try:
            context.end_batch()
        except HostError as refusal:
            raise BatchFailed(str(refusal)) from refusal

    def _prefetch(self, records: Sequence[Record]) -> None:
        for index, record in enumerate(records):
            self._wants.begin_record(index)
            try:
                self._function.prefetch(record, self._wants)
            except Exception:  # noqa: S110
                pass

    def _failed(self, index: int, error: Exception) -> BatchFailed:
        """Logs the traceback, and names the record."""
        self._host.log("error", _told(error))
        self._host.begin_record(index)
        return BatchFailed("".join(traceback.format_exception_only(error)).strip())


def _told(error: BaseException) -> str:
    """The traceback without the frame of this module. Not by `format_exception`, which reads the source's file to find a line's part."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [_told(before), "\nwhich led to:\n\n"] if before else []
    frames = [frame for frame in traceback.walk_tb(error.__traceback__) if frame[0].f_code.co_filename != __file__]
    parts += ["Traceback (most recent call last):\n", *traceback.StackSummary.extract(iter(frames)).format()]
    return "".join([*parts, *traceback.format_exception_only(error)]).rstrip()
