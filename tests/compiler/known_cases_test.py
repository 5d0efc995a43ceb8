"""Cuts with known answers, each against the uncut model."""
import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from support import CompilerTest, call, export, pipe_split, save_file, unittest


class Tangled(nn.Module):
    """One matrix in stages 0 and 1, a skip from 0 to 2."""

    def __init__(self):
        super().__init__()
        self.mm, self.mm2 = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        x = x @ self.mm
        skip = x
        x = torch.relu(x)
        pipe_split()
        x = self.lin(x @ self.mm)
        pipe_split()
        x = torch.relu(x) + skip
        x = x @ self.mm2
        pipe_split()
        return torch.relu(self.lin(x))


class KnownCases(CompilerTest):
    def held(self, manifest):
        return [[w["name"] for w in m["held"]] for m in manifest["modules"]]

    def test_1_a_parameter_in_two_stages_and_a_skip(self):
        model = Tangled()
        manifest, _ = self.check(model, [torch.randn(3, 8)], modules=4, tolerance=1e-5)
        names = {name for held in self.held(manifest) for name in held}
        self.assertEqual(names, set(model.state_dict()))
        self.assertEqual(self.held(manifest)[0], ["mm"])
        self.assertIn("mm", self.held(manifest)[1])

    def test_2_an_input_used_last(self):
        class Late(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

            def forward(self, x, y):
                for i, layer in enumerate(self.l):
                    if i:
                        pipe_split()
                    x = torch.relu(layer(x))
                return x + y

        manifest, _ = self.check(Late(), [torch.randn(3, 4), torch.randn(3, 4)], modules=4)
        self.assertEqual(["y" in m["inputs"] for m in manifest["modules"]], [False] * 3 + [True])

    def test_3_two_names_for_one_parameter_and_one_module(self):
        class Names(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
                self.b = self.a
                self.w = nn.Parameter(torch.randn(4, 4))
                self.v = self.w

            def forward(self, x):
                x = self.a(x) @ self.w
                pipe_split()
                return self.b(x) @ self.v

        model = Names()
        manifest, _ = self.check(model, [torch.randn(3, 4)], modules=2, tolerance=1e-5)
        self.assertEqual(sorted(manifest["tied"]), [["a.bias", "b.bias"], ["a.weight", "b.weight"],
                                                    ["v", "w"]])
        self.assertEqual(len(manifest["shared"]), 3)

    def test_4_a_marker_in_a_block_called_twice(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x, *, scale):
                x = torch.relu(self.a(x))
                pipe_split()
                return self.b(x) * scale

        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Block()

            def forward(self, x):
                scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
                x = self.block(x, scale=scale)
                pipe_split()
                return self.block(x, scale=scale)

        manifest, _ = self.check(Twice(), [torch.randn(3, 4)], modules=4, tolerance=1e-5)
        self.assertEqual([w["name"] for m in manifest["modules"] for w in m["held"]
                          if w["kind"] == "constant"], ["lifted_tensor_0"])

    def test_5_a_sequential_with_one_layer_twice(self):
        layers = [nn.Linear(4, 4) for _ in range(5)]
        model = nn.Sequential(*layers, layers[0])
        manifest, _ = self.check(model, [torch.randn(3, 4)], ["--split", "children:"], modules=6,
                                 tolerance=1e-5)
        self.assertEqual(sorted(manifest["tied"]), [["0.bias", "5.bias"], ["0.weight", "5.weight"]])
        self.assertEqual([[h["module"] for h in group] for group in manifest["shared"]],
                         [[0, 5], [0, 5]])

    def test_transmitted_weights_in_lists(self):
        """A list of one later module, and one that the first module uses, too."""
        class Lists(nn.Module):
            def __init__(self, early):
                super().__init__()
                self.p, self.q, self.early = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8)), early

            def forward(self, x):
                both = [self.p, self.q]
                x = x * torch.cat(both)[:8] if self.early else x * self.p
                pipe_split()
                x = torch.tanh(x) + torch.stack(both).sum(0)
                pipe_split()
                return x * torch.stack(both).mean(0)

        for early in (False, True):
            with self.subTest(early=early):
                self.check(Lists(early), [torch.randn(3, 8)], ["--shared", "transmit"], modules=3)

    def test_6_transmit(self):
        manifest, package = self.check(Tangled(), [torch.randn(3, 8)],
                                       ["--shared", "transmit:mm"], modules=4, tolerance=1e-5)
        outputs = manifest["modules"][0]["outputs"]
        self.assertEqual(len(outputs), 3)
        self.assertEqual(outputs[2], "mm_sent")
        self.assertNotIn("mm", self.held(manifest)[1])
        sent = next(v for v in manifest["values"] if v["name"] == "mm_sent")
        self.assertTrue(sent["gradient"])
        self.assertEqual((sent["weight"], sent["from"], sent["to"]), ("mm", 0, [1]))
        manifest, _ = self.check(Tangled(), [torch.randn(3, 8)], ["--shared", "transmit"],
                                 modules=4, tolerance=1e-5)
        self.assertEqual(manifest["shared"], [])

    def test_7_the_gradient_of_two_consumers_is_the_sum(self):
        class Fan(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                x = self.a(x)
                pipe_split()
                y = self.b(x)
                pipe_split()
                return self.c(x) + y

        self.check(Fan(), [torch.randn(3, 4)], modules=3, tolerance=1e-6)

    def test_8_loss_in_the_graph(self):
        class Loss(nn.Module):
            def __init__(self, only):
                super().__init__()
                self.a, self.b, self.only = nn.Linear(4, 4), nn.Linear(4, 2), only

            def forward(self, x, target):
                x = torch.relu(self.a(x))
                pipe_split()
                out = self.b(x)
                loss = F.mse_loss(out, target)
                return loss if self.only else (out, loss)

        x, target = torch.randn(8, 4), torch.randn(8, 2)
        save_file({"x": x, "t": target}, self.at / "data.safetensors")
        job = {"data": {"tensors": str(self.at / "data.safetensors"),
                        "inputs": {"x": "x", "target": "t"}, "shuffle": False},
               "optimizer": {"type": "sgd", "lr": 0.1}, "schedule": "1f1b", "microbatches": 2,
               "microbatch_size": 4, "steps": 3, "threads": 1}
        for only, index in ((False, 1), (True, 0)):
            torch.manual_seed(1)
            model = Loss(only)
            export(model, [x[:4], target[:4]], self.at / "loss.pt2")
            manifest, package = self.compile(self.at / "loss.pt2")
            self.assertIn("target", manifest["modules"][1]["inputs"])
            optimizer, expected = torch.optim.SGD(model.parameters(), 0.1), []
            for _ in range(3):
                losses = []
                for i in (0, 4):
                    out = model(x[i:i + 4], target[i:i + 4])
                    loss = out if only else out[1]
                    (loss / 2).backward()
                    losses.append(loss.item())
                expected.append(losses)
                optimizer.step()
                optimizer.zero_grad()
            (self.at / "job.json").write_text(json.dumps({**job, "loss": {"output": index}}))
            result = call("pipewright-run", "--in-process", 2, "train", package,
                          self.at / "job.json", "--metrics", self.at / "m.jsonl")
            self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
            found = [json.loads(line)["losses"] for line in
                     (self.at / "m.jsonl").read_text().splitlines()]
            torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
        (self.at / "job.json").write_text(json.dumps({**job, "loss": {"output": 3}}))
        result = call("pipewright-run", "--in-process", 2, "train", package, self.at / "job.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("has no output 3", result.stderr)
        self.assertIn("its outputs: mse_loss", result.stderr)

    def test_10_split_and_two_outputs(self):
        class Swap(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a * b, a + b

            @staticmethod
            def backward(ctx, first, second):
                a, b = ctx.saved_tensors
                return first * b + second, first * a + second

        class Pairs(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 4)

            def forward(self, x):
                left, right = self.a(x).split(4, -1)
                pipe_split()
                left, right = Swap.apply(left, right)
                pipe_split()
                return self.b(left) * 2 + torch.sin(right)

        self.check(Pairs(), [torch.randn(3, 4)], modules=3, tolerance=1e-6)

    def test_11_integers_and_values_without_gradient(self):
        class Kinds(nn.Module):
            def __init__(self):
                super().__init__()
                self.e, self.a = nn.Embedding(8, 4), nn.Linear(4, 4)

            def forward(self, ids):
                x = self.e(ids)
                best = x.argmax(-1)
                unused = self.a(x) * 0.0
                fixed = x.detach() * 2
                pipe_split()
                return self.a(x) + self.e(best) + unused + fixed

        manifest, _ = self.check(Kinds(), [torch.randint(8, (3, 5))], modules=2, tolerance=1e-5)
        gradient = {v["name"]: v.get("gradient") for v in manifest["values"]}
        self.assertFalse(gradient["best"])


if __name__ == "__main__":
    unittest.main()
