"""Ranks on the test device (tests/device) compute the bits of ranks on the CPU: the tests of other
features, with all ranks on devices. With PIPEWRIGHT_LONG, all tests of those files."""
import os
import pathlib
import sys
import unittest

BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
LIBRARY = BUILD / "tests/libsim.so"
if not LIBRARY.exists():
    print("SKIPPED: no test device (sanitizers do not support it)")
    sys.exit(77)
os.environ["PIPEWRIGHT_TEST_DEVICE"] = str(LIBRARY)

import support

# Tests of each feature. They compare with PyTorch, or with runs of other ranks.
SHORT = [
    "equality_test.Equality.test_tied_weights_on_1_2_3_and_5_ranks",
    "equality_test.Equality.test_untied_adamw_is_pytorchs_to_the_bit",
    "recompute_test.Recompute.test_same_bits",
    "replica_test.Replicas.test_4_3_1",
    "replica_test.Buffers",
    "buffers_test.Buffers.test_each_microbatch_returns_its_own",
    "schedule_test.Schedules",
    "asynchronous_test.Asynchronous.test_two_versions",
    "optimizer_test.Optimizers.test_muon",
    "optimizer_test.Optimizers.test_clipping_agrees_on_every_rank",
    "optimizer_test.Optimizers.test_complex_parameters",
    "optimizer_test.Optimizers.test_loss_scaling_skips_a_step_on_every_rank",
    "losses_test.Losses.test_sums_of_losses_over_uneven_parts",
    "offload_test.Offload.test_inference_from_disk",
    "offload_test.Offload.test_training_with_frozen_weights_on_disk",
    "forward_test.Forward.test_nested_inputs_and_outputs",
    "forward_test.Forward.test_dropout_does_not_depend_on_ranks",
    "validation_test",
    "checkpoint_test.Checkpoints.test_resumes_to_the_same_bits_on_any_ranks_and_schedule",
]
LONG = [f"{name}_test" for name in (
    "equality", "recompute", "replica", "buffers", "schedule", "asynchronous", "optimizer", "losses",
    "gradient", "offload", "forward", "experts", "validation", "torchscript", "no_grad", "finite",
    "order", "checkpoint", "resume", "layout", "untrained", "digits", "weights")]


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

    def conf(self, ranks, **devices):
        path = self.path("conf.json")
        self.succeed(support.pipewright("conf", self.package, "--ranks", ranks, "-o", path))
        return path

    def test_the_start_names_each_ranks_device(self):
        result = self.succeed(self.run_train("--device", "auto"))
        self.assertIn("note: rank 0 on sim:0, rank 1 on sim:1\n", result.out)
        self.assertIn("stage 0: modules 0-1 on sim:0\n", result.out)
        self.assertIn("stage 1: modules 2-3 on sim:1\n", result.out)

    def test_without_a_wish_it_stays_on_the_cpu_and_says_so(self):
        result = self.succeed(self.run_train())
        self.assertIn("note: this host has 2 sim devices, and the run stays on the CPU: --device auto uses them\n",
                      result.out)
        self.assertNotIn(" on sim", result.out)

    def test_more_ranks_than_devices_are_refused(self):
        self.assert_fails(self.run_train("--device", "sim", ranks=4),
                          "--device: 4 ranks of this host would share 2 sim devices")

    def test_what_runs_on_the_cpu_only_is_refused(self):
        self.assert_fails(self.run_train("--device", "sim", body="lists"),
                          'body: "lists" runs on the CPU only, and rank 0 computes on sim:0')
        self.assert_fails(self.run_train("--device", "sim", matmul="onednn"),
                          'matmul: "onednn" runs on the CPU only, and rank 0 computes on sim:0')


def load_tests(loader, tests, _pattern):
    names = LONG if os.environ.get("PIPEWRIGHT_LONG") else SHORT
    tests.addTests(loader.loadTestsFromNames(names))
    return tests


if __name__ == "__main__":
    unittest.main()
