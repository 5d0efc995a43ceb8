"""Stages on several ranks: microbatch i on replica i mod r, gradients summed over the replicas."""
import json
import unittest

import torch
from safetensors.torch import save_file

from support import ADAMW, SGD, Case, Statistics, export, export_gpt, gpt, run_ranks, token_job

STEPS = 3


class Replicas(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=True, layers=3, dropout=0.1), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg")

    def run_job(self, modules, ranks, mpi=False, **changes):
        path = self.path("conf.json")
        path.write_text(json.dumps({"module_to_stage_map": modules, "stage_to_rank_map":
                                    {str(s): r for s, r in enumerate(ranks)}}))
        job = token_job(steps=STEPS, **changes)
        return self.train(self.package, job, 1 + max(max(r) for r in ranks), mpi, path)

    def check(self, modules, ranks, mpi=False, **changes):
        alone = self.run_job([0] * 3, [[0]], **changes)
        what = f"{modules} on {ranks}, {changes}: "
        fast = self.run_job(modules, ranks, mpi, **changes)
        # AdamW divides by the size of the gradient: where the microbatches' gradients nearly cancel,
        # the rounding of their sum moves a single element by about 1e-4 of a step.
        relative = 1e-5 if changes.get("optimizer") == ADAMW else 1e-6
        self.assert_close_tensors(fast.weights, alone.weights, relative, what)
        self.assert_same_run(self.run_job(modules, ranks, **changes), fast, what + "again: ")
        exact = self.run_job(modules, ranks, mpi, reduce="exact", **changes)
        self.assert_same_run(exact, alone, what + "exact: ")

    def test_all_modules_on_every_rank(self):
        self.check([0, 0, 0], [[0, 1, 2]], microbatches=4)
        self.check([0, 0, 0], [[0, 1]], mpi=True, microbatches=6, optimizer=ADAMW)

    def test_4_3_1(self):
        self.check([0, 1, 2], [[0, 1, 2, 3], [4, 5, 6], [7]], microbatches=7)

    def test_shared_weights_of_replicated_stages_and_fewer_microbatches_than_replicas(self):
        self.check([0, 1, 2], [[0, 1, 2], [1], [2, 3]], microbatches=2)
        self.check([0, 1, 1], [[0], [1, 2]], mpi=True, microbatches=5, schedule="gpipe")

    def test_15_1(self):
        self.run_job([0, 0, 1], [list(range(15)), [15]], microbatches=16, microbatch_size=1)


class Buffers(Case):
    def test_the_first_replica_owns_the_statistics(self):
        torch.manual_seed(0)
        export(Statistics(), torch.rand(2, 6), self.path("model.pt2"))
        package = self.compile("model.pt2", "model.pkg")
        rows = {"x": torch.rand(32, 6), "y": torch.rand(32, 3)}
        save_file(rows, self.path("rows.safetensors"))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y",
                        "shuffle": False}, "loss": "mse", "optimizer": {**SGD, "lr": 0.0},
               "microbatches": 4, "microbatch_size": 4, "steps": 1}
        self.path("conf.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}}))
        run = self.train(package, job, 3, False, self.path("conf.json"))
        torch.manual_seed(0)
        model = Statistics()
        for i in (0, 2):  # the microbatches of replica 0
            model(rows["x"][4 * i:4 * i + 4])
        self.assert_same_tensors(
            {k: v for k, v in run.weights.items() if k.startswith("norm.")},
            {k: v.detach() for k, v in model.state_dict().items() if k.startswith("norm.")})
        held = {w["name"]: (w["replicas"], w["merge"])
                for m in json.loads((package / "manifest.json").read_text())["modules"]
                for w in m["held"] if w["kind"] == "buffer"}
        self.assertEqual(held, {"norm.running_mean": ("first", "updates"),
                                "norm.running_var": ("first", "updates"),
                                "norm.num_batches_tracked": ("first", "sum")})
        # Merged, they equal those of one rank, regardless of the counts.
        self.path("alone.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [0]}}))
        self.path("three.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [1]}}))
        for conf, ranks, changes in (
                ("conf.json", 3, {"recompute": True}), ("three.json", 3, {"accumulate": 2}),
                ("three.json", 3, {"microbatches": 2})):
            job.update({"optimizer": SGD, "steps": 3, "microbatches": 5, "microbatch_size": 3,
                        "reduce": "exact", "buffers": "merge", **changes})
            alone = self.train(package, job, 1, False, self.path("alone.json"))
            run = self.train(package, job, ranks, False, self.path(conf))
            for name, weight in alone.weights.items():
                exact = "running" not in name
                torch.testing.assert_close(run.weights[name], weight, rtol=0 if exact else 1e-6,
                                           atol=0 if exact else 1e-7, msg=f"{name}, {changes}")

    def test_statistics_in_double(self):
        torch.manual_seed(0)
        export(Statistics().double(), torch.rand(2, 6).double(), self.path("double.pt2"))
        package = self.compile("double.pt2", "double.pkg")
        save_file({"x": torch.rand(60, 6).double(), "y": torch.rand(60, 3).double()}, self.path("rows.safetensors"))
        for name, conf in (("alone", {"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [0]}}),
                           ("three", {"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [1]}})):
            self.path(f"{name}.json").write_text(json.dumps(conf))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y", "shuffle": False},
               "loss": "mse", "optimizer": SGD, "steps": 3, "microbatches": 5, "microbatch_size": 3,
               "reduce": "exact", "buffers": "merge"}
        alone = self.train(package, job, 1, False, self.path("alone.json"))
        run = self.train(package, job, 3, False, self.path("three.json"))
        for name, weight in alone.weights.items():
            torch.testing.assert_close(run.weights[name], weight, rtol=1e-12, atol=1e-12, msg=name)

    def test_one_value_has_no_variance(self):
        export(Statistics(), torch.rand(2, 6), self.path("model.pt2"))
        package = self.compile("model.pt2", "one.pkg", "--ranks", "2")
        save_file({"x": torch.rand(8, 6), "y": torch.rand(8, 3)}, self.path("rows.safetensors"))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "microbatches": 4, "microbatch_size": 1}
        self.assert_fails(
            run_ranks(2, "train", package, self.write_job(job), mpi=False),
            r"step 1, rank 0, stage 0, microbatch 0, action 0F0", "batch norm in training needs more than "
            r"one value per channel, and its input has sizes \[1, 8\]", "two samples or more",
            r'File ".*module0\.py", line \d+')
        self.succeed(run_ranks(2, "eval", package, self.write_job(job), mpi=False))


if __name__ == "__main__":
    unittest.main()
