"""Measures a training step on 2 ranks of one thread each: ours, torch.distributed.pipelining, one PyTorch process, the bound.

All programs are started once for each model and then measured in turn, round after round; those that are not measured
sleep. Raw samples go to RESULTS/raw/; bench/report.py makes the table and picture.
"""
import json
import os
import re
import statistics
import tempfile
import time

import torch

import command_line
import models
from package import compile_model, write_conf, write_job
from processes import check_output, start_ours, start_peer, start_single

SCHEDULES = {"gpipe": (2, "loop"), "1f1b": (2, "loop"), "interleaved": (4, "loop"), "zb1p": (4, "loop"), "zbv": (4, "v")}
STEPS = {"tiny": 10, "small": 5, "medium": 2}  # consecutive; the first does not count
# In each round, measures our stages alone and right after them these steps, this many times: a
# shared machine changes its speed several times per second.
TURNS, ALONE_SECONDS = {"tiny": 8, "small": 6, "medium": 4}, {"tiny": 0.05, "small": 0.15, "medium": 0.6}
RANKS = 2


def fronts(schedule):
    """Returns the kinds of stages. PyTorch 2.13's traced stages only support the loop placement: ZB-V fails with them."""
    return ("eager",) if schedule == "zbv" else ("traced", "eager")


