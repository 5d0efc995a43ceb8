#!/bin/sh
# Runs benchmarks of a build folder: bench/run.sh BUILD [PART...]. Without PART, runs all of them.
# Each compares with its peer or limit within one run; docs/internals/performance.md says how to
# read the figures. BENCH_RESULTS is the folder for samples, tables and picture; BENCH_OPTIONS are
# passed to the measuring programs.
set -eu
build=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
results=${BENCH_RESULTS:-$here/results}
python=${BENCH_PYTHON:-$here/../.venv/bin/python}
. "$here/../scripts/mpi_env.sh"

measure() {
  script=$1
  shift
  "$python" -B "$here/$script" --build "$build" --results "$results" "$@" ${BENCH_OPTIONS:-}
}

for part in ${@:-executor host transport training_step predictions layers start compile growth offload}; do
  echo "== $part"
  case $part in
    executor) cmake --build "$build" --target executor_bench && "$build/bench/executor_bench" ;;
    host) cmake --build "$build" --target host_overhead && mkdir -p "$results/raw" &&
      "$build/bench/host_overhead" "$results/raw/host-all.json" ;;
    transport)
      cmake --build "$build" --target transport_bench
      mkdir -p "$results/raw"
      mpirun -n 2 "$build/bench/transport_bench" "$results/raw/transport-memory.json" "shared memory"
      mpirun --mca btl tcp,self -n 2 "$build/bench/transport_bench" "$results/raw/transport-tcp.json" TCP ;;
    training_step) measure training_step.py ;;
    predictions) measure predictions.py ;;
    quick) measure training_step.py --sizes tiny small --schedules 1f1b zbv ;;
    layers)
      if command -v perf > /dev/null; then measure layers.py; else echo "left out: perf is not installed (linux-perf)"; fi ;;
    tune) cmake --build "$build" --target tune_scale && "$build/bench/tune_scale" && measure tune.py ;;
    start) measure start.py ;;
    compile) measure compile_size.py ;;
    growth) measure growth.py ;;
    offload)
      "$python" -c "import accelerate" 2> /dev/null ||
        "$python" -m pip install --quiet -r "$here/requirements.txt"
      cmake --build "$build" --target weights_bench && measure offload.py ;;
    *) echo "bench/run.sh: no part $part" >&2; exit 2 ;;
  esac
done
"$python" -B "$here/report.py" --results "$results"
