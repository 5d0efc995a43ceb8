"""Weights that are read from disk while the model runs, and text generated token by token."""
import json
import unittest

import torch
from safetensors.torch import load_file, save_file

from support import (ADAMW, LENGTH, SGD, Case, export_gpt, gpt, pipewright, run_ranks,
                     token_job)


def lively(**options):
    """Returns a GPT whose greedy text does not repeat one token."""
    model = gpt(layers=4, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


@torch.no_grad()
def greedy(model, text, count):
    text = list(text)
    for _ in range(count):
        text.append(model(torch.tensor([text[-LENGTH:]]))[0, -1].argmax().item())
    return text


class Offload(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = lively()
        export_gpt(cls.model, cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "4")

    def write_map(self, device_map):
        self.path("map.json").write_text(json.dumps(device_map))
        return self.path("map.json")

    def sizes(self):
        """Returns the bytes of weights of each module."""
        return [sum(t.nbytes for t in load_file(file).values())
                for file in sorted((self.package / "weights").glob("*.safetensors"))]

    def test_inference_from_disk(self):
        save_file({"tokens": torch.randint(256, (8, LENGTH))}, self.path("in.safetensors"))
        common = ["infer", self.package, "--input", self.path("in.safetensors"), "--microbatches",
                  3, "-o", self.path("out.safetensors")]
        self.succeed(run_ranks(4, *common, mpi=False))
        wanted = load_file(self.path("out.safetensors"))
        sizes = self.sizes()
        report = self.path("report.json")
        # The first and the last module share the embedding: one rank has and reads it once.
        tied = self.model.head.weight.nbytes
        cases = [
            (1, {"module0": "cpu", "module1": "disk", "module2": "disk", "module3": "disk"}, [1, 2, 3],
             tied, tied),
            (1, {"": "disk"}, [0, 1, 2, 3], tied, tied),
            (2, {"embedding": 0, "position": 0, "blocks.0": 0, "blocks.1": "disk", "blocks.2": 1,
                 "blocks.3": "disk", "norm": "disk", "head": "disk"}, [1, 3], 0, 0),
        ]
        for ranks, device_map, on_disk, twice, twice_on_disk in cases:
            self.path("out.safetensors").unlink()
            run = self.succeed(run_ranks(
                ranks, *common, "--device-map", self.write_map(device_map), "--offload-dir",
                self.path("unused"), "--offload-report", report, mpi=ranks > 1))
            self.assert_same_tensors(load_file(self.path("out.safetensors")), wanted)
            self.assertIn("read from disk in each sweep", run.out)
            self.assertFalse(self.path("unused").exists())
            figures = json.loads(report.read_text())["ranks"]
            self.assertEqual(sum(f["total"] for f in figures), sum(sizes) - twice)
            self.assertEqual(sum(f["payload"] for f in figures),
                             sum(sizes[m] for m in on_disk) - twice_on_disk)
            for f in figures:
                self.assertEqual(f["payload"], f["total"] - f["resident"])
                blocks = 2 * 4096 * (len(on_disk) + 2)
                self.assertLessEqual(f["direct"] + f["cached"], f["payload"] + blocks)
                self.assertIn(f["counted"]["reads"], (0, f["direct"] + f["cached"]))
                self.assertLessEqual(sum(f["buffers"]), 2 * (max(sizes) + 3 * 4096) + tied)
        self.assert_fails(
            run_ranks(1, *common, "--device-map", self.write_map({"": "cpu", "blokcs.1": "disk"}),
                      mpi=False),
            r'keys within keys: "" and "blokcs\.1"')

    def test_a_run_says_that_it_takes_more_than_its_map_promises(self):
        save_file({"tokens": torch.randint(256, (8, LENGTH))}, self.path("in.safetensors"))
        file = self.path("placed.json")
        infer = ["infer", self.package, "--input", self.path("in.safetensors"), "-o",
                 self.path("out.safetensors"), "--device-map", file]
        place = ["place", self.package, "-o", file, "--max-memory"]
        text = self.succeed(pipewright(*place, f"cpu={sum(self.sizes()) // 2}")).out
        for word in ("slots", "process", "peak"):
            self.assertIn(word, text)
        run = self.succeed(run_ranks(1, *infer, mpi=False))
        self.assertRegex(run.out, r"warning: .*placed\.json: rank 0 will take .* more than the .* "
                                  "that the map was made for")
        # Budgets do not apply to a map that was edited since.
        file.write_text(json.dumps({"": "disk"}))
        self.assertNotIn("will take", self.succeed(run_ranks(1, *infer, mpi=False)).out)
        self.succeed(pipewright(*place, "cpu=1GB", "--whole-process"))
        self.assertNotIn("will take", self.succeed(run_ranks(1, *infer, mpi=False)).out)
        self.assert_fails(pipewright(*place, "cpu=1MB", "--whole-process"), "the process")

    def write_conf(self, stages, ranks, offloaded):
        self.path("conf.json").write_text(json.dumps({
            "module_to_stage_map": stages, "offload": {"stages": offloaded},
            "stage_to_rank_map": {str(stage): on for stage, on in enumerate(ranks)}}))
        return self.path("conf.json")

    def train_from_disk(self, job, ranks, *options, wanted, mpi=False):
        """Trains to the same bits. Returns what was read and held, by rank."""
        files = [self.path(name) for name in ("trained", "gradients", "report", "metrics.jsonl")]
        self.succeed(run_ranks(
            ranks, "train", self.package, self.write_job(job), "--save", files[0],
            "--save-gradients", files[1], "--offload-report", files[2], "--metrics", files[3],
            *options, mpi=mpi))
        self.assert_same_tensors(load_file(files[0]), wanted.weights)
        self.assert_same_tensors(load_file(files[1]), wanted.gradients)
        return json.loads(files[2].read_text())["ranks"]

    def test_training_with_frozen_weights_on_disk(self):
        # Weights that adapters leave frozen: parts of each block, and a tied weight.
        frozen = ["blocks.?.qkv.*", "blocks.?.up.weight", "blocks.0.*", "head.weight"]
        job = token_job(freeze=frozen, steps=2, reduce="exact")
        stored = {"state": "disk", "state_folder": "states"}
        wanted = self.train(self.package, job, 4, mpi=False)
        device_map = {"embedding": 0, "position": 0, "blocks": "disk", "norm": 0, "head": "disk"}
        saving = {**job, "checkpoint": {"to": str(self.path("saved")), "every": 1, "keep": 2},
                  "optimizer": {**SGD, **stored}}
        found, = self.train_from_disk(saving, 1, "--device-map", self.write_map(device_map),
                                      wanted=wanted)
        # The head's weight is the embedding's, which the map has in memory.
        names = [name for name in wanted.weights
                 if name not in wanted.gradients and name != "embedding.weight"]
        on_disk = sum(wanted.weights[name].nbytes for name in names)
        self.assertEqual(found["total"] - found["resident"], on_disk)
        self.assertGreater(found["payload"], 2 * 2 * on_disk)  # forward and backward
        self.assertEqual(len(found["buffers"]), 2)
        self.assertLess(max(found["buffers"]), on_disk / 2)
        self.assertEqual(found["optimizer_state"],
                         sum(gradient.nbytes for gradient in wanted.gradients.values()))
        # Resumes from the first step's checkpoint, which is complete, as stages of a pipeline.
        first = self.path("saved") / "step-00000001"
        pair = ["--conf", self.write_conf([0, 0, 0, 1, 1], [[0], [1]], [0, 1])]
        self.train_from_disk({**job, "schedule": "gpipe", "optimizer": {**SGD, **stored}}, 2,
                             "--resume-from", first, *pair, wanted=wanted, mpi=True)
        self.assertEqual(list(self.path("states").iterdir()), [])
        # A stage whose weights are evicted between I and W.
        self.train_from_disk({**job, "schedule": "zb-h1"}, 2, *pair, wanted=wanted)

        def validations():
            lines = self.path("metrics.jsonl").read_text().splitlines()
            return [json.loads(line)["validation"] for line in lines]

        adamw = {**job, "optimizer": ADAMW,
                 "validation": {"data": job["data"], "every": 1, "steps": 2}}
        wanted = self.train(self.package, adamw, 4, mpi=False)
        told = validations()
        self.train_from_disk({**adamw, "optimizer": {**ADAMW, **stored}}, 3, "--conf",
                             self.write_conf([0, 0, 1, 1, 1], [[0], [1, 2]], [1]), wanted=wanted)
        self.assertEqual(validations(), told)

        def loss(ranks, *options):
            self.succeed(run_ranks(ranks, "eval", self.package, self.write_job(job), "--steps", 2,
                                   "--metrics", self.path("metrics.jsonl"), *options, mpi=False))
            return self.path("metrics.jsonl").read_text()

        self.assertEqual(loss(1, "--device-map", self.write_map({"": "disk"})), loss(4))
        # In the first stage nothing is trained: some of its backwards find its weights in memory.
        job = token_job(freeze=[*frozen, "position.*"], steps=2)
        self.train_from_disk(job, 1, "--device-map", self.write_map({"": "disk"}),
                             wanted=self.train(self.package, job, 4, mpi=False))
        # If nothing is trained before the head, everything is read in forward only.
        job = token_job(freeze=["embedding.*", "position.*", "blocks.*"], schedule="bfs", steps=2)
        found, = self.train_from_disk(job, 1, "--device-map", self.write_map({"": "disk"}),
                                      wanted=self.train(self.package, job, 4, mpi=False))
        self.assertEqual(found["payload"], 2 * (found["total"] - found["resident"]))

        def refused(message, ranks, options, **changes):
            self.assert_fails(run_ranks(
                ranks, "train", self.package, self.write_job(token_job(**changes)), *options,
                mpi=False), message)

        refused('"head" is on disk and trained', 1,
                ["--device-map", self.write_map(device_map)], freeze=["blocks.0.*"])
        offloaded = ["--conf", self.write_conf([0, 0, 1, 1, 1], [[0], [1]], [1])]
        refused("stage 1 is offloaded and has no frozen weights", 2, offloaded)
        refused("with one stage on each rank none would ever leave memory", 2, offloaded,
                schedule="pipedream", freeze=["blocks.2.qkv.*"])
        refused("state_folder: has no effect", 2, offloaded,
                optimizer={**ADAMW, "state_folder": "states"})

    def test_greedy_text(self):
        prompts = ["def f(", "The cat sat on the mat and"]
        wanted = [greedy(self.model, prompt.encode(), 12) for prompt in prompts]
        self.assertGreater(len(set(wanted[0])), 6)
        common = ["--prompt", prompts[0], "--prompt", prompts[1], "--max-new-tokens", 12, "--json",
                  "-o", self.path("text.json")]

        def check(ranks, package, *options, mpi=False):
            self.succeed(run_ranks(ranks, "generate", package, *common, *options, mpi=mpi))
            found = json.loads(self.path("text.json").read_text())["sequences"]
            self.assertEqual([sequence["tokens"] for sequence in found], wanted)
            self.assertEqual(found[0]["new_tokens"], wanted[0][-12:])

        check(4, self.package, mpi=True)
        check(1, self.package, "--device-map", self.write_map({"": "disk"}))
        # If the length is dynamic in the export, too, texts are not padded.
        batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", max=LENGTH)
        program = torch.export.export(self.model, (torch.randint(256, (2, 8)),),
                                      dynamic_shapes=({0: batch, 1: length},), strict=False)
        torch.export.save(program, self.path("dynamic.pt2"))
        check(1, self.compile("dynamic.pt2", "dynamic.pkg", "--split", "equal:1"))


if __name__ == "__main__":
    unittest.main()
