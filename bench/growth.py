"""Measures how a step grows with microbatches, stages, ranks, modules and edges: it should be linear."""
import dataclasses
import json
import os
import statistics
import tempfile

import command_line
import models
from package import compile_model, write_conf, write_job
from processes import ENVIRONMENT, Workers, cores, start_ours
from report import show, spread
from training_step import step_times

SIZE = models.Size(16, 64, 4)  # a small MLP, so that costs besides arithmetic show


def measure(workers, steps):
    answer = workers.ask(f"steps {steps}")[0]
    return statistics.median(step_times(answer["ranks"])) / 1e3


def in_process(build, ranks, arguments):
    return Workers([[os.path.join(build, "pipewright-run"), "--stall-limit", "0", "--stall-report", "0", "--in-process", str(ranks),
                     *arguments]], [ENVIRONMENT])


def compare(cases, repetitions, unit):
    """cases: {x: (start, steps)}. Returns milliseconds by x, and time per unit relative to the first case's."""
    workers = {x: start() for x, (start, _) in cases.items()}
    try:
        for x, (_, steps) in cases.items():
            measure(workers[x], 3)
        samples = {x: [] for x in cases}
        for _ in range(repetitions):
            for x, (_, steps) in cases.items():
                samples[x].append(measure(workers[x], steps))
    finally:
        for w in workers.values():
            w.close()
    first = next(iter(cases))
    ratios = {x: spread([t / unit(x) / (f / unit(first)) for t, f in zip(samples[x], samples[first])]) for x in cases}
    return samples, ratios


def main():
    options = command_line.parse(command_line.parser(__doc__))
    raw = {"title": "Growth", "samples": {}, "ratios": {}, "table": [
        "| what grows | | step, ms | time a unit ÷ that of the first |", "|---|---|---|---|"]}

    def add(what, cases, unit):
        samples, ratios = compare(cases, options.repetitions, unit)
        raw["samples"][what] = samples
        for x, values in samples.items():
            raw["ratios"][f"{what} {x}"] = {"growth": ratios[x]}
            raw["table"].append(f"| {what} | {x} | {statistics.median(values):.2f} | {show(ratios[x])} |")
            print(raw["table"][-1], flush=True)

    def difference(text, name, what, few, many):
        """Adds the cost of one more unit, in one of the 16 microbatches."""
        times = raw["samples"][what]
        each = spread([(more - one) / (many - few) / 16 * 1e3 for one, more in zip(times[few], times[many])])
        raw["ratios"][name] = {"us": each}
        raw["table"].append(f"| {text} | | {show(each)} | |")
        print(raw["table"][-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        def arguments(stages, ranks, microbatches, place="loop"):
            return ["bench", compile_model(options.build, folder, "mlp", SIZE, stages),
                    write_job(folder, "mlp", SIZE, microbatches, "gpipe"), "--conf", write_conf(folder, stages, ranks, place),
                    "--on-request"]

        def crossing(edges):
            inner = os.path.join(folder, f"edges{edges}")
            os.mkdir(inner)
            size = dataclasses.replace(SIZE, edges=edges)
            return ["bench", compile_model(options.build, inner, "mlp", size, 2), write_job(inner, "mlp", size, 16, "gpipe"),
                    "--conf", write_conf(inner, 2, 2, "loop"), "--on-request"]

        add("microbatches, 2 ranks", {m: (lambda m=m: start_ours(options.build, 2, arguments(2, 2, m)), max(3, 256 // m))
                                      for m in (4, 16, 64, 256, 512)}, lambda m: m + 1)
        both = len(cores())
        # The total work is constant: more stages add only transfers and hand-overs.
        add(f"stages as threads, {both} cores, 16 microbatches", {n: (lambda n=n: in_process(options.build, n, arguments(n, n, 16)), 8)
                                                            for n in (2, 4, 8, 16)}, lambda n: 1)
        # The same with processes. The unit is the pipeline's length or, with fewer cores than ranks, the work per core.
        add(f"ranks, {both} cores, 16 microbatches",
            {n: (lambda n=n: start_ours(options.build, n, arguments(n, n, 16)), 8) for n in (1, 2, 4, 8, 16)},
            lambda n: max((16 + n - 1) / n, 16 / min(n, both)))
        edges = {n: (lambda n=n: start_ours(options.build, 2, crossing(n)), 8) for n in (1, 4, 16, 64)}
        add("values from one rank to the other, 16 microbatches", edges, lambda n: 1)
        difference("a value more, cut off, sent and joined again, with its gradient, us", "value", "values from one rank to the other, 16 microbatches", 1, 64)
        modules = {n: (lambda n=n: in_process(options.build, 1, arguments(n, 1, 16, "one")), 8) for n in (1, 2, 4, 8, 16)}
        add("modules in 1 stage, 16 microbatches", modules, lambda n: 1)
        difference("a module boundary, forward and backward, us", "module boundary", "modules in 1 stage, 16 microbatches", 1, 16)
        add("stages on 1 rank, 16 microbatches", {n: (lambda n=n: in_process(options.build, 1, arguments(n, 1, 16)), 8)
                                                  for n in (1, 2, 4, 8, 16)}, lambda n: 1)
    with open(os.path.join(options.results, "raw", "growth-all.json"), "w") as file:
        json.dump(raw, file)


if __name__ == "__main__":
    main()
