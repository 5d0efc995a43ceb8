"""Random models as source text: `write(seed, kind)` gives the text of an nn.Module called Model.

Every statement is tried on two batch sizes as it is written: so all sizes are known, and statements
that PyTorch refuses are never written. The statements are in operations.py, writes.py, indexing.py
and control.py.
"""
import random
import re

import torch

BATCHES = (4, 6)  # batch sizes of the two trials
MOST = 600  # numbers in a tensor

HEADER = """import torch
import torch.nn.functional as F
from torch import nn
from {} import pipe_split
"""


def is_finite(value):
    """Returns False also if PyTorch cannot read it: a view made under no_grad, written to since."""
    try:
        return bool(value.isfinite().all())
    except RuntimeError:
        return False


class Skip(Exception):
    """The statement does not fit here."""


class Scope:
    """The forward of a class that is being written."""

    def __init__(self, writer, name, arguments):
        """`arguments`: name -> its values in the two trials."""
        self.writer, self.name, self.choose = writer, name, writer.choose
        self.kind = writer.kind
        self.made, self.lines = [], []  # lines of __init__ and of forward
        self.arguments = list(arguments)
        self.names = list(arguments)
        self.parameters, self.buffers, self.layers = [], [], []
        self.used = []  # values that the outputs must use
        self.trials = []
        for i in range(2):
            module = torch.nn.Module()
            self.trials.append({"self": module, **writer.classes,
                                **{k: v[i] for k, v in arguments.items()}})

    def values(self, name):
        return [eval(name, trial) for trial in self.trials]

    def value(self, name):
        return eval(name, self.trials[0])

    def new(self, prefix="v"):
        self.writer.count += 1
        return f"{prefix}{self.writer.count}"

    def make(self, prefix, text):
        """Adds an attribute by its line in __init__, in which {} is its name; returns self.NAME."""
        name = "self." + self.new(prefix)
        line = text.format(name, name[5:])
        seed = self.choose.randrange(2**31)
        for trial in self.trials:
            torch.manual_seed(seed)
            exec(line, trial)
        self.made.append(line)
        return name

    def do(self, text, *targets):
        """Writes a statement that assigns `targets`, unless PyTorch refuses it."""
        for trial in self.trials:
            try:
                exec(text, trial)
            except Exception as error:
                raise Skip(f"{text}: {error}")
        for value in [v for name in targets for v in self.values(name)]:
            if isinstance(value, torch.Tensor):
                if value.numel() > MOST or value.numel() == 0 and self.choose.random() < 0.9:
                    raise Skip("too large or empty")
                if value.is_floating_point() and not is_finite(value):
                    raise Skip("not finite, or not to be read")
            elif not isinstance(value, (int, float)):
                raise Skip("of another type")
        self.lines += text.split("\n")
        if self.name == "Model":
            self.writer.paths += [m for m in re.findall(r"self\.(\w+)\(", text)]
        self.names += [name for name in targets if name not in self.names]

    def let(self, text):
        name = self.new()
        self.do(f"{name} = {text}", name)
        return name

    def pick(self, fits):
        """Returns a name whose value fits, more often a recent one."""
        names = [n for n in self.names if fits(self.value(n))]
        if not names:
            raise Skip("nothing fits")
        if self.choose.random() < 0.5:
            return self.choose.choice(names[-3:])
        return self.choose.choice(names)

    def tensor(self, fits=lambda t: True):
        return self.pick(lambda v: isinstance(v, torch.Tensor) and fits(v))

    def written(self):
        """Returns a tensor that may be written to, seldom an input."""
        inputs = self.arguments if self.choose.random() < 0.95 else []
        return self.pick(lambda v: isinstance(v, torch.Tensor) and v.dtype == torch.float32
                         and not any(v is self.value(n) for n in inputs))

    def float(self, fits=lambda t: True):
        return self.tensor(lambda t: t.dtype == torch.float32 and fits(t))

    def rows(self, *widths):
        """Returns a matrix with a row for each sample."""
        return self.pick(lambda v: isinstance(v, torch.Tensor) and v.dtype == torch.float32
                         and v.dim() == 2 and v.shape[0] == BATCHES[0] and v.shape[1] > 1
                         and (not widths or v.shape[1] in widths))

    def dim(self, name, below=None):
        dims = self.value(name).dim()
        return self.choose.randrange(-dims, dims) if dims else 0

    def fixed(self, name, dim):
        """Returns the size of a dimension that does not depend on the batch."""
        sizes = {v.shape[dim] for v in self.values(name)}
        if len(sizes) > 1:
            raise Skip("depends on the batch")
        return sizes.pop()

    def parameter(self, *sizes):
        old = [p for p in self.parameters if tuple(self.value(p).shape) == sizes]
        if old and self.choose.random() < 0.4:
            return self.choose.choice(old)
        text = ", ".join(map(str, sizes))
        name = self.make("w", "{} = nn.Parameter(torch.randn(" + text + ") * 0.4)")
        self.parameters.append(name)
        return name

    def layer(self, text, *sizes):
        """Returns a child module, sometimes an existing one."""
        old = [name for name, made in self.layers if made == text]
        if old and self.choose.random() < 0.3:
            return self.choose.choice(old)
        name = self.make("m", "{} = " + text)
        self.layers.append((name, text))
        return name

    def text(self, result):
        made = "".join(f"        {line}\n" for line in self.made)
        body = "".join(f"        {line}\n" for line in self.lines)
        arguments = ", ".join(
            name + (": int" if isinstance(self.value(name), int) else "")
            for name in self.arguments)
        return (f"class {self.name}(nn.Module):\n    def __init__(self):\n"
                f"        super().__init__()\n{made}\n    def forward(self, {arguments}):\n{body}"
                f"        return {result}\n")


