"""Measures where a rank's processor time goes, by layer: samples of Linux' perf while ranks train, for each module body.

Each sample counts for the function that ran, not for its callers. Needs `perf` and permission to use it.
"""
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import command_line
from package import compile_model, write_conf, write_job
from processes import start_ours
from report import spread
from training_step import step_times

# Patterns for "library function"; the first match counts. Kernel time of a waiting thread counts as waiting, too.
LAYERS = [(layer, re.compile(pattern)) for layer, pattern in (
    ("waiting", r"^(libmpi|libopen-pal|mca_|\[vdso|libevent)|^libc\S* .*(clock_|nanosleep|sched_)|^libstdc\S* .*(chrono|clock_)|"
                r"^pipewright-run .*(Patience|Mpi(Requests|Transport)|ThreadTransport|Inbox)|"
                r"^\[kernel\S* .*(finish_task_switch|sleep|sched|hrtimer|exit_to_user_mode|do_syscall|pick_|rseq)"),
    ("copies", r"mem(move|cpy)|copy_(user|page|to_iter|from_iter)|process_vm|direct_copy_kernel"),
    ("system", r"^\[(kernel|guest)"),
    ("allocation", r"^libtcmalloc|HookedAllocator|c10::(alloc_cpu|free_cpu|GetAllocator|DefaultCPUAllocator)|dnnl::impl::malloc|"
                   r"^libc\S* .*(_int_|__libc_)?(malloc|free|calloc|memalign)$"),
    ("kernels", r"^\[JIT\]|^libmvec|^libm\.|memset|mkl_\w*(kernel|copy|scale|pack|gemm|gemv|axpy|dot)|Vectorized|vectorized_|"
                r"Sleef|serial_vec|_loop|[kK]ernel_?[iI]mpl|_kernel\(|_kernel$|Moments|flash_attention|batch_norm_cpu|cascade_sum|"
                r"dnnl::impl::cpu::.*execute|jit_\w+_t::|gemm_(notrans|trans)"),
    ("executor", r"^pipewright-run .*pipewright::(Executor|TorchStages|Run(Backward|Forward)|ValueOf|BodyFor)"),
    ("interpreter", r"^pipewright-run|torch::jit"),
    ("autograd", r"torch::autograd::|SavedVariable"),
    ("dispatcher", r"Dispatch|Operator(Entry|Handle)|at::_ops::|c10::impl::|wrapper_|redispatch|KernelFunction"),
    ("set-up of operations", r"^(libtorch|libc10)"))]
REST = "rest"
NAMES = [name for name, _ in LAYERS] + [REST]
ORDER = ["kernels", "copies", "set-up of operations", "dispatcher", "interpreter", "autograd", "allocation", "executor", "system",
         REST, "waiting"]
CASES = [("mlp", "tiny"), ("gpt", "tiny"), ("conv", "tiny"), ("mlp", "small"), ("gpt", "small"), ("conv", "small")]
BODIES = ["autograd", "lists"]
RANKS, HERTZ = 2, 4000
STEPS = {"tiny": 100, "small": 20}


def layer_of(library, function):
    line = f"{library} {function}"
    return next((name for name, pattern in LAYERS if pattern.search(line)), REST)


def ranks_of(workers):
    """Returns the process IDs of the ranks that mpirun started."""
    found = subprocess.run(["pgrep", "-P", str(workers.processes[0].pid)], stdout=subprocess.PIPE, text=True).stdout.split()
    if len(found) != RANKS:
        raise RuntimeError(f"{len(found)} processes under mpirun, not {RANKS}")
    return found


def sample(workers, steps, file_name):
    """Returns the number of samples by (library, function), and the milliseconds of a step."""
    perf = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-o", file_name, "-p",
                             ",".join(ranks_of(workers))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)  # until perf has attached itself; it does not report when
    times = step_times(workers.ask(f"steps {steps}")[0]["ranks"])
    perf.send_signal(signal.SIGINT)
    _, error = perf.communicate()
    report = subprocess.run(["perf", "report", "-q", "-i", file_name, "--no-children", "-F", "sample,dso,sym", "--stdio", "-t", "|"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = {}
    for line in report.splitlines():
        parts = [part.strip() for part in line.split("|", 2)]
        if len(parts) == 3:
            function = "of no name" if re.search(r"\] 0x", parts[2]) else parts[2]  # merges unnamed addresses
            found[parts[1], function] = found.get((parts[1], function), 0) + int(parts[0])
    if not found:
        raise RuntimeError(f"perf took no samples: {error.strip()}")
    return found, statistics.median(times) / 1e3


def main():
    options = command_line.parse(command_line.parser(__doc__))
    if not shutil.which("perf"):
        sys.exit("layers.py: perf is not installed (Debian: linux-perf)")
    raw = {"title": "Where a rank's time goes", "samples": {}, "ratios": {}, "functions": {}, "table": [
        "| model | body | a step, ms | " + " | ".join(ORDER) + " |", "|---|---|---|" + "---|" * len(ORDER)]}
    for name, size in CASES:
        with tempfile.TemporaryDirectory() as folder:
            started = {}
            for body in BODIES:
                arguments = ["bench", compile_model(options.build, folder, name, size, RANKS),
                             write_job(folder, name, size, 8, "1f1b"), "--conf", write_conf(folder, RANKS, RANKS, "loop"),
                             "--on-request"]
                started[body] = start_ours(options.build, RANKS, arguments, {"PIPEWRIGHT_BODY": body})
            shares, times, functions = {b: [] for b in BODIES}, {b: [] for b in BODIES}, {b: {} for b in BODIES}
            try:
                for workers in started.values():
                    workers.ask(f"steps {STEPS[size]}")
                for _ in range(options.repetitions):
                    for body, workers in started.items():
                        found, step = sample(workers, STEPS[size], os.path.join(folder, "perf.data"))
                        count = sum(found.values())
                        layers = dict.fromkeys(NAMES, 0)
                        for key, n in found.items():
                            layers[layer_of(*key)] += n / count
                            functions[body][" ".join(key)] = functions[body].get(" ".join(key), 0) + n
                        shares[body].append(layers)
                        times[body].append(step)
            finally:
                for workers in started.values():
                    workers.close()
        for body in BODIES:
            case = f"{name} {size}, {body}"
            raw["samples"][case] = {"shares": shares[body], "ms": times[body]}
            raw["functions"][case] = dict(sorted(functions[body].items(), key=lambda pair: -pair[1])[:200])
            medians = {layer: spread([s[layer] for s in shares[body]])[0] for layer in NAMES}
            raw["table"].append(f"| {name} {size} | {body} | {spread(times[body])[0]:.1f} | " +
                                " | ".join(f"{100 * medians[layer]:.1f} %" for layer in ORDER) + " |")
            print(raw["table"][-1], flush=True)
    with open(os.path.join(options.results, "raw", "layers-all.json"), "w") as file:
        json.dump(raw, file)


if __name__ == "__main__":
    main()
