"""Products by oneDNN: close to PyTorch's, and the same bits on any ranks, with any body and schedule."""
import json
import unittest

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.pipelining import pipe_split

from support import RUN, Case, call, export, run_ranks

WIDTH = 1024


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.relu(self.a(x))
        pipe_split()
        return self.b(y)


@unittest.skipUnless(torch.backends.mkldnn.is_available(), "PyTorch without oneDNN")
class MatMul(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(0)
        cls.model = Net()
        export(cls.model, torch.randn(4, WIDTH), cls.folder / "net.pt2")
        cls.package = cls.compile("net.pt2", "net.pkg")
        cls.x = torch.randn(256, WIDTH)
        save_file({"x": cls.x, "y": torch.randn(256, WIDTH)}, cls.folder / "data.safetensors")

    def test_inference(self):
        save_file({"x": self.x}, self.path("in.safetensors"))
        with torch.no_grad():
            wanted = self.model(self.x)
        found = {}
        for name in ("libtorch", "onednn", "auto"):
            for mpi in (False, True):
                self.succeed(run_ranks(2, "infer", self.package, "--input", self.path("in.safetensors"), "-o",
                                       self.path("out.safetensors"), "--matmul", name, "--threads", 1, mpi=mpi))
                out = next(iter(load_file(self.path("out.safetensors")).values()))
                torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
                self.assertTrue(torch.equal(found.setdefault(name, out), out))
        self.assertTrue(any(torch.equal(found["auto"], found[name]) for name in ("libtorch", "onednn")))

    def test_an_unknown_name(self):
        result = call([RUN, "--in-process", 1, "infer", self.package, "--input", "x", "-o", "y", "--matmul", "mkl"])
        self.assertNotEqual(result.code, 0)
        self.assertIn("--matmul: mkl not in {auto,libtorch,onednn}", result.out)

    def test_training(self):
        job = {"data": {"tensors": str(self.path("data.safetensors")), "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.05}, "microbatches": 2,
               "microbatch_size": 64, "steps": 4, "threads": 1, "log_every": 1}
        one = self.path("one.json")
        one.write_text(json.dumps({"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [0]}}))
        plain = self.train(self.package, {**job, "schedule": "gpipe"}, 2)
        wanted = self.train(self.package, {**job, "schedule": "gpipe", "matmul": "onednn"}, 1, conf=one)
        torch.testing.assert_close(torch.tensor(wanted.losses), torch.tensor(plain.losses), rtol=1e-4, atol=0)
        for name, weight in wanted.weights.items():
            torch.testing.assert_close(weight, plain.weights[name], rtol=1e-4, atol=1e-5)
        for schedule, body in (("1f1b", "autograd"), ("zb1p", "autograd"), ("1f1b", "lists"), ("zb1p", "lists")):
            for mpi in (False, True):
                self.assert_same_run(wanted, self.train(
                    self.package, {**job, "schedule": schedule, "body": body, "matmul": "onednn"}, 2, mpi=mpi))


if __name__ == "__main__":
    unittest.main()
