"""Changes of values that others own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .codecs import Codec
from .description import Port
from .vocabulary import Bytes, to_bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks for an update's outcome: a record on `port` with this key; `record.outcome()` reads it and gives `tag` back."""

    port: Port
    key: Bytes
    tag: Bytes = b""


@dataclass(frozen=True, slots=True)
class Update:
    """A change that a table's owner applies to whatever value it finds. Make one by `Update.add(…)` and the like."""

    kind: str
    operand: Any = None
    expected: Any = None

    @staticmethod
    def put(value: Any) -> Update:
        """Sets the value."""
        return Update("put", value)

    @staticmethod
    def put_if_absent(value: Any) -> Update:
        """Sets the value where there is none."""
        return Update("put-if-absent", value)

    @staticmethod
    def delete() -> Update:
        """Removes the value."""
        return Update("delete")

    @staticmethod
    def add(number: float | Sequence[float]) -> Update:
        """Adds, in tables of `Int`, `Float` and `Numbers`. Where there is no value, it becomes what is added."""
        return Update("add", number)

    @staticmethod
    def min(number: float | Sequence[float]) -> Update:
        """Keeps the lesser."""
        return Update("min", number)

    @staticmethod
    def max(number: float | Sequence[float]) -> Update:
        """Keeps the greater."""
        return Update("max", number)

    @staticmethod
    def append(item: Bytes, items_max: int) -> Update:
        """Appends an item and keeps the last `items_max`; `items` reads them from a `Raw` table."""
        return Update("append", (to_bytes(item), items_max))

    @staticmethod
    def compare_and_put(expected: Any, value: Any) -> Update:
        """Sets the value where it equals `expected`. `None` stands for no value, on either side."""
        return Update("compare-and-put", value, expected)

    def encoded(self, codec: Codec[Any]) -> tuple[str, int, bytes | None, bytes | None]:
        """The operation by its name in the contract, its number, the operand, and what is expected."""
        def encode(value: Any) -> bytes | None:
            return None if value is None else codec.encode(value)

        match self.kind:
            case "add" | "min" | "max":
                kind = getattr(codec, "kind", None)
                if kind is None:
                    raise TypeError(f"Update.{self.kind} is for tables of Int, Float and Numbers")
                return f"{self.kind}-{kind}", 0, codec.encode(self.operand), None
            case "append":
                item, items_max = self.operand
                return "append", items_max, item, None
            case "delete":
                return "delete", 0, None, None
            case "compare-and-put":
                return self.kind, 0, encode(self.operand), encode(self.expected)
            case _:
                return self.kind, 0, codec.encode(self.operand), None


def items(value: bytes | None) -> list[bytes]:
    """The items of a value that `Update.append` has made."""
    found, rest = [], value or b""
    while rest:
        length = int.from_bytes(rest[:4], "little")
        found.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    return found
