"""Write functions for Wasmill in Python.

A function handles one record at a time, with typed state and any number of outputs::

    from wasmill import Context, Description, Function, Int, Record, Table

    COUNTS = Table("counts", Int())

    class WordCount(Function):
        description = Description("word-count", "0.1.0", tables=[COUNTS])

        def process(self, record: Record, context: Context) -> None:
            counted = context.state(COUNTS)
            count = counted.get(0) + 1
            counted.put(count)
            context.emit(record.key, str(count))

``build.py`` makes a component of the one function in a file. The package knows the contract (``wit/``), and nothing of the host behind it. ``wasmill.testing`` runs a function natively.
"""

from .codecs import Codec, Float, Int, Json, Numbers, Raw, Struct, Text
from .context import Context, Entry
from .description import OUT, Description, Port, Table, UsedTable
from .errors import HostError, NotYet, Reject
from .function import Function
from .lookups import Wants
from .records import Record, UpdateOutcome
from .updates import Ask, Update, items
from .vocabulary import COMMITTED, LIVE, Consistency, as_of, bounded_epochs, bounded_ms

__all__ = [
    "COMMITTED",
    "LIVE",
    "OUT",
    "Ask",
    "Codec",
    "Consistency",
    "Context",
    "Description",
    "Entry",
    "Float",
    "Function",
    "HostError",
    "Int",
    "Json",
    "NotYet",
    "Numbers",
    "Port",
    "Raw",
    "Record",
    "Reject",
    "Struct",
    "Table",
    "Text",
    "Update",
    "UpdateOutcome",
    "UsedTable",
    "Wants",
    "as_of",
    "bounded_epochs",
    "bounded_ms",
    "items",
]
