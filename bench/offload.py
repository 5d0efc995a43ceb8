"""Compares a 1.6 GB GPT with its weights on disk, on CPU, with accelerate's disk offload; and reading safetensors.

Both have the same model, device maps and two threads, and run in turn, round after round; those that are not measured
sleep. Cold: files are dropped from the page cache before each forward. Warm: they are held in it, ours as `compile` wrote
them, accelerate's as it read them. Right before each of our measurements, measures the limits: the model in memory, and a
plain reader of the files whose weights are on disk, in large blocks that bypass the page cache. Loading time starts with our
process; accelerate's excludes its imports.
"""
import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

import command_line
from offload_peer import drop, drop_file
from processes import ENVIRONMENT, HERE, Workers
from report import show, spread
from start import resident_mib

SIZE = (32, 1024, 1, 32, 16, 256)  # arguments of models.Size
THREADS = 2
OURS = {**ENVIRONMENT, "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}


def write_model(folder, build, size):
    """Writes the model. Runs in a separate process, so that this one stays small."""
    import models
    size = models.Size(*size)
    model = models.build("gpt", size, size.blocks).eval()
    save_file(model.state_dict(), os.path.join(folder, "model.safetensors"))
    x = models.batch("gpt", size, 1)[0]
    save_file({"x": x}, os.path.join(folder, "in.safetensors"))
    archive = os.path.join(folder, "model.pt2")
    torch.export.save(torch.export.export(model, (x,), strict=False), archive)
    subprocess.run([os.path.join(build, "pipewright"), "compile", archive, "-o", os.path.join(folder, "model.pkg")],
                   check=True, stdout=subprocess.DEVNULL)
    os.remove(archive)
    os.sync()


def device_maps(folder, blocks):
    """Writes maps with all but one norm on disk (accelerate 1.15 rejects maps of only disk), every second block, and nothing."""
    maps = {"all": {"first": "disk", "blocks": "disk", "last.0": "cpu", "last.1": "disk"},
            "half": {"first": "cpu", "last": "cpu", **{f"blocks.{i}": "disk" if i % 2 else "cpu" for i in range(blocks)}},
            "none": {"first": "cpu", "blocks": "cpu", "last": "cpu"}}
    paths = {}
    for name, device_map in maps.items():
        paths[name] = os.path.join(folder, f"{name}.json")
        with open(paths[name], "w") as file:
            json.dump(device_map, file)
    return paths


class Ours:
    def __init__(self, options, folder, name, device_map):
        self.folder, self.report = folder, os.path.join(folder, f"{name}-report.json")
        self.output = os.path.join(folder, f"{name}-ours.safetensors")
        self.weights = os.path.join(folder, "model.pkg", "weights")
        drop(self.weights)
        start = time.perf_counter()
        self.workers = Workers([[
            os.path.join(options.build, "pipewright-run"), "--stall-limit", "0", "--stall-report", "0", "--in-process", "1",
            "infer", os.path.join(folder, "model.pkg"), "--input", os.path.join(folder, "in.safetensors"), "-o", self.output,
            "--device-map", device_map, "--offload-dir", os.path.join(folder, "unused"), "--offload-report", self.report,
            "--on-request"]], [OURS])
        self.load = self.workers.ask("steps 1")[0]["ranks"][0]["begin"] / 1e6 - start

    def forward(self, cold=False):
        if cold:
            drop(self.weights)
        times = self.workers.ask("steps 1")[0]["ranks"][0]
        return (times["ends"][0] - times["begin"]) / 1e6

    def memory(self):
        return resident_mib(self.workers.processes[0].pid)

    def close(self):
        self.workers.close()
        with open(self.report) as file:
            return json.load(file)["ranks"][0]


class Peer:
    def __init__(self, options, folder, name, device_map):
        self.copy = os.path.join(folder, f"{name}-copy")
        checkpoint = os.path.join(folder, "model.safetensors")
        self.workers = Workers([[sys.executable, "-W", "ignore", os.path.join(HERE, "offload_peer.py"), "--checkpoint", checkpoint,
                                 "--input", os.path.join(folder, "in.safetensors"), "--map", device_map, "--folder", self.copy,
                                 "--threads", str(THREADS), "--size", *map(str, options.size)]], [OURS])
        drop_file(checkpoint)
        self.load = self.ask("load")

    def ask(self, line):
        answer = self.workers.ask(line)[0]
        self.mib = answer["mib"]
        return answer

    def forward(self, cold=False):
        return self.ask("forward 1" + (" cold" if cold else ""))["seconds"][0]


def write_as_compile_does(folder):
    """Rewrites files in place, in blocks of 2 MiB: the program that has them open continues to use them."""
    for path in (os.path.join(folder, name) for name in os.listdir(folder)):
        with open(path, "r+b", buffering=0) as file:
            content = file.read()
            drop_file(path)  # pages in the cache would not change
            file.seek(0)
            for i in range(0, len(content), 2 << 20):
                file.write(content[i:i + (2 << 20)])
            os.fsync(file.fileno())


class Held:
    """Files that are read into the page cache and locked there: some systems evict unmapped pages within seconds. If the
    process may not lock memory, the files are only read."""

    def __init__(self, *folders):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.maps = []
        for path in (os.path.join(folder, name) for folder in folders for name in os.listdir(folder)):
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                while file.read(16 << 20):
                    pass
                at = self.libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
                self.libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(size))
                self.maps.append((at, size))

    def close(self):
        for at, size in self.maps:
            self.libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))


