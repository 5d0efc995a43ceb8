"""Measures time and peak memory of `pipewright compile` against the model's size, and a plain copy of the file."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import command_line
from processes import ENVIRONMENT
from report import show, spread


def write_model(path, mib, layers=8):
    # Imported only here: a child's peak memory is never less than what its parent held when it was started.
    import torch

    import models
    width = int((mib * 1024 * 1024 / 4 / layers) ** 0.5)
    model = models.build("mlp", models.Size(layers, width, 2), 2)
    x = torch.zeros(2, width)
    torch.export.save(torch.export.export(model, (x,), strict=False), path)


def timed(command):
    """Returns the seconds of a command, and its peak memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{command} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main():
    parser = command_line.parser(__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[10, 100, 500, 2000])
    options = command_line.parse(parser)
    raw = {"title": "Compile", "samples": {}, "ratios": {}, "table": [
        "| model | compile, s | copy of the file, s | (compile − that of the smallest) ÷ copy | peak memory, MiB |", "|---|---|---|---|---|"]}
    least = None
    with tempfile.TemporaryDirectory() as folder:
        archive, package, copy = (os.path.join(folder, name) for name in ("model.pt2", "model.pkg", "copy"))
        for mib in options.mib:
            # Runs in a separate process, so that this one stays small.
            subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); "
                            f"import compile_size; compile_size.write_model({archive!r}, {mib})"], check=True)
            rounds = []
            for _ in range(options.repetitions if mib < 1000 else min(3, options.repetitions)):
                shutil.rmtree(package, ignore_errors=True)
                seconds, memory = timed([os.path.join(options.build, "pipewright"), "compile", archive, "-o", package])
                shutil.rmtree(package)
                copied, _ = timed(["sh", "-c", f"cp {archive} {copy} && sync {copy}"])
                os.remove(copy)
                rounds.append({"compile": seconds, "copy": copied, "mib": memory})
            times = spread([r["compile"] for r in rounds])
            least = least or times[0]
            ratio = spread([max(0, r["compile"] - least) / r["copy"] for r in rounds])
            raw["samples"][f"{mib} MiB"] = rounds
            raw["ratios"][f"{mib} MiB"] = {"peak MiB": spread([r["mib"] for r in rounds])}
            raw["table"].append(f"| {mib} MiB | {show(times)} | {show(spread([r['copy'] for r in rounds]))} | {show(ratio)} | "
                                f"{max(r['mib'] for r in rounds):.0f} |")
            print(raw["table"][-1], flush=True)
    with open(os.path.join(options.results, "raw", "compile-all.json"), "w") as file:
        json.dump(raw, file)


if __name__ == "__main__":
    main()
