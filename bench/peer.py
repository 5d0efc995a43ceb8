"""One rank of torch.distributed.pipelining on gloo, CPU. Answers requests on standard input with lines of JSON.

    steps SCHEDULE FRONT N   runs N training steps: {"begin", "ends": microseconds, "losses"}
    stages S                 runs the eager stages of 2 alone for S seconds: {"F", "B", "step": microseconds}

FRONT is `traced` (stages cut by `pipeline()`) or `eager` (`PipelineStage` around the modules themselves).
Started by bench/training_step.py with torch.distributed's environment variables.
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                          ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble, pipeline)

import models

CLASSES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B,
           "zb1p": ScheduleInterleavedZeroBubble, "zbv": ScheduleZBVZeroBubble}
LR = 0.01


def microseconds():
    return time.perf_counter() * 1e6


def own_stages(schedule, rank, ranks):
    if schedule in ("gpipe", "1f1b"):
        return [rank], ranks
    return [rank, 2 * ranks - 1 - rank if schedule == "zbv" else rank + ranks], 2 * ranks


class Pipeline:
    """A schedule with one kind of stage."""

    def __init__(self, options, schedule, front, x, y):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        own, count = own_stages(schedule, rank, ranks)
        model = models.build(options.model, options.size, count).train()
        cpu = torch.device("cpu")
        if front == "traced":
            pipe = pipeline(model, mb_args=(x[:len(x) // options.microbatches],))
            stages = [pipe.build_stage(i, cpu) for i in own]
        else:
            stages = [PipelineStage(model.stage(i, count), i, count, cpu) for i in own]
        self.parameters = [p for stage in stages for p in stage.submod.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=LR)
        self.schedule = CLASSES[schedule](stages[0] if len(stages) == 1 else stages,
                                          n_microbatches=options.microbatches, loss_fn=models.loss)
        self.arguments = (x,) if 0 in own else ()
        self.target = y if count - 1 in own else None

    def step(self):
        for p in self.parameters:
            p.grad = None
        losses = []
        last = {} if self.target is None else {"target": self.target, "losses": losses}
        self.schedule.step(*self.arguments, **last, return_outputs=False)
        self.optimizer.step()
        return [float(loss) for loss in losses]


class Stage:
    """The eager stage of this rank, without a pipeline."""

    def __init__(self, options, x, y):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        model = models.build(options.model, options.size, self.ranks).train()
        n = len(x) // options.microbatches
        self.module, self.input, self.target, self.microbatches = model.stage(self.rank, self.ranks), x[:n], y[:n], \
            options.microbatches
        with torch.no_grad():
            for i in range(self.rank):
                self.input = model.stage(i, self.ranks)(self.input)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0)

    def minibatch(self, times):
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.microbatches):
            x = self.input.detach().requires_grad_(self.rank > 0)
            start = microseconds()
            y = self.module(x)
            if self.rank == self.ranks - 1:
                y = models.loss(y, self.target)
            times["F"].append(microseconds() - start)
            gradient = torch.ones_like(y)
            start = microseconds()
            y.backward(gradient)
            times["B"].append(microseconds() - start)
        start = microseconds()
        self.optimizer.step()
        times["step"].append(microseconds() - start)

    def measure(self, seconds):
        times = {"F": [], "B": [], "step": []}
        end = microseconds() + seconds * 1e6
        while microseconds() < end:
            self.minibatch(times)
        return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--size", required=True)
    parser.add_argument("--microbatches", type=int, default=models.MICROBATCHES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    x, y = models.batch(options.model, options.size, options.microbatches)
    pipelines, alone = {}, None
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "stages":
                alone = alone or Stage(options, x, y)
                dist.barrier()
                answer = alone.measure(float(words[1]))
            else:
                key = words[1], words[2]
                if key not in pipelines:
                    pipelines[key] = Pipeline(options, *key, x, y)
                dist.barrier()
                answer = {"begin": microseconds(), "ends": []}
                for _ in range(int(words[3])):
                    losses = pipelines[key].step()
                    answer["ends"].append(microseconds())
                if losses:
                    answer["losses"] = losses
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        if "failed" in answer:
            os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
