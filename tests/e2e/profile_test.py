"""Profiles a package, partitions it, trains with the partition: the same bits as with any conf."""
import json
import os
import shutil
import subprocess
import unittest

from safetensors.torch import load_file, save_file

from support import (BUILD, ENVIRONMENT, LENGTH, Case, call, export_gpt, gpt, pipe_split, pipewright,
                     run_ranks, token_job, torch)


def out_of(*arguments, ranks=0):
    """Returns standard output only: with --json it is pure JSON."""
    command = ["mpirun", "-n", str(ranks)] if ranks else []
    command += [str(BUILD / "pipewright"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200,
                          env={**os.environ, **ENVIRONMENT})
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def sizes(profile):
    return ([(n["kept_bytes"], n["kept_for_weight_bytes"], n["peak_bytes"])
             for n in profile["nodes"]], profile["values"], profile["shared"])


class Profile(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg")
        cls.manifest = json.loads((cls.package / "manifest.json").read_text())
        cls.text = cls.folder / "profile.txt"
        done = pipewright("profile", cls.package, "--microbatch-size", 4, "--repeat", 3, "-o", cls.text)
        assert done.code == 0, done.out
        cls.profile = json.loads(cls.text.with_suffix(".json").read_text())

    def test_every_module_and_value_is_measured(self):
        profile = self.profile
        self.assertEqual([n["name"] for n in profile["nodes"]],
                         [m["name"] for m in self.manifest["modules"]])
        held = {}
        for node, module in zip(profile["nodes"], self.manifest["modules"]):
            for kind in ("forward", "backward", "weight_gradient"):
                self.assertGreater(node[kind]["median"], 0, (node["name"], kind))
                self.assertGreaterEqual(node[kind]["spread"], 0)
            numbers = sum(torch.Size(w["shape"]).numel() for w in module["held"]
                          if w["kind"] == "parameter")
            self.assertEqual(node["parameter_bytes"], 4 * numbers)
            self.assertGreaterEqual(node["peak_bytes"], node["kept_bytes"])
            held[node["name"]] = node
        # The first module passes no gradient on: all of its backward is W.
        self.assertEqual(held["module0"]["input_gradient"]["median"], 0)
        self.assertGreater(held["module1"]["input_gradient"]["median"], 0)
        self.assertGreater(held["module1"]["kept_for_weight_bytes"], 0)
        # A batch of 4 samples of LENGTH tokens, 32 wide, in float32.
        found = {v["name"]: v["bytes"] for v in profile["values"] if v["consumers"]}
        self.assertIn(4 * LENGTH * 32 * 4, found.values())
        self.assertEqual(profile["values"][0]["producer"], -1)
        self.assertEqual(profile["values"][0]["bytes"], 4 * LENGTH * 8)  # int64

    def test_graph_text_reads_back(self):
        graph = self.text.read_text()
        self.assertEqual(graph.count(" -- forward_compute_time="),
                         len(self.manifest["modules"]) + len(self.manifest["inputs"]))
        out = self.path("again")
        self.succeed(pipewright("partition", self.text, "--stages", 2, "-o", out))
        stages = (out / "graph.txt").read_text()
        self.assertEqual("".join(line.split(" -- stage_id=")[0].rstrip("\n") + "\n"
                                 for line in stages.splitlines()).rstrip("\n"), graph.rstrip("\n"))

    def test_fine_parts_and_bytes_that_do_not_depend_on_the_run(self):
        fine = [out_of("profile", self.package, "--microbatch-size", 4, "--repeat", 1, "--fine", "--json")
                for _ in range(2)]
        self.assertEqual(sizes(fine[0]), sizes(fine[1]))
        self.assertGreater(len(fine[0]["nodes"]), 3 * len(self.profile["nodes"]))
        for node in self.profile["nodes"]:
            parts = [n for n in fine[0]["nodes"] if n["module"] == node["module"]]
            self.assertGreaterEqual(sum(n["parameter_bytes"] for n in parts),
                                    node["parameter_bytes"])
        labels = " ".join(n["description"] for n in fine[0]["nodes"])
        for name in ("blocks.0", "blocks.2"):
            self.assertIn(name, labels)

    def test_under_mpirun_ranks_and_links_are_measured(self):
        modules = len(self.manifest["modules"])
        for started, by_itself in ((modules, []), (0, ["-n", modules])):
            profile = out_of("profile", self.package, "--microbatch-size", 4, "--repeat", 1, "--json", *by_itself,
                             ranks=started)
            self.assertEqual([node["rank"] for node in profile["nodes"]], list(range(modules)))
            pairs = [(link["from"], link["to"]) for link in profile["links"]]
            self.assertEqual(pairs, [(a, b) for a in range(modules) for b in range(modules) if a != b])
            for link in profile["links"]:
                self.assertGreater(link["latency"], 0)
                self.assertGreater(link["bytes_per_second"], 0)
            self.assertEqual([v["bytes"] for v in profile["values"]],
                             [v["bytes"] for v in self.profile["values"]])
        refused = pipewright("profile", self.package, "--hosts", "a,b")
        self.assertEqual(refused.code, 2, refused.out)
        self.assertIn("-n", refused.out)

    def test_directions_that_differ_a_little_leave_the_proof(self):
        links = [{"from": 0, "to": 1, "latency": 1e-6, "bytes_per_second": 2e9},
                 {"from": 1, "to": 0, "latency": 1e-6, "bytes_per_second": 1.98e9}]
        path = self.path("links.json")
        path.write_text(json.dumps({**self.profile, "links": links}))
        for asked in (["--stages", 2, "--objective", "step", "--microbatches", 8],
                      ["--stages", 2, "--objective", "step", "--microbatches", 8,
                       "--links", "1,1,0.99,1"],
                      ["--devices", 2, "--replicas", 2]):
            report = out_of("partition", path, *asked, "--json")
            self.assertTrue(report["proven"], (asked, report["gap"]))

    def test_profile_partition_conf_train_gives_the_same_bits(self):
        conf = self.path("one.json")
        self.succeed(pipewright("conf", self.package, "--ranks", 1, "-o", conf))
        job = token_job(steps=3)
        first = self.train(self.package, job, 1, mpi=False, conf=conf)
        # Measured on the spot, because the package has no profile.
        out = self.path("stages2")
        report = out_of("partition", self.package, "--stages", 2, "--repeat", 3, "--json", "-o", out)
        self.assertTrue(report["feasible"])
        self.assertEqual(len(report["stages"]), 2)
        conf = json.loads((out / "hybrid_conf.json").read_text())
        self.assertEqual(len(conf["module_to_stage_map"]), len(self.manifest["modules"]) + 1)
        run = self.train(self.package, job, 2, conf=out / "hybrid_conf.json")
        self.assert_same_run(run, first, "2 stages: ")
        # Replicated stages, as the partition chose.
        out = self.path("hybrid")
        report = out_of("partition", self.text.with_suffix(".json"), "--devices", 3, "--replicas", 3,
                        "-b", "1e12", "--json", "-o", out)
        ranks = sum(stage["replicas"] for stage in report["stages"])
        self.assertEqual(ranks, 3)
        self.assertGreater(max(stage["replicas"] for stage in report["stages"]), 1)
        run = self.train(self.package, {**job, "reduce": "exact"}, 3, conf=out / "hybrid_conf.json")
        self.assert_same_run(run, first, "replicas: ")

    def test_costs_of_a_partition_are_those_of_its_run(self):
        out = self.path("costs_of")
        report = out_of("partition", self.text.with_suffix(".json"), "--stages", 2, "--json", "-o",
                        out)
        job = self.write_job({**token_job(steps=2), "microbatch_size": 4, "schedule": "gpipe"})
        conf, plan, measured = out / "hybrid_conf.json", self.path("plan.csv"), self.path("run.json")
        self.succeed(pipewright("plan", self.package, job, "--conf", conf, "-o", plan))
        self.succeed(pipewright("simulate", plan, "--costs", out / "costs.json"))
        self.succeed(run_ranks(2, "bench", self.package, job, "--conf", conf, "--steps", 2,
                               "--costs", measured, mpi=False))
        ours, real = (json.loads(p.read_text()) for p in (out / "costs.json", measured))
        self.assertEqual(len(ours["stages"]), len(report["stages"]))
        first, run = ours["stages"][0], real["stages"][0]
        self.assertAlmostEqual(first["activation"] / run["activation"], 1, delta=0.02)
        self.assertAlmostEqual(first["gradients"] / run["gradients"], 1, delta=0.02)
        self.assertAlmostEqual(ours["stages"][1]["received"] / real["stages"][1]["received"], 1,
                               delta=0.02)
        self.assertAlmostEqual(ours["edges"][0]["bytes"] / real["edges"][0]["bytes"], 1,
                               delta=0.02)

    def test_compile_by_profile(self):
        package = self.compile("gpt.pt2", "by_profile.pkg", "--split", "profile:3", "--repeat", "3")
        manifest = json.loads((package / "manifest.json").read_text())
        self.assertEqual(len(manifest["modules"]), 3)
        leftovers = [p.name for p in self.folder.iterdir() if ".pieces" in p.name]
        self.assertEqual(leftovers, [])
        job = token_job(steps=3)
        run = self.train(package, job, 3, mpi=False)
        reference = self.train_pytorch(gpt(layers=3), job)
        for ours, theirs in zip(run.losses, reference.losses):
            for a, b in zip(ours, theirs):
                self.assertAlmostEqual(a, b, delta=1e-5)

    def test_trace_of_a_run_is_fed_back(self):
        names = [m["name"] for m in self.manifest["modules"]]
        events = [{"name": f"{s}{k}0", "ph": "X", "pid": 0, "tid": s, "ts": 0, "dur": 1000.0 * (s + 1),
                   "args": {"step": 0}} for s in range(len(names)) for k in "FB"]
        trace = self.path("trace.json")
        trace.write_text(json.dumps({"traceEvents": events}))
        profile = out_of("profile", self.package, "--from-trace", trace, "--base",
                         self.text.with_suffix(".json"), "--json")
        for s, node in enumerate(profile["nodes"]):
            self.assertAlmostEqual(node["forward"]["median"], 1e-3 * (s + 1))
        self.assert_fails(pipewright("profile", self.package, "--from-trace", trace, "--base",
                                     self.text.with_suffix(".json"), "--microbatch-size", 77, "--json"),
                          "per microbatch", "--microbatch-size 77")
        self.assert_fails(pipewright("partition", self.package, "--stages", 2, "-o", self.package),
                          "is the package to partition")

    def test_as_a_job_trains_it(self):
        """The job's data has longer sequences than the sample, and one module is frozen."""
        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

            def forward(self, x):
                x = torch.tanh(self.first(x))
                pipe_split()
                return self.last(x)

        sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}
        torch.export.save(torch.export.export(Two(), (torch.rand(2, 4, 6),), strict=False, dynamic_shapes=(sizes,)),
                          self.path("two.pt2"))
        package = self.compile("two.pt2", "two.pkg", "--ranks", "2")
        save_file({"x": torch.rand(8, 32, 6), "y": torch.rand(8, 32, 3)}, self.path("two.safetensors"))
        job = {"data": {"tensors": "two.safetensors", "inputs": {"x": "x"}, "target": "y"}, "loss": "mse",
               "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2, "microbatch_size": 2, "body": "autograd",
               "freeze": ["first.*"]}
        path = self.write_job(job)
        done = pipewright("profile", package, "--job", path, "--repeat", 1, "-o", self.path("two.json"))
        self.succeed(done)
        self.assertIn("2 samples per microbatch, from the data of", done.out)
        profile = json.loads(self.path("two.json").read_text())
        sizes = {value["name"]: value["bytes"] for value in profile["values"]}
        self.assertEqual(sizes["x"], 2 * 32 * 6 * 4)
        first, last = profile["nodes"]
        self.assertEqual((first["trained_bytes"], last["trained_bytes"]), (0, (5 * 3 + 3) * 4))
        self.assertEqual((first["body"], last["body"]), ("autograd", "autograd"))
        both = pipewright("profile", package, "--job", path, "--forward-only")
        self.assertEqual(both.code, 2, both.out)

    def test_partition_into_the_packages_own_confs(self):
        package = self.path("own_confs.pkg")
        shutil.copytree(self.package, package)
        self.succeed(pipewright("partition", package, "--stages", 2, "-o", package / "conf"))
        conf = package / "conf/hybrid_conf.json"
        self.assertEqual(len(json.loads(conf.read_text())["stage_to_rank_map"]), 2)
        conf.write_text(conf.read_text() + " ")
        self.assert_fails(pipewright("partition", package, "--stages", 2, "-o", package / "conf"),
                          "hybrid_conf.json: was edited since")

    def test_the_package_keeps_the_example_it_was_exported_with(self):
        samples = load_file(self.package / "samples.safetensors")
        self.assertEqual([(str(t.dtype), list(t.shape)) for t in samples.values()],
                         [("torch.int64", [2, LENGTH])])

    def test_outputs_take_nothing_of_others(self):
        base = ("profile", self.package, "--repeat", 1, "--warmup", 0)
        own = self.path("own.txt")
        result = pipewright(*base, "-o", own)
        self.succeed(result)
        self.assertIn(f"written to {own} and {own.with_suffix('.json')}\n", result.out)
        self.succeed(pipewright(*base, "-o", own))
        before = own.read_text()
        own.write_text(before + "\n")
        self.assert_fails(pipewright(*base, "-o", own), "is not what an earlier profile wrote",
                          "--force")
        self.succeed(pipewright(*base, "-o", own, "--force"))
        self.assertEqual(own.read_text().count("\n"), before.count("\n"))
        json_file = own.with_suffix(".json")
        edited = json_file.read_text().replace('"repeat": 1', '"repeat": 7')
        json_file.write_text(edited)
        for name in ("own.txt", "own.json"):
            self.assert_fails(pipewright(*base, "-o", self.path(name)), "is not what")
        self.assertEqual(json_file.read_text(), edited)
        # Inputs are not overwritten, even those that no option names, and even with --force.
        trace = self.path("empty.json")
        trace.write_text('{"traceEvents": []}')
        conf = self.package / "conf/mp_conf.json"
        for name, target in (("own.json", json_file), ("own.json", conf)):
            self.assert_fails(pipewright("profile", self.package, "--from-trace", trace, "--base",
                                         self.path(name), "-o", target, "--force"), "is read")
        self.path("empty.txt").write_text("")  # empty: nothing to lose
        trace.unlink()
        self.succeed(pipewright(*base, "-o", self.path("empty.txt")))
        for foreign in ("gpt.pt2", "notes.json", "notes.txt"):
            path = self.path(foreign)
            if not path.exists():
                path.write_text("{}")
            held = path.read_bytes()
            self.assert_fails(pipewright(*base, "-o", path),
                              f"{foreign}: already exists, and is not what")
            self.assertEqual(path.read_bytes(), held)
        # The file beside the named one may be somebody's, too.
        self.path("notes.txt").unlink()
        self.assert_fails(pipewright(*base, "-o", self.path("notes.txt")),
                          "notes.json: already exists")
        self.assertEqual(self.path("notes.json").read_text(), "{}")

    def test_graph_text_on_standard_output(self):
        done = subprocess.run([str(BUILD / "pipewright"), "profile", str(self.package), "--repeat",
                               "1", "-o", "/dev/stdout"], capture_output=True, text=True,
                              timeout=1200)
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            self.assertRegex(line, r"^(\t\S+ -- \S+|\S+ -- .* -- forward_compute_time=.*)$")
        self.assert_fails(pipewright("profile", self.package, "--json", "-o", "/dev/stdout"),
                          "is also where --json prints", code=2)

    def test_the_body_that_was_measured_is_named(self):
        profile = out_of("profile", self.package, "--repeat", 1, "--json")
        self.assertEqual({node["body"] for node in profile["nodes"]} - {"autograd", "lists"}, set())
        for body, other in (("autograd", "lists"), ("lists", "autograd")):
            done = call([BUILD / "pipewright", "profile", self.package, "--repeat", 1],
                        environment={"PIPEWRIGHT_BODY": body})
            self.assertIn(" body ", done.out)
            self.assertIn(f" {body} ", done.out)
            self.assertNotIn(f" {other} ", done.out)

    def test_what_cannot_be_measured_is_said(self):
        self.assert_fails(pipewright("profile", self.path("none")), "manifest.json")
        self.assert_fails(pipewright("profile", self.package, "--input", self.path("none")), "none")
        self.assert_fails(pipewright("compile", self.path("gpt.pt2"), "-o", self.path("x"), "--split",
                                     "profile:9999"), "cuts between submodules make only 36 modules")


if __name__ == "__main__":
    unittest.main()
