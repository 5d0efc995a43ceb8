"""Runs on three hosts, each a network namespace with a name and an address of its own."""
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from safetensors.torch import load_file

from support import ADAMW, RUN, Case, Running, export_gpt, gpt, run_ranks, token_job

NAME = f"pw{os.getpid() % 100000}"
HOSTS = {f"10.77.0.{number}": f"{NAME}h{number}" for number in (1, 2, 3)}
SWITCH = NAME + "s"
FIRST, _, LAST = HOSTS


def sh(command):
    subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def make_network():
    """A switch, and three hosts with a cable to it."""
    sh(f"ip netns add {SWITCH}")
    sh(f"ip -n {SWITCH} link add name sw0 type bridge && ip -n {SWITCH} link set sw0 up")
    for number, (address, host) in enumerate(HOSTS.items()):
        sh(f"ip netns add {host} && ip -n {host} link set lo up")
        sh(f"ip -n {host} link add name eth0 type veth peer name port{number} netns {SWITCH}")
        sh(f"ip -n {SWITCH} link set port{number} master sw0 up")
        sh(f"ip -n {host} addr add {address}/24 dev eth0 && ip -n {host} link set eth0 up")


def remove_network():
    for name in (SWITCH, *HOSTS.values()):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


# What stands for ssh: a host has its own name, and memory that others do not see.
AGENT = """#!/bin/sh
case "$1" in {cases} esac
shift
exec ip netns exec $host unshare --uts --mount \
  sh -c 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec sh -c "$*"' $host "$@"
"""


class Hosts(Case):
    def setUp(self):
        make_network()
        self.addCleanup(remove_network)

    @classmethod
    def setUpClass(cls):
        try:
            make_network()
            sh(f"ip netns exec {HOSTS[FIRST]} unshare --uts --mount sh -c "
               "'hostname x && mount -t tmpfs tmpfs /dev/shm'")
        except (OSError, subprocess.CalledProcessError):
            raise unittest.SkipTest("network namespaces are not permitted") from None
        finally:
            remove_network()
        super().setUpClass()
        export_gpt(gpt(layers=3, tied=True), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        cls.agent = cls.folder / "agent"
        cases = " ".join(f"{address}) host={host};;" for address, host in HOSTS.items())
        cls.agent.write_text(AGENT.format(cases=cases))
        cls.agent.chmod(0o755)

    def start(self, *options, steps, mpirun_options=()):
        job = self.write_job(token_job(optimizer=ADAMW, steps=steps, check_shared=None,
                                       metrics="metrics.jsonl", save="trained.safetensors"))
        mpirun = ["mpirun", "--mca", "plm_rsh_agent", self.agent, "--mca", "plm_rsh_no_tree_spawn", 1,
                  "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0",
                  "--mca", "oob_tcp_if_include", "eth0", *mpirun_options,
                  "--host", ",".join(HOSTS), "-n", 3]
        self.path("metrics.jsonl").unlink(missing_ok=True)
        return Running([self.agent, FIRST, *mpirun, RUN, *options, "train", self.package, job],
                       self.path("output.txt"))

    def wait_for_steps(self, running, steps):
        deadline = time.monotonic() + 120
        metrics = self.path("metrics.jsonl")
        while not metrics.exists() or metrics.read_text().count("\n") < steps:
            self.assertIsNone(running.process.poll(), pathlib.Path(running.out).read_text())
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.05)

    def test_the_same_bits_as_on_one_host(self):
        running = self.start(steps=6)
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        self.assertIn(", ".join(f"rank {rank} on {host}" for rank, host in enumerate(HOSTS.values())),
                      running.text)
        ours = load_file(self.path("trained.safetensors"))
        self.succeed(run_ranks(3, "train", self.package, self.path("job.json"), mpi=False))
        self.assert_same_tensors(ours, load_file(self.path("trained.safetensors")), "3 hosts: ")

    def test_a_killed_rank_alone_on_its_host(self):
        running = self.start(steps=100000)
        self.wait_for_steps(running, 2)
        victim = next(pid for pid in running.marked()
                      if Running.name(pid) == "pipewright-run" and
                      HOSTS[LAST] == subprocess.run(
                          ["nsenter", "-t", str(pid), "-u", "hostname"], text=True,
                          stdout=subprocess.PIPE, check=True).stdout.strip())
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        code, left = running.wait()
        self.assertLess(time.monotonic() - start, 10, running.text)
        self.assertNotIn(code, (0, None), running.text)
        self.assertEqual(left, [], running.text)
        self.assertRegex(running.text, rf"rank 2 on {HOSTS[LAST]} \(pid {victim}\) died[^\n]*: "
                                       r"(step \d+, stage 2|after step \d+)")

    def test_a_cut_link(self):
        running = self.start("--stall-limit", 3, steps=100000)
        self.wait_for_steps(running, 2)
        start = time.monotonic()
        sh(f"ip -n {SWITCH} link set port2 down")
        code, left = running.wait()
        seconds = time.monotonic() - start
        self.assertNotIn(code, (0, None), running.text)
        self.assertLess(seconds, 13, running.text)
        self.assertEqual(left, [], running.text)
        self.assertRegex(running.text,
                         rf"nothing has been heard of host {HOSTS[LAST]} for 3 s")
        self.assertTrue(re.search(r"rank \d on \S+ \(pid \d+\): step \d+, stage \d, microbatch \d, "
                                  r"action \S+ \(entry \d+\), waiting for", running.text),
                        running.text)


if __name__ == "__main__":
    unittest.main()