def plain(options, *files):
    return Workers([[os.path.join(options.build, "bench", "weights_bench"), *files]], [OURS])


def measure(options, folder):
    maps = device_maps(folder, options.size[0])
    ours = {name: Ours(options, folder, name, path) for name, path in maps.items()}
    peer = {name: Peer(options, folder, name, maps[name]) for name in ("all", "half")}
    weights = os.path.join(folder, "model.pkg", "weights")
    files = [os.path.join(weights, f"module{i}.safetensors") for i in range(options.size[0])]
    reader = {"all": plain(options, *files), "half": plain(options, *files[1::2])}
    rounds = []
    for i in range(options.repetitions + 1):
        entry = {"ours": {}, "peer": {}, "compute": {}, "read": {}}
        for case, name, cold in (("all cold", "all", True), ("half cold", "half", True), ("all warm", "all", False)):
            held = None
            if not cold:
                write_as_compile_does(weights)
                held = Held(weights, peer[name].copy)
                peer[name].forward()
                ours[name].forward()
            entry["compute"][case] = ours["none"].forward()
            if cold:
                drop(weights)
                entry["read"][name] = reader[name].ask("read")[0]["seconds"]
            entry["ours"][case] = ours[name].forward(cold)
            entry["peer"][case] = peer[name].forward(cold)
            if held:
                held.close()
        if i > 0:  # the first round touches memory for the first time
            rounds.append(entry)
            print(json.dumps(entry), flush=True)
    for name, model in peer.items():
        model.ask(f"save {os.path.join(folder, name + '-peer.safetensors')}")
    memory = {"ours": {name: model.memory() for name, model in ours.items()},
              "peer": {name: model.mib for name, model in peer.items()}}
    reports = {name: model.close() for name, model in ours.items()}
    for name, model in peer.items():
        model.workers.close()
        a, b = load_file(ours[name].output), load_file(os.path.join(folder, name + "-peer.safetensors"))["out"]
        if not torch.allclose(next(iter(a.values())), b, rtol=1e-4, atol=1e-4):
            raise RuntimeError("the two compute different outputs")
    for one in reader.values():
        one.close()
    return {"rounds": rounds, "load": {"ours": {n: m.load for n, m in ours.items()}, "peer": {n: m.load for n, m in peer.items()}},
            "mib": memory, "reports": reports, "second copy": os.path.exists(os.path.join(folder, "unused"))}


