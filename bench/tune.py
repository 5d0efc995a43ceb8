"""Compares `pipewright tune` with a grid: every schedule × powers of two as microbatch counts × 1 or 2 ranks × bodies.

Each point of the grid trains once. Then the five fastest, the job as given, one PyTorch process and the tuned run train in
turn; only these rounds count. One PyTorch process has as many threads as there are cores and computes the whole batch at
once, except for convolutions, whose batch norm ties results to the microbatch: it then computes the job's microbatches.
Samples go to RESULTS/raw/.
"""
import json
import os
import re
import statistics
import subprocess
import tempfile

import torch

import command_line
import models
from package import write_job
from processes import ENVIRONMENT, check_output, cores, place_ranks, start_single
from report import show, spread

RANKS = (1, 2)
BODIES = ("autograd", "lists")
MODULES = {"mlp": 8, "gpt": 4, "conv": 4}
STEPS, WARMUP = {"tiny": 60, "small": 20, "medium": 6}, 6  # steps; during the first, modules choose how they compute
BEST = 5


def compile_package(build, folder, name, size):
    """Compiles a package whose batch can have any size, unless batch norm ties results to it."""
    package, archive = os.path.join(folder, "model.pkg"), os.path.join(folder, "model.pt2")
    model = models.build(name, size, MODULES[name]).train()
    x, _ = models.batch(name, size, 2)
    dynamic = None if name == "conv" else ({0: torch.export.Dim("batch", min=1, max=4096)},)
    x = x if dynamic else models.batch(name, size, 1)[0]
    torch.export.save(torch.export.export(model, (x,), strict=False, dynamic_shapes=dynamic), archive)
    check_output([os.path.join(build, "pipewright"), "compile", archive, "-o", package])
    return package


