"""The options of `pipewright compile`: weights from elsewhere, dtypes, operators, where to cut."""
import json
import os
import time

import torch
import torch.nn as nn
from models_test import GPT
from support import (BUILD, CompilerTest, call, export, load_file, pipe_split, save_file, unittest)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, idx):
        x = self.embed(idx)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Options(CompilerTest):
    def exported(self, model=None, meta=False):
        model = model or Net()
        idx = torch.randint(16, (3, 5), device="meta" if meta else "cpu")
        export(model.to("meta") if meta else model, [idx], self.at / "model.pt2")
        return self.at / "model.pt2"

    def outputs(self, package, idx):
        return self.run_modules(package, {"idx": idx})["output.0"]

    def compiled(self, *options):
        result = call("pipewright", "compile", self.at / "model.pt2", "-o", self.at / "model.pkg",
                      *options)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout, result.stderr

    def test_weights(self):
        trained, idx = Net(), torch.randint(16, (3, 5))
        state = {k: v.contiguous() for k, v in trained.state_dict().items()}
        state.pop("head.weight")
        save_file(state, self.at / "w.safetensors")
        torch.save(trained.state_dict(), self.at / "w.bin")
        save_file({"net." + k: v for k, v in state.items()} | {"other": torch.zeros(1)},
                  self.at / "prefix.safetensors")
        expected = trained(idx).detach()
        for meta in (False, True):
            self.exported(meta=meta)
            for name, note in (("w.safetensors", ""), ("w.bin", ""),
                               ("prefix.safetensors", 'have the prefix "net."')):
                with self.subTest(name, meta=meta):
                    if meta and name != "w.bin":
                        # Without the second name nothing tells that the two are one.
                        save_file(state | {"head.weight": state["embed.weight"].clone()},
                                  self.at / "both.safetensors")
                        name = "both.safetensors" if name == "w.safetensors" else name
                    if meta and name == "prefix.safetensors":
                        continue
                    _, notes = self.compiled("--weights", self.at / name, "--split", "equal:2")
                    self.assertIn(note, notes)
                    self.same(self.outputs(self.at / "model.pkg", idx), expected, name)
        _, notes = self.exported() and self.compiled("--weights", self.at / "prefix.safetensors")
        self.assertIn("has other, which the model does not use", notes)

    def test_weights_that_do_not_fit(self):
        path = self.exported(meta=True)
        self.assertIn("pass them with --weights FILE", self.compile(path, code=1))
        state = {k: v.contiguous() for k, v in Net().state_dict().items()}
        save_file({"layers.0.weight": state["layers.0.weight"], "extra": torch.zeros(1)},
                  self.at / "w.safetensors")
        text = self.compile(path, "--weights", self.at / "w.safetensors", code=1)
        self.assertRegex(text, r"lacks \d weights: ")
        self.assertIn("unexpected: extra", text)
        state = {k: v.clone() for k, v in Net().state_dict().items()}
        save_file({"model/" + k: v for k, v in state.items() if k != "head.weight"},
                  self.at / "w.safetensors")
        for meta in (False, True):
            text = self.compile(self.exported(meta=meta), "--weights", self.at / "w.safetensors",
                                code=1)
            self.assertIn("lacks 10 weights: embed.weight" if meta
                          else "has none of the model's weights: embed.weight", text)
            self.assertIn("unexpected: model/embed.weight", text)
        state["layers.1.weight"] = torch.zeros(4, 4)
        save_file(state, self.at / "w.safetensors")
        self.assertIn('"layers.1.weight": is [4, 4], the model\'s "layers.1.weight" is [8, 8]',
                      self.compile(path, "--weights", self.at / "w.safetensors", code=1))

    def test_dtype(self):
        model, idx = Net(), torch.randint(16, (3, 5))
        self.exported(model)
        self.compiled("--dtype", "bfloat16", "--split", "equal:3")
        held = load_file(self.at / "model.pkg/weights/module0.safetensors")
        self.assertEqual({t.dtype for t in held.values()}, {torch.bfloat16})
        self.same(self.outputs(self.at / "model.pkg", idx),
                  model.to(torch.bfloat16)(idx).detach(), "bfloat16")
        self.assertIn("is no floating dtype",
                      self.compile(self.at / "model.pt2", "--dtype", "int8", code=2))

    def test_a_parameter_named_like_an_input(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.x = nn.Parameter(torch.randn(4))

            def forward(self, x):
                return x * self.x

        model, x = Scale(), torch.randn(2, 4)
        export(model, [x], self.at / "model.pt2")
        self.compiled("--split", "equal:1")
        self.assertTrue(self.run_modules(self.at / "model.pkg", {"x": x})["output.0"].equal(model(x)))

    def test_op_library(self):
        library = next((BUILD / "tests").glob("libtest_ops.so"))
        torch.ops.load_library(str(library))

        class Ours(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)

            def forward(self, x):
                return self.a(torch.ops.pipewright_test.twice_plus(x, 0.5))

        export(Ours(), [torch.randn(3, 4)], self.at / "ours.pt2")
        self.assertIn("pipewright_test", self.compile(self.at / "ours.pt2", code=1))
        manifest, _ = self.check(Ours(), [torch.randn(3, 4)], ["--op-library", library])
        self.assertEqual(manifest["op_libraries"], [str(library.resolve())])
        self.assertIn("cannot be loaded", self.compile(
            self.at / "ours.pt2", "--op-library", self.at / "none.so", code=1))

    def covers(self, *options):
        manifest, _ = self.compile(self.at / "model.pt2", *options)
        return [m["covers"] for m in manifest["modules"]]

    def test_splits(self):
        self.exported()
        layers = [f"layers.{i}" for i in range(4)]
        self.assertEqual(self.covers("--split", "children:layers"),
                         [["embed", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3", "head"]])
        self.assertEqual(self.covers("--split", "children"), [["embed"], layers, ["head"]])
        self.assertEqual(self.covers("--split-after", "embed,layers.2"),
                         [["embed"], layers[:3], [layers[3], "head"]])
        self.assertEqual(self.covers("--split", "modules:layers.1", "--split-after", "layers.2"),
                         [["embed", "layers.0"], layers[1:3], [layers[3], "head"]])
        self.assertEqual(len(self.covers("--split", "balanced:3")), 3)
        sizes = self.covers("--split", "size:900")  # embedding 512 bytes, layers 288
        self.assertEqual(sizes, [["embed", "layers.0"], layers[1:], ["head"]])
        split = {"embed": 0, "layers.0": 0, "layers.1": 1, "layers": 1, "head": 2}
        (self.at / "split.json").write_text(json.dumps(split))
        self.assertEqual(self.covers("--split", self.at / "split.json"),
                         [["embed", "layers.0"], layers[1:], ["head"]])
        self.check(Net(), [torch.randint(16, (3, 5))], ["--split", self.at / "split.json"],
                   modules=3, tolerance=1e-6)

    def test_a_list_of_values_of_several_modules(self):
        class Joins(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 4)

            def forward(self, x):
                x = self.a(x)
                y = self.b(x)
                return self.c(torch.cat([y, x], 1)) + torch.stack([x, y]).sum(0)

        for last in ({"c": 2}, {}):
            (self.at / "split.json").write_text(json.dumps({"a": 0, "b": 1, **last}))
            self.check(Joins(), [torch.randn(3, 4)], ["--split", self.at / "split.json"],
                       modules=2 + len(last), tolerance=1e-6)

    def test_a_partition_that_is_no_run(self):
        class Towers(nn.Module):
            """Two towers whose operations alternate."""

            def __init__(self):
                super().__init__()
                self.left = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
                self.right = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
                self.top = nn.Linear(4, 4)

            def forward(self, x):
                a, b = x, x
                for left, right in zip(self.left, self.right):
                    a, b = torch.relu(left(a)), torch.relu(right(b))
                return self.top(a + b)

        (self.at / "split.json").write_text(json.dumps({"left": 0, "right": 1, "top": 2}))
        manifest, _ = self.check(Towers(), [torch.randn(3, 4)],
                                 ["--split", self.at / "split.json"], modules=3, tolerance=1e-6)
        self.assertEqual([m["covers"] for m in manifest["modules"]],
                         [["left.0", "left.1"], ["right.0", "right.1"], ["top"]])
        (self.at / "split.json").write_text(json.dumps({"left": 1, "right": 2, "top": 0}))
        text = self.compile(self.at / "model.pt2", "--split", self.at / "split.json", code=1)
        self.assertIn('"top"', text)
        self.assertIn("modules run in the order of their numbers", text)

    def test_wrong_options(self):
        path = self.exported()
        (self.at / "split.json").write_text('{"layer.0": 0}')
        for options, code, part in (
                (["--split", "equal:2", "--split-after", "embed"], 2, "does not go with"),
                (["--split", "equal:2", "--split", "equal:3"], 2, "--split"),
                (["--split", "children:layer"], 1, 'did you mean "layers"'),
                (["--split", "size:0"], 2, "wants a size"),
                (["--split", "size:100"], 1, "alone uses weights of"),
                (["--split-after", "layers.9"], 1, 'did you mean "layers.'),
                (["--split", self.at / "split.json"], 1, 'did you mean "layers.0"'),
                (["--split", "no.json"], 1, "no.json"),
                (["--shared", "transmit:wte"], 1, 'no weight "wte"'),
                (["--shared", "some"], 2, "is none of replicate, transmit"),
                (["--split", "modules:layers.1@1"], 1, '"layers.1" is called once'),
                (["--inputs", "idx"], 2, "one recorded call, (idx: int64 [3, 5])")):
            with self.subTest(options):
                self.assertIn(part, self.compile(path, *options, code=code))

    def test_explain(self):
        self.exported()
        text, _ = self.compiled("--explain", "--split", "modules:layers.2")
        for part in ("module1, cut before layers.2", "takes tanh_1 from module0",
                     "gives tanh_1 to module1", "shared embed.weight: replicated in",
                     "one weight: embed.weight, head.weight"):
            self.assertIn(part, text)
        text, _ = self.compiled("--explain", "--split", "modules:layers.2", "--shared", "transmit")
        self.assertIn("shared embed.weight: kept in module0, transmitted to module1", text)
        (self.at / "split.json").write_text('{"embed": 0, "layers.0": 0, "layers": 1}')
        text, _ = self.compiled("--explain", "--split", self.at / "split.json")
        self.assertRegex(text, r"module1, cut placed by --split .*split.json: layers\n")
        self.assertIn("operations of no submodule that it names: 4, each with the last of what it "
                      "uses", text)

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
        start = time.monotonic()
        self.compiled("--split", "equal:20")
        self.assertLess(time.monotonic() - start, 60)

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


if __name__ == "__main__":
    unittest.main()
