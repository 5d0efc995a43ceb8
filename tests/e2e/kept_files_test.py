"""Files that an earlier build wrote are read by this one. tests/data/kept has one of each kind, all from
one model of three layers with a tied embedding and batch norm; they are never written again."""
import json
import pathlib
import shutil
import unittest

from safetensors.torch import load_file

from support import Case, pipewright, run_ranks

KEPT = pathlib.Path(__file__).resolve().parent.parent / "data/kept"


class KeptFiles(Case):
    def setUp(self):
        self.kept = self.path("kept")
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(KEPT, self.kept)

    def told(self, *arguments):
        return json.loads(self.succeed(pipewright(*arguments, "--json")).out)

    def job_of(self, **changes):
        """Writes the job for one step, without its checkpoints."""
        job = json.loads((self.kept / "job.json").read_text()) | {"steps": 1} | changes
        del job["checkpoint"]
        (self.kept / "one_step.json").write_text(json.dumps(job))
        return self.kept / "one_step.json"

    def test_a_run_goes_on_from_the_checkpoint(self):
        """The package, job, data and checkpoint of step 2 give the weights that the earlier build had at step 4."""
        before = load_file(self.kept / "trained.safetensors")
        (self.kept / "trained.safetensors").unlink()
        lines = (self.kept / "metrics.jsonl").read_text().splitlines()
        (self.kept / "metrics.jsonl").write_text("\n".join(lines[:2]) + "\n")
        self.succeed(run_ranks(2, "train", self.kept / "package", self.kept / "job.json", "--resume"))
        after = load_file(self.kept / "trained.safetensors")
        # The gradient of a bias before a batch norm is nothing but rounding, which differs between processors. AdamW
        # makes whole steps of it, and the running mean contains that bias.
        for name in ("first.bias", "norm.running_mean"):
            self.assertEqual(after.pop(name).shape, before.pop(name).shape)
        # Another processor may round differently.
        self.assert_close_tensors(after, before, 1e-5)
        losses = [json.loads(line)["loss"] for line in (self.kept / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(losses), 4)
        for ours, theirs in zip(losses, map(json.loads, lines)):
            self.assertAlmostEqual(ours, theirs["loss"], places=5)

    def test_package_and_job(self):
        package = self.told("inspect", self.kept / "package")
        self.assertEqual([module["name"] for module in package["modules"]], ["module0", "module1"])
        found = self.told("check", self.kept / "package", "--job", self.kept / "job.json", "--resume")
        self.assertEqual([f for f in found["findings"] if f["severity"] == "error"], [])

    def test_conf(self):
        self.succeed(pipewright("conf", self.kept / "package", "--check", self.kept / "conf.json"))
        self.succeed(run_ranks(1, "train", self.kept / "package", self.job_of(), "--conf", self.kept / "conf.json"))

    def test_plans(self):
        """The plan of the run is still the same text, and the loop of zb-h1 is still valid."""
        plan = self.succeed(pipewright("plan", self.kept / "package", self.kept / "job.json")).out
        self.assertEqual(plan, (self.kept / "plan.csv").read_text())
        for name in ("plan.csv", "loop.csv"):
            self.succeed(pipewright("plan", "--validate", self.kept / name))
        self.succeed(run_ranks(2, "train", self.kept / "package", self.job_of(plan="plan.csv")))

    def test_costs_and_trace(self):
        figures = self.told("simulate", self.kept / "plan.csv", "--costs", self.kept / "costs.json")
        self.assertAlmostEqual(figures["makespan"], 138.03845890025812, places=9)
        self.assertEqual([rank["peak_bytes"] for rank in figures["ranks"]], [1848, 1108])
        self.assertEqual([(link["from"], link["to"], link["messages"], link["bytes"]) for link in figures["links"]],
                         [(0, 1, 3, 432), (1, 0, 3, 432)])
        compared = self.told("simulate", self.kept / "plan.csv", "--costs", self.kept / "costs.json",
                             "--compare", self.kept / "trace.json")
        step = compared["compare"]["step"]
        self.assertAlmostEqual(step["predicted"], 138.03845890025812, places=9)
        self.assertAlmostEqual(step["measured"], 526.4104984235018, places=9)
        self.assertEqual({kind["kind"]: kind["measured_count"] for kind in compared["compare"]["kinds"]},
                         {"F": 18, "B": 18, "SEND_F": 9, "RECV_F": 9, "SEND_B": 9, "RECV_B": 9, "REDUCE_GRAD": 6,
                          "STEP": 6})

    def test_profile_and_graph(self):
        """The cut of the profile and of the graph text is the one of the earlier build."""
        def modules(stage):
            return [node for node in stage["nodes"] if not node.startswith("input")]

        before = json.loads((self.kept / "partition.json").read_text())
        for source in (self.kept / "package", self.kept / "package/profile.txt", self.kept / "graph.txt"):
            found = self.told("partition", source, "--stages", 2)
            self.assertEqual(list(map(modules, found["stages"])), list(map(modules, before["stages"])), source)

    def test_device_map(self):
        self.succeed(pipewright("place", self.kept / "trained.safetensors", "--check", self.kept / "device_map.json"))

    def test_weights(self):
        first = {"embed.weight": [10, 6], "first.bias": [12], "first.weight": [12, 6], "norm.bias": [12],
                 "norm.num_batches_tracked": [], "norm.running_mean": [12], "norm.running_var": [12],
                 "norm.weight": [12]}
        both = first | {"scale": [1], "second.bias": [6], "second.weight": [6, 12]}
        for file, shapes in (("trained.safetensors", both), ("package/weights/module0.safetensors", first),
                             ("checkpoints", both)):
            listed = self.told("weights", "list", self.kept / file)
            self.assertEqual({tensor["name"]: tensor["shape"] for tensor in listed["tensors"]}, shapes, file)
            self.assertEqual({tensor["dtype"] for tensor in listed["tensors"]}, {"F32", "I64"}, file)


if __name__ == "__main__":
    unittest.main()
