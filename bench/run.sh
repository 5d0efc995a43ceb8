#!/bin/sh
# Builds and runs the benchmarks of a build folder: bench/run.sh BUILD. Each compares with its peer or
# limit within one run; docs/performance.md says how to read the figures.
set -eu
build=$1
. "$(dirname "$0")/../scripts/mpi_env.sh"
cmake --build "$build" --target benchmarks
"$build/bench/executor_bench"
mpirun -n 2 "$build/bench/transport_bench"
