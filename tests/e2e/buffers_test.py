"""Buffers that forward writes and computes with: every schedule gives PyTorch's bits."""
import copy
import json
import unittest

import torch
import torch.nn as nn
from safetensors.torch import load_file, save_file
from torch.distributed.pipelining import pipe_split

from support import SGD, Case, export, pipewright, run_ranks


class Ranges(nn.Module):
    """Divides by the largest value seen so far, and subtracts a moving mean."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("largest", torch.full((), 1e-3))
        self.register_buffer("means", torch.zeros(2, 6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("late", torch.zeros(()))  # the first two calls do not change it
        self.register_buffer("mixing", torch.eye(6))
        self.register_buffer("order", torch.arange(6))

    def forward(self, x):
        y = self.a(x)
        self.largest.copy_(torch.maximum(self.largest, y.detach().abs().max()))
        self.calls += 1
        self.late.add_((self.calls > 2) * 0.1)
        y = torch.tanh(y / self.largest) * (1 + self.late)
        self.means[0].lerp_(y.detach().mean(0), 0.1)
        self.mixing.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        self.order.copy_(self.order.roll(1))
        y = torch.einsum("bi,ij->bj", y, self.mixing)[:, self.order]  # taken in lists
        y = torch.addcmul(y, self.largest, self.largest, value=1e-3)
        return x + self.b(y * (1 + self.means[0]) * self.means.cos()[1] - self.means[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Ranges() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Returned(nn.Module):
    """Returns buffers that forward writes, views of them, and memory that nothing writes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("means", torch.zeros(2, 6))
        self.register_buffer("fixed", torch.arange(6.0))

    def forward(self, x):
        y = self.a(x)
        early = self.means[0].view(2, 3)
        calls = self.calls.add_(1)
        means = self.means.lerp_(y.detach().mean(0), 0.1)
        turned = means.t()
        pipe_split()
        return {"y": self.b(y), "calls": calls, "means": means, "early": early, "turned": turned,
                "fixed": self.fixed, "again": calls, "weight": self.b.weight, "x": x}


class Watches(nn.Module):
    """Norms used only for their statistics: their results are unused."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6, affine=False)
        self.instance = nn.InstanceNorm1d(2, track_running_stats=True)

    def forward(self, x):
        y = torch.tanh(self.a(x))
        self.norm(y)
        self.instance(y.view(-1, 2, 3))
        return self.b(y)


class InAWeight(nn.Module):
    """A buffer that shares a parameter's memory follows it, and passes no gradient to it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("bias", self.b.bias.detach())

    def forward(self, x):
        return self.b(torch.tanh(self.a(x) * self.bias.sum()))


