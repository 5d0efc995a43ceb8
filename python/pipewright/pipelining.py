"""Imports pipelines of torch.distributed.pipelining."""
from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from pipewright.errors import ExportError
from pipewright.exporting import export
from pipewright.job import JSON
from pipewright.package import Package, compile

# Maps PyTorch's schedules to their names here, and to the placement of stages on ranks ("one": one
# stage per rank).
SCHEDULES = {
    "gpipe": ("gpipe", "one"), "1f1b": ("1f1b", "one"),
    "interleaved1f1b": ("interleaved", "loop"), "loopedbfs": ("looped-bfs", "loop"),
    "interleavedzerobubble": ("zb1p", "loop"), "zbvzerobubble": ("zbv", "v"),
    "dualpipev": ("dualpipev", "v"),
}


def from_torch_pipelining(pipe_or_stages: Any, example: Sequence[Any], schedule: Any,
                          n_microbatches: int, *, output: str | os.PathLike[str] = "model.pkg",
                          ranks: int | None = None) -> tuple[Package, JSON]:
    """Returns a package with one module per stage, and the job keys that PyTorch's schedule sets.

    pipe_or_stages: the result of torch.distributed.pipelining.pipeline(), or the modules of the
        stages in order, each of which takes what the previous one returns. The package's inputs are
        then named inputs_0, inputs_1, ... (a Pipe keeps its own names).
    example: the inputs of one microbatch, like mb_args of pipeline(). A Pipe takes microbatches of
        this size only; stages take any size.
    schedule: a class of torch.distributed.pipelining, or its name, as for PyTorch's
        get_schedule_class().
    ranks: number of ranks, for schedules with several stages per rank.

    The job still lacks data, loss and optimizer: {**job, "data": ..., "loss": ..., ...}.
    """
    example = tuple(example)
    name, placement = schedule_name(schedule)
    whole, prefix, count = joined(pipe_or_stages)
    ranks = rank_number(count, placement, ranks, name)
    with tempfile.TemporaryDirectory() as folder:
        call: dict[str, Any] = {"args": example}
        if is_pipe(pipe_or_stages):
            names = [node.name for node in whole.pipe.graph.find_nodes(op="placeholder")]
            call = {"args": (), "kwargs": dict(zip(names, example)), "dynamic_batch": False}
        file = export(whole, path=pathlib.Path(folder) / "model.pt2",
                      split=[f"{prefix}{stage}" for stage in range(1, count)] or None, **call)
        package = compile(file, output)
    if len(package.modules) != count:
        raise ExportError(f"{count} stages became {len(package.modules)} modules\n"
                          "  a stage without operations cannot be taken over: join it with another")
    if placement != "one":
        package.conf(ranks, stages=count, placement=placement,
                     output=package.path / "conf/mp_conf.json")
    size = next(value.shape[0] for value in example if isinstance(value, torch.Tensor))
    return package, {"schedule": name, "microbatches": n_microbatches, "microbatch_size": size}


def schedule_name(schedule: Any) -> tuple[str, str]:
    told = schedule if isinstance(schedule, str) else getattr(schedule, "__name__", None)
    if told is None:
        raise ExportError(
            f"the schedule is an object, {type(schedule).__name__}: its loss function is Python, "
            "which does not run in the pipeline\n"
            "  give its class, and name the loss in the job (docs/reference/job.md)")
    found = SCHEDULES.get(told.lower().removeprefix("schedule"))
    if not found:
        raise ExportError(f"unknown schedule {told}\n  known: "
                          f"{', '.join(SCHEDULES)}; others of pipewright: set \"schedule\" of the "
                          "job (docs/reference/schedules.md)")
    return found


def rank_number(stages: int, placement: str, ranks: int | None, schedule: str) -> int:
    if placement == "one":
        if ranks not in (None, stages):
            raise ExportError(f"{schedule} has one stage per rank: {stages} stages are not for "
                              f"{ranks} ranks")
        return stages
    if placement == "v" and ranks is None:
        ranks = stages // 2
    if ranks is None:
        raise ExportError(f"{schedule} has several stages per rank: give ranks=N")
    if stages % ranks or (placement == "v" and stages != 2 * ranks):
        raise ExportError(f"{stages} stages do not fit {ranks} ranks with {schedule}")
    return ranks


class Chain(torch.nn.Module):
    """Runs stages one after the other, as PyTorch's schedules call them."""

    def __init__(self, stages: Sequence[torch.nn.Module]):
        super().__init__()
        self.stages = torch.nn.ModuleList(stages)
        self.training = self.stages[0].training

    def forward(self, *inputs: Any) -> Any:
        for stage in self.stages:
            inputs = stage(*inputs) if isinstance(inputs, tuple) else stage(inputs)
        return inputs


class Split(torch.nn.Module):
    """Runs the stages of a Pipe, including values that skip stages."""

    def __init__(self, pipe: Any):
        super().__init__()
        self.pipe = pipe.split_gm

    def forward(self, **inputs: Any) -> Any:
        return torch.fx.Interpreter(self.pipe).run(*inputs.values())


def is_pipe(pipe_or_stages: Any) -> bool:
    return hasattr(pipe_or_stages, "split_gm")


def joined(pipe_or_stages: Any) -> tuple[torch.nn.Module, str, int]:
    """Returns all stages as one module, the prefix of its stages' names, and their number."""
    if is_pipe(pipe_or_stages):
        return Split(pipe_or_stages), "pipe.submod_pp_", pipe_or_stages.num_stages
    stages = list(pipe_or_stages)
    strangers = [type(stage).__name__ for stage in stages if not isinstance(stage, torch.nn.Module)]
    if strangers or not stages:
        raise ExportError("a Pipe, or a list of modules in order, is expected; found "
                          f"{', '.join(strangers) or 'no stage'}\n"
                          "  of a PipelineStage give its module: stage.submod")
    return Chain(stages), "stages.", len(stages)
