"""Tunes a package for a job: the result trains the same samples, and refusals say why."""
import json
import unittest

from safetensors.torch import load_file

from support import SGD, Case, export_gpt, gpt, pipewright, run_ranks, token_job, torch


class Tune(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")

    def job(self, **changes):
        return token_job(optimizer=SGD, schedule="gpipe", microbatches=4, microbatch_size=2, steps=4,
                         check_shared=None, save="trained.safetensors", **changes)

    def tune(self, folder, *options, ranks=2, **changes):
        path = self.write_job(self.job(**changes))
        return pipewright("tune", self.package, path, "--ranks", ranks, "-o", self.path(folder),
                          "--repeat", 1, *options)

    def test_what_is_written_trains_the_same_samples(self):
        result = self.tune("tuned", "--rounds", 1, "--candidates", 2, "--in-process")
        self.succeed(result)
        report = json.loads(self.path("tuned/report.json").read_text())
        job = json.loads(self.path("tuned/job.json").read_text())
        best = report["candidates"][0]
        self.assertTrue(all(c["measured"] for c in report["candidates"]))
        self.assertEqual(sum(c["as_given"] for c in report["candidates"]), 1)
        self.assertEqual((job["minibatch_size"], job["microbatches"], job["schedule"]),
                         (8, best["microbatches"], best["schedule"]))
        self.assertIn("pipewright-run -n", result.out)
        self.path("one.json").write_text('{"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0]}}')
        self.succeed(run_ranks(1, "train", self.package, self.path("job.json"), "--conf",
                               self.path("one.json"), mpi=False))
        given = load_file(self.path("trained.safetensors"))
        self.succeed(run_ranks(best["ranks"], "train", self.package, self.path("tuned/job.json"), "--conf",
                               self.path("tuned/conf.json"), mpi=False))
        tuned = load_file(self.path("trained.safetensors"))
        for name, weight in given.items():  # another microbatch size rounds differently
            torch.testing.assert_close(tuned[name], weight, rtol=1e-3, atol=1e-5, msg=name)

    def test_predictions_alone(self):
        result = self.tune("predicted", "--no-measure", "--json", "--exact")
        self.succeed(result)
        report = json.loads(self.path("predicted/report.json").read_text())
        for candidate in report["candidates"]:
            self.assertEqual((candidate["microbatches"], candidate["microbatch"]), (4, 2))
            self.assertEqual(candidate["measured"], [])
        steps = [c["predicted"] for c in report["candidates"]]
        self.assertEqual(steps, sorted(steps))
        self.assertIn("the microbatch stays at 2 samples: --exact keeps the results bitwise identical", report["notes"])

    def test_memory(self):
        refused = self.tune("small", "--no-measure", "--memory", "1KB")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertRegex(refused.out, r"--memory 1KB: nothing fits: the smallest of \d+ candidates takes")
        self.assertFalse(self.path("small/job.json").exists())
        least = int(refused.out.split("give --memory ")[1].split()[0])
        # Times are measured again, so the cut may differ; a cut's bytes do not.
        self.succeed(self.tune("small", "--no-measure", "--memory", str(2 * least)))
        report = json.loads(self.path("small/report.json").read_text())
        for candidate in report["candidates"]:
            self.assertLessEqual(max(candidate["peak_bytes"]), 2 * least)

    def test_edited_files_stay(self):
        self.succeed(self.tune("kept", "--no-measure", "--exact"))
        self.path("kept/conf.json").write_text("mine")
        refused = self.tune("kept", "--no-measure", "--exact")
        self.assertEqual(refused.code, 1, refused.out)
        self.assertIn("kept/conf.json", refused.out)
        self.assertEqual(self.path("kept/conf.json").read_text(), "mine")
        self.succeed(self.tune("kept", "--no-measure", "--exact", "--force"))


if __name__ == "__main__":
    unittest.main()