class Overlapping(nn.Module):
    """Buffers that are parts of others; one of the parts is written, one is never used."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        table, still = torch.randn(3, 6), torch.randn(4, 6)
        self.register_buffer("table", table)
        self.register_buffer("row", table[1])
        self.register_buffer("turned", table.t())
        self.register_buffer("still", still)
        self.register_buffer("column", still[:, 2])

    def forward(self, x):
        y = self.a(x) + self.turned[:, 0]
        self.table.mul_(0.9)
        self.row.add_(y.detach().mean(0))
        y = y * self.table.sum(0)
        pipe_split()
        return self.b(y) + self.column.sum()


class Buffers(Case):
    def test_a_buffer_in_a_parameters_memory(self):
        torch.manual_seed(0)
        model = InAWeight().train()
        torch.jit.script(model).save(str(self.path("in.pt")))
        torch.jit.trace(model, torch.randn(3, 6)).save(str(self.path("traced.pt")))
        save_file({"x": torch.randn(48, 6), "y": torch.randn(48, 6)}, self.path("data.safetensors"))
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "microbatches": 4, "microbatch_size": 3, "steps": 4}
        expected = self.train_pytorch(model, job)  # a copied buffer would have its own memory
        for file in ("in.pt", "traced.pt"):
            with self.subTest(file):
                package = self.compile(file, "in.pkg")
                ours = self.train(package, job, 1, False)
                self.assertEqual(ours.losses, expected.losses)

    def test_parts_of_others_are_saved_too(self):
        torch.manual_seed(0)
        model = Overlapping().train()
        export(model, torch.randn(3, 6), self.path("parts.pt2"))
        package = self.compile("parts.pt2", "parts.pkg", "--ranks", "2")
        save_file({"x": torch.randn(48, 6), "y": torch.randn(48, 6)}, self.path("data.safetensors"))
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "microbatches": 4, "microbatch_size": 3, "steps": 2}
        # In a file of weights, each buffer has its own memory, or parts are omitted.
        whole = {name: value.clone(memory_format=torch.contiguous_format)
                 for name, value in model.state_dict().items()}
        parts = {"row": "table", "turned": "table", "column": "still"}
        save_file(whole, self.path("whole.safetensors"))
        save_file({name: whole[name] for name in whole if name not in parts},
                  self.path("left_out.safetensors"), metadata=parts)
        expected = self.train_pytorch(model, job)
        packages = [package] + [
            self.compile("parts.pt2", file + ".pkg", "--ranks", "2", "--weights",
                         self.path(file + ".safetensors")) for file in ("whole", "left_out")]
        for package in packages:
            for body in ("autograd", "lists"):
                ours = self.train(package, {**job, "body": body}, 2, mpi=body == "lists")
                self.assert_same_run(ours, expected)
        Overlapping().load_state_dict(ours.weights)  # strict
        for file in ("whole", "left_out"):
            result = run_ranks(2, "eval", packages[0], self.write_job(job), "--steps", 1,
                               "--weights", self.path(file + ".safetensors"), mpi=False)
            self.succeed(result)

    def test_norms_whose_result_nobody_uses(self):
        torch.manual_seed(0)
        model = Watches().train()
        export(model, torch.randn(3, 6), self.path("watches.pt2"))
        torch.jit.script(model).save(str(self.path("watches.pt")))
        save_file({"x": torch.randn(48, 6), "y": torch.randn(48, 6)}, self.path("data.safetensors"))
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "microbatches": 4, "microbatch_size": 3, "steps": 4}
        expected = self.train_pytorch(copy.deepcopy(model), job)
        for file in ("watches.pt2", "watches.pt"):
            package = self.compile(file, "watches.pkg", "--split", "modules:norm,b")
            for body in ("autograd", "lists"):
                with self.subTest(file, body=body):
                    ours = self.train(package, {**job, "body": body}, 3, False)
                    self.assert_same_run(ours, expected)

    def test_each_microbatch_returns_its_own(self):
        torch.manual_seed(0)
        model, x = Returned().eval(), torch.randn(8, 6)
        export(copy.deepcopy(model), x[:2], self.path("returned.pt2"))
        traced = torch.jit.trace(copy.deepcopy(model), x[:2], strict=False, check_trace=False)
        traced.load_state_dict(model.state_dict())
        traced.save(str(self.path("returned.pt")))
        with torch.no_grad():
            parts = [{name: value.clone() for name, value in model(part).items()}
                     for part in x.chunk(4)]
        wanted = {name: torch.stack([part[name] for part in parts]) if not value.dim() else
                  torch.cat([part[name] for part in parts]) for name, value in parts[0].items()}
        save_file({"x": x}, self.path("in.safetensors"))
        for file, split in (("returned.pt2", "markers"), ("returned.pt", "modules:b")):
            package = self.compile(file, "returned.pkg", "--ranks", "2", "--split", split)
            names = json.loads((package / "manifest.json").read_text())["outputs"]
            for ranks, mpi in ((2, False), (2, True), (1, False)):
                if ranks == 1:
                    self.succeed(pipewright("conf", package, "--ranks", 1, "-o", self.path("one.json")))
                conf = ["--conf", self.path("one.json")] if ranks == 1 else []
                with self.subTest(file, ranks=ranks, mpi=mpi):
                    self.succeed(run_ranks(ranks, "infer", package, "--input",
                                           self.path("in.safetensors"), "-o",
                                           self.path("out.safetensors"), "--microbatches", 4, *conf,
                                           mpi=mpi))
                    found = load_file(self.path("out.safetensors"))
                    self.assert_same_tensors({name: found[name] for name in names}, {
                        name: wanted[key] for name, key in zip(names, wanted, strict=True)})

    def test_what_backward_keeps_of_them_is_of_its_microbatch(self):
        torch.manual_seed(0)
        model = Net().train()
        export(model, torch.randn(3, 6), self.path("net.pt2"))
        package = self.compile("net.pt2", "net.pkg", "--split", "children:layers")
        save_file({"x": torch.randn(48, 6), "y": torch.randn(48, 6)}, self.path("data.safetensors"))
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "schedule": "1f1b", "microbatches": 4,
               "microbatch_size": 3, "steps": 5, "body": "autograd"}
        expected = self.train_pytorch(copy.deepcopy(model), job)
        for ranks, stages, place, schedules in (
                (1, [0, 0, 0, 0], [0], ["gpipe"]), (2, [0, 0, 1, 1], [0, 1], ["gpipe", "1f1b", "zb1p"]),
                (2, [0, 1, 2, 3], [0, 1, 0, 1], ["interleaved"]),
                (2, [0, 1, 2, 3], [0, 1, 1, 0], ["zbv"])):
            conf = self.path("conf.json")
            conf.write_text(json.dumps({
                "module_to_stage_map": stages,
                "stage_to_rank_map": {str(s): [rank] for s, rank in enumerate(place)}}))
            for schedule in schedules:
                for changes in ({}, {"body": "lists"}, {"recompute": True}):
                    with self.subTest(ranks=ranks, schedule=schedule, **changes):
                        ours = self.train(package, {**job, "schedule": schedule, **changes}, ranks,
                                          False, conf)
                        self.assert_same_run(ours, expected)


if __name__ == "__main__":
    unittest.main()
