"""The options of `pipewright compile`: weights from elsewhere, dtypes, operators, where to cut."""
import json
import subprocess

import torch
import torch.nn as nn
from support import BUILD, CompilerTest, call, export, load_file, save_file, unittest


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


class Casts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)


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
                        # Without the second name, nothing says that the two are one tensor.
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

    def test_two_values_of_a_tied_weight(self):
        path, state = self.exported(), {k: v.clone() for k, v in Net().state_dict().items()}
        save_file(state, self.at / "w.safetensors")
        self.compile(path, "--weights", self.at / "w.safetensors")
        state["head.weight"][3, 2] += 1
        save_file(state, self.at / "w.safetensors")
        self.assertRegex(self.compile(path, "--weights", self.at / "w.safetensors", code=1),
                         r'w.safetensors: "(embed|head).weight" and "(embed|head).weight" differ, but the model ties them')

    def test_values_that_no_state_dict_holds(self):
        class Rotary(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("inverse", 1 / torch.arange(1.0, 9.0), persistent=False)

            def forward(self, idx):
                return super().forward(idx) * self.inverse.sum()

        model, idx = Rotary(), torch.randint(16, (3, 5))
        state = {k: v.clone() for k, v in model.state_dict().items()}
        save_file(state, self.at / "w.safetensors")
        save_file(state | {"inverse": model.inverse.clone()}, self.at / "all.safetensors")
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            fake = torch.export.export(Rotary(), (torch.randint(16, (3, 5)),))
        for kind in ("fake", "meta"):
            with self.subTest(kind):
                if kind == "fake":
                    torch.export.save(fake, self.at / "model.pt2")
                else:
                    self.exported(Rotary(), meta=True)
                text = self.compile(self.at / "model.pt2", code=1)
                self.assertIn("was exported without weights", text)
                self.assertIn("no state dict holds inverse: add their values to the file", text)
                text = self.compile(self.at / "model.pt2", "--weights", self.at / "w.safetensors",
                                    code=1)
                self.assertIn("lacks 1 weight: inverse", text)
                self.assertIn("no state dict holds inverse: add their values to the file", text)
                self.compiled("--weights", self.at / "all.safetensors", "--split", "equal:2")
                self.same(self.outputs(self.at / "model.pkg", idx), model(idx).detach(), kind)

    def test_profile_of_the_package_before(self):
        """The profile stays if only weights differ; otherwise it is removed, with a note."""
        self.exported()
        self.compiled("--split", "equal:2")
        profile = self.at / "model.pkg/profile.json"
        call("pipewright", "profile", self.at / "model.pkg", "--repeat", 1)
        measured = profile.read_bytes()
        self.exported(Net())
        self.assertNotIn("profile", self.compiled("--split", "equal:2")[1])
        self.assertEqual(profile.read_bytes(), measured)
        self.assertIn("was removed: `pipewright profile", self.compiled("--split", "equal:3")[1])
        self.assertFalse(profile.exists())

    def test_dtype(self):
        model, idx = Net(), torch.randint(16, (3, 5))
        self.exported(model)
        self.compiled("--dtype", "bfloat16", "--split", "equal:3")
        held = load_file(self.at / "model.pkg/weights/module0.safetensors")
        self.assertEqual({t.dtype for t in held.values()}, {torch.bfloat16})
        self.same(self.outputs(self.at / "model.pkg", idx),
                  model.to(torch.bfloat16)(idx).detach(), "bfloat16")
        self.assertIn("is not a floating-point dtype",
                      self.compile(self.at / "model.pt2", "--dtype", "int8", code=2))

    def cast(self, model, *inputs, code=1, change=lambda program: program, strict=False):
        program = change(torch.export.export(model, inputs, strict=strict))
        torch.export.save(program, self.at / "model.pt2")
        return self.compile(self.at / "model.pt2", "--dtype", "bfloat16", code=code)

    def test_dtypes_that_a_recording_holds_as_constants(self):
        class Norm(Casts):
            def forward(self, x):
                dtype = x.dtype
                y = self.a(x).to(torch.float32)
                y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
                return self.b(y.to(dtype))

        class UsedOn(Casts):
            def forward(self, x):
                y = self.a(x)
                z = y.float()
                return self.b(y) + z.exp().mean()

        class Mask(Casts):
            def forward(self, x):
                return self.a(x) * (x > 0).to(x.dtype)

        class Made(Casts):
            def forward(self, x):
                return self.b(self.a(x) + torch.arange(8, dtype=x.dtype))

        class Constant(Casts):
            def forward(self, x):
                return self.b(self.a(x) + torch.tensor([0.5] * 8, dtype=x.dtype))

        class Function(Casts):
            def forward(self, x):
                return normed(self.a(x).float())

        class Masked(Casts):
            def forward(self, x):
                y = self.a(x)
                lowest = torch.finfo(y.dtype).min
                return self.b(torch.where(y < 9, y, lowest)), y.masked_fill(y < 9, lowest)

        class Tiny(Casts):
            def forward(self, x):
                y = self.a(x)
                return self.b(y / (y.abs() + torch.finfo(y.dtype).eps))

        class Lowest(Casts):
            def forward(self, x):
                lowest = torch.finfo(x.dtype).min
                return self.b(torch.max(self.a(x), torch.tensor(lowest)))

        def normed(x):
            return (x > 0).to(x.dtype)

        x = torch.randn(3, 8)
        for kind, line in ((Norm, "y = self.a(x).to(torch.float32)"), (Norm, "self.b(y.to(dtype))"),
                           (UsedOn, "z = y.float()"), (Mask, "(x > 0).to(x.dtype)"),
                           (Made, "dtype=x.dtype"), (Constant, "tensor([0.5] * 8"),
                           (Masked, "torch.where(y < 9, y, lowest)"), (Tiny, ".eps"),
                           (Lowest, "torch.tensor(lowest)"),
                           (Function, "(x")):
            for strict in (False, True):
                with self.subTest(line, strict=strict):
                    text = self.cast(kind(), x, strict=strict)
                    for part in ("--dtype bfloat16", "options_test.py:", line,
                                 "model.to(torch.bfloat16)"):
                        self.assertIn(part, text)
        text = self.cast(Norm(), x, change=lambda program: program.run_decompositions({}))
        self.assertIn("y = self.a(x).to(torch.float32)", text)
        torch.jit.trace(Mask(), x).save(self.at / "model.pt")
        text = self.compile(self.at / "model.pt", "--dtype", "bfloat16", code=1)
        self.assertRegex(text, r"(?s)to, .*options_test\.py:\d+")

    def test_dtypes_that_the_model_names_stay(self):
        class Named(Casts):
            def forward(self, x):
                y = torch.softmax(self.a(x).float(), -1)
                z = torch.arange(8, dtype=torch.float32)
                mask = (x > 0).float()
                y = y + torch.tensor([0.5] * 8)
                y = y.masked_fill(x > 9, torch.finfo(torch.float32).min)
                y = y + torch.norm(y, dim=-1, keepdim=True, dtype=torch.float32)
                y = y + y.norm(dim=-1, keepdim=True, dtype=torch.float32)
                return y, z * mask, self.b(x.to(x.device)), torch.softmax(x, -1, torch.float32)

        model, x = Named(), torch.randn(3, 8)
        _, package = self.cast(model, x, code=0)
        found = self.run_modules(package, {"x": x})
        for i, value in enumerate(model.to(torch.bfloat16)(x.to(torch.bfloat16))):
            self.same(found[f"output.{i}"], value.detach(), f"output {i}")

    def test_a_dtype_named_for_a_helper_is_not_that_of_what_it_calls(self):
        def decay(x, acc):
            return x * torch.linspace(0, 1.1, 8, dtype=x.dtype)

        def masked(x, acc):
            return x.masked_fill(x > 9, torch.finfo(x.dtype).min)

        class Decays(Casts):
            def forward(self, x):
                return self.b(decay(self.a(x), acc=torch.float32))

        class Masks(Casts):
            def forward(self, x):
                return self.b(masked(self.a(x), acc=torch.float32))

        def my_softmax(x, acc):
            return torch.softmax(x, -1, dtype=x.dtype)

        class Softens(Casts):
            def forward(self, x):
                return self.b(my_softmax(self.a(x), acc=torch.float32))

        for kind in (Decays, Masks, Softens):
            export(kind(), [torch.randn(3, 8)], self.at / "model.pt2")
            text = self.compile(self.at / "model.pt2", "--dtype", "bfloat16", code=1)
            self.assertIn("a recording does not tell", text)

    def test_small_limits_of_half_precision_are_ordinary_numbers_unless_they_are_named(self):
        class Scaled(Casts):
            def forward(self, x):
                return self.b(torch.relu(self.a(x)) * (1 / 128))

        class Epsilon(Casts):
            def forward(self, x):
                return self.b(torch.relu(self.a(x)) * torch.finfo(x.dtype).eps)

        for kind, code in ((Scaled, 0), (Epsilon, 1)):
            export(kind().to(torch.bfloat16), [torch.randn(3, 8).bfloat16()], self.at / "model.pt2")
            text = self.compile(self.at / "model.pt2", "--dtype", "float32", code=code)
            self.assertEqual("torch.finfo" in text, code == 1, text)

    def test_casts_of_autocast_stay(self):
        class Region(Casts):
            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return torch.softmax(self.a(x), -1)

        self.cast(Region(), torch.randn(3, 8), code=0)

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

    def test_op_library_with_an_operator_of_ours(self):
        library = next((BUILD / "tests").glob("libtest_ops.so"))
        torch.ops.load_library(str(library))

        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.randn(2, 4, 3))

            def forward(self, x, offs):
                return torch.ops.transformers.grouped_mm_fallback(x, self.w, offs)

        self.check(Experts(), [torch.randn(5, 4), torch.tensor([2, 5])],
                   ["--op-library", library])

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
                (["--split", "equal:2", "--split-after", "embed"], 2, "cannot be combined with"),
                (["--split", "equal:2", "--split", "equal:3"], 2, "--split"),
                (["--split", "children:layer"], 1, 'did you mean "layers"'),
                (["--split", "children:layers.1"], 1, "name a container, such as a Sequential or a ModuleList"),
                (["--split", "modules:blocks.1"], 1, 'did you mean "layers.1"?'),
                (["--split", "size:0"], 2, "requires a size"),
                (["--split", "size:100"], 1, "alone uses weights of"),
                (["--split-after", "layers.9"], 1, 'did you mean "layers.'),
                (["--split", self.at / "split.json"], 1, 'did you mean "layers.0"'),
                (["--split", "no.json"], 1, "no.json"),
                (["--shared", "transmit:wte"], 1, 'no weight "wte"'),
                (["--shared", "some"], 2, "expected replicate, transmit"),
                (["--split", "modules:layers.1@1"], 1, '"layers.1" is called once'),
                (["--input-names", "idx"], 2, "one recorded call, (idx: int64 [3, 5])")):
            with self.subTest(options):
                self.assertIn(part, self.compile(path, *options, code=code))

    def test_outputs_that_would_lose_something(self):
        model = self.exported()
        self.compiled()
        package = self.at / "model.pkg"
        held = package / "held.pt2"
        held.write_bytes(model.read_bytes())
        for given, output, part in (
                (model, model, "is the input"),
                (model, "", "its name is empty"),
                (model, package / "inner.pkg", "lies in the package"),
                (model, package / "modules", "lies in the package"),
                (held, package, "contains the input " + str(held)),
                (held, str(package) + "/", "contains the input " + str(held))):
            with self.subTest(output):
                result = call("pipewright", "compile", given, "-o", output, "--force")
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(part, result.stderr)
                self.assertRegex(result.stderr, "choose an|name a folder")
                self.assertTrue(given.exists())

    def test_places_in_and_beside_packages(self):
        model = self.exported()
        self.compiled()
        package = self.at / "model.pkg"
        compiler = [BUILD / "pipewright", "compile", model, "-o", "inner"]
        result = subprocess.run(compiler, cwd=package / "modules", capture_output=True, text=True)
        self.assertIn("lies in the package", result.stderr)
        project = self.at / "project"
        (project / "modules").mkdir(parents=True)
        for text in ("{}", "[1]", "no JSON"):
            (project / "manifest.json").write_text(text)
            result = call("pipewright", "compile", model, "-o", project / "own.pkg")
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_explain(self):
        self.exported()
        text, _ = self.compiled("--explain", "--split", "modules:layers.2")
        for part in ("module1, cut before layers.2", "takes x_2 from module0",
                     "gives x_2 to module1", "shared embed.weight: replicated in",
                     "one weight: embed.weight, head.weight"):
            self.assertIn(part, text)
        text, _ = self.compiled("--explain", "--split", "modules:layers.2", "--shared", "transmit")
        self.assertIn("shared embed.weight: kept in module0, transmitted to module1", text)
        (self.at / "split.json").write_text('{"embed": 0, "layers.0": 0, "layers": 1}')
        text, _ = self.compiled("--explain", "--split", self.at / "split.json")
        self.assertRegex(text, r"module1, cut placed by --split .*split.json: layers\n")
        self.assertIn("operations outside the submodules that it names: 4, each placed with the last of "
                      "its inputs", text)


if __name__ == "__main__":
    unittest.main()
