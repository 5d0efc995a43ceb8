"""A traced and a scripted model, whose files record no sizes, trained on several ranks."""
import unittest

from safetensors.torch import load_file, save_file

from support import LENGTH, SGD, Case, gpt, pipewright, run_ranks, token_job, torch


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

    def test_a_size_that_the_trace_burned_in(self):
        class Burned(torch.nn.Module):
            def forward(self, x):
                return x.view(4, 2) + 1

        torch.jit.trace(Burned(), torch.ones(2, 4)).save(str(self.path("burned.pt")))
        package = self.compile("burned.pt", "burned.pkg")
        save_file({"x": torch.ones(3, 4)}, self.path("x.safetensors"))
        result = run_ranks(1, "infer", package, "--input", self.path("x.safetensors"), "-o",
                           self.path("y.safetensors"), mpi=False)
        self.assert_fails(result, r"fails on made-up numbers of the sizes x \[3, 4\]", r"\[4, 2\]",
                          "tracing burned in")

    def test_a_burned_size_that_mixes_samples(self):
        class Mixing(torch.nn.Module):
            def forward(self, x):
                rest = x.view(x.size(0), x.size(1) // 2, -1)  # computes a size with a constant
                return x.view(int(x.size(0)), -1).sum(1) + rest.sum()

        torch.jit.trace(Mixing(), torch.ones(4, 2, 4)).save(str(self.path("mix.pt")))
        package = self.compile("mix.pt", "mix.pkg")
        for rows, warned in ((4, False), (2, True)):
            save_file({"x": torch.ones(rows, 2, 4)}, self.path("x.safetensors"))
            result = run_ranks(1, "infer", package, "--input", self.path("x.safetensors"), "-o",
                               self.path("y.safetensors"), mpi=False)
            self.assertEqual(result.code, 0, result.out)
            self.assertEqual("view to [4, -1] mixes the 2 samples" in result.out, warned, result.out)

    def test_a_size_that_depends_on_the_data(self):
        class Chosen(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

            def forward(self, x):
                y = self.a(x)
                return self.b(y[y.sum(1) > 0]) + x.mean()

        torch.manual_seed(0)
        model = Chosen()
        torch.jit.script(model).save(str(self.path("chosen.pt")))
        package = self.compile("chosen.pt", "chosen.pkg", "--split", "modules:b")
        x = torch.randn(8, 4)
        save_file({"x": x}, self.path("x.safetensors"))
        arguments = ("infer", package, "--input", self.path("x.safetensors"), "-o",
                     self.path("y.safetensors"))
        self.assert_fails(run_ranks(2, *arguments, mpi=False), "depend on the data, it cannot be sent")
        conf = self.path("one.json")
        self.succeed(pipewright("conf", package, "--ranks", 1, "-o", conf))
        self.succeed(run_ranks(1, *arguments, "--conf", conf, mpi=False))
        (found,) = load_file(self.path("y.safetensors")).values()
        self.assertTrue(torch.equal(found, model(x)))


if __name__ == "__main__":
    unittest.main()
