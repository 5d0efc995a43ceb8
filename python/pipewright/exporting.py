"""Exports models to files that `pipewright compile` reads."""
from __future__ import annotations

import contextlib
import inspect
import os
import pathlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from pipewright.errors import ExportError

# Held while torch.nn.Module is patched.
PATCHING = threading.RLock()

# The record of an export that says where `pipewright compile` cuts it, unless told otherwise.
SPLIT_RECORD = "pipewright_split"

# Maps patterns in messages of torch.export to what the user can try.
CURES = {
    r"dynamic|specializ|onstraint": "a size that should be dynamic is fixed by the model: look for "
        "sizes that are written as numbers (x.view(2, ...) for x.view(x.shape[0], ...)), "
        "or export a fixed batch: dynamic_batch=False",
    r"DynamicCache|past_key_values": "an export cannot return a cache: set use_cache=False in the "
        "model's configuration",
    r"[dD]ata.?dependent|control flow|Could not guard": "the model branches on the content of a "
        "tensor: use torch.where or torch.cond, or torch._check(...) for a size that is known to "
        "be in range",
}
SCRIPT = ("write it by torch.jit.save(torch.jit.script(model), \"model.pt\") and give that file "
          "to pipewright.compile; docs/reference/models.md lists what can be read")


def export(model: torch.nn.Module, args: Sequence[Any], path: str | os.PathLike[str] = "model.pt2",
           *, kwargs: Mapping[str, Any] | None = None,
           split: str | Sequence[str] | None = None, dynamic_batch: bool = True,
           dynamic_shapes: Any = None, training: bool = True) -> pathlib.Path:
    """Writes `model`, called with the example `args` and `kwargs`, as a .pt2 file.

    split: where `pipewright compile` cuts it, unless told otherwise: names of submodules
        before which a module begins, or what --split takes ("equal:4", "balanced:4", ...). None: at
        pipe_split() in the model.
    dynamic_batch: the first dimension of every tensor with as many rows as the first tensor may
        have any size in a run. `dynamic_shapes`, as torch.export takes it, replaces this.
    training: exports in training mode. A model in evaluation mode is put into training mode for
        the export; in a model in training mode, submodules in evaluation mode stay so.

    Raises ExportError, which says what to try, if torch.export refuses the model.
    """
    kwargs = dict(kwargs or {})
    if isinstance(args, torch.Tensor):
        raise TypeError("export(model, args): args is a tuple of forward's arguments: (x,)")
    args = tuple(args)
    check_split(model, split)
    if dynamic_shapes is None and dynamic_batch:
        args, kwargs = pytree.tree_map(two_rows(args, kwargs), (args, kwargs))
        dynamic_shapes = batch_shapes(model, args, kwargs)
    if training:
        check_hooks(model)
    with (mode(model, training), no_autograd_functions(training), no_tensor_hooks(training),
          reads_of_training() as reads):
        try:
            program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes,
                                          strict=False)
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(refusal(error)) from error
    if training:
        check_memory(model, program)
        if reads:
            warn_of_branches(model, args, kwargs, dynamic_shapes, program)
    extra = {} if split is None else {SPLIT_RECORD: split_text(split)}
    path = pathlib.Path(path)
    unfinished = path.with_name(path.stem + f".{os.getpid()}.writing.pt2")
    try:
        torch.export.save(program, unfinished, extra_files=extra)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def check_split(model: torch.nn.Module, split: str | Sequence[str] | None) -> None:
    if split is None or isinstance(split, str):
        return
    names = {name for name, _ in model.named_modules() if name}
    if not split:
        raise ExportError("split names no submodule\n  None cuts at pipe_split() in the model")
    # "A@1" is the second call of submodule A.
    if missing := [name for name in split if name.partition("@")[0] not in names]:
        raise ExportError(f"split names submodules that the model lacks: {', '.join(missing)}\n"
                          f"  its submodules: {', '.join(sorted(names))}")