def measure_library(options, folder):
    """Measures opening a safetensors file and touching every page, in new processes, started before the file is dropped."""
    path = os.path.join(folder, "model.safetensors")
    rounds = []
    peer = [sys.executable, "-W", "ignore", os.path.join(HERE, "offload_peer.py")]
    one = {**OURS, "OMP_NUM_THREADS": "1"}  # one thread, like ours
    for i in range(options.repetitions):
        entry = {}
        for cold in (True, False):
            for who in sorted(("ours", "library"), reverse=i % 2 == 0):
                program = plain(options, path) if who == "ours" else Workers([peer], [one])
                time.sleep(3)
                if cold:
                    drop_file(path)
                answer = program.ask("touch" if who == "ours" else f"library {path}")[0]
                entry[f"{who} {'cold' if cold else 'warm'}"] = answer["seconds"]
                program.close()
        rounds.append(entry)
    return rounds


def report(raw):
    rounds = raw["samples"]["rounds"]
    table = raw["table"]
    limits = {case: lambda r, case=case, name=case.split()[0]:
              max(r["compute"][case], r["read"][name] if case.endswith("cold") else 0) for case in rounds[0]["ours"]}
    for case in rounds[0]["ours"]:
        ours, peer = ([r[who][case] for r in rounds] for who in ("ours", "peer"))
        ratio = spread([p / o for o, p in zip(ours, peer)])
        limit = spread([o / limits[case](r) for o, r in zip(ours, rounds)])
        raw["ratios"][case] = {"peer/ours": ratio, "ours/limit": limit}
        table.append(f"| {case} | {statistics.median(ours):.2f} | {statistics.median(peer):.2f} | {show(ratio)} | {show(limit)} |")
    load, mib = raw["samples"]["load"], raw["samples"]["mib"]
    raw["limits"] = {"compute": spread([c for r in rounds for c in r["compute"].values()]),
                     "read": {name: spread([r["read"][name] for r in rounds]) for name in ("all", "half")}}
    table.append(f"| all in memory: compute | {show(raw['limits']['compute'])} | | | |")
    for name, three in raw["limits"]["read"].items():
        table.append(f"| a plain direct read of what is on disk, {name} | {show(three)} | | | |")
    for name in ("all", "half"):
        ratio = load["peer"][name]["load"] / load["ours"][name]
        raw["ratios"][f"load {name}"] = {"peer/ours": [ratio] * 3}
        table.append(f"| load, {name} on disk | {load['ours'][name]:.2f} | {load['peer'][name]['load']:.2f} | {ratio:.1f} | |")
        table.append(f"| peak memory, {name} on disk, MiB | {mib['ours'][name]:.0f} | {mib['peer'][name]:.0f} | | |")
        copy = load["peer"][name]
        table.append(f"| second copy, {name} on disk | none | {copy['files']} files, {copy['bytes'] / 1e9:.2f} GB | | |")
    for kind in ("cold", "warm"):
        ours, library = ([r[f"{who} {kind}"] for r in raw["samples"]["library"]] for who in ("ours", "library"))
        ratio = spread([p / o for o, p in zip(ours, library)])
        raw["ratios"][f"safetensors {kind}"] = {"peer/ours": ratio}
        table.append(f"| a safetensors file, every page, {kind} | {statistics.median(ours):.2f} | "
                     f"{statistics.median(library):.2f} (safetensors) | {show(ratio)} | |")


def main():
    parser = command_line.parser(__doc__)
    parser.add_argument("--folder", help="where the files go, and stay: a disk with 8 GB of room")
    parser.add_argument("--size", type=int, nargs=6, default=SIZE, help="as models.Size")
    options = command_line.parse(parser)
    folder = options.folder or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    raw = {"title": "Weights on disk", "ratios": {}, "table": [
        "| | ours, s | accelerate, s | accelerate ÷ ours | ours ÷ the larger of compute and read |", "|---|---|---|---|---|"]}
    try:
        if not os.path.exists(os.path.join(folder, "model.pkg")):
            subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {HERE!r}); import offload; "
                            f"offload.write_model({folder!r}, {options.build!r}, {options.size!r})"], check=True)
        raw["samples"] = measure(options, folder)
        raw["samples"]["library"] = measure_library(options, folder)
    finally:
        if not options.folder:
            shutil.rmtree(folder)
    report(raw)
    with open(os.path.join(options.results, "raw", "offload-all.json"), "w") as file:
        json.dump(raw, file)
    print("\n".join(raw["table"]))


if __name__ == "__main__":
    main()
