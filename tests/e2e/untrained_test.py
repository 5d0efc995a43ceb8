"""Which weights have a gradient: of memory with several names, and of branches that are not taken."""
import unittest

import torch
from safetensors.torch import load_file
from torch import nn

from alone import AloneCase, Layers


class Buffer(Layers):
    """A buffer in the memory of a weight follows it and gives it no gradient."""

    one_memory = {"same", "b.weight"}

    def __init__(self):
        super().__init__()
        self.register_buffer("same", self.b.weight.detach())

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))) @ self.same)


class Frozen(Layers):
    one_memory = {"aaa", "b.weight"}

    def __init__(self):
        super().__init__()
        self.aaa = nn.Parameter(self.b.weight.data, requires_grad=False)  # comes first

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)) @ self.aaa)))


class Branch(Layers):
    """The weights of the branch that is not taken have a gradient of zeros: AdamW steps them."""

    one_memory = set()

    def __init__(self):
        super().__init__()
        self.d = nn.Linear(8, 8)

    def forward(self, x):
        x = torch.tanh(self.a(x))
        y = torch.cond(x.sum() > 1000, lambda x: self.d(x), lambda x: self.b(x), (x,))
        return self.c(torch.tanh(y))


class Operands(Layers):
    """Values that other modules make. `branch` does not give each of them a gradient."""

    one_memory = set()
    branch = staticmethod(lambda h, g: (g * 2, torch.ones_like(g)))

    def forward(self, x):
        h, g = torch.tanh(self.a(x)), torch.tanh(self.b(torch.cat([x, x[:, :2]], 1)))
        y = torch.cond(h.sum() > 1000, lambda h, g: (h * 2, g * 1), self.branch, (h, g))
        return self.c(torch.tanh(y[0]) * y[1])


class OneGiven(Operands):
    branch = staticmethod(lambda h, g: (torch.zeros_like(h) + g, g * 2))


class Detached(Operands):
    branch = staticmethod(lambda h, g: (h.detach() * 2, g.detach() * 2))


class Constant(Operands):
    branch = staticmethod(lambda h, g: (torch.ones_like(g), torch.ones_like(g)))


class Auxiliary(Operands):
    """The second result has no effect on the loss."""

    def forward(self, x):
        h, g = torch.tanh(self.a(x)), torch.tanh(self.b(torch.cat([x, x[:, :2]], 1)))
        y, _ = torch.cond(h.sum() > 1000, lambda h, g: (h * 3, g * 2), lambda h, g: (h * 2, g * 1), (h, g))
        return self.c(torch.tanh(y))


class TwiceInside(Layers):
    """An operand that the branch uses twice, and the model, too: one contribution of the branch."""

    one_memory = set()

    def forward(self, x):
        h = torch.tanh(self.a(x))
        y = torch.cond(h.sum() > 1000, lambda h: h * 2, lambda h: torch.sin(h) * 0.3 + h * h * h, (h,))
        return self.c(torch.tanh(self.b(y)) * h + torch.cos(h) * 0.7)


class Gradients(AloneCase):
    def check(self, make, script=False):
        expected = self.alone(make, script)
        for split in (1, 3):
            self.compile_model(make, split, script, ranks=min(split, 2))
            for changes in ({}, {"body": "autograd", "schedule": "zb-h1"}):
                with self.subTest(model=make.__name__, script=script, split=split, **changes):
                    self.succeed(self.run_job(ranks=min(split, 2), **changes))
                    trained = load_file(self.path("trained.safetensors"))
                    # A file of weights has one name of each memory.
                    missing = set(expected) - set(trained)
                    self.assertTrue(len(missing) <= 1 and missing <= make.one_memory, missing)
                    self.assert_same_tensors(trained, {name: expected[name] for name in trained})

    def test_names_that_are_not_trained(self):
        for make in (Buffer, Frozen):
            for script in (False, True):
                self.check(make, script)

    def test_branches_that_are_not_taken(self):
        for make in (Branch, Operands, OneGiven, Detached, Constant, Auxiliary, TwiceInside):
            self.check(make)


if __name__ == "__main__":
    unittest.main()
