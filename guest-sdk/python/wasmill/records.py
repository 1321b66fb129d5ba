"""A record, as a function is given it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import Reject


class UpdateOutcome(NamedTuple):
    """What has become of an update that was asked about."""

    changed: bool
    tag: bytes


@dataclass(slots=True)
class Record:
    """A record: `key` and `value` are bytes, `time` is its event time in milliseconds since the Unix epoch, if it has one."""

    key: bytes
    value: bytes
    time: int | None = None

    @property
    def key_text(self) -> str:
        """The key as text; the record is refused where it is not UTF-8."""
        return _text(self.key, "key")

    @property
    def text(self) -> str:
        """The value as text; the record is refused where it is not UTF-8."""
        return _text(self.value, "value")

    def json(self) -> Any:
        """The value as JSON; the record is refused where it is not."""
        try:
            return json.loads(self.value)
        except ValueError as error:
            raise Reject(f"the value is not JSON: {error}") from None

    def outcome(self) -> UpdateOutcome:
        """What this record says of an update that was asked about (`Ask`)."""
        if self.value[:1] not in (b"\0", b"\1"):
            raise Reject("the record is no outcome of an update")
        return UpdateOutcome(self.value[0] == 1, self.value[1:])


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Reject(f"the {what} is not UTF-8: {error.reason} at byte {error.start}") from None
