"""Runs the commands that a page of docs/ shows, and compares what they print: pages_test.py PAGE

The page's fenced blocks are taken in order, in an empty folder:

- ```console holds lines "$ COMMAND" (a backslash continues one), each followed by its output.
  Numbers may differ; a line "..." stands for omitted lines. "(exit code 1)" says that the command
  fails.
- Any other block is written to the file that the line before it names, as in "Save this as
  `job.json`:". Without such a line it is only shown.

A comment in the page may say what it needs: <!-- test: long --> runs with PIPEWRIGHT_LONG only, and
<!-- test: hosts --> on three hosts, each a network namespace.
"""
import collections
import contextlib
import importlib.util
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", ROOT / "build")).resolve()
ENVIRONMENT = {
    "PATH": f"{BUILD}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    # Like scripts/mpi_env.sh, which the pages tell readers to source.
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMP_NUM_THREADS": "1", "PIPEWRIGHT_BUILD": str(BUILD),
}
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.M | re.S)
NAMED = re.compile(r"`([\w./-]+\.\w+)`:$")


def blocks(text):
    """Yields (kind, content, file) of each fenced block; file is None if no line names one."""
    for fence in FENCE.finditer(text):
        before = text[:fence.start()].rstrip().rsplit("\n", 1)[-1]
        name = NAMED.search(before)
        yield fence[1], fence[2], name[1] if name else None


def commands(console):
    """Yields (command, lines of output, exit code) of a console block."""
    found = []
    for line in console.splitlines():
        if found and found[-1][0].endswith("\\"):
            found[-1][0] = found[-1][0][:-1] + line.strip()
        elif line.startswith("$ "):
            found.append([line[2:], [], 0])
        elif code := re.fullmatch(r"\(exit code (\d+)\)", line):
            found[-1][2] = int(code[1])
        else:
            found[-1][1].append(line)
    return found


def comparable(line):
    """Returns a line without the parts that differ between runs and machines."""
    line = line.replace(socket.gethostname(), "myhost")
    # The faster body of a module, the slowest stage, and columns that depend on a stage's time.
    line = re.sub(r" (lists|autograd) ", " body ", line).replace(" *", "")
    line = re.sub(r"(gpu\d+ .*? [KMG]?i?B) .*", r"\1", line)
    line = re.sub(r"modules? [\d-]+", "modules", line)
    line = re.sub(r"^(rank \d+)  [\d.biwos]+$", r"\1 timeline", line)
    # Both arrive from other ranks, with the step or after it.
    line = re.sub(r"  (bubble [\d.]+ %|memory \S+ \S+)", "", line)
    line = re.sub(r"\b[0-9a-f]{16}\b", "HASH", line)
    line = re.sub(r"[-+±]?\d[\d,.]*(e[-+]?\d+)?", "#", line)
    return " ".join(line.split())


def compare(shown, printed):
    """Returns None, or how the output differs from the page.

    Standard output and standard error may be interleaved in any way, so the order is not compared.
    """
    wanted = collections.Counter(comparable(line) for line in shown if line.strip())
    # libevent, inside mpirun, sometimes warns about a pipe that is already closed.
    got = collections.Counter(comparable(line) for line in printed.splitlines()
                              if line.strip() and not line.startswith("[warn] Epoll"))
    more = wanted.pop("...", 0)
    missing, extra = wanted - got, got - wanted
    if missing or (extra and not more):
        return "".join([*(f"- {line}\n" for line in missing),
                        *(f"+ {line}\n" for line in ({} if more else extra))])
    return None


class Page(unittest.TestCase):
    path = None

    def test_commands(self):
        text = self.path.read_text(encoding="utf-8")
        needs = re.findall(r"^<!-- test: (\w+) -->$", text, re.M)
        if "long" in needs and not os.environ.get("PIPEWRIGHT_LONG"):
            self.skipTest("takes long: set PIPEWRIGHT_LONG")
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            prefix, environment = [], {**os.environ, **ENVIRONMENT}
            if "hosts" in needs:
                sys.path.insert(0, str(ROOT / "tests/e2e"))
                import network
                if not network.can_make_network():
                    self.skipTest("network namespaces are not permitted")
                prefix, more = stack.enter_context(network.named_hosts(["node1", "node2", "node3"]))
                environment.update(more)
            ran = 0
            for kind, content, file in blocks(text):
                if kind != "console":
                    if file:
                        (folder / file).parent.mkdir(parents=True, exist_ok=True)
                        (folder / file).write_text(content)
                    continue
                for command, shown, code in commands(content):
                    self.run_command(command, shown, code, folder, prefix, environment)
                    ran += 1
            self.assertGreater(ran, 0)

    def run_command(self, command, shown, code, folder, prefix, environment):
        start = time.monotonic()
        words = ["bash", "-c", command]
        # The stand-in for ssh joins its words into a line for the shell, as ssh does.
        done = subprocess.run([*prefix, shlex.join(words)] if prefix else words, cwd=folder, env=environment,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              errors="replace", timeout=1200)
        print(f"{time.monotonic() - start:5.1f} s  {command}")
        self.assertEqual(done.returncode, code, f"$ {command}\n{done.stdout}")
        other = compare(shown, done.stdout)
        self.assertIsNone(other, f"$ {command}\n{done.stdout}\ncompared with the page:\n{other}")


def main():
    if not importlib.util.find_spec("torch"):
        print("SKIPPED: no Python with torch")
        sys.exit(77)
    Page.path = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()


if __name__ == "__main__":
    main()
