"""Tunes a package for a job: the result trains the same samples, and refusals say why."""
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import unittest

from safetensors.torch import load_file, save_file

from support import (BUILD, ENVIRONMENT, RUN, SGD, Case, Statistics, call, export, export_gpt, gpt, pipe_split, pipewright,
                     run_ranks, token_job, torch)


class Average(torch.nn.Module):
    """Keeps a moving average, which replicas cannot merge, and a table, which forward only reads."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("table", torch.ones(6))

    def forward(self, x):
        x = self.first(x) * self.table
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * x.mean(0))
        pipe_split()
        return self.last(x)


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        self.register_buffer("table", torch.ones(6))

    def forward(self, x, y):
        x = torch.tanh(self.first(x) * self.table)
        pipe_split()
        return (self.last(x) - y).square().mean()


class Reports(Case):
    def report(self, folder):
        return json.loads(self.path(f"{folder}/report.json").read_text())


class Tune(Reports):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")

    def job(self, **changes):
        return token_job(**{"optimizer": SGD, "schedule": "gpipe", "microbatches": 4, "microbatch_size": 2, "steps": 4,
                            "check_shared": None, "save": "trained.safetensors", **changes})

    def tune(self, folder, *options, ranks=2, **changes):
        path = self.write_job(self.job(**changes))
        return pipewright("tune", self.package, path, "--ranks", ranks, "-o", self.path(folder),
                          "--repeat", 1, *options)

    def test_what_is_written_trains_the_same_samples(self):
        result = self.tune("tuned", "--rounds", 1, "--candidates", 2, "--in-process")
        self.succeed(result)
        report = self.report("tuned")
        [winner, given] = [report["candidates"][0], *(row for row in report["candidates"] if row["as_given"])]
        draws = ", and in what dropout draws" if winner["microbatches"] != given["microbatches"] else ""
        differ = f"results may differ from those of the run as given by rounding{draws} (`pipewright tune --exact` "
        self.assertEqual(differ in result.out, not winner["as_given"])
        job = json.loads(self.path("tuned/job.json").read_text())
        best = report["candidates"][0]
        self.assertTrue(all(c["measured"] for c in report["candidates"]))
        self.assertEqual(sum(c["as_given"] for c in report["candidates"]), 1)
        self.assertEqual((job["minibatch_size"], job["microbatches"], job["schedule"]),
                         (8, best["microbatches"], best["schedule"]))
        self.assertIn("pipewright-run --in-process", result.out)
        self.path("one.json").write_text('{"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0]}}')
        self.succeed(run_ranks(1, "train", self.package, self.path("job.json"), "--conf",
                               self.path("one.json"), mpi=False))
        given = load_file(self.path("trained.safetensors"))
        before = self.path("trained.safetensors").stat().st_mtime_ns
        self.assertIn(f"to start it:\n    {report['start']}\n", result.out)
        words = shlex.split(report["start"])
        self.assertEqual(words[0], "pipewright-run")
        self.succeed(call([RUN, *words[1:]]))
        tuned = load_file(self.path("trained.safetensors"))  # "save" is where it was, not beside the new job
        self.assertNotEqual(before, self.path("trained.safetensors").stat().st_mtime_ns)
        for name, weight in given.items():  # another microbatch size rounds differently
            torch.testing.assert_close(tuned[name], weight, rtol=1e-3, atol=1e-5, msg=name)

    def with_runner(self, body):
        """Returns the path of a copy of pipewright beside a program that runs `body`, which knows the command line as
        `words`, and then becomes pipewright-run."""
        folder = self.path(f"runner{len(list(self.folder.glob('runner*')))}")
        folder.mkdir()
        shutil.copy2(BUILD / "pipewright", folder)
        runner = folder / "pipewright-run"
        runner.write_text(f"#!{sys.executable}\nimport json, os, pathlib, signal, subprocess, sys\n"
                          f"words = [{str(RUN)!r}, *sys.argv[1:]]\n"
                          f"{textwrap.dedent(body)}\nos.execv(words[0], words)\n")
        runner.chmod(0o755)
        return folder / "pipewright"

    def test_a_candidate_that_is_killed(self):
        """As by the system where memory is short."""
        program = self.with_runner("""
            job = [json.loads(pathlib.Path(word).read_text()) for word in words if word.endswith("candidate_job.json")]
            if job and job[0]["microbatches"] != 4:
                os.kill(os.getpid(), signal.SIGKILL)
        """)
        result = call([program, "tune", self.package, self.write_job(self.job()), "--ranks", 2, "-o", self.path("killed"),
                       "--repeat", 1, "--in-process", "--rounds", 1])
        self.succeed(result)
        report = self.report("killed")
        killed = [row for row in report["candidates"] if "failure" in row]
        self.assertTrue(killed, report["candidates"])
        for row in report["candidates"]:
            self.assertEqual("failure" in row, row["microbatches"] != 4)
            self.assertNotEqual(bool(row["measured"]), "failure" in row)
            if "failure" in row:
                self.assertIn("ended with", row["failure"])
        notes = [note for note in report["notes"] if " is dropped: " in note]
        self.assertEqual(len(notes), len(killed))
        self.assertTrue(all(f"note: {note}" in result.out for note in notes))
        self.assertEqual(json.loads(self.path("killed/job.json").read_text())["microbatches"], 4)

    def test_the_ranked_list_is_the_same_each_time(self):
        """Although times that candidates were measured with differ."""
        lists = []
        for _ in range(2):
            self.succeed(self.tune("ranked", "--rounds", 1, "--in-process", "--force"))
            rows = self.report("ranked")["candidates"]
            lists.append(sorted([row["predicted"], row["schedule"], row["ranks"], row["microbatches"], row["peak_bytes"],
                                 row["module_to_stage"]] for row in rows))
        self.assertEqual(*lists)
        self.assertGreater(len(lists[0]), 4)

    def test_close_candidates_have_more_rounds(self):
        """Whether several are close depends on the machine."""
        result = self.tune("close", "--rounds", 2, "--candidates", 4, "--in-process")
        self.succeed(result)
        rows = self.report("close")["candidates"]
        steps = [statistics.median(row["measured"]) for row in rows]
        if "round 3 of 4" in result.out:  # the first no longer counts
            self.assertEqual(max(len(row["measured"]) for row in rows), 3)
        else:
            self.assertEqual(sum(step <= 1.05 * min(steps) for step in steps), 1, rows)

    def weights(self, ranks, job, *options):
        self.succeed(run_ranks(ranks, "train", self.package, self.path(job), *options, mpi=False))
        return load_file(self.path("trained.safetensors"))

    def test_exact_keeps_the_bits_of_other_orders(self):
        """looped-bfs adds the gradients of the last microbatch first, and two replicas add half of them each."""
        package, self.package = self.package, self.compile("gpt.pt2", "two.pkg", "--ranks", "2")
        self.addCleanup(setattr, self, "package", package)
        self.path("both.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [1, 0]}}))
        self.path("own.csv").write_text("0F0,0F1,0F2,0F3,0B2,0B0,0B1,0B3\n1F0,1F1,1F2,1F3,1B2,1B0,1B1,1B3\n")
        for schedule, conf in (("looped-bfs", []), ("chimera", ["--conf", self.path("both.json")]), ("own.csv", [])):
            with self.subTest(schedule):
                tuned = self.tune("bits", "--no-measure", "--exact", "--force", "--candidates", 99, schedule=schedule)
                self.succeed(tuned)
                name = self.path(schedule) if schedule == "own.csv" else schedule
                self.assertIn(f"--exact leaves out all schedules that add gradients in another order than {name}",
                              tuned.out)
                found = self.report("bits")["candidates"]
                same = {schedule, "dualpipe", "1f1b"} if schedule == "chimera" else {schedule}
                self.assertEqual({each["schedule"] for each in found}, same)
                given = self.weights(2, "job.json", *conf)
                for other in same & {"dualpipe"}:
                    self.assert_same_tensors(self.weights(2, "job.json", *conf, "--schedule", other), given, other)
                self.assertEqual(self.path("bits/plan.csv").exists(), schedule == "own.csv")
                self.assert_same_tensors(self.weights(found[0]["ranks"], "bits/job.json", "--conf",
                                                      self.path("bits/conf.json")), given)

    def test_exact_where_gradients_are_added_in_order(self):
        changes = {"schedule": "looped-bfs", "reduce": "exact"}
        result = self.tune("ordered", "--no-measure", "--exact", "--candidates", 99, **changes)
        self.succeed(result)
        self.assertNotIn("leaves out", result.out)
        found = self.report("ordered")["candidates"]
        self.assertIn("chimera", {each["schedule"] for each in found})
        self.path("one.json").write_text('{"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0]}}')
        given = self.weights(1, "job.json", "--conf", self.path("one.json"))
        self.assert_same_tensors(self.weights(found[0]["ranks"], "ordered/job.json", "--conf",
                                              self.path("ordered/conf.json")), given)

    def test_steps_that_overlap(self):
        refused = self.tune("overlap", "--no-measure", schedule="pipedream")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("job.json: the steps of pipedream overlap, and no other schedule has its results", refused.out)

    def test_exact_and_change_microbatch(self):
        both = self.tune("overlap", "--exact", "--change-microbatch")
        self.assertEqual(both.code, 2, both.out)

    def notes(self, folder, package, job, *options):
        self.path("job.json").write_text(json.dumps(job))
        self.succeed(pipewright("tune", package, self.path("job.json"), "--ranks", 2, "-o", self.path(folder),
                                "--repeat", 1, "--no-measure", *options))
        report = self.report(folder)
        return report["notes"], {c["schedule"] for c in report["candidates"] if c["ranks"] == 2}

    def test_replicas_where_forward_writes_buffers(self):
        torch.manual_seed(0)
        export(Statistics(), torch.rand(2, 6), self.path("norm.pt2"))
        export(Average(), torch.rand(2, 6), self.path("average.pt2"))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"}, "loss": "mse",
               "optimizer": SGD, "microbatches": 4, "microbatch_size": 4, "schedule": "gpipe"}
        cases = (("norm", {}, [], "norm.running_mean", True), ("norm", {"buffers": "merge"}, [], "", None),
                 ("average", {"buffers": "merge"}, ["--change-microbatch"], "average", False))
        for number, (name, changes, options, buffer, merges) in enumerate(cases):
            with self.subTest(name, **changes):
                package = self.compile(f"{name}.pt2", f"{name}{number}.pkg", "--ranks", "2")
                notes, schedules = self.notes(f"{name}{number}", package, {**job, **changes}, "--candidates", 99,
                                              *options)
                left_out = [note for note in notes if note.startswith("schedules with replicas are left out: ")]
                self.assertEqual(bool(left_out), bool(buffer), notes)
                self.assertEqual("chimera" in schedules, not buffer)
                if buffer:
                    self.assertIn(f"forward writes to {buffer}, and each replica would keep that of its own "
                                  "microbatches", left_out[0])
                    self.assertEqual('"buffers": "merge"' in left_out[0], merges)
                stays = [note for note in notes if note.startswith("the microbatch stays at 4 samples: forward writes to ")]
                self.assertEqual(bool(stays), not options, notes)

    def test_replicas_of_a_model_that_computes_its_loss(self):
        batch = {0: torch.export.Dim("batch", min=1, max=4096)}
        torch.export.save(torch.export.export(Loss(), (torch.rand(2, 6), torch.rand(2, 3)), strict=False,
                                              dynamic_shapes=(batch, batch)), self.path("loss.pt2"))
        package = self.compile("loss.pt2", "loss.pkg", "--ranks", "2")
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x", "y": "y"}}, "loss": {"output": 0},
               "optimizer": SGD, "microbatches": 4, "microbatch_size": 4, "schedule": "gpipe"}
        notes, schedules = self.notes("loss", package, job, "--candidates", 99)
        self.assertIn("chimera", schedules)
        self.assertIn("the microbatch stays at 4 samples: the model computes its loss, which need not be a mean over "
                      "samples (`pipewright tune --change-microbatch` changes it anyway)", notes)

    def test_predictions_alone(self):
        result = self.tune("predicted", "--no-measure", "--json", "--exact")
        self.succeed(result)
        report = self.report("predicted")
        for candidate in report["candidates"]:
            self.assertEqual((candidate["microbatches"], candidate["microbatch"]), (4, 2))
            self.assertEqual(candidate["measured"], [])
        steps = [c["predicted"] for c in report["candidates"]]
        self.assertEqual(steps, sorted(steps))
        schedules = [c["schedule"] for c in report["candidates"] if c["ranks"] == 2 and not c["as_given"]]
        self.assertGreaterEqual(len(schedules), 3, "all candidates may have the same ranks and microbatches")
        self.assertIn("the microbatch stays at 2 samples: --exact keeps the results bitwise identical", report["notes"])
        self.assertIn("the run as given is on 2 ranks, with the modules evenly on them, since the package's conf.json "
                      "cannot be used: it is for 3 ranks", report["notes"])

    def test_memory(self):
        refused = self.tune("small", "--no-measure", "--memory", "1KB")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r"--memory 1KB: nothing fits: the smallest of \d+ candidates takes")
        self.assertFalse(self.path("small/job.json").exists())
        least = int(refused.out.split("give --memory ")[1].split()[0])
        self.succeed(self.tune("small", "--no-measure", "--memory", str(least)))
        report = self.report("small")
        for candidate in report["candidates"]:
            self.assertLessEqual(max(candidate["peak_bytes"]), least)
            self.assertEqual(candidate["limit_bytes"], [least] * candidate["ranks"])
            self.assertEqual(candidate.get("body"), "autograd", "checks of lists need more")
        self.assertEqual(json.loads(self.path("small/job.json").read_text())["body"], "autograd")

    def test_the_fewest_ranks(self):
        def refuse(ranks, memory):
            refused = self.tune("few", "--no-measure", "--memory", memory, ranks=ranks)
            self.assertEqual(refused.code, 1, refused.out)
            return refused.out
        least = {ranks: int(refuse(ranks, "1KB").split("give --memory ")[1].split()[0]) for ranks in (1, 3)}
        self.assertLess(least[3], 0.8 * least[1])
        between = (least[1] + least[3]) // 2
        enough = re.search(r"give --memory (\d+) \(.*\) or more, or --ranks (\d): the search finds a way with each",
                           refuse(1, between))
        self.assertTrue(enough)
        self.succeed(self.tune("few", "--no-measure", "--memory", enough[1], ranks=1))
        self.succeed(self.tune("few", "--no-measure", "--memory", between, "--force", ranks=enough[2]))
        if enough[2] == "3":
            self.assertIn("nothing fits", refuse(2, between))

    def test_a_busy_machine(self):
        loops = [subprocess.Popen([sys.executable, "-c", "import time\nend = time.time() + 300\nwhile time.time() < end: pass"]) for _ in range(os.cpu_count())]
        try:
            self.use_one_rank("disturbed.pkg")
            result = self.tune("disturbed", "--no-measure")
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        self.succeed(result)
        self.assertRegex(result.out, r"warning: other programs use \d+\.\d cores; measuring again")
        told = [note for note in self.report("disturbed")["notes"] if note.startswith("other programs used up to ")]
        for what in ("modules were measured", "steps of the job ran"):
            self.assertTrue(any(f" while {what}: their times may be too long; delete " in note for note in told), told)
        for folder in re.findall("; delete (.*) to measure again", told[0]):
            shutil.rmtree(folder)
        again = self.tune("disturbed", "--no-measure", "--force")
        self.succeed(again)
        self.assertNotIn("from an earlier tune", again.out, "what the notes name is all that is kept")

    def test_sizes_that_are_interpolated(self):
        self.succeed(self.tune("between", "--no-measure", microbatches=4, microbatch_size=16))
        self.assertTrue(any(re.match(r"\d+ of \d+ sizes of microbatches were measured, the others are interpolated; "
                                     r"(measured sizes differ from their interpolation by [\d.]+ % \(the median\), and by "
                                     r"[\d.]+ % at most|how far that is off is not known)", note)
                            for note in self.report("between")["notes"]), self.report("between")["notes"])

    def falsify_profiles(self, change):
        """Calls change(node, samples of a microbatch) for every module of every profile of self.package. Each microbatch
        takes the same time, so that candidates with fewer are predicted to be faster."""
        for file in (pathlib.Path(self.package) / "tuned/measured").glob("*profile-*"):
            kept = json.loads(file.read_text())
            profile = kept["measured"]["profile"]
            for node in profile["nodes"]:
                change(node, profile["microbatch"])
                for part in ("forward", "backward", "input_gradient", "weight_gradient"):
                    node[part]["median"] = 0.01
            file.write_text(json.dumps(kept))

    def use_one_rank(self, name):
        package, self.package = self.package, self.compile("gpt.pt2", name, "--ranks", "1")
        self.addCleanup(setattr, self, "package", package)

    def test_autograd_under_a_limit(self):
        """Checks of lists take so much memory that only slower candidates have room for them."""
        self.use_one_rank("checked.pkg")
        job = {"ranks": 1, "schedule": "1f1b"}
        modules = len(json.loads((pathlib.Path(self.package) / "manifest.json").read_text())["modules"])
        self.succeed(self.tune("unchecked", "--no-measure", "--memory", "1GB", **job))

        def change(node, samples):
            static = node["parameter_bytes"] + node["buffer_bytes"] + node["trained_bytes"]
            node["kept_bytes"] = 1e7 * samples / modules
            node["peak_bytes"] = static + node["kept_bytes"]
        self.falsify_profiles(change)
        both = self.tune("both", "--memory", int(8.5e7), "--rounds", 1, "--candidates", 2, **job)
        self.succeed(both)
        candidates = self.report("both")["candidates"]
        fewest = {body: min(each["microbatches"] for each in candidates if each.get("body") == body and not each["as_given"])
                  for body in ("autograd", None)}
        self.assertEqual(fewest, {"autograd": 1, None: 2}, candidates)
        self.succeed(self.tune("lists", "--no-measure", "--memory", int(8.5e7), **job))
        self.assertFalse([each for each in self.report("lists")["candidates"] if "body" in each],
                         "nothing runs, and autograd may take longer than predicted")

    def test_a_candidate_over_the_limit_is_dropped(self):
        """Profiles that say too little are found out when candidates run."""
        self.use_one_rank("light.pkg")
        options = ["--exact", "--rounds", 1, "--candidates", 1, "--force"]
        job = {"ranks": 1, "schedule": "1f1b", "body": "autograd"}  # the only candidate is the job as given
        self.succeed(self.tune("light", "--memory", "1GB", *options, **job))
        [found] = self.report("light")["candidates"]
        used = found["measured_peak_bytes"]
        self.assertAlmostEqual(found["peak_bytes"][0] / used, 1, delta=0.05)
        too_little = lambda node, _: node.update(kept_bytes=0, peak_bytes=node["parameter_bytes"] + node["trained_bytes"])
        self.falsify_profiles(too_little)
        refused = self.tune("light", "--memory", 4 * used // 5, *options, **job)
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r"the fastest candidate is dropped: rank 0 takes .*B, more than --memory \d+, and .*B "
                                      r"was")
        self.assertRegex(refused.out, rf"--memory {4 * used // 5}: every candidate that ran takes more than was predicted: the ")
        least = int(refused.out.split("give --memory ")[1].split()[0])
        self.succeed(self.tune("light", "--memory", least, *options, **job))
        # Lists take the gradients twice while they are checked, which no run of a few steps shows.
        del job["body"]
        self.succeed(self.tune("light", "--memory", "1GB", *options, **job))
        used = self.report("light")["candidates"][0]["measured_peak_bytes"]
        self.falsify_profiles(too_little)
        lists = self.tune("light", "--memory", used + 1000, *options, **job)
        self.assertRegex(lists.out, r"rank 0 takes .*B \(including .*B to check operation lists\), more than --memory \d+")

    def test_a_second_search_if_all_take_more_than_predicted(self):
        self.use_one_rank("heavy.pkg")
        job = {"ranks": 1, "schedule": "1f1b", "body": "autograd"}
        self.succeed(self.tune("honest", "--no-measure", "--candidates", 99, "--memory", "1GB", **job))
        peaks = {each["microbatch"]: each["peak_bytes"][0] for each in self.report("honest")["candidates"]}
        limit = (peaks[1] + peaks[2]) / 2
        self.assertGreater(limit, 1.03 * peaks[1], "too close to tell apart")

        def change(node, _):  # microbatches of two samples seem to fit
            static = node["parameter_bytes"] + node["buffer_bytes"]
            node["kept_bytes"] *= 0.65
            node["peak_bytes"] = static + 0.65 * (node["peak_bytes"] - static)
        self.falsify_profiles(change)
        result = self.tune("heavy", "--rounds", 1, "--candidates", 1, "--memory", int(limit), **job)
        self.succeed(result)
        self.assertIn("every candidate takes more than was predicted: tune searched again, with", result.out)
        winner, *others = self.report("heavy")["candidates"]
        self.assertLessEqual(winner["measured_peak_bytes"], limit)
        self.assertTrue(all("more than --memory" in each["failure"] for each in others if "failure" in each), others)
        self.assertIn(2, [each["microbatch"] for each in others if "failure" in each])

    def test_measured_profiles_are_used_again(self):
        self.succeed(self.tune("first", "--no-measure"))
        folder = pathlib.Path(self.package) / "tuned/measured"
        measured = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        names = ("report.json", "report.html", "job.json", "conf.json")
        first = {name: self.path(f"first/{name}").read_bytes() for name in names}
        again = self.tune("first", "--no-measure", "--force")
        self.succeed(again)
        self.assertIn("from an earlier tune", again.out)
        self.assertEqual(measured, {path: path.stat().st_mtime_ns for path in folder.iterdir()})
        for name in names:
            self.assertEqual(self.path(f"first/{name}").read_bytes(), first[name], name)

    def test_budget(self):
        shutil.rmtree(pathlib.Path(self.package) / "tuned", ignore_errors=True)
        refused = self.tune("short", "--budget", "0")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("--budget ended tune before anything was measured", refused.out)
        wrong = self.tune("short", "--budget", "soon")
        self.assertEqual(wrong.code, 1, wrong.out)
        self.assertIn('--budget: "soon" is not a duration', wrong.out)
        self.succeed(self.tune("profiled", "--no-measure", "--force"))  # what was measured before needs no time
        none = self.tune("short", "--budget", "0")
        self.succeed(none)
        report = self.report("short")
        self.assertTrue(all(not c["measured"] for c in report["candidates"]))
        self.assertIn("--budget ended the measurements in round 1 of 3: "
                      f"{len(report['candidates'])} of {len(report['candidates'])} candidates were not measured",
                      report["notes"])

    def test_an_interrupt_leaves_the_best_so_far(self):
        self.succeed(self.tune("profiled", "--no-measure", "--force"))
        for of_all in (False, True):  # Ctrl-C in a terminal reaches the runs, too
            with self.subTest(of_all=of_all):
                self.interrupt(of_all)

    def interrupt(self, of_all):
        command = [str(BUILD / "pipewright"), "tune", str(self.package), str(self.write_job(self.job())), "--ranks", "2", "-o",
                   str(self.path("stopped")), "--repeat", "1", "--in-process", "--rounds", "1000", "--force"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for line in process.stderr:
            if re.match("round 2 .*: candidate [2-9]", line):
                break
        (os.killpg if of_all else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, out + err)
        report = self.report("stopped")
        self.assertFalse([row for row in report["candidates"] if "failure" in row])
        # The second round did not end, so it does not count.
        self.assertEqual({len(row["measured"]) for row in report["candidates"]} - {0}, {1})
        self.assertTrue(any(note.startswith("the interrupt ended the measurements in round ")
                            for note in report["notes"]), report["notes"])
        self.assertTrue(report["candidates"][0]["measured"])
        self.assertTrue(self.path("stopped/job.json").exists())

    def test_a_model_file_for_machines_that_are_not_here(self):
        self.path("sixty_four.json").write_text(json.dumps({
            "devices": {"fast": {"speed": 100}}, "link": {"latency": 1e-6, "bandwidth": 1e11},
            "machines": [{"device": "fast", "devices": 8, "count": 8}]}))
        path = self.write_job(self.job())
        result = pipewright("tune", self.path("gpt.pt2"), path, "--ranks", 64, "-o", self.path("far"), "--repeat", 1,
                            "--machines", self.path("sixty_four.json"))
        self.succeed(result)
        report = self.report("far")
        self.assertTrue(all(row["estimated"] and not row["measured"] for row in report["candidates"]))
        best = report["candidates"][0]
        self.assertTrue(any(row["ranks"] > 1 for row in report["candidates"]))
        conf = json.loads(self.path("far/conf.json").read_text())
        self.assertEqual(sorted({rank for ranks in conf["stage_to_rank_map"].values() for rank in ranks}),
                         list(range(best["ranks"])))
        self.succeed(pipewright("check", self.path("far/model.pkg"), self.path("far/job.json"), "--conf",
                                self.path("far/conf.json")))

    def test_other_machines(self):
        self.path("machines.json").write_text(json.dumps({
            "devices": {"fast": {"speed": 100, "memory": "1GB"}}, "link": {"latency": 1e-6, "bandwidth": 1e11},
            "machines": [{"device": "fast", "devices": 2, "count": 2}]}))
        result = self.tune("elsewhere", "--machines", self.path("machines.json"), "--exact", ranks=3)
        self.succeed(result)
        report = self.report("elsewhere")
        self.succeed(self.tune("here", "--no-measure", "--exact", ranks=1))  # with the same profile
        here = self.report("here")
        for candidate in report["candidates"]:
            self.assertTrue(candidate["estimated"])
            self.assertEqual(candidate["measured"], [])
        one = lambda r: min(c["predicted"] for c in r["candidates"])
        self.assertLess(one(report), one(here) / 10)
        self.assertTrue(any(note.startswith("every figure is an estimate for ") for note in report["notes"]))
        self.assertIn("Every figure is an estimate for", self.path("elsewhere/report.html").read_text())
        self.assertRegex(result.out, r"the fastest is [^\n]* \(estimated\)")
        page = self.path("elsewhere/report.html").read_text()
        self.assertIn("As estimated, in microseconds", page)
        self.assertNotIn("As predicted", page)
        small = lambda memory: self.path("small.json").write_text(json.dumps({
            "devices": {"small": {"speed": 1, "memory": memory}}, "link": {"latency": 1e-6, "bandwidth": 1e11},
            "machines": [{"device": "small", "count": 3}]}))
        small("1KB")
        refused = self.tune("devices", "--machines", self.path("small.json"))
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r"small.json: nothing fits: the smallest of \d+ candidates is estimated to take")
        self.assertIn("more ranks are not enough", refused.out)
        self.assertNotIn("--memory", refused.out)
        limited = self.tune("devices", "--machines", self.path("small.json"), "--memory", "1GB")
        self.assertRegex(limited.out, r"pipewright: [^ ]*small.json: nothing fits")
        self.assertNotIn("and give as much with --memory", limited.out)
        small(int(refused.out.split("describe devices with a memory of ")[1].split()[0]))
        self.succeed(self.tune("devices", "--machines", self.path("small.json")))
        many = self.tune("many", "--machines", self.path("machines.json"), ranks=5)
        self.assertEqual(many.code, 1, many.out)
        self.assertIn("machines.json: has 4 devices, fewer than --ranks 5", many.out)

    def test_devices_that_are_not_here(self):
        self.path("unlike.json").write_text(json.dumps({
            "devices": {"slow": {"speed": 1}, "fast": {"speed": 100}}, "link": {"latency": 1e-6, "bandwidth": 1e11},
            "machines": [{"device": "slow"}, {"device": "fast"}]}))
        self.succeed(self.tune("absent", "--machines", self.path("unlike.json"), "--exact", device="cuda"))
        report = self.report("absent")
        fast = min(row["predicted"] for row in report["candidates"] if row["ranks"] == 1)
        self.succeed(self.tune("present", "--no-measure", "--exact", ranks=1))
        self.assertLess(fast, min(row["predicted"] for row in self.report("present")["candidates"]) / 10)
        self.assertTrue([note for note in report["notes"] if note.endswith(
            "; ranks are on the fastest devices first, so on those of machines[1], [0]")], report["notes"])
        self.assertEqual(json.loads(self.path("absent/job.json").read_text())["device"], "cuda")
        refused = self.tune("refused", device="cuda")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("device: tune measures on CPUs, and the job runs on cuda", refused.out)

    def train(self, *options):
        return run_ranks(2, "train", self.package, self.path("job.json"), "--tune", "--tuned", self.path("results"),
                         "--tune-budget", "60s", *options, mpi=False)

    def test_train_tunes_at_its_first_start(self):
        checkpoint = {"checkpoint": {"to": "kept", "every": 2}}
        self.write_job(self.job(**checkpoint))
        first = self.train()
        self.succeed(first)
        self.assertIn("profile 1 of", first.out)
        self.assertRegex(first.out, r"note: runs as in \S+/results/\w+, on [12] rank")
        given = load_file(self.path("trained.safetensors"))
        self.write_job(self.job(**checkpoint, steps=6))
        again = self.train("--resume")
        self.succeed(again)
        self.assertNotIn("profile 1 of", again.out)
        self.assertRegex(again.out, r"runs as in \S+/results/\w+, on [12] rank")
        self.assertNotIn("that is for", again.out)
        faster = {"optimizer": {"type": "sgd", "lr": 0.02}}  # of the same type
        self.write_job(self.job(**{**checkpoint, **faster}, steps=8))
        again = self.train("--resume", "--tune-memory", "1GB", "--verbose")
        self.succeed(again)
        self.assertRegex(again.out, r'the checkpoints were made with a result of tune that is for another job, and for '
                                    r'memory "", not "1GB"; the run goes on with it')
        self.assertNotIn("profile 1 of", again.out)
        self.assertRegex(again.out, r"step +8/8 ")
        self.write_job(self.job(**checkpoint, steps=8, microbatch_size=4))
        refused = self.train("--resume")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r"a step has \d+ samples, and had \d+ when --tune chose how to run it")
        self.write_job(self.job(**checkpoint, steps=6))
        refused = self.train()
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("holds checkpoints of an earlier run", refused.out)
        longer = load_file(self.path("trained.safetensors"))
        self.assertTrue(any(not torch.equal(longer[name], given[name]) for name in given))
        self.assertTrue(self.path("kept").exists())
        self.write_job(self.job(optimizer={"type": "adam", "lr": 0.01}))
        shutil.copytree(self.path("kept"), self.path("died"), ignore=shutil.ignore_patterns("step-*", "latest"))
        self.write_job(self.job(optimizer={"type": "adam", "lr": 0.01}, checkpoint={"to": "died", "every": 2}))
        other = self.train("--steps", "1", "--resume", "--quiet")  # the run died before its first checkpoint
        self.succeed(other)
        self.assertRegex(other.out, r"a result of tune is not used: \S+/results/\w+ is for another job")
        self.assertNotIn("profile 1 of", other.out)
        for options, said in ((["--schedule", "gpipe"], "--tune: chooses conf and schedule"),
                              (["--set", "threads=2"], "--set threads=2: --tune depends on the whole job"),
                              (["--restarts", "1"], "--restarts: --tune resumes from the job's own checkpoints only")):
            refused = self.train(*options)
            self.assertEqual(refused.code, 2, refused.out)
            self.assertIn(said, refused.out)

    def test_train_with_a_package_that_cannot_be_written(self):
        """A mount that is read-only is so for root, too."""
        mount = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"']
        if call([*mount, self.package, "true"]).code:
            self.skipTest("mounts are not permitted")
        package = self.path("fixed.pkg")
        shutil.copytree(self.package, package, ignore=shutil.ignore_patterns("tuned"))
        train = [*mount, package, RUN, "--in-process", 1, "train", package, self.write_job(self.job()), "--tune",
                 "--tune-budget", "20s", "--tune-memory", "1GB"]
        refused = call(train)
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r"fixed.pkg: cannot be written, and --tune keeps its result there\n  name another folder: "
                                      r"--tuned FOLDER")
        elsewhere = call([*train, "--tuned", self.path("elsewhere")])
        self.succeed(elsewhere)
        self.assertRegex(elsewhere.out, r"runs as in \S+/elsewhere/\w+, on 1 rank")
        self.assertFalse((package / "tuned").exists())
        again = call([*train, "--tuned", self.path("elsewhere")])
        self.succeed(again)
        self.assertNotIn("profile 1 of", again.out)
        more = call([*train[:-4], "--tune-budget", "1s", "--tune-memory", "2GB", "--tuned", self.path("elsewhere")])
        self.assertRegex(more.out, r'a result of tune is not used: \S+ is for memory "1GB", not "2GB"')

    def test_train_tunes_however_it_is_started(self):
        """Without -n, it starts as many ranks as the package is for, or as mpirun would."""
        package = self.compile("gpt.pt2", "started.pkg", "--ranks", "2")
        train = ["train", package, self.write_job(self.job()), "--tune", "--tune-budget", "60s"]
        kept = []
        for start in ([], ["mpirun", "-n", 2], ["mpirun", "-n", 1]):
            with self.subTest(start):
                result = call([*start, RUN, *train], environment={"OMPI_MCA_hwloc_base_binding_policy": "core"})
                self.succeed(result)
                self.assertEqual(result.out.count("runs as in "), 1, result.out)
                kept.append(result.out.split("runs as in ")[1].split(",")[0])
                self.assertEqual(result.out.count("weights saved in"), 1, result.out)
        self.assertEqual(kept[0], kept[1], "the same package, job, ranks and machine")
        self.assertNotEqual(kept[0], kept[2])
        twice = call(["mpirun", "-n", 2, RUN, "-n", 2, *train])
        self.assertEqual(twice.code, 2, twice.out)
        self.assertIn("--tune: mpirun starts ranks, and so does this program", twice.out)
        for task in range(2):  # as `srun --mpi=none -n 2` starts them
            other = call([RUN, *train], environment={"SLURM_PROCID": str(task), "SLURM_STEP_NUM_TASKS": "2"})
            self.assertEqual(other.code, 2, other.out)
            self.assertEqual("--tune: needs to start the ranks itself" in other.out, task == 0, other.out)

    def test_under_mpirun(self):
        """The first process tunes, and starts the ranks of its runs itself."""
        job = self.write_job(self.job(threads=None))
        shutil.copytree(self.package, self.path("own.pkg"), ignore=shutil.ignore_patterns("tuned"))
        tune = ["tune", self.path("own.pkg"), job, "--ranks", 2, "--repeat", 1]
        many = call(["mpirun", "-n", 2, BUILD / "pipewright", *tune, "-o", self.path("many"), "--candidates", 2,
                     "--rounds", 1], environment={"OMPI_MCA_hwloc_base_binding_policy": "core"})
        self.succeed(many)
        self.assertEqual(many.out.count("to start it:"), 1, many.out)
        report = self.report("many")
        rows = [row for row in report["candidates"] if row["ranks"] == 2 and not row["in_process"]]
        self.assertTrue(any(row["measured"] for row in rows), report)
        self.assertFalse([row for row in report["candidates"] if "failure" in row], report)
        cores = len(os.sched_getaffinity(0))
        self.assertTrue(list(self.path("own.pkg/tuned/measured").glob(f"*profile-1-ranks-{cores}-threads-*")),
                        "mpirun's binding to a core does not count")
        self.succeed(call(["mpirun", "-n", 1, BUILD / "pipewright", *tune, "-o", self.path("one"), "--no-measure"]))

    def test_a_body_in_the_environment(self):
        refused = call([BUILD / "pipewright", "tune", self.package, self.write_job(self.job()), "--ranks", 2, "-o",
                        self.path("body")], environment={"PIPEWRIGHT_BODY": "autograd"})
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("PIPEWRIGHT_BODY=autograd: overrides how modules compute", refused.out)

    def test_a_job_of_inference(self):
        refused = self.tune("inference", loss=None, optimizer=None)
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn('has neither "loss" nor "optimizer", and a job is for training', refused.out)
        self.assertIn("pipewright tune PACKAGE --input FILE --ranks N -o FOLDER", refused.out)
        self.assertFalse(self.path("inference").exists())
        half = self.tune("inference", loss=None)
        self.assertEqual(half.code, 1, half.out)
        self.assertNotIn("--input", half.out)

    def test_two_at_once(self):
        folder = self.path("busy")
        folder.mkdir()
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refused = self.tune("busy", "--no-measure")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("busy: another process tunes there: ", refused.out)
        self.succeed(self.tune("busy", "--no-measure"))

    def test_a_model_file_is_cut_anew(self):
        path = self.write_job(self.job())
        result = pipewright("tune", self.path("gpt.pt2"), path, "--ranks", 2, "-o", self.path("cut"), "--repeat", 1,
                            "--rounds", 1, "--candidates", 1, "--in-process")
        self.succeed(result)
        self.assertRegex(result.out, r"cut/model.pkg takes [\d.]+ ms a step of one minibatch in `bench`")
        self.assertIn("a step of one minibatch in `bench`", self.path("cut/report.html").read_text())
        conf = json.loads(self.path("cut/conf.json").read_text())
        manifest = json.loads(self.path("cut/model.pkg/manifest.json").read_text())
        self.assertEqual(len(manifest["modules"]), len(conf["module_to_stage_map"]))
        pieces = self.report("cut")["candidates"][0]["module_to_stage"]
        self.assertGreater(len(pieces), len(manifest["modules"]))
        self.assertFalse(self.path("cut/pieces.pkg").exists())
        self.succeed(run_ranks(2 if len(conf["stage_to_rank_map"]) > 1 or len(conf["stage_to_rank_map"]["0"]) > 1 else 1,
                               "train", self.path("cut/model.pkg"), self.path("cut/job.json"), "--conf",
                               self.path("cut/conf.json"), mpi=False))
        tuned = load_file(self.path("trained.safetensors"))
        self.path("one.json").write_text('{"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0]}}')
        self.succeed(run_ranks(1, "train", self.package, path, "--conf", self.path("one.json"), mpi=False))
        given = load_file(self.path("trained.safetensors"))
        self.assertEqual(set(tuned), set(given))
        for name, weight in given.items():
            torch.testing.assert_close(tuned[name], weight, rtol=1e-3, atol=1e-5, msg=name)

    def test_a_cut_that_takes_more_than_its_pieces(self):
        program = self.with_runner("""
            if "bench" in words and any(word.endswith("model.pkg") for word in words):
                done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
                figures = json.loads(done.stdout)
                for rank in figures["ranks"]:
                    rank["peak_bytes"] += 10 ** 9
                print(json.dumps(figures))
                sys.exit()
        """)
        tune = [program, "tune", self.path("gpt.pt2"), self.write_job(self.job()), "--ranks", 1, "-o",
                self.path("heavy_cut"), "--repeat", 1, "--rounds", 1, "--candidates", 1, "--memory"]
        refused = call([*tune, 9 * 10 ** 8])
        self.assertEqual(refused.code, 1, refused.out)
        excess = (r"heavy_cut/model.pkg: rank 0 takes \S+ [MG]iB, more than its limit of \S+ MiB, which its pieces did not "
                  r"exceed\n  give --memory (\d+) or more, and --force")
        self.assertRegex(refused.out, excess)
        self.assertTrue(any(re.search(excess, note) for note in self.report("heavy_cut")["notes"]))
        self.assertRegex(self.path("heavy_cut/report.html").read_text(), "more than its limit of")
        enough = int(re.search(excess, refused.out)[1])
        self.assertGreater(enough, 10 ** 9)
        self.succeed(call([*tune, enough + 10 ** 6, "--force"]))  # other messages may be open at its peak

    def test_exact_keeps_the_bits_of_tied_weights(self):
        """However many modules the cut merges."""
        path = self.write_job(self.job())
        self.succeed(pipewright("tune", self.path("gpt.pt2"), path, "--ranks", 2, "-o", self.path("tied"), "--repeat", 1,
                                "--exact", "--no-measure"))
        ranks = self.report("tied")["candidates"][0]["ranks"]
        self.succeed(run_ranks(ranks, "train", self.path("tied/model.pkg"), self.path("tied/job.json"), "--conf",
                               self.path("tied/conf.json"), mpi=False))
        tuned = load_file(self.path("trained.safetensors"))
        package = self.compile("gpt.pt2", "transmitted.pkg", "--ranks", "3", "--shared", "transmit")
        self.succeed(run_ranks(3, "train", package, path, mpi=False))
        self.assert_same_tensors(tuned, load_file(self.path("trained.safetensors")))

    def test_a_model_file_gives_the_same_bytes(self):
        tune = lambda: pipewright("tune", self.path("gpt.pt2"), self.write_job(self.job()), "--ranks", 2, "-o",
                                  self.path("bytes"), "--repeat", 1, "--no-measure", "--force")
        names = ("report.json", "report.html", "job.json", "conf.json")
        self.succeed(tune())
        first = {name: self.path(f"bytes/{name}").read_bytes() for name in names}
        self.assertIn(b"Tuning of " + str(self.path("gpt.pt2")).encode(), first["report.html"])
        self.succeed(tune())
        for name in names:
            self.assertEqual(self.path(f"bytes/{name}").read_bytes(), first[name], name)

    def test_an_interrupt_while_a_model_file_is_cut(self):
        command = [str(BUILD / "pipewright"), "tune", str(self.path("gpt.pt2")), str(self.write_job(self.job())), "--ranks",
                   "2", "-o", str(self.path("uncut")), "--in-process"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(process.stderr.readline().startswith("cutting "))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 1, out + err)
        self.assertIn("the interrupt ended tune before anything was measured", err)
        self.assertFalse(self.path("uncut").exists())

    def test_a_result_stays_without_force(self):
        self.succeed(self.tune("again", "--no-measure", "--exact"))
        files = {path.name: path.read_bytes() for path in self.path("again").glob("*.*")}
        refused = self.tune("again", "--no-measure", "--memory", "1GB")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("again/report.json: already exists\n  name another folder, or replace it with --force", refused.out)
        self.assertEqual({path.name: path.read_bytes() for path in self.path("again").glob("*.*")}, files)
        self.succeed(self.tune("again", "--no-measure", "--memory", "1GB", "--force"))
        self.assertNotEqual(self.path("again/report.json").read_bytes(), files["report.json"])

    def test_a_file_as_output_stays(self):
        file = self.path("notes.txt")
        file.write_text("mine")
        for package in (self.package, self.path("gpt.pt2")):
            refused = pipewright("tune", package, self.write_job(self.job()), "--ranks", 2, "-o", file, "--no-measure")
            self.assertEqual(refused.code, 1, refused.out)
            self.assertIn("notes.txt: is a file, but the output is a folder", refused.out)
            self.assertEqual(file.read_text(), "mine")

    def test_a_job_for_another_package(self):
        save_file({"image": torch.rand(16, 4), "label": torch.rand(16, 4)}, self.path("images.safetensors"))
        path = self.write_job(self.job(data={"tensors": "images.safetensors", "inputs": {"image": "image"},
                                             "target": "label"}, loss="mse"))
        for package in (self.package, self.path("gpt.pt2")):
            refused = pipewright("tune", package, path, "--ranks", 2, "-o", self.path("other"))
            self.assertEqual(refused.code, 1, refused.out)
            self.assertIn('data.inputs: the model has no input "image"', refused.out)
            self.assertNotIn("profile 1", refused.out)  # before anything is measured
            self.assertFalse(self.path("other").exists())

    def test_a_limit_where_not_every_size_was_measured(self):
        self.succeed(self.tune("sizes", "--no-measure", "--force"))
        kept = pathlib.Path(self.package) / "tuned/measured"

        def refused_with(*sizes):
            for file in kept.iterdir():
                if "profile" in file.name and not any(f"-{size}-samples" in file.name for size in sizes):
                    file.unlink()
            refused = self.tune("sizes", "--budget", "0", "--memory", "1KB", "--force")
            self.assertEqual(refused.code, 1, refused.out)
            return refused

        # Larger microbatches take more memory.
        self.assertRegex(refused_with(1, 2).out, r"1KB: nothing fits: .*\n  give --memory \d+ .*the search finds a way")
        refused = refused_with(2)
        self.assertRegex(refused.out, r"nothing that was measured before the time was over fits: .* \(4 microbatches of "
                                      r"2 samples\)\n  give it more time")
        self.assertRegex(refused.out, r"note: --budget ended the profiles: \d+ of \d+ were not measured")

    def test_small_microbatches_are_measured_early_under_a_limit(self):
        for options, second in (([], "8"), (["--memory", "1GB"], "1")):
            result = self.tune("order", "--no-measure", "--force", *options)
            self.succeed(result)
            points = re.findall(r"^profile \d+ of \d+: (\d+) ranks?.* (\d+) samples?", result.out, re.MULTILINE)
            self.assertEqual(list(dict.fromkeys(size for _, size in points))[:2], ["2", second], result.out)
            self.assertEqual([ranks for ranks, size in points if size == second], ["2", "1"], result.out)

    def test_the_result_is_said(self):
        result = self.tune("said", "--no-measure", "--force")
        self.succeed(result)
        rows = self.report("said")["candidates"]
        given = next(row for row in rows if row["as_given"])
        best = rows[0]
        if best is given:
            said = "the fastest is the run as given: "
        else:
            said = f"{round(100 * (1 - best['predicted'] / given['predicted']))} % less than the run as given"
        self.assertIn(said, result.out)
        self.assertIn(said, self.path("said/report.html").read_text())

    def test_other_files_stay(self):
        self.path("kept").mkdir()
        self.path("kept/conf.json").write_text("mine")
        refused = self.tune("kept", "--no-measure", "--exact")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("kept/conf.json: already exists\n  name another folder", refused.out)
        self.assertEqual(self.path("kept/conf.json").read_text(), "mine")
        self.succeed(self.tune("kept", "--no-measure", "--exact", "--force"))

    def test_files_with_the_names_of_temporary_ones_stay(self):
        """tune writes jobs and confs of its own runs, and none of them over files in the output folder."""
        folder = self.path("mine")
        folder.mkdir()
        names = ["own_job.json", "own_conf.json", "profile_conf.json", "candidate_job.json", "candidate_conf.json"]
        for name in names:
            (folder / name).write_text("mine")
        (folder / names[0]).write_text(json.dumps(self.job()))
        given = (folder / names[0]).read_text()
        self.succeed(pipewright("tune", self.package, folder / names[0], "--ranks", 1, "-o", folder, "--repeat", 1,
                                "--rounds", 1, "--candidates", 1))
        self.assertEqual((folder / names[0]).read_text(), given)
        for name in names[1:]:
            self.assertEqual((folder / name).read_text(), "mine", name)
        self.assertEqual([path for path in folder.iterdir() if path.is_dir() and path.name != "measured"], [])

    def test_a_package_that_tune_did_not_write_stays(self):
        path = self.write_job(self.job())
        self.compile("gpt.pt2", "beside/model.pkg", "--ranks", "3")
        before = self.path("beside/model.pkg/manifest.json").read_bytes()
        refused = pipewright("tune", self.path("gpt.pt2"), path, "--ranks", 2, "-o", self.path("beside"), "--no-measure")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("beside/model.pkg: already exists", refused.out)
        self.assertEqual(self.path("beside/model.pkg/manifest.json").read_bytes(), before)

    def test_a_package_is_compiled_again_after_tune(self):
        package, self.package = self.package, self.compile("gpt.pt2", "anew.pkg", "--ranks", "3")
        self.addCleanup(setattr, self, "package", package)
        self.succeed(self.tune("anew", "--no-measure", "--exact"))
        measured = sorted(path.name for path in self.path("anew.pkg/tuned/measured").iterdir())
        self.compile("gpt.pt2", "anew.pkg", "--ranks", "3")
        self.assertEqual(sorted(path.name for path in self.path("anew.pkg/tuned/measured").iterdir()), measured)
        again = self.tune("anew", "--no-measure", "--exact", "--force")
        self.succeed(again)
        self.assertIn("from an earlier tune", again.out)

    def test_a_model_that_mixes_rows_keeps_its_microbatch(self):
        """Its code shows nothing: the losses of two steps do."""
        torch.manual_seed(0)
        export(Mixed(), torch.rand(4, 6), self.path("rows.pt2"))
        package = self.compile("rows.pt2", "rows.pkg", "--ranks", "2")
        save_file({"x": torch.rand(64, 6), "y": torch.rand(64, 3)}, self.path("rows.safetensors"))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"}, "loss": "mse",
               "optimizer": SGD, "microbatches": 2, "microbatch_size": 8, "schedule": "gpipe"}
        notes, _ = self.notes("rows", package, job)
        [stays] = [note for note in notes if note.startswith("the microbatch stays at 8 samples: ")]
        self.assertRegex(stays, r"the loss of the second step is [\d.]+ with it, and [\d.]+ with 4 \(`pipewright tune "
                                r"--change-microbatch` changes")
        tuned = json.loads(self.path("rows/job.json").read_text())
        self.assertEqual((tuned["microbatches"], tuned["minibatch_size"]), (2, 16))
        notes, _ = self.notes("rows", package, job, "--change-microbatch", "--force")
        self.assertFalse([note for note in notes if "stays" in note], notes)
        os.rename(self.path("rows.safetensors"), self.path("moved.safetensors"))
        shutil.rmtree(pathlib.Path(package) / "tuned")
        notes, _ = self.notes("rows", package, job, "--force")
        self.assertTrue([note for note in notes if note.startswith(
            "the microbatch stays at 8 samples: it is not known whether results depend on it: ")], notes)

    def test_dropout_does_not_hide_mixed_rows(self):
        """Training draws other numbers with another size, so losses in evaluation count."""
        torch.manual_seed(0)
        save_file({"x": torch.rand(64, 6), "y": torch.rand(64, 3)}, self.path("rows.safetensors"))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"input": "x"}, "target": "y"}, "loss": "mse",
               "optimizer": SGD, "microbatches": 2, "microbatch_size": 8, "schedule": "gpipe"}
        zero_head = Mixed()
        torch.nn.init.zeros_(zero_head.last.weight)
        for name, last in (("mixes", Mixed()), ("zero_head", zero_head), ("drops", torch.nn.Linear(6, 3))):
            export(torch.nn.Sequential(torch.nn.Dropout(0.5), last), torch.rand(4, 6), self.path(f"{name}.pt2"))
            split = ["--split", "children"] if name == "drops" else []
            package = self.compile(f"{name}.pt2", f"{name}.pkg", "--ranks", "2", *split)
            job["optimizer"] = {**SGD, "lr_schedule": {"type": "constant", "warmup": 10 ** 6}}
            notes, _ = self.notes(name, package, job)
            stays = [note for note in notes if re.match(
                r"the microbatch stays at 8 samples: the loss after a step is [\d.]+ with it, and [\d.]+ with 4", note)]
            self.assertEqual(len(stays), int(name != "drops"), notes)
            sizes = {row["microbatch"] for row in self.report(name)["candidates"]}
            self.assertEqual(len(sizes) > 1, name == "drops", sizes)

    def test_16_bits_do_not_hide_mixed_rows(self):
        """The loss is about the logarithm of the number of classes with any size: the gradients differ."""
        torch.manual_seed(0)
        save_file({"x": 4 * torch.rand(64, 6).bfloat16(), "y": torch.randint(50, (64,))}, self.path("rows.safetensors"))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"}, "loss": "cross_entropy",
               "optimizer": SGD, "microbatches": 2, "microbatch_size": 8, "schedule": "gpipe"}
        for mixes in (True, False):
            name = f"narrow_{mixes}"
            model = Mixed(50, mixes).bfloat16()
            torch.nn.init.normal_(model.last.weight, std=0.02)
            export(model, torch.rand(4, 6).bfloat16(), self.path(f"{name}.pt2"))
            notes, _ = self.notes(name, self.compile(f"{name}.pt2", f"{name}.pkg", "--ranks", "2"), job)
            stays = [note for note in notes if re.match(
                r"the microbatch stays at 8 samples: the gradients of the second step differ by [\d.]+ % between it and 4",
                note)]
            self.assertEqual(len(stays), int(mixes), notes)

    def test_rows_are_compared_again_with_other_data(self):
        """If all rows are equal, their mean says nothing."""
        torch.manual_seed(0)
        export(Mixed(), torch.rand(4, 6), self.path("equal.pt2"))
        package = self.compile("equal.pt2", "equal.pkg", "--ranks", "2")
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"}, "loss": "mse",
               "optimizer": SGD, "microbatches": 2, "microbatch_size": 8, "schedule": "gpipe"}
        for rows in (torch.ones(64, 6), torch.rand(64, 6)):
            save_file({"x": rows, "y": rows[:, :3].contiguous()}, self.path("rows.safetensors"))
            notes, _ = self.notes("equal", package, job, "--force")
        self.assertTrue([note for note in notes if note.startswith("the microbatch stays at 8 samples")], notes)

    def test_a_conf_with_devices(self):
        package = pathlib.Path(self.compile("gpt.pt2", "devices.pkg", "--ranks", "2"))
        path = package / "conf/mp_conf.json"
        conf = json.loads(path.read_text())
        conf["rank_to_device_map"] = {"0": "cpu", "1": "cuda:0"}
        path.write_text(json.dumps(conf))
        tune = lambda *options: pipewright("tune", package, self.write_job(self.job()), "--ranks", 2, "--no-measure",
                                           "--repeat", 1, "-o", self.path("on_devices"), *options)
        refused = tune()
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("mp_conf.json: rank_to_device_map: tune measures on CPUs, and a rank is on cuda:0", refused.out)
        self.path("two.json").write_text(json.dumps({
            "devices": {"d": {"speed": 9}}, "link": {"bandwidth": 1e11}, "machines": [{"device": "d", "count": 2}]}))
        self.succeed(tune("--machines", self.path("two.json")))
        self.assertTrue([note for note in self.report("on_devices")["notes"] if "has no rank_to_device_map" in note])
        self.assertNotIn("rank_to_device_map", json.loads(self.path("on_devices/conf.json").read_text()))

    def test_the_jobs_own_sizes_and_parameters_count(self):
        """Modules are measured with sequences of the job's length, and frozen parameters have no gradients."""
        def largest(**changes):
            self.succeed(self.tune("sizes", "--no-measure", "--exact", "--force", **changes))
            report = self.report("sizes")
            return max(report["candidates"][0]["peak_bytes"])
        adam = {"optimizer": {"type": "adam", "lr": 0.01}}
        plain = largest(**adam)
        frozen = largest(**adam, freeze=["embedding.*", "position.*", "blocks.*"])
        self.assertLess(frozen, 0.8 * plain)
        self.assertEqual(largest(**adam), plain, "kept measurements of a job are its own")

    def test_a_step_that_accumulates_minibatches(self):
        self.succeed(self.tune("accumulates", "--rounds", 1, "--candidates", 1, "--in-process", accumulate=4))
        report = self.report("accumulates")
        self.assertIn("the 4 minibatches of 8 samples in a step are merged into one of 32, except in the run as given",
                      report["notes"])
        rows = {each["as_given"]: each for each in report["candidates"]}
        self.assertEqual([rows[True]["minibatches"], rows[True]["microbatches"]], [4, 4])
        self.assertNotIn("minibatches", rows[False])
        self.assertTrue(all(each["measured"] for each in rows.values()), rows)
        self.succeed(self.tune("exactly", "--exact", "--rounds", 1, "--candidates", 1, "--in-process", accumulate=3))
        notes = self.report("exactly")["notes"]
        self.assertIn("times are per minibatch, and the 3 that a step accumulates are not merged: --exact keeps them", notes)
        job = json.loads(self.path("exactly/job.json").read_text())
        self.assertEqual((job["accumulate"], job["minibatch_size"]), (3, 8))

    def test_merged_minibatches_train_the_same(self):
        torch.manual_seed(0)
        batch = {0: torch.export.Dim("batch", min=1, max=4096)}
        torch.export.save(torch.export.export(Loss(), (torch.rand(2, 6), torch.rand(2, 3)), strict=False,
                                              dynamic_shapes=(batch, batch)), self.path("sums.pt2"))
        package = self.compile("sums.pt2", "sums.pkg", "--ranks", "2")
        job = {"data": {"tensors": "sums.safetensors", "inputs": {"x": "x", "y": "y"}}, "loss": {"output": 0},
               "optimizer": SGD, "microbatches": 2, "microbatch_size": 2, "accumulate": 3, "steps": 5,
               "save": "sums_trained.safetensors"}

        def train(ranks, path, *options):
            self.succeed(run_ranks(ranks, "train", package, path, *options, mpi=False))
            return load_file(self.path("sums_trained.safetensors"))
        save_file({"x": torch.rand(24, 6), "y": torch.rand(24, 3)}, self.path("sums.safetensors"))
        notes, _ = self.notes("sums", package, job, "--in-process")
        self.assertIn("the 3 minibatches of 4 samples in a step are merged into one of 12, except in the run as given", notes)
        report = self.report("sums")
        # The model computes its loss, so microbatches have 2 samples as before.
        self.assertEqual({(each.get("minibatches", 1), each["microbatches"]) for each in report["candidates"]},
                         {(3, 2), (1, 6)})
        self.assertFalse(report["candidates"][0]["as_given"], "the pipeline fills and drains three times")
        tuned = json.loads(self.path("sums/job.json").read_text())
        self.assertEqual((tuned["minibatch_size"], tuned["microbatches"]), (12, 6))
        self.assertNotIn("accumulate", tuned)
        wanted = train(2, self.path("job.json"))
        self.path("sums_trained.safetensors").unlink()
        found = train(report["candidates"][0]["ranks"], self.path("sums/job.json"), "--conf", self.path("sums/conf.json"))
        for name, weight in found.items():
            torch.testing.assert_close(weight, wanted[name], rtol=1e-5, atol=1e-7, msg=name)
        save_file({"x": torch.rand(28, 6), "y": torch.rand(28, 3)}, self.path("sums.safetensors"))
        self.assert_not_merged(package, job, 'an epoch of "data" has 7 minibatches, and should have 3 or a multiple of 3')

    def assert_not_merged(self, package, job, why):
        self.succeed(pipewright("tune", package, self.write_job(job), "--ranks", 3, "-o", self.path("separate"),
                                "--no-measure", "--in-process", "--force"))
        self.assertIn(f"times are per minibatch, and the {job['accumulate']} that a step accumulates are not merged: {why}",
                      self.report("separate")["notes"])
        self.assertEqual(json.loads(self.path("separate/job.json").read_text())["accumulate"], job["accumulate"])

    def layers(self, name, **changes):
        """Makes a package and a job of 4 minibatches in a step."""
        torch.manual_seed(0)
        batch = {0: torch.export.Dim("batch", min=1, max=4096)}
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
        torch.export.save(torch.export.export(model, (torch.rand(2, 6),), strict=False, dynamic_shapes=(batch,)),
                          self.path(f"{name}.pt2"))
        package = self.compile(f"{name}.pt2", f"{name}.pkg", "--split", "equal:2", "--ranks", "2")
        save_file({"x": torch.rand(64, 6), "y": torch.rand(64, 3)}, self.path(f"{name}.safetensors"))
        return package, {"data": {"tensors": f"{name}.safetensors", "inputs": {"input": "x"}, "target": "y"}, "loss": "mse",
                         "optimizer": SGD, "microbatches": 2, "microbatch_size": 4, "accumulate": 4, "steps": 4, **changes}

    def test_train_resumes_with_merged_minibatches(self):
        # 16 times, a pipeline fills and drains for two microbatches of one sample: that is slow.
        package, job = self.layers("resumed", save="resumed_trained.safetensors", microbatch_size=1, accumulate=16)

        def train(*options, **changes):
            self.write_job({**job, **changes})
            return run_ranks(2, "train", package, self.path("job.json"), *options, mpi=False)

        def weights(ran):
            self.succeed(ran)
            return load_file(self.path("resumed_trained.safetensors"))
        wanted = weights(train())
        tune = ["--tune", "--tuned", self.path("resumed_results"), "--tune-budget", "60s"]
        checkpoint = {"to": "resumed_kept", "every": 1}
        first = train(*tune, steps=2, checkpoint=checkpoint)
        self.succeed(first)
        self.assertIn("the 16 minibatches of 2 samples in a step are merged into one of 32", first.out)
        [tuned] = self.path("resumed_results").glob("*/job.json")
        self.assertNotIn("accumulate", json.loads(tuned.read_text()))
        validation = {"every": 1, "steps": 2, "data": job["data"]}
        refused = train(*tune, "--resume", checkpoint=checkpoint, validation=validation)
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn('a minibatch has 2 samples, and had 32 when --tune chose how to run it; they cannot be merged: "steps" of '
                      "the validation are minibatches", refused.out)
        found = weights(train(*tune, "--resume", checkpoint=checkpoint))
        for name, weight in found.items():
            torch.testing.assert_close(weight, wanted[name], rtol=1e-5, atol=1e-7, msg=name)
        separate = {"accumulate": 3}  # an epoch has 32 minibatches
        wanted = weights(train(**separate))
        ran = train(*tune, **separate)
        found = weights(ran)
        self.assertIn("times are per minibatch, and the 3 that a step accumulates are not merged", ran.out)
        for name, weight in found.items():
            torch.testing.assert_close(weight, wanted[name], rtol=1e-5, atol=1e-7, msg=name)

    def test_merged_minibatches_are_measured(self):
        """With microbatches of all sizes up to a minibatch."""
        package, job = self.layers("layers")
        path = self.write_job(job)
        self.succeed(pipewright("tune", package, path, "--ranks", 2, "-o", self.path("layers"),
                                "--repeat", 1, "--rounds", 1, "--in-process"))
        candidates = self.report("layers")["candidates"]
        self.assertTrue(all(each["measured"] for each in candidates), candidates)
        self.assertEqual([(each["minibatches"], each["microbatches"]) for each in candidates if each["as_given"]], [(4, 2)])
        self.assertTrue({each["microbatches"] for each in candidates if not each["as_given"]} <= {4, 8, 16, 32}, candidates)

    def test_merged_minibatches_of_replicas_that_write_buffers(self):
        torch.manual_seed(0)
        export(Statistics(), torch.rand(2, 6), self.path("norms.pt2"))
        package = self.compile("norms.pt2", "norms.pkg", "--ranks", "2")
        save_file({"x": torch.rand(36, 6), "y": torch.rand(36, 3)}, self.path("rows.safetensors"))
        self.path("norms.pkg/conf/mp_conf.json").write_text(json.dumps(
            {**json.loads(self.path("norms.pkg/conf/mp_conf.json").read_text()), "stage_to_rank_map": {"0": [0, 1], "1": [1]}}))
        job = {"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"}, "loss": "mse", "optimizer": SGD,
               "microbatches": 3, "microbatch_size": 2, "accumulate": 2, "steps": 9}
        for changes in ({}, {"buffers": "merge"}):
            notes, _ = self.notes("norms", package, {**job, **changes}, "--in-process", "--force", "--candidates", 99)
            self.assertIn("the 2 minibatches of 6 samples in a step are merged into one of 12, except in the run as given", notes)
            rows = self.report("norms")["candidates"]
            replicas = {max(map(len, each["stage_to_ranks"])) > 1 for each in rows if not each["as_given"]}
            self.assertEqual(replicas, {False, True} if changes else {False})


