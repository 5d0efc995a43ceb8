"""Optimizers, learning rates, clipping, frozen parameters, losses by count: PyTorch's, to the bit."""
import copy
import json
import unittest

import numpy as np
import torch
from safetensors.torch import save_file

from support import (ADAMW, LENGTH, SGD, Case, bits, export, export_gpt, gpt, pipewright, run_ranks,
                     token_job)

STEPS = 6


class Optimizers(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {}
        for name, tied in (("untied", False), ("tied", True)):
            cls.models[name] = gpt(layers=4, tied=tied)
            export_gpt(cls.models[name], cls.folder / f"{name}.pt2")
            cls.compile(f"{name}.pt2", f"{name}.pkg")
            for ranks in (1, 2, 3, 4):
                pipewright("conf", cls.folder / f"{name}.pkg", "--ranks", ranks, "-o",
                           cls.folder / f"{name}_{ranks}.json")

    def run_job(self, job, ranks, name="untied", mpi=False):
        return self.train(self.path(f"{name}.pkg"), job, ranks, mpi, self.path(f"{name}_{ranks}.json"))

    def metrics(self):
        return [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]

    def check(self, ranks=3, mpi=False, name="untied", **changes):
        job = token_job(steps=STEPS, **changes)
        ours = self.run_job(job, ranks, name, mpi)
        model = copy.deepcopy(self.models[name])
        theirs = self.train_pytorch(model, job)
        self.assert_same_run(ours, theirs, f"{changes}: ")
        return ours, job

    def test_optimizers(self):
        for ranks, optimizer in enumerate((
                {**ADAMW, "type": "adam", "amsgrad": True},
                {"type": "rmsprop", "lr": 1e-3, "weight_decay": 1e-3, "momentum": 0.5},
                {"type": "rmsprop", "lr": 1e-3, "alpha": 0.9, "centered": True},
                {"type": "adagrad", "lr_decay": 0.01, "initial_accumulator_value": 0.1}), 1):
            self.check(ranks, optimizer=optimizer)

    def test_muon(self):
        others = {**ADAMW, "match": ["embedding.*", "position.*"]}
        groups = [{"match": ["*.bias", "blocks.1.*"], "lr": 1e-3, "weight_decay": 0}]
        for ranks, changes in ((3, {"lr_schedule": {"type": "linear", "warmup": 2}, "groups": groups}),
                               (1, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False})):
            self.check(ranks, optimizer={"type": "muon", "lr": 0.02, "others": others, **changes})
        job = token_job(optimizer={"type": "muon", "others": {**ADAMW, "match": ["embeding.*"]}})
        self.assert_fails(run_ranks(1, "train", self.path("untied.pkg"), self.write_job(job), mpi=False),
                          'optimizer.others.match: "embeding.*" matches no parameter')

    def test_rates_groups_and_frozen_parameters(self):
        groups = [{"match": ["*.bias", "norm*"], "weight_decay": 0},
                  {"match": "blocks.1.*", "lr": 1e-4}]
        rates = ({"type": "cosine", "warmup": 2, "end": 0.1},
                 {"type": "linear", "steps": 4},
                 {"type": "polynomial", "power": 2, "end": 0.2},
                 {"type": "step", "every": 2, "gamma": 0.5, "warmup": 1})
        for rate, optimizer, freeze in zip(rates, (ADAMW, SGD, ADAMW, SGD), (
                [], ["position.weight"], ["embedding.*", "position.*", "blocks.0.*"], [])):
            ours, job = self.check(3, optimizer={**optimizer, "lr_schedule": rate, "groups": groups},
                                   freeze=freeze)
            for name, weight in ours.weights.items():
                if any(name.startswith(f.rstrip("*")) for f in freeze):
                    self.assertTrue(torch.equal(weight, self.models["untied"].state_dict()[name]))

    def test_a_schedule_without_a_length_is_as_long_as_the_run(self):
        optimizer = {**SGD, "lr_schedule": {"type": "cosine", "warmup": 1}}
        self.run_job(token_job(steps=STEPS, optimizer=optimizer), 2)
        expected = [line["learning_rate"] for line in self.metrics()]
        self.assertGreater(min(expected), 0)

        def lengthened(steps):
            job = self.write_job(token_job(steps=steps, optimizer=optimizer))
            result = self.succeed(run_ranks(
                2, "train", self.path("untied.pkg"), job, "--conf", self.path("untied_2.json"), "--steps", STEPS,
                "--metrics", self.path("metrics.jsonl"), mpi=False))
            return result.out, [line["learning_rate"] for line in self.metrics()]

        told, rates = lengthened(None)
        self.assertEqual(rates, expected)
        self.assertNotIn("the learning rate is 0", told)
        told, rates = lengthened(3)  # the schedule keeps the length that the job gives it
        self.assertEqual([rate > 0 for rate in rates], [True] * 3 + [False] * 3)
        self.assertRegex(told, r"warning: \S+job\.json: optimizer\.lr_schedule: the learning rate is 0 from step 4 "
                               f"on: the schedule has 3 steps, and the run {STEPS}")

    def test_a_loss_that_trains_nothing(self):
        class Detached(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)

            def forward(self, x):
                return self.linear(x), self.linear(x).detach() * 2

        export(Detached(), torch.rand(2, 4), self.path("detached.pt2"))
        save_file({"x": torch.rand(32, 4), "y": torch.rand(32, 4)}, self.path("rows.safetensors"))
        job = token_job(loss={"type": "mse", "output": 1}, data={
            "tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"})
        self.assert_fails(
            run_ranks(1, "train", self.compile("detached.pt2", "detached.pkg"),
                      self.write_job(job), mpi=False),
            "step 1, rank 0, stage 0: the loss does not depend on any trainable weight")

    def test_clipping_agrees_on_every_rank(self):
        """A tied weight counts once, and its gradients are summed in another order than PyTorch's."""
        job = token_job(steps=STEPS, optimizer={**SGD, "clip_norm": 0.5})
        for name, confs in (("untied", ((1, False), (3, True), (4, False))),
                            ("tied", ((1, False), (3, False)))):
            runs, norms = [], []
            for ranks, mpi in confs:
                runs.append(self.run_job(job, ranks, name, mpi))
                norms.append([line["gradient_norm"] for line in self.metrics()])
                self.assert_same_run(runs[-1], runs[0])
                self.assertEqual(norms[-1], norms[0])
            self.assertGreater(min(norms[0]), 0.5)
            model = copy.deepcopy(self.models[name])
            theirs = self.train_pytorch(model, job)
            kept = [n for n, _ in model.named_parameters()]
            if name == "untied":
                self.assert_same_run(runs[0], theirs)
            self.assert_close_tensors(runs[0].weights, {n: theirs.weights[n] for n in kept}, 1e-5)
            total = sum(theirs.gradients[n].double().square().sum() for n in kept).sqrt().item()
            self.assertAlmostEqual(total, 0.5, delta=1e-5)

    def test_clipping_sums_norms_in_the_order_of_the_models_parameters(self):
        """40 parameters, used in another order, in one dtype and in two."""
        class Shuffled(torch.nn.Module):
            def __init__(self, low):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(20))
                for i, layer in enumerate(self.layers):
                    torch.nn.init.normal_(layer.weight, std=0.1 + 0.02 * i)
                for layer in self.layers[5:12] if low else []:
                    layer.bfloat16()

            def forward(self, x):
                for i in range(20):
                    layer = self.layers[(7 * i + 3) % 20]
                    x = torch.tanh(layer(x.to(layer.weight.dtype))).float() + x
                return x

        torch.manual_seed(4)
        rows = {"x": torch.randn(96, 12), "y": torch.randn(96, 12)}
        save_file(rows, self.path("wide.safetensors"))
        batch = torch.export.Dim("batch", min=1, max=64)
        for low in (False, True):
            model = Shuffled(low).train()
            example = rows["x"][:2]
            for strict in (False, True):
                torch.export.save(torch.export.export(
                    model, (example,), dynamic_shapes=({0: batch},), strict=strict),
                    self.path(f"strict{strict}.pt2"))
            torch.jit.trace(model, example).save(self.path("traced.pt"))
            job = token_job(steps=20, loss="mse", microbatch_size=4, data={
                "tensors": "wide.safetensors", "inputs": {"x": "x"}, "target": "y"},
                optimizer={**SGD, "clip_norm": 0.05})
            theirs = self.train_pytorch(copy.deepcopy(model), job)
            ours = {**job, "optimizer": {**job["optimizer"], "master_weights": False}}
            for file, ranks in (("strictFalse.pt2", 3), ("strictTrue.pt2", 2), ("traced.pt", 1)):
                package = self.compile(file, "wide.pkg", "--split", "equal:3", "--ranks", ranks)
                self.assert_same_run(self.train(package, ours, ranks, False), theirs, f"{file}, {low}: ")

    def test_clipping_in_double(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
        rows = {"x": torch.rand(40, 6).double(), "y": torch.rand(40, 3).double()}
        save_file(rows, self.path("double.safetensors"))
        export(model, rows["x"][:2], self.path("double.pt2"))
        package = self.compile("double.pt2", "double.pkg", "--split-after", "1", "--ranks", "2")
        job = token_job(steps=STEPS, loss="mse", optimizer={**SGD, "clip_norm": 0.01}, data={
            "tensors": "double.safetensors", "inputs": {"input": "x"}, "target": "y"})
        ours = self.train(package, job, 2, False)
        theirs = self.train_pytorch(model, job)
        self.assert_same_tensors(ours.weights, theirs.weights)

    def test_complex_parameters(self):
        """All optimizers but SGD treat the two parts of a complex number as two parameters."""
        class Spectrum(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(4, 4, 9, dtype=torch.cfloat) / 4)
                self.conv = torch.nn.Conv1d(4, 4, 1)

            def forward(self, x):
                return torch.fft.irfft(torch.einsum("bix,iox->box", torch.fft.rfft(x), self.weight), n=16) + self.conv(x)

        torch.manual_seed(1)
        model = torch.nn.Sequential(Spectrum(), torch.nn.Tanh(), Spectrum())
        rows = {"x": torch.rand(40, 4, 16), "y": torch.rand(40, 4, 16)}
        save_file(rows, self.path("complex.safetensors"))
        export(model, rows["x"][:2], self.path("complex.pt2"))
        package = self.compile("complex.pt2", "complex.pkg", "--split-after", "1", "--ranks", "2")
        for optimizer in (SGD, {**ADAMW, "type": "adam", "amsgrad": True}, {"type": "rmsprop", "lr": 1e-3},
                          {"type": "adagrad", "initial_accumulator_value": 0.1}, {**SGD, "clip_norm": 0.01}):
            job = token_job(steps=STEPS, loss="mse", optimizer=optimizer, data={
                "tensors": "complex.safetensors", "inputs": {"input": "x"}, "target": "y"})
            ours = self.train(package, job, 2, False)
            theirs = self.train_pytorch(copy.deepcopy(model), job)
            self.assert_close_tensors(ours.weights, theirs.weights, 1e-6)

    def test_accumulation_is_one_step_of_more_microbatches(self):
        for ranks, name in ((3, "untied"), (2, "untied")):
            self.check(ranks, name=name, accumulate=3, microbatches=2)
        tied = [self.run_job(token_job(steps=3, **changes), ranks, "tied") for ranks, changes in (
            (1, {"accumulate": 2, "microbatches": 2}), (3, {"accumulate": 2, "microbatches": 2}),
            (3, {"microbatches": 4}))]
        for run in tied[1:]:
            self.assert_same_tensors(run.weights, tied[0].weights)

    def padded_job(self, **changes):
        """Sequences padded at the end, of very different lengths; microbatch 0 of the first step has no
        targets at all."""
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(256, (40, LENGTH), generator=generator)
        target = torch.randint(1, 256, (40, LENGTH), generator=generator)
        lengths = torch.randint(1, LENGTH + 1, (40,), generator=generator)
        target[torch.arange(LENGTH) >= lengths[:, None]] = -100
        target[:2] = -100
        files = []
        for i, rows in enumerate((slice(0, 7), slice(7, 40))):
            files.append(f"part{i}.safetensors")
            save_file({"x": tokens[rows].contiguous(), "y": target[rows].contiguous()},
                      self.path(files[-1]))
        for name, tensor in (("x", tokens), ("y", target)):
            np.save(self.path(f"{name}.npy"), tensor.numpy())
        data = {"tensors": files, "inputs": {"tokens": "x"}, "target": "y", "shuffle": False}
        return token_job(**{"data": data, "steps": STEPS, **changes})

    def test_the_loss_is_the_mean_over_all_targets_that_count(self):
        job = self.padded_job()
        model = copy.deepcopy(self.models["untied"])
        theirs = self.train_pytorch(model, job)
        for ranks in (1, 3):
            self.assert_same_run(self.run_job(job, ranks), theirs)
        losses = [line["loss"] for line in self.metrics()]
        # All samples in one microbatch: the same mean, other rounding.
        whole = {**job, "microbatches": 1, "microbatch_size": 8}
        self.run_job(whole, 2)
        for a, b in zip(losses, (line["loss"] for line in self.metrics()), strict=True):
            self.assertAlmostEqual(a, b, delta=1e-6 * b)
        arrays = {"arrays": {"x": "x.npy", "y": ["y.npy"]}, "inputs": {"tokens": "x"}, "target": "y",
                  "shuffle": False}
        self.assert_same_run(self.run_job({**job, "data": arrays}, 2), theirs)
        other = {**job, "loss": {"type": "cross_entropy", "label_smoothing": 0.1}, "accumulate": 2,
                 "microbatches": 2, "steps": 3}
        self.assert_same_run(self.run_job(other, 3),
                             self.train_pytorch(copy.deepcopy(self.models["untied"]), other))

    def test_loss_scaling_skips_a_step_on_every_rank(self):
        """A scale that overflows float32 is halved until it does not."""
        plain = self.run_job(token_job(steps=STEPS), 3)
        scaled = self.run_job(token_job(steps=STEPS, loss_scale=1024), 3)
        self.assert_same_run(scaled, plain)  # powers of two change no bit
        self.assert_same_run(self.run_job(token_job(steps=STEPS, loss_scale=1), 3), plain)
        self.assertEqual([(line["skipped"], line["gradient_norm"] > 0) for line in self.metrics()],
                         [(False, True)] * STEPS)
        start = 2.0**129
        job = token_job(steps=STEPS, loss_scale={"initial": start, "backoff": 2.0**-70, "interval": 3})
        runs = [self.run_job(job, ranks) for ranks in (1, 3)]
        self.assert_same_run(*runs)
        lines = self.metrics()
        self.assertEqual([line["skipped"] for line in lines], [True] + [False] * 5)
        self.assertEqual([line["loss_scale"] for line in lines],
                         [start] + [2.0**59] * 3 + [2.0**60] * 2)
        self.assertEqual(bits(lines[0]["losses"])[0], bits(plain.losses[0])[0])

    def test_sixteen_bit_weights(self):
        half = copy.deepcopy(self.models["untied"]).bfloat16()
        export_gpt(half, self.path("half.pt2"))
        package = self.compile("half.pt2", "half.pkg", "--ranks", "3")
        rates = {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.02}
        for masters in (True, False):
            with self.subTest(masters=masters):
                job = token_job(steps=STEPS,
                                optimizer={"type": "adamw", "master_weights": masters, **rates})
                ours = self.train(package, job, 3, False)
                theirs = self.train_sixteen_bits(copy.deepcopy(half), job, rates, masters)
                self.assert_same_tensors(ours.weights, theirs)

    def train_sixteen_bits(self, model, job, rates, in_float):
        """Trains the same in PyTorch. `in_float`: adds gradients and keeps weights in float32."""
        parameters = dict(model.named_parameters())
        masters = {n: (p.detach().float() if in_float else p.detach().clone()).requires_grad_()
                   for n, p in parameters.items()}
        optimizer = torch.optim.AdamW(masters.values(), **rates)
        from support import one_process
        data = one_process.Data(job["data"], self.folder)
        for step in range(STEPS):
            sums = {n: torch.zeros_like(m) for n, m in masters.items()}
            for rows in one_process.microbatches(data, job, step):
                inputs, target = data.batch(rows)
                output = model(*inputs)
                loss = torch.nn.functional.cross_entropy(
                    output.reshape(-1, 256).float(), target.reshape(-1))
                for (name, _), g in zip(parameters.items(), torch.autograd.grad(loss, parameters.values())):
                    sums[name] += g.to(sums[name].dtype)
            for name, master in masters.items():
                master.grad = sums[name] / job["microbatches"]
            optimizer.step()
            with torch.no_grad():
                for name, p in parameters.items():
                    p.copy_(masters[name])
        return {n: p.detach() for n, p in parameters.items()}

    def test_refusals(self):
        for changes, message in (
                ({"freeze": ["blocks.9.*"]}, r"freeze: \"blocks\.9\.\*\" matches no parameter"),
                ({"freeze": ["*"]}, "freezes every parameter"),
                ({"optimizer": {**SGD, "groups": [{"match": ["*.bia"], "lr": 1}]}},
                 r"groups\[0\]\.match: \"\*\.bia\" matches no parameter"),
                ({"optimizer": {**SGD, "betas": [0, 0]}}, "betas"),
                ({"optimizer": {**SGD, "lr_schedule": {"type": "cosine", "gamma": 1}}},
                 r"lr_schedule\.gamma: is not a key of type")):
            from support import run_ranks
            self.assert_fails(run_ranks(2, "train", self.path("untied.pkg"),
                                        self.write_job(token_job(**changes)), "--conf",
                                        self.path("untied_2.json"), mpi=False), message)


if __name__ == "__main__":
    unittest.main()
