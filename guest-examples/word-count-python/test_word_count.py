"""`python3 -m unittest` in this folder."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "guest-sdk" / "python"))

from wasmill.testing import Harness, record
from word_count import COUNTS, WordCount


class WordCountTest(unittest.TestCase):
    def test_a_line_becomes_its_words_in_lower_case(self) -> None:
        outcome = Harness(WordCount, {"step": "split"}).process([record("", "Tea, tea -- and TEA."), record("", "Über 7")])
        self.assertEqual([emitted.key.decode() for emitted in outcome.emitted], ["tea", "tea", "and", "tea", "über", "7"])

    def test_a_line_that_is_not_utf8_is_refused_alone(self) -> None:
        outcome = Harness(WordCount, {"step": "split"}).process([record("", b"one \xff"), record("", "two")])
        self.assertEqual(([rejected.index for rejected in outcome.rejected], len(outcome.emitted)), ([0], 1))

    def test_words_are_counted(self) -> None:
        harness = Harness(WordCount, {"step": "count"})
        outcome = harness.process([record("tea"), record("cup"), record("tea")])
        self.assertEqual([json.loads(text)["count"] for text in outcome.texts()], [1, 1, 2])
        self.assertEqual(harness.state(COUNTS, "tea"), 2)


if __name__ == "__main__":
    unittest.main()
