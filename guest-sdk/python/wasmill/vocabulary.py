"""Words that the other modules share. It imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bytes = bytes | str
"""Bytes, or text that stands for its UTF-8."""

Level = Literal["trace", "debug", "info", "warn", "error"]
NumberKind = Literal["s64", "f32", "f64"]


def to_bytes(value: Bytes) -> bytes:
    """Text as UTF-8; bytes as they are."""
    return value.encode() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Consistency:
    """Which state a lookup sees; see `LIVE`, `COMMITTED`, `as_of`, `bounded_ms`, `bounded_epochs`."""

    kind: Literal["live", "committed", "as-of", "bounded-ms", "bounded-epochs"]
    value: int = 0


LIVE = Consistency("live")
"""The latest batch that the owner has applied."""
COMMITTED = Consistency("committed")
"""The last committed epoch: what no failure can take back."""


def as_of(epoch: int) -> Consistency:
    """A committed epoch that is still retained."""
    return Consistency("as-of", epoch)


def bounded_ms(milliseconds: int) -> Consistency:
    """As `LIVE`, but the answer may be this old."""
    return Consistency("bounded-ms", milliseconds)


def bounded_epochs(epochs: int) -> Consistency:
    """As `LIVE`, but the answer may be this many epochs old."""
    return Consistency("bounded-epochs", epochs)
