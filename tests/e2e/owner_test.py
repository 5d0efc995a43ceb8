"""Folders and files that a run writes for long belong to one run at a time, and are free once it is dead."""
import os
import re
import shutil
import signal
import unittest

from support import ADAMW, RUN, Case, Running, export_gpt, gpt, pipewright, run_ranks, token_job


class Owner(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        for ranks in (2, 3):
            pipewright("conf", cls.package, "--ranks", ranks, "-o", cls.folder / f"{ranks}.json")

    def setUp(self):
        self.checkpoints = self.path("checkpoints")
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def job(self, name="job.json", steps=4, checkpoint=True, **changes):
        folder = {"checkpoint": {"to": "checkpoints", "every": 2, "keep": 2}} if checkpoint else {}
        return self.write_job(token_job(optimizer=ADAMW, steps=steps, check_shared=None, **folder, **changes), name)

    def train(self, ranks, *options, mpi=True, **changes):
        return run_ranks(ranks, "train", self.package, self.job(**changes), "--conf",
                         self.path(f"{ranks}.json"), *options, mpi=mpi)

    def start_long(self, ranks, *options, mpi=True, **changes):
        """Starts a run that makes steps until it is killed."""
        metrics = self.path("running.jsonl")
        metrics.unlink(missing_ok=True)
        program = ["mpirun", "-n", ranks, RUN] if mpi else [RUN, "--in-process", ranks]
        running = Running([*program, "train", self.package, self.job("running.json", 1000000, **changes),
                           "--conf", self.path(f"{ranks}.json"), "--metrics", metrics, *options],
                          self.path("running.txt"))
        self.addCleanup(running.wait, 0)
        self.until(running, lambda: metrics.exists() and metrics.read_text().count("\n") >= 4)
        return running

    def test_a_folder_has_one_run(self):
        for ranks, owned_by_mpi in ((2, True), (3, True), (2, False)):
            self.setUp()
            running = self.start_long(ranks, mpi=owned_by_mpi)
            for mpi in (True, False):
                for options in ((), ("--resume",), ("--resume-from", self.checkpoints)):
                    result = self.train(ranks, *options, mpi=mpi)
                    self.assert_fails(
                        result, r"job\.json: checkpoint\.to: \S+checkpoints: another run writes its checkpoints "
                                r"there: pid \d+ on \S+, since .* UTC: .*train .*running\.json",
                        r"name another folder \(checkpoint\.to\), or wait until that run has ended")
            owner = int(re.search(r"pid (\d+) on", result.out)[1])
            self.assertIn(owner, running.ranks() if owned_by_mpi else [running.process.pid])
            self.assertIsNone(running.process.poll())
            # Once killed, it blocks nobody, although its lock is not removed.
            os.kill(owner, signal.SIGKILL)
            running.wait()
            self.assertTrue((self.checkpoints / ".lock").exists())
            step = int((self.checkpoints / "latest").read_text()[5:])
            again = self.succeed(self.train(ranks, "--resume", steps=step + 1))
            self.assertIn("resumed from", again.out)
            self.assertFalse((self.checkpoints / ".lock").exists())

    def test_a_restart_has_the_folder_at_once(self):
        """Rank 0 of each restart takes over the lock of the one before, which was killed while it held it."""
        metrics = self.path("restarted.jsonl")
        metrics.unlink(missing_ok=True)
        # Slow, so that it does not finish before it has been killed twice.
        running = Running([RUN, "--restarts", 2, "-n", 2, "train", self.package, self.job(steps=60), "--conf",
                           self.path("2.json"), "--metrics", metrics], self.path("restarted.txt"),
                          {"PIPEWRIGHT_FAULTS": "delay=0.1"})
        self.addCleanup(running.wait, 0)
        for _ in range(2):
            begin = metrics.read_text().count("\n") if metrics.exists() else 0
            self.until(running, lambda: metrics.exists() and metrics.read_text().count("\n") >= begin + 3)
            rank_0 = [pid for pid in running.ranks()
                      if b"OMPI_COMM_WORLD_RANK=0\0" in open(f"/proc/{pid}/environ", "rb").read()]
            os.kill(rank_0[0], signal.SIGKILL)
            self.until(running, lambda: rank_0[0] not in running.ranks())
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertNotIn("another run", running.text)
        self.assertIn("restart 2 of 2", running.text)
        self.assertEqual((self.checkpoints / "latest").read_text(), "step-00000060\n")

    def test_files_have_one_run(self):
        running = self.start_long(2, "--save", self.path("shared.safetensors"), checkpoint=False)
        for options, key in ((("--metrics", self.path("running.jsonl")), "--metrics"),
                             (("--metrics", self.path("other.jsonl"),
                               "--save", self.path("shared.safetensors")), "--save")):
            result = self.train(2, *options, mpi=False, checkpoint=False)
            self.assert_fails(result, key + r": \S+: is written by another run: pid \d+ on ")
        running.wait(0)
        self.succeed(self.train(2, *options, mpi=False, checkpoint=False))
        self.assertFalse(self.path(".shared.safetensors.lock").exists())
        self.assertFalse(self.path(".other.jsonl.lock").exists())


if __name__ == "__main__":
    unittest.main()
