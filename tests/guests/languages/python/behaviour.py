"""The behaviour guest in Python: see ../rust for what it does."""

from collections.abc import Mapping
from typing import Any

from wasmill import Context, Description, Function, Raw, Record, Reject, Table, UsedTable, Wants

COUNTS = Table("counts", Raw())
OTHERS = UsedTable("others", Raw())


class Behaviour(Function):
    description = Description("behaviour", "0.1.0", tables=[COUNTS], uses=[OTHERS])

    def init(self, config: Mapping[str, Any]) -> None:
        self.mode = config.get("mode")
        if self.mode not in ("count", "join", "fail", "echo"):
            raise ValueError("the config has no mode of count, join, fail, echo")

    def prefetch(self, record: Record, wants: Wants) -> None:
        if self.mode == "join":
            wants.lookup(OTHERS, record.key)

    def process(self, record: Record, context: Context) -> None:
        match self.mode:
            case "count":
                counted = context.state(COUNTS)
                count = str(int(counted.get(b"0")) + 1)
                counted.put(count)
                context.emit(record.key, count)
            case "join":
                found = context.lookup(OTHERS, record.key)
                context.emit(record.key, record.key + b"=" + (b"-" if found is None else found))
            case "fail" if record.value == b"reject":
                raise Reject("told to")
            case "fail" if record.value == b"trap":
                raise RuntimeError("told to trap")
            case "fail" if record.value == b"loop":
                while True:
                    pass
            case _:
                context.emit(record.key, record.value)
                context.count("echoed")
