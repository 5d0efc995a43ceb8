"""Gradients of values used several times are added in PyTorch's order, wherever the model is cut."""
import copy
import json
import random
import sys
import unittest
from unittest import mock

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.distributed.pipelining import pipe_split

from support import SGD, Case, export, one_process, pipewright, token_job

STEPS = 4


def may_split():
    """Marks a cut that only test_random_cuts makes."""


class Stream(nn.Module):
    """A residual stream; `h` bypasses all blocks, and every other block uses it twice."""

    def __init__(self, low=False):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 8)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.low = low

    def linear(self, layer, x):
        if not self.low:
            return layer(x)
        return F.linear(x.bfloat16(), layer.weight.bfloat16()).float() + layer.bias

    def forward(self, x):
        h = y = torch.tanh(self.first(x))
        for i, block in enumerate(self.blocks):
            pipe_split()
            y = y + torch.tanh(self.linear(block, y)) * torch.sigmoid(h)
            may_split()
            if i % 2:
                y = y + torch.sin(h) * 0.3
                may_split()
        return self.last(y * torch.cos(h))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = F.silu(self.norm(x))
        may_split()
        return x + self.conv(y)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.down = nn.ModuleList([Residual(4), Residual(4)])
        self.middle = Residual(4)
        self.up = nn.ModuleList([Residual(4), Residual(4)])
        self.join = nn.ModuleList([nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)])

    def forward(self, x):
        x = self.enter(x)
        skips = []
        for down in self.down:
            skips.append(x)
            pipe_split()
            x = F.avg_pool2d(down(x), 2)
        pipe_split()
        x = self.middle(x)
        for join, up in zip(self.join, self.up):
            pipe_split()
            x = torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1)
            may_split()
            x = up(join(x))
        return self.leave(x)


class Refined(nn.Module):
    """Also returns its first guess, which the second module uses twice."""

    def __init__(self):
        super().__init__()
        self.guess, self.correct, self.again = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.tanh(self.guess(x))
        pipe_split()
        z = y + 0.1 * torch.tanh(self.correct(y))
        pipe_split()
        return y, z + torch.sin(self.again(z))


class Normed(nn.Module):
    """An operation that uses its operand several times, and a branch of a script that does the same."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 8)
        self.norm, self.loop = nn.RMSNorm(32), Loop()

    def forward(self, x):
        h = torch.tanh(self.first(x))
        n = self.norm(h)
        y = self.loop(h, n)
        return self.last(y) * torch.tanh(h.sum(1, keepdim=True))


class Loop(nn.Module):
    def forward(self, h, n):
        for _ in range(3):
            n = torch.tanh(n + h)
        return n


class Tied(nn.Module):
    """Each of three modules uses one matrix; the second one uses it twice."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.middle = nn.Linear(32, 32, bias=False)
        self.last.weight = self.middle.weight = self.first.weight

    def forward(self, x):
        x = torch.tanh(self.first(x))
        pipe_split()
        x = torch.tanh(self.middle(torch.tanh(self.middle(x))))
        pipe_split()
        return self.last(x)


