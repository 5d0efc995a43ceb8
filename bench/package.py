"""Compiles a model of bench/models.py, with its data and job."""
import json
import os

import torch
from safetensors.torch import save_file

import models
from peer import LR
from processes import check_output

PLACES = {"loop": lambda s, ranks: s % ranks, "v": lambda s, ranks: min(s % (2 * ranks), 2 * ranks - 1 - s % (2 * ranks))}


def compile_model(build, folder, name, size, stages):
    """Compiles a package of `stages` modules and returns its path."""
    package = os.path.join(folder, f"{stages}.pkg")
    if not os.path.exists(package):
        model = models.build(name, size, stages).train()
        x, _ = models.batch(name, size, 1)
        archive = os.path.join(folder, f"{stages}.pt2")
        torch.export.save(torch.export.export(model, (x,), strict=False), archive)
        check_output([os.path.join(build, "pipewright"), "compile", archive, "-o", package])
        os.remove(archive)
    return package


def write_job(folder, name, size, microbatches, schedule, matmul="libtorch"):
    data = os.path.join(folder, f"data{microbatches}.safetensors")
    if not os.path.exists(data):
        x, y = models.batch(name, size, microbatches)
        save_file({"x": x, "y": y}, data)
    job = {"data": {"tensors": os.path.basename(data), "inputs": {"x": "x"}, "target": "y", "shuffle": False},
           "loss": "cross_entropy", "optimizer": {"type": "sgd", "lr": LR}, "schedule": schedule,
           "microbatches": microbatches, "microbatch_size": (models.SIZES[name][size] if isinstance(size, str) else size).batch,
           "threads": 1, "matmul": matmul}
    path = os.path.join(folder, f"{schedule}-{microbatches}-{matmul}.json")
    with open(path, "w") as file:
        json.dump(job, file)
    return path


def write_conf(folder, stages, ranks, place):
    """Writes a conf with one module per stage; with `place` "one", all modules are in one stage."""
    conf = {"module_to_stage_map": list(range(stages)),
            "stage_to_rank_map": {str(s): [PLACES[place](s, ranks)] for s in range(stages)}} if place != "one" else {
                "module_to_stage_map": [0] * stages, "stage_to_rank_map": {"0": [0]}}
    path = os.path.join(folder, f"conf-{stages}-{ranks}-{place}.json")
    with open(path, "w") as file:
        json.dump(conf, file)
    return path
