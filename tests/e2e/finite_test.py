"""NaN and infinite numbers: what a run reports, and that none that training made is saved."""
import json
import re
import shutil
import unittest

import torch
from safetensors.torch import load_file, save_file

from support import RUN, Case, call, export, pipewright, run_ranks, watching

ROWS, EACH = 64, 8  # samples in the data and per step: two microbatches of four


class Net(torch.nn.Module):
    """A sample with x[0] = 0 makes the gradient of `s` NaN; one with x[1] < -1 makes a value NaN."""

    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = (torch.nn.Linear(8, 8) for _ in range(3))
        self.s = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))

    def forward(self, x):
        h = self.l1(x) + torch.sqrt(self.s * x[:, 0:1] ** 2) + torch.log1p(x[:, 1:2])
        h = torch.tanh(self.l2(h))
        return self.l3(h) + torch.softmax(self.mask, -1).sum()


class Draws(torch.nn.Module):
    """Cannot run again after a sample that holds NaN."""

    def __init__(self):
        super().__init__()
        self.l1, self.l2 = (torch.nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("rate", torch.full((8,), 0.5))

    def forward(self, x):
        h = self.l1(x) * torch.bernoulli(self.rate)
        self.rate.copy_(0.5 + 0 * x.detach().mean(0))
        return self.l2(torch.tanh(h))


class Finite(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(3)
        cls.net = Net()
        export(cls.net, torch.rand(4, 8) + 0.5, cls.folder / "net.pt2")
        cls.package = cls.compile("net.pt2", "net.pkg", "--split", "modules:l2,l3", "--ranks", "3")
        for ranks in (2, 3):
            pipewright("conf", cls.package, "--ranks", ranks, "-o", cls.folder / f"{ranks}.json")

    def setUp(self):
        self.checkpoints = self.path("checkpoints")
        self.clean()
        self.data()

    def clean(self):
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.path("metrics.jsonl").unlink(missing_ok=True)

    def data(self, row=0, column=7, value=0.5, target=None):
        torch.manual_seed(4)
        x, y = torch.rand(ROWS, 8) + 0.5, torch.rand(ROWS, 8)
        x[row, column] = value
        if target is not None:
            y[row, 0] = target
        save_file({"x": x, "y": y}, self.path("data.safetensors"))

    def job(self, **changes):
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y",
                        "shuffle": False},
               "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.01}, "microbatches": 2,
               "microbatch_size": EACH // 2, "steps": ROWS // EACH,
               "metrics": "metrics.jsonl", "save": "trained.safetensors",
               "checkpoint": {"to": "checkpoints", "every": 1, "keep": 0}}
        job.update(changes)
        return self.write_job({key: value for key, value in job.items() if value is not None})

    def train(self, ranks, *options, mpi=True, environment=None, **changes):
        return run_ranks(ranks, "train", self.package, self.job(**changes), "--conf",
                         self.path(f"{ranks}.json"), *options, mpi=mpi, environment=environment)

    def everywhere(self):
        """Yields numbers of ranks, and whether these are processes, each without old checkpoints."""
        for ranks in (2, 3):
            for mpi in (True, False):
                self.clean()
                yield ranks, mpi

    def assert_saved(self, *steps):
        """The latest checkpoint is of one of `steps`, and all saved tensors except the mask are finite."""
        self.assertIn(int((self.checkpoints / "latest").read_text()[5:]), steps)
        for file in self.checkpoints.glob("step-*/*.safetensors"):
            for name, tensor in load_file(file).items():
                if name != "mask":
                    self.assertTrue(tensor.isfinite().all(), f"{file}: {name}")

    def test_a_gradient(self):
        self.data(37, 0, 0.)
        for clip in (None, 1.):
            sgd = {"type": "sgd", "lr": 0.01, **({"clip_norm": clip} if clip else {})}
            for ranks, mpi in self.everywhere():
                for options in ((), ("--resume",)):
                    result = self.train(ranks, *options, mpi=mpi, optimizer=sgd)
                    self.assert_fails(result, r'step 5, rank 0, stage 0: the gradient of "s" holds nan(?m:$)',
                                      'lower the learning rate, clip gradients .*"nan": "ignore"')
                    self.assert_saved(4)
                self.assertEqual(self.path("metrics.jsonl").read_text().count("\n"), 4)
        self.data()  # repaired
        self.succeed(self.train(2, "--resume"))
        self.assert_saved(8)

    def test_the_checkpoint_before_is_still_being_written(self):
        self.data(37, 0, 0.)
        for ranks, mpi in self.everywhere():
            result = self.train(ranks, mpi=mpi, environment=watching(self.checkpoints, SLOW_SYNC=0.05))
            self.assert_fails(result, r'step 5, rank 0, stage 0: the gradient of "s" holds nan(?m:$)')
            self.assert_saved(4)

    def test_a_gradient_with_momentum_kept_on_disk(self):
        self.data(37, 0, 0.)
        self.assert_fails(self.train(2, optimizer={"type": "adamw", "state": "disk"}),
                          r'step 5, rank 0, stage 0: the gradient of "s" holds nan')
        self.assert_saved(4)

    def test_ignored(self):
        self.data(37, 0, 0.)
        self.succeed(self.train(2, nan="ignore"))
        self.assertTrue(load_file(self.path("trained.safetensors"))["s"].isnan().all())
        # A run that stops at NaNs does not resume from what a run that ignores them has saved.
        self.data()
        result = self.succeed(self.train(2, "--resume", steps=9))
        self.assertIn("the next older checkpoint is tried", result.out)
        self.assertRegex(result.out, r'module0\.safetensors: "s": holds nan, which training has made')
        self.assertRegex(result.out, "resumed from .*step-00000004")
        self.assert_saved(9)

    def test_a_sample(self):
        for change, name in (({"value": float("nan"), "column": 3}, "inputs \"x\""),
                             ({"value": float("inf"), "column": 3}, "inputs \"x\""),
                             ({"target": float("nan")}, "target \"y\""),
                             ({"target": -float("inf")}, "target \"y\"")):
            self.data(21, **change)
            what = str(change.get("target", change.get("value")))
            for ranks, mpi in self.everywhere():
                self.assert_fails(
                    self.train(ranks, mpi=mpi),
                    rf"step 3, microbatch 1: sample 21 of \S+job\.json: data\.{name} "
                    rf"\(\S+data\.safetensors\) holds {what}(?m:$)",
                    "fix the sample or leave it out")
                self.assert_saved(2)
        self.assert_fails(run_ranks(2, "eval", self.package, self.job(), "--conf", self.path("2.json")),
                          r"loss: is -?(nan|inf): sample 21 of \S+job\.json: data\.target")

    def test_a_rank_that_fails_while_nan_is_looked_for(self):
        export(Draws().train(), torch.rand(4, 8), self.path("draws.pt2"))
        package = self.compile("draws.pt2", "draws.pkg", "--split", "modules:l2", "--ranks", "2")
        self.data(21, 3, float("nan"))
        for mpi in (True, False):
            self.clean()
            result = run_ranks(2, "train", package, self.job(microbatches=1, microbatch_size=EACH),
                               "--stall-limit", 600, mpi=mpi)
            self.assert_fails(result, "step 3, rank 0, stage 0, microbatch 0, action 0F0", "p_in >= 0")

    def test_a_value(self):
        self.data(21, 1, -2.)
        for ranks, mpi in self.everywhere():
            self.assert_fails(self.train(ranks, mpi=mpi),
                              r'step 3, rank 0, stage 0, microbatch 1: value "\w+" holds nan, the first to do so(?m:$)',
                              "look for what makes it in modules/module0.py")
            self.assert_saved(2)

    def test_a_weight(self):
        weights = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
        for name in ("l1.weight", "l3.bias"):
            given = {**weights, name: torch.full_like(weights[name], torch.nan)}
            save_file(given, self.path("given.safetensors"))
            for ranks, mpi in self.everywhere():
                rank = 0 if name == "l1.weight" else ranks - 1
                self.assert_fails(
                    self.train(ranks, "--weights", self.path("given.safetensors"), mpi=mpi),
                    rf'step 1, rank {rank}, stage {rank}: weight "{name}" holds nan, as it was loaded(?m:$)')
                self.assertFalse((self.checkpoints / "latest").exists())

    def test_weights_that_overflow(self):
        """The gradient is finite, but the step makes the weights infinite."""
        huge = {"type": "sgd", "lr": 3e38, "momentum": 0.9}
        self.data(target=1e10)
        for ranks, mpi in self.everywhere():
            self.assert_fails(self.train(ranks, mpi=mpi, optimizer=huge),
                              r'step 2, rank \d, stage \d: weight "l\d\.\w+" holds (nan|-?inf), which an earlier step made',
                              r'checkpoint of step 1: "l\d\.\w+": holds -?inf, which training has made')
            self.assertFalse((self.checkpoints / "latest").exists())
            self.assert_fails(self.train(ranks, mpi=mpi, optimizer=huge, checkpoint={"to": "checkpoints"}),
                              r'step 2, rank \d, stage \d: weight "l\d\.\w+" holds (nan|-?inf), which an earlier step made')
            result = self.train(ranks, mpi=mpi, optimizer=huge, checkpoint=None, steps=1)
            self.assert_fails(result, r'saving on rank 0: "l1\.\w+": holds -?inf, which training has made')

    def test_state_that_overflows(self):
        self.data(target=1e16)
        loss = [{"type": "mse", "weight": 1e8}]
        for ranks, mpi in self.everywhere():
            for state in ("memory", "disk"):
                self.assert_fails(
                    self.train(ranks, mpi=mpi, optimizer={"type": "adamw", "state": state}, loss=loss),
                    r'checkpoint of step 1: .*"exp_avg_sq/\S+": holds inf, which training has made')
                self.assertFalse((self.checkpoints / "latest").exists())

    def test_a_mask_of_infinities_is_saved(self):
        self.succeed(self.train(2, steps=3))
        self.succeed(self.train(3, "--resume", steps=5))
        self.assert_saved(5)
        self.assertTrue(load_file(self.path("trained.safetensors"))["mask"].isinf().any())

    def test_loss_scaling(self):
        scale = {"initial": 1e38, "backoff": 1e-30, "interval": 1000}
        for ranks, mpi in self.everywhere():
            self.succeed(self.train(ranks, mpi=mpi, loss_scale=scale))
            lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["skipped"] for line in lines], [True] + [False] * 7)
        # If no scale helps, the run ends.
        save_file({"x": torch.zeros(ROWS, 8), "y": torch.ones(ROWS, 8)}, self.path("data.safetensors"))
        for ranks, mpi in self.everywhere():
            self.assert_fails(self.train(ranks, mpi=mpi, loss_scale={**scale, "initial": 1.}),
                              r'step 3, rank \d, stage \d: the gradient of "\S+" holds nan')
            self.assert_saved(2)

    def test_a_scale_of_one_skips_steps_too(self):
        self.data(37, 0, 0.)
        for scale in (1, 2):
            self.clean()
            self.succeed(self.train(2, mpi=False, loss_scale=scale))
            lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["skipped"] for line in lines], [step == 5 for step in range(1, 9)])
            self.assertIsNone(lines[4]["gradient_norm"])
            self.assert_saved(8)

    def test_a_validation(self):
        """It is reported, and changes nothing in the training."""
        self.succeed(self.train(2, mpi=False))
        plain = load_file(self.path("trained.safetensors"))
        rows = {"x": torch.rand(2 * EACH, 8) + 0.5, "y": torch.rand(2 * EACH, 8)}
        data = {"tensors": "validation.safetensors", "inputs": {"x": "x"}, "target": "y", "shuffle": False}

        def check(ranks, mpi, *told, **changes):
            result = self.succeed(self.train(ranks, mpi=mpi, validation={"data": data, "every": 3}, **changes))
            warnings = re.findall(r"warning: step (\d+): the validation loss is (\S+), and the training", result.out)
            self.assertEqual(warnings, list(told), result.out)
            lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], list(range(1, 9)))
            losses = {line["step"]: line["validation"]["loss"] for line in lines if "validation" in line}
            self.assertEqual(losses, {3: None, 6: None})
            self.assert_saved(8)

        for what in ("nan", "inf"):
            rows["y"][EACH + 1, 0] = float(what)
            save_file(rows, self.path("validation.safetensors"))
            for ranks, mpi in self.everywhere():
                check(ranks, mpi, ("3", what), ("6", what))
                self.assert_same_tensors(load_file(self.path("trained.safetensors")), plain)
        self.clean()
        check(2, False, nan="ignore")
        self.clean()
        check(2, True, ("3", what), ("6", what), schedule="pipedream")
        result = run_ranks(2, "eval", self.package, self.job(data=data), "--conf", self.path("2.json"))
        self.assert_fails(result, r"loss: is inf: sample 9 of \S+job\.json: data\.target")

    def test_steps_that_overlap(self):
        self.data(37, 0, 0.)
        for mpi in (True, False):
            self.clean()
            result = self.train(2, mpi=mpi, schedule="pipedream", checkpoint={"to": "checkpoints", "every": 2})
            self.assert_fails(result, r'rank 0, stage 0, action \S*STEP\S*: the gradient of "s": is nan')
            self.assert_saved(2, 4)

    def test_restarts_go_to_an_older_checkpoint(self):
        self.data(37, 0, 0.)
        result = call([RUN, "--restarts", 5, "-n", 2, "train", self.package, self.job(), "--conf",
                       self.path("2.json")])
        self.assertEqual((result.code, result.left), (1, []), result.out)
        said = re.search(rf"two runs have failed from {self.checkpoints}/step-0000000([34]): the next one resumes "
                         rf"from the older {self.checkpoints}/step-0000000([23])", result.out)
        self.assertTrue(said, result.out)
        self.assertEqual(int(said[2]), int(said[1]) - 1)
        at = [result.out.index("resumed from"), said.start(),
              result.out.rindex(f"resumed from {self.checkpoints}/step-0000000{said[2]}"),
              result.out.index("is not started again")]
        self.assertEqual(at, sorted(at), result.out)
        self.assertIn("the run ended with code 1 after step 4; restart 1 of 5 on 2 ranks", result.out)
        self.assert_saved(4)

    def test_restarts_after_resuming_from_an_older_checkpoint(self):
        """They use the run's own checkpoints, and never those of the earlier run."""
        self.data(37, 0, 0.)
        self.assert_fails(self.train(2), 'the gradient of "s" holds nan')
        self.assert_saved(4)
        result = call([RUN, "--restarts", 3, "-n", 2, "train", self.package, self.job(), "--conf", self.path("2.json"),
                       "--resume-from", f"{self.checkpoints}/step-00000002"])
        self.assertEqual((result.code, result.left), (1, []), result.out)
        self.assertEqual([int(step) for step in re.findall(r"resumed from \S*/step-0*(\d+)\n", result.out)], [2, 4, 4, 3])

    def test_a_sample_that_is_nan_is_not_run_again(self):
        self.data(37, 0, float("nan"))
        result = call([RUN, "--restarts", 5, "-n", 2, "train", self.package, self.job(), "--conf",
                       self.path("2.json")])
        self.assertEqual((result.code, result.left), (1, []), result.out)
        self.assertEqual(result.out.count("sample 37"), 1, result.out)
        self.assertIn("the run ended with code 1 after step 4; another run would fail the same way", result.out)


if __name__ == "__main__":
    unittest.main()