class SecondName(nn.Module):
    """Here dropout and float() return `h` itself: one tensor with one gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 32), nn.Dropout(0.0), nn.Linear(32, 8)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        dropped, same = self.drop(h), h.float()
        pipe_split()
        y = torch.sin(h) * torch.sigmoid(dropped) + torch.cos(same) * h
        pipe_split()
        return self.last(y * torch.tanh(dropped) + torch.stack([same, h]).sum(0) * y)


class Order(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(5)
        save_file({"x": torch.randn(96, 8), "y": torch.randn(96, 8)}, cls.folder / "rows.safetensors")
        save_file({"x": torch.randn(48, 1, 8, 8), "y": torch.randn(48, 1, 8, 8)},
                  cls.folder / "images.safetensors")

    def job(self, data="rows.safetensors", **changes):
        return token_job(**{
            "data": {"tensors": data, "inputs": {"x": "x"}, "target": "y"}, "loss": "mse",
            "steps": STEPS, "optimizer": SGD, "microbatch_size": 6, **changes})

    def check(self, model, package, job, runs):
        """`runs`: (ranks, MPI, further job keys)."""
        before = copy.deepcopy(model.state_dict())
        theirs = self.train_pytorch(model, job)
        kept = [name for name, _ in model.named_parameters()]
        theirs.weights = {name: theirs.weights[name] for name in kept}
        for ranks, mpi, changes in runs:
            conf = self.path("conf.json")
            self.succeed(pipewright("conf", package, "--ranks", ranks, "-o", conf))
            ours = self.train(package, {**job, **changes}, ranks, mpi, conf)
            self.assert_learned(ours, before, kept)
            what = f"{package.name}, {ranks} ranks, {changes}: "
            self.assert_same_tensors(ours.gradients, theirs.gradients, what + "gradient of ")
            self.assert_same_tensors(ours.weights, theirs.weights, what)
            if isinstance(job["loss"], str):
                self.assert_same_run(ours, theirs, what)

    def packages(self, model, example, name, splits):
        export(model, example, self.path(f"{name}.pt2"))
        return [self.compile(f"{name}.pt2", f"{name}{i}.pkg", *(["--split", split] if split else []))
                for i, split in enumerate(splits)]

    def test_a_residual_stream_with_a_long_skip(self):
        for low in (False, True):
            model = Stream(low).train()
            first, *others = self.packages(model, torch.randn(2, 8), f"stream{low}",
                                           (None, "equal:2", "equal:3", "equal:5"))
            self.check(copy.deepcopy(model), first, self.job(), (
                (1, False, {}), (2, True, {"schedule": "gpipe"}), (3, False, {"body": "lists"}),
                (3, False, {"schedule": "zb-h1", "body": "autograd"}),
                (3, False, {"schedule": "zb-h1", "body": "lists", "steps": STEPS}),
                (2, False, {"recompute": True}),
                (2, False, {"schedule": "interleaved", "body": "autograd"})))
            for package in others:
                self.check(copy.deepcopy(model), package, self.job(), ((2, False, {}),))

    def test_a_value_with_a_second_name(self):
        model = SecondName().train()
        package, other = self.packages(model, torch.randn(2, 8), "names", (None, "equal:4"))
        self.check(copy.deepcopy(model), package, self.job(), (
            (3, False, {}), (3, False, {"body": "lists"}), (1, False, {"body": "autograd"})))
        self.check(copy.deepcopy(model), other, self.job(), ((2, False, {}),))

    def test_a_u_net(self):
        model = UNet().train()
        first, *others = self.packages(model, torch.randn(2, 1, 8, 8), "unet",
                                       (None, "equal:3", "equal:4"))
        job = self.job("images.safetensors")
        self.check(copy.deepcopy(model), first, job, (
            (1, False, {}), (3, True, {}), (2, False, {"schedule": "zb-h1", "body": "autograd"}),
            (3, False, {"schedule": "zb-h1", "body": "lists"}), (3, False, {"recompute": True})))
        for package in others:
            self.check(copy.deepcopy(model), package, job, ((3, False, {}),))

    def test_random_cuts(self):
        choose, real = random.Random(4), pipe_split

        def split():
            if choose.random() < 0.4:
                real()

        for i, (model, example, data) in enumerate(3 * [
                (Stream(), torch.randn(2, 8), "rows.safetensors"),
                (UNet(), torch.randn(2, 1, 8, 8), "images.safetensors")]):
            model.train()
            here = sys.modules[__name__]
            with mock.patch.object(here, "may_split", split), \
                    mock.patch.object(here, "pipe_split", split if i < 4 else real):
                package, = self.packages(model, example, f"cuts{i}", (None,))
            modules = len(json.loads((package / "manifest.json").read_text())["modules"])
            job = self.job(data, schedule=choose.choice(["gpipe", "1f1b", "zb-h1"]),
                           optimizer={**SGD, "clip_norm": 0.1})
            runs = [(choose.randint(1, min(modules, 4)), False,
                     {"body": body, "recompute": choose.random() < 0.3})
                    for body in ("autograd", "lists")]
            self.check(copy.deepcopy(model), package, job, runs)

    def test_an_output_with_a_loss_that_a_later_module_uses(self):
        model = Refined().train()
        package, = self.packages(model, torch.randn(2, 8), "refined", (None,))
        job = self.job(loss=[{"type": "mse", "output": 0}, {"type": "mse", "output": 1, "weight": 0.5}])

        def loss_of(job, output, target):
            return F.mse_loss(output[0], target) + F.mse_loss(output[1], target) * 0.5

        with mock.patch.object(one_process, "loss_of", loss_of), mock.patch.object(
                one_process, "loss_count", lambda job, target: 1):
            self.check(model, package, job, ((1, False, {}), (3, False, {}), (2, True, {})))

    def test_operations_and_loops_that_use_their_operand_several_times(self):
        model = Normed().train()
        torch.jit.script(model).save(self.path("normed.pt"))
        package = self.compile("normed.pt", "normed.pkg", "--split", "modules:norm,loop,last")
        self.check(model, package, self.job(), ((1, False, {}), (4, False, {}), (2, True, {})))

    def test_a_tied_weight_that_is_sent(self):
        torch.manual_seed(6)
        model = Tied().train()
        save_file({"x": torch.randn(48, 32), "y": torch.randn(48, 32)}, self.path("wide.safetensors"))
        export(model, torch.randn(2, 32), self.path("tied.pt2"))
        package = self.compile("tied.pt2", "tied.pkg", "--shared", "transmit")
        self.check(model, package, self.job("wide.safetensors"), ((1, False, {}), (3, False, {})))


if __name__ == "__main__":
    unittest.main()
