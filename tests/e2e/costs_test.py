"""simulate and zb-auto accept the costs that bench --costs writes: a convolutional net on 2 and 4 ranks."""
import json
import unittest

import torch
from safetensors.torch import save_file
from torch import nn

from support import Case, pipewright, run_ranks


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


class Costs(Case):
    def test_a_convolutional_net(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(Block(8) for _ in range(6)), nn.Flatten(), nn.Linear(512, 5))
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(model.train(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
        torch.export.save(program, self.path("conv.pt2"))
        save_file({"x": torch.randn(64, 3, 8, 8), "y": torch.randint(5, (64,))}, self.path("data.safetensors"))
        for ranks in (2, 4):
            package = self.compile("conv.pt2", f"{ranks}.pkg", "--split", f"equal:{ranks}", "--ranks", str(ranks))
            name = json.loads((package / "manifest.json").read_text())["inputs"][0]
            for schedule in ("1f1b", "zb-h1"):
                with self.subTest(ranks=ranks, schedule=schedule):
                    job = self.write_job({
                        "data": {"tensors": "data.safetensors", "inputs": {name: "x"}, "target": "y"},
                        "loss": "cross_entropy", "optimizer": {"type": "sgd", "lr": 0.01}, "schedule": schedule,
                        "microbatches": 2 * ranks, "microbatch_size": 2, "steps": 2, "threads": 1})
                    costs, plan, found = self.path("costs.json"), self.path("plan.csv"), self.path("zb-auto.csv")
                    self.succeed(run_ranks(ranks, "bench", package, job, "--steps", 2, "--costs", costs))
                    self.succeed(pipewright("plan", package, job, "-o", plan))
                    self.succeed(pipewright("simulate", plan, "--costs", costs))
                    self.succeed(pipewright("simulate", plan, "--costs", costs, "--recompute", "0"))
                    self.succeed(pipewright("plan", "--schedule", "zb-auto", "--ranks", ranks, "--microbatches", 2 * ranks,
                                            "--costs", costs, "-o", found))
                    self.succeed(pipewright("simulate", found, "--costs", costs))


if __name__ == "__main__":
    unittest.main()
