"""Traces of runs are in the Trace Event Format, as Perfetto reads it."""
import json
import re
import unittest

from support import Case, export_gpt, gpt, pipewright, run_ranks, token_job

MICROBATCHES, RANKS = 4, 3


class Traces(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=False, layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", str(RANKS))

    def job(self, **changes):
        return self.write_job(token_job(steps=4, check_shared=None, save="trained.safetensors", **changes))

    def check(self, path, steps=1):
        """Every slice ends before the next one of its rank begins, and is on a row with a name; each flow has
        two ends, both within slices of actions that pass something on; the memory of each rank is a counter."""
        events = json.loads(path.read_text())["traceEvents"]
        named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        self.assertEqual(named, {(0, rank) for rank in range(RANKS)})
        rows = {row: sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events
                            if e["ph"] == "X" and (e["pid"], e["tid"]) == row) for row in named}
        memory = {e["name"]: e["args"]["bytes"] for e in events if e["ph"] == "C"}
        self.assertEqual(set(memory), {f"memory of rank {rank}" for rank in range(RANKS)})
        self.assertGreater(min(memory.values()), 10e6)  # of a process with LibTorch
        for slices in rows.values():
            self.assertTrue(slices)
            for (_, end, name), (start, _, after) in zip(slices, slices[1:]):
                self.assertLessEqual(end, start + 1e-3, f"{name} {after}")
        ends = {}
        for e in events:
            if e["ph"] in "sf":
                at = [re.match(r"\d+([FBI])\d", name) for start, end, name in rows[e["pid"], e["tid"]]
                      if start <= e["ts"] <= end]
                ends.setdefault(e["id"], {})[e["ph"]] = (e["name"], {found[1] for found in at if found})
        self.assertEqual(len(ends), 2 * (RANKS - 1) * MICROBATCHES * steps)
        for flow in ends.values():
            (name, source), (other, target) = flow["s"], flow["f"]
            self.assertEqual(name, other)
            for at in (source, target):
                self.assertTrue(at & {"value": {"F"}, "gradient": {"B", "I"}}[name], (name, at))

    def test_train(self):
        trace = self.path("trace.json")
        for mpi in (True, False):
            for changes in ({"schedule": "1f1b"}, {"schedule": "zb-h1"}, {"accumulate": 2},
                            {"schedule": "1f1b", "body": "lists"}):
                with self.subTest(mpi=mpi, **changes):
                    self.succeed(run_ranks(RANKS, "train", self.package, self.job(**changes), "--trace", trace,
                                           mpi=mpi))
                    self.check(trace)

    def test_steps_in_a_row(self):
        trace = self.path("trace.json")
        self.succeed(run_ranks(RANKS, "train", self.package, self.job(schedule="pipedream"), "--trace", trace))
        self.check(trace, steps=4)

    def test_bench_and_what_reads_it(self):
        trace, costs = self.path("trace.json"), self.path("costs.json")
        self.succeed(run_ranks(RANKS, "bench", self.package, self.job(), "--steps", "3", "--trace", trace,
                               "--costs", costs))
        self.check(trace, steps=3)
        train = self.path("train.json")
        self.succeed(run_ranks(RANKS, "train", self.package, self.job(), "--trace", train, "--report",
                               self.path("report.html")))
        self.assertIn("the last of which is drawn", self.path("report.html").read_text())
        plan = self.path("plan.txt")
        plan.write_text(self.succeed(pipewright("plan", self.package, self.job())).out)
        compared = self.succeed(pipewright("simulate", plan, "--costs", costs, "--compare", train))
        self.assertIn("measured", compared.out)

    def test_no_step(self):
        trace = self.path("none.json")
        job = self.job(checkpoint={"to": "checkpoints"})
        self.succeed(run_ranks(RANKS, "train", self.package, job))
        result = self.succeed(run_ranks(RANKS, "train", self.package, job, "--resume", "--trace", trace))
        self.assertIn("--trace: no step was run", result.out)
        self.assertFalse(trace.exists())


if __name__ == "__main__":
    unittest.main()
