"""Words of text files, counted: `../word-count` in Python. One component as two operators; `config.step` tells which it is."""

import json
import re
from collections.abc import Mapping
from typing import Any

from wasmill import Context, Description, Function, Int, Record, Table

# How often each word has come.
COUNTS = Table("counts", Int())


class WordCount(Function):
    """One step of the count."""

    description = Description("word-count", "0.1.0", tables=[COUNTS])

    def init(self, config: Mapping[str, Any]) -> None:
        self.step = config.get("step")
        if self.step not in ("split", "count"):
            raise ValueError("`config.step` is split or count")

    def process(self, record: Record, context: Context) -> None:
        if self.step == "split":
            for word in re.findall(r"[^\W_]+", record.text.lower()):
                context.emit(word, "")
        else:
            entry = context.state(COUNTS)
            count = entry.get(0) + 1
            entry.put(count)
            context.emit(record.key, json.dumps({"word": record.key_text, "count": count}, ensure_ascii=False))
