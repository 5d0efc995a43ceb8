"""Several losses at several stages, minibatches and microbatches of different sizes, sequences of
different lengths: PyTorch's, to the bit."""
import collections
import copy
import json
import re
import unittest

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from support import (ADAMW, RUN, LENGTH, SGD, Case, bits, call, one_process, pipewright, run_ranks,
                     token_job)

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
    """The keys of its outputs are also names of its operations, of different ones."""

    def forward(self, x):
        first = torch.relu(x)
        second = torch.relu(first - 1)
        return {"relu_1": first * 10, "relu": second * 100, "mul": x * 2, "x": x + 1}


class Distance(torch.nn.Module):
    """Computes its loss."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, x, y):
        return (self.layer(x) - y).square().mean()


class Heads(torch.nn.Module):
    """One output of each kind: images of classes, probabilities, numbers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.classes = torch.nn.Conv2d(8, 5, 1)
        self.flat = torch.nn.Linear(8, 6)

    def forward(self, x):
        x = self.second(self.first(x).relu()).relu()
        classes = self.classes(x)
        flat = self.flat(x.mean((2, 3)))
        return {"image": classes, "log_image": classes.log_softmax(1), "flat": flat,
                "log_flat": flat.log_softmax(1)}


class OneProcess(unittest.TestCase):
    def test_outputs_of_a_dictionary_have_the_names_of_the_package(self):
        """A ModelOutput of HuggingFace is an OrderedDict."""
        y, target = torch.ones(2, 3), torch.zeros(2, 3)
        output = collections.OrderedDict(logits=y, none=None, aux={"a": 2 * y, "b": (3 * y, 4 * y)})
        self.assertEqual(list(one_process.named_outputs(output)), ["logits", "aux_a", "aux_b_0", "aux_b_1"])
        for loss, value in (("mse", 1), ({"type": "mse", "output": 1}, 4), ({"type": "mse", "output": "aux_b_1"}, 16)):
            self.assertEqual(one_process.loss_of({"loss": loss}, output, target), value)
        self.assertEqual(one_process.loss_of({"loss": "mse"}, (y, 2 * y), target), 1)
        self.assertEqual(one_process.loss_of({"loss": "mse"}, 3 * y, target), 9)


