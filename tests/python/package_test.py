"""The Python package: equal to PyTorch in one process, errors as exceptions, no processes left."""
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
import uuid
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "python")]
from support import BUILD, Case, bits, marked_processes, one_process, pipewright  # noqa: E402

os.environ["PIPEWRIGHT_BIN"] = str(BUILD)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.pipelining import SplitPoint, pipe_split, pipeline  # noqa: E402

import pipewright as pw  # noqa: E402


class Net(torch.nn.Module):
    """Two layers, a dropout that training mode switches on, and a value that skips the second."""

    def __init__(self, marked=False, dropout=0.0):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.skip, self.dropout = torch.nn.Linear(8, 4), torch.nn.Dropout(dropout)
        self.marked = marked

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        if self.marked:
            pipe_split()
        return self.last(self.dropout(hidden)) + self.skip(x)


def net(**options):
    torch.manual_seed(0)
    return Net(**options)


@contextlib.contextmanager
def within(seconds):
    """Fails instead of waiting forever."""
    def fail(number, frame):
        raise AssertionError(f"still waits after {seconds} s")
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Python(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        generator = torch.Generator().manual_seed(1)
        cls.x = torch.rand(64, 8, generator=generator)
        cls.y = torch.rand(64, 4, generator=generator)
        cls.data = pw.write_data(torch.utils.data.TensorDataset(cls.x, cls.y), cls.folder / "data",
                                 columns=["x", "y"], target="y", file_bytes=1000)
        cls.package = pw.compile(net(), cls.folder / "net.pkg", args=(cls.x[:2],), split=["last"])

    def job(self, **changes):
        return {"data": self.data, "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1},
                "microbatches": 4, "microbatch_size": 4, "steps": 6, "seed": 3, "log_every": 1,
                **changes}

    def endless(self, **changes):
        return self.job(steps=10**7, checkpoint={"to": str(self.path("checkpoints"))}, **changes)

    def pytorch(self, model, job):
        return [losses for _, losses in one_process.train(model.train(), job, self.folder)]

    def first_row(self, run):
        while run.running and not run.metrics:
            time.sleep(0.05)
        self.assertTrue(run.metrics, run.errors)

    def none_left(self, mark):
        """Waits: guards see how their ranks ended before they leave."""
        deadline = time.monotonic() + 120
        while (left := marked_processes(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(left, [])

    def marked(self):
        """Marks processes that are started from now on."""
        mark = "PIPEWRIGHT_TEST_RUN=" + uuid.uuid4().hex
        os.environ["PIPEWRIGHT_TEST_RUN"] = mark.partition("=")[2]
        self.addCleanup(os.environ.pop, "PIPEWRIGHT_TEST_RUN", None)
        return mark


class Training(Python):
    def test_is_that_of_pytorch(self):
        job = pw.Job(**self.job(), save=str(self.path("trained.safetensors")))
        run = pw.train(self.package, job, ranks=2)
        self.assertIs(run.wait(), run)
        model = net()
        losses = self.pytorch(model, self.job())
        self.assertEqual([bits(row["losses"]) for row in run.metrics],
                         [bits(row) for row in losses])
        self.assertEqual(run.last_row(), run.metrics[-1])
        again = pw.load_into(net(), job.save)
        self.assert_same_tensors(again.state_dict(), model.state_dict())
        self.assertRegex(repr(run), r"<Run: ended, step 6 of 6, loss \d")
        self.assertIn("value=6", run._repr_html_())
        with torch.no_grad():
            self.assert_same_tensors(
                pw.infer(self.package, {"x": self.x}, weights=job.save),
                {self.package.manifest["outputs"][0]: again.eval()(self.x)})

    def test_the_report_does_not_name_files_of_the_run(self):
        page = self.path("report.html")
        run = pw.train(self.package, self.job(), ranks=2, report=page).wait()
        text = page.read_text()
        self.assertIn("of pipewright.train: 1f1b", text)
        self.assertNotIn(run.folder.name, text)

    def test_on_another_number_of_ranks_and_resumed_from_a_checkpoint(self):
        job = self.job(checkpoint={"to": str(self.path("resumed"))})
        pw.train(self.package, job, ranks=1, in_process=True, steps=3).wait()
        self.assertEqual(len(pw.train(self.package, job, in_process=True, resume=True)
                             .wait().metrics), 3)
        model = net()
        self.pytorch(model, job)
        self.assert_same_tensors(pw.load_into(net(), self.path("resumed")).state_dict(),
                                 model.state_dict())

    def test_stop_ends_after_the_step_with_a_checkpoint(self):
        for in_process in (False, True):
            with self.subTest(in_process=in_process):
                mark, to = self.marked(), self.path(f"stopped{in_process}")
                run = pw.train(self.package, self.endless() | {"checkpoint": {"to": str(to)}},
                               in_process=in_process)
                run.stop()  # even before the first step
                run.wait()
                self.assertIn("as asked", run.output + run.errors)
                self.assertNotIn("Forwarding signal", run.errors)
                self.assertTrue((to / "latest").exists())
                self.none_left(mark)

    def test_stop_without_output(self):
        to = self.path("quiet")
        run = pw.train(self.package, self.endless() | {"checkpoint": {"to": str(to)}}, quiet=True)
        self.addCleanup(run.kill)
        run.stop()
        run.wait(timeout=120)
        self.assertEqual(run.output, "")
        self.assertTrue((to / "latest").exists())

    def test_stop_of_a_run_in_the_background_of_a_shell(self):
        to = self.path("background")
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        run = pw.train(self.package, self.endless() | {"checkpoint": {"to": str(to)}}, in_process=True)
        self.addCleanup(run.kill)
        run.stop()
        run.wait(timeout=120)
        self.assertTrue((to / "latest").exists())

    def test_stop_of_a_run_whose_metrics_are_a_stream(self):
        with within(120):
            run = pw.train(self.package, self.job(steps=10**7), in_process=True, metrics="/dev/stdout")
            self.addCleanup(run.kill)
            run.stop()
            run.wait()
        self.assertIn('"losses"', run.output)
        self.assertEqual((run.metrics, run.last_row()), ([], None))

    def test_rows_of_an_earlier_run_are_not_shown(self):
        file = self.path("rows.jsonl")
        pw.train(self.package, self.job(steps=2), in_process=True, metrics=file).wait()
        run = pw.train(self.package, self.job(microbatchs=3), in_process=True, metrics=file)
        with self.assertRaises(pw.Error):
            run.wait()
        self.assertEqual((run.metrics, run.last_row()), ([], None))
        self.assertIn("step 0 of 6", repr(run))
        run = pw.train(self.package, self.job(steps=3), in_process=True, metrics=file).wait()
        self.assertEqual([row["step"] for row in run.metrics], [1, 2, 3])
        self.assertEqual(run.last_row(), run.metrics[-1])

    def test_a_row_of_any_length(self):
        run = pw.train(self.package, self.job(steps=1), in_process=True).wait()
        row = {"step": 2, "losses": [0.125] * (1 << 18)}
        with open(run.metrics_file, "a") as file:
            file.write(json.dumps(row) + "\n")
        self.assertEqual(run.last_row(), row)

    def test_kill(self):
        for in_process in (False, True):
            with self.subTest(in_process=in_process):
                mark = self.marked()
                run = pw.train(self.package, self.job(steps=10**7), in_process=in_process)
                self.first_row(run)
                with self.assertRaisesRegex(TimeoutError, "running"):
                    run.wait(timeout=0.01)
                run.kill()
                self.none_left(mark)
                with self.assertRaisesRegex(pw.Error, "kill"):
                    run.wait()
                self.assertIn("killed", repr(run))


SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import pipewright as pw
run = pw.train(sys.argv[2], json.loads(sys.argv[3]), ranks=2)
while not run.metrics:
    time.sleep(0.05)
print("runs", flush=True)
"""

# Prints a line as soon as the main thread waits inside run.wait(). An earlier signal would end the
# script, and the run, at once.
TELL = """
import threading, traceback
def tell(main=threading.main_thread().ident):
    def waits():
        names = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
        return names[-2:] == ["wait", "wait"] and names.count("wait") > 2
    while not waits():
        time.sleep(0.01)
    print("waits", flush=True)
threading.Thread(target=tell, daemon=True).start()
"""


class Interpreter(Python):
    def start(self, last_line, job):
        self.mark = self.marked()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT + last_line, ROOT / "python", self.package.path,
             json.dumps(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.process.kill)
        self.assertEqual(self.process.stdout.readline(), "runs\n")

    def test_no_rank_is_left_where_it_is_killed(self):
        self.start("time.sleep(10**6)", self.job(steps=10**7))
        self.process.kill()
        self.process.communicate()
        self.none_left(self.mark)

    def test_no_rank_is_left_where_it_ends(self):
        self.start("", self.job(steps=10**7))
        _, errors = self.process.communicate()
        self.assertEqual(self.process.returncode, 0, errors)
        self.none_left(self.mark)

    def test_ctrl_c_ends_after_the_step_with_a_checkpoint(self):
        self.start(TELL + "run.wait()", self.endless())
        self.assertEqual(self.process.stdout.readline(), "waits\n")
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate()
        self.assertIn("KeyboardInterrupt", errors)
        self.none_left(self.mark)
        self.assertTrue((self.path("checkpoints") / "latest").exists(), errors)


class Errors(Python):
    def test_have_the_text_of_the_program(self):
        missing = self.path("missing.pt2")
        with self.assertRaises(pw.Error) as caught:
            pw.compile(missing)
        self.assertEqual(caught.exception.code, 1)
        self.assertEqual(str(caught.exception),
                         pipewright("compile", missing, "-o", self.path("missing.pkg")).out.strip())

    def test_of_a_run_are_raised_by_wait(self):
        run = pw.train(self.package, self.job(microbatchs=3), in_process=True)
        with self.assertRaisesRegex(pw.Error, '"microbatchs".*"microbatches"'):
            run.wait()
        self.assertIn("failed with code 1", repr(run))
        self.assertIn("microbatchs", run._repr_html_())

    def test_of_metrics_that_cannot_be_written(self):
        with within(120):
            run = pw.train(self.package, self.job(), in_process=True, metrics=self.folder)
            with self.assertRaisesRegex(pw.Error, "it is a folder"):
                run.wait()
        self.assertEqual((run.metrics, run.last_row()), ([], None))
        pw.train(self.package, self.job(metrics="", steps=1), in_process=True).wait()  # none

    def test_of_the_thread_end_the_run(self):
        for in_process in (False, True):
            with self.subTest(in_process=in_process), within(120):
                mark = self.marked()
                with mock.patch.object(pw.runs.Run, "last_row", side_effect=RuntimeError("broken row")):
                    run = pw.train(self.package, self.job(steps=10**7), in_process=in_process)
                    with self.assertRaisesRegex(pw.Error, "could not follow it.*broken row"):
                        run.wait()
                self.assertFalse(run.running)
                self.none_left(mark)

    def test_of_a_display_do_not_end_the_run(self):
        display, told = mock.Mock(**{"update.side_effect": RuntimeError("no screen")}), io.StringIO()
        with within(120), mock.patch.object(pw.runs, "notebook_display", lambda run: display), \
                contextlib.redirect_stderr(told):
            run = pw.train(self.package, self.job(), in_process=True).wait()
        self.assertEqual(len(run.metrics), 6)
        self.assertIn("no longer shown: RuntimeError('no screen')", told.getvalue())
        display.update.assert_called_once()

    def test_of_an_option_that_is_none(self):
        with self.assertRaises(pw.Error) as caught:
            self.package.partition(nothing=1)
        self.assertEqual(caught.exception.code, 2)

    def test_another_torch_than_that_of_the_build(self):
        installed = self.path("installed")
        (installed / "bin").mkdir(parents=True)
        with mock.patch.object(pw.programs, "HERE", installed), \
                mock.patch.object(pw.programs.metadata, "requires", lambda name: ["torch==2.11.0"]), \
                mock.patch.object(pw.programs.metadata, "version", lambda name: "2.13.0+cpu"):
            with self.assertRaises(ImportError) as caught:
                pw.programs.check_torch()
        self.assertIn("pipewright was built with torch 2.11.0, and this environment has torch 2.13.0",
                      str(caught.exception))
        pw.programs.check_torch()  # a checkout

    def test_programs_that_are_not_there(self):
        self.addCleanup(os.environ.__setitem__, "PIPEWRIGHT_BIN", str(BUILD))
        os.environ["PIPEWRIGHT_BIN"] = str(self.folder)
        with self.assertRaisesRegex(pw.Error, re.escape(str(self.folder / "pipewright"))):
            pw.version()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Custom(torch.nn.Module):
    def forward(self, x):
        return Square.apply(x)


class Reversed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = self.linear(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: -gradient)
        return torch.tanh(h)


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


class Fixed(torch.nn.Module):
    def forward(self, x):
        return x.view(4, 8) + 1


class Export(Python):
    def export(self, model, *args, **options):
        return pw.export(model, args or (self.x[:4],), self.path("exported.pt2"), **options)

    def test_markers_are_kept_and_a_row_is_enough(self):
        package = pw.compile(self.export(net(marked=True), self.x[:1]))
        self.assertEqual(len(package.modules), 2)
        self.assertEqual(package.path, self.path("exported.pkg"))
        self.assertEqual(len(pw.infer(package, {"x": self.x[:5]}).popitem()[1]), 5)

    def test_split_goes_with_the_file(self):
        file = self.export(net(), split="equal:3")
        self.assertEqual(len(pw.compile(file, self.path("three.pkg")).modules), 3)
        self.assertEqual(len(pw.compile(file, self.path("two.pkg"), split=["last"]).modules), 2)
        with self.assertRaisesRegex(pw.ExportError, "lacks: lst\n.*first, last, skip"):
            self.export(net(), split=["lst"])

    def test_is_one_of_training_and_modes_stay(self):
        model = net(dropout=0.5).eval()
        package = pw.compile(self.export(model), self.path("mode.pkg"))
        self.assertFalse(any(module.training for module in model.modules()))
        self.assertTrue(package.manifest["exported_in_training"])
        model.train()
        model.dropout.eval()
        self.export(model)
        self.assertTrue(model.training and not model.dropout.training)

    def test_branches_of_training_are_told(self):
        class Branches(torch.nn.Module):
            def __init__(self, decide):
                super().__init__()
                self.norm, self.decide = torch.nn.BatchNorm1d(4), decide

            def forward(self, x):
                x = torch.nn.functional.dropout(self.norm(x), 0.5, self.training)
                if self.decide == "operation" and self.training:
                    x = x * 2
                if self.decide == "layout" and self.training:
                    x = x.t().clone(memory_format=torch.contiguous_format).t()
                elif self.decide == "layout":
                    x = x.t().t()
                x = x.view(-1, 4) if self.decide == "view" and self.training else x.reshape(-1, 4)
                return x * (2.0 if self.decide == "number" and self.training else 1.0)
        for decide in ("operation", "number"):
            with self.assertWarnsRegex(UserWarning, "other operations in evaluation mode"):
                pw.export(Branches(decide), (torch.ones(2, 4),), self.folder / "branches.pt2")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for decide in ("", "layout", "view"):
                pw.export(Branches(decide), (torch.ones(2, 4),), self.folder / "branches.pt2")
        self.assertNotIn("__getattribute__", vars(torch.nn.Module))

    def test_memory_that_an_export_would_unite_or_copy_is_refused(self):
        class Uses(torch.nn.Module):
            def __init__(self, make):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
                make(self)

            def forward(self, x):
                x = self.b(self.a(x))
                return x + self.same[0] if hasattr(self, "same") else x
        def export(make):
            pw.export(Uses(make), (torch.ones(2, 4),), self.folder / "memory.pt2")
        def refused(make, text):
            with self.assertRaisesRegex(pw.ExportError, text):
                export(make)
        def two(m):
            m.b.weight = torch.nn.Parameter(m.a.weight.detach())
        def one(m):
            m.b.weight = m.a.weight
        def parts(m):
            whole = torch.randn(4, 8)
            m.a.weight, m.b.weight = (torch.nn.Parameter(part) for part in whole.chunk(2, 1))
        refused(two, r"parameters a\.weight and b\.weight share memory.*\n")
        refused(lambda m: m.register_buffer("same", m.a.weight.detach(), persistent=False),
                r"^same shares the memory of the parameter a\.weight.*\n")
        refused(lambda m: setattr(m, "same", m.a.weight.data[1:]), r" shares the memory of the parameter a\.weight.*\n")
        refused(lambda m: setattr(m, "same", [m.a.bias.data]), r" shares the memory of the parameter a\.bias.*\n")
        for make in (one, parts, lambda m: m.register_buffer("same", m.a.weight.detach()),
                     lambda m: setattr(m, "unused", m.a.weight.data),
                     lambda m: setattr(m, "unused", torch.ones(2, 2).to_sparse()),
                     lambda m: torch.nn.utils.spectral_norm(m.a)):
            export(make)

    def test_hooks_on_gradients_are_refused(self):
        def linear():
            return torch.nn.Sequential(torch.nn.Linear(4, 4))

        with self.subTest("parameter"), self.assertRaisesRegex(pw.ExportError, r"parameter 0\.weight has a gradient hook.*\n"):
            model = linear()
            model[0].weight.register_hook(lambda gradient: gradient * 2)
            pw.export(model, (torch.ones(2, 4),), self.folder / "hooks.pt2")
        with self.subTest("module"), self.assertRaisesRegex(pw.ExportError, r"submodule 0 has a backward hook"):
            model = linear()
            model[0].register_full_backward_hook(lambda module, inputs, outputs: None)
            pw.export(model, (torch.ones(2, 4),), self.folder / "hooks.pt2")
        with self.subTest("tensor"), self.assertRaisesRegex(pw.ExportError, r"forward calls register_hook"):
            pw.export(Reversed(), (torch.ones(2, 4),), self.folder / "hooks.pt2")
        pw.export(Reversed(), (torch.ones(2, 4),), self.folder / "hooks.pt2", training=False)

    def test_says_what_to_try(self):
        with self.assertRaisesRegex(pw.ExportError, r"Square.*\n.*detach\(\)"):
            self.export(Custom())
        self.export(Custom(), training=False)
        with self.assertRaisesRegex(pw.ExportError, r"(?s)refuses.*torch\.where.*torch\.jit\.save"):
            self.export(Branch())
        with self.assertRaisesRegex(pw.ExportError, "dynamic_batch=False"):
            self.export(Fixed())
        self.export(Fixed(), dynamic_batch=False)
        self.assertEqual(list(self.folder.glob("*.writing.*")), [])


class Packages(Python):
    def test_what_they_tell(self):
        package = self.package
        self.assertEqual([module.name for module in package.modules], ["module0", "module1"])
        self.assertEqual(package.stages, [pw.Stage([0], [0]), pw.Stage([1], [1])])
        self.assertIn("class Module1", package.code(1))
        self.assertEqual(package.conf(1)["module_to_stage_map"], [0, 0])
        self.assertIn("0F0", package.plan(self.job()))
        self.assertIn("0F0", package.plan(self.job(), conf=package.conf(1)))
        self.assertEqual(package.profile(microbatch=4, repeat=1)["microbatch"], 4)
        found = package.partition(stages=2, output=self.path("cut"))
        self.assertTrue(found["feasible"])
        costs = self.path("cut") / "costs.json"
        told = package.simulate(self.job(), costs)
        self.assertEqual(told, package.simulate(self.job(), json.loads(costs.read_text())))
        self.assertGreater(told["makespan"], 0)

    def test_keys_of_a_job_are_those_of_the_reference(self):
        page = (ROOT / "docs/reference/job.md").read_text().split("<!-- keys: job -->")[1]
        keys = set(re.findall(r"^\| `(\w+)` \|", page.split("\n## ")[0], re.M))
        self.assertEqual({field.name for field in dataclasses.fields(pw.Job)}, keys)

    def test_files_may_have_comments(self):
        from pipewright.job import read_json

        file = self.path("commented.json")
        file.write_text('// first\n{"a//b": "\\"/* c */", /* of\ntwo lines */ "d": [1, 2]} // last')
        self.assertEqual(read_json(file), {"a//b": '"/* c */', "d": [1, 2]})

    def test_paths_of_a_job_are_relative_to_the_working_directory(self):
        from pipewright.job import absolute

        data = {"arrays": {"x": ["a.npy", "b.npy"]}, "plugin": "lib.so"}
        job = absolute({"data": data, "validation": {"data": {"tokens": "t"}, "every": 1},
                        "schedule": "own.csv", "save": "s", "checkpoint": {"to": "c", "keep": 2}})
        here = os.getcwd()
        self.assertEqual(job["data"]["arrays"]["x"], [f"{here}/a.npy", f"{here}/b.npy"])
        self.assertEqual([job["data"]["plugin"], job["validation"]["data"]["tokens"],
                          job["schedule"], job["save"], job["checkpoint"]["to"]],
                         [f"{here}/{name}" for name in ("lib.so", "t", "own.csv", "s", "c")])
        self.assertEqual(absolute({"schedule": "1f1b"}), {"schedule": "1f1b"})


class Data(Python):
    def read(self, data):
        parts = [load_file(file) for file in data["tensors"]]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def test_is_written_in_pieces(self):
        self.assertGreater(len(self.data["tensors"]), 2)
        self.assert_same_tensors(self.read(self.data), {"x": self.x, "y": self.y})
        self.assertEqual(self.data["inputs"], {"x": "x"})

    def test_tables_and_generators(self):
        """Rows as mappings, like those of a HuggingFace datasets table."""
        rows = [{"ids": [i, i + 1], "label": i, "text": "t"} for i in range(5)]
        for name, dataset in (("table", rows), ("generator", iter(rows))):
            data = pw.write_data(dataset, self.path(name), columns=["ids", "label"], target="label")
            self.assertEqual(self.read(data)["ids"].tolist(), [row["ids"] for row in rows])
            self.assertEqual((data["inputs"], data["target"]), ({"ids": "ids"}, "label"))

    def test_samples_whose_memory_is_reused(self):
        class Reusing(torch.utils.data.Dataset):
            def __init__(self):
                self.row = torch.zeros(2)

            def __len__(self):
                return 5

            def __getitem__(self, index):
                return {"a": self.row.fill_(index)}

        def generator():
            row = np.zeros(2, "float32")
            for index in range(5):
                row[:] = index
                yield {"a": row}

        for name, dataset in (("indexed", Reusing()), ("iterated", generator())):
            data = pw.write_data(dataset, self.path(name))
            self.assertEqual(self.read(data)["a"].tolist(), [[k, k] for k in range(5)])

    def test_refuses_what_does_not_fit_and_leaves_nothing(self):
        before = sorted(self.folder.iterdir())
        cases = {"pad all": [{"a": [1]}, {"a": [1, 2]}], "no samples": [], "columns": [(1, 2)],
                 "no column 'b'": [{"a": 1}], "is not a tensor": [{"a": "text"}]}
        for text, rows in cases.items():
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                pw.write_data(rows, self.path("refused"), target="b" if "'b'" in text else None)
        with self.assertRaises(FileExistsError):
            pw.write_data([{"a": 1}], self.path("data"))
        self.assertEqual(sorted(self.folder.iterdir()), before)


    def test_overwrite_replaces_what_it_wrote_alone(self):
        folder = self.path("again")
        pw.write_data([{"a": k} for k in range(9)], folder, file_bytes=16)
        self.assertGreater(len(list(folder.iterdir())), 1)
        with self.assertRaisesRegex(FileExistsError, "overwrite=True"):
            pw.write_data([{"a": 7}], folder)
        data = pw.write_data([{"a": 7}], folder, overwrite=True)
        self.assertEqual([str(file) for file in folder.iterdir()], data["tensors"])
        self.assertEqual(self.read(data)["a"].tolist(), [7])
        (folder / "notes.txt").write_text("mine")
        for overwrite in (True, False):
            with self.assertRaisesRegex(FileExistsError, "write_data did not write, such as notes.txt: name another folder$"):
                pw.write_data([{"a": 8}], folder, overwrite=overwrite)
        self.assertEqual(self.read(data)["a"].tolist(), [7])

    def test_overwrite_is_all_or_nothing(self):
        folder = self.path("swapped")
        data = pw.write_data([{"a": k} for k in range(9)], folder, file_bytes=16)
        before, others = sorted(folder.iterdir()), sorted(self.folder.iterdir())
        rename = pathlib.Path.rename

        def fail_once(path, target):
            if path.name == "new":
                raise OSError("no")
            return rename(path, target)

        with mock.patch.object(pathlib.Path, "rename", fail_once), self.assertRaisesRegex(OSError, "no"):
            pw.write_data([{"a": 7}], folder, overwrite=True, file_bytes=16)
        self.assertEqual(sorted(folder.iterdir()), before)
        self.assertEqual(self.read(data)["a"].tolist(), list(range(9)))
        self.path("link").symlink_to(folder)
        pw.write_data([{"a": 7}], self.path("link"), overwrite=True)
        self.assertEqual([file.name for file in folder.iterdir()], ["part-00000.safetensors"])
        self.path("link").unlink()
        self.assertEqual(sorted(self.folder.iterdir()), others)


    def test_an_interrupt_does_not_remove_earlier_data(self):
        folder = self.path("interrupted").resolve()
        data = pw.write_data([{"a": k} for k in range(9)], folder, file_bytes=16)
        before, rename = sorted(self.folder.iterdir()), pathlib.Path.rename

        def write(after):
            """Interrupts once `after` says so about a rename that is done."""
            def interrupted(path, target):
                rename(path, target)
                if after(path, target):
                    raise KeyboardInterrupt
            with mock.patch.object(pathlib.Path, "rename", interrupted), self.assertRaises(KeyboardInterrupt):
                pw.write_data([{"a": 7}], folder, overwrite=True)
            self.assertEqual(sorted(self.folder.iterdir()), before)

        write(lambda path, target: path == folder)
        self.assertEqual(self.read(data)["a"].tolist(), list(range(9)))

        def fail(path, target):
            if path != folder:
                raise KeyboardInterrupt  # also while the earlier data are put back
            return rename(path, target)

        with mock.patch.object(pathlib.Path, "rename", fail), self.assertRaises(KeyboardInterrupt):
            pw.write_data([{"a": 7}], folder, overwrite=True)
        [left] = set(self.folder.iterdir()) - set(before)
        left.rename(folder)
        self.assertEqual(self.read(data)["a"].tolist(), list(range(9)))

        write(lambda path, target: target == folder)
        self.assertEqual(self.read({"tensors": list(folder.iterdir())})["a"].tolist(), [7])


class Mistakes(Python):
    def test_arguments_of_another_type(self):
        cases = {
            "loss=\"cross_entropy\"": lambda: pw.train(self.package, self.job(loss=torch.nn.MSELoss())),
            "a job cannot hold a value of type Tensor": lambda: pw.train(self.package, self.job(data={"x": self.x})),
            r"a tuple of forward's arguments: \(x,\)": lambda: pw.export(net(), self.x, self.path("n.pt2")),
            "maps names of the model's inputs": lambda: pw.infer(self.package, self.x),
            r"of forward's arguments: \(x,\)": lambda: pw.compile(net(), self.path("n.pkg"), args=self.x[:2]),
            "leave out args and kwargs": lambda: pw.compile("model.pt2", self.path("n.pkg"), kwargs={"x": self.x}),
            "args or kwargs": lambda: pw.compile(net(), self.path("n.pkg"))}
        for text, call in cases.items():
            with self.subTest(text), self.assertRaisesRegex(TypeError, text):
                call()
        for error in (FileNotFoundError, pw.Error):
            with self.assertRaisesRegex(error, "nowhere.pkg is not a package"):
                pw.train("nowhere.pkg", self.job())

    def test_numbers_that_are_not_pythons(self):
        from pipewright.job import write

        write(self.job(microbatches=torch.tensor(4), steps=(self.x.numpy().dtype.type(8)).astype("int64")),
              self.path("numbers.json"))
        job = json.loads(self.path("numbers.json").read_text())
        self.assertEqual((job["microbatches"], job["steps"]), (4, 8))

    def test_inputs_by_keyword(self):
        package = pw.compile(net(), self.path("keywords.pkg"), kwargs={"x": self.x[:2]}, split=["last"])
        self.assertEqual(len(package.modules), 2)


class Pipelining(Python):
    def train(self, package, job):
        run = pw.train(package, {**self.job(), **job}, in_process=True,
                       save=self.path("piped.safetensors"))
        return [bits(row["losses"]) for row in run.wait().metrics]

    def test_a_pipe_with_a_skip(self):
        model = net()
        pipe = pipeline(net(), (self.x[:4],), split_spec={"last": SplitPoint.BEGINNING})
        package, job = pw.from_torch_pipelining(pipe, (self.x[:4],), "1F1B", 4,
                                                output=self.path("pipe.pkg"))
        self.assertEqual(job, {"schedule": "1f1b", "microbatches": 4, "microbatch_size": 4})
        self.assertEqual(self.train(package, job),
                         [bits(row) for row in self.pytorch(model, self.job())])
        pw.load_into(pipe, self.path("piped.safetensors"))
        stages = [pipe.get_stage_module(stage).state_dict() for stage in range(pipe.num_stages)]
        self.assert_same_tensors({name: value for stage in stages for name, value in stage.items()},
                                 model.state_dict())

    def test_stages_in_a_list(self):
        torch.manual_seed(0)
        stages = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8),
                  torch.nn.Linear(8, 4)]
        package, job = pw.from_torch_pipelining(stages, (self.x[:4],), "ZBVZeroBubble", 4,
                                                output=self.path("stages.pkg"))
        self.assertEqual([stage.ranks for stage in package.stages], [[0], [1], [1], [0]])
        self.assertEqual(package.manifest["inputs"], ["inputs_0"])
        losses = self.train(package, job | {"data": {**self.data, "inputs": {"inputs_0": "x"}}})
        model = torch.nn.Sequential(*stages)
        self.assertEqual(losses, [bits(row) for row in self.pytorch(model, self.job())])
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        pw.load_into(stages, self.path("piped.safetensors"))
        self.assert_same_tensors(model.state_dict(), trained)

    def test_what_cannot_be_taken_over(self):
        stages, example = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)], (self.x[:4],)
        with self.assertRaisesRegex(pw.ExportError, "loss function is Python"):
            pw.from_torch_pipelining(stages, example, object(), 4)
        with self.assertRaisesRegex(pw.ExportError, "unknown schedule Own\n.*1f1b"):
            pw.from_torch_pipelining(stages, example, "Own", 4)
        with self.assertRaisesRegex(pw.ExportError, "give ranks=N"):
            pw.from_torch_pipelining(stages, example, "Interleaved1F1B", 4)
        with self.assertRaisesRegex(pw.ExportError, r"found int\n.*submod"):
            pw.from_torch_pipelining([1], example, "GPipe", 4)


class Options(Python):
    def test_lists(self):
        run = pw.train(self.package, self.job(), in_process=True, set=["steps=2", "optimizer.lr=0.25"]).wait()
        self.assertEqual([row["learning_rate"] for row in run.metrics], [0.25, 0.25])
        [name] = self.package.manifest["outputs"]
        self.assertEqual(list(pw.infer(self.package, {"x": self.x}, outputs=[name])), [name])
        self.package.profile(microbatch=4, repeat=1)
        self.assertTrue(self.package.partition(stages=2, devices=2, speeds=[1, 2])["feasible"])


class Guide(Python):
    def test_its_lines_run(self):
        page = (ROOT / "docs/guides/python.md").read_text()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        names = {}
        for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S):
            exec(block, names)
        self.assertEqual(len(names["run"].metrics), 200)
        self.assertTrue(torch.equal(list(names["out"].values())[0], names["model"](names["x"])))


if __name__ == "__main__":
    unittest.main()
