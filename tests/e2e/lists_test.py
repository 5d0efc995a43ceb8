"""Modules as lists of operations (runtime/recorded): the bits of autograd's bodies."""
import copy
import json
import unittest

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from support import RUN, Case, call, export_gpt, gpt, run_ranks, token_job

CLASSES = 8


class ByClass(torch.nn.Module):
    """Its loss reads the labels in the way `use` says: mostly as an index in a list of indices."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(3)
        self.use = use
        self.head = torch.nn.Linear(6, CLASSES)
        self.table = torch.nn.Parameter(torch.rand(16, CLASSES))
        self.register_buffer("cw", torch.rand(CLASSES) + 0.5)

    def forward(self, x, y):
        z = self.head(x)
        loss = F.cross_entropy(z, y, reduction="none")
        return self.use(self, z, y, loss).mean() + self.table.square().mean()


def rows(y):
    return torch.arange(y.shape[0], device=y.device)


def marked(z, y):
    t = torch.zeros_like(z)
    t[rows(y), y] = 1
    return t


USES = {
    "buffer[y]": lambda m, z, y, loss: loss * m.cw[y],
    "table[arange, y]": lambda m, z, y, loss: loss * m.table[rows(y), y],
    "table[:, y]": lambda m, z, y, loss: loss * m.table[:, y].sum(0),
    "z[arange, y]": lambda m, z, y, loss: torch.logsumexp(z, 1) - z[rows(y), y],
    "index_put": lambda m, z, y, loss: (
        loss + z.tanh().index_put((rows(y), y), loss * 0.5, accumulate=True).square().sum(1)),
    "t[arange, y] = 1": lambda m, z, y, loss: -(marked(z, y) * torch.log_softmax(z, 1)).sum(1),
}


class Lists(Case):
    def succeed(self, result):
        self.text = result.out
        return super().succeed(result)

    def test_the_bits_of_autograd(self):
        export_gpt(gpt(tied=True, dropout=0.1), self.path("gpt.pt2"))  # 6 modules
        package = self.compile("gpt.pt2", "gpt.pkg")
        conf = self.path("conf.json")
        conf.write_text(json.dumps({"module_to_stage_map": [0, 0, 1, 1, 2, 2],
                                    "stage_to_rank_map": {str(s): [s] for s in range(3)}}))
        for schedule, mpi in (("1f1b", False), ("zb-h1", True)):
            job = token_job(schedule=schedule, microbatches=4, steps=4)
            runs = {}
            for body in ("autograd", "lists"):
                runs[body] = self.train(package, job, 3, mpi, conf, {"PIPEWRIGHT_BODY": body})
                for module in range(6):
                    told = f"module {module} runs as lists of operations"
                    (self.assertIn if body == "lists" else self.assertNotIn)(told, self.text)
            self.assert_same_run(runs["lists"], runs["autograd"], f"{schedule}: ")

    def test_the_faster_one(self):
        export_gpt(gpt(dropout=0.1), self.path("auto.pt2"))
        package = self.compile("auto.pt2", "auto.pkg", "--ranks", "2")
        job = token_job(microbatches=4, steps=6)
        expected = self.train(package, job, 2, mpi=False)
        self.assertNotIn("module 0", self.text.split("busy")[-1].split("\n", 1)[1])
        found = self.train(package, {**job, "body": "auto"}, 2, mpi=False)
        self.assertRegex(self.text, r"modules? 0(-\d)?: (lists of operations|autograd \()")
        self.assert_same_run(found, expected)

    def test_indices_that_come_sorted(self):
        """Many microbatches have the same labels, including those that are recorded and compared."""
        samples, steps = 320, 20
        generator = torch.Generator().manual_seed(5)
        save_file({"x": torch.randn(samples, 6, generator=generator),
                   "y": torch.arange(samples) * CLASSES // samples}, self.path("sorted.safetensors"))
        job = token_job(
            data={"tensors": "sorted.safetensors", "inputs": {"x": "x", "y": "y"}, "shuffle": False},
            loss={"output": 0}, steps=steps, microbatches=4, microbatch_size=4)
        batch = torch.export.Dim("batch", min=2, max=64)
        by_lists = []
        for name, use in USES.items():
            with self.subTest(name):
                model = ByClass(use)
                program = torch.export.export(
                    model, (torch.randn(3, 6), torch.tensor([0, 1, 2])),
                    dynamic_shapes=({0: batch}, {0: batch}), strict=False)
                torch.export.save(program, self.path("sorted.pt2"))
                package = self.compile("sorted.pt2", "sorted.pkg", "--ranks", "1")
                expected = self.train_pytorch(copy.deepcopy(model), job)
                for body in ("autograd", "lists", "auto"):
                    found = self.train(package, {**job, "body": body}, 1, mpi=False)
                    self.assert_same_run(found, expected, f"{name}, {body}: ")
                    if "module 0: lists of operations" in self.text:
                        by_lists.append((name, body))
        # The backward of the others writes in place.
        for name in ("buffer[y]", "index_put", "t[arange, y] = 1"):
            self.assertIn((name, "lists"), by_lists)

    def test_a_variable_that_one_rank_has(self):
        export_gpt(gpt(), self.path("one.pt2"))
        package = self.compile("one.pt2", "one.pkg", "--ranks", "2")
        job = self.write_job(token_job(steps=2))
        program = [RUN, "train", package, job]
        result = call(["mpirun", "-n", 1, "env", "PIPEWRIGHT_BODY=autograd", *program,
                       ":", "-n", 1, *program])
        self.succeed(result)
        self.assertIn("modules 0-2: autograd (asked for)", result.out)

    def test_an_unknown_body(self):
        export_gpt(gpt(), self.path("plain.pt2"))
        package = self.compile("plain.pt2", "plain.pkg", "--ranks", "1")
        job = self.write_job(token_job(steps=1))
        self.assert_fails(run_ranks(1, "train", package, job, mpi=False,
                                    environment={"PIPEWRIGHT_BODY": "list"}),
                          'unknown body "list"', "auto, autograd or lists")


if __name__ == "__main__":
    unittest.main()
