"""Shared code of the end-to-end tests: small models, packages, jobs, and runs of the programs."""
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", ROOT / "build"))
# The runtime may be another build than the compiler (tests/sanitize_torch.sh).
RUN = pathlib.Path(os.environ.get("PIPEWRIGHT_RUN", BUILD / "pipewright-run"))
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "examples/gpt")]
try:
    import torch
    from safetensors.torch import load_file
    from torch.distributed.pipelining import pipe_split
    import one_process
    from model import GPT
except ImportError as error:
    print(f"SKIPPED: no Python with torch ({error})")
    sys.exit(77)

torch.set_num_threads(1)
LENGTH = 16
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMP_NUM_THREADS": "1",
}


PRELOAD = BUILD / "tests/libpreload.so"  # watches what a run does to files


def watching(folder, **settings):
    """Returns an environment in which preload.cc watches the files in a folder."""
    if not PRELOAD.exists():
        raise unittest.SkipTest("no library that watches files")
    return {"LD_PRELOAD": str(PRELOAD), "WATCH_UNDER": str(folder),
            **{name: str(value) for name, value in settings.items()}}


class Result:
    """A finished command: code, out (both streams), seconds, left (processes that outlived it)."""

    def __init__(self, command, code, out, seconds, left):
        self.command, self.code, self.out = command, code, out
        self.seconds, self.left = seconds, left


def marked_processes(mark):
    """Returns processes whose environment has `mark`, including those that mpirun put into other groups."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


def slowness(processes=3):
    """Returns how many times longer this many processes take now than on an idle machine."""
    work = "import time; sum(range(10 ** 7)); print(time.process_time())"
    start = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True)
               for _ in range(processes)]
    alone = min(float(process.communicate()[0]) for process in running)
    return max(1, (time.monotonic() - start) / alone)


# Seconds until a run that hangs is ended, so that the test itself ends.
HANGS = 1200
# Seconds until an mpirun without ranks is ended: some occasionally hang after their ranks.
ALONE = 30


def mpirun_is_alone(mark):
    """Returns True if only mpirun and its parents are left of a run's processes."""
    last = [pid for pid in marked_processes(mark) if not children(pid)]
    return bool(last) and all(name_of(pid) in ("mpirun", "orterun") for pid in last)


def ended(process, mark, timeout):
    """Waits for a process's output. Returns it, and whether a hanging mpirun was ended."""
    alone, seconds = 0, 0
    while True:
        try:
            return process.communicate(timeout=1)[0], alone == ALONE
        except subprocess.TimeoutExpired:
            seconds += 1
        alone = alone + 1 if mpirun_is_alone(mark) else 0
        if alone == ALONE or seconds >= timeout:
            for pid in marked_processes(mark):
                os.kill(pid, signal.SIGKILL)
            out = process.communicate()[0]
            return out + ("" if alone == ALONE else f"\n(still running after {timeout} s)"), alone == ALONE


def call(command, timeout=HANGS, environment=None, cwd=None, again=True):
    mark = "PIPEWRIGHT_TEST_RUN=" + uuid.uuid4().hex
    env = {**os.environ, **ENVIRONMENT, **(environment or {}), **dict([mark.split("=")])}
    command = [str(word) for word in command]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", env=env, cwd=cwd)
    out, hung = ended(process, mark, timeout)
    if hung and again:
        print(f"mpirun hung after its ranks had ended, and the command runs once more: {' '.join(command)}\n{out}",
              file=sys.stderr)
        return call(command, timeout, environment, cwd, again=False)
    seconds = time.monotonic() - start
    # Guards see how their ranks ended before they leave.
    while (left := marked_processes(mark)) and time.monotonic() < start + seconds + 60:
        time.sleep(0.05)
    return Result(" ".join(command), process.returncode, out, seconds, left)


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def children(pid):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


