"""eval and infer run without dropout, and the weights that train saves load in Python."""
import json
import os
import subprocess
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
from torch.distributed.pipelining import pipe_split

from support import ENVIRONMENT, LENGTH, RUN, Case, bits, export_gpt, gpt, one_process, run_ranks, token_job


class Forward(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = gpt(tied=True, layers=4, dropout=0.2)
        export_gpt(cls.model, cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")

    def test_evaluation_has_no_dropout(self):
        job = token_job(steps=3)
        wanted = [x for losses in one_process.evaluate(self.model, job, self.folder)
                  for x in losses]
        self.model.train()
        for mpi in (True, False):
            self.succeed(run_ranks(3, "eval", self.package, self.write_job(job), "--steps", 3,
                                   "--metrics", self.path("eval.jsonl"), mpi=mpi))
            loss = json.loads(self.path("eval.jsonl").read_text())["loss"]
            self.assertAlmostEqual(loss, sum(wanted) / len(wanted), delta=1e-12)

    def test_inference_has_no_dropout(self):
        tokens = torch.randint(256, (8, LENGTH))  # the last microbatch is smaller
        save_file({"tokens": tokens}, self.path("in.safetensors"))
        with torch.no_grad():
            wanted = torch.cat([self.model.eval()(part) for part in tokens.chunk(3)])
        self.model.train()
        name = json.loads((self.package / "manifest.json").read_text())["outputs"][0]
        for mpi in (True, False):
            self.succeed(run_ranks(3, "infer", self.package, "--input", self.path("in.safetensors"),
                                   "-o", self.path("out.safetensors"), "--microbatches", 3, mpi=mpi))
            self.assert_same_tensors(load_file(self.path("out.safetensors")), {name: wanted})
        conf = {"module_to_stage_map": [0, 0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1, 2]}}
        self.path("replicas.json").write_text(json.dumps(conf))
        self.succeed(run_ranks(3, "infer", self.package, "--input", self.path("in.safetensors"),
                               "-o", self.path("out.safetensors"), "--microbatches", 3, "--conf",
                               self.path("replicas.json"), mpi=False))
        self.assert_same_tensors(load_file(self.path("out.safetensors")), {name: wanted})

    def test_bits_do_not_depend_on_how_ranks_are_started(self):
        class Sum(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Linear(1024, 1024)

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                return (y * y).sum().reshape(1)  # the bits depend on the number of threads

        torch.manual_seed(0)
        model, x = Sum(), torch.randn(256, 1024) / 1000
        torch.export.save(torch.export.export(model, (x,)), self.path("sum.pt2"))
        package = self.compile("sum.pt2", "sum.pkg")
        save_file({"x": x}, self.path("in.safetensors"))
        arguments = ["infer", package, "--input", self.path("in.safetensors"), "-o",
                     self.path("out.safetensors")]
        self.succeed(run_ranks(2, *arguments, mpi=True))
        wanted = load_file(self.path("out.safetensors"))
        free = {**os.environ, **ENVIRONMENT}
        del free["OMP_NUM_THREADS"]
        for threads, environment in (([], free), (["--threads", "1"], {**free, "OMP_NUM_THREADS": "2"})):
            subprocess.run([RUN, "--in-process", "2", *arguments, *threads], env=environment, check=True)
            self.assert_same_tensors(load_file(self.path("out.safetensors")), wanted)

    def test_nested_inputs_and_outputs(self):
        class Nested(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

            def forward(self, x, *, sides):
                left, (right, scale) = sides["left"], sides["right"]
                y = torch.view_as_complex(self.a(left).view(-1, 2, 2)).conj()
                pipe_split()
                z = self.b(right) * scale + torch.view_as_real(y * 2).flatten(1)
                return {"z": z, "none": None, "turned": y, "rows": x.shape[0], "given": (x, 7)}

        model, x = Nested(), torch.randn(3, 4)
        sides = {"left": torch.randn(3, 4), "right": (torch.randn(3, 4), torch.randn(3, 1))}
        torch.export.save(torch.export.export(model, (x,), {"sides": sides}, strict=False),
                          self.path("nested.pt2"))
        package = self.compile("nested.pt2", "nested.pkg")
        flat = [x, sides["left"], *sides["right"]]
        names = json.loads((package / "manifest.json").read_text())["inputs"]
        save_file(dict(zip(names, flat)), self.path("in.safetensors"))
        self.succeed(run_ranks(2, "infer", package, "--input", self.path("in.safetensors"), "-o",
                               self.path("out.safetensors"), mpi=False))
        found = load_file(self.path("out.safetensors"))
        with torch.no_grad():
            wanted = model(x, sides=sides)
        self.assert_same_tensors(found, {
            "z": wanted["z"], "turned": wanted["turned"].resolve_conj(), "x_out": x,
            "rows": torch.tensor(3), "given_1": torch.tensor(7)})

    def test_inputs_that_the_outputs_asked_for_do_not_need(self):
        class Scored(torch.nn.Module):
            """Computes its loss, in separate modules; `unused` has no effect."""

            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))

            def forward(self, x, target, unused):
                h = self.a(x)
                pipe_split()
                guess = self.b(h)
                pipe_split()
                loss = ((self.c(guess) - target) ** 2).mean()
                return {"guess": guess, "loss": loss}

        model, x = Scored(), torch.randn(6, 4)
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        torch.export.save(torch.export.export(model, (x, x + 1, x.clone()), dynamic_shapes=(batch,) * 3),
                          self.path("scored.pt2"))
        package = self.compile("scored.pt2", "scored.pkg")
        self.path("two.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1]}}))

        def infer(given, *options, ranks=3, mpi=False):
            save_file(given, self.path("in.safetensors"))
            return run_ranks(ranks, "infer", package, "--input", self.path("in.safetensors"), "-o",
                             self.path("out.safetensors"), *options, mpi=mpi)

        with torch.no_grad():
            wanted = model(x, x + 1, x)
        self.succeed(infer({"x": x, "target": x + 1}))
        self.assert_same_tensors(load_file(self.path("out.safetensors")), wanted)
        result = infer({"x": x})
        self.assert_fails(result, 'no tensor "target"', '; --outputs guess needs none$')
        for options in ({}, {"mpi": True}, {"ranks": 2}):
            more = ("--conf", self.path("two.json")) if options.get("ranks") else ()
            self.succeed(infer({"x": x}, "--outputs", "guess", *more, **options))
            self.assert_same_tensors(load_file(self.path("out.safetensors")),
                                     {"guess": wanted["guess"]})
        self.succeed(infer({"x": x}, "--outputs", "guess", "--microbatches", 3))
        self.assert_fails(infer({"target": x}, "--outputs", "guess"), 'no tensor "x"')
        self.assert_fails(infer({"x": x}, "--outputs", "gess"),
                          r'no output "gess" \(did you mean "guess"\?\)')

    def test_weights_are_not_read_over_those_of_the_package(self):
        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.norm, self.b = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)

            def forward(self, x):
                x = self.norm(self.a(x))
                pipe_split()
                return self.b(x)

        model, x = Plain().eval(), torch.randn(6, 4)
        torch.export.save(torch.export.export(model, (x,)), self.path("plain.pt2"))
        package = self.compile("plain.pt2", "plain.pkg")
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.add_(1)
            wanted = model(x)
        save_file(model.state_dict(), self.path("more.safetensors"))
        save_file({"x": x}, self.path("in.safetensors"))
        for file in (package / "weights").iterdir():
            file.unlink()  # not needed here
        self.succeed(run_ranks(2, "infer", package, "--input", self.path("in.safetensors"), "-o",
                               self.path("out.safetensors"), "--weights", self.path("more.safetensors"),
                               mpi=False))
        self.assert_same_tensors({"y": wanted}, {"y": next(iter(
            load_file(self.path("out.safetensors")).values()))})

    def test_training_has_dropout(self):
        job = token_job(steps=1)
        trained = self.train(self.package, job, 3)
        evaluated = next(one_process.evaluate(self.model, job, self.folder))
        self.model.train()
        self.assertNotEqual(bits(trained.losses[0]), bits(evaluated))

    def test_dropout_does_not_depend_on_ranks(self):
        job = token_job(steps=3)
        conf = {"module_to_stage_map": [0, 0, 0, 0], "stage_to_rank_map": {"0": [0]}}
        self.path("one.json").write_text(json.dumps(conf))
        self.assert_same_run(self.train(self.package, job, 1, conf=self.path("one.json")),
                             self.train(self.package, job, 3))

    def test_saved_weights_load_strictly(self):
        self.train(self.package, token_job(steps=2), 3)
        file = self.path("trained.safetensors")
        model = gpt(tied=True, layers=4, dropout=0.2, seed=9)
        self.assertEqual(load_model(model, file, strict=True), (set(), []))
        self.assertIs(model.head.weight, model.embedding.weight)
        with safe_open(file, "pt") as opened:
            self.assertIn("embedding.weight", opened.keys())
            self.assertNotIn("head.weight", opened.keys())
            self.assertEqual(opened.metadata().get("head.weight"), "embedding.weight")


if __name__ == "__main__":
    unittest.main()
