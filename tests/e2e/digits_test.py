"""A convolutional model with BatchNorm trains as in PyTorch, and predicts as model.eval() does."""
import copy
import importlib.util
import json
import sys
import unittest

import torch
from safetensors.torch import load_file, load_model, save_file

from support import ROOT, SGD, Case, call, export, one_process, run_ranks


def digits_module(name):
    """Imports examples/digits/NAME.py; examples/gpt has modules of the same names."""
    spec = importlib.util.spec_from_file_location(f"digits_{name}", ROOT / f"examples/digits/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Digits(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = digits_module("model").build().train()
        export(cls.model, torch.rand(2, 1, 8, 8), cls.folder / "digits.pt2")
        cls.package = cls.compile("digits.pt2", "digits.pkg", "--ranks", "3")
        prepared = call([sys.executable, ROOT / "examples/digits/prepare.py", cls.folder])
        assert prepared.code == 0, prepared.out
        cls.job = json.loads((ROOT / "examples/digits/job.json").read_text())
        del cls.job["save"], cls.job["metrics"]
        cls.job.update(steps=20, optimizer=SGD)

    def test_training_is_pytorchs_to_the_bit(self):
        """Compares weights, running means and variances, and the counts of batches."""
        model = copy.deepcopy(self.model)
        theirs = self.train_pytorch(model, self.job)
        for ranks, mpi in ((3, True), (3, False)):
            ours = self.train(self.package, self.job, ranks, mpi)
            self.assert_learned(ours, self.model.state_dict(),
                                [name for name, _ in model.named_parameters()])
            self.assert_same_run(ours, theirs)
            self.assertEqual(ours.weights["stem.1.num_batches_tracked"].item(), 20 * 4)

    def test_evaluation_and_inference_use_the_running_statistics(self):
        self.train(self.package, self.job, 3)
        weights = self.path("weights.safetensors")
        self.path("trained.safetensors").rename(weights)
        model = copy.deepcopy(self.model)
        load_model(model, weights, strict=True)
        model.eval()

        evaluation = json.loads((ROOT / "examples/digits/eval.json").read_text())
        path = self.write_job(evaluation, "eval.json")
        self.succeed(run_ranks(3, "eval", self.package, path, "--weights", weights,
                               "--metrics", self.path("eval.jsonl")))
        wanted = [x for losses in one_process.evaluate(model, evaluation, self.folder) for x in losses]
        result = json.loads(self.path("eval.jsonl").read_text())
        self.assertEqual(result["samples"], 256)
        self.assertAlmostEqual(result["loss"], sum(wanted) / len(wanted), delta=1e-12)

        images = load_file(self.path("digits_test.safetensors"))["images"][:12].contiguous()
        save_file({"images": images}, self.path("in.safetensors"))
        values = json.loads((self.package / "manifest.json").read_text())
        name = values["outputs"][0]
        for mpi in (True, False):
            for parts in (1, 3):
                self.succeed(run_ranks(
                    3, "infer", self.package, "--input", self.path("in.safetensors"), "-o",
                    self.path("out.safetensors"), "--weights", weights, "--microbatches", parts,
                    mpi=mpi))
                with torch.no_grad():
                    out = torch.cat([model(part) for part in images.chunk(parts)])
                self.assert_same_tensors(load_file(self.path("out.safetensors")), {name: out})


if __name__ == "__main__":
    unittest.main()
