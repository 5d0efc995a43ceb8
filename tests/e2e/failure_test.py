"""Errors are reported once and clearly, and every rank ends soon after."""
import json
import re
import shutil
import unittest

import numpy as np
import torch
from safetensors.torch import save_file

from support import RUN, LENGTH, Case, call, export_gpt, gpt, run_ranks, token_job


class Failure(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = gpt(tied=False)
        export_gpt(cls.model, cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "4")

    def fails(self, *texts, job=None, ranks=4, package=None, options=(), code=1, both=True):
        job_file = self.write_job(job or token_job())
        for mpi in (True, False) if both else (True,):
            result = run_ranks(ranks, "train", package or self.package, job_file, *options, mpi=mpi)
            self.assert_fails(result, *texts, code=code)

    def tokens(self, **changes):
        """Returns a job over a token file of 4000 tokens of u16; `changes` are {position: token}."""
        tokens = np.arange(4000, dtype=np.uint16) % 256
        for position, token in changes.items():
            tokens[int(position[1:])] = token
        tokens.tofile(self.path("tokens.bin"))
        job = token_job()
        job["data"] = {"tokens": "tokens.bin", "dtype": "u16", "sequence_length": LENGTH,
                       "shuffle": False}
        return job

    def test_an_exception_on_the_first_rank(self):
        # Step 3, microbatch 2, first sample: window 2 * 8 + 4.
        position = (2 * 8 + 2 * 2) * LENGTH + 3
        self.fails("step 3, rank 0, stage 0, microbatch 2, action 0F2", "index out of range",
                   job=self.tokens(**{f"p{position}": 300}))

    def test_an_exception_on_the_last_rank(self):
        # The last target of a window is the first input of the next, so here only a target: the
        # end of the last window of the data.
        job = self.tokens(**{"p%d" % (8 * LENGTH): 300})
        job["steps"] = 1
        self.fails("rank 3, stage 3, microbatch 3, action 3F3", r"data\.tokens \(.*tokens\.bin\)",
                   "target 300 is out of bounds: the output has 256 classes", '"ignore_index": 300',
                   job=job)

    def test_an_exception_on_a_middle_rank(self):
        package = self.path("middle.pkg")
        shutil.copytree(self.package, package)
        conf = json.loads((package / "conf/mp_conf.json").read_text())
        module = conf["module_to_stage_map"].index(2)
        code = package / f"modules/module{module}.py"
        # An index that is out of range only for nonzero values, that is, only in the run.
        text, edits = re.subn(
            r"torch\.gelu\((\w+)[^)]*\)",
            r"torch.add(torch.gelu(\1), torch.sum(torch.embedding("
            rf"blocks_{module}_up_weight, torch.to(torch.mul(\1, 1e9), 4))))",
            code.read_text())
        self.assertEqual(edits, 1)
        code.write_text(text)
        self.fails("rank 2, stage 2, microbatch 0, action 2F0", "index", package=package)

    def test_the_wrong_number_of_ranks(self):
        self.fails("pipewright conf .*--ranks 3", "conf/mp_conf.json", "4", ranks=3)

    def test_options_that_differ_between_ranks(self):
        program = [RUN, "train", self.package, self.write_job(token_job())]
        save = self.path("differs.safetensors")
        for option in (["--steps", "1"], ["--save", save], ["--weights", save]):
            result = call(["mpirun", "-n", "3", *program, ":", "-n", "1", *program, *option])
            self.assert_fails(result, "options: not the same on every rank: rank 3 differs")
            self.assertFalse(save.exists())

    def test_a_folder_where_weights_go(self):
        self.fails("cannot be written: it is a folder", options=["--save", self.path(".")])

    def test_a_folder_where_metrics_go(self):
        self.fails(r"job\.json: metrics: .*cannot be written: it is a folder", both=False,
                   job=token_job(metrics="."))

    def test_weights_of_another_model(self):
        from safetensors.numpy import save_file
        save_file({"w": np.zeros(3, np.float32)}, self.path("other.safetensors"))
        self.fails("on every rank: .*no tensor", "pipewright weights list", both=False,
                   options=["--weights", self.path("other.safetensors")])

    def test_mpirun_and_ranks_as_threads(self):
        result = call(["mpirun", "-n", "2", RUN, "--in-process", "2", "train",
                       self.package, self.write_job(token_job())])
        self.assert_fails(result, "mpirun started 2 processes", code=2)

    def test_a_conf_for_another_package(self):
        self.path("short.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 0, 1], "stage_to_rank_map": {"0": [0], "1": [1]}}))
        self.fails("short.json", "module", ranks=2, options=("--conf", self.path("short.json")))

    def test_a_conf_that_runs_backwards(self):
        self.path("back.json").write_text(json.dumps(
            {"module_to_stage_map": [1, 1, 1, 0, 0, 0], "stage_to_rank_map": {"0": [0], "1": [1]}}))
        self.fails("back.json", "stage", ranks=2, options=("--conf", self.path("back.json")))

    def test_outputs_that_would_overwrite_inputs(self):
        text = self.path("text.bin")
        text.write_bytes(bytes(range(256)) * 8)
        job = token_job()
        job["data"]["tokens"] = "text.bin"
        self.fails(r"job\.json: save: .*text\.bin: is read in this run", both=False,
                   job={**job, "save": "text.bin"})
        self.assertEqual(text.read_bytes(), bytes(range(256)) * 8)
        file = self.path("io.safetensors")
        save_file({"tokens": torch.zeros(2, LENGTH, dtype=torch.int64)}, file)
        before = file.read_bytes()
        result = run_ranks(4, "infer", self.package, "--input", file, "-o", file, mpi=False)
        self.assert_fails(result, "io.safetensors: is read in this run: it would be overwritten")
        self.assertEqual(file.read_bytes(), before)

    def test_a_missing_job(self):
        for mpi in (True, False):
            result = run_ranks(4, "train", self.package, self.path("nowhere.json"), mpi=mpi)
            self.assert_fails(result, "nowhere.json")

    def test_a_missing_package(self):
        self.fails("nowhere.pkg/manifest.json", package=self.path("nowhere.pkg"))

    def test_a_missing_weight_file(self):
        package = self.path("weightless.pkg")
        shutil.copytree(self.package, package)
        (package / "weights/module3.safetensors").unlink()
        self.fails("module3.safetensors", package=package)

    def test_a_cut_weight_file(self):
        package = self.path("cut.pkg")
        shutil.copytree(self.package, package)
        file = package / "weights/module3.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        self.fails("module3.safetensors", package=package)

    def test_missing_data(self):
        job = token_job()
        job["data"]["tokens"] = "nowhere.bin"
        self.fails(r"job\.json: data\.tokens: .*nowhere\.bin", "relative to the folder", job=job)

    def test_too_little_data(self):
        self.path("few.bin").write_bytes(bytes(3 * LENGTH))
        job = token_job()
        job["data"]["tokens"] = "few.bin"
        self.fails("job.json: the data has 2 samples", "8", job=job)

    def test_an_unknown_key(self):
        self.fails("microbatchs", 'microbatches', job=token_job(microbatchs=4))

    def test_an_unknown_schedule(self):
        self.fails("1f1c", "1f1b", job=token_job(schedule="1f1c"))

    def test_an_input_that_the_model_does_not_have(self):
        from safetensors.numpy import save_file
        save_file({"x": np.zeros((64, LENGTH), np.int64), "y": np.zeros((64, LENGTH), np.int64)},
                  self.path("data.safetensors"))
        job = token_job()
        job["data"] = {"tensors": "data.safetensors", "inputs": {"token": "x"}, "target": "y"}
        self.fails('no input "token"', "tokens", job=job)
        job["data"] = {"tensors": "data.safetensors", "inputs": {"tokens": "x"}, "target": "labels"}
        self.fails('data.tensors: .*no tensor "labels"', 'it has "x", "y"', job=job, both=False)
        save_file({"x": np.zeros((64, LENGTH), np.int32), "y": np.zeros((64, LENGTH), np.int64)},
                  self.path("data.safetensors"))
        job["data"]["target"] = "y"
        self.fails('save "x" as int64', job=job, both=False)
        save_file({"x": np.zeros((64, LENGTH), np.int64), "y": np.zeros((64, LENGTH), np.int32)},
                  self.path("data.safetensors"))
        self.fails(r'data\.target "y" \(.*data\.safetensors\)', "save the targets as int64", job=job,
                   both=False)

    def test_inputs_of_another_shape(self):
        from safetensors.numpy import save_file
        save_file({"x": np.zeros((64, 5), np.int64), "y": np.zeros((64, 5), np.int64)},
                  self.path("narrow.safetensors"))
        job = token_job()
        job["data"] = {"tensors": "narrow.safetensors", "inputs": {"tokens": "x"}, "target": "y"}
        self.fails('input "tokens"', r"\b5\b", r"\b%d\b" % LENGTH, job=job)

    def test_a_loss_that_is_not_a_number(self):
        job = token_job(optimizer={"type": "sgd", "lr": 1e30})
        self.fails(r'step [23], rank 0, stage 0, microbatch 0: value "\w+" holds (nan|-?inf), the first to do so|'
                   r'step [23], rank \d, stage \d: weight "\S+" holds (nan|-?inf), which an earlier step made', job=job)

    def test_a_loss_that_may_be_anything(self):
        job = token_job(optimizer={"type": "sgd", "lr": 1e30}, nan="ignore", steps=3,
                        check_shared=None)
        for mpi in (True, False):
            self.succeed(run_ranks(4, "train", self.package, self.write_job(job), mpi=mpi))

    def test_a_misspelt_option_is_a_usage_error(self):
        self.fails("--step", options=("--stepz", "3"), code=2, both=False)


if __name__ == "__main__":
    unittest.main()
