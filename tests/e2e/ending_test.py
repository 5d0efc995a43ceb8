"""How runs end, and what they save and print: full disks, Ctrl-C, Ctrl-Z, killed launchers."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from safetensors.torch import load_file

from support import (BUILD, ENVIRONMENT, RUN, RunCase, Running, alone, bits, call, children, export_gpt, gpt, name_of,
                     pipewright, run_ranks, run_side_by_side, token_job)

LONG_NAME = f"node.{25 * 'n'}.{25 * 'n'}.net"  # mpirun itself crashes on names with longer parts


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


class Ending(RunCase):
    faults = "delay=0.05"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=3, tied=False), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        cls.disk = cls.folder / "disk"

    def setUp(self):
        super().setUp()
        shutil.rmtree(self.disk, ignore_errors=True)

    def mount(self, size):
        self.disk.mkdir()
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.disk],
                           check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("mounts are not permitted")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)

    # --- the last weights ---

    def test_nothing_keeps_the_weights(self):
        for mpi in (True, False):
            result = self.succeed(run_ranks(3, "train", self.package, self.job(save=None), mpi=mpi))
            # mpirun forwards standard output and standard error in any order.
            self.assertRegex(result.out, r'(?s)warning: \S+job\.json has neither "save" nor "checkpoint": the trained '
                             r"weights will be lost at the end\n  keep them: \"save\": \"FILE.safetensors\" in the job .*"
                             r"warning: the trained weights are lost")
            self.assertRegex(result.out, r"step +4/4")
        result = self.succeed(run_ranks(3, "train", self.package, self.job(save=None), "--save",
                                        self.path("trained.safetensors"), mpi=False))
        self.assertNotIn("warning", result.out)

    def test_no_room_for_the_last_weights(self):
        expected, _ = self.reference(4)
        for mpi in (True, False):
            result = run_ranks(3, "train", self.package, self.job(save="/dev/full"), mpi=mpi)
            self.assert_fails(result, "/dev/full: cannot be written: No space left on device")
            where = re.search(r"the weights were saved in (\S+) instead", result.out)
            self.assertTrue(where, result.out)
            self.addCleanup(shutil.rmtree, pathlib.Path(where[1]).parent)
            self.assert_same_tensors(load_file(where[1]), expected)
        result = run_ranks(3, "train", self.package, self.with_checkpoints(4, save="/dev/full"), mpi=False)
        self.assert_fails(result, "/dev/full: cannot be written", "the checkpoint has the weights: "
                          rf"pipewright weights merge {self.path('checkpoints')} -o")
        self.succeed(pipewright("weights", "merge", self.path("checkpoints"), "-o", self.path("merged.safetensors")))
        self.assert_same_tensors(load_file(self.path("merged.safetensors")), expected)

    def test_no_room_for_the_last_checkpoint(self):
        expected, _ = self.reference(4)
        self.mount("40k")
        job = self.job(4, save=None, checkpoint={"to": str(self.disk / "kept")})
        result = run_ranks(3, "train", self.package, job, mpi=False)
        self.assertRegex(result.out, r"warning: \S+kept/: a checkpoint takes more than .*, and its disk has only .* free")
        self.assertEqual(result.code, 1, result.out)
        self.assertIn("module0.safetensors: cannot be written: No space left on device", result.out)
        where = re.search(r"the weights were saved in (\S+) instead", result.out)
        self.assertTrue(where, result.out)
        self.addCleanup(shutil.rmtree, pathlib.Path(where[1]).parent)
        self.assert_same_tensors(load_file(where[1]), expected)

    def test_a_disk_that_fills_up(self):
        """The disk is full when weights are saved, and then also for metrics, until there is space again."""
        expected, losses = self.reference(6)
        self.mount("1m")
        filler = self.disk / "filler"
        job = self.job(6, save=str(self.disk / "w.safetensors"), metrics=str(self.disk / "m.jsonl"))
        running = self.start(RUN, "--in-process", 3, "train", self.package, job, faults="die=0:3:0:stop")
        self.until(running, lambda: state_of(running.process.pid) == "T")
        self.fill(filler)
        running.process.send_signal(signal.SIGCONT)
        code, left = running.wait()
        self.assertEqual((code, left), (1, []), running.text)
        self.assertRegex(running.text, r"step +6/6")
        where = re.search(r"the weights were saved in (\S+) instead", running.text)
        self.addCleanup(shutil.rmtree, pathlib.Path(where[1]).parent)
        self.assert_same_tensors(load_file(where[1]), expected)
        for name in ("m.jsonl", "w.safetensors"):  # a disk that is full before the run starts
            (self.disk / name).write_text("")
        self.fill(filler)
        running = self.start(RUN, "--in-process", 3, "train", self.package, job)
        said = (r"warning: \S+m\.jsonl: cannot be written \(No space left on device\): the run continues, and will "
                "write the lines from step 1 on when it can")
        self.until(running, lambda: re.search(said, pathlib.Path(running.out).read_text()))
        filler.unlink()
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertIn("m.jsonl: can be written again", running.text)
        self.assertEqual([(line["step"], bits(line["losses"])) for line in self.lines(self.disk / "m.jsonl")], losses)

    def test_files_beyond_the_limit_of_their_size(self):
        limited = ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", RUN, "--in-process", 3, "train", self.package]
        self.assert_fails(call([*limited, self.with_checkpoints(4, every=2)]),
                          "checkpoint of step 2: .*cannot be written: File too large")
        self.setUp()
        result = call([*limited, self.job(4)])
        self.assert_fails(result, "trained.safetensors: cannot be written: File too large")

    def fill(self, filler):
        """Fills the disk to the last byte."""
        file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while os.write(file, bytes(4096)):
                pass
        except OSError:
            pass
        finally:
            os.close(file)

    def test_metrics_that_cannot_be_written(self):
        for mpi in (True, False):
            result = self.succeed(run_ranks(3, "train", self.package, self.job(metrics="/dev/full"), mpi=mpi))
            self.assertIn("/dev/full: 4 lines are missing, since the file could not be written", result.out)

    def test_a_name_too_long_for_the_weights(self):
        """The error comes before training, even if only the temporary name is too long."""
        for length in (250, 300):
            result = call([RUN, "--in-process", 3, "train", self.package, self.job(4, save="w" * length)])
            self.assert_fails(result, "opening outputs on rank 0: .*w: cannot be written: File name too long")

    # --- standard output ---

    def test_standard_output_that_cannot_be_written(self):
        """The run reports it; training still saves its weights."""
        expected = self.reference(4)
        missing = "standard output: cannot be written.*\n  some output is missing"
        threads = [RUN, "--in-process", 3, "train", self.package]
        for command, streams in ((threads, ">/dev/full"), (threads, "| head -1; exit ${PIPESTATUS[0]}"),
                                 (["pipewright"], ">/dev/full")):
            self.setUp()
            words = [*command, self.job(4)]
            if command[0] == "pipewright":
                words = [BUILD / "pipewright", "plan", self.package, self.job(4)]
            result = call(["bash", "-c", f'"$@" {streams}', "bash", *words])
            self.assertEqual((result.code, result.left), (1, []), result.out)
            self.assertRegex(result.out, missing)
            if command is threads:
                self.assert_same(self.result(), expected)

    def test_closed_streams(self):
        """No file that a run opens takes the place of a closed stream."""
        expected = self.reference(4)
        for command in ((RUN, "--in-process", 3), (RUN, "-n", 3)):
            self.setUp()
            self.succeed(call(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *command, "train", self.package,
                               self.job(4)]))
            self.assert_same(self.result(), expected)

    # --- Ctrl-C and Ctrl-Z ---

    def ctrl_c_and_go_on(self, *command):
        text = self.stop_and_go_on(*command, stop=lambda running: running.process.send_signal(signal.SIGINT))
        self.assertIn("is ended by SIGINT", text)
        self.assertIn("a second signal ends it at once", text)
        self.assertIn(f"checkpoint in {self.path('checkpoints')}: to continue, run the same command with --resume", text)

    def test_ctrl_c(self):
        self.ctrl_c_and_go_on(RUN, "-n", 3)

    def test_ctrl_c_of_threads(self):
        self.ctrl_c_and_go_on(RUN, "--in-process", 3)

    def test_ctrl_c_of_what_was_started_with_it_blocked(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.addCleanup(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGINT})
        for command in ((RUN, "--in-process", 3), (RUN, "-n", 3)):
            self.setUp()
            self.ctrl_c_and_go_on(*command)

    def test_ctrl_c_twice(self):
        for command in ((RUN, "-n", 3), (RUN, "--in-process", 3)):
            self.setUp()
            # The third step does not end: it waits for a lost message.
            running = self.start(*command, "train", self.package, self.with_checkpoints(100000), faults="drop=0:9")
            self.until(running, lambda: "step" in pathlib.Path(running.out).read_text())
            running.process.send_signal(signal.SIGINT)
            self.until(running, lambda: "a second signal" in pathlib.Path(running.out).read_text())
            self.assertIsNone(running.process.poll())
            running.process.send_signal(signal.SIGINT)
            code, left = running.wait()
            self.assertNotIn(code, (0, None), running.text)
            self.assertEqual(left, [], running.text)
            self.assertNotIn("stopped after step", running.text)

    def test_ctrl_c_where_nothing_is_kept(self):
        running = self.start(RUN, "--in-process", 3, "train", self.package, self.job(100000, save=None))
        self.until_steps(running, 2)
        running.process.send_signal(signal.SIGINT)
        code, _ = running.wait()
        self.assertEqual(code, 0, running.text)
        self.assertIn("it cannot be resumed: the job writes no checkpoints", running.text)
        self.assertIn("the trained weights are lost", running.text)

    def test_n_needs_no_settings(self):
        """It works for root, and with more ranks than cores."""
        settings = [f"--unset={name}" for name in ENVIRONMENT if name.startswith("OMPI_")]
        self.succeed(call(["env", *settings, RUN, "-n", 3, "train", self.package, self.job(4)]))

    def test_ctrl_z(self):
        """A run may be stopped for longer than the stall limit; a single stopped rank still counts as dead."""
        expected = self.reference(12)
        running = self.start(RUN, "-n", 3, "--stall-limit", 1, "train", self.package, self.job(12))
        self.until_steps(running, 2)
        ranks = [rank for parent in children(running.process.pid) for rank in children(parent)]
        self.assertEqual(len(ranks), 3)
        running.process.send_signal(signal.SIGTSTP)
        self.until(running, lambda: all(state_of(pid) == "T" for pid in (running.process.pid, *ranks)))
        time.sleep(3)
        self.assertTrue(all(state_of(pid) == "T" for pid in ranks))
        running.process.send_signal(signal.SIGCONT)
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assert_same(self.result(), expected)

    # --- launchers ---

    def test_mpirun_is_killed(self):
        for command in (("mpirun", "-n", 3, RUN), (RUN, "-n", 3)):
            self.setUp()
            running = self.start(*command, "train", self.package, self.job(100000))
            self.until_steps(running, 2)
            mpirun = running.process.pid if command[0] == "mpirun" else children(running.process.pid)[0]
            os.kill(mpirun, signal.SIGKILL)
            code, left = running.wait()
            self.assertNotIn(code, (0, None), running.text)
            self.assertEqual(left, [], running.text)
            said = re.findall(rf"rank \d on \S+ \(pid \d+\) is ended, since its launcher \(pid {mpirun}\) has died: "
                              r"(step|after)", running.text)
            self.assertEqual(len(said), 1, running.text)

    def fake_mpirun(self, after="", before=""):
        """Returns an environment in which mpirun runs `before` before its ranks start, and `after` once they have ended."""
        folder = self.path("fake")
        folder.mkdir(exist_ok=True)
        real = f'{shutil.which("mpirun")} "$@"'
        (folder / "mpirun").write_text(f"#!/bin/sh\n{before}\nexec {real}\n" if before else
                                       f"#!/bin/sh\n{real}\ncode=$?\n{after}\nexit $code\n")
        (folder / "mpirun").chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    def test_mpirun_hangs_after_its_ranks(self):
        """mpirun is ended, and the run's result is that of its ranks."""
        expected = self.reference(4)
        hangs = {**self.fake_mpirun("sleep 100000"), "PIPEWRIGHT_MPIRUN_LIMIT": "3"}
        result = self.succeed(call([RUN, "-n", 3, "train", self.package, self.job(4)], environment=hangs))
        said = "mpirun did not end within 3 s after its ranks, and was ended"
        self.assertRegex(result.out, said + ": every rank finished without an error")
        self.assert_soon(result.seconds, 15)
        self.assert_same(self.result(), expected)
        # An error on which all ranks agree is not retried; a death of one rank is.
        result = call([RUN, "--restarts", 1, "-n", 3, "train", self.package, "nowhere.json"], environment=hangs)
        self.assertEqual((result.code, result.left), (1, []), result.out)
        self.assertIn(said + ": the run had failed", result.out)
        self.assertNotIn("restart 1", result.out)
        result = call([RUN, "--restarts", 1, "-n", 3, "train", self.package, self.with_checkpoints(4, every=1)],
                      environment={**hangs, "PIPEWRIGHT_FAULTS": "die=1:2:0:kill"})
        self.assertEqual((result.code, result.left), (1, []), result.out)
        self.assertRegex(result.out, said + r": the run had failed(\n  rank .*)*\n  rank 1 on \S+ \(pid \d+\): step 3")
        self.assertIn("restart 1 of 1", result.out)

    def test_mpirun_blames_ranks_that_have_finished(self):
        """mpirun's exit code does not count if all ranks finished; a rank's death does."""
        blames = self.fake_mpirun("code=1")
        result = self.succeed(call([RUN, "-n", 3, "train", self.package, self.job(4)], environment=blames))
        self.assertIn("mpirun ended with code 1, but every rank finished without an error",
                      result.out)
        for job, faults in (("nowhere.json", ""), (self.job(4), "die=1:2:0:leave")):
            result = call([RUN, "-n", 3, "train", self.package, job],
                          environment={**blames, "PIPEWRIGHT_FAULTS": faults})
            self.assertEqual((result.code, result.left), (1, []), result.out)
            self.assertNotIn(", but every rank finished", result.out)

    def test_signals_before_the_ranks_have_started(self):
        """The run ends as soon as it can save something, or reports that there is nothing to save."""
        slow = self.fake_mpirun(before=f"touch {self.path('started')}; while [ ! -e {self.path('go')} ]; do sleep 0.1; done")

        def run(*signals):
            self.setUp()
            for name in ("started", "go"):
                self.path(name).unlink(missing_ok=True)
            running = Running([RUN, "-n", 3, "train", self.package, self.job(100000)], self.path("output.txt"), slow)
            self.addCleanup(running.wait, 0)
            self.until(running, self.path("started").exists)
            for number in signals:
                running.process.send_signal(number)
                if number == signal.SIGINT and len(signals) == 2:
                    self.until(running, lambda: "a second signal" in pathlib.Path(running.out).read_text())
            time.sleep(1)
            self.path("go").touch()
            code, left = running.wait()
            self.assertEqual(left, [], running.text)
            return code, running.text

        for number in (signal.SIGUSR1, signal.SIGINT):
            code, text = run(number)
            self.assertEqual(code, 0, text)
            self.assertRegex(text, r"stopped after step \d+, as asked")
            self.assertTrue(self.path("trained.safetensors").exists())
        for signals in ((signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)):
            code, text = run(*signals)
            self.assertNotIn(code, (0, None), text)
            self.assertEqual(text.count("was ended by a signal before its ranks had started"), 1, text)

    def test_too_few_open_files_for_mpirun(self):
        result = call(["bash", "-c", 'ulimit -n 30; exec "$@"', "bash", RUN, "-n", 3, "train", self.package, self.job(4)])
        self.assert_fails(result, "mpirun: needs 44 open files for 3 ranks, and a process may open 30",
                          "ulimit -n 44")
        self.succeed(call(["bash", "-c", 'ulimit -n 44; exec "$@"', "bash", RUN, "-n", 3, "train", self.package,
                           self.job(4)]))

    def test_mpirun_waits_for_a_reader(self):
        """Its remaining output is not lost, however late it is read."""
        running = subprocess.Popen([RUN, "-n", "3", "train", self.package, self.job(4)], stdout=subprocess.PIPE,
                                   env={**os.environ, **ENVIRONMENT, "PIPEWRIGHT_MPIRUN_LIMIT": "3",
                                        **self.fake_mpirun("yes | head -c 200000")})
        while len(self.lines()) < 4 and running.poll() is None:
            time.sleep(0.1)
        time.sleep(8)
        out = running.communicate()[0]
        self.assertEqual(running.returncode, 0)
        self.assertEqual(out[-200000:], b"y\n" * 100000)

    def test_every_death_names_its_signal(self):
        for number in (signal.SIGKILL, signal.SIGHUP, signal.SIGXCPU, signal.SIGSEGV):
            self.setUp()
            running = self.start("mpirun", "-n", 3, RUN, "train", self.package, self.job(100000))
            self.until_steps(running, 1)
            os.kill(running.ranks()[1], number)
            running.wait()
            self.assertRegex(running.text, rf"rank \d on \S+ \(pid \d+\) died of signal {int(number)} ")

    def test_a_death_before_mpi_has_started(self):
        """The rank's number is already known, from the launcher."""
        running = self.start("mpirun", "-n", 3, RUN, "train", self.package, self.job(100000))
        guarded = []

        def is_guarded():
            guarded[:] = [rank for rank in running.ranks()
                          if any(name_of(child) == "pipewright-grd" for child in children(rank))]
            return guarded

        while not is_guarded() and running.process.poll() is None:
            pass
        os.kill(guarded[0], signal.SIGKILL)
        running.wait()
        self.assertRegex(running.text, rf"rank \d on \S+ \(pid {guarded[0]}\) died of signal 9 \(Killed\)")

    def test_errors_without_banners(self):
        """Only the error is printed, whether all ranks have it or one."""
        nan = self.job(optimizer={"type": "sgd", "lr": 1e30})
        for command in (("mpirun", "-n", 3, RUN), (RUN, "-n", 3), (RUN, "--restarts", 0, "-n", 3)):
            for arguments, message in (((self.path("nowhere.json"),), "nowhere.json"), ((nan,), "not finite|nan")):
                result = call([*command, "train", self.package, *arguments])
                self.assertRegex(result.out, message)
                if command[0] != "mpirun" or arguments[0] == nan:
                    self.assertNotRegex(result.out, "-----|MPI_ABORT|help message")
        # mpirun's explanation why nothing was started is kept.
        result = call([RUN, "--mpirun", "mpirun --host localhost:1 --mca rmaps_base_oversubscribe 0", "-n", 3, "train",
                       self.package, nan], environment={"OMPI_MCA_rmaps_base_oversubscribe": "0"})
        self.assertRegex(result.out, "not enough slots")

    @alone  # other runs that start at the same time sweep, too
    def test_shared_memory_is_swept(self):
        def folders():
            return {path for path in pathlib.Path("/dev/shm").glob("pipewright-*") if
                    (path / "pipewright-status.lock").exists()}

        foreign = pathlib.Path(f"/dev/shm/pipewright-{os.getpid()}-foreign")
        foreign.mkdir()
        self.addCleanup(foreign.rmdir)
        before = folders()
        for command in ((RUN, "-n", 3), ("mpirun", "-n", 3, RUN)):
            self.setUp()
            running = self.start(*command, "train", self.package, self.job(100000))
            self.until_steps(running, 1)
            mine = folders() - before
            self.assertTrue(mine, "no folder")
            # Other runs that start at the same time leave them alone.
            self.succeed(run_ranks(3, "train", self.package, self.write_job(token_job(steps=1), "other.json")))
            self.assertEqual(mine & folders(), mine)
            for pid in running.marked():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            running.wait()
            self.assertEqual(mine & folders(), mine)
            self.succeed(run_ranks(3, "train", self.package, self.path("other.json")))
            self.assertEqual(mine & folders(), set())
        self.assertTrue(foreign.exists())

    def test_a_long_name_of_a_host(self):
        if subprocess.run(["unshare", "--uts", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("namespaces are not permitted")
        running = self.start("unshare", "--uts", "sh", "-c", 'hostname $0 && exec "$@"', LONG_NAME,
                             RUN, "-n", 3, "--stall-limit", 2, "train", self.package, self.job(100000))
        self.until_steps(running, 1)
        ranks = [rank for parent in children(running.process.pid) for rank in children(parent)]
        os.kill(ranks[0], signal.SIGSTOP)  # its guard finds the others by their host and ends them
        code, left = running.wait()
        self.assertNotIn(code, (0, None), running.text)
        self.assertEqual(left, [], running.text)
        self.assertIn(f"on {LONG_NAME} (pid {ranks[0]}) has been stopped for 2 s", running.text)

    def test_status_files_of_an_earlier_run(self):
        """A folder that the user names keeps them; those of a run that was stopped do not stop the next one."""
        kept = {"PIPEWRIGHT_STATUS": str(self.path("status")), "PIPEWRIGHT_FAULTS": "delay=0.05"}
        running = Running(["mpirun", "-n", 3, RUN, "train", self.package, self.job(100000)], self.path("output.txt"), kept)
        self.addCleanup(running.wait, 0)
        self.until_steps(running, 1)
        for rank in running.ranks():
            os.kill(rank, signal.SIGUSR1)
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertTrue(self.path("status/rank-2.status").exists())
        self.setUp()
        conf = self.path("two.json")
        self.succeed(pipewright("conf", self.package, "--ranks", 2, "-o", conf))
        result = self.succeed(call(["mpirun", "-n", 2, RUN, "train", self.package, self.job(20), "--conf", conf],
                                   environment=kept))
        self.assertNotIn("stopped after", result.out)
        self.assertEqual([line["step"] for line in self.lines()], list(range(1, 21)))
        self.assertEqual(sorted(path.name for path in self.path("status").glob("*.status")),
                         ["rank-0.status", "rank-1.status"])

    # --- where messages appear ---

    def test_rank_0_says_all(self):
        """It also writes the metrics: only its host's folder has them."""
        for name in ("first", "others"):
            self.path(name).mkdir()
            (self.path(name) / "job.json").write_text(json.dumps(token_job(
                steps=3, metrics="metrics.jsonl", validation={"data": token_job()["data"], "every": 2, "steps": 1})))
        program = [RUN, "train", self.package, "job.json"]
        result = self.succeed(call(["mpirun", "-n", 1, "--wdir", self.path("first"), *program, ":",
                                    "-n", 2, "--wdir", self.path("others"), *program]))
        self.assertEqual([line["step"] for line in self.lines(self.path("first/metrics.jsonl"))], [1, 2, 3])
        self.assertIn("validation", self.lines(self.path("first/metrics.jsonl"))[1])
        self.assertFalse(self.path("others/metrics.jsonl").exists())
        shown = re.findall(r"^(step +\d|rank \d  busy)", result.out, re.MULTILINE)
        self.assertEqual([word.split()[0] for word in shown], 3 * ["step"] + 3 * ["rank"], result.out)
        evaluate = [RUN, "eval", self.package, "job.json", "--steps", 2, "--metrics", "eval.json"]
        result = self.succeed(call(["mpirun", "-n", 1, "--wdir", self.path("first"), *evaluate, ":",
                                    "-n", 2, "--wdir", self.path("others"), *evaluate]))
        self.assertEqual(result.out.count("samples/s"), 1)
        self.assertEqual(json.loads(self.path("first/eval.json").read_text())["samples"], 16)
        self.assertFalse(self.path("others/eval.json").exists())


if __name__ == "__main__":
    run_side_by_side(4)
