"""pipewright diff and plot of packages, plans, traces and metrics that are made here."""
import collections
import csv
import io
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

TESTS = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", TESTS.parent / "build"))
PACKAGE = TESTS / "data/cli/small.pkg"


class Report(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_command(self, *arguments, code=0):
        done = subprocess.run([BUILD / "pipewright", *map(str, arguments)], cwd=self.folder,
                              text=True, capture_output=True, timeout=1200)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def write_plan(self, name, schedule, ranks=2, microbatches=3):
        self.run_command("plan", "--schedule", schedule, "--ranks", ranks, "--microbatches",
                         microbatches, "-o", name)

    def write_costs(self, stages, name="costs.json", **more):
        stage = {"F": 2, "I": 1, "W": 1, "activation": 100, "weights": 1000, **more}
        (self.folder / name).write_text(json.dumps({"stages": [stage] * stages}))


class DiffTest(Report):
    def copy(self):
        shutil.copytree(PACKAGE, self.folder / "other.pkg")
        shutil.copytree(PACKAGE, self.folder / "small.pkg")
        return self.folder / "other.pkg"

    def test_packages(self):
        other = self.copy()
        self.assertEqual(self.run_command("diff", "small.pkg", "other.pkg"),
                         "the packages are the same\n")
        code = other / "modules/module1.py"
        code.write_text(code.read_text() + "\n")
        manifest = other / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"covers": ["head"]', '"covers": []'))
        (other / "conf/dp_conf.json").unlink()
        self.assertEqual(self.run_command("diff", "small.pkg", "other.pkg", code=1),
                         'modules.module1.covers: ["head"] and []\n'
                         "modules/module1.py: other content\n"
                         "only in small.pkg: conf/dp_conf.json: a file\n")

    def test_edited_module_is_marked(self):
        other = self.copy()
        manifest = json.loads((other / "manifest.json").read_text())
        code = other / "modules/module0.py"
        code.write_text(code.read_text() + "\n")
        self.assertIn("module0 (edited)", self.run_command("inspect", "other.pkg"))
        modules = json.loads(self.run_command("inspect", "other.pkg", "--json"))["modules"]
        self.assertEqual([m["name"] for m in modules], [m["name"] for m in manifest["modules"]])
        self.assertTrue(modules[0]["edited"])

    def test_jobs(self):
        job = json.loads((TESTS / "data/cli/job.json").read_text())
        (self.folder / "a.json").write_text("// small\n" + json.dumps(job) + "/* that is all */")
        job["optimizer"]["lr"] = 0.2
        (self.folder / "b.json").write_text(json.dumps(dict(reversed({**job, "seed": 3}.items()))))
        self.assertEqual(self.run_command("diff", "a.json", "b.json", code=1),
                         "optimizer.lr: 0.1 and 0.2\nonly in b.json: seed: 3\n")

    def test_plans(self):
        self.write_plan("a.csv", "1f1b")
        self.write_plan("b.csv", "gpipe")
        self.run_command("diff", "a.csv", "a.csv")
        found = json.loads(self.run_command("diff", "a.csv", "b.csv", "--json", code=1))
        self.assertEqual((found["kind"], found["equal"]), ("plan", False))
        self.assertEqual({d["where"].split(",")[0] for d in found["differences"]},
                         {"rank 0", "rank 1"})

    def test_traces(self):
        self.write_plan("a.csv", "1f1b")
        self.write_costs(2)
        self.write_costs(2, "slow.json", W=3)
        for costs, trace in (("costs", "a"), ("slow", "b")):
            self.run_command("simulate", "a.csv", "--costs", costs + ".json", "--trace",
                             trace + ".json")
        self.run_command("diff", "a.json", "a.json")
        text = self.run_command("diff", "a.json", "b.json", code=1)
        self.assertIn("stage 0, median B: 2 us and 4 us\n", text)


class PlotTest(Report):
    def plot(self, *arguments):
        """Returns {class: number of rectangles or paths}, and all texts, of a picture."""
        picture = self.run_command("plot", *arguments)
        root = xml.etree.ElementTree.fromstring(picture)
        kinds, texts = collections.Counter(), []
        for element in root.iter():
            tag = element.tag.split("}")[1]
            if tag in ("rect", "path"):
                kinds[element.get("class")] += 1
            elif tag in ("text", "title"):
                texts.append(element.text)
        return kinds, texts, len(picture)

    def test_timeline_over_timeline(self):
        self.write_plan("plan.csv", "1f1b")
        self.write_costs(2)
        self.run_command("simulate", "plan.csv", "--costs", "costs.json", "--steps", 2, "--trace",
                         "trace.json")
        kinds, texts, _ = self.plot("timeline", "plan.csv", "--costs", "costs.json", "--trace",
                                    "trace.json")
        # Two ranks, three microbatches, twice; and once in the legend.
        self.assertEqual((kinds["F"], kinds["B"], kinds["idle"]), (13, 13, 5))
        for text in ("rank 0 predicted", "rank 1 measured", "idle 25 %", "1B2: 12 to 14, 2"):
            self.assertTrue(any(text in t for t in texts), (text, texts))
        self.run_command("plot", "timeline", "--trace", "trace.json", "--step", 2, code=1)

    def test_large_timeline_has_a_bound(self):
        self.write_plan("plan.csv", "zb1p", 64, 1024)
        self.write_costs(1)
        kinds, texts, size = self.plot("timeline", "plan.csv", "--costs", "costs.json")
        self.assertEqual(kinds["idle"], 65)
        self.assertLess(size, 20_000_000)

    def test_memory(self):
        self.write_plan("plan.csv", "1f1b")
        self.write_costs(2)
        kinds, texts, _ = self.plot("memory", "plan.csv", "--costs", "costs.json", "--memory", 1150)
        # One path and one rectangle per rank, and one of each color in the legend.
        self.assertEqual((kinds["held"], kinds["kept"], kinds["idle"]), (3, 3, 2))
        # 1F1B: two activations of 100 on the first rank, one on the second, beside weights of 1000.
        for text in ("rank 0: weights 1000 B, at most 1.172 KiB at 0F1", "1.172 KiB, 50 B over",
                     "1.074 KiB, 96 %"):
            self.assertTrue(any(text in t for t in texts), (text, texts))
        simulated = json.loads(self.run_command("simulate", "plan.csv", "--costs", "costs.json",
                                                "--json"))
        self.assertEqual([r["peak_bytes"] for r in simulated["ranks"]], [1200, 1100])
        self.run_command("plot", "memory", "plan.csv", code=2)

    def test_cut(self):
        kinds, texts, _ = self.plot("cut", PACKAGE)
        self.assertEqual((kinds["s0"], kinds["s1"], kinds["cross"]), (1, 1, 1))
        self.assertIn("module1 · stage 1 · rank 1", texts)

    def test_names_are_escaped(self):
        shutil.copytree(PACKAGE, self.folder / "<b>&.pkg")
        manifest = self.folder / "<b>&.pkg/manifest.json"
        text = manifest.read_text().replace('"head"', '"</text><script>alert(1)</script>"')
        manifest.write_text(text)
        kinds, texts, _ = self.plot("cut", "<b>&.pkg")
        self.assertIn("Modules of <b>&.pkg", texts)
        self.assertTrue(any("<script>" in t for t in texts))

    def test_curves(self):
        lines = [{"step": s, "loss": 1 / s, "learning_rate": 0.1} for s in range(1, 5000)]
        lines[10]["validation"] = {"loss": 0.5}
        lines[11]["validation"] = {"loss": 0.4}
        lines[12]["loss"] = None
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / "a.jsonl").write_text(text)
        (self.folder / "b.jsonl").write_text(text + '{"step": 5000, "lo')
        kinds, texts, size = self.plot("curves", "a.jsonl", "b.jsonl")
        self.assertEqual({k: kinds[k] for k in ("c c0", "c c0 dash", "c c1 dash")},
                         {"c c0": 3, "c c0 dash": 1, "c c1 dash": 1})
        self.assertIn("b.jsonl (still written to)", texts)
        self.assertLess(size, 200_000)
        (self.folder / "a.jsonl").write_text('{"loss": 1}\n')
        self.run_command("plot", "curves", "a.jsonl", code=1)

    def test_curves_as_a_table(self):
        rows = [{"step": step, "loss": 1 / step, "losses": [1.0, 2.0], "memory": [10, 20 + step],
                 **({"validation": {"loss": 0.1 * step}} if step == 2 else {})} for step in range(1, 12)]
        (self.folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = self.run_command("plot", "curves", "table.jsonl", "--csv")
        read = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([int(row["step"]) for row in read], [row["step"] for row in rows])
        self.assertEqual([float(row["loss"]) for row in read], [row["loss"] for row in rows])
        self.assertEqual([row["memory.1"] for row in read], [f"{row['memory'][1]}.0" for row in rows])
        self.assertEqual(set(read[0]), {"step", "loss", "memory.0", "memory.1", "validation.loss"})
        self.assertEqual([row["validation.loss"] for row in read], ["", "0.2"] + [""] * 9)
        self.run_command("plot", "curves", "table.jsonl", "table.jsonl", "--csv", code=2)


if __name__ == "__main__":
    unittest.main()
