"""A traced and a scripted model, whose files record no sizes, trained on several ranks."""
import json
import unittest

from safetensors.torch import load_file, save_file

from support import LENGTH, SGD, Case, gpt, pipewright, run_ranks, token_job, torch


class Block(torch.nn.Module):
    def __init__(self, width=16, wide=64):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, wide), torch.nn.Linear(wide, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(torch.nn.Module):
    """Blocks in a container that is never called."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleDict({f"b{i}": Block() for i in range(8)})

    def forward(self, x):
        for _, block in self.blocks.items():
            x = block(x)
        return x


class Groups(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.groups = torch.nn.ModuleList(
            [torch.nn.ModuleList([Block(), Block()]) for _ in range(4)])

    def forward(self, x):
        for group in self.groups:
            for block in group:
                x = block(x)
        return x


class Called(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(*[Block() for _ in range(8)])

    def forward(self, x):
        return self.net(x)


class Cuts(Case):
    """Cuts of models whose files record no sizes."""

    def save(self, model, how, x):
        file = f"{how}.pt"
        made = torch.jit.script(model) if how == "scripted" else torch.jit.trace(model, x)
        made.save(str(self.path(file)))
        return file

    def check(self, file, model, *options):
        """Returns the modules' submodules; checks that outputs are PyTorch's, also for other sizes."""
        package = self.compile(file, "cut.pkg", *options)
        manifest = json.loads((package / "manifest.json").read_text())
        x = torch.randn(6, 16)
        save_file({"x": x}, self.path("x.safetensors"))
        self.succeed(run_ranks(len(manifest["modules"]), "infer", package, "--input",
                               self.path("x.safetensors"), "-o", self.path("y.safetensors"),
                               mpi=False))
        (found,) = load_file(self.path("y.safetensors")).values()
        self.assertTrue(torch.equal(found, model(x)), (file, options))
        return [module["covers"] for module in manifest["modules"]]

    def test_cut_by_measured_time(self):
        torch.manual_seed(0)
        x = torch.randn(64, 16)
        save_file({"x": x}, self.path("sample.safetensors"))
        for how in ("scripted", "traced"):
            # The last block computes as much as all the others together.
            model = Stack(torch.nn.ModuleList([Block() for _ in range(4)] + [Block(wide=4096)]))
            file = self.save(model, how, x)
            self.assert_fails(
                pipewright("compile", self.path(file), "-o", self.path("cut.pkg"), "--split",
                           "profile:2"),
                'does not record the sizes of input "x"', "  give a safetensors file .*--input")
            covers = self.check(file, model, "--split", "profile:2", "--repeat", "3", "--input",
                                self.path("sample.safetensors"))
            self.assertEqual(len(covers), 2)
            self.assertTrue(all(name.startswith("blocks.4") for name in covers[1]), covers)
        self.assertEqual([p.name for p in self.folder.iterdir() if ".pieces" in p.name], [])

    def test_inputs_that_do_not_fit(self):
        save_file({"y": torch.ones(2, 16)}, self.path("other.safetensors"))
        file = self.save(Stack(torch.nn.ModuleList([Block(), Block()])), "scripted", None)
        compile_ = ("compile", self.path(file), "-o", self.path("cut.pkg"), "--split")
        self.assert_fails(pipewright(*compile_, "profile:2", "--input",
                                     self.path("other.safetensors")), 'no tensor "x"')
        self.assert_fails(pipewright(*compile_, "profile:2", "--input", self.path("none")), "none")
        self.assert_fails(pipewright(*compile_, "equal:2", "--input",
                                     self.path("other.safetensors")), "--split profile:N", code=2)

    def test_between_the_children_of_containers(self):
        torch.manual_seed(0)
        x = torch.randn(4, 16)
        save_file({"x": x}, self.path("sample.safetensors"))
        measured = ("--split", "profile:4", "--repeat", "1", "--input",
                    self.path("sample.safetensors"))
        for model, name in ((Stack(torch.nn.ModuleList([Block() for _ in range(8)])), "blocks.{}"),
                            (Named(), "blocks.b{}"), (Groups(), "groups.{}"), (Called(), "net.{}")):
            third = name.format(3)
            for how in ("scripted", "traced"):
                with self.subTest(name, how=how):
                    file = self.save(model, how, x)
                    covers = self.check(file, model, "--split", "equal:4")
                    self.assertEqual(len(covers), 4)
                    self.assertFalse(set(covers[0]) & set(covers[3]))
                    self.assertEqual(len(self.check(file, model, *measured)), 4)
                    covers = self.check(file, model, "--split", "modules:" + third)
                    self.assertTrue(covers[1][0].startswith(third), covers)
                    self.assertFalse(any(c.startswith(third) for c in covers[0]), covers)
                    self.assertGreaterEqual(
                        len(self.check(file, model, "--split", "children:" + name[:-3].rstrip("."))),
                        4)


class TorchScript(Case):
    def test_traced_model_trains_as_in_one_process(self):
        example = torch.randint(256, (2, LENGTH))
        model = gpt(tied=False, layers=3)
        torch.jit.trace(model, example, check_trace=False).save(str(self.path("gpt.pt")))
        package = self.compile("gpt.pt", "gpt.pkg", "--split", "modules:blocks.1,blocks.2")
        job = token_job(steps=4, optimizer=SGD)
        ours = self.train(package, job, 3, mpi=False)
        theirs = self.train_pytorch(gpt(tied=False, layers=3), job)
        # TorchScript does not record which buffers are not in the state dict.
        ours.weights.pop("positions")
        self.assert_same_run(ours, theirs)

    def test_a_size_that_the_trace_recorded(self):
        class Burned(torch.nn.Module):
            def forward(self, x):
                return x.view(4, 2) + 1

        torch.jit.trace(Burned(), torch.ones(2, 4)).save(str(self.path("burned.pt")))
        package = self.compile("burned.pt", "burned.pkg")
        save_file({"x": torch.ones(3, 4)}, self.path("x.safetensors"))
        result = run_ranks(1, "infer", package, "--input", self.path("x.safetensors"), "-o",
                           self.path("y.safetensors"), mpi=False)
        self.assert_fails(result, r"fails on made-up numbers of the sizes x \[3, 4\]", r"\[4, 2\]",
                          "tracing recorded as a constant")

    def test_a_traced_size_that_mixes_samples(self):
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

    def test_a_model_where_weights_are_expected(self):
        model = torch.nn.Linear(4, 2)
        torch.jit.script(model).save(str(self.path("linear.pt")))
        package = self.compile("linear.pt", "linear.pkg")
        torch.export.save(torch.export.export(model, (torch.ones(2, 4),)), self.path("linear.pt2"))
        save_file({"input": torch.ones(2, 4)}, self.path("x.safetensors"))
        for file, writer in (("linear.pt", "torch.jit.save"), ("linear.pt2", "torch.export.save")):
            result = run_ranks(1, "infer", package, "--input", self.path("x.safetensors"), "-o",
                               self.path("y.safetensors"), "--weights", self.path(file), mpi=False)
            self.assert_fails(result, rf"{file}: is a model \({writer}\), where weights",
                              r"torch.save\(model.state_dict\(\)")

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
