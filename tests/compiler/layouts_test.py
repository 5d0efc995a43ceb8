"""Weights whose layout in memory does not follow the order of their dimensions."""
import torch
import torch.nn as nn
from support import CompilerTest, export, pipe_split, unittest


class Turned(nn.Module):
    """A transposed matrix whose memory is read in its own order."""

    def __init__(self, written=False):
        super().__init__()
        self.a, self.written = nn.Linear(6, 6), written
        self.w = nn.Parameter(torch.randn(6, 4).t())
        self.register_buffer("table", torch.randn(5, 6).t())

    def forward(self, x):
        h = self.a(x)
        pipe_split()
        y = h @ self.w.t() + self.w.as_strided((4,), (1,)) * self.w.t().view(-1)[5]
        if self.written:
            self.table.mul_(0.5)
        return y, self.table.as_strided((3,), (2,)) + h.sum()


class Images(nn.Module):
    """Convolutions in channels_last, one of them with a single channel and one used twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        h = torch.relu(self.norm(self.a(x)))
        pipe_split()
        return self.b(self.b(h)).flatten(1)


class Layouts(CompilerTest):
    def test_transposed_weights(self):
        self.check(Turned(), [torch.randn(3, 6)], modules=2)

    def test_channels_last(self):
        self.check(Images(), [torch.randn(2, 1, 9, 9)], modules=2)

    def test_TorchScript(self):
        self.check(Images(), [torch.randn(2, 1, 9, 9)], modules=1, script=torch.jit.script)

    def test_a_buffer_that_is_written_and_read_as_it_lies(self):
        export(Turned(written=True), [torch.randn(3, 6)], self.at / "model.pt2")
        text = self.compile(self.at / "model.pt2", code=1)
        for wanted in ("as_strided", "layouts_test.py", 'the weight "table" lies in memory',
                       "contiguous()"):
            self.assertIn(wanted, text)


if __name__ == "__main__":
    unittest.main()
