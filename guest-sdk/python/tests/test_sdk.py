"""The SDK over its host in memory."""

import unittest
from collections.abc import Mapping
from typing import Any

from wasmill import Ask, Context, Description, Float, Function, Int, Json, Numbers, Port, Raw, Record, Reject, Struct, Table, Text, Update, UsedTable, Wants, items
from wasmill.testing import Harness, outcome, record

COUNTS = Table("counts", Int())
SEEN = Table("seen", Json(), schema_version=2, migrates={1: lambda key, stored: {"key": key.decode(), "old": stored.decode()}})
PRICES = UsedTable("prices", Int())
SALES = UsedTable("sales", Float())
NOTES = UsedTable("notes", Raw())
LATE = Port("late")


class Everything(Function):
    """Does what the value says."""

    description = Description("everything", "1", tables=[COUNTS, SEEN], uses=[PRICES, SALES, NOTES], ports=[LATE])

    def init(self, config: Mapping[str, Any]) -> None:
        if "bad" in config:
            raise ValueError("the config is bad")

    def prefetch(self, record: Record, wants: Wants) -> None:
        if record.text.startswith("price "):
            wants.lookup(PRICES, record.text.removeprefix("price "))

    def process(self, record: Record, context: Context) -> None:
        match record.text.split(" "):
            case ["count", *then]:
                counted = context.state(COUNTS)
                counted.put(counted.get(0) + 1)
                context.count("counted")
                context.emit(record.key, str(counted.get()))
                if then == ["reject"]:
                    raise Reject("told to")
                if then == ["raise"]:
                    raise RuntimeError("told to raise")
            case ["forget"]:
                context.state(COUNTS).delete()
            case ["see"]:
                seen = context.state(SEEN)
                value = seen.get([])
                value.append(record.time)
                context.emit(record.key, str(seen.get()))
                seen.put(value)
            case ["price", key]:
                price = context.lookup(PRICES, key)
                if price is None:
                    raise Reject("it is not for sale")
                context.emit(record.key, str(price))
            case ["sell", price]:
                context.update(SALES, record.key, Update.add(float(price)), Ask(LATE, "asked", price))
            case ["note"]:
                context.update(NOTES, record.key, Update.append("n", 3))
                context.update(NOTES, record.key, Update.compare_and_put(None, b"x"))
                context.send(NOTES, "elsewhere", b"sent", time=None)
            case ["as-of"]:
                context.emit(record.key, str(context.lookup_as_of(PRICES, "tea", record.time or 0, wait=True)))
            case ["scan"]:
                context.emit(record.key, ",".join(key.decode() for key, _ in context.scan(PRICES, "a", "z", page=2)))
            case ["elsewhere"]:
                context.emit(record.key, b"", port=Port("nowhere"))
            case other:
                context.gauge("unknown", len(other))


