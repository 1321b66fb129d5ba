"""Runs without Wasm: `python3 -m unittest`, or `pytest`."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "wasmill-sdk"))

from function import VISITS, SummariseVisits
from wasmill.testing import Harness, record


class SummariseVisitsTest(unittest.TestCase):
    def test_visits_are_counted_by_user_and_the_slowest_is_kept(self) -> None:
        harness = Harness(SummariseVisits)
        outcome = harness.process(
            [
                record("ada", {"page": "/", "milliseconds": 30}),
                record("bo", {"page": "/help", "milliseconds": 5}),
                record("ada", {"page": "/help", "milliseconds": 20}),
            ]
        )
        ada = {"count": 2, "slowest_page": "/", "slowest_milliseconds": 30}
        self.assertEqual(json.loads(outcome.texts()[2]), {"user": "ada", **ada})
        self.assertEqual(harness.state(VISITS, "ada"), ada)


if __name__ == "__main__":
    unittest.main()
