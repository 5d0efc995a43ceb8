"""Runs on three hosts, each a network namespace with a name and an address of its own."""
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time
import unittest

from safetensors.torch import load_file

from network import (HOSTS, SWITCH, can_make_network, make_network, remove_network, sh,
                     write_agent)
from support import ADAMW, BUILD, RUN, Case, Running, export_gpt, gpt, name_of, run_ranks, token_job

FIRST, _, LAST = HOSTS


class Hosts(Case):
    def setUp(self):
        make_network()
        self.addCleanup(remove_network)

    @classmethod
    def setUpClass(cls):
        if not can_make_network():
            raise unittest.SkipTest("network namespaces are not permitted")
        super().setUpClass()
        export_gpt(gpt(layers=3, tied=True), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        cls.agent = cls.folder / "agent"
        write_agent(cls.agent)

    def start(self, *options, steps, mpirun_options=(), **changes):
        job = self.write_job(token_job(optimizer=ADAMW, steps=steps, check_shared=None,
                                       metrics="metrics.jsonl", save="trained.safetensors", **changes))
        mpirun = ["mpirun", "--mca", "plm_rsh_agent", self.agent, "--mca", "plm_rsh_no_tree_spawn", 1,
                  "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0",
                  "--mca", "oob_tcp_if_include", "eth0", *mpirun_options,
                  "--host", ",".join(HOSTS), "-n", 3]
        self.path("metrics.jsonl").unlink(missing_ok=True)
        return Running([self.agent, FIRST, *mpirun, RUN, *options, "train", self.package, job],
                       self.path("output.txt"))

    def until_steps(self, running, steps):
        metrics = self.path("metrics.jsonl")
        self.until(running, lambda: metrics.exists() and metrics.read_text().count("\n") >= steps)

    def test_the_same_bits_as_on_one_host(self):
        running = self.start(steps=6)
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertIn(", ".join(f"rank {rank} on {host}" for rank, host in enumerate(HOSTS.values())),
                      running.text)
        ours = load_file(self.path("trained.safetensors"))
        self.succeed(run_ranks(3, "train", self.package, self.path("job.json"), mpi=False))
        self.assert_same_tensors(ours, load_file(self.path("trained.safetensors")), "3 hosts: ")

    def test_a_checkpoint_folder_on_each_host(self):
        for folder, said in (("/dev/shm/checkpoints", r"which the hosts do not share: each keeps the shards of its "
                              r"own ranks \(" + ", ".join(f"rank {rank} on {host}" for rank, host in
                                                          enumerate(HOSTS.values())) + r"\)"),
                             ("checkpoints", "which all hosts share")):
            running = self.start(steps=5, checkpoint={"to": folder, "every": 2})
            code, left = running.wait()
            self.assertEqual((code, left), (0, []), running.text)
            self.assertRegex(running.text, rf"checkpoints in \S*{folder}, {said}")

    def test_a_killed_rank_alone_on_its_host(self):
        running = self.start(steps=100000)
        self.until_steps(running, 2)
        victim = next(pid for pid in running.marked()
                      if name_of(pid) == "pipewright-run" and
                      HOSTS[LAST] == subprocess.run(
                          ["nsenter", "-t", str(pid), "-u", "hostname"], text=True,
                          stdout=subprocess.PIPE, check=True).stdout.strip())
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        code, left = running.wait()
        self.assert_soon(time.monotonic() - start, 10, running.text)
        self.assertNotIn(code, (0, None), running.text)
        self.assertEqual(left, [], running.text)
        self.assertRegex(running.text, rf"rank 2 on {HOSTS[LAST]} \(pid {victim}\) died[^\n]*: "
                                       r"(step \d+, stage 2|after step \d+)")

    def test_a_cut_link(self):
        running = self.start("--stall-limit", 3, steps=100000)
        self.until_steps(running, 2)
        start = time.monotonic()
        sh(f"ip -n {SWITCH} link set port2 down")
        code, left = running.wait()
        seconds = time.monotonic() - start
        self.assertNotIn(code, (0, None), running.text)
        self.assert_soon(seconds - 3, 10, running.text)
        self.assertEqual(left, [], running.text)
        self.assertRegex(running.text,
                         rf"nothing has been heard of host {HOSTS[LAST]} for 3 s")
        self.assertRegex(running.text,
                         r"rank [01] on \S+ \(pid \d+\): (step \d+, stage \d, microbatch \d, action \S+ "
                         r"\(entry \d+\)|after step \d+), waiting for")
        self.assertRegex(running.text, rf"rank 2 on {HOSTS[LAST]} \(pid \d+\), when last heard: ")

    def test_tune_measures_on_the_hosts(self):
        mpirun = (f"mpirun --mca plm_rsh_agent {self.agent} --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self "
                  "--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0")
        job = self.write_job(token_job(optimizer=ADAMW, steps=4, check_shared=None, schedule="gpipe", microbatches=2))
        hosts = f"{LAST}:1,{FIRST}:1"
        command = [BUILD / "pipewright", "tune", self.package, job, "--ranks", 2, "--hosts", hosts, "--mpirun", mpirun,
                   "-o", self.path("tuned"), "--exact", "--repeat", 1, "--rounds", 1, "--candidates", 2]
        running = Running([self.agent, FIRST, *(shlex.quote(str(word)) for word in command)], self.path("output.txt"))
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        report = json.loads(self.path("tuned/report.json").read_text())
        self.assertTrue(all(each["measured"] and not each["in_process"] for each in report["candidates"]), running.text)
        self.assertIn(2, {each["ranks"] for each in report["candidates"]})
        self.assertRegex(report["start"], rf"^pipewright-run --hosts {hosts} --mpirun '{mpirun}' -n [12] train ")
        self.assertIn(report["start"], running.text)
        kept = [json.loads(path.read_text()) for path in (pathlib.Path(self.package) / "tuned/measured").iterdir()]
        self.assertTrue(all(each["machine"].endswith(f", --hosts {hosts}, --mpirun {mpirun}") for each in kept), kept)
        links = [each["measured"]["profile"]["links"] for each in kept if "profile" in each["measured"]]
        self.assertIn(2, {len(each) for each in links})
        start = report["start"].replace("pipewright-run", str(RUN), 1)
        running = Running([self.agent, FIRST, start], self.path("output.txt"))
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertIn("step ", running.text)


if __name__ == "__main__":
    unittest.main()
