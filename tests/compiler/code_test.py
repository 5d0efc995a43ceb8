"""The code of modules: what a person reads is what runs."""
import torch
import torch.nn as nn
from support import CompilerTest, export, unittest


class Casts(nn.Module):
    """Constants that a graph has as numbers, and slices without an end."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((6,), 2.0))

    def forward(self, x):
        y = self.fc(x)[:, 1:].to(torch.float64)
        z = torch.zeros(5, dtype=torch.bfloat16).to(torch.float32)
        y = y.clone(memory_format=torch.contiguous_format)[::2, 1:-1]
        return y.float() + z[2:] * 6, self.scale[None, 3:].half().sum(0, dtype=torch.float32)


class Layer(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))

    def forward(self, x):
        for step in self.steps:
            x = torch.tanh(step(x))
        return x


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        h = self.fc(x)
        h = torch.relu(h)
        a, b = h.chunk(2, -1)
        input = (a * torch.sigmoid(b)
                 + torch.tanh(a))
        y = self.out(input)
        y += x
        return x + y


class Stack(nn.Module):
    """Variables reassigned, over several lines, several at once, and named like builtins."""

    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(Gate() for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        mask = x > 0
        for gate in self.gates:
            x = gate(x)
            x = torch.where(mask, x, x * 0.5)
        lambda_x = torch.tanh(x)
        max = lambda_x * 2
        sum = torch.sin(max)
        return self.head(lambda_x + sum)


class Code(CompilerTest):
    def test_constants_have_their_names(self):
        x = torch.randn(4, 6)
        self.check(Casts(), [x], ["--split", "equal:3"], modules=3)
        text = "".join(self.code(self.at / "model.pkg", m) for m in range(3))
        for name in ("float64", "bfloat16", "float32", "float16", "contiguous_format"):
            self.assertIn("torch." + name, text)
        self.assertNotIn("9223372036854775807", text)
        self.assertNotIn("4611686018", text)

    def test_constants_of_scripted_models_too(self):
        x = torch.randn(4, 6)
        self.check(Casts(), [x], ["--split", "equal:3"], script=torch.jit.script)
        text = "".join(self.code(self.at / "model.pkg", m) for m in range(3))
        for name in ("float64", "float32", "float16", "contiguous_format"):
            self.assertIn("torch." + name, text)
        self.assertNotIn("9223372036854775807", text)

    def test_weights_take_a_line_each(self):
        export(Casts(), [torch.randn(4, 6)], self.at / "model.pt2")
        _, package = self.compile(self.at / "model.pt2")
        head, code = self.code(package, 0).split("class Module0(Module):\n")
        for line in ("parameter  fc.weight: float32 [6, 6]", "parameter  fc.bias: float32 [6]",
                     "buffer  scale: float32 [6]"):
            self.assertIn(f"#   {line}\n", head)
        self.assertTrue(code.startswith("  def forward(self, x: Tensor) -> "), code)
        self.assertEqual(code.count("fc.weight"), 1)

    def test_sizes_where_they_change(self):
        export(Casts(), [torch.randn(4, 6)], self.at / "model.pt2")
        _, package = self.compile(self.at / "model.pt2")
        code = self.code(package, 0)
        self.assertRegex(code, r"slice_ = torch\.slice\(linear, 1, 1\)  # \[4, 5\]\n")
        self.assertRegex(code, r"linear = torch\.linear\(.*\)\n")

    def test_variables_of_the_model_name_values(self):
        x = torch.randn(4, 8)
        for script in (None, torch.jit.script):
            manifest, package = self.check(Stack(), [x], ["--split", "equal:2"], script=script,
                                           modules=2)
            code = self.code(package, 1)
            for name in ("mask", "h", "a", "b", "input_", "y", "lambda_x"):
                self.assertRegex(code, rf"\b{name}\b", script)
            self.assertNotRegex(code, r"(?m)^    (input|max|sum) = ", script)
            self.assertIn("mask", [value["name"] for value in manifest["values"]])

    def test_the_last_operation_of_a_statement_is_its_variable(self):
        export(Stack(), [torch.randn(4, 8)], self.at / "model.pt2")
        manifest, package = self.compile(self.at / "model.pt2")
        code = self.code(package, 0)
        self.assertEqual(manifest["outputs"], ["linear_4"])  # jobs use this name
        for line in (r"h = torch\.linear\(x,", r"h_1 = torch\.relu\(h\)",
                     r"a, b, = torch\.chunk\(h_1,", r"mul = torch\.mul\(a, sigmoid\)",
                     r"input_ = torch\.add\(mul, tanh\)", r"y_1 = torch\.add_\(y, x\)",
                     r"x_1 = torch\.add\(x, y_1\)", r"h_2 = torch\.linear\(x_2,"):
            self.assertRegex(code, f"    {line}")

    def test_names_do_not_depend_on_chance(self):
        export(Stack(), [torch.randn(4, 8)], self.at / "model.pt2")
        texts = []
        for _ in range(2):
            _, package = self.compile(self.at / "model.pt2", "--split", "equal:3", "--force")
            texts.append([self.code(package, m) for m in range(3)])
        self.assertEqual(*texts)

    def test_equal_shares_are_cut_between_layers(self):
        """The middle is inside a layer, but as few tensors cross between two layers."""
        model = nn.Sequential(Layer(2), Layer(2), Layer(2))
        export(model, [torch.randn(2, 4)], self.at / "model.pt2")
        for modules in (2, 3):
            manifest, _ = self.compile(self.at / "model.pt2", "--split", f"equal:{modules}")
            layers = [{name.split(".")[0] for name in module["covers"]}
                      for module in manifest["modules"]]
            self.assertEqual(sum(map(len, layers)), 3, layers)


if __name__ == "__main__":
    unittest.main()
