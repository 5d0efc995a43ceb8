"""Values that cross a cut or stay on one side: sizes, in-place writes, buffers."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from models_test import BATCH
from support import CompilerTest, TwoLayers, call, copies, export, load_file, pipe_split, unittest


class Values(CompilerTest):
    def test_skips_and_late_inputs(self):
        class Skips(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

            def forward(self, x, y):
                a = self.l[0](x)
                pipe_split()
                b = torch.tanh(self.l[1](a))
                pipe_split()
                c = torch.tanh(self.l[2](b))
                pipe_split()
                return self.l[3](c) + a + y

        manifest, _ = self.check(Skips(), [torch.randn(3, 8), torch.randn(3, 8)], modules=4,
                                 tolerance=1e-6)
        inputs = [m["inputs"] for m in manifest["modules"]]
        self.assertEqual(inputs[0], ["x"])
        self.assertIn("y", inputs[3])
        self.assertEqual(len(inputs[3]), 3)

    def test_dict_and_tuple_outputs(self):
        class Outputs(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x, *, scale):
                h = self.a(x)
                pipe_split()
                y = self.b(h) * scale
                return {"y": y, "pair": (h, None, x.shape[0]), "top": y.argmax(-1),
                        "name": "a string is None", "weight": self.b.weight}

        self.check(Outputs(), [torch.randn(3, 4)], kwargs={"scale": torch.tensor(2.0)}, modules=2,
                   dynamic={"x": {0: BATCH}, "scale": None}, tolerance=1e-6,
                   run=([torch.randn(7, 4)], {"scale": torch.tensor(3.0)}))

    def test_conjugated_values_cross(self):
        class Turn(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                y = torch.view_as_complex(self.a(x).view(-1, 2, 2)).conj()
                z = y.imag
                pipe_split()
                return self.b(torch.view_as_real(y * 2j).flatten(1)) + z.sum()

        self.check(Turn(), [torch.randn(3, 4)], modules=2, tolerance=1e-6)

    def test_values_lie_in_memory_as_they_did(self):
        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(5, 4), nn.Conv2d(3, 4, 2)

            def forward(self, x, image):
                y = torch.tanh(self.a(x)).transpose(1, 2)
                image = torch.relu(image.to(memory_format=torch.channels_last))
                pipe_split()
                z = self.b(y).softmax(1)
                first = torch.as_strided(y, (3, 4), (5, 7))
                whole = y.transpose(1, 2).view(-1)
                image = self.c(image)
                pipe_split()
                return z.sum(1) * whole.sum(), first, image.sum((2, 3))

        inputs = [torch.randn(3, 5, 4), torch.randn(2, 3, 6, 6)]
        self.check(Turned(), inputs, modules=3)
        for script in (lambda model: torch.jit.trace(model, copies(inputs), check_trace=False),
                       torch.jit.script):
            self.check(Turned(), inputs, ["--split", "modules:b,c"], modules=3, script=script)

    def test_sizes_are_made_again(self):
        class Sizes(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                n, t = x.shape[0], x.shape[1]
                x = self.a(x)
                pipe_split()
                x = self.b(x.reshape(n * t, 4)).view(n, t, 4)
                pipe_split()
                return x + torch.arange(t, dtype=x.dtype, device=x.device)[None, :, None] / (2 * n)

        length = torch.export.Dim("length", min=2, max=32)
        manifest, _ = self.check(Sizes(), [torch.randn(3, 5, 4)], modules=3,
                                 dynamic={"x": {0: BATCH, 1: length}},
                                 run=([torch.randn(2, 7, 4)], None))
        self.assertTrue(all(v.get("kind", "tensor") == "tensor" for v in manifest["values"]))

    def test_an_integer_only_its_producer_knows_crosses(self):
        class Count(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)

            def forward(self, x, mask):
                n = mask.sum().item()
                y = self.a(x)
                pipe_split()
                return y * n

        manifest, _ = self.check(Count(), [torch.randn(3, 4), torch.tensor([1, 0, 1])], modules=2,
                                 run=([torch.randn(3, 4), torch.tensor([1, 1, 1])], None))
        self.assertIn("int", [v.get("kind") for v in manifest["values"]])

    def test_in_place_on_received_values(self):
        class InPlace(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                y += self.b(x)
                y[:, 1:3].mul_(2)
                pipe_split()
                return F.relu_(y)

        _, package = self.check(InPlace(), [torch.randn(3, 4)], modules=3)
        self.assertIn("torch.clone", self.code(package, 1))

    def test_sizes_of_data_stay_where_they_are_made(self):
        class Chosen(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

            def forward(self, x):
                for i in range(0, 8, 2):
                    rows = torch.nonzero(x[:, 0] > 0)[:, 0]
                    y = torch.tanh(self.l[i + 1](torch.relu(self.l[i](x[rows]))))
                    x = x.index_add(0, rows, y)
                return x

        export(Chosen(), [torch.randn(6, 4)], self.at / "model.pt2", {"x": {0: BATCH}})
        for split, *options in (("equal:3",), ("balanced:4",), ("profile:2", "--microbatch-size", "6")):
            with self.subTest(split):
                manifest, _ = self.compile(self.at / "model.pt2", "--split", split, *options)
                self.assertEqual(len(manifest["modules"]), int(split[-1]))
                self.assertEqual([v for v in manifest["values"]
                                  if any("u" in str(size) for size in v.get("shape", []))], [])
        self.assertEqual(self.notes("equal:4"), "")
        self.assertRegex(self.notes("equal:8"), "note: --split equal:8: near [3-6] of the 7 places that "
                         "equal shares ask for, the model cannot be cut")
        text = self.notes("modules:l.1")
        self.assertRegex(text, r'note: the sizes \[u\d+\] of value "\w+" depend on the data, so that it '
                         r"cannot be sent: modules 0, 1 run on one rank only")
        self.assertRegex(self.compile(self.at / "model.pt2", "--split", "profile:9", "--microbatch-size",
                                      "6", code=1),
                         "--split profile:9: cuts between submodules make only [45] modules\n"
                         "  ask for as many at most, or cut with --split equal:9")

    def notes(self, split):
        result = call("pipewright", "compile", self.at / "model.pt2", "-o", self.at / "model.pkg",
                      "--split", split)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr

    def test_factors_of_sixteen_bits_in_place(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
                self.register_buffer("mean", torch.randn(8))

            def forward(self, x):
                y = self.a(x).mul_(0.9)
                self.mean.mul_(0.99).add_(0.01 * y.detach().mean(0))
                pipe_split()
                y *= 1.003
                return self.b(y).mul_(1001)

        for dtype in (torch.bfloat16, torch.half, torch.float32):
            with self.subTest(dtype):
                self.check(Scale().to(dtype), [torch.randn(16, 8, dtype=dtype)], modules=2)
        model, x = Scale(), torch.randn(16, 8)
        export(model, [x], self.at / "model.pt2")
        for dtype, word in ((torch.bfloat16, "bfloat16"), (torch.half, "float16")):
            with self.subTest("cast", dtype=dtype):
                _, package = self.compile(self.at / "model.pt2", "--dtype", word)
                found, expected = self.run_modules(package, {"x": x}), copy.deepcopy(model).to(dtype)
                self.same(found["output.0"], expected(x.to(dtype)).detach(), word)
                self.same(found["buffer:mean"], expected.mean, word)

    def test_in_place_on_an_input(self):
        class InPlace(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                v = x.view(12)
                x.add_(1)
                y = self.a(x)
                pipe_split()
                return self.b(y).sum() + v.sum()

        self.check(InPlace(), [torch.randn(3, 4)], modules=2)

    def test_buffer_kept_in_one_module(self):
        class Cache(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
                self.register_buffer("total", torch.zeros(4))
                self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

            def forward(self, x):
                y = self.a(x) * self.scale
                pipe_split()
                self.total.add_(y.detach().sum(0))
                return y * self.scale + self.total.clone()

        manifest, _ = self.check(Cache(), [torch.randn(3, 4)], modules=2)
        held = {w["name"]: w for m in manifest["modules"] for w in m["held"]}
        self.assertEqual(held["scale"]["kind"], "buffer")
        self.assertFalse(held["scale"]["persistent"])

    def test_unused_weights_stay_in_the_state_dict(self):
        class Unused(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
                self.b = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
                self.register_buffer("ids", torch.arange(3))

            def forward(self, x):
                x = self.a(x)
                pipe_split()
                return self.b[0](x)

        for strict in (False, True):
            with self.subTest(strict=strict):
                model = Unused()
                manifest, package = self.check(model, [torch.randn(3, 4)], modules=2,
                                               strict=strict)
                held = [[w["name"] for w in m["held"]] for m in manifest["modules"]]
                kinds = {w["name"]: w["kind"] for m in manifest["modules"] for w in m["held"]}
                self.assertEqual(sorted(sum(held, [])), sorted(model.state_dict()))
                self.assertIn("b.1.weight", held[1])
                self.assertEqual((kinds["b.1.weight"], kinds["ids"]), ("parameter", "buffer"))
                self.same(load_file(package / "weights/module1.safetensors")["b.1.weight"],
                          model.b[1].weight.detach(), "unused")

    def test_unused_names_of_one_weight(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
                self.b.weight, self.c.bias = self.a.weight, self.b.bias

            def forward(self, x):
                return self.a(x)

        model = Tied()
        for strict in (False, True):
            with self.subTest(strict=strict):
                manifest, _ = self.check(model, [torch.randn(3, 4)], strict=strict)
                self.assertEqual(sorted(manifest["tied"]),
                                 [["a.weight", "b.weight"], ["b.bias", "c.bias"]])
                held = [w["name"] for m in manifest["modules"] for w in m["held"]]
                self.assertEqual(sorted(held), ["a.bias", "a.weight", "b.bias", "c.weight"])

    def test_bools_where_a_number_is_taken(self):
        """The results have Python's dtype: a bool leaves a mask a mask."""
        two = torch.tensor([1, 0])
        calls = {
            "eq": lambda m, x: (m == False, x != True, torch.eq(x.bool(), True)),  # noqa: E712
            "full": lambda m, x: (torch.full((2, 3), True), torch.full((2,), False, dtype=x.dtype)),
            "like": lambda m, x: (torch.full_like(m, False), torch.full_like(x, True),
                                  x.new_full((2,), True), m.new_full((2,), True)),
            "where": lambda m, x: (torch.where(m, True, False), torch.where(m, x, True),
                                   torch.where(m, False, x), torch.where(m, True, 2.5),
                                   torch.where(m, m, True), torch.where(m, True, 3)),
            "mul": lambda m, x: (x * True, m * True, two * True, m + True, True / x,
                                 two / True, m.int() * False, 2 * True * x),
            "and": lambda m, x: (m & True, m | True, m ^ True, two & True, True ^ m,
                                 torch.bitwise_or(m, False), torch.bitwise_and(two, True)),
            "fill": lambda m, x: (m.masked_fill(m, False), x.masked_fill(m, True),
                                  m.clone().fill_(True), x.clone().fill_(True),
                                  m.clone().masked_fill_(m, False), (x * 1).mul_(True)),
            "index": lambda m, x: (m.index_fill(0, two, True), x.index_fill(1, two, False),
                                   m.scatter(1, two[None], True), x.scatter(1, two[None], True)),
            "pad": lambda m, x: (torch.nn.functional.pad(m, (1, 1), value=True),
                                 torch.constant_pad_nd(x, (1, 0), True)),
            "more": lambda m, x: (torch.add(m, m, alpha=True),
                                  two.clamp(True), x.clamp(min=False, max=True), x ** True,
                                  torch.tensor(True) | m, m < True,
                                  torch.fmod(two, True), torch.lerp(x, 2 * x, True)),
            "set": lambda m, x: m.clone().index_put((two,), torch.tensor(True)),
        }

        class Calls(nn.Module):
            def __init__(self, body):
                super().__init__()
                self.a, self.body = nn.Linear(3, 3), body

            def forward(self, m, x):
                x = self.a(x)
                out = self.body(m, x)
                pipe_split()
                return out, x + 1

        m, x = torch.rand(2, 3) > 0.5, torch.randn(2, 3)
        for name, body in calls.items():
            with self.subTest(name):
                self.check(Calls(body), [m, x], modules=2, tolerance=1e-6)

    def test_a_comparison_of_sizes_as_a_number(self):
        class Sizes(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(3, 3)

            def forward(self, x):
                large = x.shape[0] > 4
                x = self.a(x)
                pipe_split()
                return x * torch.sym_ite(large, 2, 1), x.detach().bool() * (x.shape[0] % 2 == 0)

        batch = torch.export.Dim("batch", min=2, max=64)
        self.check(Sizes(), [torch.randn(6, 3)], modules=2, dynamic=({0: batch},),
                   run=([torch.randn(3, 3)], None), tolerance=1e-6)

    def test_arithmetic_on_sizes(self):
        calls = {
            "power": lambda n: (torch.zeros(n ** 2), torch.ones(n ** 3, n ** 1),
                                torch.ones(2 ** n)),
            "shift": lambda n: (torch.zeros(n << 1), torch.ones(n >> 1)),
            "divide": lambda n: (torch.zeros(n // 2), torch.zeros(-(-n // 2))),
            "choose": lambda n: (torch.zeros(max(n, 5)), torch.zeros(min(n, 5))),
            "float": lambda n: (torch.ones(2) * (n / 2) ** 2, torch.ones(2) * n ** -0.5),
        }

        class Sizes(nn.Module):
            def __init__(self, body):
                super().__init__()
                self.a, self.body = nn.Linear(3, 3), body

            def forward(self, x):
                made = self.body(x.shape[0])
                x = self.a(x)
                pipe_split()
                return x + sum(y.sum() for y in made), made

        batch = torch.export.Dim("batch", min=4, max=12)
        for name, body in calls.items():
            with self.subTest(name):
                self.check(Sizes(body), [torch.randn(6, 3)], modules=2, dynamic=({0: batch},),
                           run=([torch.randn(4, 3)], None), tolerance=1e-6)

    def test_empty_modules_are_dropped(self):
        class Markers(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                pipe_split()
                x = self.a(x)
                pipe_split()
                pipe_split()
                x = self.b(x)
                pipe_split()
                return x

        self.check(Markers(), [torch.randn(3, 4)], modules=2)

    def test_large_float_constants(self):
        """LibTorch prints some like integers."""
        class Fills(TwoLayers):
            def forward(self, x):
                s = torch.full((x.shape[0], 4), -1e12)
                s[:, :2] = self.a(x)[:, :2]
                y = torch.nan_to_num(s, posinf=1e10) * 0.5
                fills = [torch.full((2,), value) for value in (1e9, 123456789012.5, 1e16, 1e17, 1e30)]
                return (y.amax(1), F.pad(y, (1, 1), value=-1e10), torch.arange(4) * 1e15, torch.clamp(x, -1e11, 1e11),
                        *fills)

        self.check(Fills(), [torch.randn(3, 4)])

    def test_a_size_before_a_change_of_shape(self):
        class Reshapes(TwoLayers):
            def forward(self, x):
                n = x.shape[0]
                h = self.a(x)
                pipe_split()
                h.unsqueeze_(0)
                return self.b(h).sum() / n
        self.check(Reshapes(), [torch.randn(6, 4)], dynamic=({0: torch.export.Dim("batch")},), close=1e-6, tolerance=1e-5)

    def test_gradients_of_zeros(self):
        class Gates(TwoLayers):
            def forward(self, x):
                gate = torch.bernoulli(torch.sigmoid(self.a(x)))
                pipe_split()
                return self.b(x * gate)
        export(Gates(), [torch.randn(3, 4)], self.at / "model.pt2")
        manifest, package = self.compile(self.at / "model.pt2")
        x = torch.randn(3, 4)
        found = self.run_modules(package, {"x": x, "gradient.0": torch.randn(3, 4)})
        self.assertIn("gradient:a.weight", found)

    def test_item_in_decomposed_exports(self):
        class Items(nn.Module):
            def forward(self, x, mask):
                n = mask.sum().item()
                torch._check(n >= 0)
                torch._check(n <= x.shape[0])
                return x[:n] * 2
        self.check(Items(), [torch.randn(5, 4), torch.tensor([True, False, True, True, False])], decompose=True)


class FirstNumbers(nn.Module):
    """Passes a Python number where ATen's first argument is a tensor."""

    def forward(self, x):
        mask = x > 0
        y, n, dot = x.bfloat16(), mask.long(), x.sum()
        return (torch.add(0.3333, mask.float(), alpha=0.6667), torch.sub(0.7, x, alpha=2),
                torch.add(2, mask, alpha=3), torch.add(0.1, n, alpha=3), torch.add(1, n, alpha=3),
                torch.add(0.3333, y, alpha=0.1), torch.sub(0.1, dot, alpha=0.3),
                torch.true_divide(1.5, x), torch.mul(0.7, y), torch.rsub(x, 0.3, alpha=2),
                torch.where(mask, 0.5, x), torch.pow(2, x), torch.sub(3, y, alpha=2))


class FirstNumbersTest(CompilerTest):
    def test_the_bits_of_python(self):
        self.check(FirstNumbers(), [torch.randn(4, 6)])


if __name__ == "__main__":
    unittest.main()
