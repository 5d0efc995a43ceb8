"""Compares configs/ with the programs: schemas accept what they accept, ready jobs are valid."""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
except ImportError:
    print("SKIPPED: no jsonschema")
    sys.exit(77)

from docs_test import REFERENCE, keys, names, read, table_rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", ROOT / "build"))
SMALL = ROOT / "tests/data/cli/small.pkg"
KEPT = ROOT / "tests/data/kept"


def schema(name):
    return json.loads(read(CONFIGS / f"schemas/{name}.schema.json"))


def validator(name):
    return jsonschema.Draft202012Validator(schema(name))


def own_keys(properties):
    return set(properties) - {"$schema"}


class Schemas(unittest.TestCase):
    def test_are_schemas(self):
        for file in (CONFIGS / "schemas").iterdir():
            jsonschema.Draft202012Validator.check_schema(json.loads(read(file)))

    def test_every_key_has_a_description(self):
        def walk(node, at):
            for name, inner in node.get("properties", {}).items():
                where = f"{at}.{name}"
                self.assertTrue({"description", "const", "enum", "$ref"} & set(inner) or
                                name in {"from", "to", "time", "activation", "stages", "modules"},
                                where)
            for key, inner in node.items():
                for item in inner if isinstance(inner, list) else [inner]:
                    if isinstance(item, dict):
                        walk(item, f"{at}/{key}")
        for file in (CONFIGS / "schemas").iterdir():
            walk(json.loads(read(file)), file.name)

    def test_keys_are_those_of_the_reference(self):
        """docs_test.py compares the reference with the programs."""
        page = read(REFERENCE / "job.md")
        job = schema("job")
        self.assertEqual(own_keys(job["properties"]), keys(page, "job"))
        common = keys(page, "optimizer") | {"type"}
        types = {names(row[0])[0]: common | set(names(row[1]))
                 for row in table_rows(page, "optimizer types")}
        optimizers = {one["properties"]["type"]["const"]: set(one["properties"])
                      for one in job["properties"]["optimizer"]["oneOf"]}
        self.assertEqual(optimizers, types)
        section = page.split("\n## loss\n")[1].split("\n## ")[0]
        self.assertEqual(set(job["$defs"]["loss_object"]["properties"]["type"]["enum"]),
                         set(re.findall(r"^\| `(\w+)` \| `", section, re.M)))
        self.assertEqual(own_keys(schema("conf")["properties"]),
                         keys(read(REFERENCE / "conf.md"), "conf"))
        stage = schema("costs")["properties"]["stages"]["items"]
        self.assertEqual(set(stage["properties"]),
                         keys(read(REFERENCE / "costs.md"), "stage costs"))

    def test_take_the_files_of_the_tree(self):
        """Checks every job, conf and costs file in the tree that the programs accept."""
        found = 0
        for path in [*ROOT.glob("examples/**/*.json"), *ROOT.glob("bench/*.json"),
                     *(ROOT / "tests/data/cli").glob("*.json"),
                     *(ROOT / "tests/data/schedules").glob("*.json")]:
            try:
                content = json.loads(read(path))
            except json.JSONDecodeError:
                continue  # a file that is truncated on purpose
            kind = {"optimizer": "job", "module_to_stage_map": "conf", "stages": "costs"}
            for key, name in kind.items():
                if key not in content or not self.taken(path, name):
                    continue
                found += 1
                self.assertEqual([e.message for e in validator(name).iter_errors(content)], [],
                                 path)
        self.assertGreater(found, 5)

    def test_take_the_machines(self):
        """The C++ tests read the example."""
        for path in (CONFIGS / "machines").iterdir():
            content = json.loads(re.sub(r"^ *//.*$", "", read(path), flags=re.M))
            self.assertEqual([e.message for e in validator("machines").iter_errors(content)], [], path)
        broken = copy.deepcopy(content)
        broken["machines"][0]["number"] = 2
        self.assertTrue(list(validator("machines").iter_errors(broken)))

    def taken(self, path, kind):
        """Returns True if the program reads the file without an error."""
        command = {"job": ["plan", SMALL, path], "conf": ["conf", "--check", path],
                   "costs": ["plan", "--schedule", "1f1b", "--ranks", "2", "--microbatches", "2",
                             "--costs", path]}[kind]
        if kind == "job":
            # A job for another package is still a job.
            done = subprocess.run([BUILD / "pipewright", *command], capture_output=True, text=True)
            return path.name not in done.stderr
        return subprocess.run([BUILD / "pipewright", *command], capture_output=True).returncode == 0

    def test_take_packages_and_profiles(self):
        """Checks manifests and a profile of the tree, and the pages that list their keys."""
        for package in (SMALL, KEPT / "package"):
            manifest = json.loads(read(package / "manifest.json"))
            self.assertEqual([e.message for e in validator("manifest").iter_errors(manifest)], [])
        profile = json.loads(read(KEPT / "package/profile.json"))
        self.assertEqual([e.message for e in validator("profile").iter_errors(profile)], [])
        page = read(REFERENCE / "package.md").split("\n## manifest.json\n")[1]
        properties = schema("manifest")["properties"]
        self.assertEqual(own_keys(properties), keys(page, "manifest"))
        listed = set(re.findall(r"`(\w+)`", page))
        for entry in (properties["modules"]["items"], properties["values"]["items"],
                      schema("manifest")["$defs"]["held"]):
            self.assertEqual(set(entry["properties"]) - listed, set())
        keys_of_page = set(re.findall(r'"(\w+)"', read(REFERENCE / "profile.md")))
        node = schema("profile")["properties"]["nodes"]["items"]["properties"]
        self.assertEqual((own_keys(schema("profile")["properties"]) | set(node)) - keys_of_page, set())

    def test_refuse_broken_packages_and_profiles(self):
        manifest = json.loads(read(KEPT / "package/manifest.json"))
        for change in (lambda m: m.update(modul=1), lambda m: m.pop("modules"),
                       lambda m: m["modules"][0]["held"][0].update(kind="weight"),
                       lambda m: m["modules"][0]["held"][0].pop("requires_grad"),
                       lambda m: m["values"][0].update({"from": "output"})):
            wrong = copy.deepcopy(manifest)
            change(wrong)
            self.assertTrue(list(validator("manifest").iter_errors(wrong)))
        profile = json.loads(read(KEPT / "package/profile.json"))
        for change in (lambda p: p["nodes"].clear(), lambda p: p.update(pipewright_profile=2),
                       lambda p: p["nodes"][0]["forward"].pop("median"),
                       lambda p: p["links"][0].update(bytes_per_second=0)):
            wrong = copy.deepcopy(profile)
            change(wrong)
            self.assertTrue(list(validator("profile").iter_errors(wrong)))

    def test_refuse_mistakes(self):
        job = json.loads(read(CONFIGS / "jobs/classification.json"))
        for change in ({"micro_batches": 4}, {"microbatches": 0}, {"nan": "go on"},
                       {"minibatch_size": 128}, {"loss": "crossentropy"},
                       {"optimizer": {"type": "sgd", "betas": [0.9, 0.99]}},
                       {"data": {"tokens": "a", "tensors": "b"}}, {"checkpoint": {"every": 3}},
                       {"validation": {"every": 3}}, {"loss_scale": {"initial": "big"}}):
            wrong = {**copy.deepcopy(job), **change}
            self.assertTrue(list(validator("job").iter_errors(wrong)), change)
        conf = {"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [1]}}
        self.assertEqual(list(validator("conf").iter_errors(conf)), [])
        for change in ({"module_to_stage_map": ["0"]}, {"stage_to_rank_map": {"a": [0]}},
                       {"offload": {"memory": "1GiB"}}, {"depth": 1}):
            self.assertTrue(list(validator("conf").iter_errors({**conf, **change})), change)
        self.assertTrue(list(validator("split").iter_errors({"embed": "0"})))
        self.assertTrue(list(validator("device_map").iter_errors({"embed": 1.5})))


class Jobs(unittest.TestCase):
    def test_are_valid_and_have_a_plan(self):
        """Checks jobs by schema and by `plan` for a package, with names of parameters filled in."""
        jobs = sorted((CONFIGS / "jobs").iterdir())
        self.assertGreater(len(jobs), 2)
        for path in jobs:
            job = json.loads(read(path))
            self.assertEqual([e.message for e in validator("job").iter_errors(job)], [], path)
            self.assertTrue((path.parent / job["$schema"]).exists())
            if "freeze" in job:
                job["freeze"] = ["embedding.*"]
            job["optimizer"].pop("groups", None)
            with tempfile.TemporaryDirectory() as folder:
                at = pathlib.Path(folder)
                shutil.copytree(SMALL, at / "small.pkg")
                (at / "job.json").write_text(json.dumps(job))
                done = subprocess.run([BUILD / "pipewright", "plan", "small.pkg", "job.json"],
                                      cwd=at, text=True, capture_output=True)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
