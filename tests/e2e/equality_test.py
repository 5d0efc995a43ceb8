"""Training gives the same bits on any ranks, schedule and transport, and PyTorch's."""
import copy
import itertools
import unittest

from support import ADAMW, FEWER, SGD, Case, export_gpt, gpt, pipewright, token_job


class Equality(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {}
        for name, tied in (("tied", True), ("untied", False)):
            cls.models[name] = gpt(tied=tied)
            export_gpt(cls.models[name], cls.folder / f"{name}.pt2")
            cls.compile(f"{name}.pt2", f"{name}.pkg")

    def conf(self, name, ranks):
        path = self.path(f"{name}_{ranks}.json")
        if not path.exists():
            self.succeed(pipewright("conf", self.path(f"{name}.pkg"), "--ranks", ranks, "-o", path))
        return path

    def check_everywhere(self, name):
        first = None
        cases = list(itertools.product((1, 2, 3, 5), ("gpipe", "1f1b"), (True, False)))
        if FEWER:
            cases = [(1, "gpipe", False), (2, "1f1b", True), (3, "gpipe", True), (5, "1f1b", False)]
        for ranks, schedule, mpi in cases:
            job = token_job(schedule=schedule)
            run = self.train(self.path(f"{name}.pkg"), job, ranks, mpi, self.conf(name, ranks))
            first = first or run
            what = f"{ranks} ranks, {schedule}, {'MPI' if mpi else 'threads'}: "
            self.assert_same_run(run, first, what)

    def test_tied_weights_on_1_2_3_and_5_ranks(self):
        self.check_everywhere("tied")

    def test_untied_weights_on_1_2_3_and_5_ranks(self):
        self.check_everywhere("untied")

    def both(self, name, optimizer):
        job = token_job(optimizer=optimizer)
        ours = self.train(self.path(f"{name}.pkg"), job, 3, True, self.conf(name, 3))
        model = copy.deepcopy(self.models[name])
        before = copy.deepcopy(model.state_dict())
        theirs = self.train_pytorch(model, job)
        kept = [n for n, _ in model.named_parameters()]  # a tied weight once
        self.assert_learned(ours, before, kept)
        return ours, theirs, kept

    def test_untied_sgd_is_pytorchs_to_the_bit(self):
        ours, theirs, _ = self.both("untied", SGD)
        self.assert_same_run(ours, theirs)

    def test_untied_nesterov_is_pytorchs_to_the_bit(self):
        ours, theirs, _ = self.both("untied", {**SGD, "nesterov": True})
        self.assert_same_run(ours, theirs)

    def test_untied_sgd_with_dampening_is_pytorchs_to_the_bit(self):
        ours, theirs, _ = self.both("untied", {**SGD, "dampening": 0.3})
        self.assert_same_run(ours, theirs)

    def test_untied_adamw_is_pytorchs_to_the_bit(self):
        ours, theirs, _ = self.both("untied", ADAMW)
        self.assert_same_run(ours, theirs)

    def check_tied(self, optimizer):
        """The gradients of head and embedding are added in another order than in PyTorch."""
        ours, theirs, kept = self.both("tied", optimizer)
        for a, b in zip(ours.losses, theirs.losses, strict=True):
            for x, y in zip(a, b, strict=True):
                self.assertAlmostEqual(x, y, delta=1e-5 * abs(y))
        self.assertEqual(sorted(ours.weights), sorted(kept))
        self.assert_close_tensors(ours.weights, {n: theirs.weights[n] for n in kept}, 1e-5)

    def test_tied_sgd_is_pytorchs(self):
        self.check_tied(SGD)

    def test_tied_weights_that_are_sent_are_pytorchs_to_the_bit(self):
        package = self.compile("tied.pt2", "sent.pkg", "--shared", "transmit")
        for ranks, optimizer in ((1, SGD), (3, SGD), (3, ADAMW)):
            self.succeed(pipewright("conf", package, "--ranks", ranks, "-o", self.path("sent.json")))
            job = token_job(optimizer=optimizer)
            ours = self.train(package, job, ranks, False, self.path("sent.json"))
            model = copy.deepcopy(self.models["tied"])
            theirs = self.train_pytorch(model, job)
            kept = {name for name, _ in model.named_parameters()}
            theirs.weights = {name: theirs.weights[name] for name in kept}
            self.assert_same_run(ours, theirs, f"{ranks} ranks: ")

    def test_tied_adamw_is_pytorchs(self):
        """Uses a small step: AdamW makes a gradient of pure rounding as large as any other."""
        self.check_tied({**ADAMW, "lr": 1e-3})


if __name__ == "__main__":
    unittest.main()
