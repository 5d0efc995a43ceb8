"""Graphs of unusual forms: colliding names, views, control flow, functional writes, long ones."""
import os
import resource

import torch
import torch.nn as nn
from support import BUILD, CompilerTest, TwoLayers, call, export, pipe_split, save_file, unittest


class Graphs(CompilerTest):
    def test_a_parameter_named_like_an_input(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.x = nn.Parameter(torch.randn(4))

            def forward(self, x):
                return x * self.x

        model, x = Scale(), torch.randn(2, 4)
        export(model, [x], self.at / "model.pt2")
        self.compile(self.at / "model.pt2", "--split", "equal:1")
        self.assertTrue(self.run_modules(self.at / "model.pkg", {"x": x})["output.0"].equal(model(x)))

    def test_sizes_by_which_forward_decided(self):
        class Decides(nn.Module):
            def forward(self, x, d, *rest):
                if x.shape[1] % 2 == 0:
                    x = x * 2
                if d["q"].shape[0] > rest[0].shape[0]:
                    x = x * 3
                return x + d["q"].sum() + rest[0].sum()

        auto = torch.export.Dim.AUTO
        example = (torch.randn(3, 8), {"q": torch.randn(6)}, torch.randn(5))
        for strict in (False, True):
            with self.subTest(strict=strict):
                program = torch.export.export(Decides(), example, strict=strict, dynamic_shapes={
                    "x": {0: auto, 1: auto}, "d": {"q": {0: auto}}, "rest": ({0: auto},)})
                torch.export.save(program, self.at / "model.pt2")
                manifest, package = self.compile(self.at / "model.pt2", "--split", "equal:1")
                x, q, rest = (manifest["values"][i]["shape"] for i in range(3))
                self.assertEqual(manifest["guards"], [f"(({x[1]}) % 2) == 0", f"({q[0]}) > ({rest[0]})"])
                save_file({"x": torch.randn(4, 6), "d_q": torch.randn(7), "rest_0": torch.randn(2)},
                          self.at / "in.safetensors")
                infer = ["pipewright-run", "--in-process", "1", "infer", package, "-o",
                         self.at / "out.safetensors", "--input", self.at / "in.safetensors"]
                self.assertEqual(call(*infer).returncode, 0)
                self.assertEqual(call(*infer, "--microbatches", "2").returncode, 1)  # rows of three kinds
                for sizes, guard in (([7, 7, 2], 0), ([6, 3, 7], 1)):
                    save_file({"x": torch.randn(4, sizes[0]), "d_q": torch.randn(sizes[1]),
                               "rest_0": torch.randn(sizes[2])}, self.at / "in.safetensors")
                    done = call(*infer)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(f"inputs: the export holds only for {manifest['guards'][guard]}; "
                                  f"x [{x[0]}, {x[1]}] is [4, {sizes[0]}]", done.stderr)

    def test_sizes_that_no_run_checks(self):
        class Collides(nn.Module):
            def forward(self, d, d_q):
                return d["q"].sum() + (d_q * 2 if d_q.shape[0] > 4 else d_q)

        auto = torch.export.Dim.AUTO
        program = torch.export.export(Collides(), ({"q": torch.randn(3)}, torch.randn(6)), strict=False,
                                      dynamic_shapes={"d": {"q": {0: auto}}, "d_q": {0: auto}})
        torch.export.save(program, self.at / "model.pt2")
        done = call("pipewright", "compile", self.at / "model.pt2", "-o", self.at / "sizes.pkg", "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("note: the export holds only for L['d_q'].size()[0] > 4, which runs do not check", done.stderr)

    def test_sizes_of_an_input_that_is_not_used(self):
        class Unused(nn.Module):
            def forward(self, x, y):
                return x * 2 if y.shape[0] % 2 == 0 else x

        auto = torch.export.Dim.AUTO
        program = torch.export.export(Unused(), (torch.randn(3), torch.randn(6)), strict=False,
                                      dynamic_shapes={"x": {0: auto}, "y": {0: auto}})
        torch.export.save(program, self.at / "model.pt2")
        _, package = self.compile(self.at / "model.pt2", "--split", "equal:1")
        for rows, code in ((8, 0), (5, 1)):
            save_file({"x": torch.randn(4), "y": torch.randn(rows)}, self.at / "in.safetensors")
            done = call("pipewright-run", "--in-process", "1", "infer", package, "-o", self.at / "out.safetensors",
                        "--input", self.at / "in.safetensors")
            self.assertEqual(done.returncode, code, done.stderr)

    def test_another_default_dtype(self):
        class Made(nn.Module):
            def __init__(self, make):
                super().__init__()
                self.make = make
                self.register_buffer("table", torch.arange(4))

            def forward(self, x):
                return x + self.make(x)

        class OfBuffer(Made):
            def forward(self, x):
                return x + torch.sin(self.table / 10)

        for make in (None, lambda x: torch.arange(4) / 7, lambda x: torch.ones(4), lambda x: (x > 0).sum() * 0.5,
                     lambda x: torch.fft.fft(torch.arange(4)).real,
                     lambda x: torch.cond(x.sum() > 0, lambda x, n: x + n / 7, lambda x, n: x * 1, (x, torch.arange(4)))):
            torch.set_default_dtype(torch.float64)
            try:
                model = Made(make) if make else OfBuffer(make)
                export(model, [torch.randn(2, 4)], self.at / "model.pt2")
            finally:
                torch.set_default_dtype(torch.float32)
            done = call("pipewright", "compile", self.at / "model.pt2", "-o", self.at / "none.pkg")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r":\d+: gives (float64|complex128), the default dtype of the process")
            for named in (lambda x: torch.arange(4, dtype=torch.float64) / 7, lambda x: torch.ones(4).double(),
                          lambda x: x.half()):
                export(Made(named), [torch.randn(2, 4)], self.at / "model.pt2")
                self.compile(self.at / "model.pt2", "--split", "equal:1")

    def test_views_of_one_storage(self):
        class Views(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.randn(4, 4))
                self.register_buffer("upper", self.w.data[:2])
                self.register_buffer("turned", self.w.data.t())
                self.register_buffer("seen", torch.zeros(4))
                self.seen_too = self.seen
                self.a = nn.Linear(4, 4)

            def forward(self, x):
                y = self.a(x @ self.w) @ self.turned
                pipe_split()
                return y * self.upper.sum()

        manifest, _ = self.check(Views(), [torch.randn(3, 4)], modules=2, tolerance=1e-5)
        held = {w["name"] for m in manifest["modules"] for w in m["held"]}
        self.assertNotIn("upper", held)
        self.assertNotIn("turned", held)

    def test_functionalised_export(self):
        class Norms(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
                self.n, self.m = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

            def forward(self, x):
                x = self.n(self.a(x))
                pipe_split()
                return self.m(self.b(x))

        model, x = Norms().train(), torch.randn(6, 4)
        self.check_decomposed(model, x)

    def test_a_detach_that_is_decomposed(self):
        """A detach becomes an alias, through which gradients would pass."""
        class Detaches(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                x = self.a(x)
                return self.b(torch.tanh(x)) * x.detach().exp()

        class Mixes(Detaches):
            def forward(self, x):
                x = self.a(x)
                return self.b(x[...]) * x.detach()

        class Differs(Detaches):
            """Looks like a straight-through estimator, whose alias was a detach."""
            def forward(self, x):
                x = self.a(x)
                return self.b(torch.tanh(x) - x[...] + x) * (x - x[...] + 1)

        class Library(Detaches):
            def forward(self, x):
                return self.b(torch.nn.functional.gumbel_softmax(
                    self.a(x)[...], hard=self.hard)) * torch.tanh(x)[...]

        class Whole(Detaches):
            def forward(self, x):
                y = self.a(x)[:, :x.shape[1]]
                return self.b(torch.tanh(y)[..., :])[:, 0:]

        torch.manual_seed(0)
        x = torch.randn(6, 4)
        self.check_decomposed(Detaches(), x)
        self.check_decomposed(Whole(), x)
        self.check(Whole(), [x], ["--split", "equal:2"], modules=2)
        for Library.hard in (True, False):
            export(Library(), [x], self.at / "model.pt2", decompose=True)
            _, package = self.compile(self.at / "model.pt2")
            self.assertEqual(self.code(package, 0).count("detach("), Library.hard)
        self.check(Mixes(), [x])
        self.check_decomposed(Mixes(), x)
        self.check_decomposed(Differs(), x)
        program = torch.export.export(Detaches(), (x,)).run_decompositions()
        for node in program.graph.nodes:
            node.meta.pop("from_node", None)
        torch.export.save(program, self.at / "model.pt2")
        text = self.compile(self.at / "model.pt2", code=1)
        self.assertIn("the export does not tell which operators it became: return self.b(", text)

    def check_decomposed(self, model, x):
        program = torch.export.export(model, (x,), strict=False).run_decompositions()
        torch.export.save(program, self.at / "model.pt2")
        manifest, package = self.compile(self.at / "model.pt2", "--split", "equal:2")
        expected = model(x)
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        found = self.run_modules(package, {"x": x, "gradient.0": gradient})
        torch.testing.assert_close(found["output.0"], expected.detach())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found["gradient:" + name], parameter.grad)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(found["buffer:" + name], buffer)

    def test_factors_in_place_as_strict_exports_write_them(self):
        """prims.fma, to the bit: forward, and the gradients of all three operands."""
        class Factors(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
                self.factor = nn.Parameter(torch.tensor(0.3))
                self.row = nn.Parameter(torch.randn(4))

            def forward(self, x):
                y = self.a(x).addcmul_(self.b(x), self.row, value=0.7)
                pipe_split()
                y = y.mul(1).addcdiv_(self.b(x), torch.exp(y.detach()), value=-1.3)
                return y.add_(self.a(x), alpha=self.factor), y.mul(1).addcmul_(x, x, value=2)

        for dtype in (torch.float32, torch.bfloat16):
            model, x = Factors().to(dtype), torch.randn(6, 4, dtype=dtype)
            program = torch.export.export(model, (x,), strict=True)
            self.assertEqual(sum(str(node.target) == "prims.fma.default" for node in program.graph.nodes), 4)
            torch.export.save(program, self.at / "model.pt2")
            archive = program.module()
            expected = archive(x)
            gradients = [torch.randn_like(value) for value in expected]
            torch.autograd.backward(expected, gradients)
            for options in ((), ("--split", "equal:5")):
                _, package = self.compile(self.at / "model.pt2", *options)
                found = self.run_modules(package, {"x": x, "gradient.0": gradients[0],
                                                   "gradient.1": gradients[1]})
                for i, value in enumerate(expected):
                    self.same(found[f"output.{i}"], value.detach(), f"output {i}")
                for name, parameter in archive.named_parameters():
                    self.same(found["gradient:" + name], parameter.grad, name, 0 if not options else 1e-2)

    def test_operations_without_a_derivative_are_told(self):
        class Steps(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)

            def forward(self, x):
                y = self.a(x)
                n = torch.floor_divide(x, 2) + torch.floor_divide(y.detach(), 2)
                z = torch.zeros(6, 4)  # gets a gradient from the write
                z[1:] = y[1:]
                return torch.floor_divide(y, 3) + n + z, torch.heaviside(y, y) > 0

        model, x = Steps(), torch.randn(6, 4)
        export(model, [x], self.at / "model.pt2")
        path = self.at / "model.pkg"
        told = call("pipewright", "compile", self.at / "model.pt2", "-o", path).stderr
        line = Steps.forward.__code__.co_firstlineno + 5
        self.assertEqual([text for text in told.splitlines() if "derivative" in text],
                         [f"note: aten::floor_divide, the model itself, {__file__}:{line}: PyTorch has no "
                          "derivative of it: training fails if its loss depends on the result. Write that line "
                          "with other operations, or detach what it is given"])
        self.same(self.run_modules(path, {"x": x}, train=False)["output.0"], model(x)[0].detach(), "output")

    def test_control_flow(self):
        from torch._higher_order_ops.scan import scan
        from torch._higher_order_ops.while_loop import while_loop

        class Control(nn.Module):
            def __init__(self, walks):
                super().__init__()
                self.a, self.b, self.walks = nn.Linear(4, 4), nn.Linear(4, 4), walks

            def forward(self, x):
                x = self.a(x)
                pipe_split()
                x = torch.cond(x.sum() > 0, lambda x: torch.tanh(x), lambda x: x * 2, (x,))
                if self.walks:
                    last, each = scan(lambda c, x: (c + x, c * 2 + x), torch.zeros(4), x, dim=0)
                    x = each + last
                else:
                    _, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.sin(x)),
                                      (torch.tensor(0), x))
                pipe_split()
                return self.b(x)

        class Each(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                from torch._higher_order_ops.map import map
                x = self.a(x)
                pipe_split()
                return map(lambda row, w: torch.tanh(w @ row), x, self.b.weight)

        for walks in (False, True, None):
            with self.subTest(walks=walks):
                model = Each() if walks is None else Control(walks)
                for sign in (1.0, -1.0):
                    x = torch.full((3, 4), sign)
                    with torch.no_grad():
                        expected = model(x)
                    export(model, [x.clone()], self.at / "model.pt2")
                    _, package = self.compile(self.at / "model.pt2")
                    found = self.run_modules(package, {"x": x})["output.0"]
                    self.same(found, expected, "output")

    def test_every_dropout_is_repeatable(self):
        class Drops(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(4, 4, 3, batch_first=True, dropout=0.5, bidirectional=True)
                self.gru = nn.GRU(8, 4, 2, dropout=0.5)
                self.alpha, self.channel = nn.AlphaDropout(0.3), nn.Dropout2d(0.5)
                self.feature, self.rrelu = nn.FeatureAlphaDropout(0.4), nn.RReLU()

            def forward(self, x):
                x, (h, c) = self.rnn(x)
                x, _ = self.gru(x)
                pipe_split()
                x = self.channel(self.alpha(x)[..., None, None])[..., 0, 0]
                return self.rrelu(self.feature(x)), h, c

        model, x = Drops().train(), torch.randn(3, 5, 4)
        export(model, [x], self.at / "model.pt2")
        _, package = self.compile(self.at / "model.pt2")
        noisy = self.run_modules(package, {"x": x})
        again = self.run_modules(package, {"x": x})
        quiet = self.run_modules(package, {"x": x}, train=False)
        expected = model.eval()(x)
        for i, value in enumerate(expected):
            self.same(noisy[f"output.{i}"], again[f"output.{i}"], "the same key")
            torch.testing.assert_close(quiet[f"output.{i}"], value.detach())
        self.assertFalse(torch.equal(noisy["output.0"], quiet["output.0"]))

    @unittest.skipUnless(os.environ.get("PIPEWRIGHT_LONG"), "set PIPEWRIGHT_LONG=1 to run it")
    def test_a_graph_of_20000_nodes(self):
        class Long(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(100))

            def forward(self, x):
                for i in range(10000):
                    x = torch.tanh(x * self.w[i % 100])
                return x

        export(Long(), [torch.randn(2, 4)], self.at / "model.pt2")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.compile(self.at / "model.pt2", "--split", "equal:20")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Measures processor time: the machine may be busy.
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 60)

    @unittest.skipUnless(os.environ.get("PIPEWRIGHT_LONG"), "set PIPEWRIGHT_LONG=1 to run it")
    def test_memory_stays_small(self):
        class Large(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(32))

            def forward(self, x):
                for layer in self.l:
                    x = torch.relu(layer(x))
                return x

        import subprocess
        import sys
        model, x = Large(), torch.randn(2, 4096)
        torch.jit.trace(model, x, check_trace=False).save(self.at / "model.pt")
        export(model, [x], self.at / "model.pt2")
        del model
        for name in ("model.pt", "model.pt2"):
            code = ("import resource, subprocess, sys; "
                    "r = subprocess.run(sys.argv[1:]).returncode; "
                    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024); "
                    "sys.exit(r)")
            result = subprocess.run([sys.executable, "-c", code, str(BUILD / "pipewright"),
                                     "compile", str(self.at / name), "-o", str(self.at / "big"),
                                     "--split", "equal:4"], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLess(int(result.stdout.split()[-1]), 400, name)

    def test_norms_without_statistics_in_decomposed_exports(self):
        """They use those of the batch, also in evaluation."""
        for training in (False, True):
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.BatchNorm2d(8, track_running_stats=False))
            self.check(model, [torch.randn(2, 3, 9, 9)], decompose=True, train=training, close=1e-5, tolerance=1e-4)

    def test_cells_in_autocast(self):
        class Cells(nn.Module):
            def __init__(self, kind, own):
                super().__init__()
                self.inp, self.cell, self.own, self.kind = nn.Linear(8, 8), kind(8, 8), own, kind

            def forward(self, x):
                h = c = torch.zeros(x.shape[1], 8)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    for t in range(3):
                        v = self.inp(x[t]) if self.own else x[t]
                        if self.kind is nn.LSTMCell:
                            h, c = self.cell(v, (h, c))
                        else:
                            h = self.cell(v, h)
                return h
        for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
            for own in (False, True):
                with self.subTest(kind=kind.__name__, own=own):
                    # eager autocast casts weights once, so it adds their gradients in 16 bits
                    self.check(Cells(kind, own), [torch.randn(3, 5, 8)], tolerance=0.02)


if __name__ == "__main__":
    unittest.main()