def busy_seconds():
    """Returns the processor time of the whole machine so far."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def step_times(ranks):
    """Returns the microseconds of each step but the first, between the ends of steps on the last rank."""
    ends = [max(step) for step in zip(*(rank["ends"] for rank in ranks))]
    return [b - a for a, b in zip(ends, ends[1:])]


class Simulator:
    def __init__(self, build, folder):
        self.program, self.folder = os.path.join(build, "pipewright"), folder

    def plan(self, package, job, conf):
        return check_output([self.program, "plan", package, job, "--conf", conf])

    def simulate(self, plan, stages, link, *options):
        """Returns the end time of each of several consecutive steps."""
        plan_file, costs_file, trace_file = (os.path.join(self.folder, name) for name in ("plan.csv", "costs.json", "trace.json"))
        with open(plan_file, "w") as file:
            file.write(plan)
        with open(costs_file, "w") as file:
            json.dump({"stages": stages, "link": link or {"latency": 0, "bandwidth": None}}, file)
        check_output([self.program, "simulate", plan_file, "--costs", costs_file, "--trace", trace_file, *options])
        ends = {}
        with open(trace_file) as file:
            for e in json.load(file)["traceEvents"]:
                if e["ph"] == "X":
                    step = e["args"]["step"]
                    ends[step] = max(ends.get(step, 0), e["ts"] + e["dur"])
        return [ends[step] for step in sorted(ends)]

    def step(self, plan, stages, link=None):
        """Returns the time of one of several consecutive steps."""
        ends = self.simulate(plan, stages, link, "--steps", "5")
        return (ends[4] - ends[2]) / 2

    def replayed(self, plan, stages, link, ranks, steps=None):
        """Returns the mean time of the steps that were run, from the first one's end on, with each action's measured time.
        If `steps` are more than that, the measured steps are repeated."""
        file_name = os.path.join(self.folder, "run.json")
        events = [{"ph": "X", "name": name, "tid": rank, "ts": 0, "dur": time, "args": {"step": step}}
                  for rank, steps in enumerate(ranks) for step, actions in enumerate(steps) for name, time in actions]
        with open(file_name, "w") as file:
            json.dump(events, file)
        ends = self.simulate(plan, stages, link, "--replay", file_name, "--steps", str(steps or len(ranks[0])))
        return (ends[-1] - ends[0]) / (len(ends) - 1)


def actions_alone(plan, stages):
    """Returns, for each rank and each minibatch that its stages ran alone, the time of each action of the plan."""
    rows = [re.findall(r"(?:^|,)((\d+)(F|B|I|W|STEP)\d*)(?=,|$)", row, re.M) for row in plan.splitlines()]
    rows = [row for row in rows if row]
    times = lambda s, kind: stages[int(s)]["step" if kind == "STEP" else kind]
    count = min(len(times(s, kind)) // [(t, k) for _, t, k in row].count((s, kind)) for row in rows for _, s, kind in row)
    ranks = []
    for row in rows:
        samples = {(s, kind): iter(times(s, kind)) for _, s, kind in row}
        ranks.append([[(name, next(samples[s, kind])) for name, s, kind in row] for _ in range(count)])
    return ranks


def medians(samples):
    return {action: statistics.median(times) for action, times in samples.items()}


def whole_and_halves(costs):
    """Returns I, W and B of a stage for which only the whole backward or its halves were measured."""
    if "B" in costs:
        return costs["B"] / 2, costs["B"] / 2, costs["B"]
    return costs["I"], costs["W"], costs["I"] + costs["W"]


def costs_alone(stages):
    """Returns means, because a step is as long as all actions together."""
    costs = []
    for stage in stages:
        m = {action: statistics.mean(times) for action, times in stage.items()}
        i, w, b = whole_and_halves(m)
        costs.append({"F": m["F"], "I": i, "W": w, "B": b, "step": m["step"]})
    return costs


def costs_eager(stages):
    return [{"F": m["F"], "I": m["B"] / 2, "W": m["B"] / 2, "B": m["B"], "step": m["step"]} for m in map(medians, stages)]


def costs_in_run(answer, stages, output):
    """Returns average times of the actions of measured steps: a step is as long as all of them together."""
    actions = {key: value["mean"] for rank in answer["ranks"] for key, value in rank["measured"]["actions"].items()}
    costs = []
    for s in range(stages):
        i, w, b = whole_and_halves({kind: actions[f"{s}{kind}"] for kind in "BIW" if f"{s}{kind}" in actions})
        costs.append({"F": actions[f"{s}F"], "I": i, "W": w, "B": b, "step": actions[f"{s}STEP"], "output": output})
    return costs


def boundary_bytes(name, size):
    s = models.SIZES[name][size]
    return 4 * s.width * s.batch * {"mlp": 1, "gpt": s.extent, "conv": s.extent ** 2}[name]


class Comparison:
    """The comparison for one model in one size."""

    def __init__(self, options, name, size, folder):
        self.options, self.name, self.size = options, name, size
        self.simulator = Simulator(options.build, folder)
        self.ours, self.plans, self.workers, self.onednn = {}, {}, [], None
        for schedule in options.schedules:
            stages, place = SCHEDULES[schedule]
            package = compile_model(options.build, folder, name, size, stages)
            job, conf = write_job(folder, name, size, models.MICROBATCHES, schedule), write_conf(folder, stages, RANKS, place)
            self.plans[schedule] = self.simulator.plan(package, job, conf)
            start = lambda job: self.add(start_ours(options.build, RANKS, ["bench", package, job, "--conf", conf, "--on-request"]))
            self.ours[schedule] = start(job)
            if schedule == "1f1b" and name != "conv" and torch.backends.mkldnn.is_available():
                self.onednn = start(write_job(folder, name, size, models.MICROBATCHES, schedule, "onednn"))
        chosen = ["--model", name, "--size", size]
        self.peer = self.add(start_peer(RANKS, chosen))
        self.single = self.add(start_single(RANKS, chosen))

    def add(self, workers):
        self.workers.append(workers)
        return workers

    def close(self):
        for workers in self.workers:
            workers.close()

    def steps(self, what, steps):
        """Runs steps of one program. Returns their times, and the rest of its answer."""
        program, *arguments = what
        busy, start = busy_seconds(), time.perf_counter()
        if program == "ours":
            answer = self.ours[arguments[0]].ask(f"steps {steps} each")[0]
        elif program == "onednn":
            answer = self.onednn.ask(f"steps {steps} each")[0]
        elif program == "peer":
            ranks = self.peer.ask(f"steps {' '.join(arguments)} {steps}")
            answer = {"ranks": ranks, "losses": next(r["losses"] for r in ranks if "losses" in r)}
        else:
            parts = models.MICROBATCHES if arguments[0] == "microbatches" else 1
            ranks = self.single.ask(f"steps {steps} {parts}")
            answer = {"ranks": ranks, "losses": ranks[0]["losses"]}
        answer["times"] = step_times(answer["ranks"])
        answer["busy_cores"] = (busy_seconds() - busy) / (time.perf_counter() - start)
        return answer

    def programs(self):
        for schedule in self.options.schedules:
            yield ("ours", schedule)
            for front in fronts(schedule):
                yield ("peer", schedule, front)
        if self.onednn:
            yield ("onednn", "1f1b")
        yield ("single", "microbatches")
        yield ("single", "whole")

    def warm_up(self):
        """Warms up, and checks that all compute the same: losses before any update, and after two."""
        expected = {}
        for what in self.programs():
            for steps in (1, 2):
                losses = self.steps(what, steps)["losses"]
                mean = sum(losses) / len(losses)
                # `single whole` continues with the model that `single microbatches` has trained.
                if what == ("single", "whole"):
                    continue
                if abs(mean - expected.setdefault(steps, mean)) > 1e-4 * abs(expected[steps]):
                    raise RuntimeError(f"{self.name} {self.size}: a loss of {what} is {mean}, not {expected[steps]}")

    def measure_round(self):
        steps = STEPS[self.size]
        entry = {"programs": {}, "turns": {}, "cut": {}, "link": {}}
        for schedule in self.options.schedules:
            halves = self.ours[schedule].ask(f"halves {ALONE_SECONDS[self.size]}")[0]
            entry["cut"][schedule], entry["link"][schedule] = [medians(stage) for stage in halves["stages"]], halves["link"]
            turns, onednn = [], []
            for _ in range(TURNS[self.size]):
                alone = self.ours[schedule].ask(f"stages {ALONE_SECONDS[self.size]}")[0]["stages"]
                ours = self.steps(("ours", schedule), steps)
                in_run = costs_in_run(ours, SCHEDULES[schedule][0], boundary_bytes(self.name, self.size))
                turns.append({"alone": costs_alone(alone), "in_run": in_run, "times": ours["times"],
                              "each_alone": actions_alone(self.plans[schedule], alone),
                              "actions": [rank["actions"] for rank in ours["ranks"]]})
                if schedule == "1f1b" and self.onednn:
                    onednn.append(self.steps(("onednn", schedule), steps))
            entry["turns"][schedule] = turns
            entry["programs"][f"ours {schedule}"] = {"times": [t for turn in turns for t in turn["times"]],
                                                     "busy_cores": ours["busy_cores"]}
            if onednn:
                entry["programs"]["onednn 1f1b"] = {**onednn[-1], "times": [t for a in onednn for t in a["times"]]}
            for front in fronts(schedule):
                entry["programs"][f"peer {schedule} {front}"] = self.steps(("peer", schedule, front), steps)
        entry["eager"] = costs_eager(self.peer.ask(f"stages {ALONE_SECONDS[self.size]}"))
        for parts in ("microbatches", "whole"):
            entry["programs"][f"single {parts}"] = self.steps(("single", parts), steps)
        for answer in entry["programs"].values():
            answer["median"] = statistics.median(answer["times"])
            for key in ("losses", "ranks"):
                answer.pop(key, None)
        return entry

    def simulate(self, entry):
        """Adds bounds and predictions of a round: those of each turn, and the median over the turns."""
        step = lambda schedule, *costs: self.simulator.step(self.plans[schedule], *costs)
        entry["bound"] = {}
        for schedule, turns in entry["turns"].items():
            for turn in turns:
                turn["mean"] = statistics.mean(turn["times"])
                turn["bound"] = step(schedule, turn["alone"])
                each = turn.pop("each_alone")
                turn["bound_each"] = self.simulator.replayed(self.plans[schedule], turn["alone"], None, each, len(each[0]) + 1)
                turn["predicted"] = step(schedule, turn["in_run"], entry["link"][schedule])
                turn["replayed"] = self.simulator.replayed(self.plans[schedule], turn["in_run"], entry["link"][schedule],
                                                           turn.pop("actions"))
            entry["bound"][schedule] = statistics.median(turn["bound"] for turn in turns)
        entry["bound_eager"] = {s: step(s, entry["eager"]) for s in self.options.schedules if SCHEDULES[s][0] == RANKS}


def compare(options, name, size):
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, name, size, folder)
        try:
            comparison.warm_up()
            rounds = [comparison.measure_round() for _ in range(options.repetitions)]
        finally:
            comparison.close()
        for entry in rounds:
            comparison.simulate(entry)
    over = lambda s: statistics.median(turn["mean"] / turn["bound"] for r in rounds for turn in r["turns"][s])
    print(f"{name} {size}: " + ", ".join(f"{s} {over(s):.2f}" for s in options.schedules) + " of the bound", flush=True)
    return rounds


def main():
    parser = command_line.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=list(models.SIZES), choices=list(models.SIZES))
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small", "medium"], choices=["tiny", "small", "medium"])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=list(SCHEDULES))
    options = command_line.parse(parser)
    folder = os.path.join(options.results, "raw")
    for name in options.models:
        for size in options.sizes:
            rounds = compare(options, name, size)
            with open(os.path.join(folder, f"training_step-{name}-{size}.json"), "w") as file:
                json.dump({"model": name, "size": size, "ranks": RANKS, "microbatches": models.MICROBATCHES,
                           "steps_a_round": STEPS[size], "rounds": rounds}, file)
                file.write("\n")


if __name__ == "__main__":
    main()
