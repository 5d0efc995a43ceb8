"""Measures the time from process start to the begin and end of the first training step, and the memory of a rank: ours and
torch.distributed.pipelining's.

Memory is the peak resident size of a rank (VmHWM). `beyond` excludes its tensors: weights, gradients, activations and
messages at their peak, as `pipewright-run bench` counts them.
"""
import json
import os
import statistics
import subprocess
import tempfile
import time

import command_line
from package import compile_model, write_conf, write_job
from processes import ENVIRONMENT, start_ours, start_peer
from report import show, spread

CASES = [("mlp", "tiny"), ("gpt", "small"), ("gpt", "medium")]
MIB = 1024 * 1024


def descendants(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in file.read().split():
                found += [int(child)] + descendants(int(child))
    return found


def resident_mib(pid):
    """Returns the peak; pages of an inbox (runtime/transport/inbox.h) count once over all ranks that have mapped them."""
    with open(f"/proc/{pid}/status") as file:
        most = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    inbox = False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            fields = line.split()
            if "-" in fields[0]:
                inbox = "memfd:pipewright-inbox" in line
            elif inbox and fields[0] in ("Rss:", "Pss:"):
                most -= int(fields[1]) * (1 if fields[0] == "Rss:" else -1)
    return most / 1024


def measure(start, request, ranks_of):
    started = time.perf_counter()
    workers = start()
    try:
        answers = workers.ask(request)
        ended = time.perf_counter()
        begun = max(rank["begin"] for answer in answers for rank in answer.get("ranks", [answer])) / 1e6  # the same clock
        workers.ask(request)
        return {"seconds": begun - started, "with_step": ended - started,
                "mib": [resident_mib(pid) for pid in ranks_of(workers)]}
    finally:
        workers.close()


def our_ranks(workers):
    """Returns the process IDs of our ranks, without the processes that watch them."""
    def name(pid):
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    pids = [pid for pid in descendants(workers.processes[0].pid) if name(pid) == "pipewright-run"]
    assert len(pids) == 2, pids
    return pids


def tensor_mib(build, arguments):
    """Returns the peak memory of each rank's tensors."""
    command = ["mpirun", "-n", "2", os.path.join(build, "pipewright-run"), "bench", *arguments, "--json", "--steps", "2"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT).stdout
    return [rank["peak_bytes"] / MIB for rank in json.loads(out)["ranks"]]


def main():
    options = command_line.parse(command_line.parser(__doc__))
    raw = {"title": "Start and memory", "samples": {}, "ratios": {}, "table": [
        "| model | to the first step: ours, s | peer, s | peer ÷ ours | to its end: ours, s | peer, s | ours, MiB a rank "
        "| beyond its tensors | peer, MiB a rank |",
        "|---|---|---|---|---|---|---|---|---|"]}
    for name, size in CASES:
        with tempfile.TemporaryDirectory() as folder:
            arguments = [compile_model(options.build, folder, name, size, 2), write_job(folder, name, size, 8, "1f1b"),
                         "--conf", write_conf(folder, 2, 2, "loop")]
            tensors = tensor_mib(options.build, arguments)
            rounds = []
            for _ in range(options.repetitions):
                ours = measure(lambda: start_ours(options.build, 2, ["bench", *arguments, "--on-request"]), "steps 1", our_ranks)
                peer = measure(lambda: start_peer(2, ["--model", name, "--size", size]), "steps 1f1b eager 1",
                               lambda workers: [process.pid for process in workers.processes])
                rounds.append({"ours": ours, "peer": peer})
                print(f"{name} {size}: {ours['seconds']:.2f} s, peer {peer['seconds']:.2f} s", flush=True)
        median = lambda who, what="seconds": statistics.median(r[who][what] for r in rounds)
        memory = lambda who: [statistics.median(r[who]["mib"][rank] for r in rounds) for rank in range(2)]
        ratio = spread([r["peer"]["seconds"] / r["ours"]["seconds"] for r in rounds])
        each = lambda values: ", ".join(f"{v:.0f}" for v in values)
        raw["samples"][f"{name} {size}"] = {"rounds": rounds, "tensor_mib": tensors}
        raw["ratios"][f"{name} {size}"] = {"peer/ours": ratio}
        raw["table"].append(f"| {name} {size} | {median('ours'):.2f} | {median('peer'):.2f} | {show(ratio)} | "
                            f"{median('ours', 'with_step'):.2f} | {median('peer', 'with_step'):.2f} | {each(memory('ours'))} | "
                            f"{each(m - t for m, t in zip(memory('ours'), tensors))} | {each(memory('peer'))} |")
    with open(os.path.join(options.results, "raw", "start-all.json"), "w") as file:
        json.dump(raw, file)
    print("\n".join(raw["table"]))


if __name__ == "__main__":
    main()
