"""Random models, cut and run in random ways, against the same file run by Python.

    random_test.py                  the seeds of `make test` (with PIPEWRIGHT_LONG=1: --minutes 60)
    random_test.py --seed 123       one seed: prints its model and keeps its files
    random_test.py --seeds 0:20000  a range
    random_test.py --minutes 60     as many new seeds as time permits; prints the first
"""
import argparse
import collections
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "examples/torchscript")]
try:
    import torch
    import programs
    import trial as trials
except ImportError as error:
    print(f"SKIPPED: no Python with torch ({error})")
    sys.exit(77)

SEEDS = 200  # number of seeds of `make test`: two minutes


def seeds_of(options):
    if options.seed is not None:
        return [options.seed]
    if options.seeds:
        return range(*map(int, options.seeds.split(":")))
    if not options.minutes:
        return range(SEEDS)
    first = random.randrange(10**8)
    print(f"seeds from {first} on, for {options.minutes} minutes", flush=True)
    return range(first, first + 10**7)


def check(seed, at, run, options):
    """Returns how it ended, in a few words, and whether that is a failure."""
    trial = trials.Trial(seed, at, run)
    trial.uncut = options.uncut
    failure = ""
    try:
        result = trial.check()
    except trials.NotTried as error:
        result = f"not tried: {error}"
    except trials.Refused as error:
        result = f"refused: {error}"
    except trials.Failure as error:
        result, failure = f"FAILED: {error.kind}", error.text
    except Exception as error:
        result, failure = f"FAILED: {type(error).__name__}", traceback.format_exc()
    if failure or options.seed is not None:
        print(f"\nseed {seed}: {result}\n{failure}\n{trial.about()}\n", flush=True)
    elif options.v:
        print(f"seed {seed}: {result}", flush=True)
    return result, bool(failure)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", metavar="FROM:TO")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--uncut", action="store_true", help="each model in one module")
    parser.add_argument("--many", type=pathlib.Path, help="the library of many_runs.cc")
    parser.add_argument("-v", action="store_true", help="a line a seed")
    options = parser.parse_args()
    chosen = options.seed, options.seeds, options.minutes
    if chosen == (None, None, None) and os.environ.get("PIPEWRIGHT_LONG"):
        options.minutes = 60
    torch.set_num_threads(1)
    torch._C._set_graph_executor_optimize(False)  # TorchScript operation by operation
    logging.disable(logging.CRITICAL)
    run, start = programs.Programs(options.many), time.monotonic()
    counts, failed = collections.Counter(), []
    for seed in seeds_of(options):
        if options.minutes and time.monotonic() - start > options.minutes * 60:
            break
        at = pathlib.Path(tempfile.mkdtemp(prefix="random_model_"))
        result, failure = check(seed, at, run, options)
        counts[result] += 1
        failed += [(seed, result)] if failure else []
        print(f"its files: {at}") if options.seed is not None else shutil.rmtree(at)
    run.close()
    print(f"\n{sum(counts.values())} models in {time.monotonic() - start:.0f} s")
    for result, count in counts.most_common():
        print(f"{count:6} {result}")
    for seed, result in failed:
        print(f"replay: {sys.executable} {sys.argv[0]} --seed {seed}    # {result}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
