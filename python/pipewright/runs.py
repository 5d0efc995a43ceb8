"""Runs `pipewright-run` in processes of its own while Python goes on."""
from __future__ import annotations

import atexit
import html
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pipewright import programs
from pipewright.errors import Error
from pipewright.job import JSON, Job, read_json, write
from pipewright.package import Package, Path, conf_file, rank_count, stages_of

POLL = 0.2  # seconds between two checks of a run
ROW_BYTES = 1 << 20  # more than a usual row of metrics
STREAM = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/self/fd/\d+")  # names another file in each process
KILL_AFTER = 10.0  # seconds that a run has to end its ranks before it is killed


def train(package: Package | Path, job: Job | Mapping[str, Any] | Path, ranks: int | None = None,
          *, conf: JSON | Path | None = None, in_process: bool = False, resume: bool = False,
          **options: Any) -> Run:
    """Starts a training run and returns at once.

    ranks: number of ranks (None: as in the package's own conf). If it differs from that conf's, the
        modules are grouped in order.
    in_process: runs ranks as threads of one process, without mpirun.
    resume: continues from the newest checkpoint of the job, if there is one.
    options: further options of `pipewright-run train`: weights="w.safetensors", steps=10, ...
    """
    package = Package(package)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pipewright-run-"))
    try:
        file, content = read_job(job, folder)
        metrics = options.pop("metrics", None)
        if metrics is None and content.get("metrics"):  # relative to the job's file
            metrics = pathlib.Path(file).parent / content["metrics"]
        metrics = pathlib.Path(metrics or folder / "metrics.jsonl").absolute()
        if conf is None and ranks not in (None, package.ranks):
            conf = package.conf(ranks)
        ranks = ranks or ranks_of(package, conf)
        words = programs.command_line(
            "pipewright-run",
            ["--in-process" if in_process else "-n", ranks, "train", package.path, file,
             *programs.options(conf=conf_file(conf, folder), metrics=metrics, resume=resume,
                               **options)],
            ends_by="KILL" if in_process else "TERM")
        steps = options.get("steps") or content.get("steps", 1)
        return Run(words, folder, metrics, steps, in_process, bool(resume or options.get("resume_from")))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def infer(package: Package | Path, inputs: Mapping[str, torch.Tensor], *,
          conf: JSON | Path | None = None, **options: Any) -> dict[str, torch.Tensor]:
    """Returns the outputs of a package in evaluation mode, for tensors named like its inputs.

    options: options of `pipewright-run infer`: weights="w.safetensors", microbatches=4, ...
    """
    if not isinstance(inputs, Mapping):
        raise TypeError("infer(package, inputs): inputs maps names of the model's inputs to tensors, "
                        "such as {\"x\": x}")
    package = Package(package)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # A file has no flag for conjugated or negated values.
        save_file({key: tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
                   for key, tensor in inputs.items()}, folder / "in.safetensors")
        programs.run("pipewright-run", "--in-process", ranks_of(package, conf), "infer",
                     package.path, *programs.options(
                         input=folder / "in.safetensors", output=folder / "out.safetensors",
                         conf=conf_file(conf, folder), **options))
        return load_file(folder / "out.safetensors")


def read_job(job: Job | Mapping[str, Any] | Path, folder: pathlib.Path) -> tuple[Path, JSON]:
    """Returns the job's file and its content."""
    if not isinstance(job, (str, os.PathLike)):
        return folder / "job.json", write(job, folder / "job.json")
    try:
        return job, read_json(job)
    except (OSError, ValueError):
        return job, {}  # the program reports what is wrong with it


def ranks_of(package: Package, conf: JSON | Path | None) -> int:
    if conf is None:
        return package.ranks
    if not isinstance(conf, Mapping):
        conf = read_json(conf)
    return rank_count(stages_of(dict(conf)))


