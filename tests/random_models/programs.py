"""Runs the programs, and extracts reasons from their output."""
import os
import pathlib
import re
import subprocess

BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD",
                                    pathlib.Path(__file__).resolve().parents[2] / "build"))
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none"}
SECONDS = 1200  # until a hanging run is ended


class Programs:
    """With `many`, the library of many_runs.cc, each program loads LibTorch once."""

    def __init__(self, many=None):
        self.many, self.servers = many, {}

    def call(self, folder, program, *arguments):
        """Returns the exit code (negative: a signal) and the output."""
        arguments = [str(a) for a in arguments]
        if self.many and program != "mpirun":
            return self.ask(folder, program, arguments)
        path = program if program == "mpirun" else BUILD / program
        try:
            result = subprocess.run([str(path), *arguments], capture_output=True, text=True,
                                    timeout=SECONDS, env=ENVIRONMENT, errors="replace")
            return result.returncode, result.stdout + result.stderr
        except subprocess.TimeoutExpired as error:
            return -14, f"(still running after {SECONDS} s)\n{error.output}"

    def ask(self, folder, program, arguments):
        if program not in self.servers:
            self.servers[program] = subprocess.Popen(
                [str(BUILD / program), "MANY"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env={**ENVIRONMENT, "LD_PRELOAD": str(self.many)})
        server, out = self.servers[program], folder / "out.txt"
        server.stdin.write("\t".join([str(out), *arguments]) + "\n")
        server.stdin.flush()
        code = os.waitstatus_to_exitcode(int(server.stdout.readline()))
        return code, out.read_text(errors="replace")

    def close(self):
        for server in self.servers.values():
            server.stdin.close()
            server.wait()


def reason_of(text):
    """Returns a message without names and numbers, to count how often it occurs."""
    lines = [line for line in text.splitlines() if line.startswith("pipewright")]
    text = lines[0] if lines else text.strip()[-200:]
    text = re.sub(r'"[^"]*"', '"_"', text)
    text = re.sub(r"\S*[/.]\S*(:\d+)+|\S*/\S*", "FILE", text)
    text = re.sub(r"\b([vwbmx]|part)\d+(_\w+)?\b", "_", text)
    return re.sub(r"-?\d+(\.\d+)?", "N", text)[:240]
