"""Ranks on the test device (tests/device) compute the bits of ranks on the CPU: the tests of other
features, with all ranks on devices. With PIPEWRIGHT_LONG, all tests of those files."""
import os
import unittest

import on_device

on_device.use_for_all_runs()

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
    "order", "checkpoint", "resume", "layout", "untrained", "digits")]


def load_tests(loader, tests, _pattern):
    names = LONG if os.environ.get("PIPEWRIGHT_LONG") else SHORT
    tests.addTests(loader.loadTestsFromNames(names))
    return tests


if __name__ == "__main__":
    unittest.main(verbosity=2)