def split_text(split: str | Sequence[str]) -> str:
    return split if isinstance(split, str) else "modules:" + ",".join(split)


def rows(args: Any, kwargs: Any) -> int | None:
    """Returns the size of the first dimension of the first tensor that has one."""
    return next((value.shape[0] for value in pytree.tree_leaves((args, kwargs))
                 if isinstance(value, torch.Tensor) and value.dim()), None)


def two_rows(args: Any, kwargs: Any) -> Callable[[Any], Any]:
    """Returns a function that repeats single rows: an export would treat a size of 1 as fixed."""
    def repeat(value: Any) -> Any:
        return torch.cat([value, value]) if (
            isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == 1) else value

    return repeat if rows(args, kwargs) == 1 else lambda value: value


def batch_shapes(model: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
    """Returns dynamic_shapes for torch.export in which the batch dimension is dynamic."""
    count, batch = rows(args, kwargs), torch.export.Dim("batch", min=1)

    def shape(value: Any) -> Any:
        batched = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == count
        return {0: batch} if batched else None

    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return pytree.tree_map(shape, dict(bound))


@contextlib.contextmanager
def mode(model: torch.nn.Module, training: bool) -> Iterator[None]:
    """Puts the model into a mode, and afterwards each submodule back into its own."""
    before = [(module, module.training) for module in model.modules()]
    if model.training != training:
        model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


@contextlib.contextmanager
def no_autograd_functions(training: bool) -> Iterator[None]:
    """Refuses custom torch.autograd.Functions, whose backward an export would lose."""
    original = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            raise ExportError(
                f"{cls.__module__}.{cls.__qualname__} is a torch.autograd.Function: an export "
                "records its forward alone, and would train with another gradient\n"
                "  write operations that have the gradient, as y + (z - y).detach(); or export "
                "with training=False, for inference")
        return original(cls, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)) if training else (
            contextlib.nullcontext()):
        yield


HOOKS = (": an export does not record hooks on gradients, and would train with other gradients\n"
         "  write operations that have the gradient, as 2 * x.detach() - x, which reverses it; or export with "
         "training=False, for inference")


