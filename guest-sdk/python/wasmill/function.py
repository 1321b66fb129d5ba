"""What the author of a function writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from .description import Description
from .lookups import Wants
from .records import Record

if TYPE_CHECKING:
    from .context import Context


class Function:
    """A function over a stream of records.

    An instance may keep only what follows from its config: it is replaced by a fresh one after any failure. What should last belongs into a table.
    """

    description: ClassVar[Description]

    def init(self, config: Mapping[str, Any]) -> None:
        """Prepares an instance from the operator's `config`. A `ValueError` stops the job with its text: the config is at fault."""

    def prefetch(self, record: Record, wants: Wants) -> None:
        """Names what `process` will look up for this record, so that one call of the host's serves the whole batch. What it raises is ignored: `process` will meet it again."""

    def process(self, record: Record, context: Context) -> None:
        """Works on one record. All records of one key come to one instance, in order. `Reject` refuses the record."""
        raise NotImplementedError
