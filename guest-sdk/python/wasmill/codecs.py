"""How values of a table are stored."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from .vocabulary import Bytes, NumberKind, to_bytes

T = TypeVar("T")


class Codec(Protocol[T]):
    """Values of type `T` as bytes. A class with these two methods is a codec."""

    def encode(self, value: T) -> bytes:
        """The value as bytes."""
        ...

    def decode(self, stored: bytes) -> T:
        """The value that these bytes are. A `ValueError` refuses the record."""
        ...


class Raw:
    """Bytes as they are. Text may be put, and is read as bytes."""

    def encode(self, value: Bytes) -> bytes:
        return to_bytes(value)

    def decode(self, stored: bytes) -> bytes:
        return stored


class Text:
    """Text as UTF-8."""

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, stored: bytes) -> str:
        return stored.decode()


class Json:
    """Whatever JSON can say. `wasmill state` shows it as it is."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, stored: bytes) -> Any:
        return json.loads(stored)


class _Number:
    def __init__(self, layout: str) -> None:
        self._layout = struct.Struct(layout)

    def decode(self, stored: bytes) -> Any:
        try:
            return self._layout.unpack(stored)[0]
        except struct.error as error:
            raise ValueError(f"a stored value does not decode: {error}") from None

    def encode(self, value: Any) -> bytes:
        return self._layout.pack(value)


class Int(_Number):
    """A whole number of 64 bits with a sign: `Fixed<i64>` of the Rust SDK."""

    kind: NumberKind = "s64"

    def __init__(self) -> None:
        super().__init__("<q")

    def encode(self, value: int) -> bytes:
        return self._layout.pack(value)

    def decode(self, stored: bytes) -> int:
        return super().decode(stored)  # type: ignore[no-any-return]


class Float(_Number):
    """A float of 64 bits: `Fixed<f64>` of the Rust SDK."""

    kind: NumberKind = "f64"

    def __init__(self) -> None:
        super().__init__("<d")

    def encode(self, value: float) -> bytes:
        return self._layout.pack(value)

    def decode(self, stored: bytes) -> float:
        return super().decode(stored)  # type: ignore[no-any-return]


_WIDTHS = {"s64": (8, "q"), "f32": (4, "f"), "f64": (8, "d")}


class Numbers:
    """A vector of numbers of one kind, of any length: what updates change number by number."""

    def __init__(self, kind: NumberKind) -> None:
        self.kind = kind
        self._width, self._letter = _WIDTHS[kind]

    def encode(self, value: Sequence[float]) -> bytes:
        return struct.pack(f"<{len(value)}{self._letter}", *value)

    def decode(self, stored: bytes) -> list[Any]:
        count, rest = divmod(len(stored), self._width)
        if rest:
            raise ValueError(f"a stored value of {len(stored)} bytes is no vector of {self.kind}")
        return list(struct.unpack(f"<{count}{self._letter}", stored))


class Struct:
    """A tuple of numbers by a format of Python's `struct`, little-endian without padding: `Struct("qd")` is `Fixed<(i64, f64)>` of the Rust SDK."""

    def __init__(self, layout: str) -> None:
        self._layout = struct.Struct("<" + layout)

    def encode(self, value: Sequence[Any]) -> bytes:
        return self._layout.pack(*value)

    def decode(self, stored: bytes) -> tuple[Any, ...]:
        try:
            return self._layout.unpack(stored)
        except struct.error as error:
            raise ValueError(f"a stored value does not decode: {error}") from None