class Running:
    """A running command, to which the test does something."""

    def __init__(self, command, out, environment=None):
        self.mark = "PIPEWRIGHT_TEST_RUN=" + uuid.uuid4().hex
        env = {**os.environ, **ENVIRONMENT, **(environment or {}), **dict([self.mark.split("=")])}
        self.out = out
        with open(out, "w") as file:
            self.process = subprocess.Popen([str(word) for word in command], stdout=file,
                                            stderr=subprocess.STDOUT, env=env)

    def ranks(self):
        """Returns the processes that mpirun has started; guards have left."""
        parents = [self.process.pid] + children(self.process.pid)
        return [rank for parent in parents for rank in children(parent)
                if name_of(parent) in ("mpirun", "orterun")]

    def marked(self):
        """Returns all processes of the run."""
        return marked_processes(self.mark)

    def wait(self, seconds=HANGS):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        deadline = time.monotonic() + 60
        while (left := marked_processes(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.text = pathlib.Path(self.out).read_text(errors="replace")
        return code, left


def pipewright(*arguments):
    return call([BUILD / "pipewright", *arguments])


# The library of the test device (tests/device), on which all ranks then compute.
DEVICE_LIBRARY = os.environ.get("PIPEWRIGHT_TEST_DEVICE")
# Then tests that go through all combinations of their cases take each case once.
FEWER = bool(DEVICE_LIBRARY) and not os.environ.get("PIPEWRIGHT_LONG")


def run_ranks(ranks, *arguments, mpi=True, **settings):
    if DEVICE_LIBRARY and arguments[0] in ("train", "eval", "infer", "generate"):
        arguments += ("--device", "auto", "--share-devices")
        environment = {"LD_PRELOAD": DEVICE_LIBRARY}
        # Values travel over the fake NCCL (tests/fake_nccl), between up to eight devices.
        if os.environ.get("PIPEWRIGHT_TEST_LINKS") == "nccl":
            arguments += ("--links", "nccl")
            environment.update(SIM_DEVICES="8", PIPEWRIGHT_NCCL=str(BUILD / "tests/fake_nccl/libnccl.so.2"))
        settings["environment"] = {**environment, **(settings.get("environment") or {})}
    if mpi:
        return call(["mpirun", "-n", ranks, RUN, *arguments], **settings)
    return call([RUN, "--in-process", ranks, *arguments], **settings)


def bits(values):
    """Returns floats as the bits of float32, for exact comparison."""
    return [struct.pack("<f", value) for value in values]


def gpt(tied=True, layers=6, seed=1, **options):
    torch.manual_seed(seed)
    return GPT(layers=layers, width=32, heads=2, length=LENGTH, tied=tied, **options).train()


class Statistics(torch.nn.Module):
    """A model of two modules; the first has statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

    def forward(self, x):
        h = self.norm(self.a(x))
        pipe_split()
        return self.b(torch.relu(h))


def export(model, example, path):
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, path)


def export_gpt(model, path):
    export(model, torch.randint(256, (2, LENGTH)), path)


SGD = {"type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
ADAMW = {"type": "adamw", "lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.02}


def token_job(**changes):
    job = {
        "data": {"tokens": str(ROOT / "examples/data/python_reference.txt"), "dtype": "u8",
                 "sequence_length": LENGTH, "shuffle": True},
        "loss": "cross_entropy", "optimizer": SGD, "schedule": "1f1b", "microbatches": 4,
        "microbatch_size": 2, "steps": 20, "seed": 7, "threads": 1, "log_every": 1,
        "check_shared": True,
    }
    job.update(changes)
    return {key: value for key, value in job.items() if value is not None}


class Trained:
    """The files that a run of `train` wrote."""

    def __init__(self, losses, weights, gradients):
        self.losses, self.weights, self.gradients = losses, weights, gradients


def alone(test):
    """Marks a test that other tests at the same time would disturb."""
    test.alone = True
    return test


class TakenInTurn(unittest.TestSuite):
    """Iterates over tests that several processes share, skipping those that another process has taken."""

    _cleanup = False

    def __init__(self, tests, taken):
        super().__init__()
        self.tests, self.taken = tests, taken

    def __iter__(self):
        while True:
            with self.taken.get_lock():
                number = self.taken.value
                self.taken.value += 1
            if number >= len(self.tests):
                return
            yield self.tests[number]


def run_side_by_side(processes):
    """Replaces unittest.main() for tests that mostly wait: runs them in several processes."""
    module = sys.modules["__main__"]
    loader = unittest.defaultTestLoader
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    found = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)

    def flat(tests):
        return [test for part in tests for test in (flat(part) if isinstance(part, unittest.TestSuite) else [part])]

    def run(tests, out):
        if not unittest.TextTestRunner(out, verbosity=2).run(tests).wasSuccessful():
            sys.exit(1)

    tests = flat(found)
    is_alone = [hasattr(getattr(test, test._testMethodName, None), "alone") for test in tests]
    fork = multiprocessing.get_context("fork")
    shared = TakenInTurn([test for test, one in zip(tests, is_alone) if not one], fork.Value("i", 0))
    with tempfile.TemporaryDirectory() as folder:
        outs = [open(pathlib.Path(folder, str(number)), "w+") for number in range(processes)]
        workers = [fork.Process(target=run, args=(shared, out)) for out in outs]
        for worker in workers:
            worker.start()
        for worker, out in zip(workers, outs):
            worker.join()
            out.seek(0)
            sys.stderr.write(out.read())
            out.close()
    run(unittest.TestSuite(test for test, one in zip(tests, is_alone) if one), sys.stderr)
    sys.exit(any(worker.exitcode for worker in workers))


class Case(unittest.TestCase):
    """A test with a folder for each class; kept if KEEP_FILES is set."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pipewright_test_"))
        if os.environ.get("KEEP_FILES"):
            print(cls.folder)
        else:
            cls.addClassCleanup(shutil.rmtree, cls.folder)

    def path(self, name):
        return self.folder / name

    @classmethod
    def compile(cls, model_file, package, *options):
        result = pipewright("compile", cls.folder / model_file, "-o", cls.folder / package, *options)
        if result.code:
            raise AssertionError(f"{result.command}\n{result.out}")
        return cls.folder / package

    def write_job(self, job, name="job.json"):
        path = self.path(name)
        if DEVICE_LIBRARY and job.get("body") == "lists":
            job = {key: value for key, value in job.items() if key != "body"}
        path.write_text(json.dumps(job))
        return path

    def succeed(self, result):
        self.assertEqual(result.code, 0, f"{result.command}\n{result.out}")
        self.assertEqual(result.left, [], result.command)
        return result

    def train(self, package, job, ranks, mpi=True, conf=None, environment=None):
        files = [self.path(name) for name in
                 ("metrics.jsonl", "trained.safetensors", "gradients.safetensors")]
        for file in files:
            file.unlink(missing_ok=True)
        options = ["--conf", conf] if conf else []
        self.succeed(run_ranks(
            ranks, "train", package, self.write_job(job), "--metrics", files[0], "--save", files[1],
            "--save-gradients", files[2], *options, mpi=mpi, environment=environment))
        lines = [json.loads(line) for line in files[0].read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(1, job["steps"] + 1)))
        return Trained([line["losses"] for line in lines], load_file(files[1]), load_file(files[2]))

    def train_pytorch(self, model, job):
        """Trains the same in this process; the gradients are those of the last step."""
        gradients = {}

        def keep(step, model):
            if step == job["steps"]:
                gradients.update((name, p.grad.clone()) for name, p in model.named_parameters()
                                 if p.grad is not None)

        losses = [losses for _, losses in
                  one_process.train(model, job, self.folder, after_gradients=keep)]
        return Trained(losses, model.state_dict(), gradients)

    def assert_same_tensors(self, ours, theirs, what=""):
        """Compares bit for bit."""
        self.assertEqual(sorted(ours), sorted(theirs))
        different = []
        for name in ours:
            a, b = ours[name].contiguous(), theirs[name].contiguous()
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape), name)
            same = torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)) if (
                a.dim()) else a.item() == b.item()
            if not same:
                difference = (a.double() - b.double()).abs()
                different.append(f"{name}: {int((difference > 0).sum())} of {a.numel()}, "
                                 f"largest {difference.max().item():.3g}")
        if different:
            self.fail(f"{what}{len(different)} of {len(ours)} tensors differ:\n" +
                      "\n".join(different))

    def assert_same_run(self, ours, theirs, what=""):
        for step, (a, b) in enumerate(zip(ours.losses, theirs.losses, strict=True), 1):
            self.assertEqual(bits(a), bits(b), f"{what}losses of step {step}: {a} and {b}")
        self.assert_same_tensors(ours.weights, theirs.weights, what)
        self.assert_same_tensors(ours.gradients, theirs.gradients, what + "gradient of ")

    def assert_close_tensors(self, ours, theirs, relative, what=""):
        """Compares by the norm of each tensor's difference, relative to its norm."""
        self.assertEqual(sorted(ours), sorted(theirs))
        for name in ours:
            self.assertEqual((ours[name].dtype, ours[name].shape), (theirs[name].dtype, theirs[name].shape), name)
            a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (ours[name], theirs[name]))
            self.assertLessEqual((a - b).norm().item(), relative * b.norm().item(), what + name)

    def assert_learned(self, run, before, names):
        """Every trainable parameter had a gradient and moved."""
        for name in names:
            self.assertGreater(run.gradients[name].abs().max().item(), 0, f"gradient of {name}")
            self.assertFalse(torch.equal(run.weights[name], before[name]), f"{name} did not move")

    def until(self, running, condition):
        deadline = time.monotonic() + HANGS
        while not condition():
            self.assertIsNone(running.process.poll(), pathlib.Path(running.out).read_text())
            self.assertLess(time.monotonic(), deadline, "no progress")
            time.sleep(0.02)

    def assert_soon(self, seconds, limit, text=""):
        """`limit` holds on a quiet machine; on a busy one it grows as its processes slow down."""
        if seconds >= limit:
            self.assertLess(seconds, 2 * limit * slowness(), text)

    def assert_fails(self, result, message, *texts, code=1):
        """Expects `message` (a pattern) once, a nonzero exit soon, and no process left."""
        text = f"{result.command}\n{result.out}"
        self.assertEqual(result.code, code, text)
        self.assert_soon(result.seconds, 10, text)
        self.assertEqual(result.left, [], text)
        for wanted in (message, *texts):
            self.assertRegex(result.out, wanted, text)
        lines = [line for line in result.out.splitlines()
                 if re.search(message, line) and not line.startswith("pipewright-run: note: ")]
        self.assertEqual(len(lines), 1, f"one message with {message}:\n{text}")
        self.assertNotIn("Exception raised from", result.out, text)


