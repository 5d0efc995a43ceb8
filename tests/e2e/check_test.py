"""`pipewright check` reports every mistake with the text of the run's own error."""
import json
import re
import shutil
import unittest

from safetensors.torch import load_file, save_file

from support import ROOT, Case, export, export_gpt, gpt, pipewright, run_ranks, token_job, torch


class Check(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=False, layers=2), cls.folder / "gpt.pt2")
        cls.whole = cls.compile("gpt.pt2", "whole.pkg", "--ranks", "2")

    def setUp(self):
        self.package = self.path("gpt.pkg")
        shutil.rmtree(self.package, ignore_errors=True)
        shutil.copytree(self.whole, self.package)

    def check(self, *options, code=1):
        """Returns the answer of `check --json`; checks that no file is written."""
        before = {path: path.stat().st_mtime_ns for path in self.folder.rglob("*")}
        result = pipewright("check", self.package, "--json", *options)
        self.assertEqual(result.code, code, result.out)
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in self.folder.rglob("*")})
        return json.loads(result.out)

    def errors(self, *options):
        return [(found["rule"], found["text"]) for found in self.check(*options)["findings"]
                if found["severity"] == "error"]

    def job(self, **changes):
        changes = {"save": "trained.safetensors", "steps": 1, **changes}
        return self.write_job(token_job(**changes))

    def refusal(self, *options, ranks=2, command="train"):
        """What a command says: of a job, or with the files of infer."""
        files = [] if command == "infer" else [self.path("job.json")]
        result = run_ranks(ranks, command, self.package, *files, *options, mpi=False)
        self.assertEqual(result.code, 1, result.out)
        lines = result.out.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("pipewright-run: ")
                  and not line.startswith(("pipewright-run: note", "pipewright-run: warning")))
        said = "\n".join(lines[at:]).removeprefix("pipewright-run: ")
        return re.sub(r"^[a-z ]+ on (every rank|rank \d+): ", "", said)

    def assert_refused(self, rule, *options, ranks=2):
        """Expects one error, of this rule, with the text of `train`."""
        found = self.errors("--job", self.path("job.json"), *options)
        self.assertEqual([one for one, text in found], [rule], found)
        said = self.refusal(*options, ranks=ranks)
        self.assertEqual(found[0][1], said)

    def test_evaluation(self):
        job = self.job(validation={"every": 1, "data": {"tokens": "none", "sequence_length": 16}})
        self.assertEqual([rule for rule, text in self.errors("--job", job)], ["data"])
        answer = self.check(job, "--eval", code=0)
        self.assertEqual(answer["errors"], 0, answer)
        self.job(loss="mse")
        (found,) = self.errors("--job", job, "--eval")
        self.assertEqual(found, ("start", self.refusal(command="eval")))
        tokens = torch.full((64, 16), 65)
        tokens[60, 3] = 256  # behind the one step of training
        save_file({"x": tokens, "y": torch.zeros(64, 16, dtype=torch.int64)},
                  self.path("rows.safetensors"))
        data = {"tensors": "rows.safetensors", "inputs": {"tokens": "x"}, "target": "y"}
        self.job(data={**data, "shuffle": False})
        self.assertEqual(self.check("--job", job, code=0)["errors"], 0)
        self.assertEqual([rule for rule, text in self.errors("--job", job, "--eval")], ["values"])

    def test_inference(self):
        rows, out = self.path("in.safetensors"), self.path("out.safetensors")
        def check(*options, code=1):
            answer = self.check("--input", rows, *options, code=code)
            return [(one["rule"], one["text"]) for one in answer["findings"]
                    if one["severity"] == "error"]
        def said(*options):
            return self.refusal("--input", rows, "-o", out, *options, command="infer")
        self.assertEqual(check(), [("start", said())])  # there is no such file
        tokens = torch.full((6, 16), 65)
        save_file({"tokens": tokens}, rows)
        self.assertEqual(check("--output", out, "--microbatches", "3", code=0), [])
        self.assertEqual(check("--microbatches", "7"), [("start", said("--microbatches", "7"))])
        self.assertEqual(check("--outputs", "none"), [("start", said("--outputs", "none"))])
        self.assertEqual(check("--output", rows),
                         [("start", self.refusal("--input", rows, "-o", rows, command="infer"))])
        save_file({"tokens": tokens.float()}, rows)
        self.assertEqual(check(), [("start", said())])
        tokens[4, 3] = 256
        save_file({"tokens": tokens}, rows)
        (found,) = check()
        self.assertEqual(found[0], "values")
        self.assertIn('in.safetensors: "tokens": sample 4: 256 is not in the table', found[1])
        for wrong in (["--eval"], ["--output", out], ["--input", rows, "--job", out]):
            self.assertEqual(pipewright("check", self.package, *wrong).code, 2)

    def test_a_run_without_mistakes(self):
        answer = self.check("--job", self.job(), "--ranks", "2", code=0)
        self.assertEqual((answer["errors"], answer["warnings"]), (0, 0), answer)
        self.assertEqual({one["rule"] for one in answer["not_checked"]}, {"balance", "memory", "time"})
        self.assertEqual(self.check(code=0)["errors"], 0)

    def test_every_mistake_of_a_job(self):
        job = self.job(loss="msee", microbatches=0, optimizer={"type": "adam", "lr": "fast"}, stepz=3)
        found = self.check("--job", job)["findings"]
        self.assertEqual([one["text"].removeprefix(f"{job}: ").splitlines()[0] for one in found
                          if one["rule"] == "job"],
                         ['unknown key "stepz" (did you mean "steps"?)',
                          'loss: "msee" is not known (did you mean "mse"?)',
                          "microbatches: 0 is out of range: at least 1",
                          'optimizer.lr: a number is expected, not "fast"'])
        self.assertTrue(all(one["line"] > 0 for one in found if one["rule"] == "job"))
        self.assertEqual(self.refusal(), found[0]["text"])

    def test_data(self):
        self.job(data={"tokens": str(self.path("none.bin")), "sequence_length": 16})
        self.assert_refused("data")
        save_file({"x": torch.zeros(64, 16), "y": torch.zeros(64, 16, dtype=torch.int64)},
                  self.path("rows.safetensors"))
        rows = {"tensors": "rows.safetensors", "inputs": {"tokens": "x"}, "target": "y"}
        self.job(data=rows)
        self.assert_refused("data")
        self.job(data={**rows, "inputs": {"tokenz": "y"}})
        self.assert_refused("data")
        self.job(microbatches=60000)
        self.assert_refused("data")

    def test_values_of_the_data(self):
        tokens = torch.full((64, 16), 65)
        tokens[60, 3] = 256
        save_file({"x": tokens, "y": torch.zeros(64, 16, dtype=torch.int64)},
                  self.path("rows.safetensors"))
        data = {"tensors": "rows.safetensors", "inputs": {"tokens": "x"}, "target": "y"}
        job = self.job(data=data)  # one step: it may use another sample
        self.assertEqual(self.check("--job", job, code=0)["warnings"], 1)
        self.job(data={**data, "shuffle": False})
        self.assertEqual(self.check("--job", job, code=0)["warnings"], 0)
        self.job(data=data, steps=8)
        (found,) = self.errors("--job", job)
        self.assertEqual(found[0], "values")
        self.assertRegex(found[1], r'data\.inputs "x" \(\S+rows\.safetensors\): sample 60: 256 is '
                                   r"not in the table \S+ of 256 rows, 0 to 255")
        save_file({"x": tokens.clamp(max=255), "y": tokens.roll(1, 0)}, self.path("rows.safetensors"))
        (found,) = self.errors("--job", job)
        self.assertRegex(found[1], r'data\.target "y" \(\S+rows\.safetensors\): target 256 is out of '
                                   r"bounds: the output has 256 classes, 0 to 255")

    def test_plan(self):
        self.job(schedule="dualpipe", microbatches=3)
        self.assert_refused("plan")
        self.job(freeze=["nothing.*"])
        self.assert_refused("plan")
        self.path("plan.csv").write_text("0F0,0X0,0B0\n1F0,1B,1B0\n")
        job = self.job(plan="plan.csv", microbatches=1)
        found = self.errors("--job", job)
        self.assertEqual([one for one, text in found], ["plan", "plan"], found)
        self.assertEqual(found[0][1], self.refusal())

    def test_changes_of_the_job_and_device_maps(self):
        job = self.job()
        self.assertEqual(self.check("--job", job, "--set", "optimizer.lr=0.5", code=0)["errors"], 0)
        (found,) = self.errors("--job", job, "--set", "optimizer.lr=x")
        self.assertEqual(found, ("job", self.refusal("--set", "optimizer.lr=x")))
        devices = self.path("map.json")
        devices.write_text(json.dumps({"nothing": "disk"}))
        (found,) = self.errors("--job", job, "--eval", "--device-map", devices)
        self.assertEqual(found[1], self.refusal("--device-map", devices, command="eval"))

    def test_start(self):
        self.job(loss={"type": "cross_entropy", "output": 3})
        self.assert_refused("start")
        self.job(loss="mse")
        self.assert_refused("start")
        self.job(recompute={"modules": [7]})
        self.assert_refused("start")

    def test_outputs(self):
        self.job(save=str(self.package / "weights/module0.safetensors"))
        self.assert_refused("outputs")
        self.job(save=str(self.path("nowhere/deep/trained.safetensors")))
        self.assert_refused("outputs")
        answer = self.check("--job", self.job(save=None), code=0)
        self.assertEqual([one["rule"] for one in answer["findings"] if one["severity"] == "warning"],
                         ["outputs"])
        self.check("--job", self.path("job.json"), "--strict", code=1)

    def test_checkpoints_that_are_there(self):
        self.job(checkpoint={"to": "kept", "every": 1})
        train = ("train", self.package, self.path("job.json"))
        self.succeed(run_ranks(2, *train, mpi=False))
        self.assert_refused("outputs")
        self.assertEqual(self.check("--job", self.path("job.json"), "--resume", code=0)["errors"], 0)
        self.job(checkpoint={"to": "gpt.pt2/kept", "every": 1})
        (found,) = self.errors("--job", self.path("job.json"))
        self.assertRegex(found[1], r"kept: cannot be written: \S+gpt\.pt2 is not a folder")
        self.assertIn("the folder cannot be created", self.refusal())

    def test_buffers_that_no_file_of_weights_has(self):
        class Rotary(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
                self.register_buffer("freq", torch.arange(4.0), persistent=False)

            def forward(self, x):
                return self.two(self.one(x) * self.freq)

        export(Rotary(), torch.rand(4, 4), self.path("rotary.pt2"))
        self.package = self.compile("rotary.pt2", "rotary.pkg", "--split", "equal:2", "--ranks", "2")
        save_file({"x": torch.rand(16, 4), "y": torch.rand(16, 4)}, self.path("rows.safetensors"))
        self.job(data={"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"}, loss="mse")
        self.succeed(run_ranks(2, "train", self.package, self.path("job.json"), mpi=False))
        shutil.copy(self.path("trained.safetensors"), self.path("first.safetensors"))
        job = ("--job", self.path("job.json"), "--weights", self.path("first.safetensors"))
        self.assertEqual(self.check(*job, code=0)["errors"], 0)
        for module in (0, 1):
            file = self.package / f"weights/module{module}.safetensors"
            if "freq" in (weights := load_file(file)):
                save_file({name: weights[name] for name in weights if name != "freq"}, file)
        self.assertEqual([rule for rule, text in self.errors(*job)], ["weights"])

    def test_conf(self):
        conf = self.package / "conf/mp_conf.json"
        text = json.loads(conf.read_text())
        conf.write_text(json.dumps({**text, "module_to_stage_map": [0, 0]}))
        found = self.errors()
        self.assertEqual([one for one, text in found], ["conf"], found)
        said = pipewright("conf", self.package, "--check", conf)
        self.assertEqual("pipewright: " + found[0][1], said.out.strip())
        conf.write_text(json.dumps({**text, "module_to_stage_map": [0, "1"], "depths": {}}))
        self.assertEqual([one for one, text in self.errors()], ["conf", "conf"])

    def test_edited_code(self):
        code = self.package / "modules/module1.py"
        text = code.read_text()
        code.write_text(text.replace("    return", "    retrun", 1))
        self.job()
        self.assert_refused("code")
        code.write_text(text + "\n")
        answer = self.check("--job", self.path("job.json"), code=0)
        self.assertIn(f"{code} (line {text.count(chr(10)) + 1}): edited since the model was compiled",
                      [one["text"] for one in answer["findings"] if one["severity"] == "note"])

    def test_weights(self):
        file = self.package / "weights/module1.safetensors"
        weights = load_file(file)
        first, second = sorted(weights)[:2]
        del weights[first]
        weights[second] = weights[second].double()
        save_file(weights, file)
        found = self.errors()
        self.assertEqual([one for one, text in found], ["weights", "weights"], found)
        self.job()
        self.assertIn(found[0][1], self.refusal())
        file.unlink()
        self.assert_refused("weights")

    def test_weights_of_another_model(self):
        trained = load_file(self.package / "weights/module0.safetensors")
        trained["other"] = torch.ones(1)
        save_file(trained, self.path("other.safetensors"))
        answer = self.check("--weights", self.path("other.safetensors"))
        self.assertTrue(all(one["rule"] == "weights" for one in answer["findings"]
                            if one["severity"] != "note"), answer)
        self.assertGreater(answer["errors"], 1)  # those of module 1
        self.assertEqual(answer["warnings"], 1)

    def test_what_the_profile_predicts(self):
        self.succeed(pipewright("profile", self.package, "--microbatch-size", "2", "--repeat", "1"))
        answer = self.check("--job", self.job(), "--memory", "1KiB")
        self.assertEqual([one["rule"] for one in answer["findings"] if one["severity"] == "error"],
                         ["memory", "memory"])
        self.assertEqual(answer["not_checked"], [])
        answer = self.check("--job", self.path("job.json"), "--memory", "1GiB", code=0)
        self.assertRegex(" ".join(one["text"] for one in answer["findings"]),
                         r"a step takes \S+ ms, and ranks are idle for \d+ % of it")

    def test_no_package(self):
        self.job()
        shutil.rmtree(self.package)
        self.assert_refused("package")

    def test_every_rule_is_explained(self):
        listed = [line.split()[0] for line in pipewright("check", "--rules").out.splitlines()]
        page = (ROOT / "docs/reference/check.md").read_text()
        self.assertEqual(re.findall(r"^\| `(\w+)` \|", page, re.M), listed)


if __name__ == "__main__":
    unittest.main()
