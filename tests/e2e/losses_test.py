"""Several losses at several stages, minibatches and microbatches of different sizes, sequences of
different lengths: PyTorch's, to the bit."""
import copy
import unittest

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from support import (ADAMW, RUN, LENGTH, Case, bits, call, one_process, run_ranks, token_job)

SAMPLES = 21


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.value = torch.nn.Linear(16, 1)
        self.hidden = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 8)

    def forward(self, tokens):
        x = self.embedding(tokens).tanh()
        value = self.value(x.mean(1))
        return {"logits": self.head(self.hidden(x).relu()), "value": value}


class Crossed(torch.nn.Module):
    """Its keys are also names of operations within, each another's."""

    def forward(self, x):
        first = torch.relu(x)
        second = torch.relu(first - 1)
        return {"relu_1": first * 10, "relu": second * 100, "mul": x * 2, "x": x + 1}


class Losses(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(2)
        cls.model = Two()
        sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=1, max=64)}
        example = torch.randint(32, (3, LENGTH))
        torch.export.save(torch.export.export(cls.model, (example,), dynamic_shapes=(sizes,)),
                          cls.folder / "two.pt2")
        cls.package = cls.compile("two.pt2", "two.pkg", "--split-after", "value,hidden", "--ranks", "3")
        lengths = torch.randint(1, LENGTH + 1, (SAMPLES,))
        y = torch.randint(8, (SAMPLES, LENGTH))
        y[torch.arange(LENGTH) >= lengths[:, None]] = -100
        save_file({"x": torch.randint(32, (SAMPLES, LENGTH)), "y": y, "z": torch.rand(SAMPLES, 1),
                   "n": lengths}, cls.folder / "data.safetensors")

    def job(self, **changes):
        changes = {"microbatch_size": None, "minibatch_size": 8, "microbatches": 3, **changes}
        return token_job(**{
            "data": {"tensors": "data.safetensors", "inputs": {"tokens": "x"}, "target": "y",
                     "length": "n"},
            "loss": [{"type": "cross_entropy", "output": "logits"},
                     {"type": "mse", "output": "value", "target": "z", "weight": 0.5}],
            "partial": True, "steps": 7, "optimizer": ADAMW, **changes})

    def simulate(self, job):
        """As the job says; the data's own target is y."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.AdamW(model.parameters(), **{
            k: v for k, v in job["optimizer"].items() if k != "type"})
        data = one_process.Data(job["data"], self.folder)
        values = load_file(self.folder / "data.safetensors")["z"]
        losses, sizes = [], []
        for step in range(job["steps"]):
            optimizer.zero_grad()
            parts = list(one_process.microbatches(data, job, step))
            batches = [(*data.batch(rows), values[torch.from_numpy(rows)]) for rows in parts]
            counts = [int((y != -100).sum()) for _, y, _ in batches]
            losses.append([])
            for (inputs, y, z), count in zip(batches, counts):
                out = model(*inputs)
                first = F.cross_entropy(out["logits"].reshape(-1, 8), y.reshape(-1))
                second = F.mse_loss(out["value"], z)
                losses[-1].append(first.item() + 0.5 * second.item())
                (first * (count * len(counts) / sum(counts)) +
                 second * (0.5 * (len(z) * len(counts) / sum(map(len, parts))))).backward()
                sizes.append(tuple(inputs[0].shape))
            for p in model.parameters():
                p.grad.div_(len(batches))
            optimizer.step()
        return losses, model.state_dict(), sizes

    def test_sums_of_losses_over_uneven_parts(self):
        job = self.job()
        ours = self.train(self.package, job, 3)
        losses, weights, sizes = self.simulate(job)
        self.assertEqual({rows for rows, _ in sizes}, {1, 2, 3})  # also 5 samples in 3 parts
        self.assertGreater(len({length for _, length in sizes}), 3)
        for step, (a, b) in enumerate(zip(ours.losses, losses, strict=True), 1):
            self.assertEqual(bits(a), bits(b), f"losses of step {step}")
        self.assert_same_tensors(ours.weights, weights)

    def test_a_rank_between_needs_no_data(self):
        job = self.job(validation={"data": self.job()["data"], "every": 3, "steps": 2},
                       save="trained.safetensors")
        elsewhere = self.path("elsewhere")
        elsewhere.mkdir()
        (elsewhere / "job.json").write_text(self.write_job(job).read_text())
        saved = []
        for middle in (self.folder, elsewhere):
            ranks = [["-n", 1, RUN, "train", self.package, at / "job.json"]
                     for at in (self.folder, middle, self.folder)]
            result = call(["mpirun", *ranks[0], ":", *ranks[1], ":", *ranks[2]])
            self.assertIn("validation loss", self.succeed(result).out)
            saved.append(load_file(self.path("trained.safetensors")))
        self.assert_same_tensors(*saved)
        result = run_ranks(3, "train", self.package, elsewhere / "job.json")
        self.assertEqual(result.code, 1, result.out)
        self.assertRegex(result.out, r"reading on ranks 0, 2: .*data.safetensors")

    def test_targets_that_fit_no_output_are_found_before_anything_starts(self):
        data = load_file(self.path("data.safetensors"))
        data.update(y32=data["y"].int(), wide=torch.cat([data["z"], data["z"]], -1))
        save_file(data, self.path("misfits.safetensors"))
        source = {**self.job()["data"], "tensors": "misfits.safetensors"}
        losses = self.job()["loss"]
        for changes, text in (
                ({"data": {**source, "target": "y32"}}, r'data\.target "y32" .*int64 target'),
                ({"data": source, "loss": [losses[0], {**losses[1], "target": "wide"}]},
                 r'data\.target "wide" .*mse needs equal sizes'),
                ({"validation": {"data": {**source, "target": "y32"}, "every": 5}},
                 r'validation\.data\.target "y32" .*int64 target'),
                ({"loss": {"output": "logits"}}, "a loss is one number")):
            result = run_ranks(3, "train", self.package, self.write_job(self.job(**changes)), mpi=False)
            self.assert_fails(result, r"reading on every rank: .*" + text)

    def test_outputs_keep_the_names_of_their_dictionary(self):
        save_file({"tokens": torch.randint(32, (4, LENGTH))}, self.path("in.safetensors"))
        self.succeed(run_ranks(3, "infer", self.package, "--input", self.path("in.safetensors"),
                               "-o", self.path("out.safetensors"), mpi=False))
        self.assertEqual(sorted(load_file(self.path("out.safetensors"))), ["logits", "value"])

    def test_keys_that_are_names_of_operations(self):
        x = torch.randn(4, 3)
        torch.export.save(torch.export.export(Crossed(), (x,)), self.path("crossed.pt2"))
        self.compile("crossed.pt2", "crossed.pkg")
        save_file({"x": x}, self.path("in.safetensors"))
        self.succeed(run_ranks(1, "infer", self.path("crossed.pkg"), "--input", self.path("in.safetensors"),
                               "-o", self.path("out.safetensors"), mpi=False))
        expected = Crossed()(x)
        expected["x_1"] = expected.pop("x")  # the input's own name stays its
        self.assert_same_tensors(load_file(self.path("out.safetensors")), expected)


if __name__ == "__main__":
    unittest.main()
