"""Buffers that forward assigns or copies into, in models cut in modules."""
import torch
import torch.nn as nn
from support import CompilerTest, pipe_split, unittest


class Buffers(CompilerTest):
    def test_assigned_buffers_belong_to_the_module_that_assigns_them(self):
        class Assigns(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
                self.register_buffer("calls", torch.zeros((), dtype=torch.long))
                self.register_buffer("mean", torch.zeros(4))
                self.register_buffer("last", torch.zeros(3, 4))

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                self.calls += 1
                self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
                self.last = y.detach() * 2
                self.last.mul_(3)
                y = y * self.mean + self.calls
                pipe_split()
                return self.b(y)

        manifest, _ = self.check(Assigns(), [torch.randn(3, 4)], modules=3)
        held = [[w["name"] for w in m["held"] if w["kind"] == "buffer"]
                for m in manifest["modules"]]
        self.assertIn("calls", held[1])
        self.assertIn("mean", held[1])

    def test_a_buffer_written_twice_holds_what_came_last(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
                self.register_buffer("seen", torch.zeros(4))

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                z = self.b(y)
                last = z.detach().mean(0)
                first = z.detach().sum(0)
                self.seen.copy_(first)
                self.seen.copy_(last)
                return z

        self.check(Twice(), [torch.randn(3, 4)], modules=2)

    def test_copies_that_something_else_reads(self):
        class Copies(nn.Module):
            def __init__(self, write):
                super().__init__()
                self.a, self.b, self.write = nn.Linear(4, 4), nn.Linear(4, 4), write
                for name in ("seen", "prev", "third"):
                    self.register_buffer(name, torch.randn(4))

            def forward(self, x):
                y = self.a(x)
                pipe_split()
                z = self.b(y)
                return self.write(self, z, z.detach().mean(0))

        def returned(self, z, m):
            self.seen.copy_(m)
            return z, self.seen

        def chain(self, z, m):
            self.seen.copy_(m)
            self.prev.copy_(self.seen)
            self.third.copy_(self.prev)
            return z

        def shift(self, z, m):
            self.third.copy_(self.prev)
            self.prev.copy_(self.seen)
            self.seen.copy_(m)
            return z

        def shift_of_views(self, z, m):
            self.prev.copy_(self.seen.view(2, 2).t().reshape(-1))
            self.third.copy_(self.seen.view(2, 2).view(-1))
            self.seen.copy_(m)
            return z

        def swap(self, z, m):
            old = self.seen.clone()
            self.seen.copy_(self.prev)
            self.prev.copy_(old)
            return z + m

        for write in (returned, chain, shift, shift_of_views, swap):
            with self.subTest(write.__name__):
                self.check(Copies(write), [torch.randn(3, 4)])


if __name__ == "__main__":
    unittest.main()
