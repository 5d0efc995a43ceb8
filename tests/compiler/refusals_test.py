"""Models that cannot be compiled are refused with the place and the cure."""
import json
import zipfile

import torch
import torch.nn as nn
from models_test import GPT
from support import CompilerTest, call, export, pipe_split, unittest


class Two(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


class Reads(nn.Module):
    """A module whose result depends on the memory layout of its input."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(4, 4)

    def forward(self, x):
        return self.c(torch.as_strided(x, (2, 4), (4, 1)))


class Asks(Reads):
    def forward(self, x):
        y = self.c(torch.zeros(3, 4)) * x.stride(0)
        return -y if x.is_contiguous() else y


class Parts(nn.Module):
    """Passes a slice of a tensor, or a tensor with its own memory, to `reads`."""

    def __init__(self, reads, part=True):
        super().__init__()
        self.a, self.reads, self.part = nn.Linear(4, 4), reads, part

    def forward(self, x):
        y = self.a(x)
        return self.reads(y[:, 1:3] if self.part else torch.tanh(y.t()))


class Refusals(CompilerTest):
    def refused(self, body, *parts, options=()):
        export(Two(body), [torch.randn(3, 4)], self.at / "model.pt2")
        text = self.compile(self.at / "model.pt2", *options, code=1)
        for part in parts:
            self.assertIn(part, text)
        self.assertFalse((self.at / "model.pkg").exists())
        return text

    def test_weights_that_a_package_cannot_hold(self):
        class Wide(nn.Module):
            def __init__(self, name, value):
                super().__init__()
                self.a = nn.Linear(4, 4)
                self.register_buffer(name, value)
                self.name = name

            def forward(self, x):
                return self.a(x) * getattr(self, self.name).real

        line = Wide.forward.__code__.co_firstlineno + 1
        for name, value, what in (
                ("wide", torch.ones(4, dtype=torch.complex128),
                 "complex128 cannot be written to safetensors\n"
                 "  keep it in another dtype, and convert it where the model uses it"),
                ("wi\"de", torch.ones(4, dtype=torch.complex64),
                 "the code of a module cannot name it\n"
                 "  rename it in the model: a name that is not a Python keyword, without quotes, "
                 "backslashes and letters beyond ASCII")):
            export(Wide(name, value), [torch.randn(3, 4)], self.at / "model.pt2")
            text = self.compile(self.at / "model.pt2", code=1)
            shown = name.replace('"', '\\"')
            self.assertEqual(text, f"pipewright: {self.at}/model.pt2: weight \"{shown}\", aten::real, the model "
                                   f"itself, {__file__}:{line}: {what}\n")

    def test_cut_in_a_no_grad_region(self):
        def body(m, x):
            with torch.no_grad():
                x = m.a(x)
                pipe_split()
                x = m.b(x)
            return m.a(x)

        self.refused(body, "the cut of pipe_split(), ", "lies inside a torch.no_grad() region",
                     "move the marker out", "linear (submodule \"a\", ", "refusals_test.py")

        def last(m, x):
            with torch.no_grad():
                x = m.a(x)
            return m.b(x)

        self.refused(last, "the cut after a, after linear (submodule \"a\", ",
                     "refusals_test.py", "lies inside a torch.no_grad() region",
                     options=["--split-after", "a"])

    def test_autocast(self):
        def body(m, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = torch.relu(m.a(x))
            return m.b(x)

        path = self.at / "model.pt2"
        export(Two(body).eval(), [torch.randn(3, 4)], path)
        self.changed(path, "other.pt2", "models/model.json", lambda t: t.replace(
            '{"as_string": "cpu"}', '{"as_string": "cuda"}').replace(
            '{"as_string":"cpu"}', '{"as_string":"cuda"}'))
        self.assertIn('enter torch.autocast("cpu"', self.compile(self.at / "other.pt2", code=1))
        export(Two(body).eval(), [torch.randn(3, 4)], path, strict=True)
        self.assertIn("strict=False", self.compile(path, code=1))

    def test_memory_that_a_cut_does_not_keep(self):
        x = torch.randn(3, 4)
        pt2 = lambda model, path: export(model, [x], path)
        traced = lambda model, path: torch.jit.trace(model, x).save(str(path))
        scripted = lambda model, path: torch.jit.script(model).save(str(path))
        for name, save, reads, what in (
                ("model.pt2", pt2, Reads, "as_strided"), ("model.pt", traced, Reads, "as_strided"),
                ("model.pt", scripted, Reads, "as_strided"), ("model.pt", scripted, Asks, "stride")):
            with self.subTest(save=name, reads=reads.__name__):
                path = self.at / name
                line = reads.forward.__code__.co_firstlineno + 1
                save(Parts(reads()), path)
                text = self.compile(path, "--split", "modules:reads", code=1)
                self.assertRegex(text, rf'{what}, submodule "reads", \S*refusals_test\.py:{line}: depends')
                self.assertRegex(text, r"of slice \(the model itself, \S*refusals_test\.py:\d+\) lies in "
                                 r"memory; the cut between modules 0 and 1")
                self.assertIn("before the cut (.clone())", text)
                self.compile(path, "--split", "equal:1")
                # Cuts chosen by the compiler avoid the place, and a tensor without gaps may cross
                # there.
                manifest, _ = self.compile(path, "--split", "equal:2")
                self.assertEqual(len(manifest["modules"]), 2)
                save(Parts(reads(), part=False), path)
                self.compile(path, "--split", "modules:reads")

    def test_cut_in_vmap(self):
        def body(m, x):
            def one(row):
                row = m.a(row)
                pipe_split()
                return m.b(row)

            return torch.vmap(one)(x)

        self.refused(body, "lies inside torch.vmap", "move the marker out", "refusals_test.py")

    def test_derivatives_in_the_model(self):
        def body(m, x):
            return torch.func.jvp(m.a, (x,), (x,))[1]

        self.refused(body, "torch.func", "write the derivative as operations")

    def test_view_written_on_the_other_side(self):
        def body(m, x):
            y = m.a(x)
            z = y[:, :2]
            pipe_split()
            y.add_(1)
            return m.b(y).sum() + z.sum()

        self.refused(body, "add_", "a cut separates the two", "makes a new tensor",
                     "refusals_test.py")

    def test_the_line_of_an_operation_on_a_number(self):
        class Writes(Two):
            def forward(self, x):
                y = self.a(x)
                z = y[:, :2]
                pipe_split()
                y.add_(1)
                return self.b(y).sum() + z.sum()

        line = Writes.forward.__code__.co_firstlineno + 4
        for strict in (False, True):
            export(Writes(None), [torch.randn(3, 4)], self.at / "model.pt2", strict=strict)
            text = self.compile(self.at / "model.pt2", code=1)
            self.assertRegex(text, rf"add_, the model itself, \S*refusals_test\.py:{line}: writes")

    def test_buffer_of_two_modules(self):
        def body(m, x):
            y = m.a(x) + m.seen
            pipe_split()
            m.seen.add_(1)
            return m.b(y)

        self.refused(body, "a buffer that is written belongs to one module",
                     "cut before or after all that uses the buffer")

    def test_operators_of_python(self):
        @torch.library.custom_op("ours::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @twice.register_fake
        def _(x):
            return torch.empty_like(x)

        self.refused(lambda m, x: torch.ops.ours.twice(m.a(x)), "ours.twice",
                     "do not exist without Python", "refusals_test.py")

    def test_arguments_that_torchscript_has_no_form_for(self):
        text = self.refused(
            lambda m, x: torch.gradient(m.a(x), spacing=[2.0, 2.1], dim=(0, 1))[0],
            "aten::gradient, the model itself", "refusals_test.py",
            "is called with (Tensor, List[float], List[int], int), which none of its overloads takes",
            "write that line with other operations")
        self.assertNotIn("INTERNAL ASSERT", text)

    def test_splits(self):
        path = self.at / "model.pt2"
        export(GPT(), [torch.randint(32, (3, 8))], path)
        for split, code, part in (
                ("modules:blocks.9", 1, 'did you mean "blocks.'),
                ("modules:", 2, "requires names"),
                ("equal:0", 2, "requires a number"),
                ("equal:1000", 1, "operations"),
                ("half", 2, "modules:half cuts before"),
                ("equl:2", 2, 'did you mean "equal"'),
                ("2", 2, "balanced:2"),
                ("at:2", 2, "expected markers")):
            with self.subTest(split):
                self.assertIn(part, self.compile(path, "--split", split, code=code))
        text = self.compile(path, "--ranks", 5, code=1)
        self.assertIn("4 modules cannot be grouped into 5 stages", text)
        self.assertIn("--split equal:5", text)

    def test_more_ranks_than_a_model_without_markers_has_modules(self):
        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))

            def forward(self, x):
                return self.layers(x)

        export(Plain(), [torch.rand(2, 3)], self.at / "plain_model.pt2")
        torch.jit.trace(Plain(), torch.rand(2, 3)).save(str(self.at / "plain_model.pt"))
        for name in ("plain_model.pt2", "plain_model.pt"):
            text = self.compile(self.at / name, "--ranks", 2, code=1)
            self.assertIn("1 module cannot be grouped into 2 stages, one per rank: nothing says where",
                          text)
            self.assertIn("--split equal:2, --split modules:NAME", text)
            self.compile(self.at / name, "--ranks", 2, "--split", "equal:2")

    def test_other_files(self):
        good = self.at / "good.pt2"
        model = GPT()
        export(model, [torch.randint(32, (3, 8))], good)
        torch.save(model.state_dict(), self.at / "weights.pt")
        torch.save(model, self.at / "whole.pt")
        for name, value in (("old_whole.pt", model), ("old_weights.pt", model.state_dict())):
            torch.save(value, self.at / name, _use_new_zipfile_serialization=False)
        (self.at / "text.pt2").write_text("hello")
        content = good.read_bytes()
        (self.at / "short.pt2").write_bytes(content[:len(content) // 2])
        with zipfile.ZipFile(self.at / "plain.pt2", "w") as out:
            out.writestr("a/b", "c")
        self.changed(good, "major.pt2", "models/model.json",
                     lambda t: t.replace('"major": 8', '"major": 7').replace('"major":8', '"major":7'))
        self.changed(good, "pickled.pt2", "data/weights/model_weights_config.json",
                     lambda t: t.replace('"use_pickle": false', '"use_pickle": true'))
        scripted = self.at / "scripted.pt"
        torch.jit.script(torch.nn.Linear(3, 3)).save(str(scripted))
        record = "version" if "scripted/version" in zipfile.ZipFile(scripted).namelist() else ".data/version"
        self.changed(scripted, "newer.pt", record, lambda t: "99")
        self.changed(good, "broken.pt2", "models/model.json", lambda t: t[:-9])
        self.changed(good, "small.pt2", "data/weights/weight_0", lambda t: t[:-8], binary=True)
        for name, part in (("weights.pt", "holds weights only"), ("old_weights.pt", "holds weights only"),
                           ("whole.pt", "is a pickled module (torch.save(model)) of the class "),
                           ("old_whole.pt", "is a pickled module"),
                           ("text.pt2", "not an exported model"), ("short.pt2", "cut off"),
                           ("missing.pt2", "No such file"), ("plain.pt2", "is not an archive of PyTorch"),
                           ("newer.pt", "has format version 99; this LibTorch reads 1 to "),
                           ("major.pt2", "re-export with torch"), ("pickled.pt2", "pickle"),
                           ("broken.pt2", "is not JSON"), ("small.pt2", "its record has")):
            with self.subTest(name):
                text = self.compile(self.at / name, code=1)
                self.assertIn(part, text)
                self.assertIn(name, text)
                self.assertNotIn("Exception raised from", text)

    def changed(self, source, name, record, change, binary=False):
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(self.at / name, "w") as new:
            for item in old.infolist():
                data = old.read(item)
                if item.filename.endswith(record):
                    before = data
                    data = change(data) if binary else change(data.decode()).encode()
                    self.assertNotEqual(before, data)
                new.writestr(item.filename, data)

    def test_output_folders(self):
        path = self.at / "model.pt2"
        export(GPT(), [torch.randint(32, (3, 8))], path)
        package = self.at / "model.pkg"
        package.mkdir()
        (package / "thesis.txt").write_text("mine")
        self.assertIn("exists and is not a package", self.compile(path, code=1))
        self.assertEqual((package / "thesis.txt").read_text(), "mine")
        (package / "thesis.txt").unlink()
        self.compile(path)
        manifest, _ = self.compile(path, "--split", "equal:2")
        self.assertEqual(len(manifest["modules"]), 2)
        self.assertFalse((package / "modules/module2.py").exists())
        self.assertEqual([p.name for p in self.at.glob("*.tmp*")], [])

    def test_conf(self):
        export(GPT(), [torch.randint(32, (3, 8))], self.at / "model.pt2")
        _, package = self.compile(self.at / "model.pt2", "--ranks", 2)
        self.assertEqual(json.loads((package / "conf/mp_conf.json").read_text()),
                         {"module_to_stage_map": [0, 0, 1, 1],
                          "stage_to_rank_map": {"0": [0], "1": [1]}})
        self.assertEqual(json.loads((package / "conf/dp_conf.json").read_text()),
                         {"module_to_stage_map": [0, 0, 0, 0], "stage_to_rank_map": {"0": [0, 1]}})
        result = call("pipewright", "conf", package, "--ranks", 3, "-o", self.at / "c.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"{self.at / 'c.json'}: 4 modules, 3 stages, 3 ranks\n")
        self.assertEqual(json.loads((self.at / "c.json").read_text())["stage_to_rank_map"],
                         {"0": [0], "1": [1], "2": [2]})
        result = call("pipewright", "conf", package, "--ranks", 5)
        self.assertEqual(result.returncode, 1)
        self.assertIn("has 4 modules, too few for 5 ranks", result.stderr)


if __name__ == "__main__":
    unittest.main()