def check_hooks(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            raise ExportError(f"the parameter {name} has a gradient hook" + HOOKS)
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise ExportError(f"{f'the submodule {name}' if name else 'the model'} has a backward hook" + HOOKS)


def check_memory(model: torch.nn.Module, program: torch.export.ExportedProgram) -> None:
    """Refuses tensors in the memory of a trained parameter that the file unites with it or copies."""
    def where(tensor: torch.Tensor) -> tuple[int, int, int] | None:
        """The storage, and the first and last byte in it."""
        if tensor.layout != torch.strided or not tensor.numel():
            return None
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        first, size = tensor.storage_offset(), tensor.element_size()
        return tensor.untyped_storage()._cdata, first * size, (first + last + 1) * size

    trained = [(name, parameter, where(parameter)) for name, parameter in model.named_parameters()
               if parameter.requires_grad]
    same: dict[Any, str] = {}
    for name, parameter, at in trained:
        other = same.setdefault((at, parameter.shape, parameter.stride()), name) if at else name
        if other != name:
            raise ExportError(f"the parameters {other} and {name} share memory: PyTorch trains two, the file would "
                              "hold one\n  make them one parameter in the model, or give each its own memory "
                              "(.clone())")
    names = [spec.target for spec in program.graph_signature.input_specs
             if spec.kind.name == "CONSTANT_TENSOR" or spec.kind.name == "BUFFER" and not spec.persistent]
    for name in names:
        held = program.constants.get(name)
        at = where(held) if isinstance(held, torch.Tensor) else None
        for other, _, place in trained:
            if at and place and at[0] == place[0] and at[1] < place[2] and place[1] < at[2]:
                raise ExportError(f"{name} shares the memory of the parameter {other}, and the file would hold a "
                                  "copy, which training does not change\n  use the parameter itself in forward "
                                  "(.detach()), or a persistent buffer")


@contextlib.contextmanager
def reads_of_training() -> Iterator[list[str]]:
    """Lists the files of code outside torch that reads `training` of a module."""
    reads: list[str] = []

    def getattribute(module: torch.nn.Module, name: str) -> Any:
        if name == "training":
            caller = sys._getframe(1)
            if not str(caller.f_globals.get("__name__")).startswith(("torch.", "pipewright.")):
                reads.append(caller.f_code.co_filename)
        return read(module, name)

    with PATCHING:
        before = vars(torch.nn.Module).get("__getattribute__")
        read = before or object.__getattribute__
        torch.nn.Module.__getattribute__ = getattribute  # type: ignore[method-assign]
        try:
            yield reads
        finally:
            if before:
                torch.nn.Module.__getattribute__ = before  # type: ignore[method-assign]
            else:
                del torch.nn.Module.__getattribute__


# Operators that return the values of their first argument, in the same sizes and dtype.
COPIES = {"aten.contiguous.default", "aten.clone.default", "aten.alias.default"}
# Operators that compute the same from the same arguments.
VIEWS = {"aten.reshape.default": "aten.view.default", "aten._unsafe_view.default": "aten.view.default"}


def warn_of_branches(model: torch.nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any,
                     program: torch.export.ExportedProgram) -> None:
    """Warns of a forward that computes other operations in evaluation mode. Dropout and batch norm change their
    mode in a run."""
    def operations(program: torch.export.ExportedProgram) -> list[str]:
        """One text each, without the flags of dropout and batch norm, which a run sets."""
        counters = {spec.arg.name for spec in program.graph_signature.input_specs
                    if str(spec.target).endswith("num_batches_tracked")}

        def counts(node: torch.fx.Node) -> bool:
            return bool(node.args) and getattr(node.args[0], "name", None) in counters

        calls = [node for node in program.graph.nodes if node.op == "call_function" and not counts(node)]
        # A copy is another tensor only to what writes in place.
        writes = any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in calls)
        same = {"aten.contiguous.default"} if writes else COPIES
        texts: list[str] = []
        places: dict[torch.fx.Node, str] = {}

        def text(value: Any) -> str:
            if isinstance(value, torch.fx.Node):
                return places.get(value, value.name)
            return "" if isinstance(value, bool) else str(value)

        for node in calls:
            target = str(node.target)
            if not writes:
                target = VIEWS.get(target, target)
            if "dropout" in target or target in same:
                places[node] = text(node.args[0])
                continue
            places[node] = f"%{len(texts)}"
            inputs = pytree.tree_leaves((node.args, node.kwargs))
            if "scaled_dot_product" in target:  # its dropout
                inputs = [value for value in inputs if not isinstance(value, float)]
            texts.append(" ".join([target, *map(text, inputs)]))
        return texts

    with mode(model, False):
        try:
            evaluated = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
        except Exception:
            evaluated = None
    if not evaluated or operations(evaluated) != operations(program):
        warnings.warn("forward computes other operations in evaluation mode (self.training), and the file holds those "
                      "of training: infer, eval and validation run them, too\n  export the model a second time with "
                      "training=False for these", stacklevel=3)


@contextlib.contextmanager
def no_tensor_hooks(training: bool) -> Iterator[None]:
    """Refuses gradient hooks that forward registers."""
    def register_hook(tensor: torch.Tensor, hook: Any) -> None:
        raise ExportError("forward calls register_hook" + HOOKS)

    with mock.patch.object(torch.Tensor, "register_hook", register_hook) if training else (
            contextlib.nullcontext()):
        yield


def refusal(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    cures = [cure for pattern, cure in CURES.items() if re.search(pattern, text)]
    lines = ["torch.export refuses the model: " + text, *(f"  {cure}" for cure in cures)]
    return "\n".join([*lines, "  " + ("or " if cures else "") + SCRIPT])
