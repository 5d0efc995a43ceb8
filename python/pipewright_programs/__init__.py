"""The commands that pip installs: each replaces itself by the program, without importing torch."""
import os
import pathlib
import signal
import sys


def _become(program: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and programs inherit that
    path = pathlib.Path(__file__).resolve().parent.parent / "pipewright/bin" / program
    os.execv(path, [str(path), *sys.argv[1:]])


def pipewright() -> None:
    _become("pipewright")


def pipewright_run() -> None:
    _become("pipewright-run")