class RunCase(Case):
    """Runs of a small GPT, `package`, that are disturbed while they train."""

    faults = ""  # for the runs that are started (PIPEWRIGHT_FAULTS)

    def setUp(self):
        shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
        for name in ("metrics.jsonl", "trained.safetensors"):
            self.path(name).unlink(missing_ok=True)

    def job(self, steps=4, **changes):
        return self.write_job(token_job(
            **{"optimizer": ADAMW, "steps": steps, "check_shared": None, "metrics": "metrics.jsonl",
               "save": "trained.safetensors", **changes}))

    def with_checkpoints(self, steps, every=100000, **changes):
        return self.job(steps, checkpoint={"every": every, "keep": 2, "to": "checkpoints"}, **changes)

    def lines(self, path=None):
        try:
            return [json.loads(line) for line in
                    (path or self.path("metrics.jsonl")).read_text().splitlines()]
        except OSError:
            return []

    def steps_done(self):
        try:
            return self.path("metrics.jsonl").read_text().count("\n")
        except OSError:
            return 0

    def until_steps(self, running, steps):
        self.until(running, lambda: self.steps_done() >= steps)

    def result(self):
        return load_file(self.path("trained.safetensors")), [
            (line["step"], bits(line["losses"])) for line in self.lines()]

    def reference(self, steps):
        """Returns the result of an undisturbed run."""
        self.succeed(run_ranks(3, "train", self.package, self.job(steps), mpi=False))
        result = self.result()
        self.setUp()
        return result

    def assert_same(self, ours, theirs):
        self.assertEqual(ours[1], theirs[1])
        self.assert_same_tensors(ours[0], theirs[0])

    def start(self, *command, faults=None):
        faults = self.faults if faults is None else faults
        running = Running(command, self.path("output.txt"), {"PIPEWRIGHT_FAULTS": faults})
        self.addCleanup(running.wait, 0)
        return running

    def stop_and_go_on(self, *command, stop):
        """Returns the output of a run that `stop` stops; checks that it resumes to the undisturbed result."""
        running = self.start(*command, "train", self.package, self.with_checkpoints(100000),
                             faults="delay=0.05")
        self.until_steps(running, 2)
        stop(running)
        code, left = running.wait()
        self.assertEqual((code, left), (0, []), running.text)
        stopped = int(re.search(r"stopped after step (\d+), as asked", running.text)[1])
        self.assertEqual(self.steps_done(), stopped)
        self.assertEqual(self.path("checkpoints/latest").read_text(), f"step-{stopped:08}\n")
        self.succeed(call([*command, "train", self.package, self.with_checkpoints(stopped + 2), "--resume"]))
        ours = self.result()
        self.setUp()
        self.assert_same(ours, self.reference(stopped + 2))
        return running.text
