"""What only runs on devices show, on the test device (tests/device): the choice of devices, its errors, waits, and
values over the fake NCCL (tests/fake_nccl). device_equality_test.py compares with ranks on the CPU."""
import json
import os
import re
import shutil
import unittest

import on_device
from on_device import FAKE_NCCL, LIBRARY

on_device.use_for_all_runs()

import support


class Devices(support.Case):
    """What only runs with devices show."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        support.export_gpt(support.gpt(), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--split", "equal:4")

    def run_train(self, *options, ranks=2, **job):
        job = self.write_job(support.token_job(steps=3, **job))
        return support.call(["mpirun", "-n", ranks, support.RUN, "train", self.package, job,
                             "--conf", self.conf(ranks), *options],
                            environment={"LD_PRELOAD": str(LIBRARY)})

    def conf(self, ranks):
        path = self.path("conf.json")
        self.succeed(support.pipewright("conf", self.package, "--ranks", ranks, "-o", path))
        return path

    def test_the_start_names_each_ranks_device(self):
        result = self.succeed(self.run_train("--device", "auto"))
        self.assertIn("note: rank 0 on sim:0, rank 1 on sim:1\n", result.out)
        self.assertIn("stage 0: modules 0-1 on sim:0\n", result.out)
        self.assertIn("stage 1: modules 2-3 on sim:1\n", result.out)

    def test_a_launcher_may_show_each_rank_its_own_device(self):
        job, conf = self.write_job(support.token_job(steps=3)), self.conf(2)
        command = ["mpirun"]
        for rank in range(2):
            command += [":"] * (rank > 0) + ["-n", 1, "-x", f"CUDA_VISIBLE_DEVICES={rank}", support.RUN, "train",
                                             self.package, job, "--conf", conf, "--device", "auto"]
        result = self.succeed(support.call(command, environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "1"}))
        self.assertIn("note: ranks 0, 1 on sim:0\n", result.out)

    def on_devices_of_their_own(self, *options, ids):
        """Two ranks that both see one device as number 0, as under cgroups."""
        job, conf = self.write_job(support.token_job(steps=3)), self.conf(2)
        command = ["mpirun"]
        for rank in range(2):
            command += [":"] * (rank > 0) + ["-n", 1, "-x", f"SIM_BUS_IDS={ids[rank]}", support.RUN, "train",
                                             self.package, job, "--conf", conf, "--device", "auto", *options]
        return support.call(command, environment={
            "LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0",
            "PIPEWRIGHT_NCCL": FAKE_NCCL})

    def test_bus_ids_tell_devices_apart(self):
        apart = self.succeed(self.on_devices_of_their_own("--links", "nccl", ids=("0000:01:00.0", "0000:41:00.0")))
        self.assertIn("connects the devices", apart.out)
        one = ("0000:01:00.0", "0000:01:00.0")
        self.assert_fails(self.on_devices_of_their_own(ids=one), "2 ranks of this host would share 1 sim device")
        shared = self.succeed(self.on_devices_of_their_own("--share-devices", "--links", "nccl", ids=one))
        self.assertNotIn("connects the devices", shared.out)
        self.assertIn("note: --links nccl has no effect: no two ranks", shared.out)

    def test_a_rank_without_a_device_is_named(self):
        job, conf = self.write_job(support.token_job(steps=3)), self.conf(2)
        command = ["mpirun"]
        for rank in range(2):
            command += [":"] * (rank > 0) + ["-n", 1, "-x", f"SIM_DEVICES={1 - rank}", support.RUN, "train",
                                             self.package, job, "--conf", conf, "--device", "auto"]
        result = support.call(command, environment={"LD_PRELOAD": str(LIBRARY)})
        self.assertIn("warning: no accelerator was found for rank 1, which stays on the CPU: --device sim makes this "
                      "an error\n", result.out)

    def test_through_host_memory_and_beside_the_cpu(self):
        support.export_gpt(support.gpt(tied=False), self.path("untied.pt2"))
        package = self.compile("untied.pt2", "untied.pkg", "--split", "equal:4")
        job = support.token_job(steps=4, optimizer={**support.ADAMW, "clip_norm": 0.1})
        runs = []
        for devices in (("cpu", "cpu", "cpu"), ("sim:0", "sim:1", "cpu")):
            conf = json.loads(self.conf(3).read_text())
            conf["rank_to_device_map"] = {str(rank): device for rank, device in enumerate(devices)}
            self.path("devices.json").write_text(json.dumps(conf))
            self.succeed(support.call(
                ["mpirun", "-n", 3, support.RUN, "train", package, self.write_job(job), "--conf",
                 self.path("devices.json"), "--links", "mpi", "--save", self.path("trained.safetensors")],
                environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "3"}))
            runs.append(support.load_file(self.path("trained.safetensors")))
        self.assert_same_tensors(runs[1], runs[0])

    def test_a_checkpoint_of_devices_resumes_on_the_cpu_and_back(self):
        job = support.token_job(steps=6, optimizer=support.ADAMW, checkpoint={"to": "kept", "every": 2})
        def run(steps, *options):
            self.succeed(support.call(
                ["mpirun", "-n", 2, support.RUN, "train", self.package, self.write_job(job), "--conf",
                 self.conf(2), "--steps", steps, "--save", self.path("trained.safetensors"), *options],
                environment={"LD_PRELOAD": str(LIBRARY)}))
            return support.load_file(self.path("trained.safetensors"))

        whole = run(6)
        for step in (4, 6):
            shutil.rmtree(self.path("kept") / f"step-{step:08}")
        (self.path("kept") / "latest").write_text("step-00000002\n")
        run(4, "--device", "sim", "--resume")
        self.assert_same_tensors(run(6, "--device", "cpu", "--resume"), whole)

    def test_without_a_wish_it_stays_on_the_cpu_and_says_so(self):
        result = self.succeed(self.run_train())
        self.assertIn("note: this host has 2 sim devices, and the run stays on the CPU: --device auto uses them\n",
                      result.out)
        self.assertNotIn(" on sim", result.out)

    def test_more_ranks_than_devices_are_refused(self):
        self.assert_fails(self.run_train("--device", "sim", ranks=4),
                          "--device: 4 ranks of this host would share 2 sim devices")

    def out_of_memory(self, limit, *options, **job):
        """Runs with this many bytes on each device. Returns the error's lines after "pipewright-run: "."""
        job = self.write_job(support.token_job(steps=3, **job))
        result = support.call(["mpirun", "-n", 2, support.RUN, "train", self.package, job, "--conf", self.conf(2),
                               "--device", "sim", *options],
                              environment={"LD_PRELOAD": str(LIBRARY), "SIM_MEMORY": str(limit)})
        self.assertNotEqual(result.code, 0)
        return result.out

    def test_no_memory_left_says_where_and_what_was_predicted(self):
        sizes = [sum(t.nbytes for t in support.load_file(file).values())
                 for file in sorted((self.package / "weights").glob("*.safetensors"))]
        weights = [sizes[0] + sizes[1], sizes[2] + sizes[3]]
        kept = r"this rank was predicted to keep [^(]+ there \(weights (.+?), gradients (.+?), optimizer state (.+?)\), "
        # Weights do not fit.
        said = self.out_of_memory(min(weights) // 2, optimizer=support.SGD)
        self.assertRegex(said, r"loading on rank \d: .*out of memory[^\0]*\n +module\d on sim:\d: " + kept)
        self.assertIn("\n  start more ranks, or leave frozen weights", said)
        self.assertNotIn("microbatch_size", said)
        # Weights fit, and gradients and activations do not.
        said = self.out_of_memory(max(weights) + 100_000, optimizer=support.ADAMW)
        self.assertRegex(said, r"step 1, rank \d, stage \d, microbatch \d, action \d[FB]\d: [^\0]*sim out of memory\. "
                         r"Tried to allocate \d+ bytes\. Device \d has a total capacity of \d+ bytes")
        self.assertNotIn("change that line", said)
        self.assertRegex(said, r"\n +module\d on sim:\d: " + kept + r"besides activations and messages, and has .+ in "
                         r"use, with [1-9] microbatch(es)? between forward and backward\n +take a smaller "
                         r"\"microbatch_size\"")

    def measured(self, program, *command, ranks=2, **environment):
        return self.succeed(support.call(
            ["mpirun", "-n", ranks, program, *command],
            environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "2",
                         "PIPEWRIGHT_NCCL": FAKE_NCCL, **environment})).out

    def test_profile_measures_on_devices(self):
        """The times are the device's: each task takes at least its delay, on the device only."""
        def profile(*options, **environment):
            out = self.measured(support.BUILD / "pipewright", "profile", self.package, "--conf", self.conf(2),
                                "--repeat", 1, "--warmup", 1, "-o", self.path("profile.json"), *options, **environment)
            return out, json.loads(self.path("profile.json").read_text())
        out, on_cpu = profile()
        self.assertNotIn("sim", out)
        out, fast = profile("--device", "auto", "--links", "nccl")
        self.assertIn("note: rank 0 on sim:0, rank 1 on sim:1\n", out)
        _, slow = profile("--device", "sim", "--links", "mpi", SIM_DELAY_US="500")
        for a, b, c in zip(on_cpu["nodes"], fast["nodes"], slow["nodes"]):
            for key in ("forward", "backward", "weight_gradient"):
                self.assertGreater(b[key]["median"], 0)
                # Dozens of tasks, each of which waits for a quarter of a millisecond on average.
                self.assertGreater(c[key]["median"], 0.0015, (c["name"], key))
            # Sizes are counted on the device, where memory is in blocks of 512 bytes.
            self.assertEqual(a["parameter_bytes"], b["parameter_bytes"])
            self.assertLessEqual(a["kept_bytes"], b["kept_bytes"])
            self.assertLess(b["kept_bytes"], 1.5 * a["kept_bytes"] + 20 * 512)
            self.assertLessEqual(a["peak_bytes"], b["peak_bytes"])
            self.assertEqual(b["body"], "autograd")
        self.assertEqual(len(fast["links"]), 2)
        for link in fast["links"] + slow["links"]:
            self.assertGreater(link["bytes_per_second"], 0)
        self.assertGreater(slow["links"][0]["latency"], fast["links"][0]["latency"])

    def test_traces_have_the_times_of_devices(self):
        trace = self.path("trace.json")
        job = self.write_job(support.token_job(steps=3, schedule="1f1b"))
        self.measured(support.RUN, "train", self.package, job, "--conf", self.conf(2), "--device", "auto", "--links", "nccl",
                      "--trace", trace, SIM_DELAY_US="500")
        computes = [event for event in json.loads(trace.read_text())["traceEvents"]
                    if re.fullmatch(r"\d+[FBIW]\d+", event["name"])]
        self.assertGreaterEqual(len(computes), 16)
        for event in computes:
            self.assertGreater(event["dur"], 1500, event)  # microseconds of the device; the host only launches

    def test_bench_measures_on_devices(self):
        job = self.write_job(support.token_job(schedule="1f1b", check_shared=None,
                                               optimizer={"type": "sgd", "lr": 0.1}))
        bench = ["bench", self.package, job, "--conf", self.conf(2), "--device", "auto"]
        self.measured(support.RUN, *bench, "--links", "nccl", "--steps", 1, "--warmup", 1, "--costs",
                      self.path("costs.json"))
        costs = json.loads(self.path("costs.json").read_text())
        for stage in costs["stages"]:
            self.assertGreater(stage["F"], 0)
            self.assertGreater(stage["activation"], 0)  # of the device
        self.assertGreater(costs["link"]["bandwidth"], 0)
        replicas = self.path("replicas.json")
        replicas.write_text(json.dumps({"module_to_stage_map": [0, 0, 0, 0], "stage_to_rank_map": {"0": [0, 1]}}))
        self.measured(support.RUN, "bench", self.package, job, "--conf", replicas, "--device", "auto", "--links", "nccl",
                      "--steps", 1, "--warmup", 1)
        out = self.path("answers.txt")
        self.succeed(support.call(
            ["sh", "-c", f"printf 'stages 0.01\\nhalves 0.01\\n' | mpirun -n 2 {support.RUN} "
             f"{' '.join(map(str, bench))} --on-request > {out}"],
            environment={"LD_PRELOAD": str(LIBRARY), "SIM_DELAY_US": "500"}))
        whole, halves = [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")]
        for stage in whole["stages"] + halves["stages"]:
            self.assertGreater(min(stage["F"]), 1500)  # microseconds of the device; the host only launches

    def test_what_runs_on_the_cpu_only_is_refused(self):
        self.assert_fails(self.run_train("--device", "sim", "--set", "body=lists"),
                          'body: "lists" runs on the CPU only, and ranks compute on sim devices')
        self.assert_fails(self.run_train("--device", "sim", matmul="onednn"),
                          'matmul: "onednn" runs on the CPU only, and ranks compute on sim devices')
        self.assert_fails(support.call([support.RUN, "-n", 2, "train", self.package, self.write_job(
            support.token_job(steps=3)), "--tune", "--device", "sim"]), "--device sim: --tune measures on CPUs", code=2)


class Nccl(support.Case):
    """Values over the fake NCCL: deaths, failures and stalls; and delays change no bit."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        support.export_gpt(support.gpt(tied=False), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--split", "equal:3", "--ranks", "3")
        # The test device draws random numbers on the host, which waits for it.
        support.export_gpt(support.gpt(tied=False, dropout=0.0), cls.folder / "still.pt2")
        support.export_gpt(support.gpt(tied=True, dropout=0.0), cls.folder / "tied.pt2")
        cls.still, cls.tied = (cls.compile(f"{name}.pt2", f"{name}.pkg", "--split", "equal:3", "--ranks", "3")
                               for name in ("still", "tied"))

    def run_train(self, *options, **environment):
        job = self.write_job(support.token_job(steps=6, schedule="1f1b"))
        return support.call(
            ["mpirun", "-n", 3, support.RUN, "train", self.package, job, "--device", "auto", "--links", "nccl",
             *options],
            environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "3",
                         "PIPEWRIGHT_NCCL": FAKE_NCCL, **environment})

    def test_late_loading_of_kernels_is_replaced(self):
        out = self.succeed(self.run_train(CUDA_MODULE_LOADING="LAZY")).out
        self.assertIn("note: CUDA_MODULE_LOADING is EAGER in this run, and not LAZY: loading a kernel may have to wait "
                      "for transfers\n", out)

    def test_a_rank_dies(self):
        for entry in (0, 6):
            self.assert_fails(self.run_train(PIPEWRIGHT_FAULTS=f"die=1:2:{entry}:kill"), r"rank 1 on [^ ]+ \(pid \d+\) died of signal 9",
                              code=137)

    def test_a_rank_stops(self):
        self.assert_fails(self.run_train("--stall-limit", "5", PIPEWRIGHT_FAULTS="die=1:2:3:stop"),
                          r"rank 1 on [^ ]+ \(pid \d+\) has been stopped for 5 s, and is ended", code=137)

    def test_a_device_hangs(self):
        result = self.run_train("--stall-limit", "3", FAKE_NCCL_DELAY_US="120000000")
        self.assert_fails(result, "no rank has come further for [0-9]+ s: every rank waits for another",
                          "waiting for its device")

    def test_a_transfer_fails(self):
        result = self.run_train(FAKE_NCCL_FAIL_AT="9", FAKE_NCCL_FAIL_CODE="6", FAKE_NCCL_FAIL_RANK="1")
        self.assert_fails(result, r"step \d, rank \d, stage \d, microbatch \d, action [^ ]+: .*"
                          "NCCL [0-9.]+ failed with result 6")

    def test_without_the_library(self):
        result = self.run_train(PIPEWRIGHT_NCCL="/absent/libnccl.so.2")
        self.assert_fails(result, "/absent/libnccl.so.2: NCCL cannot be loaded", "install a PyTorch wheel for CUDA")

    def test_a_library_that_is_too_old(self):
        self.assert_fails(self.run_train(FAKE_NCCL_VERSION="21700"), "NCCL 2.17.0")

    def waits(self, package, steps, ranks, *options, **changes):
        """Returns how often the hosts wait for their devices, by kind of wait."""
        file = self.path("waits")
        file.unlink(missing_ok=True)
        job = self.write_job(support.token_job(steps=steps, check_shared=False, log_every=100, **changes))
        result = self.succeed(support.call(
            ["mpirun", "-n", ranks, support.RUN, "train", package, job, "--device", "auto", "--links", "nccl",
             *options],
            environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "3", "SIM_WAITS": str(file),
                         "PIPEWRIGHT_NCCL": FAKE_NCCL}))
        if ranks > 1:
            self.assertRegex(result.out, r"note: NCCL [0-9.]+ connects the devices\n")
        counts = {}
        for line in file.read_text().splitlines():
            words = line.split()
            for name, count in zip(words[::2], words[1::2]):
                counts[name] = counts.get(name, 0) + int(count)
        return counts

    def assert_waits_once_a_step(self, package, ranks, *options, **changes):
        """For losses and norms, on an event; and never for the device or a copy."""
        few, many = (self.waits(package, steps, ranks, *options, **changes) for steps in (3, 5))
        self.assertEqual({name: many[name] - few[name] for name in many},
                         {"devices": 0, "streams": 0, "events": 2 * ranks, "copies": 0}, changes)

    def test_the_host_waits_once_a_step(self):
        clipped = {**support.ADAMW, "clip_norm": 0.1}
        conf = self.path("replicas.json")
        conf.write_text(json.dumps({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}}))
        self.assert_waits_once_a_step(self.tied, 3, optimizer=clipped, schedule="zb-h1")
        self.assert_waits_once_a_step(self.still, 3, "--conf", conf, optimizer=clipped)
        self.assert_waits_once_a_step(self.still, 3, "--conf", conf, reduce="exact", accuracy=True)

    def test_weights_on_disk_do_not_stop_the_host(self):
        self.path("map.json").write_text(json.dumps({"": "disk"}))
        self.assert_waits_once_a_step(self.package, 1, "--device-map", self.path("map.json"),
                                      freeze=["embedding.*", "blocks.?.qkv.*", "blocks.?.up.weight"])

    def test_the_watchdog_hears_of_a_wait_without_losses(self):
        """Ranks that keep no numbers wait for their device, too."""
        job = self.write_job(support.token_job(steps=6, nan="ignore"))
        result = support.call(
            ["mpirun", "-n", 3, support.RUN, "train", self.package, job, "--device", "auto", "--links", "nccl",
             "--stall-limit", "3"],
            environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "3", "FAKE_NCCL_DELAY_US": "120000000",
                         "PIPEWRIGHT_NCCL": FAKE_NCCL})
        self.assert_fails(result, "no rank has come further for [0-9]+ s: every rank waits for another")

    def test_copies_of_weights_on_a_device_and_a_cpu_are_refused(self):
        conf = self.path("mixed.json")
        conf.write_text(json.dumps({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]},
                                    "rank_to_device_map": {"0": "sim:0", "1": "cpu", "2": "sim:1"}}))
        job = self.write_job(support.token_job(steps=2, microbatches=4))
        result = support.call(["mpirun", "-n", 3, support.RUN, "train", self.package, job, "--conf", conf],
                              environment={"LD_PRELOAD": str(LIBRARY)})
        self.assert_fails(result, r"stage 0 on rank 0 \(sim:0\) and stage 0 on rank 1 \(cpu\) hold copies of the same "
                          "weights, which would drift apart", r"rank_to_device_map")

    def test_losses_of_overlapping_steps_are_read_in_time(self):
        job = support.token_job(schedule="pipedream", optimizer=support.SGD, steps=6, nan="ignore", check_shared=False)
        library = support.DEVICE_LIBRARY
        on_devices = self.train(self.package, job, 3)
        self.addCleanup(setattr, support, "DEVICE_LIBRARY", library)
        support.DEVICE_LIBRARY = None
        self.assert_same_run(on_devices, self.train(self.package, job, 3))

    def write_conf(self, stages, ranks, **more):
        path = self.path(f"conf{len(list(self.path('.').glob('conf*')))}.json")
        path.write_text(json.dumps({"module_to_stage_map": stages, **more,
                                    "stage_to_rank_map": {str(stage): on for stage, on in enumerate(ranks)}}))
        return path

    def test_exact_sums_have_an_order_of_their_own(self):
        """And others that of NCCL, which the fake one turns round."""
        conf = self.write_conf([0, 0, 1], [[0, 1, 2], [3]])
        for reduce in ("exact", "fast"):
            job = support.token_job(steps=3, microbatches=6, reduce=reduce)
            runs = [self.train(self.package, job, 4, conf=conf, environment={"FAKE_NCCL_REVERSE": turned})
                    for turned in "01"]
            if reduce == "exact":
                self.assert_same_run(*runs)
            else:
                with self.assertRaisesRegex(AssertionError, "differ"):
                    self.assert_same_tensors(runs[0].weights, runs[1].weights)

    def test_delays_change_no_bit(self):
        """Of tasks and of transfers. With PIPEWRIGHT_LONG, in 200 runs."""
        cases = [
            ({"schedule": "zb-h1"}, 3, None),
            ({"freeze": ["embedding.*", "blocks.?.qkv.*", "head.*"], "schedule": "gpipe"}, 2,
             self.write_conf([0, 1, 2], [[0], [1], [0]], offload={"stages": [0, 1, 2]})),
            ({"optimizer": {**support.ADAMW, "clip_norm": 0.1}, "accuracy": True}, 3, None),
            ({"recompute": True, "reduce": "exact"}, 3, self.write_conf([0, 0, 1], [[0], [1, 2]])),
            ({"schedule": "pipedream"}, 3, None),
        ]
        long = bool(os.environ.get("PIPEWRIGHT_LONG"))
        delay = "500" if long else "200"  # microseconds
        for changes, ranks, conf in cases if long else cases[:2]:
            job = support.token_job(steps=4 if long else 3, check_shared=None, **changes)
            first = self.train(self.package, job, ranks, conf=conf)
            for seed in range(40 if long else 1):
                with self.subTest(changes=changes, seed=seed):
                    late = self.train(self.package, job, ranks, conf=conf, environment={
                        "SIM_DELAY_US": delay, "FAKE_NCCL_DELAY_US": delay, "SIM_SEED": str(seed)})
                    self.assert_same_run(late, first)


if __name__ == "__main__":
    unittest.main(verbosity=2)
