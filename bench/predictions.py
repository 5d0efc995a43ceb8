"""Compares a step of `train` with its prediction, made as in docs/guides/profile-and-partition.md.

In each round, `train` runs before and after `bench`, and both count, because a shared machine changes its speed.
"""
import json
import os
import statistics
import tempfile

import command_line
import models
from package import PLACES, compile_model, write_job
from processes import check_output, place_ranks
from report import show, spread

RANKS = 2
SCHEDULES = {"gpipe": (2, "loop"), "1f1b": (2, "loop"), "interleaved": (4, "loop"), "zbv": (4, "v")}
STEPS = {"tiny": 200, "small": 40, "medium": 16}
WARMUP = 6  # steps, during which modules choose between autograd and lists


def run(build, program, *arguments):
    return check_output(["mpirun", *place_ranks(RANKS), "-n", str(RANKS), os.path.join(build, program), *arguments])


def step_time(build, folder, package, job, conf, steps):
    """Returns milliseconds: the mean without the highest and lowest tenth, after warm-up."""
    metrics = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    run(build, "pipewright-run", "train", package, job, "--conf", conf, "--set", f"metrics={metrics}", "--set", f"steps={steps}",
        "--save", os.path.join(folder, "trained.safetensors"), "--quiet")
    with open(metrics) as file:
        times = sorted(json.loads(line)["seconds"] * 1e3 for line in list(file)[WARMUP:])
    rest = len(times) // 10
    return statistics.mean(times[rest:len(times) - rest])


def makespan(build, plan, costs):
    return json.loads(check_output([os.path.join(build, "pipewright"), "simulate", plan, "--costs", costs, "--json"]))["makespan"] / 1e3


def cut(build, folder, package, stages, place):
    """Partitions by the profile. Returns the conf, and the costs derived from the profile alone."""
    out = os.path.join(folder, f"cut-{stages}-{place}")
    check_output([os.path.join(build, "pipewright"), "partition", package, "--stages", str(stages), "-o", out])
    with open(os.path.join(out, "mp_conf.json")) as file:
        conf = json.load(file)
    conf["stage_to_rank_map"] = {str(s): [PLACES[place](s, RANKS)] for s in range(stages)}
    path = os.path.join(out, "conf.json")
    with open(path, "w") as file:
        json.dump(conf, file)
    return path, os.path.join(out, "costs.json")


def measure(options, folder, name, size, package, schedule):
    """Returns the milliseconds of a step, and its two predictions, for each round."""
    build, steps = options.build, STEPS[size]
    conf, profile_costs = cut(build, folder, package, *SCHEDULES[schedule])
    job = write_job(folder, name, size, models.MICROBATCHES, schedule)
    plan, costs = os.path.join(folder, "plan.csv"), os.path.join(folder, "costs.json")
    check_output([os.path.join(build, "pipewright"), "plan", package, job, "--conf", conf, "-o", plan])
    rounds = []
    for _ in range(options.repetitions):
        before = step_time(build, folder, package, job, conf, steps)
        run(build, "pipewright-run", "bench", package, job, "--conf", conf, "--steps", str(max(5, steps // 2)), "--costs", costs)
        after = step_time(build, folder, package, job, conf, steps)
        rounds.append({"ms": (before + after) / 2, "bench": makespan(build, plan, costs),
                       "profile": makespan(build, plan, profile_costs)})
    return rounds


def main():
    parser = command_line.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list(models.SIZES), choices=list(models.SIZES))
    parser.add_argument("--sizes", nargs="+", default=["small", "medium"], choices=list(STEPS))
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=list(SCHEDULES))
    options = command_line.parse(parser)
    raw = {"title": "Predictions", "samples": {}, "ratios": {}, "table": [
        "| model | schedule | a step, ms | ÷ predicted by `bench --costs` | ÷ predicted by the profile alone |",
        "|---|---|---|---|---|"]}
    for name in options.models:
        for size in options.sizes:
            with tempfile.TemporaryDirectory() as folder:
                package = compile_model(options.build, folder, name, size, models.SIZES[name][size].blocks)
                run(options.build, "pipewright", "profile", package, "--microbatch-size", str(models.SIZES[name][size].batch))
                for schedule in options.schedules:
                    rounds = measure(options, folder, name, size, package, schedule)
                    by = {of: spread([r["ms"] / r[of] for r in rounds]) for of in ("bench", "profile")}
                    raw["samples"][f"{name} {size} {schedule}"] = rounds
                    raw["ratios"][f"{name} {size} {schedule}"] = {"measured/predicted": by["bench"],
                                                                  "measured/predicted by the profile": by["profile"]}
                    raw["table"].append(f"| {name} {size} | {schedule} | {statistics.median(r['ms'] for r in rounds):.1f} | "
                                        f"{show(by['bench'])} | {show(by['profile'])} |")
                    print(raw["table"][-1], flush=True)
    with open(os.path.join(options.results, "raw", "predictions-all.json"), "w") as file:
        json.dump(raw, file)


if __name__ == "__main__":
    main()
