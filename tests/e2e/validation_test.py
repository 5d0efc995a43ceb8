"""Validation during training: PyTorch's loss and accuracy, and no effect on training."""
import json
import unittest

import torch

from support import LENGTH, ROOT, Case, export_gpt, gpt, run_ranks, token_job


class Validation(Case):
    def test_loss_and_accuracy(self):
        model = gpt(layers=3, tied=False)
        export_gpt(model, self.path("gpt.pt2"))
        package = self.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        text = (ROOT / "examples/data/python_reference.txt").read_bytes()[: 24 * LENGTH + 1]
        self.path("text.bin").write_bytes(text)
        job = token_job(steps=4, accuracy=True)
        plain = self.train(package, job, 3, False)
        job["validation"] = {"data": {"tokens": "text.bin", "sequence_length": LENGTH}, "every": 2}
        validated = self.train(package, job, 3, False)
        self.assert_same_run(validated, plain)
        lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
        self.assertEqual(["validation" in line for line in lines], [False, True, False, True])
        self.assertIn("accuracy", lines[0])
        model.load_state_dict(validated.weights)
        tokens = torch.tensor(list(text))
        inputs, target = (t.view(24, LENGTH) for t in (tokens[:-1], tokens[1:]))
        with torch.no_grad():
            output = model.eval()(inputs)
        result = lines[-1]["validation"]
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()).item()
        self.assertEqual(result["targets"], 24 * LENGTH)
        self.assertAlmostEqual(result["loss"], loss, delta=1e-6)
        self.assertAlmostEqual(result["accuracy"],
                               (output.argmax(-1) == target).double().mean().item(), delta=1e-9)
        job["data"] = job.pop("validation")["data"]
        told = self.succeed(run_ranks(3, "eval", package, self.write_job(job), "--weights",
                                      self.path("trained.safetensors"), mpi=False))
        self.assertIn(f"accuracy {100 * result['accuracy']:.2f} %", told.out)


if __name__ == "__main__":
    unittest.main()
