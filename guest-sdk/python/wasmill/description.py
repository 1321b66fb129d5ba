"""What a function says of itself: its name, tables and ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .codecs import Codec

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Table(Generic[T]):
    """A table of the function's own: one value a key, kept by the host."""

    name: str
    codec: Codec[T]
    schema_version: int = 1
    """Raise it when the encoding of values changes, and say by `migrates` how older ones are read."""
    open: bool = False
    """Other operators may look it up and change it, where the manifest says so, too."""
    ordered: bool = False
    """It can be scanned in the order of its keys."""
    versioned_ms: int | None = None
    """It keeps earlier values by event time, for this span behind each key's newest one."""
    migrates: Mapping[int, Callable[[bytes, bytes], T]] = field(default_factory=dict)
    """By schema version: makes the present value of a key and what that version has stored."""


@dataclass(frozen=True, eq=False)
class UsedTable(Generic[T]):
    """A table of another operator, by the name that the manifest's `uses` gives it. The codec is its owner's."""

    name: str
    codec: Codec[T]


@dataclass(frozen=True)
class Port:
    """A named output."""

    name: str


OUT = Port("out")
"""The output that every operator has."""


@dataclass(frozen=True)
class Description:
    """What a function says of itself. Name and version are for people."""

    name: str
    version: str
    tables: Sequence[Table[Any]] = ()
    uses: Sequence[UsedTable[Any]] = ()
    ports: Sequence[Port] = ()

    def migrate(self, table: str, version: int, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """Stored values of another schema version as the present one stores them."""
        for own in self.tables:
            if own.name == table and version in own.migrates:
                read = own.migrates[version]
                return [own.codec.encode(read(key, value)) for key, value in zip(keys, values, strict=True)]
        raise ValueError(f"values of table `{table}` in schema version {version} cannot be read")