class SdkTest(unittest.TestCase):
    def test_counts_add_up_over_batches_with_one_read_and_one_write_each(self) -> None:
        harness = Harness(Everything)
        self.assertEqual(harness.process([record(key, "count") for key in "abab"]).texts(), ["1", "1", "2", "2"])
        self.assertEqual(harness.process([record("a", "count")]).texts(), ["3"])
        self.assertEqual(harness.state(COUNTS, "a"), 3)
        self.assertEqual((harness.calls["get_many"], harness.calls["put_many"]), (2, 2))

    def test_a_refused_record_leaves_nothing_behind(self) -> None:
        harness = Harness(Everything)
        result = harness.process([record("a", "count"), record("a", "count reject"), record("a", "count")])
        self.assertEqual(result.texts(), ["1", "2"])
        self.assertEqual([(rejected.index, rejected.reason) for rejected in result.rejected], [(1, "told to")])
        self.assertEqual((harness.state(COUNTS, "a"), result.counts), (2, {"counted": 2}))

    def test_an_exception_is_logged_with_its_place_and_costs_its_record(self) -> None:
        harness = Harness(Everything)
        result = harness.process([record("a", "count"), record("a", "count raise"), record("a", "count")])
        self.assertEqual((result.texts(), [rejected.index for rejected in result.rejected]), (["1", "2"], [1]))
        self.assertEqual(result.rejected[0].reason, "RuntimeError: told to raise")
        level, told = result.log[0]
        self.assertEqual(level, "error")
        self.assertIn("test_sdk.py", told)
        self.assertNotIn("runner.py", told)

    def test_a_value_changes_only_when_it_is_put(self) -> None:
        harness = Harness(Everything)
        self.assertEqual(harness.process([record("a", "see", time=1), record("a", "see", time=2)]).texts(), ["None", "[1]"])
        self.assertEqual(harness.state(SEEN, "a"), [1, 2])

    def test_what_was_put_can_be_deleted_in_the_same_batch_and_again_put(self) -> None:
        harness = Harness(Everything)
        harness.process([record("a", "count"), record("a", "forget")])
        self.assertIsNone(harness.state(COUNTS, "a"))
        self.assertEqual(harness.process([record("a", "count"), record("a", "forget"), record("a", "count")]).texts(), ["1", "1"])
        self.assertEqual(harness.state(COUNTS, "a"), 1)

    def test_what_is_prefetched_costs_one_call(self) -> None:
        harness = Harness(Everything)
        harness.other(PRICES).put("tea", 3).put("cup", 5)
        result = harness.process([record("x", "price tea"), record("y", "price yacht"), record("z", "price cup")])
        self.assertEqual((result.texts(), harness.calls["lookup_many"]), (["3", "5"], 1))
        self.assertEqual(result.rejected[0].reason, "it is not for sale")

    def test_updates_and_sent_records_are_told_in_order(self) -> None:
        result = Harness(Everything).process([record("a", "sell 2.5", time=7), record("b", "note")])
        sold, noted, compared = result.updates
        self.assertTrue(sold.is_of(SALES, Update.add(2.5)) and noted.is_of(NOTES, Update.append("n", 3)))
        self.assertTrue(compared.is_of(NOTES, Update.compare_and_put(None, b"x")))
        self.assertEqual(sold.asked, ("late", b"asked", b"2.5"))
        self.assertEqual([(sent.key, sent.value, sent.time, sent.cause) for sent in result.sent], [(b"elsewhere", b"sent", None, 1)])
        self.assertEqual(outcome("asked", True, "2.5").outcome(), (True, b"2.5"))

    def test_a_lookup_that_waits_has_its_record_and_all_behind_it_wait(self) -> None:
        harness = Harness(Everything)
        harness.other(PRICES).put_at("tea", 10, 1).put_at("tea", 20, 2).reached(25)
        result = harness.process([record("a", "as-of", time=15), record("a", "as-of", time=30), record("a", "count")])
        self.assertEqual((result.texts(), result.waiting, result.rejected), (["1"], [1, 2], []))

    def test_a_scan_goes_through_pages(self) -> None:
        harness = Harness(Everything)
        for key in "dcbaz":
            harness.other(PRICES).put(key, 1)
        self.assertEqual(harness.process([record("x", "scan")]).texts(), ["a,b,c,d"])
        self.assertEqual(harness.calls["scan"], 2)

    def test_records_apart_see_the_state_as_the_call_found_it(self) -> None:
        harness = Harness(Everything, apart=True)
        self.assertEqual(harness.process([record("a", "count"), record("a", "count")]).texts(), ["1", "1"])

    def test_what_is_not_declared_is_named(self) -> None:
        result = Harness(Everything).process([record("x", "elsewhere")])
        self.assertIn("port `nowhere` is not in the function's description", result.rejected[0].reason)

    def test_a_config_that_does_not_fit_says_so(self) -> None:
        with self.assertRaisesRegex(ValueError, "the config is bad"):
            Harness(Everything, {"bad": True})

    def test_codecs_read_what_they_write(self) -> None:
        cases: list[tuple[Any, Any, bytes]] = [
            (Int(), -2, b"\xfe" + b"\xff" * 7),
            (Float(), 1.5, bytes(6) + b"\xf8\x3f"),
            (Numbers("f32"), [1.0, -2.0], b"\0\0\x80\x3f\0\0\0\xc0"),
            (Struct("qd"), (1, 0.0), b"\1" + bytes(15)),
            (Text(), "ö", b"\xc3\xb6"),
            (Raw(), b"\xff\0", b"\xff\0"),
            (Json(), {"ö": [1, None]}, '{"ö":[1,null]}'.encode()),
        ]
        for codec, value, stored in cases:
            with self.subTest(codec=type(codec).__name__):
                self.assertEqual(codec.encode(value), stored)
                self.assertEqual(codec.decode(stored), value)
        with self.assertRaises(ValueError):
            Int().decode(b"short")

    def test_items_and_migrations_are_read(self) -> None:
        self.assertEqual(items(b"\1\0\0\0a\0\0\0\0"), [b"a", b""])
        migrated = Everything.description.migrate("seen", 1, [b"k"], [b"v"])
        self.assertEqual(migrated, [b'{"key":"k","old":"v"}'])
        with self.assertRaises(ValueError):
            Everything.description.migrate("seen", 3, [], [])


if __name__ == "__main__":
    unittest.main()
