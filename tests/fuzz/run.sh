#!/bin/sh
# Runs every fuzz target on changes to real files: tests/fuzz/run.sh BUILD SANITIZED [RUNS]. Runs
# RUNS inputs of each in BUILD; then, in SANITIZED, those that reached something new and RUNS/50
# others. Prints a line for each. Stops at the first target that fails, or for which fewer than a
# third of the inputs pass the first checks.
set -e
cd "$(dirname "$0")/../.."
fast=$PWD/$1/tests/fuzz sanitized=$PWD/$2/tests/fuzz runs=${3:-1000000}
data=tests/data/fuzz
fuzz() {
  target=$1_fuzzer found=$fast/found.$1; shift
  rm -rf "$found"; mkdir -p "$found"
  printf '%s: ' "$target"
  "$fast/$target" -runs="$runs" -found="$found" "$@"
  "$sanitized/$target" -runs=0 "$found"/* > "$found.log" 2>&1 || { cat "$found.log"; exit 1; }
  printf '  sanitized: '
  "$sanitized/$target" -runs=$((runs / 50)) "$@"
}
fuzz zip -keep-size $data/deflated.zip $data/linear.pt2 tests/data/import/traced.pt
fuzz json $data/*.json
fuzz manifest -keep-size tests/data/cli/small.pkg/manifest.json
fuzz model_tree -keep-size $data/linear.pt2 tests/data/import/traced.pt
fuzz torch_file -keep-size $data/*.pt
fuzz safetensors -keep-size tests/data/tensors/*.safetensors
fuzz module_tree -keep-size $data/tree.json
fuzz index $data/index.json
fuzz plan_text tests/golden/plan/*d*.csv
fuzz readers $data/readers_*.txt
