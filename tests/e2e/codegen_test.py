"""Python written by `pipewright codegen` runs, and its stages composed give the fused model."""
import importlib
import inspect
import pathlib
import subprocess
import sys
import tempfile
import unittest
from collections import OrderedDict

import support
import torch

DATA = support.ROOT / "tests/data/pipedream"
PROFILES = DATA / "profiler/image_classification/profiles"
PIPEWRIGHT = support.BUILD / "pipewright"

ENCODER = """
import torch


class EmuBidirLSTM(torch.nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.both = torch.nn.LSTM(input_size, hidden_size, bidirectional=True)

    def forward(self, x, lengths):
        return self.both(x)[0] / lengths[:, None]
"""
DECODER = """
import torch


class RecurrentAttention(torch.nn.Module):
    def __init__(self, input_size, context_size, hidden_size):
        super().__init__()
        self.rnn = torch.nn.LSTM(input_size, hidden_size)

    def forward(self, x, hidden, context, lengths):
        out, hidden = self.rnn(x, hidden)
        return out, hidden, (context.sum(0) / lengths[:, None]).expand_as(out), None


class Classifier(torch.nn.Module):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.classifier = torch.nn.Linear(input_size, output_size)

    def forward(self, x):
        return self.classifier(x)
"""


def run(*arguments):
    return subprocess.run([PIPEWRIGHT, *map(str, arguments)], check=True, capture_output=True, text=True)


def recurrent(cls):
    """Returns RNNBase's arguments: LSTM, GRU and RNN pass theirs on. RNN also takes a nonlinearity."""
    words = []
    for p in list(inspect.signature(torch.nn.RNNBase.__init__).parameters.values())[2:]:
        if p.name not in ("device", "dtype") and (p.name != "proj_size" or cls is torch.nn.LSTM):
            words.append(p.name + ("" if p.default is p.empty else "="))
    if cls is torch.nn.RNN:
        words.insert(3, "nonlinearity=")
    return words


def constructor(cls):
    """Returns a module's constructor in the form of plan/partition/pipedream/codegen/torch_modules.cc."""
    if cls.__init__ is torch.nn.Module.__init__:
        return []
    if issubclass(cls, torch.nn.RNNBase):
        return recurrent(cls)
    words = []
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            return ["..."]
        if p.name in ("device", "dtype") or p.name.startswith("_"):
            continue
        if p.kind == p.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(p.name + ("" if p.default is p.empty else "="))
    return words


