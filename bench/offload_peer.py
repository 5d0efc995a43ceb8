"""Runs the GPT of bench/offload.py with accelerate's disk offload, on CPU. Answers requests with lines of JSON.

    load               loads the model, with weights as in the device map: {"load": seconds, "files", "bytes": of the second copy}
    forward N [cold]   runs N forwards; `cold` drops what is on disk from the page cache before each: {"seconds": [...]}
    save FILE          writes the last output: {}
    library FILE       runs safetensors' load_file and touches every page: {"seconds"}

Each answer has "mib", the peak resident memory of the process.
"""
import argparse
import json
import os
import shutil
import sys
import time

import torch
from safetensors.torch import load_file, save_file

import models


def drop_file(path):
    """Drops a file's pages from the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def drop(folder):
    for name in os.listdir(folder):
        drop_file(os.path.join(folder, name))


def peak_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def touch(path):
    start = time.perf_counter()
    tensors = load_file(path)
    total = sum(int(t.flatten().view(torch.uint8)[::4096].sum()) for t in tensors.values())
    return {"seconds": time.perf_counter() - start, "sum": total}


class Model:
    def __init__(self, options):
        from accelerate import init_empty_weights, load_checkpoint_and_dispatch
        self.folder = options.folder
        shutil.rmtree(self.folder, ignore_errors=True)
        with open(options.map) as file:
            device_map = json.load(file)
        start = time.perf_counter()
        with init_empty_weights():
            model = models.build("gpt", models.Size(*options.size), 1)
        self.model = load_checkpoint_and_dispatch(model, options.checkpoint, device_map=device_map,
                                                  offload_folder=self.folder).eval()
        self.seconds = time.perf_counter() - start
        self.input = load_file(options.input)["x"]

    def copy(self):
        sizes = [entry.stat().st_size for entry in os.scandir(self.folder)]
        return {"load": self.seconds, "files": len(sizes), "bytes": sum(sizes)}

    def forwards(self, count, cold):
        seconds = []
        for _ in range(count):
            if cold:
                drop(self.folder)
            start = time.perf_counter()
            with torch.no_grad():
                self.output = self.model(self.input)
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("checkpoint", "input", "map", "folder"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--size", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    say = lambda answer: print(json.dumps({**answer, "mib": peak_mib()}), flush=True)
    model = None
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "load":
                model = Model(options)
                say(model.copy())
            elif words[0] == "library":
                say(touch(words[1]))
            elif words[0] == "forward":
                say(model.forwards(int(words[1]), "cold" in words))
            else:
                save_file({"out": model.output.contiguous()}, words[1])
                say({})
        except Exception as error:
            say({"failed": f"{type(error).__name__}: {error}"})
            os._exit(1)


if __name__ == "__main__":
    main()
