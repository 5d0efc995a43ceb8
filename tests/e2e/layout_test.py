"""Values at a cut that are permuted, repeated, in channels_last, or parts of other memory: PyTorch's
bits on any ranks."""
import copy
import json
import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.distributed.pipelining import pipe_split

from support import SGD, Case, export, pipewright, run_ranks


class Permuted(nn.Module):
    """Crosses cuts transposed, permuted and repeated; a view is one of the transposed values."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 33), nn.Linear(20, 15), nn.Linear(15, 8)
        self.norm = nn.LayerNorm(33)

    def forward(self, x):
        n = x.shape[0]
        h = self.norm(self.a(x)).transpose(1, 2)
        pipe_split()
        columns = h.permute(0, 2, 1).view(n, -1).sum(1)[:, None, None] / 500
        h = (h.softmax(1) * h.sum(2, keepdim=True) / 50).permute(1, 2, 0)
        pipe_split()
        h = self.b(h.sum(1).t()[:, :20])
        h = h[:, None].expand(n, 7, 15) * 1.5 + columns
        repeated = (h.sum(1) / 7)[:, None].expand(n, 5, 15)
        pipe_split()
        return self.c(repeated.softmax(2) + repeated.mean(1, keepdim=True)).sum(1) / 5


class Images(nn.Module):
    """Convolutions in channels_last; a value of one row and column, whose strides are free."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3)
        self.c, self.d = nn.Conv2d(12, 10, 1), nn.Linear(10, 4)
        self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(12)

    def forward(self, x):
        x = self.first(self.a(x.to(memory_format=torch.channels_last)))
        pipe_split()
        x = self.second(F.relu(self.b(x)))
        pipe_split()
        x = x.sum((2, 3), keepdim=True) / 50  # its gradient repeats one number
        pipe_split()
        return self.d(self.c(x).flatten(1))


