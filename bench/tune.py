"""Compares `pipewright tune` with a grid: every schedule × powers of two as microbatch counts × 1 or 2 ranks × bodies.

Each point of the grid trains once. Then the five fastest, the job as given, one PyTorch process and the tuned run train in
turn; only these rounds count. What tune measured itself minutes earlier, divided by these rounds, shows how far off a
prediction may be because the machine has changed. One PyTorch process has as many threads as there are cores and
computes the whole batch at once, except for convolutions, whose batch norm ties results to the microbatch: it then
computes the job's microbatches.

--memory limits the memory of each rank instead: to what the weights and gradients of the job as given take, and a half,
three quarters and all of its activations. What a run takes is the peak of its tensors that `bench` counts, since processes
differ by several megabytes besides.

--cut gives tune the model file, which it cuts itself, instead of the package, whose modules it only groups.

--package compares packages of your own, each with its job, instead of the models of bench/models.py, and without a
PyTorch process. Rows and samples go to RESULTS/raw/, where they replace those of the same models, so that models can be
measured one at a time.
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
SIZES = ("tiny", "small", "medium")
SLOW = 4  # step time, divided by that of the job as given, from which the grid ends for a schedule and body
WARMUP = 6  # steps, during which modules choose how they compute
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


def has_replicas(conf):
    """Returns whether a stage has replicas, which keep different statistics of batch norm: the model is another one then."""
    with open(conf) as file:
        return any(len(ranks) > 1 for ranks in json.load(file)["stage_to_rank_map"].values())


class Refused(Exception):
    """A run that the program refuses."""


class Runs:
    """Trains jobs of one package, and returns milliseconds of a step."""

    def __init__(self, build, folder, package):
        self.build, self.folder, self.package, self.steps = build, folder, package, 6

    def last(self, seconds, milliseconds):
        """Makes each run take about this long after warm-up, with steps of about this length."""
        self.steps = min(max(round(1e3 * seconds / milliseconds), 4), 60)

    def step(self, job, conf, ranks, in_process=False, package=None):
        """Returns milliseconds of a step, of another package if it is given."""
        metrics = os.path.join(self.folder, "metrics.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        self.start("train", job, conf, ranks, in_process, package, "--metrics", metrics, "--steps", str(WARMUP + self.steps),
                   "--quiet")
        with open(metrics) as file:
            steps = [json.loads(line) for line in file]
        return 1e3 * statistics.median(step["seconds"] for step in steps[WARMUP:])

    def peak(self, job, conf, ranks, _in_process=False, package=None):
        """Returns the bytes that the tensors of the largest rank take. Threads free tensors of each other, which are
        counted wrongly, so ranks are processes."""
        figures = json.loads(self.start("bench", job, conf, ranks, False, package, "--steps", "1", "--json"))
        return max(rank["peak_bytes"] for rank in figures["ranks"])

    def start(self, command, job, conf, ranks, in_process, package, *options):
        program = os.path.join(self.build, "pipewright-run")
        start = [program, "--in-process", str(ranks)] if ranks == 1 or in_process else \
            ["mpirun", *place_ranks(ranks), "-n", str(ranks), program]
        environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        done = subprocess.run([*start, command, package or self.package, job, "--conf", conf, *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            raise Refused(f"{job} with {conf}: {done.stderr}")
        return done.stdout


def grid(options, runs, given, modules, changes):
    """Yields (name, job, conf, ranks) of every point that the programs accept."""
    samples = given["microbatches"] * given["microbatch_size"]
    counts = [given["microbatches"]] if not changes else [1 << i for i in range(samples.bit_length()) if samples % (1 << i) == 0]
    counts = [count for count in counts if count in (options.counts or counts)]
    for ranks in RANKS:
        for schedule in (options.schedules or schedules(runs.build)) if ranks > 1 else ["1f1b"]:
            try:
                conf = make_conf(runs.build, runs.folder, modules, schedule, ranks)
            except subprocess.CalledProcessError:
                continue
            if not changes and has_replicas(conf):
                continue
            for count in counts:
                for body in options.bodies:
                    job = {**given, "schedule": schedule, "microbatches": count, "microbatch_size": samples // count,
                           "body": body}
                    name = f"{schedule}-{ranks}-{count}-{body}"
                    yield name, write(os.path.join(runs.folder, f"{name}.json"), job), conf, ranks


def tune(options, runs, job, *more):
    """Tunes. Returns (job, conf, ranks, in process, package), and the candidates of the report."""
    out = os.path.join(runs.folder, "tuned")
    given = os.path.join(runs.folder, "model.pt2") if options.cut else runs.package
    environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run([os.path.join(options.build, "pipewright"), "tune", given, job, "--ranks", str(max(RANKS)), "-o", out,
                           "--force", "--budget", options.budget, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment)
    if done.returncode:
        raise Refused(done.stderr)
    with open(os.path.join(out, "report.json")) as file:
        candidates = json.load(file)["candidates"]
    best = candidates[0]
    return (os.path.join(out, "job.json"), os.path.join(out, "conf.json"), best["ranks"], best["in_process"],
            os.path.join(out, "model.pkg") if options.cut else None), candidates


def compare(options, label, runs, given, modules, changes, single):
    """Compares for one package and job. `single` returns milliseconds of a step of one PyTorch process, or is None."""
    job = write(os.path.join(runs.folder, "job.json"), given)
    as_given = [job, make_conf(runs.build, runs.folder, modules, given.get("schedule", "1f1b"), max(RANKS)), max(RANKS)]
    length = runs.step(*as_given)
    runs.last(0.3, length)
    points, refused, slow = {}, 0, set()
    for point, *what in grid(options, runs, given, modules, changes):
        schedule, _, body = point.rsplit("-", 2)
        if (schedule, body) in slow:  # more microbatches take even longer
            continue
        try:
            points[point] = (runs.step(*what), what)
        except Refused:
            refused += 1
            continue
        if points[point][0] > SLOW * length:
            slow.add((schedule, body))
    tuned, candidates = tune(options, runs, job)
    predicted, expected = (1e3 * candidates[0][key] for key in ("predicted", "expected"))
    earlier = 1e3 * statistics.median(candidates[0]["measured"] or [float("nan")])
    runs.last(1, length)
    turns = {point: what for point, (_, what) in sorted(points.items(), key=lambda p: p[1][0])[:BEST]}
    turns |= {"as given": as_given, "tuned": tuned}
    samples = {each: [] for each in turns}
    if single:
        samples["one process"] = []
    for _ in range(options.repetitions):
        for each, what in turns.items():
            samples[each].append(runs.step(*what))
        if single:
            samples["one process"].append(single(runs.steps))
    ratio = lambda other: show(spread([a / b for a, b in zip(samples["tuned"], samples[other])]))
    best = min(list(turns)[:BEST], key=lambda each: statistics.median(samples[each]))
    median = statistics.median(samples["tuned"])
    row = (f"| {label} | {median:.2f} | {ratio('as given')} | {ratio(best)} ({best}) | "
           f"{ratio('one process') if single else '-'} | {predicted / median:.2f} | {expected / median:.2f} | "
           f"{earlier / median:.2f} |")
    print(row, f"({len(points)} points, {refused} refused)", flush=True)
    return row, {"samples": samples, "grid": {point: ms for point, (ms, _) in points.items()}, "predicted": predicted,
                 "best": best, "candidates": candidates}


def compare_memory(options, name, size):
    """Compares under limits of memory. Yields rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.build, folder, compile_package(options.build, folder, name, size))
        with open(write_job(folder, name, size, models.MICROBATCHES, "1f1b")) as file:
            given = json.load(file)
        job = write(os.path.join(folder, "job.json"), given)
        as_given = [job, make_conf(options.build, folder, MODULES[name], "1f1b", max(RANKS)), max(RANKS)]
        runs.last(0.3, runs.step(*as_given))
        points = {}
        for point, *what in grid(options, runs, given, MODULES[name], name != "conv"):
            try:
                points[point] = (runs.step(*what), runs.peak(*what), what)
            except Refused:
                pass
        peak = runs.peak(*as_given)
        weights = [os.path.getsize(os.path.join(runs.package, "weights", file))
                   for file in os.listdir(os.path.join(runs.package, "weights"))]
        kept = 2 * sum(weights) / max(RANKS)  # weights and gradients; stages have the same number of modules
        for share in (0.5, 0.75, 1):
            limit = kept + share * (peak - kept)
            fitting = {point: ms for point, (ms, bytes, _) in points.items() if bytes <= limit}
            label = f"{name} {size}{', cut anew' if options.cut else ''}, {100 * share:.0f} % of activations: {limit / 1e6:.0f} MB"
            try:
                tuned, candidates = tune(options, runs, job, "--memory", str(int(limit)))
            except Refused as refusal:
                row = f"| {label} | refused | {len(fitting)} points of the grid fit |"
                print(row, str(refusal).strip().splitlines()[-2:], flush=True)
                yield row, {"fitting": fitting}
                continue
            best = sorted(fitting, key=fitting.get)[:3]
            samples = {each: [] for each in ["tuned", *best]}
            for _ in range(options.repetitions):
                for each in samples:
                    samples[each].append(runs.step(*(tuned if each == "tuned" else points[each][2])))
            used = runs.peak(*tuned)
            median = lambda each: statistics.median(samples[each])
            winner = min(best, key=median, default=None)
            ratio = show(spread([a / b for a, b in zip(samples["tuned"], samples[winner])])) if winner else "-"
            row = f"| {label} | {median('tuned'):.1f} ms, {used / limit:.2f} of the limit | {ratio} ({winner}) |"
            print(row, flush=True)
            yield row, {"samples": samples, "limit": limit, "used": used, "candidates": candidates}


