"""A traced and a scripted model, whose files record no sizes, trained on several ranks."""
import unittest

from support import LENGTH, SGD, Case, gpt, token_job, torch


class TorchScript(Case):
    def test_traced_model_trains_as_in_one_process(self):
        example = torch.randint(256, (2, LENGTH))
        model = gpt(tied=False, layers=3)
        torch.jit.trace(model, example, check_trace=False).save(str(self.path("gpt.pt")))
        package = self.compile("gpt.pt", "gpt.pkg", "--split", "modules:blocks.1,blocks.2")
        job = token_job(steps=4, optimizer=SGD)
        ours = self.train(package, job, 3, mpi=False)
        theirs = self.train_pytorch(gpt(tied=False, layers=3), job)
        # TorchScript keeps no record of which buffers are left out of the state dict.
        ours.weights.pop("positions")
        self.assert_same_run(ours, theirs)


if __name__ == "__main__":
    unittest.main()
