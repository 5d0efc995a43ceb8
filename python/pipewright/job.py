"""Jobs: everything that a run needs besides the package."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]


@dataclasses.dataclass
class Job:
    """The keys of docs/reference/job.md. None leaves a key to the program's default."""

    data: JSON
    loss: str | JSON | list[JSON]
    optimizer: JSON
    microbatches: int
    microbatch_size: int | None = None
    minibatch_size: int | None = None
    schedule: str | None = None
    steps: int | None = None
    accumulate: int | None = None
    partial: bool | None = None
    seed: int | None = None
    costs: str | None = None
    memory: str | int | None = None
    plan: str | None = None
    freeze: list[str] | None = None
    loss_scale: float | JSON | None = None
    validation: JSON | None = None
    accuracy: bool | None = None
    threads: int | None = None
    log_every: int | None = None
    save: str | None = None
    metrics: str | None = None
    tensorboard: str | None = None
    report: str | None = None
    checkpoint: JSON | None = None
    nan: str | None = None
    reduce: str | None = None
    buffers: str | None = None
    recompute: bool | JSON | None = None
    body: str | None = None
    matmul: str | None = None
    device: str | None = None
    tf32: bool | None = None
    check_shared: bool | None = None


def as_dict(job: Job | Mapping[str, Any]) -> JSON:
    if isinstance(job, Job):
        return {key: value for key, value in vars(job).items() if value is not None}
    return dict(job)


def read_json(file: pathlib.Path | str) -> Any:
    """Reads a JSON file that may have comments, such as a job or a conf."""
    parts = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.S)
    return json.loads(parts.sub(lambda part: part[1] or " ", pathlib.Path(file).read_text()))


def write(job: Job | Mapping[str, Any], file: pathlib.Path) -> JSON:
    """Writes a job file. Paths in `job` are relative to the working directory, as in Python."""
    content = absolute(as_dict(job))
    file.write_text(json.dumps(content, indent=2, default=encode) + "\n")
    return content


def encode(value: Any) -> Any:
    """Returns a path as text, and a number of numpy or torch as Python's. Raises TypeError for what a job cannot hold."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a job cannot hold a value of type {type(value).__name__}: name losses and optimizers "
                    "(loss=\"cross_entropy\"), and write data to files (pipewright.write_data)")


def absolute(job: JSON) -> JSON:
    """Returns the job with absolute paths, so that its file may be anywhere."""
    job = dict(job)
    for key in ("save", "metrics", "tensorboard", "report", "plan", "costs"):
        replace(job, key)
    if (schedule := str(job.get("schedule", ""))).endswith(".csv") or "/" in schedule:
        replace(job, "schedule")
    for key, inner in (("checkpoint", "to"), ("optimizer", "state_folder")):
        if isinstance(job.get(key), Mapping):
            job[key] = dict(job[key])
            replace(job[key], inner)
    if isinstance(job.get("data"), Mapping):
        job["data"] = absolute_data(job["data"])
    if isinstance(job.get("validation"), Mapping) and "data" in job["validation"]:
        job["validation"] = {**job["validation"], "data": absolute_data(job["validation"]["data"])}
    return job


def absolute_data(data: Mapping[str, Any]) -> JSON:
    data = dict(data)
    for key in ("tokens", "tensors", "plugin"):
        replace(data, key)
    if isinstance(data.get("arrays"), Mapping):
        data["arrays"] = dict(data["arrays"])
        for name in data["arrays"]:
            replace(data["arrays"], name)
    return data


def replace(object: JSON, key: str) -> None:
    """Makes the path, or the list of paths, at `key` absolute."""
    value = object.get(key)
    if isinstance(value, (list, tuple)):
        object[key] = [os.path.abspath(path) for path in value]
    elif value and isinstance(value, (str, os.PathLike)):  # "": none
        object[key] = os.path.abspath(value)