def file_state(file: pathlib.Path) -> tuple[int, int, int] | None:
    """Returns what changes when a run opens its metrics file. None: there is no file that can be read."""
    try:
        now = os.stat(file)
    except OSError:
        return None
    readable = stat.S_ISREG(now.st_mode) and not STREAM.fullmatch(str(file))
    return (now.st_ino, now.st_size, now.st_mtime_ns) if readable else None


class Run:
    """A run in the background. A notebook shows its progress.

    No rank outlives the interpreter: the kernel ends the program with the thread that started it.
    """

    def __init__(self, words: list[str], folder: pathlib.Path, metrics: pathlib.Path, steps: int,
                 in_process: bool, resumes: bool):
        self.folder, self.metrics_file, self.steps = folder, metrics, steps
        self.code: int | None = None  # the exit code, once it has ended
        self._in_process, self._killed, self._told = in_process, False, False
        self._resumes, self._before = resumes, file_state(metrics)
        self._stop = threading.Event()
        self._started, self._ended = threading.Event(), threading.Event()
        self._start_error: BaseException | None = None
        self._error: BaseException | None = None  # of the thread, after the start
        self._display = notebook_display(self)
        _runs.add(self)
        # A daemon thread: the end of the interpreter ends the run instead of waiting for it.
        threading.Thread(target=self._serve, args=(words,), daemon=True).start()
        self._started.wait()
        if self._start_error:
            _runs.discard(self)
            raise self._start_error

    @property
    def metrics(self) -> list[JSON]:
        """One row for each step so far; docs/reference/job.md describes its keys."""
        if not self._has_rows():
            return []
        try:
            text = self.metrics_file.read_text()
        except FileNotFoundError:
            return []
        whole = text[:text.rfind("\n") + 1]  # a line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def last_row(self) -> JSON | None:
        """Returns the newest row of `metrics` without reading the others."""
        if not self._has_rows():
            return None
        try:
            with open(self.metrics_file, "rb") as file:
                start = file.seek(max(0, file.seek(0, os.SEEK_END) - ROW_BYTES))
                lines = file.read().split(b"\n")
                if start and len(lines) < 3:  # the row begins before `start`
                    file.seek(0)
                    lines = file.read().split(b"\n")
            return json.loads(lines[-2]) if len(lines) > 1 else None
        except (OSError, ValueError):
            return None

    def _has_rows(self) -> bool:
        """Whether the metrics are in a file, and not as an earlier run left it."""
        now = file_state(self.metrics_file)
        return now is not None and (self._resumes or now != self._before)

    @property
    def output(self) -> str:
        """The program's standard output so far."""
        return (self.folder / "output.txt").read_text(errors="replace")

    @property
    def errors(self) -> str:
        """The program's standard error so far: notes, warnings, and the error if it failed."""
        text = (self.folder / "errors.txt").read_text(errors="replace")
        # mpirun says so when stop() sends it a signal.
        return re.sub(r"^\S+: Forwarding signal \d+ to job\n", "", text, flags=re.M)

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> Run:
        """Waits for the end. Raises Error with the program's own text if it failed.

        Ctrl-C ends the run after its current step, with a checkpoint if the job has a folder for
        them; a second Ctrl-C ends it at once. KeyboardInterrupt is raised once the run has ended.
        """
        try:
            if not self._ended.wait(timeout):
                raise TimeoutError(f"the run goes on after {timeout} s: {self!r}")
        except KeyboardInterrupt:
            self.stop()
            try:
                self._ended.wait()
            except KeyboardInterrupt:
                self.kill()
            raise
        first, self._told = not self._told, True
        if self._killed:
            raise Error("the run was ended by kill()", self.code or 1)
        if self._error:
            raise Error(f"the run was ended, because Python could not follow it: {self._error!r}",
                        self.code or 1) from self._error
        if self.code:
            raise Error(self._failure(), self.code)
        if first and self.errors:
            print(self.errors, end="", file=sys.stderr)
        return self

    def stop(self) -> None:
        """Asks the run to end after its current step, with a checkpoint if the job has a folder."""
        self._stop.set()

    def kill(self) -> None:
        """Ends the run at once. Returns when it has ended."""
        if self.running:
            self._killed = True
            self._end()
            self._ended.wait()

    def __repr__(self) -> str:
        row = self.last_row() or {"step": 0}
        state = "running" if self.running else "killed" if self._killed else (
            f"failed with code {self.code}" if self.code else "ended")
        told = "".join(f", {key} {row[key]:.4g}" for key in
                       ("loss", "samples_per_second", "tokens_per_second", "learning_rate")
                       if row.get(key) is not None)
        return f"<Run: {state}, step {row['step']} of {self.steps}{told}>"

    def _repr_html_(self) -> str:
        step = (self.last_row() or {"step": 0})["step"]
        failed = f"<pre>{html.escape(self.errors)}</pre>" if self.code and not self._killed else ""
        bar = f"<progress max={self.steps} value={step}></progress> "
        return bar + html.escape(repr(self)) + failed

    def _failure(self) -> str:
        return self.errors.strip() or f"pipewright-run ended with code {self.code}"

    def _serve(self, words: list[str]) -> None:
        """Starts the program and waits for its end, because it ends with this thread."""
        try:
            with (open(self.folder / "output.txt", "wb") as out,
                  open(self.folder / "errors.txt", "wb") as errors):
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                    start_new_session=True)
                self._started.set()
                self._follow(out.fileno())
        except BaseException as error:
            if self._started.is_set():
                self._error = error
                self.code = self._end()
            else:
                self._start_error = error
        finally:  # others wait for both
            self._started.set()
            self._ended.set()
        if not self._start_error:
            self._show()

    def _follow(self, out: int) -> None:
        """Waits for the end of the program. Meanwhile shows its progress and asks it to stop."""
        ready, asked, shown = False, False, None
        while self.code is None:
            try:
                self.code = self._process.wait(POLL)
            except subprocess.TimeoutExpired:
                pass
            ready = ready or self._ready(out)
            if self._stop.is_set() and ready and not asked and self.code is None:
                # Not SIGINT, which a program in the background of a shell ignores.
                self._process.send_signal(signal.SIGUSR1)
                asked = True
            if self._display and (row := self.last_row()) != shown:
                self._show()
                shown = row

    def _ready(self, out: int) -> bool:
        """Whether the program handles signals: once it has written metrics."""
        now = file_state(self.metrics_file)
        if now is None and os.path.exists(self.metrics_file):  # a stream, such as /dev/stdout or /dev/null
            return os.fstat(out).st_size > 0 or handles(self._process.pid, signal.SIGUSR1)
        return now != self._before and self.last_row() is not None

    def _end(self) -> int:
        """Ends the program at once and returns its exit code."""
        # The supervisor ends mpirun and the ranks; without it, the ranks are threads.
        self._process.send_signal(signal.SIGKILL if self._in_process else signal.SIGTERM)
        try:
            return self._process.wait(KILL_AFTER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _show(self) -> None:
        """Updates the display, whose failure must not end the run."""
        if self._display is None:
            return
        try:
            self._display.update(self)
        except Exception as error:
            self._display = None
            print(f"pipewright: the progress of the run is no longer shown: {error!r}", file=sys.stderr)


def handles(process: int, number: int) -> bool:
    """Whether a signal would not end the process: it handles or blocks it (proc(5))."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    masks = re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)$", status, re.M)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def notebook_display(run: Run) -> Any:
    """Returns a handle to update a run's display in a notebook, or None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display(run, display_id=True)


_runs: set[Run] = set()


def _end_all() -> None:
    """Ends all runs when the interpreter ends, and prints failures that nobody waited for."""
    for run in _runs:
        run.kill()
        if run.code and not run._killed and not run._told:
            print(run._failure(), file=sys.stderr)
        shutil.rmtree(run.folder, ignore_errors=True)


atexit.register(_end_all)
