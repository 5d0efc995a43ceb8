"""Hangs and failures of the fake NCCL (tests/fake_nccl) in every kind of run: the watchdog hears of each wait
for a device, and errors are NCCL's, soon, and not of the values that a failed transfer leaves behind."""
import unittest

from on_device import FAKE_NCCL, LIBRARY

import torch
from safetensors.torch import save_file

import support

# The first operation of a communicator is its test at the start.
HANGS = {"FAKE_NCCL_DELAY_US": "240000000", "FAKE_NCCL_DELAY_FROM": "2"}
FAILS = {"FAKE_NCCL_FAIL_CODE": "6", "FAKE_NCCL_FAIL_RANK": "1"}


class NcclFailures(support.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # On the test device, the host waits in attention, as in a model that reads a value.
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 32), torch.nn.Tanh(),
                                    torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 256))
        support.export_gpt(model, cls.folder / "model.pt2")
        cls.package = cls.compile("model.pt2", "model.pkg", "--split", "equal:3", "--ranks", "3")

    def run_on_devices(self, command, *options, environment):
        return support.call(
            ["mpirun", "-n", 3, support.RUN, "--stall-limit", "3", *command, "--device", "auto", "--links", "nccl",
             *options],
            environment={"LD_PRELOAD": str(LIBRARY), "SIM_DEVICES": "3",
                         "PIPEWRIGHT_NCCL": FAKE_NCCL, **environment})

    def training(self, **changes):
        return ["train", self.package, self.write_job(support.token_job(steps=6, check_shared=None, **changes))]

    def evaluation(self):
        return ["eval", self.package, self.write_job(support.token_job(microbatches=8)), "--steps", 4]

    def inference(self):
        tokens = torch.randint(256, (12, support.LENGTH))
        save_file({"input": tokens}, self.path("in.safetensors"))
        return ["infer", self.package, "--input", self.path("in.safetensors"), "-o", self.path("out.safetensors"),
                "--microbatches", 12]

    def commands(self):
        """Yields names and commands, each of which has the job's file to itself until the next."""
        yield "train", self.training()
        yield "without losses", self.training(nan="ignore")
        yield "pipedream", self.training(schedule="pipedream")
        yield "pipedream without losses", self.training(schedule="pipedream", nan="ignore")
        yield "eval", self.evaluation()
        yield "infer", self.inference()
        yield "generate", ["generate", self.package, "--prompt", "a" * support.LENGTH, "--prompt", "b", "--prompt", "c",
                           "--max-new-tokens", 4]

    def test_they_run(self):
        for name, command in self.commands():
            with self.subTest(name):
                self.succeed(self.run_on_devices(command, environment={}))

    def test_the_watchdog_hears_of_every_wait_for_a_device(self):
        for name, command in self.commands():
            with self.subTest(name):
                self.assert_fails(self.run_on_devices(command, environment=HANGS),
                                  "no rank has come further for [0-9]+ s: every rank waits for another",
                                  "waiting for its device")

    def test_values_of_failed_transfers_are_no_losses(self):
        """Memory that nothing has arrived in holds NaN."""
        for name, command in self.commands():
            with self.subTest(name):
                result = self.run_on_devices(command, environment={**FAILS, "FAKE_NCCL_FAIL_AT": "3"})
                self.assert_fails(result, "NCCL [0-9.]+ failed with result 6")
                self.assertNotRegex(result.out, r"\bnan\b")

    def test_nccl_does_not_start(self):
        result = self.run_on_devices(self.training(), environment={**FAILS, "FAKE_NCCL_FAIL_AT": "1"})
        self.assert_fails(result, r"rank \d on sim:\d, the link from rank \d to rank \d: .*NCCL [0-9.]+ failed with "
                          "result 6", "NCCL_DEBUG=INFO", "/dev/shm", "NCCL_SOCKET_IFNAME", "--links mpi")

    def test_an_error_is_shown_before_nccl_has_ended(self):
        """CommAbort may wait for a device that computes."""
        result = self.run_on_devices(self.training(), environment={**FAILS, "FAKE_NCCL_FAIL_AT": "3",
                                                                   "FAKE_NCCL_ABORT_S": "1000"})
        self.assert_fails(result, "NCCL [0-9.]+ failed with result 6")


if __name__ == "__main__":
    unittest.main(verbosity=2)