def schedules(build):
    """Returns the schedules that can run in a step of their own, as the program lists them."""
    text = subprocess.run([os.path.join(build, "pipewright"), "plan", "--schedule", "none", "--ranks", "2", "--microbatches",
                           "4"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    names = [name.strip() for name in text.rsplit(":", 1)[1].split(",")]
    return [name for name in names if " " not in name and name not in ("zb-auto", "pipedream", "pipedream-2bw")]


def write(path, content):
    with open(path, "w") as file:
        json.dump(content, file)
    return path


def make_conf(build, folder, modules, schedule, ranks):
    """Returns a conf for the schedule: modules in order, in as many stages as it has on these ranks."""
    if ranks == 1:
        return write(os.path.join(folder, "conf-1.json"),
                     {"module_to_stage_map": [0] * modules, "stage_to_rank_map": {"0": [0]}})
    plan = check_output([os.path.join(build, "pipewright"), "plan", "--schedule", schedule, "--ranks", str(ranks),
                         "--microbatches", "8"])
    rows = [row for row in plan.splitlines() if row and not row.startswith("#")]
    held = {}  # stage -> its ranks; microbatch i is on replica i
    forwards = sorted((int(microbatch), int(stage), rank) for rank, row in enumerate(rows)
                      for stage, microbatch in re.findall(r"(?:^|[,;(])(\d+)F(\d+)", row))
    for _, stage, rank in forwards:
        if rank not in held.setdefault(stage, []):
            held[stage].append(rank)
    stages = len(held)
    return write(os.path.join(folder, f"conf-{schedule}-{ranks}.json"),
                 {"module_to_stage_map": [m * stages // modules for m in range(modules)],
                  "stage_to_rank_map": {str(s): held[s] for s in range(stages)}})


class Refused(Exception):
    """A run that the program refuses."""


class Runs:
    """Trains jobs of one model, and returns milliseconds of a step."""

    def __init__(self, build, folder, package, size):
        self.build, self.folder, self.package, self.size = build, folder, package, size

    def step(self, job, conf, ranks, in_process=False):
        metrics = os.path.join(self.folder, "metrics.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        program = os.path.join(self.build, "pipewright-run")
        start = [program, "--in-process", str(ranks)] if ranks == 1 or in_process else \
            ["mpirun", *place_ranks(ranks), "-n", str(ranks), program]
        environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        done = subprocess.run([*start, "train", self.package, job, "--conf", conf, "--metrics", metrics, "--steps",
                               str(WARMUP + STEPS[self.size]), "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=environment)
        if done.returncode:
            raise Refused(f"{job} with {conf}: {done.stderr}")
        with open(metrics) as file:
            return 1e3 * statistics.median(json.loads(line)["seconds"] for line in list(file)[WARMUP:])


def grid(runs, given, modules, changes, names):
    """Yields (name, job, conf, ranks) of every point that the programs accept."""
    samples = given["microbatches"] * given["microbatch_size"]
    counts = [given["microbatches"]] if not changes else [1 << i for i in range(samples.bit_length()) if samples % (1 << i) == 0]
    for ranks in RANKS:
        for schedule in names if ranks > 1 else ["1f1b"]:
            try:
                conf = make_conf(runs.build, runs.folder, modules, schedule, ranks)
            except subprocess.CalledProcessError:
                continue
            for count in counts:
                for body in BODIES:
                    job = {**given, "schedule": schedule, "microbatches": count, "microbatch_size": samples // count,
                           "body": body}
                    name = f"{schedule}-{ranks}-{count}-{body}"
                    yield name, write(os.path.join(runs.folder, f"{name}.json"), job), conf, ranks


def tune(options, runs, job):
    """Tunes and returns (job, conf, ranks, in process, predicted milliseconds)."""
    out = os.path.join(runs.folder, "tuned")
    environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    subprocess.run([os.path.join(options.build, "pipewright"), "tune", runs.package, job, "--ranks", str(max(RANKS)), "-o",
                    out, "--budget", options.budget], check=True, stdout=subprocess.PIPE, env=environment)
    with open(os.path.join(out, "report.json")) as file:
        best = json.load(file)["candidates"][0]
    return (os.path.join(out, "job.json"), os.path.join(out, "conf.json"), best["ranks"], best["in_process"],
            1e3 * best["predicted"])


def compare(options, name, size):
    with tempfile.TemporaryDirectory() as folder:
        package = compile_package(options.build, folder, name, size)
        runs = Runs(options.build, folder, package, size)
        with open(write_job(folder, name, size, models.MICROBATCHES, "1f1b")) as file:
            given = json.load(file)
        given.pop("threads")
        job = write(os.path.join(folder, "job.json"), given)
        points, refused = {}, 0
        for point, *what in grid(runs, given, MODULES[name], name != "conv", options.schedules or schedules(options.build)):
            try:
                points[point] = (runs.step(*what), what)
            except Refused:
                refused += 1
        *tuned, predicted = tune(options, runs, job)
        turns = {point: what for point, (_, what) in sorted(points.items(), key=lambda p: p[1][0])[:BEST]}
        turns["as given"] = [job, make_conf(options.build, folder, MODULES[name], "1f1b", 2), 2]
        turns["tuned"] = tuned
        parts = models.MICROBATCHES if name == "conv" else 1
        single = start_single(len(cores()), ["--model", name, "--size", size])
        samples = {each: [] for each in [*turns, "one process"]}
        try:
            single.ask(f"steps {WARMUP} {parts}")
            for _ in range(options.repetitions):
                for each, what in turns.items():
                    samples[each].append(runs.step(*what))
                [answer] = single.ask(f"steps {STEPS[size] + 1} {parts}")
                ends = answer["ends"]
                samples["one process"].append(statistics.median(b - a for a, b in zip(ends, ends[1:])) / 1e3)
        finally:
            single.close()
    ratio = lambda other: spread([a / b for a, b in zip(samples["tuned"], samples[other])])
    best = min(list(turns)[:BEST], key=lambda each: statistics.median(samples[each]))
    median = statistics.median(samples["tuned"])
    row = (f"| {name} {size} | {median:.2f} | {show(ratio('as given'))} | {show(ratio(best))} ({best}) | "
           f"{show(ratio('one process'))} | {predicted / median:.2f} |")
    print(row, f"({len(points)} points, {refused} refused)", flush=True)
    return row, {"samples": samples, "grid": {point: ms for point, (ms, _) in points.items()}, "predicted": predicted,
                 "best": best}


def main():
    parser = command_line.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list(models.SIZES), choices=list(models.SIZES))
    parser.add_argument("--sizes", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--schedules", nargs="+", help="of the grid (default: all that can run)")
    parser.add_argument("--budget", default="5m", help="of each tune")
    options = command_line.parse(parser)
    raw = {"title": "Tuning", "samples": {}, "table": [
        "| model | tuned step, ms | ÷ as given | ÷ the grid's best | ÷ one PyTorch process | predicted ÷ measured |",
        "|---|---|---|---|---|---|"]}
    for name in options.models:
        for size in options.sizes:
            row, raw["samples"][f"{name} {size}"] = compare(options, name, size)
            raw["table"].append(row)
    write(os.path.join(options.results, "raw", "tune-all.json"), raw)


if __name__ == "__main__":
    main()
