#!/bin/bash
# Runs all steps once: export, compile, train on 4 ranks, compare with PyTorch, generate text.
# Usage: examples/gpt/demo.sh [BUILD]; the files go to BUILD/demo.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
out=$build/demo
python=.venv/bin/python
ranks=4
rm -rf "$out"
mkdir -p "$out"
# shellcheck source=scripts/mpi_env.sh
. scripts/mpi_env.sh
export OMP_NUM_THREADS=1

title() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || title() { printf '\n%s\n' "$*"; }
run() { echo "\$ $*"; "$@"; }
seconds() { awk "BEGIN {printf \"%.1f\", $(date +%s.%N) - $1}"; }

title "1. Export the model from PyTorch"
run $python examples/gpt/export.py -o "$out/gpt.pt2"

title "2. Compile it into a package for $ranks ranks"
# The embedding and the head share one table. It is kept on the first rank and sent to the last one:
# its gradients are then added in PyTorch's order, and every loss has PyTorch's bits.
run "$build/pipewright" compile "$out/gpt.pt2" -o "$out/gpt.pkg" --ranks $ranks --shared transmit
ls "$out/gpt.pkg"/*

title "3. Train it on $ranks ranks"
start=$(date +%s.%N)
run mpirun -n $ranks "$build/pipewright-run" train "$out/gpt.pkg" examples/gpt/job.json \
  --save "$out/trained.safetensors" --metrics "$out/metrics.jsonl"
ours=$(seconds "$start")

title "4. The same model, data and job in one PyTorch process"
echo "\$ $python examples/gpt/reference.py examples/gpt/job.json > $out/pytorch.jsonl"
start=$(date +%s.%N)
$python examples/gpt/reference.py examples/gpt/job.json > "$out/pytorch.jsonl"
theirs=$(seconds "$start")
run $python examples/gpt/compare.py "$out/metrics.jsonl" "$out/pytorch.jsonl"
echo "Seconds from start to end: pipewright on $ranks ranks $ours, PyTorch in one process $theirs" \
  "($(nproc --all) cores)."

title "5. A line of text from the weights trained on $ranks ranks"
run $python examples/gpt/sample.py "$out/trained.safetensors"
