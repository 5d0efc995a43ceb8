"""Models that a run trains as PyTorch does in one process."""
import json

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from support import Case, pipewright, run_ranks

STEPS, MICROBATCHES, ROWS = 6, 4, 4


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)


class AloneCase(Case):
    """Models of one input x of six numbers and one result of three."""

    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        rows = STEPS * MICROBATCHES * ROWS
        self.data = {"x": torch.randn(rows, 6), "y": torch.randn(rows, 3)}
        save_file(self.data, self.path("data.safetensors"))

    def export(self, model, script):
        if script:
            torch.jit.script(model).save(self.path("model.pt"))
            return "model.pt"
        batch = torch.export.Dim("batch", min=1, max=4096)
        torch.export.save(torch.export.export(model, (torch.randn(2, 6),), dynamic_shapes=({0: batch},)),
                          self.path("model.pt2"))
        return "model.pt2"

    def compile_model(self, make, split, script=False, ranks=3):
        """`split`: how many modules, or a map."""
        if isinstance(split, dict):
            self.path("split.json").write_text(json.dumps(split))
        torch.manual_seed(1)
        file = self.export(make().train(), script)
        result = pipewright("compile", self.path(file), "-o", self.path("model.pkg"), "--split",
                            self.path("split.json") if isinstance(split, dict) else f"equal:{split}",
                            "--ranks", ranks, "--force")
        self.succeed(result)
        return result.out

    def run_job(self, ranks=3, **changes):
        package = self.path("model.pkg")
        inputs = json.loads((package / "manifest.json").read_text())["inputs"]
        job = self.write_job({
            "data": {"tensors": "data.safetensors", "inputs": {inputs[0]: "x"}, "target": "y", "shuffle": False},
            "loss": "mse", "optimizer": {"type": "adamw", "lr": 0.01}, "microbatches": MICROBATCHES,
            "microbatch_size": ROWS, "steps": STEPS, "threads": 1, "save": "trained.safetensors", **changes})
        return run_ranks(ranks, "train", package, job, mpi=False)

    def alone(self, make, script=False):
        torch.manual_seed(1)
        model = make().train()
        model = torch.jit.script(model) if script else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with torch.jit.optimized_execution(False):
            for step in range(STEPS):
                optimizer.zero_grad()
                for microbatch in range(MICROBATCHES):
                    first = (step * MICROBATCHES + microbatch) * ROWS
                    x, y = (self.data[name][first:first + ROWS].clone() for name in "xy")
                    F.mse_loss(model(x), y).backward()
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= MICROBATCHES
                optimizer.step()
        return model.state_dict()