def operations():
    import control, indexing, operations, writes  # each adds its statements; they import this file
    return operations.OPERATIONS


class Writer:
    def __init__(self, seed, kind, markers):
        self.choose = random.Random(seed)
        self.kind, self.markers = kind, markers
        self.count, self.texts, self.parts = 0, [], []
        self.classes = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn,
                        "pipe_split": lambda: None}
        self.paths = []  # paths of the model's submodules, in the order of their calls

    def statement(self, scope):
        fitting = [o for o in operations() if o.fits(self.kind)]
        for _ in range(30):
            chosen = self.choose.choices(fitting, [o.weight for o in fitting])[0]
            try:
                return chosen.write(scope)
            except Skip:  # keeps the lines that it wrote: each is valid by itself
                pass
        raise Skip("nothing fits")

    def part(self, scope):
        """Writes a submodule with its own class, called with values of `scope`."""
        if self.parts and self.choose.random() < 0.35:  # reuses one
            attribute, inputs, results = self.choose.choice(self.parts)
            given = []
            for like in inputs:
                given.append(scope.pick(lambda v: kind_of(v) == kind_of(like)))
        else:
            given = [scope.rows() for _ in range(self.choose.choice([1, 1, 2]))]
            if self.choose.random() < 0.3:
                given.append(scope.tensor())
            if self.choose.random() < 0.15:
                given.append(scope.pick(lambda v: type(v) is int))
            given = list(dict.fromkeys(given))
            inner = Scope(self, f"Part{len(self.parts)}",
                          {f"x{i}": scope.values(n) for i, n in enumerate(given)})
            inputs = [scope.value(n) for n in given]
            inputs = [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in inputs]
            for _ in range(self.choose.randint(1, 5)):
                self.statement(inner)
            made = [n for n in inner.names if n not in inner.arguments]
            if not made:
                raise Skip("computes nothing")
            results = list(dict.fromkeys([made[-1], *self.choose.sample(
                made, min(len(made), self.choose.choice([0, 0, 1, 2])))]))
            text = inner.text(", ".join(results))
            self.texts.append(text)
            exec(text, self.classes)
            name = "self." + scope.new("part")
            for i, trial in enumerate(scope.trials):
                instance = self.classes[inner.name].__new__(self.classes[inner.name])
                instance.__dict__ = inner.trials[i]["self"].__dict__
                setattr(trial["self"], name[5:], instance)
                trial[inner.name] = self.classes[inner.name]
            scope.made.append(f"{name} = {inner.name}()")
            self.parts.append((name, inputs, len(results)))
            attribute, results = name, len(results)
        targets = [scope.new() for _ in range(results)]
        scope.do(f"{', '.join(targets)} = {attribute}({', '.join(given)})", *targets)


def kind_of(value):
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)


def is_loss(values):
    return all(v.dim() == 0 and v.dtype == torch.float32 and v.requires_grad for v in values)


