"""Sizes that a run finds by running modules: code that fails on zeros is tried with other numbers."""
import unittest

from safetensors.torch import load_file, save_file

from support import SGD, Case, export, pipewright, run_ranks, torch


class Solve(torch.nn.Module):
    """Inverts a matrix that it computes, one of its weights, and one of its inputs."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.matrix = torch.nn.Parameter(torch.eye(4) + 0.1 * torch.rand(4, 4))

    def forward(self, x):
        y = torch.linalg.inv(self.matrix) @ self.linear(x)
        return torch.linalg.inv(y) + torch.linalg.cholesky(x @ x.mT + torch.eye(4))


def well_posed(count):
    torch.manual_seed(3)
    return torch.eye(4) + 0.1 * torch.rand(count, 4, 4)


class Trial(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(1)
        cls.model = Solve()
        torch.jit.script(cls.model).save(str(cls.folder / "solve.pt"))
        export(cls.model, well_posed(2), cls.folder / "solve.pt2")
        x = well_posed(8)
        save_file({"x": x, "y": torch.ones(8, 4, 4)}, cls.folder / "data.safetensors")

    def infer(self, package, ranks=1):
        return run_ranks(ranks, "infer", package, "--input", self.path("data.safetensors"), "-o",
                         self.path("out.safetensors"), mpi=False)

    def edit(self, package, before, after):
        for code in sorted((package / "modules").glob("*.py")):
            if before in code.read_text():
                code.write_text(code.read_text().replace(before, after, 1))
                return
        self.fail(f"{before} in no module")

    def test_a_page_at_the_end(self):
        package = self.compile("solve.pt2", "page.pkg", "--split", "equal:2")
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "microbatches": 2, "microbatch_size": 2, "steps": 2,
               "metrics": "metrics.jsonl", "report": "page.html"}
        page, other = self.path("page.html"), self.path("other.html")
        result = self.succeed(run_ranks(2, "train", package, self.write_job(job), mpi=False))
        self.assertRegex(result.out, r"page\.html: .* opens in any browser")
        self.assertIn("metrics.jsonl", page.read_text())
        page.write_text("my own page")
        result = run_ranks(2, "train", package, self.path("job.json"), mpi=False)
        self.assert_fails(result, r"page\.html: already exists, and is not a page")
        self.assertEqual(page.read_text(), "my own page")
        result = pipewright("check", package, "--job", self.path("job.json"))
        self.assertIn("already exists, and is not a page", result.out)
        self.path("metrics.jsonl").unlink()  # bench writes none
        self.succeed(run_ranks(2, "bench", package, self.path("job.json"), "--steps", 2, "--trace",
                               self.path("trace.json"), "--report", other, mpi=False))
        self.assertIn("trace.json", other.read_text())
        page.unlink()
        self.succeed(run_ranks(2, "train", package, self.path("job.json"), "--metrics", "/dev/null",
                               mpi=False))
        self.assertTrue(page.exists())

    def test_matrices_that_have_to_be_inverted(self):
        package = self.compile("solve.pt", "solve.pkg", "--split", "equal:2")
        job = {"data": {"tensors": "data.safetensors", "inputs": {"x": "x"}, "target": "y"},
               "loss": "mse", "optimizer": SGD, "microbatches": 2, "microbatch_size": 2, "steps": 2}
        for command in (("train", package, self.write_job(job)),
                        ("bench", package, self.write_job(job), "--steps", 1)):
            self.succeed(run_ranks(2, *command, mpi=False))
        self.succeed(self.infer(package, 2))
        out = list(load_file(self.path("out.safetensors")).values())[0]
        expected = self.model(load_file(self.path("data.safetensors"))["x"])
        self.assertTrue(torch.allclose(out, expected, atol=1e-4), (out - expected).abs().max())

    def test_edited_code_behind_code_that_is_not(self):
        package = self.compile("solve.pt2", "edited.pkg", "--split", "equal:3", "--ranks",
                               "1")
        self.edit(package, "def forward", "# edited\n  def forward")
        code = sorted((package / "modules").glob("*.py"))[-1]
        code.write_text(code.read_text() + "# edited\n")
        self.succeed(self.infer(package))

    def test_values_that_only_a_person_knows(self):
        package = self.compile("solve.pt", "picky.pkg")
        self.edit(package, "    return",
                  "    if bool(torch.lt(torch.max(x), 1.5)):\n      raise AssertionError(\"too small\")\n"
                  "    return")
        data = load_file(self.path("data.safetensors"))
        save_file({"x": data["x"] + torch.eye(4)}, self.path("large.safetensors"))
        run = ("infer", package, "--input", self.path("large.safetensors"), "-o",
               self.path("out.safetensors"))
        result = run_ranks(1, *run, mpi=False)
        self.assert_fails(result, r"modules/module0\.py: fails on made-up numbers of the sizes x \[8",
                          "too small", r"picky\.pkg/samples\.safetensors, a tensor for each input "
                                       r"\(x\)")
        save_file({"x": data["x"][:3] + torch.eye(4)}, package / "samples.safetensors")
        self.succeed(run_ranks(1, *run, mpi=False))
        # The samples are the user's: a package that is compiled again keeps them.
        self.succeed(pipewright("compile", self.path("solve.pt"), "-o", package, "--force"))
        self.assertTrue((package / "samples.safetensors").exists())
        (package / "samples.safetensors").unlink()
        (package / "samples.safetensors").mkdir()
        result = pipewright("compile", self.path("solve.pt"), "-o", package, "--force")
        self.assert_fails(result, r"picky\.pkg/samples\.safetensors: cannot be kept")
        (package / "samples.safetensors").rmdir()
        save_file({"x": data["x"]}, package / "samples.safetensors")
        self.edit(package, "    return", "    raise AssertionError(\"never\")\n    return")
        self.assert_fails(self.infer(package), r"fails on the samples in .*picky\.pkg/samples",
                          "never")


if __name__ == "__main__":
    unittest.main()
