"""Starts programs that wait for requests, one per line, and answer each with a line of JSON."""
import json
import os
import socket
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
# One thread per rank; mpirun and torch.distributed get the same cores.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def cores():
    """Returns the sets of hardware threads, one per core."""
    sets = []
    for cpu in sorted(os.sched_getaffinity(0)):
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            text = file.read().strip()
        core = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            core |= set(range(int(first), int(last or first) + 1))
        if core not in sets:
            sets.append(core)
    return sets


def core_sets(count):
    """Returns the hardware threads of the first `count` cores, as mpirun's --bind-to core assigns them to ranks."""
    sets = cores()
    if len(sets) < count:
        raise RuntimeError(f"{count} ranks of one core each, and there are {len(sets)} cores")
    return sets[:count]


class Workers:
    """The ranks of one program. `ask` returns what each of them answers."""

    def __init__(self, commands, environments, cores=None):
        self.name = " ".join(os.path.basename(word) for word in commands[0][:8])
        self.processes = []
        for rank, command in enumerate(commands):
            bind = (lambda core=cores[rank]: os.sched_setaffinity(0, core)) if cores else None
            self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                                   env=environments[rank], preexec_fn=bind))

    def ask(self, line, limit=300):
        def read(process, answers):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answers.append(process.stdout.readline())
        answers = [[] for _ in self.processes]
        threads = [threading.Thread(target=read, args=pair, daemon=True) for pair in zip(self.processes, answers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit)
        if not all(a and a[0] for a in answers):
            self.close()
            raise RuntimeError(f"{self.name}: no answer to \"{line}\"")
        answers = [json.loads(a[0]) for a in answers]
        for answer in answers:
            if "failed" in answer:
                self.close()
                raise RuntimeError(f"{self.name}: {line}: {answer['failed']}")
        return answers

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def place_ranks(ranks):
    """Returns options for mpirun that bind ranks to cores, unless there are fewer cores than ranks."""
    return ["--bind-to", "core", "--map-by", "core"] if ranks <= len(cores()) else ["--bind-to", "none", "--oversubscribe"]


def start_ours(build, ranks, arguments, environment={}):
    """Starts `pipewright-run ARGUMENTS` on placed ranks."""
    command = ["mpirun", *place_ranks(ranks), "-n", str(ranks), os.path.join(build, "pipewright-run"),
               "--stall-limit", "0", "--stall-report", "0"]
    return Workers([command + arguments], [{**ENVIRONMENT, **environment}])


def start_peer(ranks, arguments):
    """Starts bench/peer.py on bound ranks."""
    environments = [{**ENVIRONMENT, "RANK": str(r), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                     "GLOO_SOCKET_IFNAME": "lo"} for r in range(ranks)]
    port = str(free_port())
    for environment in environments:
        environment["MASTER_PORT"] = port
    command = [sys.executable, "-W", "ignore", os.path.join(HERE, "peer.py"), *arguments]
    return Workers([command] * ranks, environments, cores=core_sets(ranks))


def start_single(threads, arguments):
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", os.path.join(HERE, "single.py"), "--threads", str(threads), *arguments]
    return Workers([command], [environment])


def check_output(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT).stdout