class Mixed(torch.nn.Module):
    """Computes the mean of all rows, which the number of microbatches changes."""

    def __init__(self, outputs=3, mixes=True):
        super().__init__()
        self.first, self.last, self.mixes = torch.nn.Linear(6, 6), torch.nn.Linear(6, outputs), mixes

    def forward(self, x):
        x = self.first(x)
        pipe_split()
        return self.last(x - x.mean(0, keepdim=True) if self.mixes else x)


class TuneInference(Reports):
    """Tunes inference of a chain of layers, each of SIZE bytes of weights."""
    LAYERS, WIDTH, ROWS = 8, 1536, 12
    SIZE = 4 * WIDTH * (WIDTH + 1)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(cls.WIDTH, cls.WIDTH), torch.nn.Tanh()) for _ in range(cls.LAYERS)]
        batch = torch.export.Dim("batch", min=1, max=4096)
        torch.export.save(torch.export.export(torch.nn.Sequential(*layers), (torch.rand(2, cls.WIDTH),), strict=False,
                                              dynamic_shapes=({0: batch},)), cls.folder / "chain.pt2")
        cls.package = cls.compile("chain.pt2", "chain.pkg", "--split", "children", "--ranks", "2")
        cls.input = cls.folder / "in.safetensors"
        save_file({"input": torch.rand(cls.ROWS, cls.WIDTH)}, cls.input)
        plain = run_ranks(1, "infer", cls.package, "--conf", cls.one(), "--input", cls.input, "-o",
                          cls.folder / "plain.safetensors", mpi=False)
        assert plain.code == 0, plain.out
        cls.plain = load_file(cls.folder / "plain.safetensors")

    @classmethod
    def one(cls):
        path = cls.folder / "one.json"
        path.write_text(json.dumps({"module_to_stage_map": [0] * cls.LAYERS, "stage_to_rank_map": {"0": [0]}}))
        return path

    def tune(self, folder, *options, ranks=2):
        return pipewright("tune", self.package, "--input", self.input, "--ranks", ranks, "-o", self.path(folder),
                          "--repeat", 1, *options)

    def run_tuned(self, folder):
        """Runs the printed line, and returns the outputs."""
        words = shlex.split(self.report(folder)["start"])
        self.assertEqual((words[0], words[-1]), ("pipewright-run", "out.safetensors"))
        output = self.path(f"{folder}.safetensors")
        self.succeed(call([RUN, *words[1:-1], output]))
        return load_file(output)

    def assert_close(self, outputs):
        self.assertEqual(set(outputs), set(self.plain))
        for name, value in self.plain.items():  # another size of microbatches rounds differently
            torch.testing.assert_close(outputs[name], value, rtol=1e-4, atol=1e-5, msg=name)

    def test_the_best_candidate_runs_as_printed(self):
        result = self.tune("tuned", "--rounds", 1, "--candidates", 3, "--in-process")
        self.succeed(result)
        found = self.report("tuned")["candidates"]
        self.assertEqual({c["schedule"] for c in found}, {"forward"})
        self.assertEqual(sum(c["as_given"] for c in found), 1)
        self.assertEqual([(c["ranks"], c["microbatches"]) for c in found if c["as_given"]], [(2, 1)])
        medians = [statistics.median(c["measured"]) for c in found]
        self.assertEqual(medians[0], min(medians))
        self.assertGreater(medians[0], 0)
        self.assertFalse(self.path("tuned/job.json").exists())
        self.assertIn(f"to start it:\n    {self.report('tuned')['start']}", result.out)
        self.assert_close(self.run_tuned("tuned"))

    @staticmethod
    def peak(*command):
        """Returns the memory of a process at its peak, in bytes. This process is larger, and a child begins as a copy."""
        small = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", small, *map(str, command)], stdout=subprocess.PIPE, check=True,
                              env={**os.environ, **ENVIRONMENT})
        return 1024 * int(done.stdout)

    def test_weights_are_on_disk_where_they_do_not_fit(self):
        all_weights = self.LAYERS * self.SIZE
        limit = all_weights * 6 // 10
        self.succeed(self.tune("small", "--memory", limit, "--rounds", 1, "--candidates", 2, ranks=1))
        best = self.report("small")["candidates"][0]
        self.assertTrue(best["measured"])
        conf = json.loads(self.path("small/conf.json").read_text())
        self.assertEqual(len(conf["offload"]["stages"]), self.LAYERS - 2, "4 of 8 fit, and two of them are slots")
        self.assertLessEqual(max(best["peak_bytes"]), limit)
        self.assert_close(self.run_tuned("small"))
        infer = [RUN, "--in-process", 1, "infer", self.package, "--input", self.input, "--threads", 1, "-o",
                 self.path("out.safetensors"), "--conf"]
        plain = self.peak(*infer, self.one())
        process = plain - all_weights
        self.assertGreater(process, 0)
        tuned = self.peak(*infer, self.path("small/conf.json"), "--microbatches", best["microbatches"])
        self.assertLessEqual(tuned, limit + process)

    def test_a_limit_that_is_too_small(self):
        refused = self.tune("refused", "--no-measure", "--memory", self.SIZE, ranks=1)
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, rf"--memory {self.SIZE}: nothing fits: .* \(1 rank, forward with weights on disk")
        self.assertFalse(self.path("refused").exists())
        least = int(refused.out.split("give --memory ")[1].split()[0])
        self.assertGreater(least, 2 * self.SIZE, "two slots")
        self.succeed(self.tune("least", "--no-measure", "--memory", least, ranks=1))
        self.assert_close(self.run_tuned("least"))

    def test_predictions_are_the_same_each_time(self):
        self.succeed(self.tune("first", "--no-measure"))
        names = ("conf.json", "report.json", "report.html")
        first = {name: self.path(f"first/{name}").read_bytes() for name in names}
        again = self.tune("first", "--no-measure", "--force")
        self.succeed(again)
        self.assertIn("from an earlier tune", again.out)
        for name in names:
            self.assertEqual(self.path(f"first/{name}").read_bytes(), first[name], name)

    def test_a_profile_has_one_module_in_memory(self):
        options = [BUILD / "pipewright", "profile", self.package, "--input", self.input, "--repeat", 1, "--force", "-o",
                   self.path("p.json")]
        forwards = self.peak(*options, "--forward-only")
        self.assertLess(forwards, self.peak(*options) - self.SIZE * self.LAYERS // 2)
        nodes = json.loads(self.path("p.json").read_text())["nodes"]
        self.assertTrue(all(node["weight_gradient"]["median"] > 0 for node in nodes), "the last one was whole")

    def test_a_fixed_number_of_samples(self):
        layers = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
        torch.export.save(torch.export.export(layers, (torch.rand(4, 6),), strict=False), self.path("fixed.pt2"))
        package = self.compile("fixed.pt2", "fixed.pkg", "--split", "children", "--ranks", "2")
        for rows in (12, 10):
            save_file({"input": torch.rand(rows, 6)}, self.path(f"{rows}.safetensors"))
        tune = lambda rows: pipewright("tune", package, "--input", self.path(f"{rows}.safetensors"), "--ranks", 2, "-o",
                                       self.path(f"fixed{rows}"), "--repeat", 1, "--rounds", 1, "--in-process")
        self.succeed(tune(12))
        found = self.report("fixed12")["candidates"]
        self.assertEqual({(c["microbatches"], c["microbatch"]) for c in found}, {(3, 4)})
        self.assertTrue(all(c["measured"] for c in found))
        refused = tune(10)
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("its 10 rows cannot be cut into microbatches of 4 samples", refused.out)

    def test_outputs_that_depend_on_the_microbatches(self):
        export(Mixed(), torch.rand(4, 6), self.path("mixed.pt2"))
        package = self.compile("mixed.pt2", "mixed.pkg", "--ranks", "2")
        save_file({"x": torch.rand(4, 6)}, self.path("rows.safetensors"))
        tune = lambda *options: pipewright("tune", package, "--input", self.path("rows.safetensors"), "--ranks", 1, "-o",
                                           self.path("mixed"), "--candidates", 20, "--repeat", 1, "--rounds", 1, *options)
        self.succeed(tune())
        found = self.report("mixed")["candidates"]
        self.assertEqual({c["microbatches"] for c in found if "failure" not in c}, {1})
        failed = [c for c in found if "failure" in c]
        self.assertLessEqual({2, 4}, {c["microbatches"] for c in failed})
        for candidate in failed:
            self.assertRegex(candidate["failure"], r'with \d microbatches, output ".*" differs by \S+ % from that with 1')
        self.assertEqual({path.name for path in self.path("mixed").iterdir()} - {".lock"},
                         {"conf.json", "report.json", "report.html"})
        predicted = tune("--no-measure", "--force")
        self.succeed(predicted)
        best = self.report("mixed")["candidates"][0]["microbatches"]
        self.assertEqual("it is not known whether outputs are the same" in predicted.out, best > 1)

    def test_an_input_that_has_no_samples(self):
        class Scaled(Mixed):
            def forward(self, factor, x, table):
                x = self.first(x) * factor
                pipe_split()
                return self.last(x) @ table

        inputs = (torch.tensor(2.0), torch.rand(4, 6), torch.rand(3, 3))
        torch.export.save(torch.export.export(Scaled(), inputs, strict=False, dynamic_shapes=(
            {}, {0: torch.export.Dim("batch", min=1, max=64)}, {})), self.path("scaled.pt2"))
        package = self.compile("scaled.pt2", "scaled.pkg", "--ranks", "2")
        save_file({"factor": torch.tensor(3.0), "x": torch.rand(8, 6), "table": torch.rand(3, 3)},
                  self.path("scaled.safetensors"))
        result = pipewright("tune", package, "--input", self.path("scaled.safetensors"), "--ranks", 1, "-o",
                            self.path("scaled"), "--repeat", 1, "--rounds", 1)
        self.succeed(result)
        found = self.report("scaled")["candidates"]
        self.assertEqual({(c["microbatches"], c["microbatch"]) for c in found}, {(1, 8)})
        self.assertTrue(all(c["measured"] and c["measured_process_bytes"] > 10e6 for c in found))

    def test_the_disk_of_a_copy_is_measured_again(self):
        save_file({"input": torch.rand(1, self.WIDTH)}, self.path("row.safetensors"))
        options = ["--input", self.path("row.safetensors"), "--ranks", 1, "--repeat", 1, "--no-measure", "--memory", "1GiB", "--force"]
        self.succeed(pipewright("tune", self.package, "-o", self.path("disk"), *options))
        again = pipewright("tune", self.package, "-o", self.path("disk"), *options)
        copy = self.path("copy.pkg")
        shutil.copytree(self.package, copy)
        other = pipewright("tune", copy, "-o", self.path("disk2"), *options)
        for result in (again, other):
            self.succeed(result)
            self.assertIn("from an earlier tune", result.out)
        self.assertNotIn("disk: one pass", again.out)
        self.assertIn("disk: one pass", other.out)

    def test_what_is_refused(self):
        for options in (["--exact"], ["--change-microbatch"], ["--machines", "m.json"]):
            with self.subTest(options[0]):
                refused = self.tune("refused", *options)
                self.assertEqual(refused.code, 2, refused.out)
                self.assertIn(f"--input excludes {options[0]}", refused.out)
        both = pipewright("tune", self.package, "job.json", "--input", self.input, "--ranks", 2, "-o", self.path("both"))
        self.assertEqual(both.code, 2, both.out)
        none = pipewright("tune", self.package, "--ranks", 2, "-o", self.path("none"))
        self.assertEqual(none.code, 2, none.out)
        self.assertIn("tune: has neither a job nor --input", none.out)
        model = pipewright("tune", self.path("chain.pt2"), "--input", self.input, "--ranks", 2, "-o", self.path("model"))
        self.assertEqual(model.code, 1, model.out)
        self.assertIn("is a model file, and tune takes packages for inference", model.out)

    def test_numbers_beyond_a_table(self):
        model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 4))
        torch.export.save(torch.export.export(model, (torch.zeros(2, 3, dtype=torch.long),), strict=False,
                                              dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},)),
                          self.path("table.pt2"))
        package = self.compile("table.pt2", "table.pkg", "--split", "children", "--ranks", "2")
        save_file({"input": torch.tensor([[1, 2, 3], [4, 50, 6]])}, self.path("beyond.safetensors"))
        refused = pipewright("tune", package, "--input", self.path("beyond.safetensors"), "--ranks", 2, "-o",
                             self.path("beyond"))
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r'beyond\.safetensors: "input".*50')
        self.assertNotIn("profile 1", refused.out)  # before anything is measured


if __name__ == "__main__":
    unittest.main()
