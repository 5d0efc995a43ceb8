"""In-place writes through views, including views that the operator's schema does not declare."""
import torch
import torch.nn as nn
from support import CompilerTest, export, pipe_split, unittest

# Each returns a view of its argument.
VIEWS = {
    "einsum": lambda h: torch.einsum("ij->ji", h),
    "atleast_3d": torch.atleast_3d,
    "atleast_2d of several": lambda h: torch.atleast_2d([h * 2, h])[1],
    "unsafe_chunk": lambda h: torch.unsafe_chunk(h, 2)[1],
    "unsafe_split": lambda h: torch.unsafe_split(h, 2)[0],
    "cartesian_prod": lambda h: torch.cartesian_prod(h.view(-1)),
    "meshgrid": lambda h: torch.meshgrid([h.select(0, 1)], indexing="ij")[0],
    "_unsafe_view": lambda h: torch.ops.aten._unsafe_view(h, [2, 8]),
    "broadcast_tensors": lambda h: torch.broadcast_tensors(h, torch.ones(4))[0],
    "type_as": lambda h: h.type_as(torch.ones(1)),
    "conj_physical": torch.conj_physical,
    "sum_to_size": lambda h: h.sum_to_size(4, 4),
    "a view of a view": lambda h: torch.einsum("ij->ji", torch.atleast_2d(h)[0:3]),
}


class Written(nn.Module):
    """Writes through a view; `cut` says before which of its three steps to cut."""

    def __init__(self, view, cut=None, shown=False):
        super().__init__()
        self.a, self.view, self.cut, self.shown = nn.Linear(4, 4), view, cut, shown

    def forward(self, x):
        h = self.a(x)
        g = torch.tanh(x)
        if self.cut == 0:
            pipe_split()
        v = self.view(h)
        if self.cut == 1:
            pipe_split()
        v.add_(1.5)
        if self.cut == 2:
            pipe_split()
        out = h * 3 + torch.relu(g)
        return (out, v) if self.shown else out