class Codegen(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        sys.path.insert(0, str(self.folder))
        self.addCleanup(sys.path.remove, str(self.folder))
        importlib.invalidate_caches()

    def check(self, graph, name, *inputs, shape=(1, 1000)):
        run("codegen", graph, "-n", "Net", "-a", name, "-o", self.folder / name)
        package = importlib.import_module(name)
        self.assertEqual(package.arch(), name)
        torch.manual_seed(0)
        inputs = inputs or (torch.randn(1, 3, 224, 224),)
        fused = package.full_model().eval()
        *stages, (criterion, last, loss) = package.model("criterion")
        self.assertEqual((criterion, loss), ("criterion", ["loss"]))
        values = {f"input{i}": value for i, value in enumerate(inputs)}
        with torch.no_grad():
            expected = fused(*inputs)
            for (stage, takes, gives), source in zip(stages, fused.children()):
                stage.load_state_dict(source.state_dict())
                out = stage.eval()(*[values[value] for value in takes])
                out = out if isinstance(out, tuple) else (out,)
                self.assertEqual(len(out), len(gives))
                values.update(zip(gives, out))
        self.assertTrue(torch.equal(values[last[0]], expected))
        self.assertEqual(tuple(expected.shape), shape)
        return fused

    def test_torch_modules(self):
        text = (support.ROOT / "plan/partition/pipedream/codegen/torch_modules.cc").read_text()
        known = text.split('R"(\n')[1].split(')";')[0].replace("\n    ", " ").splitlines()
        wanted = []
        for name in sorted(dir(torch.nn)):
            cls = getattr(torch.nn, name)
            if (inspect.isclass(cls) and issubclass(cls, torch.nn.Module)
                    and cls.forward is not torch.nn.Module.forward):
                wanted.append(" ".join([name, *constructor(cls)]))
        self.assertEqual(known, wanted)

    def test_printed_layers_are_constructed_again(self):
        nn = torch.nn
        layers = [nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect"), nn.Bilinear(1, 2, 3),
                  nn.ConstantPad1d((1, 1), float("-inf")), nn.Unflatten(1, torch.Size([2, 3])),
                  nn.LayerNorm(4), nn.RMSNorm(4), nn.Upsample(size=(3, 3), mode="bilinear"),
                  nn.EmbeddingBag(3, 4, max_norm=1.0), nn.Embedding(3, 4, padding_idx=0), nn.PReLU(),
                  nn.Threshold(0.1, 20), nn.LPPool2d(2, 3), nn.LocalResponseNorm(2), nn.GRU(3, 4, 2),
                  nn.LSTM(3, 4, 2, False, True, 0.5, True, 2), nn.RNN(3, 4, bidirectional=True),
                  nn.UpsamplingNearest2d(scale_factor=2), nn.UpsamplingBilinear2d((3, 4)),
                  nn.Upsample(scale_factor=2, mode="nearest-exact"), nn.ZeroPad2d((0, 1, 0, 1)),
                  nn.GroupNorm(2, 4), nn.BatchNorm2d(3, momentum=None, bias=False), nn.Softshrink(),
                  nn.AdaptiveMaxPool2d((1, None)), nn.AvgPool1d(2), nn.ConvTranspose2d(3, 4, 3, stride=2),
                  nn.GELU("tanh"), nn.Softmax(1), nn.Dropout(0.25, True), nn.Identity(), nn.Sigmoid(),
                  nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Hardtanh(-2, 2)))]
        printed = [(str(layer).replace("\n", ""), layer) for layer in layers]
        # Also named children, the text of other versions, and classes that print another
        # constructor.
        conv, linear = nn.Conv2d(3, 8, 3), nn.modules.linear.NonDynamicallyQuantizableLinear(3, 4)
        named = nn.Sequential(OrderedDict([("conv", conv), ("relu 1", nn.ReLU(True)), ("a/b", nn.Tanh())]))
        printed += [(str(named).replace("\n", ""), nn.Sequential(*named)), (str(linear), nn.Linear(3, 4)),
                    (f"torch.nn.modules.conv.{conv}", conv),
                    ("UpsamplingBilinear2d(scale_factor=2.0, mode=bilinear)",
                     nn.UpsamplingBilinear2d(scale_factor=2)),
                    ("ZeroPad2d(padding=(0, 1, 0, 1), value=0.0)", nn.ZeroPad2d((0, 1, 0, 1))),
                    ("Sequential(  (0): ZeroPad2d(padding=(1, 1, 1, 1), value=0)  (1): Tanh())",
                     nn.Sequential(nn.ZeroPad2d(1), nn.Tanh())),
                    ("Upsample(scale_factor=2.0, mode=nearest-exact)",
                     nn.Upsample(scale_factor=2, mode="nearest-exact"))]
        numbers = ("forward_compute_time=1.000, backward_compute_time=1.000, activation_size=4.0, "
                   "parameter_size=1.000")
        rows = [f"node1 -- Input -- {numbers}"]
        for i, (text, _) in enumerate(printed):
            rows.append(f"node{i + 2} -- {text} -- {numbers}")
        rows += [f"\tnode{i + 1} -- node{i + 2}" for i in range(len(printed))]
        graph = self.folder / "printed.txt"
        graph.write_text("\n".join(rows))
        run("codegen", graph, "-n", "Net", "-a", "printed", "-o", self.folder / "printed")
        written = importlib.import_module("printed.stage0").Stage0()
        self.assertEqual([str(layer) for layer in written.children()], [str(layer) for _, layer in printed])

    def test_layers_of_your_own(self):
        graph = self.folder / "own.txt"
        numbers = ("forward_compute_time=1.000, backward_compute_time=1.000, activation_size=4.0, "
                   "parameter_size=1.000")
        graph.write_text(f"node1 -- Input -- {numbers}\nnode2 -- Twice(bias=3) -- {numbers}\n"
                         "\tnode1 -- node2\n")
        (self.folder / "mylayers.py").write_text(
            "import torch\n\n\nclass Twice(torch.nn.Module):\n    def __init__(self, bias):\n"
            "        super().__init__()\n        self.bias = bias\n\n"
            "    def forward(self, x):\n        return 2 * x + self.bias\n")
        template = (support.ROOT / "templates/model.py.template").read_text()
        (self.folder / "model.py").write_text("from mylayers import Twice\n" + template)
        command = ["codegen", graph, "-n", "Net", "-a", "own", "-o", self.folder / "own"]
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            run(*command)
        self.assertIn("own.txt:2:10: node node2: there is no layer Twice", refused.exception.stderr)
        self.assertIn("from MODULE import Twice", refused.exception.stderr)
        run(*command, "--model-template", self.folder / "model.py")
        model = importlib.import_module("own").full_model()
        self.assertEqual(model(torch.tensor([1.0])).item(), 5)

    def test_the_folder(self):
        graph = self.folder / "folder.txt"
        graph.write_text((DATA / "graph/test_graphs/vgg16_partitioned.txt").read_text())
        out = self.folder / "folder"
        command = ["codegen", graph, "-n", "Net", "-a", "vgg16", "-o", out]
        line = (f"{out}: 3 stages (stage0.py to stage2.py), vgg16.py, __init__.py, dp_conf.json, "
                "mp_conf.json, hybrid_conf.json\n")
        self.assertEqual(run(*command).stdout, line)
        self.assertEqual(run(*command, "--stage_to_num_ranks", "0:2").stdout, line)
        (out / "hybrid_conf.json").write_text("edited")
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            run(*command)
        self.assertIn("hybrid_conf.json: was edited since", refused.exception.stderr)
        run(*command, "--force")
        # Even --force does not overwrite the graph.
        stage = out / "stage0.py"
        stage.unlink()
        stage.symlink_to(graph)
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            run(*command, "--force")
        self.assertIn("stage0.py: is read in this run", refused.exception.stderr)

    def partition(self, name, *options):
        out = self.folder / ("partition_" + name)
        run("partition", PROFILES / name / "graph.txt", "-o", out, *options)
        return out / "graph.txt"

    def test_vgg16(self):
        fused = self.check(DATA / "graph/test_graphs/vgg16_partitioned.txt", "vgg16")
        # The weights of VGG-16, as published: 138 357 544.
        self.assertEqual(sum(p.numel() for p in fused.parameters()), 138357544)

    def test_resnet50(self):
        fused = self.check(DATA / "graph/test_graphs/resnet50_partitioned.txt", "resnet50")
        self.assertEqual(sum(p.numel() for p in fused.parameters()), 25557032)

    def test_alexnet_by_pipedream(self):
        self.check(self.partition("alexnet", "--mode", "pipedream", "-n", 4, "--straight_pipeline"), "alexnet")

    def test_branches(self):
        fused = self.check(self.partition("densenet121", "--stages", 5, "-b", "1e10"), "densenet121")
        self.assertEqual(sum(p.numel() for p in fused.parameters()), 7978856)

    def test_translation_in_ten_stages(self):
        # The cuts of the published gpus=12 conf, by the last node of each stage. Smaller.
        last = [5, 8, 13, 19, 23, 28, 33, 40, 46, 48]
        text = (DATA / "profiler/translation/profiles/gnmt/graph.txt").read_text()
        rows = []
        for row in text.replace("32320", "50").replace("1024", "16").replace("2048", "32").splitlines():
            if not row.startswith("\t"):
                node = int(row.split()[0].removeprefix("node"))
                row += f" -- stage_id={sum(node > end for end in last)}"
            rows.append(row)
        graph = self.folder / "gnmt.txt"
        graph.write_text("\n".join(rows))
        # Stand-ins for GNMT's own modules, with the same inputs and outputs.
        models = self.folder / "seq2seq/models"
        models.mkdir(parents=True)
        (models / "encoder.py").write_text(ENCODER)
        (models / "decoder.py").write_text(DECODER)
        source, target = torch.randint(50, (5, 2)), torch.randint(50, (4, 2))
        self.check(graph, "gnmt", source, torch.tensor([5, 3]), target, shape=(4, 2, 50))


if __name__ == "__main__":
    unittest.main()
