"""Hosts that do not share the checkpoint folder: each rank has its own mount namespace."""
import json
import shutil
import subprocess
import unittest

from safetensors.torch import load_file

from support import (ADAMW, RUN, Case, Running, bits, call, export_gpt, gpt, pipewright,
                     token_job)

# Mounts the folder of a rank's host for it; $HOSTS names the hosts by rank.
AGENT = """#!/bin/sh
set -- $HOSTS -- "$@"
shift $OMPI_COMM_WORLD_RANK
host=$1
while [ "$1" != -- ]; do shift; done
shift
exec unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' \
  {folder}/$host {folder}/checkpoints "$@"
"""


class Apart(Case):
    @classmethod
    def setUpClass(cls):
        if subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL,
                          check=False).returncode:
            raise unittest.SkipTest("mount namespaces are not permitted")
        super().setUpClass()
        export_gpt(gpt(layers=4, tied=True, dropout=0.1), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg")
        cls.agent = cls.folder / "agent"
        cls.agent.write_text(AGENT.format(folder=cls.folder))
        cls.agent.chmod(0o755)
        (cls.folder / "row.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 1, 2, 2],
             "stage_to_rank_map": {"0": [0], "1": [1], "2": [2]}}))
        (cls.folder / "replicas.json").write_text(json.dumps(
            {"module_to_stage_map": [0, 0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}}))

    def setUp(self):
        for name in ("a", "b", "checkpoints"):
            shutil.rmtree(self.path(name), ignore_errors=True)
            self.path(name).mkdir()
        self.path("metrics.jsonl").unlink(missing_ok=True)

    def job(self, steps=8, keep=1):
        return self.write_job(token_job(
            optimizer=ADAMW, steps=steps, check_shared=None, metrics="metrics.jsonl",
            save="trained.safetensors", checkpoint={"every": 3, "keep": keep, "to": "checkpoints"}))

    def command(self, hosts, conf, *options):
        program = [self.agent, RUN] if hosts else [RUN]
        return ["env", f"HOSTS={hosts}", "mpirun", "-n", 3, *program, "--stall-limit", 5, "train",
                self.package, self.job(), "--conf", self.path(conf), *options]

    def finished(self):
        lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
        return load_file(self.path("trained.safetensors")), [
            (line["step"], bits(line["losses"])) for line in lines]

    def assert_same(self, reference):
        weights, losses = self.finished()
        self.assert_same_tensors(weights, reference[0])
        self.assertEqual(losses, reference[1])

    def names(self, host):
        return sorted(path.name for path in self.path(host).iterdir())

    def go_back(self, host, kept):
        for path in self.path(host).glob("step-*"):
            shutil.rmtree(path)
        shutil.copytree(kept / host, self.path(host), dirs_exist_ok=True)

    def test_each_host_keeps_the_shards_of_its_ranks(self):
        for conf, hosts in (("row.json", "a b b"), ("replicas.json", "a b b"), ("row.json", "a b a")):
            with self.subTest(conf, hosts=hosts):
                self.setUp()
                self.succeed(call(self.command("", conf)))
                reference = self.finished()
                self.setUp()
                # Up to step 6, and from there to the end.
                first = call([*self.command(hosts, conf), "--steps", 6])
                self.succeed(first)
                self.assertIn("which the hosts do not share: each keeps the shards of its own ranks",
                              first.out)
                for host in "ab":
                    self.assertEqual(self.names(host), ["latest", "step-00000006"])
                whole = json.loads((self.path("a") / "step-00000006/checkpoint.json").read_text())
                self.assertEqual(whole, json.loads(
                    (self.path("b") / "step-00000006/checkpoint.json").read_text()))
                lie = {name: [host for host in "ab"
                              if (self.path(host) / "step-00000006" / name).exists()]
                       for name in whole["files"]}
                self.assertTrue(all(len(where) == 1 for name, where in lie.items()
                                    if name != "model.safetensors.index.json"), lie)
                kept = self.path("kept")
                shutil.rmtree(kept, ignore_errors=True)
                for host in "ab":
                    shutil.copytree(self.path(host), kept / host)
                resumed = self.succeed(call(self.command(hosts, conf, "--resume")))
                self.assertIn("resumed from", resumed.out)
                self.assert_same(reference)
                # A host died before it had the newest checkpoint: all go back to the previous one.
                for host in "ab":
                    self.assertEqual(self.names(host), ["latest", "step-00000008"])
                shutil.copytree(kept / "a/step-00000006", self.path("a") / "step-00000006")
                self.go_back("b", kept)
                resumed = self.succeed(call(self.command(hosts, conf, "--resume")))
                self.assertRegex(resumed.out, "the checkpoint of step 8 is not complete")
                self.assertIn("step-00000006", resumed.out)
                self.assert_same(reference)
                # On other hosts, the run is refused with a list of files to copy, and resumes once
                # they are there.
                self.go_back("a", kept)
                elsewhere = self.command("", conf, "--resume")
                shutil.rmtree(self.path("checkpoints"))
                shutil.copytree(kept / "a", self.path("checkpoints"))
                refused = call(elsewhere)
                self.assertEqual(refused.code, 1, refused.out)
                self.assertIn("copy them here first", refused.out)
                self.assertRegex(refused.out, r"module2\.safetensors, which host \S+ \(rank 1\) has"
                                 if hosts != "a b a" else r"module1\.safetensors, which host")
                self.assert_fails(pipewright("weights", "merge", self.path("checkpoints"), "-o",
                                             self.path("merged.safetensors")), "copy it here from there")
                for path in (kept / "b/step-00000006").iterdir():
                    if path.suffix == ".safetensors":
                        shutil.copy(path, self.path("checkpoints") / "step-00000006")
                self.succeed(call(elsewhere))
                self.assert_same(reference)
                self.succeed(pipewright("weights", "merge", self.path("checkpoints"), "-o",
                                        self.path("merged.safetensors")))
                self.assert_same_tensors(load_file(self.path("merged.safetensors")), reference[0])

    def test_a_second_run_is_refused_on_each_host(self):
        running = Running([*self.command("a b b", "row.json"), "--steps", 1000000],
                          self.path("output.txt"))
        self.addCleanup(running.wait, 0)
        self.until(running, lambda: (self.path("b") / "latest").exists())
        result = call([*self.command("b a a", "row.json"), "--metrics", self.path("other.jsonl"),
                       "--save", self.path("other.safetensors")])
        self.assertEqual(result.code, 1, result.out)
        self.assertIn("another run writes its checkpoints there", result.out)
        self.assertIsNone(running.process.poll())


if __name__ == "__main__":
    unittest.main()
