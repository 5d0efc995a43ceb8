"""Compares the ratios of the latest run with stored ones: python check.py STORED NEW (two summary.json).

A ratio is worse if its quartiles lie beyond the stored quartiles in the bad direction, by more than 3 %. Faster or slower
processors change times, not ratios; a disturbed run widens its own quartiles.
"""
import argparse
import json
import sys

# The compared ratios, and whether less is better.
LESS_IS_BETTER = {"ours/bound": True, "ours/our 1f1b": True, "split/whole backward": True, "peer/ours": False, "peak MiB": True,
                  "growth": True, "ours/limit": True, "ours/raw": True}
MARGIN = 1.03


BEST_AT_1 = "measured/predicted"


def worse(name, stored, new):
    if name == BEST_AT_1:
        away = [sorted(max(x, 1 / x) for x in three) for three in (stored, new)]
        return away[1][0] > away[0][2] * MARGIN
    if LESS_IS_BETTER[name]:
        return new[1] > stored[2] * MARGIN
    return new[2] * MARGIN < stored[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stored")
    parser.add_argument("new")
    options = parser.parse_args()
    with open(options.stored) as file:
        stored = json.load(file)
    with open(options.new) as file:
        new = json.load(file)
    compared = bad = 0
    for part, cases in new.items():
        if part == "tables":
            continue
        for case, ratios in cases.items():
            for name, value in ratios.items():
                old = stored.get(part, {}).get(case, {}).get(name)
                if (name != BEST_AT_1 and name not in LESS_IS_BETTER) or old is None or value is None:
                    continue
                compared += 1
                if worse(name, old, value):
                    bad += 1
                    print(f"worse: {part}, {case}: {name} {value[0]:.2f} ({value[1]:.2f}-{value[2]:.2f}), "
                          f"was {old[0]:.2f} ({old[1]:.2f}-{old[2]:.2f})")
    print(f"{compared} ratios compared, {bad} worse" if compared else
          "nothing to compare: the stored results have none of these parts; measure them with make bench")
    sys.exit(1 if bad or not compared else 0)


if __name__ == "__main__":
    main()
