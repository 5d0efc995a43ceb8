"""A rank that only sends does not run far ahead: memory does not grow with the microbatches."""
import sys
import unittest

import torch
from safetensors.torch import save_file

from support import RUN, Case, call, token_job

FEW, MANY = 200, 2000
WIDTH = 8192  # 32 KB per microbatch: MPI sends that much over TCP before the receive


class Uneven(torch.nn.Module):
    """A fast first stage without gradients, and a second one that takes many times as long."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(16, WIDTH).requires_grad_(False)
        self.slow = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(16)])
        self.head = torch.nn.Linear(64, 4)

    def forward(self, x):
        x = self.wide(x).view(-1, WIDTH // 64, 64)
        for layer in self.slow:
            x = layer(x).tanh()
        return self.head(x.mean(1))


# Runs a rank, and writes its peak resident memory, in kilobytes, to a file of its own.
MEASURED = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
open(sys.argv[1] + "." + os.environ["OMPI_COMM_WORLD_RANK"], "w").write(str(peak))
sys.exit(code)
"""


class Flow(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(1)
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.export.save(torch.export.export(Uneven(), (torch.randn(3, 16),),
                                              dynamic_shapes=({0: batch},)), cls.folder / "m.pt2")
        cls.package = cls.compile("m.pt2", "m.pkg", "--split-after", "wide", "--ranks", "2")
        for rows in (FEW, MANY):
            save_file({"x": torch.randn(rows, 16), "y": torch.randint(4, (rows,))},
                      cls.folder / f"{rows}.safetensors")

    def arguments(self, command, rows):
        """Returns arguments that run `rows` microbatches of one row through the stages."""
        data = {"tensors": f"{rows}.safetensors", "inputs": {"x": "x"}, "target": "y"}
        job = token_job(data=data, microbatches=20, microbatch_size=1, steps=rows // 20,
                        schedule="gpipe", log_every=rows, check_shared=None)
        if command == "infer":
            return ["infer", self.package, "--input", self.path(f"{rows}.safetensors"), "--output",
                    self.path(f"outputs-{rows}.safetensors"), "--microbatches", rows]
        if command == "validation":
            job.update(validation={"data": data, "every": 1}, steps=1)
        return ["eval" if command == "eval" else "train", self.package, self.write_job(job)]

    def peaks(self, command, rows, environment):
        """Returns the peak of each rank in megabytes, by rank."""
        self.succeed(call(["mpirun", "-n", 2, sys.executable, "-c", MEASURED, self.path("peak"), RUN,
                           *self.arguments(command, rows)], environment=environment))
        return [int(self.path(f"peak.{rank}").read_text()) / 1024 for rank in range(2)]

    def test_memory_is_flat(self):
        for btl in ("", "tcp,self"):
            for command in ("eval", "train", "infer", "validation"):
                with self.subTest(command, btl=btl):
                    environment = {"OMPI_MCA_btl": btl} if btl else {}
                    few, many = [0, 0], self.peaks(command, MANY, environment)
                    for _ in range(6):  # some runs touch 15 MB less of the libraries
                        few = [max(pair) for pair in zip(few, self.peaks(command, FEW, environment))]
                        growth = max(after - before for before, after in zip(few, many))
                        if growth < 8:
                            break
                    print(f"{command} {btl}: {few} MB after {FEW} microbatches, {many} after {MANY}")
                    self.assertLess(growth, 8, "all messages together have 64 MB")


if __name__ == "__main__":
    unittest.main()
