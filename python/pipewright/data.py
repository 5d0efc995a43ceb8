"""Writes samples from Python as files that a job reads."""
from __future__ import annotations

import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save_file

from pipewright.job import JSON

Row = dict[str, torch.Tensor]
OWN_FILE = re.compile(r"part-\d{5,}\.safetensors")


def write_data(dataset: Iterable[Any], folder: str | os.PathLike[str], *,
               columns: Sequence[str] | None = None, inputs: Mapping[str, str] | None = None,
               target: str | None = None, file_bytes: int = 256 << 20,
               overwrite: bool = False) -> JSON:
    """Writes a torch Dataset, or a table of HuggingFace datasets, and returns the job's "data".

    columns: names of the elements of samples that are tuples ("x", "y"); of samples that are
        mappings, the names to write (None: all).
    inputs: the model's inputs and their columns (None: all columns but the target, by their names).
    target: the column that the loss takes.
    file_bytes: approximate size of each file, which is also what is held in memory at a time.

    overwrite: replaces the files of an earlier call.

    Without `overwrite`, the folder must be new or empty. Afterwards it holds all samples or, if the
    dataset cannot be written, what it held before.
    """
    folder = pathlib.Path(folder)
    place = folder.resolve()  # if it is a link, what it names is replaced
    check_folder(place, overwrite)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as beside:
        # The earlier data are not inside: an interrupt while they are put back would remove them.
        new, old = pathlib.Path(beside) / "new", pathlib.Path(f"{beside}.old")
        new.mkdir()
        files: list[str] = []
        for piece in pieces(samples(dataset, columns), file_bytes):
            files.append(f"part-{len(files):05}.safetensors")
            save_file(piece, new / files[-1])
        if not files:
            raise ValueError("the dataset has no samples")
        names = list(piece)
        for name in [*(inputs or {}).values(), *([target] if target else [])]:
            if name not in names:
                raise ValueError(f"there is no column {name!r}; the dataset has {', '.join(names)}")
        check_folder(place, overwrite)
        try:
            if place.exists():
                place.rename(old)
            new.rename(place)
        finally:
            if old.exists():  # put back, or removed together with `beside`
                old.rename(new if place.exists() else place)
    if inputs is None:
        inputs = {name: name for name in names if name != target}
    data: JSON = {"tensors": [str((folder / file).absolute()) for file in files],
                  "inputs": dict(inputs)}
    return data | ({"target": target} if target else {})


def check_folder(folder: pathlib.Path, overwrite: bool) -> None:
    """Raises FileExistsError unless the folder may be replaced."""
    if not folder.is_dir():
        if folder.exists():
            raise FileExistsError(f"{folder} is a file: name a folder")
        return
    earlier = [file.name for file in folder.iterdir()]
    if foreign := [name for name in earlier if not OWN_FILE.fullmatch(name)]:
        raise FileExistsError(f"{folder} holds files that write_data did not write, such as {min(foreign)}: "
                              "name another folder")
    if earlier and not overwrite:
        raise FileExistsError(f"{folder} is not empty: name another folder, or pass overwrite=True to replace an "
                              "earlier write_data")


def samples(dataset: Iterable[Any], columns: Sequence[str] | None) -> Iterator[Row]:
    """Yields each sample as tensors by name."""
    for number, sample in enumerate(rows(dataset)):
        if isinstance(sample, Mapping):
            sample = {name: sample[name] for name in columns or sample}
        else:
            values = sample if isinstance(sample, (tuple, list)) else (sample,)
            if columns is None or len(columns) != len(values):
                raise ValueError(f"sample {number} is a tuple of {len(values)}: name its elements, "
                                 f"as columns={['x', 'y'][:len(values)]}")
            sample = dict(zip(columns, values))
        yield {name: tensor(value, f"sample {number}, {name!r}") for name, value in sample.items()}


def rows(dataset: Any) -> Iterator[Any]:
    """Iterates over samples. A torch Dataset with a length is indexed: it need not be iterable."""
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(len(dataset)))
    return iter(dataset)


def tensor(value: Any, where: str) -> torch.Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: {type(value).__name__} is not a tensor ({error})\n"
                         "  make numbers of it first, or leave it out: columns=[...]") from None


def pieces(samples: Iterable[Row], limit: int) -> Iterator[Row]:
    """Yields stacked samples, about `limit` bytes at a time."""
    held: list[Row] = []
    size, first = 0, None
    for number, row in enumerate(samples):
        kind = {name: (value.dtype, tuple(value.shape)) for name, value in row.items()}
        if first is None:
            first = kind
        if kind != first:
            raise ValueError(f"sample {number} is {kind}, sample 0 is {first}\n"
                             "  pad all samples to one length, and cast them to one dtype")
        # A dataset may reuse the memory of a sample for the next one.
        held.append({name: value.detach().clone() for name, value in row.items()})
        size += sum(value.nbytes for value in row.values())
        if size >= limit:
            yield stacked(held)
            held, size = [], 0
    if held:
        yield stacked(held)


def stacked(held: list[Row]) -> Row:
    return {name: torch.stack([row[name] for row in held]) for name in held[0]}