def is_rows(values):
    return values[0].shape[1:] == values[1].shape[1:] and all(
        v.dim() >= 1 and v.shape[0] == batch and v.is_floating_point() and v.requires_grad
        for v, batch in zip(values, BATCHES))


class Written:
    """text; inputs: name -> (dtype, sizes of a row); outputs: [("loss" | "rows" | "other")]."""


def write(seed, kind, markers=False):
    """`kind`: "export", "script" or "trace". `markers`: with pipe_split() between statements."""
    writer = Writer(seed, kind, markers)
    choose = writer.choose
    torch.manual_seed(seed)
    inputs = {"x": (torch.float32, (6,))}
    if choose.random() < 0.5:
        inputs["y"] = choose.choice([(torch.float32, (6,)), (torch.float32, (4,)),
                                     (torch.float32, (3, 4)), (torch.float64, (2,))])
    if choose.random() < 0.6:
        inputs["i"] = choose.choice([(torch.int64, ()), (torch.int64, (3,)), (torch.int64, (6,)),
                                     (torch.bool, (6,)), (torch.bool, ())])
    arguments = {name: [sample(choose, dtype, (batch, *row)) for batch in BATCHES]
                 for name, (dtype, row) in inputs.items()}
    scope = Scope(writer, "Model", arguments)
    w = scope.layer("nn.Linear(6, 6)")
    scope.let(f"torch.tanh({w}(x))")
    length = choose.randint(4, 14)
    for i in range(length):
        try:
            if choose.random() < 0.25:
                writer.part(scope)
            else:
                writer.statement(scope)
        except Skip:
            continue
        if markers and choose.random() < 0.3:
            scope.lines.append("pipe_split()")
    out = finish(scope)
    writer.texts.append(scope.text(out.text))
    out.text = HEADER.format("torch.distributed.pipelining" if kind == "export" else "markers")
    out.text += "".join("\n\n" + t for t in writer.texts)
    out.inputs, out.paths = inputs, list(dict.fromkeys(writer.paths))
    return out


def finish(scope):
    """Returns the outputs: the first one uses most of the unused values."""
    choose, out = scope.choose, Written()
    used = "\n".join(scope.lines)
    floats = [n for n in scope.names if isinstance(scope.value(n), torch.Tensor)
              and scope.value(n).is_floating_point() and scope.value(n).requires_grad
              and used.count(n) < 3 and choose.random() < 0.8] + scope.used
    main = scope.rows()
    for name in floats:
        try:
            main = scope.let(f"{main} + {name}.float().mean()" if choose.random() < 0.5 else
                             f"{main} + 0.1 * {name}.float().sum()")
        except Skip:
            pass
    if choose.random() < 0.3:
        main = scope.let(f"{main}.square().mean()")
    results = [main]
    for _ in range(choose.choice([0, 0, 1, 1, 2])):
        results.append(scope.pick(lambda v: isinstance(v, torch.Tensor) or type(v) is int))
    results = list(dict.fromkeys(results))
    choose.shuffle(results)
    out.kinds = []
    for name in results:
        values = scope.values(name)
        out.kinds.append(
            "other" if not isinstance(values[0], torch.Tensor) else
            "loss" if is_loss(values) else "rows" if is_rows(values) else "other")
    out.rows = [tuple(scope.value(n).shape[1:]) if k == "rows" else None
                for n, k in zip(results, out.kinds)]
    out.dtypes = [scope.value(n).dtype if k == "rows" else None
                  for n, k in zip(results, out.kinds)]
    out.text = ", ".join(results)
    return out


def sample(choose, dtype, sizes, kind="random"):
    """Returns a random tensor. `kind`: random, sorted, constant or repeated rows."""
    if dtype == torch.int64:
        value = torch.randint(0, 8, sizes)
    elif dtype == torch.bool:
        value = torch.rand(sizes) < 0.6
    else:
        value = torch.randn(sizes, dtype=dtype)
    if kind == "sorted":
        value = value.sort(0)[0]
        if value.dim() > 1 and choose.random() < 0.5:
            value = value.flatten(1).sort(1)[0].view(value.shape)
    elif kind == "constant":
        value = value[:1, ...].expand(value.shape).clone()
        if choose.random() < 0.5:
            value = value.flatten()[:1].expand(value.numel()).reshape(value.shape).clone()
    elif kind == "repeated":
        value = value[torch.randint(0, max(1, sizes[0] // 2), (sizes[0],))]
    return value
