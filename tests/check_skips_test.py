"""Tests that check_skips.py finds the skips in a log of ctest."""
import unittest

from check_skips import find_skips

LOG = """\
1/3 Testing: plan
1/3 Test: plan
Command: "plan_tests"
Output:
----------------------------------------------------------
[ RUN      ] Conf.Reads
[       OK ] Conf.Reads (0 ms)
[ RUN      ] Zoo.All
/src/zoo_test.cc:12: Skipped
set PIPEWRIGHT_LONG=1
to run it

[  SKIPPED ] Zoo.All (3 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Zoo.All
2/3 Testing: e2e.gpt
Output:
test_tied (__main__.Gpt.test_tied) ... ok
test_long (__main__.Gpt.test_long) ... skipped 'set PIPEWRIGHT_LONG=1'
test_text (__main__.Gpt.test_text)
What it does. ... skipped "it's late"
3/3 Testing: e2e.digits
SKIPPED: no Python with torch
"""


class FindSkips(unittest.TestCase):
    def test_all_kinds(self):
        self.assertEqual(find_skips(LOG), [
            ("Zoo.All", "set PIPEWRIGHT_LONG=1 to run it"),
            ("e2e.gpt.test_long", "set PIPEWRIGHT_LONG=1"),
            ("e2e.gpt.test_text", "it's late"),
            ("e2e.digits", "no Python with torch"),
        ])


if __name__ == "__main__":
    unittest.main()
