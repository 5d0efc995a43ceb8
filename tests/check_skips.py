#!/usr/bin/env python3
"""Shows which tests of the last ctest run were skipped and why; fails if one was not allowed to be.

tests/allowed_skips.txt has a line for each kind of skip: the condition under which it is allowed
(`always`, `short`: PIPEWRIGHT_LONG is not set, `no-python-torch`: --no-python-torch was given), then a
regular expression for "test: reason".
"""
import argparse
import os
import pathlib
import re
import sys


def find_skips(log):
    """Returns [(test, reason)] from ctest's LastTest.log, for GoogleTest and unittest."""
    skips = []
    entry, test, reason = "", "", []
    for line in log.splitlines():
        if start := re.match(r"\d+/\d+ Testing: (\S+)", line):
            entry, reason = start[1], []
        elif re.search(r": Skipped$", line):  # GoogleTest: the reason follows
            reason = []
        elif skip := re.match(r"\[  SKIPPED \] (\S+) \(\d+ ms\)", line):
            skips.append((skip[1], " ".join(filter(None, reason)) or "no reason given"))
        elif re.match(r"\[ +[A-Z]+ +\]", line):
            reason = []
        elif start := re.match(r"(\w+) \(\S+\)( \.\.\. skipped (['\"])(.*)\3)?", line):  # unittest
            test = start[1]
            if start[2]:
                skips.append((f"{entry}.{test}", start[4]))
        elif skip := re.search(r" \.\.\. skipped (['\"])(.*)\1$", line):  # below its description
            skips.append((f"{entry}.{test}", skip[2]))
        elif skip := re.match(r"SKIPPED: (.*)", line):  # a whole ctest entry
            skips.append((entry, skip[1]))
        else:
            reason.append(line.strip())
    return skips


def read_allowed(path, conditions):
    allowed = []
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            condition, pattern = line.split(None, 1)
            if condition in conditions:
                allowed.append(re.compile(pattern))
    return allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--no-python-torch", action="store_true")
    options = parser.parse_args()
    conditions = {"always"}
    if not os.environ.get("PIPEWRIGHT_LONG"):
        conditions.add("short")
    if options.no_python_torch:
        conditions.add("no-python-torch")
    allowed = read_allowed(pathlib.Path(__file__).parent / "allowed_skips.txt", conditions)
    log = (options.build / "Testing/Temporary/LastTest.log").read_text(errors="replace")
    status = 0
    for test, reason in find_skips(log):
        text = f"{test}: {reason}"
        known = any(pattern.search(text) for pattern in allowed)
        print(f"skipped: {text}" + ("" if known else "  (not in tests/allowed_skips.txt)"))
        status |= not known
    sys.exit(status)


if __name__ == "__main__":
    main()
