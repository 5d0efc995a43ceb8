"""In-place writes without gradients: to values that others send, to parameters, and through .data."""
import json
import unittest

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from alone import AloneCase, Layers
from support import pipewright


class Clamped(Layers):
    """Writes to a value that it receives."""

    def forward(self, x):
        y = self.b(torch.tanh(self.a(x)))
        with torch.no_grad():
            y.clamp_(-0.5, 0.5)
        return self.c(torch.tanh(y))


class Masked(Layers):
    def forward(self, x):
        h = torch.tanh(self.a(x))
        y = self.b(h) + h
        with torch.no_grad():
            y[y > 0.3] = 0.3
        return self.c(torch.tanh(y))


class Halved(Layers):
    """Writes to a value that later modules use, too."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        y = torch.cos(self.b(h * 1))
        with torch.no_grad():
            y.mul_(0.5)
        return self.c(y) + h.sum(1, keepdim=True)


class Same(Layers):
    """Operations that return their operand."""

    def forward(self, x):
        y = self.b(torch.tanh(self.a(x)))
        with torch.no_grad():
            z = F.dropout(y.to(torch.float32), 0.5, False)
            z.mul_(0.5)
        return self.c(torch.tanh(z))


class Branches(Layers):
    """Results of branches and loops."""

    def forward(self, x):
        y = self.b(torch.tanh(self.a(x)))
        with torch.no_grad():
            if x.size(0) > 1:
                y = y.clamp_(-0.5, 0.5)
            else:
                y = y.mul_(2.0)
            for i in range(x.size(0)):
                y = y.mul_(0.9)
        return self.c(torch.tanh(y))


class Constrained(Layers):
    """Writes to a parameter."""

    def forward(self, x):
        x = torch.tanh(self.a(x))
        with torch.no_grad():
            self.b.bias.mul_(0.9)
        return self.c(torch.tanh(self.b(x)))


class Decayed(Layers):
    """Writes to a parameter that backward needs."""

    def forward(self, x):
        x = torch.tanh(self.a(x))
        with torch.no_grad():
            self.b.weight.mul_(0.99)
        return self.c(torch.tanh(self.b(x)))


class Unseen(Layers):
    def forward(self, x):
        x = torch.tanh(self.a(x))
        self.b.weight.data.mul_(0.99)
        return self.c(torch.tanh(self.b(x)))


class Placed(Layers):
    """The region's switch shares a constant with a norm, which a map places in a later module."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        v = torch.rsqrt(x.square() + 1)
        y = self.norm(torch.tanh(self.a(x)))
        with torch.no_grad():
            v.clamp_(-1, 1)
        return self.c(self.b(y)) + v[:, :3]


class Listed(Layers):
    def forward(self, x):
        x = torch.tanh(self.a(x))
        weights = [self.b.weight.data]
        for weight in weights:
            weight.mul_(0.99)
        return self.c(torch.tanh(self.b(x)))


class Counted(Layers):
    """Writes to a buffer in training only, which an export does not show."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        x = self.norm(self.a(x))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.c(torch.tanh(self.b(x)) - self.mean)


class NoGrad(AloneCase):
    def test_writes_where_gradients_are_off(self):
        for make in (Clamped, Masked, Halved, Same, Branches, Constrained):
            for script in (False, True) if make != Branches else (True,):
                expected = self.alone(make, script)
                for split in (3, 4):
                    self.compile_model(make, split, script)
                    for body in ("auto", "autograd", "lists"):
                        with self.subTest(model=make.__name__, script=script, split=split, body=body):
                            self.succeed(self.run_job(body=body))
                            self.assert_same_tensors(load_file(self.path("trained.safetensors")), expected)

    def test_a_region_before_the_module_that_its_constant_is_of(self):
        self.compile_model(Placed, {"a": 0, "norm": 1, "b": 1, "c": 2}, script=True)
        self.succeed(self.run_job())
        self.assert_same_tensors(load_file(self.path("trained.safetensors")), self.alone(Placed, script=True))

    def test_recomputing_would_write_twice(self):
        self.compile_model(Constrained, 3)
        self.assert_fails(self.run_job(recompute=True),
                          r"recompute: module1 writes to its parameter b\.bias in forward, and would write twice",
                          "list the other stages or modules")

    def test_copies_would_miss_writes(self):
        self.compile_model(Constrained, 3)
        conf = self.path("model.pkg/conf/mp_conf.json")
        conf.write_text(json.dumps({"module_to_stage_map": [0, 1, 1],
                                    "stage_to_rank_map": {"0": [0], "1": [1, 2]}}))
        self.assert_fails(self.run_job(),
                          r"stage 1 has several ranks: module1 writes to its parameter b\.bias in forward",
                          "give that stage one rank in the conf")
        self.succeed(pipewright("compile", self.path("model.pt2"), "-o", self.path("model.pkg"), "--split", "equal:3",
                                "--ranks", 3, "--force", "--dtype", "bfloat16"))
        adamw = {"type": "adamw", "lr": 0.01}
        self.succeed(self.run_job(optimizer=adamw))
        self.assert_fails(self.run_job(optimizer={**adamw, "master_weights": True}),
                          r"optimizer\.master_weights: module1 writes to its parameter b\.bias in forward",
                          "leave out master_weights")

    def test_a_parameter_that_an_earlier_microbatch_needs(self):
        self.compile_model(Decayed, 3)
        self.assert_fails(self.run_job(),
                          r"modules/module1\.py: forward writes to the parameter b\.weight, which the backward of an "
                          r"earlier microbatch still needs", '"microbatches": 1')
        self.succeed(self.run_job(microbatches=1))

    def test_writes_through_data_to_a_parameter_are_refused(self):
        for make in (Unseen, Listed):
            with self.subTest(make.__name__), self.assertRaisesRegex(
                    AssertionError, r"mul_, .*no_grad_test\.py:\d+: writes through \.data to the parameter \"b\.weight\""):
                self.compile_model(make, 3, script=True)

    def test_buffers_that_exports_write_in_every_mode_are_told(self):
        said = self.compile_model(Counted, 3)
        self.assertRegex(said, r"note: .*no_grad_test\.py:\d+: writes to the buffer \"mean\" in eval, infer and "
                               r"validation, too")
        self.assertEqual(said.count("writes to the buffer"), 1, said)
        self.assertNotIn("writes to the buffer", self.compile_model(Counted, 3, script=True))


if __name__ == "__main__":
    unittest.main()
