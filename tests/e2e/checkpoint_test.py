"""Checkpoints: a resumed run ends with the bits of one that was never stopped."""
import copy
import json
import shutil
import unittest

import torch
from safetensors.torch import load_file, load_model, save_file

from support import (ADAMW, FEWER, RUN, Case, bits, call, export_gpt, gpt, pipewright, run_ranks,
                     token_job)

STEPS = 10


def job_with(every=3, keep=0, **changes):
    return token_job(optimizer=ADAMW, steps=STEPS, check_shared=None,
                     checkpoint={"every": every, "keep": keep, "to": "checkpoints"}, **changes)


class Checkpoints(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {}
        for name, options in (("plain", {"tied": False}), ("tied", {"tied": True, "dropout": 0.1})):
            cls.models[name] = gpt(layers=4, **options)
            export_gpt(cls.models[name], cls.folder / f"{name}.pt2")
            package = cls.compile(f"{name}.pt2", f"{name}.pkg")
            for ranks in (1, 2, 3, 4):
                pipewright("conf", package, "--ranks", ranks, "-o", cls.folder / f"{name}_{ranks}.json")
            # Two stages on a rank, in a loop.
            (cls.folder / f"{name}_loop.json").write_text(json.dumps(
                {"module_to_stage_map": [0, 1, 2, 3],
                 "stage_to_rank_map": {"0": [0], "1": [1], "2": [0], "3": [1]}}))
            (cls.folder / f"{name}_replicas.json").write_text(json.dumps(
                {"module_to_stage_map": [0, 0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}}))

    def setUp(self):
        self.checkpoints = self.path("checkpoints")
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.path("metrics.jsonl").unlink(missing_ok=True)

    def run_train(self, name, job, conf, *options, mpi=True, **settings):
        ranks = {"loop": 2, "replicas": 3}.get(conf, conf)
        return run_ranks(
            ranks, "train", self.path(f"{name}.pkg"), self.write_job(job), "--conf",
            self.path(f"{name}_{conf}.json"), "--metrics", self.path("metrics.jsonl"), "--save",
            self.path("trained.safetensors"), *options, mpi=mpi, **settings)

    def finished(self, steps=STEPS):
        """Returns the weights, and the losses of all steps."""
        lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        return load_file(self.path("trained.safetensors")), [line["losses"] for line in lines]

    def assert_same_end(self, reference, what=""):
        weights, losses = self.finished()
        self.assert_same_tensors(weights, reference[0], what)
        for step, (a, b) in enumerate(zip(losses, reference[1], strict=True), 1):
            self.assertEqual(bits(a), bits(b), f"{what}step {step}")

    def forget_after(self, step):
        """Removes what a run that died after this step would not have written."""
        for path in self.checkpoints.glob("step-*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)
        (self.checkpoints / "latest").write_text(f"step-{step:08}\n")

    def reference(self, name, **changes):
        self.succeed(self.run_train(name, job_with(**changes), 3))
        return self.finished()

    def test_files(self):
        self.succeed(self.run_train("plain", job_with(every=2, keep=2), 3))
        self.assertEqual(sorted(path.name for path in self.checkpoints.iterdir()),
                         ["latest", "step-00000008", "step-00000010"])
        self.assertEqual((self.checkpoints / "latest").read_text(), "step-00000010\n")
        folder = self.checkpoints / "step-00000008"
        description = json.loads((folder / "checkpoint.json").read_text())
        self.assertEqual(description["step"], 8)
        self.assertEqual(description["data"], {"epoch": 0, "sample": 8 * 8})
        self.assertEqual(description["seed"], 7)
        self.assertEqual(description["job"]["optimizer"], ADAMW)
        names = [f"module{m}{kind}.safetensors" for m in range(4) for kind in ("", ".state")]
        self.assertEqual(sorted(path.name for path in folder.iterdir()),
                         sorted(["checkpoint.json", "model.safetensors.index.json", *names]))
        self.assertEqual(sorted(description["files"]),
                         sorted(["model.safetensors.index.json", *names]))
        state = load_file(folder / "module0.state.safetensors")
        self.assertEqual(state["step/position.weight"].item(), 8)
        self.assertIn("exp_avg/position.weight", state)

    def test_verified_as_they_were_written(self):
        self.succeed(self.run_train("plain", job_with(every=4, keep=2), 2))
        folder = self.checkpoints / "step-00000010"
        for given in (self.checkpoints, folder, folder / "model.safetensors.index.json"):
            done = self.succeed(pipewright("weights", "verify", given))
            self.assertIn("9 files unchanged since the run wrote them", done.out)
        for name in ("module1.safetensors", "module2.state.safetensors"):
            whole = (folder / name).read_bytes()
            (folder / name).write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
            for given in (self.checkpoints, folder):
                self.assert_fails(pipewright("weights", "verify", given),
                                  name + ": has other content than was written")
            self.assertEqual(pipewright("weights", "verify", folder / name).code, 1)
            (folder / name).write_bytes(whole)

    def test_the_weights_are_pytorchs(self):
        self.succeed(self.run_train("plain", job_with(), 3))
        model = copy.deepcopy(self.models["plain"])
        self.train_pytorch(model, {**job_with(), "steps": 6})
        merged = self.path("merged.safetensors")
        self.succeed(pipewright("weights", "merge", self.checkpoints / "step-00000006", "-o", merged))
        self.assert_same_tensors(load_file(merged), model.state_dict())

    def test_resumes_to_the_same_bits_on_any_ranks_and_schedule(self):
        for name in ("tied",) if FEWER else ("plain", "tied"):
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            reference = self.reference(name)
            kept = self.path("kept")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.checkpoints, kept)
            for conf, schedule, mpi in ((1, "gpipe", True), (2, "1f1b", False), (4, "gpipe", True),
                                        ("loop", "interleaved", False), ("replicas", "1f1b", False)):
                shutil.rmtree(self.checkpoints)
                shutil.copytree(kept, self.checkpoints)
                self.forget_after(6)
                result = self.succeed(self.run_train(
                    name, job_with(schedule=schedule, reduce="exact"), conf, "--resume", mpi=mpi))
                self.assertIn("resumed from", result.out)
                self.assert_same_end(reference, f"{name}, conf {conf}, {schedule}: ")

    def test_muon_resumes(self):
        job = {**job_with(), "optimizer": {"type": "muon", "others": {**ADAMW, "match": ["embedding.*"]}}}
        self.succeed(self.run_train("plain", job, 3))
        reference = self.finished()
        self.forget_after(6)
        self.succeed(self.run_train("plain", job, 2, "--resume", mpi=False))
        self.assert_same_end(reference)
        job["optimizer"]["others"]["match"] = []
        self.assert_fails(self.run_train("plain", {**job, "steps": 12}, 2, "--resume", mpi=False),
                          "with the optimizer muon, adamw for vectors embedding.*, ")

    def test_resumes_in_the_middle_of_a_later_epoch(self):
        data = self.path("few.bin")
        data.write_bytes(bytes(range(256)) * 3)  # 47 samples: 5 steps of 8, 7 left over
        job = job_with(every=7)
        job["data"] = {**job["data"], "tokens": "few.bin"}
        self.succeed(self.run_train("plain", job, 3))
        reference = self.finished()
        self.forget_after(7)
        position = json.loads((self.checkpoints / "step-00000007/checkpoint.json").read_text())
        self.assertEqual(position["data"], {"epoch": 1, "sample": 16})
        self.succeed(self.run_train("plain", job, 2, "--resume"))
        self.assert_same_end(reference)

    def test_another_split_into_microbatches_agrees_to_rounding(self):
        reference = self.reference("plain")
        self.forget_after(6)
        job = job_with(microbatches=2, microbatch_size=4)
        self.succeed(self.run_train("plain", job, 3, "--resume"))
        weights, _ = self.finished()
        before = load_file(self.checkpoints / "step-00000006/module0.safetensors")
        for key, tensor in reference[0].items():
            self.assertLess((weights[key] - tensor).norm().item(), 1e-6 * tensor.norm().item() + 1e-6,
                            key)
        self.assertFalse(torch.equal(before["position.weight"], weights["position.weight"]))

    def test_damaged_checkpoints_are_named_and_an_older_one_is_used(self):
        reference = self.reference("plain")
        self.forget_after(9)
        kept = self.path("kept")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.checkpoints, kept)

        def truncate(folder):
            path = folder / "module2.state.safetensors"
            path.write_bytes(path.read_bytes()[:-100])

        def flip(folder):
            path = folder / "module1.safetensors"
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)

        def remove(folder):
            (folder / "module3.safetensors").unlink()

        def wrong(folder):
            shutil.copy(kept / "step-00000003/module0.safetensors", folder)

        def torn(folder):
            (folder / "checkpoint.json").write_text("{")

        def emptied(folder):
            (folder / "model.safetensors.index.json").write_text("{}")

        def edited(folder):  # without the optimizer's state
            description = json.loads((folder / "checkpoint.json").read_text())
            del description["files"]["module1.state.safetensors"]
            (folder / "checkpoint.json").write_text(json.dumps(description))

        for damage, message in ((truncate, r"module2\.state\.safetensors: has \d+ bytes"),
                                (flip, r"module1\.safetensors: has other content"),
                                (remove, r"module3\.safetensors: the shard is missing"),
                                (wrong, r"module0\.safetensors: has other content"),
                                (torn, r"checkpoint\.json:1:"),
                                (emptied, r"index\.json: has 2 bytes"),
                                (edited, r"checkpoint\.json: has other content")):
            shutil.rmtree(self.checkpoints)
            shutil.copytree(kept, self.checkpoints)
            damage(self.checkpoints / "step-00000009")
            result = self.succeed(self.run_train("plain", job_with(), 3, "--resume", mpi=False))
            self.assertRegex(result.out, message)
            self.assertIn(f"resumed from {self.checkpoints / 'step-00000006'}", result.out)
            self.assert_same_end(reference)
            # Step 9 was trained again and its checkpoint replaced.
            self.succeed(pipewright("weights", "merge", self.checkpoints / "step-00000009", "-o",
                                    self.path("merged.safetensors")))
        shutil.rmtree(self.checkpoints / "step-00000003")
        for folder in self.checkpoints.glob("step-*"):
            flip(folder)
        self.assert_fails(self.run_train("plain", job_with(), 3, "--resume"),
                          r"step-00000006.*module1\.safetensors: has other content",
                          "set checkpoint.to to another folder")

    def test_a_write_that_fails_is_named_and_the_older_checkpoint_stays(self):
        """A limit on the size of files simulates a full disk."""
        largest = max(t.numel() * t.element_size() for t in self.models["plain"].parameters())
        job = job_with()
        self.succeed(self.run_train("plain", {**job, "steps": 3}, 3))

        limit = f"ulimit -f {largest // 2048}; trap '' XFSZ; exec \"$@\""
        for mpi in (True, False):
            program = ["bash", "-c", limit, "-", RUN]
            program = ["mpirun", "-n", 3, *program] if mpi else [*program, "--in-process", 3]
            result = call([*program, "train", self.path("plain.pkg"), self.write_job(job), "--conf",
                           self.path("plain_3.json"), "--resume"],
                          environment={"OMPI_MCA_btl": "tcp,self"})
            self.assert_fails(result, r"checkpoint of step 6: .*safetensors: cannot be written: "
                                      "File too large")
            self.assertEqual((self.checkpoints / "latest").read_text(), "step-00000003\n")
        self.succeed(self.run_train("plain", job, 3, "--resume"))
        self.assertEqual(sorted(path.name for path in self.checkpoints.iterdir()),
                         ["latest", *(f"step-{step:08}" for step in (3, 6, 9, 10))])

    def test_a_write_that_fails_on_another_rank_ends_all(self):
        """Rank 0 waits for the shards of rank 1, whose largest file exceeds the limit."""
        self.succeed(self.run_train("plain", {**job_with(), "steps": 3}, 1, mpi=False))
        bytes_of = {m: max(path.stat().st_size for path in
                           self.checkpoints.glob(f"step-00000003/module{m}.*")) for m in range(4)}
        large = max(bytes_of, key=bytes_of.get)
        others = max(size for m, size in bytes_of.items() if m != large)
        self.assertGreater(bytes_of[large], others + 2048)
        conf = self.path("uneven.json")
        conf.write_text(json.dumps(
            {"module_to_stage_map": [0, 1, 2, 3],
             "stage_to_rank_map": {str(m): [1 if m == large else 0] for m in range(4)}}))
        limit = f"ulimit -f {others // 1024 + 1}; trap '' XFSZ; exec \"$@\""
        for mpi in (False, True):
            shutil.rmtree(self.checkpoints)
            program = ["bash", "-c", limit, "-", RUN]
            program = ["mpirun", "-n", 2, *program] if mpi else [*program, "--in-process", 2]
            result = call([*program, "train", self.path("plain.pkg"), self.write_job(job_with(every=1)),
                           "--conf", conf], environment={"OMPI_MCA_btl": "tcp,self"})
            self.assert_fails(result, rf"rank 1, checkpoint of step 1: .*module{large}\.\S*safetensors: "
                                      "cannot be written: File too large")

    def test_merges_for_pytorch(self):
        self.succeed(self.run_train("tied", job_with(), 3))
        single = self.path("single.safetensors")
        self.succeed(pipewright("weights", "merge", self.checkpoints, "-o", single))
        trained = load_file(self.path("trained.safetensors"))
        self.assert_same_tensors(load_file(single), trained)
        model = gpt(layers=4, tied=True, seed=5)
        load_model(model, single, strict=True)
        self.assertTrue(torch.equal(model.head.weight, trained["embedding.weight"]))
        renamed = dict(trained)  # as save_pretrained may write it: under one of the names, and nothing says which
        renamed["head.weight"] = renamed.pop("embedding.weight")
        save_file(renamed, self.path("renamed.safetensors"))
        given = ["infer", self.path("tied.pkg"), "--input", self.path("in.safetensors"), "--weights"]
        save_file({"tokens": torch.randint(256, (4, 16))}, self.path("in.safetensors"))
        outputs = []
        for ranks, file in ((1, single), (1, self.path("renamed.safetensors")), (3, self.path("renamed.safetensors"))):
            self.succeed(run_ranks(ranks, *given, file, "--conf", self.path(f"tied_{ranks}.json"), "-o",
                                   self.path("out.safetensors"), mpi=False))
            outputs.append(load_file(self.path("out.safetensors")))
        for found in outputs[1:]:
            self.assert_same_tensors(found, outputs[0])
        both = {**trained, "head.weight": trained["embedding.weight"].clone()}
        for fits in (True, False):
            save_file(both, self.path("both.safetensors"))
            for ranks in (1, 3):
                result = run_ranks(ranks, "eval", self.path("tied.pkg"), self.write_job(job_with()), "--conf",
                                   self.path(f"tied_{ranks}.json"), "--steps", 1, "--weights",
                                   self.path("both.safetensors"), mpi=False)
                if fits:
                    self.succeed(result)
                else:
                    self.assert_fails(result, r'both.safetensors: "(embedding|head).weight" and "(embedding|head).weight" '
                                              r"differ, but the model ties them into one")
            both["head.weight"][0, 0] += 1

        for output, word in ((self.path("shards"), "model"), (self.path("m/out.safetensors"), "out")):
            self.succeed(pipewright("weights", "merge", self.checkpoints / "latest", "-o", output,
                                    "--max-shard-size", "40KB"))
            folder = output if word == "model" else output.parent
            index = json.loads((folder / f"{word}.safetensors.index.json").read_text())
            files = sorted(set(index["weight_map"].values()))
            self.assertGreater(len(files), 2)
            self.assertRegex(files[0], rf"^{word}-00001-of-0000\d\.safetensors$")
            loaded = {}
            for file in files:
                loaded.update(load_file(folder / file))
            self.assert_same_tensors(loaded, trained)
        # Shards of another number may be taken for those of this one.
        folder = self.path("m")
        before = {path: path.read_bytes() for path in folder.iterdir()}
        for limit in ("200KB", "10MB", "40KB"):
            result = pipewright("weights", "merge", self.checkpoints / "latest", "-o", folder / "out.safetensors",
                                "--max-shard-size", limit)
            if limit == "40KB":
                self.succeed(result)
            else:
                self.assert_fails(result, r"m/out\S+ exists, and readers may take it for one of the \d files? to be written",
                                  "remove it, or name another folder")
            self.assertEqual({path: path.read_bytes() for path in folder.iterdir()}, before)
        inside = self.checkpoints / "step-00000010"
        for options in ([], ["--max-shard-size", "40KB"]):
            self.assert_fails(pipewright("weights", "merge", inside, "-o", inside / "model.safetensors", *options),
                              "is inside a checkpoint, whose files it would replace or hide")
        path = self.checkpoints / "step-00000010/module0.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        result = pipewright("weights", "merge", self.checkpoints / "step-00000010", "-o", single)
        self.assert_fails(result, r"module0\.safetensors: has \d+ bytes")
        self.succeed(run_ranks(3, "eval", self.path("tied.pkg"), self.write_job(job_with()),
                               "--conf", self.path("tied_3.json"), "--steps", 1, "--weights",
                               self.checkpoints / "step-00000009", mpi=False))

    def test_copies_of_a_weight_that_differ(self):
        """An edited package: each module that uses a weight has it in its file."""
        package = self.path("differ.pkg")
        shutil.copytree(self.path("tied.pkg"), package)
        path = package / "weights/module3.safetensors"
        weights = load_file(path)
        [name] = weights.keys() & {"embedding.weight", "head.weight"}
        weights[name][0, 0] += 1
        save_file(weights, path)
        self.path("disk.json").write_text('{"": "disk"}')
        here = rf'module3.safetensors: "{name}" differs from its copy in another module'
        for ranks, placed, said in (
                (1, ["--conf", self.path("tied_1.json")], here), (1, ["--device-map", self.path("disk.json")], here),
                (3, ["--conf", self.path("tied_3.json")],
                 r'shared weight "\w+.weight": the copy of module 3 on rank 2 differs from that of module 0')):
            result = run_ranks(ranks, "eval", package, self.write_job(job_with()), *placed, "--steps", 1, mpi=False)
            self.assert_fails(result, said)

    def test_changes_of_the_job_are_told(self):
        job = job_with()
        job["steps"] = 3
        self.succeed(self.run_train("plain", job, 3, mpi=False))
        more = {**job, "steps": 4, "log_every": 2, "schedule": "gpipe"}
        result = self.succeed(self.run_train("plain", more, 3, "--resume", mpi=False))
        self.assertIn("resumed from", result.out)
        self.assertNotIn("has changed", result.out)
        changed = {**more, "steps": 5, "microbatches": 2, "microbatch_size": 4, "accumulate": 2,
                   "loss": {"type": "cross_entropy", "label_smoothing": 0.1},
                   "optimizer": {**job["optimizer"], "lr": 1e-3}}
        result = self.succeed(self.run_train("plain", changed, 3, "--resume", mpi=False))
        said = [line for line in result.out.splitlines() if "has changed" in line]
        self.assertEqual(said, [
            f"  {self.path('job.json')} has changed since then, and its new values are used: "
            '"loss" from "cross_entropy" to {"type":"cross_entropy","label_smoothing":0.1}, '
            '"microbatch_size" from 2 to 4, "microbatches" from 4 to 2, "optimizer.lr" from 0.002 to 0.001, '
            '"accumulate" from none to 2'])

    def test_refusals(self):
        job = job_with()
        job["steps"] = 3
        self.succeed(self.run_train("plain", job, 3, "--resume"))  # there is none: starts from scratch
        self.assert_fails(self.run_train("plain", job, 3), "holds checkpoints already", "--resume",
                          r'name another folder, "checkpoint": {"to": "FOLDER"} in \S+job\.json')
        started = [RUN, "-n", 3, "train", self.path("plain.pkg"), self.write_job(job),
                   "--conf", self.path("plain_3.json")]
        self.assert_fails(call(started), "holds checkpoints already", "--resume")
        self.assertIn("already at step 3 of 3", self.succeed(call([*started, "--resume"])).out)
        again = self.succeed(self.run_train("plain", job, 3, "--resume", mpi=False))
        self.assertIn("already at step 3 of 3: nothing to train", again.out)
        again = self.succeed(self.run_train("plain", {**job, "steps": 2}, 3, "--resume", mpi=False))
        self.assertIn("the checkpoint is at step 3, and the run ends at step 2: nothing to train", again.out)
        changed = {**job, "seed": 8}
        self.assert_fails(self.run_train("plain", changed, 3, "--resume"), "with the seed 7")
        changed = {**job, "optimizer": {"type": "sgd"}}
        self.assert_fails(self.run_train("plain", changed, 3, "--resume"), "with the optimizer adamw")
        self.assert_fails(self.run_train("tied", job, 3, "--resume-from", self.path("none")),
                          "no complete checkpoint is there")
        (self.checkpoints / "step-00000001").mkdir()
        (self.checkpoints / "latest").write_text("step-00000009\n")
        result = self.succeed(self.run_train("plain", job, 3, "--resume", mpi=False))
        self.assertIn("step-00000001: has no checkpoint.json", result.out)
        self.assertIn("latest: names step-00000009, which is not there", result.out)
        (self.checkpoints / "step-00000003/checkpoint.json").unlink()
        for options, message in (((), "what is left of checkpoints"),
                                 (("--resume",), "set checkpoint.to to another folder")):
            self.assert_fails(self.run_train("plain", job, 3, *options, mpi=False), message,
                              "step-00000003: has no checkpoint.json")
        job["checkpoint"]["to"] = "job.json/checkpoints"
        self.assert_fails(self.run_train("plain", job, 3, mpi=False),
                          r"job\.json: checkpoint\.to: .*cannot be created: Not a directory")
        del job["checkpoint"]
        self.assert_fails(self.run_train("plain", job, 3, "--resume"),
                          "--resume: the job writes no checkpoints")
        self.assert_fails(call([RUN, "--restarts", 1, "-n", 3, "train",
                                self.path("plain.pkg"), self.write_job(job)]),
                          "--restarts: the job writes no checkpoints")


if __name__ == "__main__":
    unittest.main()
