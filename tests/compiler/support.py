"""Shared code of the compiler's tests: export a model, compile it, run the modules, compare."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", ROOT / "build"))
try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.distributed.pipelining import pipe_split
except ImportError as error:
    print(f"SKIPPED: no Python with torch ({error})")
    sys.exit(77)

torch.set_num_threads(1)
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def call(program, *arguments):
    path = BUILD / "tests" / program if program.startswith("run_") else BUILD / program
    return subprocess.run([str(path), *map(str, arguments)], capture_output=True, text=True,
                          timeout=1200, env=ENVIRONMENT, errors="replace")


def export(model, inputs, path, dynamic=None, kwargs=None, strict=False, decompose=False):
    program = torch.export.export(model, tuple(inputs), kwargs=kwargs, dynamic_shapes=dynamic,
                                  strict=strict)
    if decompose:
        program = program.run_decompositions()
    torch.export.save(program, path)


def flat(result):
    return torch.utils._pytree.tree_leaves(result)


def copies(inputs):
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)


class CompilerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        torch.manual_seed(0)

    def compile(self, path, *options, code=0):
        package = self.at / "model.pkg"
        result = call("pipewright", "compile", path, "-o", package, *options)
        text = result.stdout + result.stderr
        self.assertEqual(result.returncode, code, text)
        return (json.loads((package / "manifest.json").read_text()), package) if code == 0 else text

    def code(self, package, module):
        return (package / f"modules/module{module}.py").read_text()

    def run_modules(self, package, inputs, train=True):
        """Runs the modules. `inputs`: name -> tensor, including "gradient.0" and so on."""
        save_file({k: v.contiguous() for k, v in inputs.items()}, self.at / "in.safetensors")
        result = call("run_package", package, self.at / "in.safetensors",
                      self.at / "out.safetensors", *(["train"] if train else []))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        if train and "PIPEWRIGHT_LISTS" in os.environ:
            result = call("run_lists", package, self.at / "in.safetensors")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            if "PIPEWRIGHT_LISTS_LOG" in os.environ:
                with open(os.environ["PIPEWRIGHT_LISTS_LOG"], "a") as log:
                    log.write(f"{self.id()}\n{result.stdout}")
        return load_file(self.at / "out.safetensors")

    def same(self, found, expected, what, tolerance=0):
        self.assertEqual(found.dtype, expected.dtype, what)
        self.assertEqual(found.shape, expected.shape, what)
        if tolerance == 0:
            self.assertTrue(torch.equal(found, expected), f"{what}: {found} {expected}")
        else:
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)

    def check(self, model, inputs, options=(), dynamic=None, kwargs=None, modules=None, run=None,
              train=True, tolerance=0, strict=False, script=None, close=0, decompose=False):
        """Checks that the composed modules have the model's outputs and gradients, bit for bit.

        `run`: inputs to run with, if not those of the export. `tolerance`: for gradients, if a
        weight is shared or a value has several consumers: the order of the sum is not autograd's.
        `close`: for outputs, if a value that crosses is not contiguous in the model.
        `script`: makes a TorchScript module of the model, which is compiled instead of an export.
        """
        model.train(train)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        path = self.at / ("model.pt" if script else "model.pt2")
        if script:
            made = script(model)
            made.load_state_dict(state)  # tracing ran the model
            made.save(path)
        else:
            export(model, copies(inputs), path, dynamic, kwargs, strict, decompose)
        model.load_state_dict(state)
        manifest, package = self.compile(path, *options)
        if modules is not None:
            self.assertEqual(len(manifest["modules"]), modules)
        for index, run_with in enumerate([(inputs, kwargs)] + ([run] if run else [])):
            model.load_state_dict(state)
            given, keywords = run_with
            expected = flat(model(*copies(given), **(keywords or {})))
            tensors = flat((tuple(given), keywords or {}))
            names = [i for i in manifest["inputs"]]
            self.assertEqual(len(names), len(tensors))
            feed = dict(zip(names, [t if isinstance(t, torch.Tensor) else torch.tensor(t)
                                    for t in tensors]))
            model.zero_grad()
            loss = 0
            for i, value in enumerate(expected):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    feed[f"gradient.{i}"] = torch.randn_like(value)
                    loss = loss + (value * feed[f"gradient.{i}"]).sum()
            if isinstance(loss, torch.Tensor):
                loss.backward()
            found = self.run_modules(package, feed, train)
            for i, value in enumerate(expected):
                if value is not None and not isinstance(value, str):
                    self.same(found[f"output.{i}"], torch.as_tensor(value).detach(), f"output {i}",
                              close)
            first = {n: group[0] for group in manifest.get("tied", []) for n in group}
            for name, parameter in model.named_parameters():
                name = first.get(name, name)
                if parameter.grad is not None:
                    self.same(found["gradient:" + name], parameter.grad, name, tolerance)
            for name, buffer in model.named_buffers():
                if "buffer:" + first.get(name, name) in found:
                    self.same(found["buffer:" + first.get(name, name)], buffer, name, close)
        return manifest, package
