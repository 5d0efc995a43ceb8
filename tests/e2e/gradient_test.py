"""Gradients with unusual paths: to several modules, or to none."""
import copy
import json
import re
import shutil
import unittest

import torch
from safetensors.torch import load_model, save_file
from torch import nn
from torch.distributed.pipelining import pipe_split

from support import ADAMW, SGD, Case, export, one_process, pipewright, run_ranks


class Branches(nn.Module):
    """`h` is used by three later modules, `dropped` reaches no loss, `q` only a detached value."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        self.q, self.dropped, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("never", torch.ones(3))

    def forward(self, x):
        h = torch.tanh(self.a(x))
        q = self.q(x)
        pipe_split()
        y = self.b(h) + q.detach()
        aside = self.dropped(h)
        pipe_split()
        y = torch.tanh(y) + self.c(h)
        aside = torch.relu(aside)
        pipe_split()
        return self.d(y) * torch.tanh(h), aside


class Looks(nn.Module):
    """Without gradients, takes a view of a received value, which later modules use."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        h = torch.tanh(self.a(x))
        pipe_split()
        with torch.no_grad():
            seen = h.view(-1)
        seen = seen.float()  # returns `seen` itself
        y = self.b(h) + seen.sum()
        pipe_split()
        return self.c(y) * seen.view(y.shape)


class Writes(nn.Module):
    """Writes to parts of a tensor, which run_decompositions turns into copies."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        z = torch.zeros_like(y)
        z[:, 1:4] = y[:, 0:3] * 2
        z[:, 4:6] = y[:, 6:7]
        z[:, 7] = 1.0
        pipe_split()
        return self.b(z)


class Gradients(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(3)
        cls.model = Branches()
        export(cls.model, torch.rand(2, 8), cls.folder / "branches.pt2")
        cls.package = cls.compile("branches.pt2", "branches.pkg")
        save_file({"x": torch.rand(64, 8), "y": torch.rand(64, 8)}, cls.folder / "rows.safetensors")

    def job(self, optimizer):
        return {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"},
                "loss": "mse", "optimizer": optimizer, "microbatches": 4, "microbatch_size": 4,
                "steps": 8}

    def test_what_no_loss_reaches_is_left_alone_and_the_rest_is_pytorchs_to_the_bit(self):
        for optimizer in (SGD, ADAMW):
            model = copy.deepcopy(self.model)
            job = self.job(optimizer)
            gradients = {}

            def keep(step, model):
                gradients.update((name, torch.zeros_like(p) if p.grad is None else p.grad.clone())
                                 for name, p in model.named_parameters())

            losses = [x for _, x in one_process.train(model, job, self.folder, after_gradients=keep)]
            for ranks, mpi in ((4, True), (4, False), (2, False), (1, False)):
                conf = self.path(f"conf{ranks}.json")
                self.succeed(pipewright("conf", self.package, "--ranks", ranks, "-o", conf))
                ours = self.train(self.package, job, ranks, mpi, conf)
                self.assertEqual(ours.losses, losses)
                self.assert_same_tensors(ours.weights, model.state_dict(), f"{ranks} ranks: ")
                self.assert_same_tensors(ours.gradients, gradients, f"{ranks} ranks: gradient of ")
            for name in ("q.weight", "dropped.bias", "unused.weight", "never"):
                self.assertTrue(torch.equal(ours.weights[name], self.model.state_dict()[name]), name)
            load_model(copy.deepcopy(self.model), self.path("trained.safetensors"), strict=True)

    def edited(self, name, module, pattern, replacement, package=None):
        """Returns warnings about gradients in a run of an edited package."""
        source, package = package or self.package, self.path(name)
        shutil.copytree(source, package)
        path = package / f"modules/module{module}.py"
        text, changes = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.M)
        self.assertEqual(changes, 1, text)
        path.write_text(text)
        result = self.succeed(run_ranks(4, "train", package, self.write_job(self.job(SGD)), mpi=False))
        return re.findall(r"warning: (.*gradient.*)", result.out)

    def test_what_never_got_a_gradient_is_not_missed_after_an_edit(self):
        """`unused` and `dropped` belong to edited modules, `q` to one whose gradient module 1 stops."""
        returned, doubled = r"return (\(?)(\w+)", r"return \1torch.mul(\2, 2)"
        self.assertEqual(self.edited("none0.pkg", 0, returned, doubled), [])
        self.assertEqual(self.edited("none1.pkg", 1, returned, doubled), [])
        self.assertEqual(self.edited("none3.pkg", 3, returned, doubled), [])
        told, = self.edited("some1.pkg", 1, r"^    (b_weight) = .*$", r"\g<0>.detach()")
        self.assertRegex(told, r"^b\.weight gets no gradient: .*module1\.py")

    def test_a_package_of_a_build_that_did_not_note_what_gets_no_gradient(self):
        package = self.path("older.pkg")
        shutil.copytree(self.package, package)
        manifest = json.loads((package / "manifest.json").read_text())
        noted = [module.pop("no_gradient", None) for module in manifest["modules"]]
        self.assertTrue(any(noted))
        (package / "manifest.json").write_text(json.dumps(manifest))
        job = self.job(SGD)
        self.assert_same_run(self.train(package, job, 4, mpi=False),
                             self.train(self.package, job, 4, mpi=False))
        result = self.succeed(run_ranks(4, "train", package, self.write_job(job), mpi=False))
        self.assertNotIn("gradient", result.out)
        # After an edit, the run cannot tell what the model itself stops.
        doubled = r"return (\(?)(\w+)", r"return \1torch.mul(\2, 2)"
        told, = self.edited("older0.pkg", 0, *doubled, package=package)
        self.assertRegex(told, r"^unused\.weight, unused\.bias get no gradient: .*module0\.py")

    def test_decomposed_writes_to_parts_of_a_tensor(self):
        model, x = Writes(), torch.rand(2, 8)
        batch = torch.export.Dim("batch", min=1, max=4096)
        program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=False)
        theirs = self.train_pytorch(copy.deepcopy(model), self.job(SGD))
        for name, table in (("all", None), ("some", {})):
            torch.export.save(program.run_decompositions(table), self.path(f"{name}.pt2"))
            package = self.compile(f"{name}.pt2", f"{name}.pkg", "--split", "equal:2")
            for body in ("autograd", "lists"):
                ours = self.train(package, {**self.job(SGD), "body": body}, 2, False)
                self.assert_close_tensors(ours.weights, theirs.weights, 1e-5)

    def test_views_made_without_gradients_have_none(self):
        torch.manual_seed(4)
        model = Looks()
        export(model, torch.rand(2, 8), self.path("looks.pt2"))
        package = self.compile("looks.pt2", "looks.pkg")
        job = self.job(SGD)
        theirs = self.train_pytorch(copy.deepcopy(model), job)
        for changes in ({}, {"schedule": "zb-h1"}, {"body": "lists"}, {"body": "autograd"}):
            with self.subTest(**changes):
                self.assert_same_run(self.train(package, {**job, **changes}, 3, False), theirs)


if __name__ == "__main__":
    unittest.main()
