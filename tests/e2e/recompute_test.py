"""Stages that run their forward again for their backward: the same bits with less memory."""
import json
import unittest

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.pipelining import pipe_split

from support import SGD, Case, export, pipewright, run_ranks


class Net(nn.Module):
    """Dropout, statistics, and wide layers between narrow ones."""

    def __init__(self):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 256) for _ in range(3))
        self.norm = nn.ModuleList(nn.BatchNorm1d(256) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(256, 8) for _ in range(3))

    def forward(self, x):
        for i in range(3):
            if i:
                pipe_split()
            h = torch.dropout(self.norm[i](self.up[i](x)), 0.2, self.training)
            x = x + self.down[i](torch.tanh(h))
        return x


class Recompute(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(0)
        export(Net(), torch.rand(2, 8), cls.folder / "net.pt2")
        cls.package = cls.compile("net.pt2", "net.pkg")
        save_file({"x": torch.rand(512, 8), "y": torch.rand(512, 8)},
                  cls.folder / "rows.safetensors")

    def job(self, **changes):
        return {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"},
                "loss": "mse", "optimizer": SGD, "microbatches": 4, "microbatch_size": 64,
                "steps": 2, **changes}

    def conf(self, modules, ranks):
        path = self.path("conf.json")
        path.write_text(json.dumps({"module_to_stage_map": modules, "stage_to_rank_map":
                                    {str(s): r for s, r in enumerate(ranks)}}))
        return path

    def test_same_bits(self):
        alone = self.train(self.package, self.job(schedule="gpipe"), 1, False,
                           self.conf([0, 0, 0], [[0]]))
        for recompute in (True, {"stages": [0]}, {"modules": [1]}):
            for modules, ranks, schedule in (([0, 0, 1], [[0], [1]], "1f1b"),
                                             ([0, 1, 1], [[0], [1]], "zb-h1"),
                                             ([0, 0, 0], [[0]], "gpipe")):
                if recompute == {"stages": [0]} and schedule == "gpipe":
                    continue
                job = self.job(schedule=schedule, recompute=recompute)
                run = self.train(self.package, job, len(ranks), False, self.conf(modules, ranks))
                self.assert_same_run(run, alone, f"{recompute}, {modules}, {schedule}: ")

    def test_less_memory(self):
        peaks = []
        for recompute in (False, {"modules": [0, 1]}, True):
            path = self.write_job(self.job(schedule="gpipe", recompute=recompute))
            result = self.succeed(run_ranks(1, "bench", self.package, path, "--json", "--conf",
                                            self.conf([0, 0, 0], [[0]]), "--steps", 2, mpi=False))
            peaks.append(json.loads(result.out)["ranks"][0]["peak_bytes"])
        # For each microbatch and module: two values before and after the norm, the mask, tanh.
        wide = 64 * 256 * 4
        self.assertLess(peaks[1], peaks[0] - 2 * 3 * 2 * wide)
        self.assertLess(peaks[2], peaks[1])

    def test_what_is_not_there(self):
        path = self.write_job(self.job(recompute={"modules": [3]}))
        self.assert_fails(run_ranks(1, "train", self.package, path, "--conf",
                                    self.conf([0, 0, 0], [[0]]), mpi=False),
                          "recompute.modules: there is no 3: they are 0 to 2")

    def test_bench_writes_figures_costs_and_trace(self):
        path = self.write_job(self.job(schedule="zb-h1"))
        conf = self.conf([0, 1, 2], [[0], [1], [2]])
        costs, trace = self.path("costs.json"), self.path("trace.json")
        text = self.succeed(run_ranks(3, "bench", self.package, path, "--conf", conf, "--steps", 3,
                                      "--costs", costs, "--trace", trace)).out
        for word in ("step", "bubble", "I to W MiB", "STEP"):
            self.assertIn(word, text)
        stages = json.loads(costs.read_text())["stages"]
        self.assertEqual(len(stages), 3)
        for stage in stages:
            self.assertGreater(stage["B"], 0)  # measured, though zb-h1 has no B
        wide, narrow = 64 * 256 * 4, 64 * 8 * 4
        # W of a stage needs the inputs and output gradients of two linears and a norm.
        self.assertLess(stages[1]["kept_for_W"], 4.2 * wide + 3 * narrow)
        plan = self.path("plan.csv")
        self.succeed(pipewright("plan", self.package, path, "--conf", conf, "-o", plan))
        self.succeed(pipewright("simulate", plan, "--costs", costs))
        self.succeed(pipewright("simulate", plan, "--costs", costs, "--compare", trace))

    def test_the_file_has_what_the_table_shows(self):
        path = self.write_job(self.job(schedule="1f1b"))
        costs = self.path("costs.json")
        shown = json.loads(self.succeed(run_ranks(
            3, "bench", self.package, path, "--conf", self.conf([0, 1, 2], [[0], [1], [2]]),
            "--steps", 3, "--json", "--costs", costs)).out)
        self.assertGreaterEqual(shown["steps"], 3)
        self.assertIsInstance(shown["noisy"], list)
        written = json.loads(costs.read_text())["stages"]
        for stage, entry in zip(written, shown["stages"]):
            self.assertEqual(stage, entry["costs"])
            for kind in "FB":
                timing = entry["actions"][kind]
                self.assertEqual(stage[kind], timing["typical"])
                self.assertAlmostEqual(stage["spread"][kind], timing["high"] - timing["low"])
                noisy = (timing["median"] > 50
                         and timing["high"] - timing["low"] > 0.1 * timing["median"])
                named = any(text.startswith(f"{shown['stages'].index(entry)}{kind} ")
                            for text in shown["noisy"])
                self.assertEqual(noisy, named, shown["noisy"])
                # Noisy measurements were repeated.
                self.assertGreaterEqual(timing["count"], (12 if noisy else 3) * 4)


if __name__ == "__main__":
    unittest.main()
