"""TorchScript models, traced and scripted, cut, against PyTorch: bit for bit."""
import sys
from typing import Dict, List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from models_test import GPT, Digits
from support import ROOT, CompilerTest, TwoLayers, call, save_file, unittest

sys.path.insert(0, str(ROOT / "examples/torchscript"))
import markers


def scripted(model):
    return torch.jit.script(model)


def traced(*inputs):
    return lambda model: torch.jit.trace(model, inputs, check_trace=False)


def twice(x, y: int = 2):
    return x * y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Everything(nn.Module):
    """Loops, branches, lists, dicts, other methods, attributes, containers with similar names."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.layers = nn.ModuleList([Block(), Block()])
        self.bn, self.scale, self.factors = nn.BatchNorm1d(4), 3, [1.5, 2.0]
        self.register_buffer("seen", torch.zeros(4))
        self.table = {"a": 2.0}
        self.plain = torch.full((4,), 0.5)

    @torch.jit.export
    def normed(self, x):
        return self.bn(x) + self.scale

    def forward(self, x, mask: Optional[torch.Tensor] = None, rounds: int = 2):
        found: List[torch.Tensor] = []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = twice(x) + twice(x, 4) + twice(x, y=3) + twice(x=x, y=2)
        with torch.no_grad():
            mean = x.mean()
        for layer in self.layers:
            x = layer(x)
        if mask is not None:
            x = x * mask
        if self.training:
            x = x * 2.0
        for _ in range(rounds):
            if bool(x.sum() > 0):
                x = x + 1
            else:
                x = x - 1
        self.seen.add_(x.detach().sum(0))
        x = self.normed(x) * self.plain * mean * self.factors[1] * self.table["a"]
        n, width = x.shape
        return {"x": x.view(n * width), "first": found[0], "pair": x[:, :2] * n}


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = torch.relu(self.a(x))
        torch.ops.pipewright.pipe_split()
        x = torch.relu(self.b(x))
        torch.ops.pipewright.pipe_split()
        return self.c(x)


class TorchScript(CompilerTest):
    def test_traced_gpt(self):
        ids = torch.randint(32, (3, 8))
        manifest, package = self.check(
            GPT(), [ids], ["--split", "modules:blocks.1,blocks.2,lm_head"], modules=4,
            script=traced(ids), tolerance=1e-5)
        self.assertEqual(manifest["tied"], [["lm_head.weight", "wte.weight"]])
        self.assertIn("blocks.0", manifest["modules"][0]["covers"])
        self.assertRegex(self.code(package, 1), r"# blocks.1.ln_1  models_test.py:\d+\n")

    def test_traced_batch_norm(self):
        x = torch.randn(6, 1, 8, 8)
        self.check(Digits(), [x], ["--split", "equal:3"], modules=3, script=traced(x))

    def test_scripted(self):
        for split, modules in (("equal:4", 4), ("modules:blocks.1,layers.0,bn", 4)):
            for train in (True, False):
                with self.subTest(split, train=train):
                    self.check(Everything(), [torch.randn(3, 4)], ["--split", split],
                               modules=modules, script=scripted, train=train, tolerance=1e-6,
                               run=([torch.randn(5, 4)], None))

    def test_inputs_with_defaults(self):
        x, mask = torch.randn(3, 4), torch.tensor([1.0, 0.0, 2.0, 1.0])
        manifest, _ = self.check(Everything(), [x, mask],
                                 ["--split", "equal:3", "--input-names", "x,mask"], script=scripted,
                                 tolerance=1e-6)
        self.assertEqual(manifest["inputs"], ["x", "mask"])
        scripted(Everything()).save(self.at / "model.pt")
        text = self.compile(self.at / "model.pt", "--input-names", "x,maks", code=1)
        self.assertIn('did you mean "mask"', text)
        self.assertIn('the model also needs "x"',
                      self.compile(self.at / "model.pt", "--input-names", "mask", code=1))

    def test_outputs_of_a_dictionary_are_called_by_its_keys(self):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                h = torch.relu(self.a(x))
                return {"logits": self.b(h), "hidden": h}

        manifest, _ = self.check(Named(), [torch.randn(3, 4)], ["--split", "modules:b"],
                                 script=torch.jit.script, modules=2)
        self.assertEqual(manifest["outputs"], ["logits", "hidden"])

    def test_lists_and_dicts_as_inputs(self):
        class Holds(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, xs: List[torch.Tensor], table: Dict[str, torch.Tensor],
                        pair: Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]):
                y = self.a(xs[0]) * xs[1] + table["m"]
                y = self.b(y) + table["a"] * pair[0]
                return y * pair[1][0] - pair[1][1]

        inputs = [[torch.randn(3, 4), torch.randn(3, 4)],
                  {"a": torch.randn(3, 4), "m": torch.randn(3, 4)},
                  (torch.randn(3, 4), (torch.randn(3, 4), torch.randn(3, 4)))]
        for script in (scripted, lambda model: torch.jit.trace(model, tuple(inputs))):
            manifest, _ = self.check(Holds(), inputs, ["--split", "modules:b"], modules=2,
                                     script=script)
            self.assertEqual(manifest["inputs"], ["xs_0", "xs_1", "table_a", "table_m", "pair_0",
                                                  "pair_1_0", "pair_1_1"])

    def test_markers(self):
        x = torch.randn(3, 4)
        for script in (scripted, traced(x)):
            self.check(Marked(), [x], modules=3, script=script)

    def test_markers_that_torch_dropped(self):
        torch.jit.trace(GPT(), torch.randint(32, (3, 8))).save(self.at / "model.pt")
        result = call("pipewright", "compile", self.at / "model.pt", "-o", self.at / "p")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("torch.jit drops pipe_split()", result.stderr)
        self.assertIn("markers.py", result.stderr)

    def test_dropout(self):
        class Drop(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

            def forward(self, x):
                x = self.drop(self.a(x))
                for _ in range(int(x.shape[0])):
                    x = x + F.dropout(x, 0.5, self.training)
                return x

        scripted(Drop().train()).save(self.at / "model.pt")
        _, package = self.compile(self.at / "model.pt")
        x = torch.randn(3, 4)
        noisy = self.run_modules(package, {"x": x})["output.0"]
        self.same(self.run_modules(package, {"x": x})["output.0"], noisy, "the same key")
        quiet = self.run_modules(package, {"x": x}, train=False)["output.0"]
        self.assertFalse(torch.equal(noisy, quiet))

    def test_weights_stay_in_the_file(self):
        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
                self.b = self.a
                self.stripes = nn.Parameter(torch.randn(3, 8)[:, ::2])

            def forward(self, x):
                return self.b(torch.relu(self.a(x))) * self.stripes

        manifest, _ = self.check(Shared(), [torch.randn(3, 4)], ["--split", "modules:b"],
                                 script=scripted, modules=2, tolerance=1e-6)
        self.assertEqual(sorted(manifest["tied"]), [["a.bias", "b.bias"], ["a.weight", "b.weight"]])
        self.assertEqual(len(manifest["shared"]), 2)

    def refused(self, model, *parts, options=()):
        torch.jit.script(model).save(self.at / "model.pt")
        text = self.compile(self.at / "model.pt", *options, code=1)
        for part in parts:
            self.assertIn(part, text)

    def test_a_dict_that_is_looped_over(self):
        class Sums(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                x = self.a(x)
                x = x * 2
                x += 1
                for key, value in {"x": x, "y": x * 2}.items():
                    x = x + value * len(key)
                return self.b(x)

        self.check(Sums(), [torch.randn(3, 4)], ["--split", "modules:b"], script=scripted,
                   tolerance=1e-6)

    def test_refusals(self):
        class Branch(nn.Module):
            def forward(self, x):
                if bool(x.sum() > 0):
                    torch.ops.pipewright.pipe_split()
                    x = x + 1
                return x

        class Assigns(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("last", torch.zeros(4))

            def forward(self, x):
                self.last = x * 2
                return x + 1

        class Lists(nn.Module):
            def forward(self, xs: List[torch.Tensor]):
                return xs[0] + len(xs)

        class Returns(nn.Module):
            def forward(self, x):
                parts: List[torch.Tensor] = []
                for i in range(int(x.shape[0])):
                    parts.append(x[i])
                return parts

        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                for i in range(x.size(0)):
                    x = self.a(x) + i
                return self.b(x)

        self.refused(Rows(), 'submodule "a" lies inside a loop', "torchscript_test.py",
                     "cut before or after it", options=["--split", "modules:a"])
        self.refused(Branch(), "lies inside a branch", "torchscript_test.py", "move it out")
        self.refused(Assigns(), "torchscript_test.py", 'attribute "last"', "self.last.copy_(value)")
        self.refused(Lists(), 'input "xs" is a List[Tensor]')
        self.refused(Returns(), "whose length is not known")

    def test_damage(self):
        torch.jit.script(Marked()).save(self.at / "model.pt")
        content = (self.at / "model.pt").read_bytes()
        for at in range(0, len(content), 97):
            changed = bytearray(content)
            changed[at] ^= 0xff
            (self.at / "bad.pt").write_bytes(changed)
            if at % 970 == 0:
                result = call("pipewright", "compile", self.at / "bad.pt", "-o", self.at / "p")
                self.assertIn(result.returncode, (0, 1), result.stderr)
                self.assertNotIn("Exception raised from", result.stderr)

    def test_layers_of_transformers(self):
        """Their code has branches that return tuples early, and a path for evaluation."""
        class Layers(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.a, self.layer = nn.Linear(8, 8), layer

            def forward(self, x):
                return self.layer(self.a(x))

        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(8, 8)
                self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0)

            def forward(self, x):
                x = self.a(x)
                return self.layer(x, x)

        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)

            def forward(self, x):
                x = self.a(x)
                y, weights = self.b(x, x, x)
                return y, weights

        def encoder(**kwargs):
            return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **kwargs)

        x = torch.randn(2, 5, 8)
        for name, model in {
                "encoder layer": Layers(encoder()),
                "norm first": Layers(encoder(norm_first=True)),
                "encoder": Layers(nn.TransformerEncoder(encoder(), 2)),
                "decoder layer": Decoder(),
                "attention": Attention()}.items():
            for train in (True, False):
                with self.subTest(name, train=train):
                    self.check(model, [x], ["--split-after", "a"], script=scripted, modules=2,
                               train=train, tolerance=1e-6)

    def test_a_cut_between_a_branch_and_what_it_does_not_set(self):
        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.head = nn.TransformerEncoderLayer(
                    8, 2, 16, dropout=0.0, batch_first=True, norm_first=True), nn.Linear(8, 4)

            def forward(self, x):
                return self.head(self.layer(x)).square().mean()

        for parts in (2, 3):
            with self.subTest(parts=parts):
                self.check(Head(), [torch.randn(2, 5, 8)], ["--split", f"equal:{parts}"],
                           script=torch.jit.script, tolerance=1e-6)
        torch.jit.script(Head()).save(self.at / "model.pt")
        text = self.compile(self.at / "model.pt", "--split", "equal:9", code=1)
        self.assertRegex(text, r"not enough places to cut: the model has \d+, since.*\n.*ask for fewer modules")

    def test_a_loop_that_returns_early_stays_whole(self):
        class Loops(nn.Module):
            def __init__(self, limit: float):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
                self.limit = limit

            def forward(self, x):
                y = self.a(x)
                for _ in range(3):
                    y = self.b(y)
                    if float(y.sum()) > self.limit:
                        return y
                return self.c(torch.relu(y))

        for limit in (-1e9, 1e9):
            with self.subTest(limit=limit):
                self.check(Loops(limit), [torch.randn(2, 4)], ["--split", "equal:2"], modules=2,
                           script=torch.jit.script)
        torch.jit.script(Loops(0.0)).save(self.at / "model.pt")
        text = self.compile(self.at / "model.pt", "--split", "equal:3", code=1)
        self.assertIn("not enough places to cut: the model has 1, since", text)

    def test_a_branch_that_raises_leaves_nothing_unset(self):
        class Raises(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

            def forward(self, x):
                x = self.a(x)
                if x.dim() == 2:
                    y = x.relu()
                else:
                    raise ValueError("not rows")
                return self.b(y)

        self.check(Raises(), [torch.randn(2, 8)], ["--split", "modules:b"], modules=2,
                   script=torch.jit.script)

    def test_devices_and_strings_that_later_layers_use(self):
        class Uses(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                device, dtype, why = x.device, x.dtype, ""
                if x.dim() != 2:
                    why = "not two dimensions"
                elif self.training:
                    why = "training"
                x = torch.relu(self.a(x))
                if why != "training":
                    x = x * 2
                x = torch.relu(self.b(x)) + torch.arange(4, device=device, dtype=dtype)
                return self.c(x) + torch.ones(4, device=device)

        for train in (True, False):
            with self.subTest(train=train):
                self.check(Uses(), [torch.randn(3, 4)], ["--split", "equal:3"], script=scripted,
                           modules=3, train=train)

    def test_lists_of_constant_tensors(self):
        class Constants(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(3, 4)

            def forward(self, x):
                x = self.a(x)[:, torch.tensor([1, 3, 0])]
                return self.b(x)[torch.tensor([1, 0]), torch.tensor([2, 2])]

        for split in ("equal:1", "equal:2"):
            self.check(Constants(), [torch.randn(3, 4)], ["--split", split], script=scripted,
                       modules=int(split[-1]))

    def test_bools_are_numbers_to_torchscript(self):
        """torch.jit.script itself turns True into 1 where it expects a number: the file has 1."""
        class Bools(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(3, 3)

            def forward(self, x):
                m = self.a(x) > 0
                return (m == False, torch.full([2], True),  # noqa: E712
                        torch.where(m, True, False), x * True, m & True, torch.tensor(True), m.masked_fill(m, False))

        x = torch.randn(2, 3)
        model = torch.jit.script(Bools())
        model.save(self.at / "model.pt")
        manifest, package = self.compile(self.at / "model.pt", "--split-after", "a")
        found = self.run_modules(package, {"x": x}, train=False)
        for i, value in enumerate(model(x)):
            self.same(found[f"output.{i}"], value, f"output {i}")

    def test_scripts_read_sizes_where_they_are_written(self):
        class Late(TwoLayers):
            def forward(self, x):
                h = self.a(x)
                size = h.shape
                h.unsqueeze_(0)
                return h * size[0]
        self.check(Late(), [torch.randn(6, 4)], script=torch.jit.script)

    def test_sizes_that_only_a_branch_reads(self):
        class Branches(TwoLayers):
            def forward(self, x):
                h = self.a(x)
                shape = h.size()
                if len(shape) == 3:
                    h = h * shape[2]
                return self.b(h)

        self.check(Branches(), [torch.randn(6, 4)], script=torch.jit.script)

    def test_a_list_that_is_made_before_what_enters(self):
        class Rows(TwoLayers):
            def forward(self, x):
                rows: List[torch.Tensor] = []
                a = torch.relu(self.a(x))
                n = a.size(0)
                for i in range(n):
                    rows.append(self.b(a[i]))
                return torch.stack(rows) * n

        for cut in ([], ["--split", "equal:2"]):
            self.check(Rows(), [torch.randn(6, 4)], cut, script=torch.jit.script, tolerance=1e-5)

    def test_no_grad_in_inference(self):
        class Rotary(nn.Module):
            def __init__(self):
                super().__init__()
                self.qk = nn.Linear(8, 16)
                self.register_buffer("f", torch.rand(8))

            def forward(self, x):
                with torch.no_grad():
                    cos = self.f.cos()
                q, k = self.qk(x).chunk(2, -1)
                q.mul_(cos)
                return (q * k).sum(-1)
        torch.jit.script(Rotary().eval()).save(str(self.at / "model.pt"))
        _, package = self.compile(self.at / "model.pt")
        save_file({"x": torch.randn(4, 8)}, self.at / "in.safetensors")
        result = call("pipewright-run", "infer", package, "--input", self.at / "in.safetensors", "-o", self.at / "out.safetensors")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