def compare_model(options, name, size):
    """Compares for a model of bench/models.py."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.build, folder, compile_package(options.build, folder, name, size))
        with open(write_job(folder, name, size, models.MICROBATCHES, "1f1b")) as file:
            given = json.load(file)
        given.pop("threads")
        parts = models.MICROBATCHES if name == "conv" else 1
        process = start_single(len(cores()), ["--model", name, "--size", size])
        try:
            process.ask(f"steps {WARMUP} {parts}")

            def single(steps):
                [answer] = process.ask(f"steps {steps + 1} {parts}")
                return statistics.median(b - a for a, b in zip(answer["ends"], answer["ends"][1:])) / 1e3
            return compare(options, f"{name} {size}" + (", cut anew" if options.cut else ""), runs, given, MODULES[name], name != "conv", single)
        finally:
            process.close()


def compare_package(options, package, job):
    """Compares for a package and a job. The tensors of the job's data lie beside it."""
    with open(job) as file:
        given = json.load(file)
    if "tensors" in given["data"]:
        given["data"]["tensors"] = os.path.join(os.path.dirname(os.path.abspath(job)), given["data"]["tensors"])
    with open(os.path.join(package, "manifest.json")) as file:
        manifest = file.read()
    modules, norms = len(json.loads(manifest)["modules"]), "running_mean" in manifest
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.build, folder, os.path.abspath(package))
        return compare(options, os.path.basename(os.path.normpath(package)), runs, given, modules, not norms, None)


