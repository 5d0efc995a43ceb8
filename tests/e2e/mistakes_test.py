"""A run's answer to mistakes: where the mistake is, and what to do."""
import json
import unittest

from safetensors.torch import save_file

from support import LENGTH, Case, export, export_gpt, gpt, pipewright, run_ranks, token_job, torch


class Padded(torch.nn.Module):
    """Its mask is true for what is not seen."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256)

    def forward(self, tokens, padding_mask):
        return self.b(self.a(tokens) * padding_mask.logical_not()[..., None])


class Mistakes(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=False, layers=2), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "2")
        save_file({"tokens": torch.full((4, LENGTH), 65)}, cls.folder / "in.safetensors")

    def infer(self, tokens, ranks=2, *options):
        save_file({"tokens": tokens}, self.path("tokens.safetensors"))
        return run_ranks(ranks, "infer", self.package, "--input", self.path("tokens.safetensors"),
                         "-o", self.path("out.safetensors"), *options, mpi=False)

    def generate(self, *options, ranks=2):
        return run_ranks(ranks, "generate", self.package, "--prompt", "A", "--max-new-tokens", 2,
                         *options, mpi=False)

    def write(self, name, content):
        self.path(name).write_text(json.dumps(content))
        return self.path(name)

    def test_tokens_that_no_table_has(self):
        tokens = torch.full((4, LENGTH), 65)
        tokens[3, 2] = 300
        self.assert_fails(self.infer(tokens, 2, "--microbatches", 2),
                          r"input tokens, row 1: 300 is not in the table \S+ of 256 rows, 0 to 255",
                          "microbatch 1")
        tokens[3, 2] = -1
        self.assert_fails(self.infer(tokens), r"input tokens, row 3: -1 is not in the table")

    def test_an_output_without_a_name(self):
        result = run_ranks(2, "infer", self.package, "--input", self.path("in.safetensors"), "-o",
                           "", mpi=False)
        self.assert_fails(result, "output: its name is empty")

    def test_no_rows(self):
        self.assert_fails(self.infer(torch.zeros(0, LENGTH, dtype=torch.int64)),
                          r"tokens\.safetensors: \"tokens\" has no rows, sizes \[0, 16\]")

    def test_code_that_raises(self):
        package = self.compile("gpt.pt2", "raise.pkg", "--ranks", "2")
        code = package / "modules/module1.py"
        text = code.read_text()
        lines = text.splitlines()
        at = max(i for i, line in enumerate(lines) if line.startswith("    return"))
        name = lines[at].split()[1].rstrip(",")
        lines.insert(at, f"    if bool(torch.ne(torch.sum({name}), 0.)):\n"
                         "      raise AssertionError(\"not yet\")")
        code.write_text("\n".join(lines) + "\n")
        train = ("train", package, self.write_job(token_job()))
        result = run_ranks(2, *train, mpi=False)
        self.assert_fails(result, r"rank 1, stage 1, microbatch 0", r"AssertionError: not yet",
                          r"modules/module1\.py\", line %d" % (at + 2))
        code.write_text(code.read_text().replace("AssertionError", "ValueError"))
        self.assert_fails(run_ranks(2, *train, mpi=False), r"module1\.py: does not compile",
                          "which raises AssertionError alone")

    def test_reports_that_cannot_be_written(self):
        absent = self.path("absent/report.json")
        for command in (("infer", self.package, "--input", self.path("in.safetensors"), "-o",
                         self.path("out.safetensors")),
                        ("generate", self.package, "--prompt", "A"),
                        ("train", self.package, self.write_job(token_job())),
                        ("eval", self.package, self.write_job(token_job()))):
            result = run_ranks(2, *command, "--offload-report", absent, mpi=False)
            self.assert_fails(result, "--offload-report: .*absent")
            self.assertNotIn("step", result.out)
        result = run_ranks(2, "eval", self.package, self.write_job(token_job()), "--metrics",
                           self.path("absent/m.json"), mpi=False)
        self.assert_fails(result, "opening outputs.*--metrics: .*absent")

    def test_outputs_in_the_place_of_what_is_read(self):
        package = self.compile("gpt.pt2", "kept.pkg", "--ranks", "2")
        weights, job = package / "weights/module0.safetensors", self.write_job(token_job(steps=1))
        prompt = self.path("prompt.txt")
        prompt.write_text("A")
        data = self.path("data.txt")
        data.write_bytes(bytes(range(256)))
        own = self.write_job(token_job(steps=1, data={"tokens": str(data), "dtype": "u8",
                                                      "sequence_length": LENGTH}), "own.json")
        conf = self.path("conf.json")
        conf.write_bytes((package / "conf/mp_conf.json").read_bytes())
        folder = self.path("weights")
        folder.mkdir()
        whole = self.path("weights/model.safetensors")
        self.succeed(run_ranks(2, "train", package, job, "--save", whole, mpi=False))
        infer = ("infer", package, "--input", self.path("in.safetensors"))
        out = self.path("out.safetensors")
        kept = {path: path.read_bytes()
                for path in (weights, job, prompt, data, conf, whole, package / "manifest.json",
                             self.path("in.safetensors"))}
        for command in (("train", package, job, "--metrics", job),
                        ("train", package, job, "--save", weights),
                        ("bench", package, job, "--costs", job, "--steps", 1),
                        ("bench", package, job, "--trace", weights, "--steps", 1),
                        ("train", package, job, "--conf", conf, "--save", conf),
                        ("train", package, job, "--weights", whole, "--save", whole),
                        ("train", package, job, "--offload-report", job),
                        ("eval", package, own, "--metrics", data),
                        ("eval", package, own, "--offload-report", data),
                        (*infer, "-o", weights),
                        (*infer, "--weights", folder, "-o", whole),
                        (*infer, "-o", out, "--offload-report", self.path("in.safetensors")),
                        ("generate", package, "--prompt-file", prompt, "--offload-report", prompt),
                        ("generate", package, "--prompt-file", prompt, "-o", prompt)):
            result = run_ranks(2, *command, mpi=False)
            self.assert_fails(result, "is read in this run: it would be overwritten")
            for path, content in kept.items():
                self.assertEqual(path.read_bytes(), content, result.command)

        result = pipewright("profile", package, "-o", package / "manifest.txt")
        self.assert_fails(result, "manifest.json: is read in this run")
        self.assertEqual((package / "manifest.json").read_bytes(), kept[package / "manifest.json"])
        self.assertFalse((package / "manifest.txt").exists())
        result = run_ranks(2, *infer, "-o", out, "--offload-report", out, mpi=False)
        self.assert_fails(result, "--offload-report: .*is where --output goes")

        job = self.write_job(token_job(steps=1, save="both", metrics="both"))
        self.assert_fails(run_ranks(2, "train", package, job, mpi=False),
                          r"job\.json: metrics: \S*both is where \S*job\.json: save goes")

    def test_metrics_into_a_pipe(self):
        checkpoint = {"to": "piped", "every": 1}
        for steps, more in ((1, ()), (2, ("--resume",))):
            job = self.write_job(token_job(steps=steps, checkpoint=checkpoint))
            result = run_ranks(2, "train", self.package, job, "--metrics", "/dev/stdout", *more,
                               mpi=False)
            self.assertIn('{"step":%d,' % steps, self.succeed(result).out.replace(" ", ""))

    def test_weights_and_checkpoints_of_another_model(self):
        export_gpt(gpt(tied=False, layers=3), self.path("deep.pt2"))
        deep = self.compile("deep.pt2", "deep.pkg", "--ranks", "2")
        checkpoints = {"to": "deep", "every": 1}
        self.succeed(run_ranks(2, "train", deep, self.write_job(
            token_job(steps=1, checkpoint=checkpoints, save="deep.safetensors")), mpi=False))
        job = self.write_job(token_job(steps=2, checkpoint=checkpoints))
        for option in (("--resume",), ("--resume-from", self.path("deep"))):
            result = run_ranks(2, "train", self.package, job, *option, mpi=False)
            self.assert_fails(result, r'step-00000001: holds "blocks\.2\.[a-z.]+", which the package '
                                      r"does not have", "for another model")
        job = self.write_job(token_job(steps=1))
        result = run_ranks(2, "train", self.package, job, "--weights",
                           self.path("deep.safetensors"), mpi=False)
        self.assertRegex(self.succeed(result).out,
                         r'warning: \S+deep\.safetensors: \d+ tensors that the package does not have')
        own = self.path("own.safetensors")
        self.succeed(run_ranks(2, "train", self.package, job, "--save", own, mpi=False))
        result = run_ranks(2, "eval", self.package, job, "--weights", own, "--steps", 1, mpi=False)
        self.assertNotIn("warning", self.succeed(result).out)

    def test_token_files_and_what_the_model_takes(self):
        torch.manual_seed(0)
        export(torch.nn.Linear(LENGTH, 4), torch.rand(2, LENGTH), self.path("linear.pt2"))
        linear = self.compile("linear.pt2", "linear.pkg", "--ranks", "1")
        result = run_ranks(1, "train", linear, self.write_job(token_job(loss="mse")), mpi=False)
        self.assert_fails(result, r'job\.json: data: input "\w+" takes float32, and a token file holds whole numbers',
                          '"tensors" or "arrays"')

        class Table(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.nn.Embedding(256, 256)

            def forward(self, tokens):
                return self.table(tokens.long() % 256)

        export(Table(), torch.zeros(2, LENGTH, dtype=torch.int32), self.path("table.pt2"))
        table = self.compile("table.pt2", "table.pkg", "--ranks", "1")
        self.succeed(run_ranks(1, "train", table, self.write_job(token_job(steps=1)), mpi=False))
        data = self.path("large.bin")
        data.write_bytes(b"".join(number.to_bytes(4, "little") for number in [7] * 200 + [1 << 31] + [7] * 99))
        job = token_job(steps=1, data={"tokens": str(data), "dtype": "u32", "sequence_length": LENGTH,
                                       "shuffle": False}, microbatches=1, microbatch_size=16)
        self.assert_fails(run_ranks(1, "train", table, self.write_job(job), mpi=False),
                          "a token of samples 0 to 15 does not fit into int32, which the model takes")

    def test_settings_that_do_nothing(self):
        adam = {"type": "adam", "lr": 1e-3}
        job = self.write_job(token_job(optimizer={**adam, "clip_norm": 0}))
        self.assert_fails(run_ranks(2, "train", self.package, job, mpi=False),
                          r"optimizer\.clip_norm: 0 would remove every gradient",
                          'leave "clip_norm" out')
        job = self.write_job(token_job(loss_scale=1e-320))
        self.assert_fails(run_ranks(2, "train", self.package, job, mpi=False),
                          r"job\.json: loss_scale: \S+ is out of range: at least 1e-30")
        job = token_job(optimizer={**adam, "lr_schedule": {"type": "cosine", "warmup": 5}}, steps=4)
        note = (r"warning: \S+job\.json: optimizer\.lr_schedule\.warmup: 5 steps of warm-up are more than the "
                '4 steps of the run: the learning rate never reaches "lr"')
        result = self.succeed(run_ranks(2, "train", self.package, self.write_job(job), mpi=False))
        self.assertRegex(result.out, note)
        result = self.succeed(run_ranks(2, "train", self.package, self.write_job({**job, "steps": 5}), mpi=False))
        self.assertNotIn("warm-up", result.out)

    def test_a_rest_of_an_epoch_that_the_model_does_not_take(self):
        """It is found before the first step, and only if the run comes to it."""
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        sizes = {0: torch.export.Dim("batch", min=3, max=8)}
        torch.export.save(torch.export.export(model, (torch.rand(4, 4),), dynamic_shapes=(sizes,), strict=False),
                          self.path("three.pt2"))
        package = self.compile("three.pt2", "three.pkg", "--split-after", "1", "--ranks", "2")

        def data(rows):
            save_file({"x": torch.rand(rows, 4), "y": torch.rand(rows, 2)}, self.path(f"{rows}.safetensors"))
            return {"tensors": f"{rows}.safetensors", "inputs": {"input": "x"}, "target": "y"}

        def run(command, *options, **changes):
            job = token_job(**{"data": rest, "loss": "mse", "partial": True, "microbatches": 2, "microbatch_size": 4,
                               **changes})
            return run_ranks(2, command, package, self.write_job(job), *options, mpi=False)

        whole, rest = data(16), data(20)
        validation = {"data": rest, "every": 2}
        for result in (run("train", steps=3), run("train", steps=2, data=whole, validation=validation),
                       run("train", steps=1, data=whole, microbatch_size=None, minibatch_size=5), run("eval")):
            self.assert_fails(result, r'reading on every rank: input "input": has sizes \[2, 4\]; its dimension 0 was '
                                      "exported for 3 to 8")
            self.assertNotRegex(result.out, r"step +1/")
        for result in (run("train", steps=2), run("train", steps=1, data=whole, validation=validation),
                       run("train", steps=2, data=whole, validation={**validation, "steps": 2}),
                       run("eval", "--steps", 2)):
            self.succeed(result)

    def test_too_little_data_for_very_many_microbatches(self):
        """The error comes before the plan is made, which would take as long as a test may."""
        for change in ({}, {"validation": {"data": token_job()["data"], "every": 1}}):
            job = self.write_job(token_job(microbatches=999999, microbatch_size=1, **change))
            for command in ("train", "eval"):
                self.assert_fails(run_ranks(2, command, self.package, job, mpi=False),
                                  r"job\.json: the data has \d+ samples, one minibatch takes 999999")

    def test_numbers_of_generate(self):
        self.assert_fails(self.generate("--context", LENGTH + 1),
                          f"--context {LENGTH + 1}: .* {LENGTH} tokens at most")
        self.assert_fails(self.generate("--stop", 256), r"--stop 256: no text would end.* 0 to 255")
        for option in ("--stop", "--context"):
            self.assertEqual(self.generate(option, "-3").code, 2)
        self.succeed(self.generate("--context", LENGTH, "--stop", 255))

    def test_masks_of_generate(self):
        example = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.bool)
        torch.export.save(torch.export.export(Padded(), example), self.path("padded.pt2"))
        package = self.compile("padded.pt2", "padded.pkg", "--split", "modules:b", "--ranks", "2")
        self.assert_fails(run_ranks(2, "generate", package, "--prompt", "A", "--max-new-tokens", 2, mpi=False),
                          'input "padding_mask": generate does not know what to give it',
                          "1 for tokens that are seen")

    def test_a_map_for_fewer_ranks(self):
        result = run_ranks(2, "infer", self.package, "--input", self.path("in.safetensors"), "-o",
                           self.path("out.safetensors"), "--device-map",
                           self.write("map.json", {"": 0}), mpi=False)
        self.assert_fails(result, "1 numbered device, one per rank; 2 ranks", "start one rank, or")

    def test_a_schedule_of_the_command_line(self):
        job = self.write_job(token_job())
        result = run_ranks(2, "train", self.package, job, "--schedule", "zbv", mpi=False)
        self.assert_fails(result, r"every rank: --schedule: schedule zbv")
        job = self.write_job(token_job(schedule="zbv"))
        self.assert_fails(run_ranks(2, "train", self.package, job, mpi=False),
                          r"job\.json: schedule zbv")


if __name__ == "__main__":
    unittest.main()