class Views(CompilerTest):
    def refuse(self, model, inputs):
        export(model, inputs, self.at / "model.pt2")
        return self.compile(self.at / "model.pt2", code=1)

    def test_writes_through_views(self):
        for name, view in VIEWS.items():
            with self.subTest(view=name):
                self.check(Written(view), [torch.randn(4, 4)], modules=1)
        for name in ("einsum", "atleast_3d", "unsafe_chunk", "cartesian_prod"):
            for cut in (0, 2):
                with self.subTest(view=name, cut=cut):
                    self.check(Written(VIEWS[name], cut), [torch.randn(4, 4)], modules=2)

    def test_writes_to_a_list_of_views(self):
        class Each(nn.Module):
            def forward(self, x):
                h = x * 2
                torch._foreach_add_([torch.atleast_3d(h), x * 3], 1.5)
                return h * 3

        self.check(Each(), [torch.randn(4, 4)], modules=1)

    def test_a_cut_that_hides_a_write_is_refused(self):
        for name in ("einsum", "atleast_3d", "unsafe_split", "meshgrid"):
            with self.subTest(view=name):
                text = self.refuse(Written(VIEWS[name], 1), [torch.randn(4, 4)])
                self.assertIn("add_, the model itself, ", text)
                self.assertIn("a cut separates the two", text)

    def test_cuts_by_cost_keep_views_with_their_writes(self):
        for name in ("einsum", "unsafe_chunk"):
            for count in (2, 3):
                with self.subTest(view=name, count=count):
                    self.check(Written(VIEWS[name]), [torch.randn(4, 4)],
                               ["--split", f"equal:{count}"], modules=count)

    def test_two_views_that_cross_are_two_tensors(self):
        """This also holds if one list or one operation takes both of them."""
        class Overlap(nn.Module):
            def forward(self, x):
                base = x * 2
                a, b = base[0:3], base[1:4]
                pipe_split()
                both = torch.cat([a, b])
                a.add_(1.5)
                return b * 3, both

        text = self.refuse(Overlap(), [torch.randn(4, 4)])
        self.assertIn("a cut separates the two", text)

    def test_a_write_that_only_such_a_view_shows(self):
        class Beside(nn.Module):
            def __init__(self, view):
                super().__init__()
                self.a, self.view = nn.Linear(4, 4), view

            def forward(self, x):
                h = self.a(x)
                u = self.view(h)
                h[:, 1:].add_(1.5)  # h itself is not used afterwards
                return u * 3

        for name, view in VIEWS.items():
            with self.subTest(view=name):
                self.check(Beside(view), [torch.randn(4, 4)], modules=1)

    def test_a_write_to_what_the_backward_reads(self):
        class Saved(nn.Module):
            def __init__(self, cut, of_input):
                super().__init__()
                self.a, self.cut, self.of_input = nn.Linear(4, 4), cut, of_input

            def forward(self, x):
                h = torch.tanh(self.a(x))
                y = h * 2
                if self.cut:
                    pipe_split()
                # The backward of linear reads x; that of tanh reads h.
                torch.unsafe_chunk(x if self.of_input else h, 2, -1)[1].mul_(0.5)
                return torch.sin(y)

        for of_input, reader in ((True, "linear"), (False, "tanh")):
            with self.subTest(reader):
                for options in ([], ["--split", "equal:2"]):
                    self.check(Saved(False, of_input), [torch.randn(4, 4)], options)
                text = self.refuse(Saved(True, of_input), [torch.randn(4, 4)])
                self.assertIn("mul_, the model itself, ", text)
                self.assertIn(f"to memory that {reader} ", text)
                self.assertIn("autograd does not know of that", text)

    def test_what_a_list_holds_is_not_one_memory(self):
        class Listed(nn.Module):
            def forward(self, x, y):
                a, b = x * 2, y * 3
                both = torch.cat([a, b])
                pair = torch.einsum("ij,jk->ik", a, b)
                pair.mul_(2)
                a.add_(1.5)
                pipe_split()
                return b * 3 + a, both, pair

        self.check(Listed(), [torch.randn(4, 4), torch.randn(4, 4)], modules=2)

    def test_scripts(self):
        """PyTorch drops a write through such a view itself, unless the view is used."""
        for name in ("einsum", "atleast_3d", "unsafe_split"):
            def view(h, name=name):
                return VIEWS[name](h * 1)  # the product is not a view: LibTorch removes it

            for model in (Written(VIEWS[name], shown=True), Written(view, shown=True)):
                for options in ([], ["--split", "equal:2"]):
                    with self.subTest(view=name, options=options):
                        self.check(model, [torch.randn(4, 4)], options,
                                   script=lambda m: torch.jit.trace(
                                       m, (torch.randn(4, 4),), check_trace=False))

    def test_constants_that_are_written(self):
        class Constant(nn.Module):
            def forward(self, x):
                c = torch.zeros(4, 4)
                v = torch.atleast_3d(c)
                v.add_(x.unsqueeze(-1))
                return c * 3, v, x * 1

        self.check(Constant(), [torch.randn(4, 4)], script=torch.jit.script)
        self.check(Constant(), [torch.randn(4, 4)])

    def test_dictionaries(self):
        class Dictionary(nn.Module):
            def forward(self, x):
                h = x * 2
                held: dict[str, torch.Tensor] = {}
                held["h"] = h
                if bool(x.sum() > 1000):
                    held["h"] = x * 5
                held["h"].add_(1.5)
                return h * 3

        self.check(Dictionary(), [torch.randn(4, 4)], script=torch.jit.script)

    def test_loops_and_branches(self):
        class Loop(nn.Module):
            def forward(self, x):
                h = x * 2
                v = torch.atleast_2d(h)
                for _ in range(int(x.shape[0])):
                    if bool(x.sum() > 0):
                        v = torch.einsum("ij->ji", v)
                    v[0].add_(1.5)
                return h * 3, v

        self.check(Loop(), [torch.rand(4, 4)], script=torch.jit.script)
        self.check(Loop(), [-torch.rand(4, 4)], script=torch.jit.script)


if __name__ == "__main__":
    unittest.main()