class Parts(nn.Module):
    """Crosses cuts as slices, as overlapping windows, and with an offset into its memory; a gradient
    also comes back as a slice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 66), nn.Linear(9, 15), nn.Linear(49, 8)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        left, middle = h[:, :, :33], h[:, :, 40:49]
        windows, later = h.unfold(2, 5, 2), h.flatten(1)[:, 5:].t()[1:]
        pipe_split()
        left = left * left.sum(1, keepdim=True).sigmoid() + windows.mean((2, 3))[:, :, None]
        middle = self.b(middle).softmax(1)
        later = later.sum(0) / 500
        pipe_split()
        joined = torch.cat([left, middle * left.mean((1, 2), keepdim=True), h[:, :, 65:]], 2)
        pipe_split()
        return self.c(joined).sum(1) / 5 + later[:, None]


class Turned(nn.Module):
    """Images and their weights in channels_last, and a transposed matrix."""

    def __init__(self):
        super().__init__()
        self.images = Images().to(memory_format=torch.channels_last)
        self.w = nn.Parameter(torch.randn(60, 50).t() * 0.1)
        self.register_buffer("table", torch.randn(60, 4).t() * 0.1)

    def forward(self, x):
        y = self.images(x)
        pipe_split()
        return y + F.linear(x[:, 0, :5, :10].flatten(1) @ self.w, self.table)


class Layouts(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(0)
        cls.models = {"permuted": (Permuted().train(), (50, 12), (8,)),
                      "parts": (Parts().train(), (50, 12), (8,)),
                      "images": (Images().train(), (3, 14, 14), (4,))}
        for name, (model, sizes, target) in cls.models.items():
            export(copy.deepcopy(model), torch.randn(4, *sizes), cls.folder / f"{name}.pt2")
            cls.compile(f"{name}.pt2", f"{name}.pkg")
            save_file({"x": torch.randn(96, *sizes), "y": torch.randn(96, *target)},
                      cls.folder / f"{name}.safetensors")

    def job(self, name, **changes):
        return {"data": {"tensors": f"{name}.safetensors", "inputs": {"x": "x"}, "target": "y"},
                "loss": "mse", "optimizer": SGD, "schedule": "1f1b", "microbatches": 4,
                "microbatch_size": 3, "steps": 6, "threads": 1, **changes}

    def conf(self, name, ranks, **changes):
        path = self.path("conf.json")
        if changes:
            path.write_text(json.dumps(changes))
        else:
            self.succeed(pipewright("conf", self.path(f"{name}.pkg"), "--ranks", ranks, "-o", path))
        return path

    def check(self, name, ranks, mpi=False, conf=None, environment=None, **changes):
        job = self.job(name, **changes)
        model = copy.deepcopy(self.models[name][0])
        with self.subTest(model=name, ranks=ranks, mpi=mpi, environment=environment, **changes):
            ours = self.train(self.path(f"{name}.pkg"), job, ranks, mpi,
                              conf or self.conf(name, ranks), environment)
            self.assert_same_run(ours, self.train_pytorch(model, self.job(name)))

    def test_any_ranks_and_transports(self):
        for name in self.models:
            self.check(name, 1)
            self.check(name, 2)
            self.check(name, 3, mpi=True)
            self.check(name, 4, mpi=True, environment={"OMPI_MCA_btl": "tcp,self"})

    def test_schedules_bodies_and_recomputation(self):
        stages = {"module_to_stage_map": [0, 1, 2, 3],
                  "stage_to_rank_map": {"0": [0], "1": [1], "2": [0], "3": [1]}}
        for name in self.models:
            self.check(name, 2, body="lists")
            self.check(name, 4, recompute=True, schedule="gpipe")
            self.check(name, 4, schedule="zb1p", body="autograd")
            self.check(name, 2, conf=self.conf(name, 2, **stages), schedule="interleaved")

    def test_weights_in_another_order(self):
        torch.manual_seed(1)
        model = Turned().train()
        export(copy.deepcopy(model), torch.randn(4, 3, 14, 14), self.path("turned.pt2"))
        package = self.compile("turned.pt2", "turned.pkg")
        for changes in ({}, {"optimizer": {"type": "adamw", "lr": 1e-3}, "body": "lists"}):
            job = self.job("images", **changes)
            for ranks in (1, 4):
                with self.subTest(ranks=ranks, **changes):
                    ours = self.train(package, job, ranks, conf=self.conf("turned", ranks))
                    self.assert_same_run(ours, self.train_pytorch(copy.deepcopy(model), job))

    def test_replicas(self):
        stages = {"module_to_stage_map": [0, 0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1, 2]}}
        self.check("permuted", 3, conf=self.conf("permuted", 3, **stages), reduce="exact")

    def test_inference(self):
        for name, (model, _, _) in self.models.items():
            x = load_file(self.path(f"{name}.safetensors"))["x"][:10].clone()
            save_file({"x": x}, self.path("in.safetensors"))
            model = copy.deepcopy(model).eval()
            with torch.no_grad():
                wanted = torch.cat([model(part) for part in x.chunk(3)])
            for ranks, mpi in ((1, False), (3, True)):
                self.succeed(run_ranks(ranks, "infer", self.path(f"{name}.pkg"), "--input",
                                       self.path("in.safetensors"), "-o", self.path("out.safetensors"),
                                       "--microbatches", 3, "--conf", self.conf(name, ranks), mpi=mpi))
                found = list(load_file(self.path("out.safetensors")).values())
                self.assert_same_tensors({"": found[0]}, {"": wanted}, f"{name}, {ranks} ranks: ")

    def test_outputs_that_are_permuted(self):
        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 6)

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                return y.transpose(1, 2), y[:, :, :1].expand(-1, -1, 3), y[:, 1:3]

        torch.manual_seed(0)
        model, x = Turned().eval(), torch.randn(6, 5, 4)
        export(model, x[:2], self.path("turned.pt2"))
        package = self.compile("turned.pt2", "turned.pkg")
        save_file({"x": x}, self.path("in.safetensors"))
        with torch.no_grad():
            wanted = model(x)
        names = json.loads((package / "manifest.json").read_text())["outputs"]
        for ranks, microbatches in ((1, 1), (2, 3)):
            self.succeed(run_ranks(ranks, "infer", package, "--input", self.path("in.safetensors"),
                                   "-o", self.path("out.safetensors"), "--microbatches", microbatches,
                                   "--conf", self.conf("turned", ranks), mpi=False))
            self.assert_same_tensors(load_file(self.path("out.safetensors")),
                                     dict(zip(names, wanted)))


if __name__ == "__main__":
    unittest.main()
