"""A run that is killed at any of its writes and resumed prints and computes what it would have otherwise."""
import json
import os
import random
import re
import shutil
import unittest

import torch
import torch.nn as nn
from safetensors.torch import load_file, save_file

from support import ADAMW, RUN, Case, Statistics, call, export, run_ranks, watching

LONG = bool(os.environ.get("PIPEWRIGHT_LONG"))
TIMES = ("samples_per_second", "seconds", "bubble", "memory", "checkpoint")


class Counts(nn.Module):
    """Computes with a buffer that the state dict lacks, and that forward writes."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        for name in ("mean", "norm_mean", "norm_var"):
            self.register_buffer(name, torch.full((6,), float(name == "norm_var")), persistent=False)

    def forward(self, x):
        y = self.norm(torch.tanh(self.a(x - self.mean)))
        y = nn.functional.batch_norm(y, self.norm_mean, self.norm_var, training=self.training)
        self.mean.lerp_(y.detach().mean(0), 0.3)
        return x + y


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Counts() for _ in range(4)], nn.Linear(6, 3))

    def forward(self, x):
        return self.layers(x)


class Resume(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(0)
        export(Statistics().train(), torch.rand(2, 6), cls.folder / "model.pt2")
        cls.package = cls.compile("model.pt2", "model.pkg")
        for name, rows in (("rows", 40), ("others", 16)):
            x = torch.randn(rows, 6)
            x[1::2] *= 3
            save_file({"x": x, "y": torch.randn(rows, 3)}, cls.folder / f"{name}.safetensors")
        (cls.folder / "conf.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}}))

    def setUp(self):
        self.out = self.path("out")
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()

    def job(self, **changes):
        def data(name):
            return {"tensors": str(self.path(f"{name}.safetensors")), "inputs": {"x": "x"},
                    "target": "y"}
        job = {"data": {**data("rows"), "shuffle": True}, "loss": "mse",
               "optimizer": {**ADAMW, "lr": 0.02}, "microbatches": 4, "microbatch_size": 2, "steps": 6,
               "seed": 3, "threads": 1, "log_every": 1, "metrics": "out/metrics.jsonl",
               "validation": {"data": data("others"), "every": 1},
               "checkpoint": {"every": 2, "keep": 2, "to": "out/checkpoints"},
               "save": "out/trained.safetensors"}
        job = {key: value for key, value in {**job, **changes}.items() if value is not None}
        return self.write_job(job)

    def run_it(self, *options, mpi=False, **environment):
        program = ["mpirun", "-n", 3, RUN] if mpi else [RUN, "--in-process", 3]
        return call([*program, "train", self.package, self.path("job.json"), "--conf",
                     self.path("conf.json"), *options],
                    environment=environment and watching(self.out, **environment))

    def said(self):
        """Returns the metrics without times, and the weights."""
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            for key in TIMES:
                line.pop(key, None)
        return lines, load_file(self.out / "trained.safetensors")

    def assert_same(self, ours, theirs, what):
        self.assertEqual(ours[0], theirs[0], what)
        self.assert_same_tensors(ours[1], theirs[1], what)

    def forget_after(self, step):
        for path in (self.out / "checkpoints").glob("step-*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)
        (self.out / "checkpoints/latest").write_text(f"step-{step:08}\n")

    def test_a_loss_scale_that_has_changed(self):
        """A new initial factor is used; otherwise, the factor and the number of good steps go on."""
        self.job(steps=2)
        self.succeed(self.run_it())
        for steps, interval in ((6, 3), (8, 1)):
            self.job(steps=steps, loss_scale={"initial": 1024.0, "interval": interval})
            self.succeed(self.run_it("--resume"))
        self.assertEqual([line.get("loss_scale") for line in self.said()[0]],
                         [None, None, 1024, 1024, 1024, 2048, 2048, 4096])

    def test_a_schedule_as_long_as_the_run_that_has_changed(self):
        """The job names no steps, so --steps says how long the schedule of the learning rate is."""
        self.job(steps=None, optimizer={**ADAMW, "lr": 0.02, "lr_schedule": {"type": "linear"}})
        self.succeed(self.run_it("--steps", 4))
        self.forget_after(2)
        self.assertNotIn("has changed since", self.succeed(self.run_it("--resume", "--steps", 4)).out)
        result = self.succeed(self.run_it("--resume", "--steps", 8))
        self.assertRegex(result.out, r'job\.json has changed since then, .*: "steps" from 4 to 8')
        self.assertEqual([round(line["learning_rate"], 9) for line in self.said()[0]],
                         [0.02, 0.015, 0.01, 0.005, 0.01, 0.0075, 0.005, 0.0025])

    def test_what_has_changed_since_the_checkpoint_is_told(self):
        data, other = self.path("changing.safetensors"), self.path("other.pkg")
        shutil.copy(self.path("rows.safetensors"), data)
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(self.package, other)

        def resumed(package, steps, *options):
            self.job(steps=steps, data={"tensors": str(data), "inputs": {"x": "x"}, "target": "y"},
                     validation=None)
            result = call([RUN, "--in-process", 3, "train", package, self.path("job.json"),
                           "--conf", self.path("conf.json"), "--resume", *options])
            self.succeed(result)
            return re.findall(r"warning: changed since (\S+) was written: (.*)\. The run uses the current files",
                              result.out)

        self.assertEqual(resumed(self.package, 2), [])
        self.assertEqual(resumed(self.package, 4), [])
        tensors = load_file(data)
        save_file({**tensors, "x": tensors["x"] + 1}, data)
        module = other / "modules/module1.py"
        module.write_text(module.read_text() + "\n# edited\n")
        (found, what), = resumed(other, 6)
        self.assertRegex(found, "step-00000004$")
        self.assertEqual(what, f"{data}, {module}")
        self.assertEqual(resumed(other, 8), [])
        # A run that compares whole files after one that does not, and vice versa.
        for steps, options in ((10, ["--verify-files"]), (12, [])):
            save_file({**tensors, "x": tensors["x"] + steps}, data)
            (_, what), = resumed(other, steps, *options)
            self.assertEqual(what, str(data))
        self.assertEqual(resumed(other, 14, "--verify-files"), [])
        latest = self.out / "checkpoints/latest"
        latest.write_text("step-00000012\n")
        result = self.run_it("--resume")
        self.assertRegex(result.out, r"warning: \S+/latest names \S+step-00000012, and "
                                     r"\S+step-00000014 is of a later step")

    def test_replicas_keep_their_own_statistics(self):
        for buffers in ("first", "merge"):
            with self.subTest(buffers):
                self.setUp()
                self.job(buffers=buffers)
                self.succeed(self.run_it())
                expected = self.said()
                self.forget_after(4)
                self.succeed(self.run_it("--resume"))
                self.assert_same(self.said(), expected, buffers)

    def test_buffers_are_found_if_the_package_is_cut_elsewhere(self):
        torch.manual_seed(0)
        export(Chain().train(), torch.rand(2, 6), self.path("chain.pt2"))
        places = []
        for name, cuts, stages in (("three", "modules:layers.1,layers.3", [0, 0, 1]),
                                   ("two", "modules:layers.3", [0, 1])):
            conf = self.path(f"{name}.json")
            conf.write_text(json.dumps({"module_to_stage_map": stages,
                                        "stage_to_rank_map": {"0": [0, 1], "1": [2]}}))
            places.append([self.compile("chain.pt2", f"{name}.pkg", "--split", cuts),
                           self.path("job.json"), "--conf", conf])
        self.job()
        train = [RUN, "--in-process", 3, "train"]
        for first, other in (places[:1]*2, places[1:]*2, places, places[::-1]):
            shutil.rmtree(self.out)
            self.out.mkdir()
            self.succeed(call([*train, *first]))
            expected = self.said()
            self.forget_after(4)
            self.succeed(call([*train, *other, "--resume"]))
            self.assert_same(self.said(), expected, "cut elsewhere")
        self.job(validation=None, checkpoint=None)
        self.succeed(call([*train, *places[0]]))
        self.assert_same_tensors(self.said()[1], expected[1], "validation changes no buffer")

    def kill_at_writes(self, parts, mpi=False, **environment):
        """Kills the run in each of its parts; in a long test, at every write."""
        self.setUp()
        self.job()
        count = self.path("count")
        self.succeed(self.run_it(mpi=mpi, WATCH_COUNT=count, **environment))
        expected = self.said()
        self.assertEqual([line["step"] for line in expected[0]], list(range(1, 7)))
        writes = int(count.read_text().split()[0])
        self.assertGreater(writes, 20)
        chance = random.Random()
        seed = int(os.environ.get("KILL_SEED", chance.randrange(1 << 30)))
        print(f"{writes} writes, KILL_SEED={seed} {environment or ''}", flush=True)
        chance = random.Random(seed)
        parts = writes if LONG else parts
        for part in range(parts):
            at = chance.randrange(part * writes // parts, (part + 1) * writes // parts) + 1
            self.setUp()
            killed = self.run_it("--resume", mpi=mpi, KILL_AT=at, **environment)
            again = self.succeed(self.run_it("--resume", mpi=mpi))
            self.assert_same(self.said(), expected,
                             f"killed at write {at} of {writes} ({killed.code}):\n{killed.out}\n{again.out}")
            # A checkpoint that should have been removed at that time is removed after the next checkpoint.
            left = {path.name for path in (self.out / "checkpoints").iterdir()}
            self.assertEqual(left - {"step-00000002"}, {"latest", "step-00000004", "step-00000006"},
                             f"write {at}")

    def test_killed_at_a_write(self):
        self.kill_at_writes(24)

    def test_a_rank_killed_at_a_write(self):
        for rank in range(3):
            self.kill_at_writes(3, mpi=True, WATCH_RANK=rank)


class Reads(Case):
    """What a start reads of more than a megabyte of weights, of which ranks compare 64 blocks of 4 KiB."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(0)
        cls.net = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
        export(cls.net, torch.rand(2, 600), cls.folder / "model.pt2")
        cls.package = cls.compile("model.pt2", "model.pkg", "--split", "modules:1")
        save_file({"x": torch.rand(8, 600), "y": torch.rand(8, 600)}, cls.folder / "rows.safetensors")

    def read(self, *options, steps):
        """Returns the bytes that one start reads, by file."""
        count = self.path("count")
        job = self.write_job({
            "data": {"tensors": "rows.safetensors", "inputs": {"input": "x"}, "target": "y"}, "loss": "mse",
            "optimizer": {**ADAMW}, "microbatches": 2, "microbatch_size": 2, "steps": steps, "threads": 1,
            "checkpoint": {"every": 100, "to": "checkpoints"}})
        self.succeed(run_ranks(2, "train", self.package, job, *options, mpi=False,
                               environment=watching(self.folder, WATCH_COUNT=count)))
        lines = [line.split() for line in count.read_text().splitlines()[1:]]
        return {path: int(count) for count, path in lines}

    def payload(self, path):
        with open(path, "rb") as file:
            return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")

    def test_each_tensor_is_read_once(self):
        given = self.path("given.safetensors")
        save_file(self.net.state_dict(), given)
        package = sorted(self.package.glob("weights/*.safetensors"))
        self.assertEqual(len(package), 2)

        def assert_read(read, once, skipped):
            for path in once:
                size = self.payload(path)
                self.assertEqual(read[str(path)] // size, 1, f"{path}: {read}")
            for path in skipped:
                self.assertLess(read.get(str(path), 0), self.payload(path), f"{path}: {read}")

        assert_read(self.read("--weights", given, steps=1), [given], package)
        shutil.rmtree(self.path("checkpoints"))
        assert_read(self.read("--resume", steps=1), package, [given])  # there is no checkpoint
        shards = sorted(self.path("checkpoints/step-00000001").glob("*.safetensors"))
        self.assertEqual(len(shards), 4)
        for options in ((), ("--weights", given)):
            read = self.read("--resume", *options, steps=2)
            assert_read(read, shards, [*package, given])
            self.assertEqual([read[str(shard)] for shard in shards], [self.payload(shard) for shard in shards])
            shutil.rmtree(self.path("checkpoints/step-00000002"))
            self.path("checkpoints/latest").write_text("step-00000001\n")


if __name__ == "__main__":
    unittest.main()