def main():
    parser = command_line.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list(models.SIZES), choices=list(models.SIZES))
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--memory", action="store_true", help="compare under limits of memory")
    parser.add_argument("--cut", action="store_true", help="let tune cut the model files itself")
    parser.add_argument("--package", nargs=2, action="append", metavar=("PACKAGE", "JOB"))
    parser.add_argument("--schedules", nargs="+", help="of the grid (default: all that can run)")
    parser.add_argument("--counts", nargs="+", type=int, help="of microbatches in the grid (default: all powers of two)")
    parser.add_argument("--bodies", nargs="+", default=BODIES, choices=BODIES, help="of modules in the grid")
    parser.add_argument("--budget", default="5m", help="of each tune")
    options = command_line.parse(parser)
    if options.cut and options.package:
        parser.error("--cut is for the models of bench/models.py, and --package names packages")
    table = ["| model | tuned step, ms | ÷ as given | ÷ the grid's best | ÷ one PyTorch process | predicted ÷ measured | "
             "expected ÷ measured | measured by tune ÷ measured |", "|---|---|---|---|---|---|---|---|"]
    if options.memory:
        table = ["| model, limit | tuned step and memory | ÷ the grid's best under the limit |", "|---|---|---|"]
    path = os.path.join(options.results, "raw", "tune-memory.json" if options.memory else "tune-all.json")

    def add(label, row, samples):
        raw = {"rows": {}, "samples": {}}
        if os.path.exists(path):
            with open(path) as file:
                raw = json.load(file)
        raw["rows"][label] = row
        raw["samples"][label] = samples
        raw["table"] = [*table, *raw["rows"].values()]
        write(path, raw)

    for package, job in options.package or []:
        add(os.path.basename(os.path.normpath(package)), *compare_package(options, package, job))
    for name in [] if options.package else options.models:
        for size in options.sizes:
            if not options.memory:
                add(f"{name} {size}" + (" cut" if options.cut else ""), *compare_model(options, name, size))
                continue
            for number, result in enumerate(compare_memory(options, name, size)):
                add(f"{name} {size} {number}" + (" cut" if options.cut else ""), *result)


if __name__ == "__main__":
    main()