class Kinds(Case):
    """The losses of torch.nn.functional, on one to three ranks, with both bodies."""
    JOBS = (
        ({"type": "cross_entropy", "output": "image"}, "classes", F.cross_entropy),
        ({"type": "cross_entropy", "output": "image", "class_dim": 1, "ignore_index": 2,
          "label_smoothing": 0.1}, "classes",
         lambda a, b, **o: F.cross_entropy(a, b, ignore_index=2, label_smoothing=0.1, **o)),
        ({"type": "nll", "output": "log_image", "ignore_index": 2}, "classes",
         lambda a, b, **o: F.nll_loss(a, b, ignore_index=2, **o)),
        ({"type": "nll", "output": "log_flat"}, "class", F.nll_loss),
        ({"type": "l1", "output": "flat"}, "numbers", F.l1_loss),
        ({"type": "smooth_l1", "output": "flat"}, "numbers", F.smooth_l1_loss),
        ({"type": "smooth_l1", "output": "flat", "beta": 0.25}, "numbers",
         lambda a, b: F.smooth_l1_loss(a, b, beta=0.25)),
        ({"type": "bce_with_logits", "output": "flat"}, "chances",
         F.binary_cross_entropy_with_logits),
        ({"type": "kl_div", "output": "log_flat"}, "spread", F.kl_div),
        ({"type": "kl_div", "output": "log_flat", "reduction": "batchmean", "log_target": True},
         "log_spread", lambda a, b: F.kl_div(a, b, reduction="batchmean", log_target=True)),
    )

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(3)
        cls.model = Heads()
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        torch.export.save(torch.export.export(cls.model, (torch.rand(2, 3, 4, 6),),
                                              dynamic_shapes=(batch,)), cls.folder / "heads.pt2")
        cls.package = cls.compile("heads.pt2", "heads.pkg", "--split-after", "first,second")
        spread = torch.rand(SAMPLES, 6).softmax(1)
        save_file({"x": torch.rand(SAMPLES, 3, 4, 6), "classes": torch.randint(5, (SAMPLES, 4, 6)),
                   "class": torch.randint(6, (SAMPLES,)), "numbers": torch.randn(SAMPLES, 6) * 2,
                   "chances": torch.rand(SAMPLES, 6), "spread": spread, "log_spread": spread.log()},
                  cls.folder / "heads.safetensors")

    def job(self, loss, target, **changes):
        return token_job(**{
            "data": {"tensors": "heads.safetensors", "inputs": {"x": "x"}, "target": target},
            "loss": loss, "partial": True, "steps": 4, "optimizer": ADAMW, "microbatch_size": None,
            "minibatch_size": 8, "microbatches": 3, **changes})

    def simulate(self, job, function, output):
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.AdamW(model.parameters(), **{
            k: v for k, v in job["optimizer"].items() if k != "type"})
        data = one_process.Data(job["data"], self.folder)
        ignored = job["loss"].get("ignore_index")
        samples = job["loss"].get("reduction") == "batchmean"
        losses = []
        for step in range(job["steps"]):
            optimizer.zero_grad()
            batches = [data.batch(rows) for rows in one_process.microbatches(data, job, step)]
            counts = [len(y) if samples else y.numel() if ignored is None else int((y != ignored).sum())
                      for _, y in batches]
            losses.append([])
            for (inputs, y), count in zip(batches, counts):
                loss = function(model(*inputs)[output], y)
                losses[-1].append(loss.item())
                (loss * (count * len(counts) / sum(counts))).backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(len(batches))
            optimizer.step()
        return losses, model.state_dict()

    def test_each_is_pytorchs(self):
        for loss, target, function in self.JOBS:
            expected = None
            for ranks in (1, 2, 3):
                with self.subTest(loss=loss, ranks=ranks):
                    job = self.job(loss, target, body="autograd" if ranks == 2 else "lists")
                    expected = expected or self.simulate(job, function, loss["output"])
                    conf = self.path(f"{ranks}.json")
                    self.succeed(pipewright("conf", self.package, "--ranks", ranks, "-o", conf))
                    ours = self.train(self.package, job, ranks, mpi=False, conf=conf)
                    for step, (a, b) in enumerate(zip(ours.losses, expected[0], strict=True), 1):
                        self.assertEqual(bits(a), bits(b), f"losses of step {step}: {a} and {b}")
                    self.assert_same_tensors(ours.weights, expected[1])

    def test_shapes_that_leave_two_readings(self):
        x = torch.rand(SAMPLES, 3, 4, 4)
        model = torch.nn.Conv1d(3, 4, 1)
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        torch.export.save(torch.export.export(model, (x[:2, :, 0],), dynamic_shapes=(batch,)),
                          self.path("square.pt2"))
        package = self.compile("square.pt2", "square.pkg")  # [batch, 4, 4]
        save_file({"x": x[:, :, 0].contiguous(), "y": torch.randint(4, (SAMPLES, 4)),
                   "wide": torch.randint(4, (SAMPLES, 3)), "flat": torch.rand(SAMPLES, 4, 4).round().long()},
                  self.path("square.safetensors"))

        def run(target="y", **loss):
            job = self.job({"type": "cross_entropy", **loss}, target)
            job["data"].update(tensors="square.safetensors", inputs={"input": "x"})
            return run_ranks(1, "train", package, self.write_job(job), mpi=False)

        self.assert_fails(run(), r"the classes may be dimension 1 of the output or 2: output float32 "
                                 r"\[3, 4, 4\], target int64 \[3, 4\]", '"class_dim": 1}, as PyTorch')
        said = {dim: self.succeed(run(class_dim=dim)).out for dim in (1, -1, 2)}
        first = {dim: re.search(r"step +1/4 +loss (\S+)", text)[1] for dim, text in said.items()}
        self.assertEqual(first[-1], first[2])
        self.assertNotEqual(first[-1], first[1])
        self.assert_fails(run("wide"), "cross_entropy needs an output", '"class_dim": 1')
        self.assert_fails(run("wide", class_dim=1), '"class_dim": 1, cross_entropy cannot take')
        self.assert_fails(run(class_dim=0), "dimension 0 is that of the samples")
        self.assert_fails(run("flat", type="bce_with_logits"), "needs a target of probabilities",
                          "save the targets as float32")
        self.assert_fails(run(type="l1"), "l1 needs equal sizes")
        self.assert_fails(run(type="l1", class_dim=1), "only cross_entropy and nll have one")

    def test_accuracy_of_images(self):
        job = self.job({"type": "cross_entropy", "output": "image"}, "classes")
        result = self.succeed(run_ranks(3, "eval", self.package, self.write_job(job), mpi=False))
        data = load_file(self.path("heads.safetensors"))
        with torch.no_grad():
            right = self.model(data["x"])["image"].argmax(1) == data["classes"]
        self.assertIn(f"accuracy {100 * right.double().mean().item():.2f} %", result.out)


class Computed(Case):
    def test_evaluation_over_uneven_microbatches(self):
        torch.manual_seed(5)
        model = Distance()
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        data = {"x": torch.rand(8, 6), "y": torch.rand(8, 6) * torch.arange(8)[:, None]}
        torch.export.save(torch.export.export(model, (data["x"], data["y"]), dynamic_shapes=(batch, batch)),
                          self.path("distance.pt2"))
        package = self.compile("distance.pt2", "distance.pkg")
        save_file(data, self.path("rows.safetensors"))
        validation = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x", "y": "y"}}, "every": 1}
        job = token_job(data=validation["data"], loss={"output": 0}, minibatch_size=8, microbatches=3,
                        microbatch_size=None, steps=1, optimizer=SGD, validation=validation)
        ours = self.train(package, job, 1, False)
        model.load_state_dict(ours.weights)
        [line] = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
        self.assertEqual(line["validation"]["targets"], 8)
        self.assertAlmostEqual(line["validation"]["loss"], model(data["x"], data["y"]).item(), delta=1e-5)


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
        """Trains in one process as the job says; y is the target in the data."""
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
        self.assertEqual({rows for rows, _ in sizes}, {1, 2, 3})  # including 5 samples in 3 parts
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
        expected["x_1"] = expected.pop("x")  # the input keeps its name
        self.assert_same_tensors(load_file(self.path("out.safetensors")), expected)


if __name__ == "__main__":
    unittest.main()
