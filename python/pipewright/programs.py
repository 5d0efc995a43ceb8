"""Finds and runs the two programs."""
from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from pipewright.errors import Error

HERE = pathlib.Path(__file__).resolve().parent


def find(program: str) -> pathlib.Path:
    """Returns the path of `pipewright` or `pipewright-run`.

    Searches only the folder in PIPEWRIGHT_BIN if that is set; otherwise the folder of an installed
    package, then the build folder of a checkout.
    """
    named = os.environ.get("PIPEWRIGHT_BIN")
    folders = [pathlib.Path(named)] if named else [HERE / "bin", HERE.parents[1] / "build"]
    for folder in folders:
        if os.access(folder / program, os.X_OK) and (folder / program).is_file():
            return folder / program
    looked = "\n".join(f"  {folder / program}" for folder in folders)
    raise Error(f"{program} was not found. These places were searched:\n{looked}\n"
                "  build it (make programs), or name its folder by the variable PIPEWRIGHT_BIN")


def command_line(program: str, arguments: Sequence[Any], ends_by: str = "TERM") -> list[str]:
    """Returns the command line that runs a program so that it ends with the thread that starts it.

    The kernel sends the signal when that thread ends, even if the interpreter is killed.
    """
    setpriv = shutil.which("setpriv")
    if not setpriv:
        raise Error("setpriv, which ends the programs together with Python, was not found\n"
                    "  install it (Debian: util-linux)")
    return [setpriv, "--pdeathsig", ends_by, "--", str(find(program)), *map(str, arguments)]


def options(**named: Any) -> list[str]:
    """Returns command-line options: time_limit=3 is --time-limit 3, explain=True is --explain.

    None and False omit an option; a list repeats it for each element, which all options of several values accept.
    """
    words: list[str] = []
    for name, value in named.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            for element in value:
                words += [option, str(element)]
        else:
            words += [option, str(value)]
    return words


def run(program: str, *arguments: Any) -> str:
    """Runs a program and returns what it printed. Notes and warnings go to standard error.

    Ctrl-C ends the program as at a terminal; KeyboardInterrupt is raised once it has ended.
    """
    with subprocess.Popen(command_line(program, arguments), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", start_new_session=True) as process:
        try:
            out, errors = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate()
            finally:
                process.kill()
            raise
    if process.returncode:
        raise Error(errors.strip() or f"{program} ended with code {process.returncode}",
                    process.returncode)
    if errors:
        print(errors, end="", file=sys.stderr)
    return out


def check_torch() -> None:
    """Raises ImportError if the installed torch is not the one that the package was built with."""
    if not (HERE / "bin").is_dir():
        return  # a checkout
    built = next((wanted.partition("==")[2] for wanted in metadata.requires("pipewright") or []
                  if wanted.startswith("torch==")), "")
    found = metadata.version("torch").partition("+")[0]
    if built and found != built:
        raise ImportError(f"pipewright was built with torch {built}, and this environment has torch "
                          f"{found}\n  build it again: pip install --no-build-isolation "
                          f"--force-reinstall --no-deps SOURCES, or: pip install torch=={built}")


def version() -> str:
    """Returns the output of `pipewright version`."""
    return run("pipewright", "version").strip()
