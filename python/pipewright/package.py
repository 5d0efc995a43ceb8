"""Packages: models cut into modules, and what `pipewright` computes about them."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipewright import programs
from pipewright.errors import MissingPackage
from pipewright.exporting import export, split_text
from pipewright.job import JSON, Job, read_json
from pipewright.job import write as write_job

Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Module:
    """The smallest piece that the compiler cuts out."""

    name: str
    covers: list[str]
    inputs: list[str]
    outputs: list[str]
    held: list[JSON]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Modules that a schedule treats as one, and the ranks that run them."""

    modules: list[int]
    ranks: list[int]


@dataclasses.dataclass(frozen=True)
class Package:
    """A folder that `pipewright compile` wrote."""

    path: pathlib.Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", pathlib.Path(self.path))
        if not (self.path / "manifest.json").is_file():
            raise MissingPackage(f"{self.path} is not a package: it has no manifest.json "
                                 "(pipewright.compile makes packages)")

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def manifest(self) -> JSON:
        """The content of manifest.json; see docs/reference/package.md."""
        return json.loads((self.path / "manifest.json").read_text())

    @property
    def modules(self) -> list[Module]:
        names = [field.name for field in dataclasses.fields(Module)]
        return [Module(**{name: module[name] for name in names})
                for module in self.manifest["modules"]]

    @property
    def stages(self) -> list[Stage]:
        """The stages of the package's own conf, conf/mp_conf.json."""
        return stages_of(read_json(self.path / "conf/mp_conf.json"))

    @property
    def ranks(self) -> int:
        """The number of ranks in the package's own conf."""
        return rank_count(self.stages)

    def code_file(self, module: int) -> pathlib.Path:
        """Returns the file of a module's code, which may be edited."""
        return self.path / self.manifest["modules"][module]["code"]

    def code(self, module: int) -> str:
        """Returns the code of a module, as it runs."""
        return self.code_file(module).read_text()

    def conf(self, ranks: int, *, stages: int | None = None, placement: str | None = None,
             output: Path | None = None) -> JSON:
        """Returns a conf that groups the modules for `ranks` ranks; also writes it to `output`."""
        text = programs.run("pipewright", "conf", self.path, *programs.options(
            ranks=ranks, stages=stages, placement=placement, output=output))
        return json.loads(text if output is None else pathlib.Path(output).read_text())

    def plan(self, job: Job | Mapping[str, Any] | Path, *, conf: JSON | Path | None = None) -> str:
        """Returns the plan as text: the actions of every rank in one step."""
        with tempfile.TemporaryDirectory() as folder:
            return programs.run("pipewright", "plan", self.path,
                                job_file(job, pathlib.Path(folder)),
                                *programs.options(conf=conf_file(conf, pathlib.Path(folder))))

    def simulate(self, job: Job | Mapping[str, Any] | Path, costs: JSON | Path, *,
                 conf: JSON | Path | None = None, **options: Any) -> JSON:
        """Predicts times, idle time and memory of the job's plan from the given costs.

        `partition(output=FOLDER)` writes measured costs to FOLDER/costs.json.
        """
        plan = self.plan(job, conf=conf)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "plan.csv"
            file.write_text(plan)
            if isinstance(costs, Mapping):
                given, costs = costs, pathlib.Path(folder) / "costs.json"
                costs.write_text(json.dumps(given))
            return json.loads(programs.run("pipewright", "simulate", file, "--json",
                                           *programs.options(costs=costs, **options)))

    def profile(self, microbatch: int | None = None, **options: Any) -> JSON:
        """Measures the costs of the modules now; also writes them into the package."""
        options = {"output": self.path / "profile.txt", **options}
        return json.loads(programs.run("pipewright", "profile", self.path, "--json",
                                       *programs.options(microbatch=microbatch, **options)))

    def partition(self, *, output: Path | None = None, **options: Any) -> JSON:
        """Finds the best cut of the profiled package. `output`: folder for its confs and costs."""
        return json.loads(programs.run("pipewright", "partition", self.path, "--json",
                                       *programs.options(output=output, **options)))


def compile(model: torch.nn.Module | Path, output: Path | None = None, *,
            args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
            split: str | Sequence[str] | None = None, ranks: int | None = None,
            **options: Any) -> Package:
    """Cuts a model into a package. `output` is its folder (None: MODEL.pkg, or model.pkg).

    model: a file of torch.export.save or torch.jit.save, or a module, which is first exported with
        the example `args` and `kwargs`.
    split: names of submodules before which a module begins, or what --split takes.
    options: further options of `pipewright compile`: weights="w.safetensors", dtype="bfloat16",
        shared="transmit", force=True, ...
    """
    if isinstance(model, torch.nn.Module):
        if args is None and kwargs is None:
            raise TypeError("compile(model, args=(x,)): a module needs an example of its inputs, as args or kwargs")
        with tempfile.TemporaryDirectory() as folder:
            file = export(model, () if args is None else args, pathlib.Path(folder) / "model.pt2", kwargs=kwargs, split=split)
            return compile(file, output or "model.pkg", ranks=ranks, **options)
    if args is not None or kwargs is not None:
        raise TypeError(f"compile({os.fspath(model)!r}): a file was exported with its inputs: leave out args and kwargs")
    output = pathlib.Path(output or pathlib.Path(model).with_suffix(".pkg"))
    text = None if split is None else split_text(split)
    programs.run("pipewright", "compile", model,
                 *programs.options(output=output, split=text, ranks=ranks, **options))
    return Package(output)


def stages_of(conf: JSON) -> list[Stage]:
    modules = conf["module_to_stage_map"]
    return [Stage([module for module, at in enumerate(modules) if at == stage], ranks)
            for stage, ranks in sorted((int(key), ranks) for key, ranks in
                                       conf["stage_to_rank_map"].items())]


def rank_count(stages: list[Stage]) -> int:
    return 1 + max(rank for stage in stages for rank in stage.ranks)


def job_file(job: Job | Mapping[str, Any] | Path, folder: pathlib.Path) -> pathlib.Path:
    """Returns the file of a job; writes one into `folder` if the job is not a file already."""
    if isinstance(job, (str, os.PathLike)):
        return pathlib.Path(job)
    write_job(job, folder / "job.json")
    return folder / "job.json"


def conf_file(conf: JSON | Path | None, folder: pathlib.Path) -> Path | None:
    if not isinstance(conf, Mapping):
        return conf
    (folder / "conf.json").write_text(json.dumps(conf))
    return folder / "conf.json"
