"""Python written by `pipewright codegen` runs, and its stages composed give the fused model."""
import importlib
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support
import torch

DATA = support.ROOT / "tests/data/pipedream"
PROFILES = DATA / "profiler/image_classification/profiles"
PIPEWRIGHT = support.BUILD / "pipewright"


def run(*arguments):
    return subprocess.run([PIPEWRIGHT, *map(str, arguments)], check=True, capture_output=True, text=True)


class Codegen(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        sys.path.insert(0, str(self.folder))
        self.addCleanup(sys.path.remove, str(self.folder))
        importlib.invalidate_caches()

    def check(self, graph, name, size=224):
        run("codegen", graph, "-n", "Net", "-a", name, "-o", self.folder / name)
        package = importlib.import_module(name)
        self.assertEqual(package.arch(), name)
        torch.manual_seed(0)
        fused = package.full_model().eval()
        *stages, (criterion, last, loss) = package.model("criterion")
        self.assertEqual((criterion, loss), ("criterion", ["loss"]))
        values = {"input0": torch.randn(1, 3, size, size)}
        with torch.no_grad():
            expected = fused(values["input0"])
            for (stage, takes, gives), source in zip(stages, fused.children()):
                stage.load_state_dict(source.state_dict())
                out = stage.eval()(*[values[value] for value in takes])
                out = out if isinstance(out, tuple) else (out,)
                self.assertEqual(len(out), len(gives))
                values.update(zip(gives, out))
        self.assertTrue(torch.equal(values[last[0]], expected))
        self.assertEqual(tuple(expected.shape), (1, 1000))
        return fused

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


if __name__ == "__main__":
    unittest.main()
