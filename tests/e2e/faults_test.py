"""Ranks that die or stop while they train, runs that are asked to stop, and runs that resume."""
import os
import pathlib
import random
import re
import signal
import time
import unittest

from support import RUN, RunCase, export_gpt, gpt, pipewright, run_ranks

LONG = bool(os.environ.get("PIPEWRIGHT_LONG"))


class Faults(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=4, tied=True, dropout=0.1), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        cls.four = cls.folder / "four.json"
        pipewright("conf", cls.package, "--ranks", 4, "-o", cls.four)

    def train(self, *options, steps, every=1, faults=None):
        return self.start("mpirun", "-n", 3, RUN, *options, "train", self.package,
                          self.with_checkpoints(steps, every), faults=faults)

    # --- what ends a run ---

    def test_a_killed_rank(self):
        for victim, number in ((0, signal.SIGKILL), (2, signal.SIGSEGV)):
            with self.subTest(victim=victim, signal=number):
                self.setUp()
                running = self.train(steps=100000, every=1000)
                self.until_steps(running, 2)
                ranks = sorted(running.ranks())
                self.assertEqual(len(ranks), 3)
                start = time.monotonic()
                os.kill(ranks[victim], number)
                code, left = running.wait()
                self.assert_soon(time.monotonic() - start, 10)
                self.assertNotIn(code, (0, None), running.text)
                self.assertEqual(left, [], running.text)
                where = r"(step \d+, stage \d+(, microbatch \d)?, action \d\w+|after step \d+)"
                said = re.findall(rf"pipewright-run: rank \d on \S+ \(pid {ranks[victim]}\) died"
                                  rf"[^\n]*: {where}", running.text)
                self.assertEqual(len(said), 1, running.text)

    def test_a_stopped_rank(self):
        running = self.train("--stall-limit", 3, steps=100000, every=1000)
        self.until_steps(running, 2)
        victim = random.choice(running.ranks())
        start = time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        code, left = running.wait()
        self.assert_soon(time.monotonic() - start - 3, 10)
        self.assertNotIn(code, (0, None), running.text)
        self.assertEqual(left, [], running.text)
        self.assertRegex(running.text, rf"\(pid {victim}\) has been stopped for 3 s")

    def test_a_lost_message(self):
        running = self.train("--stall-limit", 3, "--stall-report", 2, steps=5, faults="drop=1:9")
        code, left = running.wait()
        self.assertEqual((code, left), (1, []), running.text)
        self.assertRegex(running.text, r"no rank has come further for \d s: every rank waits")
        self.assertRegex(running.text, r"rank \d on \S+ \(pid \d+\): step \d+, stage \d, microbatch "
                                       r"\d, action \S+ \(entry \d+\), waiting for the (values|gradi"
                                       r"ents) of stage 1 for stage \d, microbatch \d, of rank 1")

    def test_a_lost_message_beside_the_plan(self):
        """After the last step, messages from rank 1 belong to no plan."""
        for number, what in ((8, "the busy time of a step"), (9, "a tensor")):
            self.setUp()
            result = run_ranks(3, "--stall-limit", 1, "train", self.package,
                               self.with_checkpoints(1, every=1), mpi=False,
                               environment={"PIPEWRIGHT_FAULTS": f"drop=1:{number}"})
            self.assert_fails(result, r"no rank has come further for \d s: every rank waits",
                              f"after step 1, waiting for {what}, of rank 1")

    def test_ended_by_sigterm(self):
        # Ranks write to files, because mpirun may not read what they print once it has been told to
        # end. It kills them after a second, which on a busy machine is too short to print anything.
        say = 'exec "$@" 2> stderr.$OMPI_COMM_WORLD_RANK'
        running = self.start("mpirun", "--mca", "odls_base_sigkill_timeout", 4, "-n", 3, "--wdir", self.folder,
                             "sh", "-c", say, "sh", RUN, "train", self.package, self.with_checkpoints(100000, every=1000))
        self.until_steps(running, 2)
        start = time.monotonic()
        running.process.terminate()
        code, left = running.wait()
        self.assert_soon(time.monotonic() - start, 10)
        self.assertNotIn(code, (0, None), running.text)
        self.assertEqual(left, [])
        for rank in range(3):
            self.assertRegex(self.path(f"stderr.{rank}").read_text(),
                             rf"rank {rank} on \S+ \(pid \d+\) is ended by SIGTERM: (step|after)")

    # --- long ---

    @unittest.skipUnless(LONG, "2,000 steps: set PIPEWRIGHT_LONG=1")
    def test_memory_stays_flat(self):
        def resident(pid):
            fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
            return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")

        package = self.path("five.pkg")
        if not package.exists():
            export_gpt(gpt(layers=5, tied=True), self.path("five.pt2"))
            self.compile("five.pt2", "five.pkg", "--ranks", "5")
        running = self.start("mpirun", "-n", 5, RUN, "train", package, self.with_checkpoints(2000, every=500))
        memory = {}
        for steps in (400, 1900):
            self.until_steps(running, steps)
            memory[steps] = {pid: resident(pid) for pid in running.ranks()}
        code, left = running.wait(600)
        self.assertEqual((code, left), (0, []), running.text)
        self.assertEqual(len(memory[400]), 5)
        for pid, before in memory[400].items():
            self.assertLess(memory[1900][pid] - before, 0.03 * before, f"of {before}")
        print({pid: (before >> 10, memory[1900][pid] >> 10) for pid, before in memory[400].items()})

    # --- asked to stop ---

    def test_asked_to_stop(self):
        self.stop_and_go_on("mpirun", "-n", 3, RUN,
                            stop=lambda running: running.process.send_signal(signal.SIGUSR1))

    def test_one_rank_asked_to_stop(self):
        self.stop_and_go_on("mpirun", "-n", 3, RUN,
                            stop=lambda running: os.kill(max(running.ranks()), signal.SIGUSR1))

    def test_threads_asked_to_stop(self):
        self.stop_and_go_on(RUN, "--in-process", 3,
                            stop=lambda running: running.process.send_signal(signal.SIGUSR1))

    def test_asked_to_stop_through_the_supervisor(self):
        self.stop_and_go_on(RUN, "--restarts", 2, "-n", 3,
                            stop=lambda running: running.process.send_signal(signal.SIGUSR1))

    # --- the supervisor ---

    def test_killed_again_and_again(self):
        kills = 200 if LONG else 3
        chance = random.Random(5)
        running = self.start(RUN, "--restarts", 2 * kills, "-n", 3, "train", self.package,
                             self.with_checkpoints(1000000, every=1))
        for _ in range(kills):
            before = self.steps_done()
            # Sometimes before the first step, or during loading.
            wait = chance.choice((0, 1, 1, 2))
            self.until(running, lambda: len(running.ranks()) == 3 and self.steps_done() >= before + wait)
            time.sleep(chance.random() * 0.2)
            ranks = running.ranks()
            os.kill(chance.choice(ranks), signal.SIGKILL)
            self.until(running, lambda: not set(ranks) & set(running.ranks()))
        self.until(running, lambda: len(running.ranks()) == 3)
        self.until_steps(running, self.steps_done() + 2)
        running.process.send_signal(signal.SIGUSR1)
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        steps = self.steps_done() + 2
        self.succeed(run_ranks(3, "train", self.package, self.with_checkpoints(steps), "--resume"))
        ours = self.result()
        self.setUp()
        self.assert_same(ours, self.reference(steps))

    def test_fewer_ranks(self):
        """Rank 3 dies in every run that has one."""
        expected = self.reference(5)
        running = self.start(RUN, "--restarts", 3, "--elastic", "-n", 4, "train", self.package,
                             self.with_checkpoints(5, every=1), "--conf", self.four,
                             faults="die=3:2:4:kill")
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertIn("restart 1 of 3 on 4 ranks", running.text)
        self.assertIn("restart 2 of 3 on 3 ranks", running.text)
        self.assert_same(self.result(), expected)

    def test_no_restart_for_what_would_come_again(self):
        running = self.start(RUN, "--restarts", 3, "-n", 3, "train", self.package, "nowhere.json")
        code, left = running.wait()
        self.assertEqual((code, left), (1, []), running.text)
        self.assertEqual(running.text.count("nowhere.json: "), 1, running.text)
        self.assertNotIn("restart 1", running.text)

    def test_only_so_many_restarts(self):
        running = self.start(RUN, "--restarts", 1, "-n", 3, "train", self.package, self.with_checkpoints(5, every=1),
                             faults="die=1:2:0:kill")
        code, left = running.wait()
        self.assertNotIn(code, (0, None), running.text)
        self.assertEqual(left, [])
        self.assertEqual(running.text.count("died"), 2, running.text)
        self.assertIn("after step 2 and is not started again", running.text)


if __name__ == "__main__":
    unittest.main()
