"""Loads trained weights back into the model."""
from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

import torch
from safetensors.torch import load_model

from pipewright import programs
from pipewright.pipelining import is_pipe, joined


def load_into(model: Any, path: str | os.PathLike[str]) -> Any:
    """Loads a file of trained weights, a checkpoint, or the newest in a folder of checkpoints.

    model: a module, or the argument of from_torch_pipelining(). Its names and those of the weights
        must be the same. Returns the model.
    """
    plain = isinstance(model, torch.nn.Module) and not is_pipe(model)
    module = model if plain else joined(model)[0]
    if not pathlib.Path(path).is_dir():
        load_model(module, path, strict=True)
        return model
    with tempfile.TemporaryDirectory() as folder:
        merged = pathlib.Path(folder) / "merged.safetensors"
        programs.run("pipewright", "weights", "merge", path, "-o", merged)
        load_model(module, merged, strict=True)
    return model
