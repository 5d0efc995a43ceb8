"""Models of many kinds, cut, against PyTorch: outputs, gradients and buffers bit for bit."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from support import CompilerTest, pipe_split, unittest


class Block(nn.Module):
    def __init__(self, width, heads, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2)
                   for y in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           dropout_p=self.p if self.training else 0.0)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self, layers=4, width=16, length=8, p=0.0, tied=True):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(32, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2, p) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 32, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for i, block in enumerate(self.blocks):
            if i:
                pipe_split()
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.c1, self.b1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.frozen = nn.BatchNorm2d(4, track_running_stats=False)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)))
        pipe_split()
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        pipe_split()
        return self.fc(self.frozen(x + y).mean((2, 3)))


BATCH = torch.export.Dim("batch", min=1, max=64)


class Models(CompilerTest):
    def test_gpt_tied_dynamic_batch(self):
        idx = torch.randint(32, (3, 8))
        manifest, package = self.check(
            GPT(), [idx], dynamic={"idx": {0: BATCH}}, modules=4, tolerance=1e-5,
            run=([torch.randint(32, (5, 8))], None))
        self.assertEqual(manifest["tied"], [["lm_head.weight", "wte.weight"]])
        self.assertIn("wte.weight", self.code(package, 0))
        self.assertIn("lm_head.weight", self.code(package, 3))
        self.assertEqual([m["inputs"] for m in manifest["modules"]][0], ["idx"])
        self.assertTrue(all(len(m["inputs"]) == 1 for m in manifest["modules"]))

    def test_gpt_untied_is_exact_however_cut(self):
        model = GPT(tied=False)
        for split, modules in (("markers", 4), ("equal:3", 3), ("equal:7", 7),
                               ("modules:blocks.1,blocks.3.fc,lm_head", 4)):
            with self.subTest(split):
                self.check(model, [torch.randint(32, (3, 8))], ["--split", split],
                           modules=modules)

    def test_dropout_follows_the_training_flag(self):
        model = GPT(p=0.5)
        idx = torch.randint(32, (3, 8))
        from support import export
        export(model.train(), [idx], self.at / "model.pt2")
        manifest, package = self.compile(self.at / "model.pt2")
        self.assertTrue(manifest["exported_in_training"])
        quiet = self.run_modules(package, {"idx": idx}, train=False)["output.0"]
        self.same(quiet, model.eval()(idx).detach(), "without dropout")
        noisy = self.run_modules(package, {"idx": idx}, train=True)["output.0"]
        again = self.run_modules(package, {"idx": idx}, train=True)["output.0"]
        self.same(noisy, again, "the same key")
        self.assertFalse(torch.equal(noisy, quiet))
        _, package = self.compile(self.at / "model.pt2", "--split", "equal:2")
        self.same(self.run_modules(package, {"idx": idx})["output.0"], noisy, "cut elsewhere")

    def test_dropout_keeps_its_share(self):
        class Drop(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(()))

            def forward(self, x):
                return F.dropout(x * self.w, 0.25, self.training)

        from support import export
        x = torch.ones(100, 1000)
        export(Drop().train(), [x], self.at / "model.pt2")
        _, package = self.compile(self.at / "model.pt2")
        y = self.run_modules(package, {"x": x})["output.0"]
        self.assertEqual(sorted(y.unique().tolist()), [0.0, (torch.ones(()) / 0.75).item()])
        self.assertAlmostEqual((y == 0).float().mean().item(), 0.25, delta=0.01)

    def test_batch_norm(self):
        model = Digits()
        x = torch.randn(6, 1, 8, 8)
        _, package = self.check(model, [x], modules=3)
        self.assertEqual(model.bn.num_batches_tracked.item(), 1)
        model.load_state_dict(torch.export.load(self.at / "model.pt2").state_dict)
        found = self.run_modules(package, {"x": x}, train=False)
        self.same(found["output.0"], model.eval()(x).detach(), "in evaluation")
        self.same(found["buffer:bn.running_mean"], model.bn.running_mean, "running mean")
        self.same(found["buffer:bn.num_batches_tracked"], model.bn.num_batches_tracked, "count")

    def test_exported_in_evaluation(self):
        model = Digits()
        manifest, package = self.check(model, [torch.randn(6, 1, 8, 8)], train=False)
        self.assertFalse(manifest["exported_in_training"])

    def test_lstm(self):
        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.lstm = nn.Embedding(16, 8), nn.LSTM(8, 8, 2, batch_first=True)
                self.gru, self.head = nn.GRU(8, 8), nn.Linear(8, 4)

            def forward(self, idx):
                x = self.embed(idx)
                pipe_split()
                x, _ = self.lstm(x)
                x, _ = self.gru(x)
                pipe_split()
                return self.head(x)

        self.check(Tagger(), [torch.randint(16, (3, 5))], modules=3)

    def test_module_called_twice(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                return self.b(self.a(torch.relu(self.b(self.a(x)))))

        manifest, _ = self.check(Twice(), [torch.randn(3, 4)], ["--split", "modules:b,a@1,b@1"],
                                 modules=4, tolerance=1e-6)
        self.assertEqual(len(manifest["shared"]), 4)

    def test_results_of_regions_keep_their_names(self):
        class Regions(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                h = self.a(x)
                with torch.no_grad():
                    double, wave = h * 2, h.sin()
                with torch.autocast("cpu", torch.bfloat16):
                    low, wide = self.b(h), h.cos()
                return h, double, wave, low, wide

        manifest, _ = self.check(Regions(), [torch.randn(3, 4)], modules=1)
        self.assertEqual(manifest["outputs"], ["linear", "mul", "sin", "linear_1", "cos"])

    def test_no_grad_region(self):
        class Region(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                x = self.a(x)
                with torch.no_grad():
                    scale = self.b(x).abs().mean()
                pipe_split()
                return self.b(x) * scale

        self.check(Region(), [torch.randn(3, 4)], modules=2)

    def test_autocast(self):
        class Cast(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.ln = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
                self.head, self.conv = nn.Linear(8, 5), nn.Conv1d(4, 4, 3, padding=1)
                self.w = nn.Parameter(torch.randn(8, 8))

            def forward(self, x, target):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = self.ln(F.gelu(self.a(x))) + x
                    pipe_split()
                    q = self.b(y).view(3, 2, 2, 4)
                    y = F.scaled_dot_product_attention(q, q, q).reshape(3, 2, 8)
                    y = self.conv(torch.cat([y, x], 1))
                    with torch.autocast("cpu", enabled=False):
                        y = torch.matmul(y.float(), torch.eye(8))
                    pipe_split()
                    y = torch.einsum("bij,jk->bik", y, self.w)
                    y = self.head(F.dropout(y, 0.0, self.training)).flatten(0, 1)
                    return F.cross_entropy(y, target)

        x, target = torch.randn(3, 2, 8), torch.randint(5, (12,))
        _, package = self.check(Cast(), [x, target], modules=3)
        self.assertIn("a_weight_bfloat16", self.code(package, 0))
        self.assertNotIn("autocast", self.code(package, 1))

    def test_recurrent_layers_in_autocast(self):
        class Cast(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
                self.lstm, self.gru = nn.LSTM(8, 8, 2), nn.GRU(8, 8)

            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y, _ = self.lstm(self.a(x))
                    pipe_split()
                    y, last = self.gru(y)
                    return self.head(y), last

        _, package = self.check(Cast(), [torch.randn(3, 5, 4)], modules=2)
        self.assertIn("autocast_enter", self.code(package, 0))

    def test_vmap(self):
        class Mapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
                self.experts = nn.Parameter(torch.randn(5, 6, 6))

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                each = torch.vmap(lambda w, v: torch.tanh(v @ w).mean(0), in_dims=(0, None))(self.experts, y)
                pairs = torch.vmap(torch.vmap(lambda u, v: (u * v).sum()))(y, y.flip(1))
                pipe_split()
                return self.b(y + each.mean(0) + pairs[..., None])

        self.check(Mapped(), [torch.randn(3, 2, 4)], modules=3, dynamic={"x": {0: BATCH}},
                   run=([torch.randn(4, 2, 4)], None), tolerance=1e-6)

    def test_a_thousand_operations(self):
        class Chain(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(4))

            def forward(self, x):
                for _ in range(500):
                    x = torch.tanh(x * self.w)
                return x

        self.check(Chain(), [torch.randn(2, 4)], ["--split", "equal:5"], modules=5, tolerance=1e-5)

    def test_strict_export(self):
        self.check(GPT(tied=False), [torch.randint(32, (3, 8))], modules=4, strict=True)

    def test_same_bytes(self):
        from support import call, export
        export(GPT(), [torch.randint(32, (3, 8))], self.at / "model.pt2")
        for name in ("a", "b"):
            result = call("pipewright", "compile", self.at / "model.pt2", "-o", self.at / name)
            self.assertEqual(result.returncode, 0, result.stderr)
        files = sorted(p.relative_to(self.at / "a") for p in (self.at / "a").rglob("*.*"))
        # Code, weights, confs, the manifest and the export's example.
        self.assertEqual(len(files), 4 + 4 + 3 + 2)
        for name in files:
            self.assertEqual((self.at / "a" / name).read_bytes(), (self.at / "b" / name).read_bytes())


if __name__ == "__main__":
    unittest.main()
