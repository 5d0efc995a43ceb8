#!/bin/sh
# Every fuzz target of BUILD on changes of real files: tests/fuzz/run.sh BUILD [RUNS]. Ends at the first that fails.
set -e
cd "$(dirname "$0")/../.."
targets=$1/tests/fuzz runs=${2:-1000000}
fuzz() {
  target=$1; shift
  echo "$target"
  "$targets/$target" -runs="$runs" "$@"
}
fuzz zip_fuzzer -keep-size tests/data/import/*
fuzz manifest_fuzzer -keep-size tests/data/cli/small.pkg/manifest.json
fuzz torch_file_fuzzer -keep-size tests/data/placement/meta.pt
fuzz safetensors_fuzzer -keep-size tests/data/tensors/*.safetensors
fuzz module_tree_fuzzer tests/data/fuzz/tree.json
fuzz model_tree_fuzzer -keep-size tests/data/import/*
fuzz index_fuzzer tests/data/fuzz/index.json
fuzz plan_text_fuzzer tests/data/schedules/*.csv
fuzz readers_fuzzer tests/data/fuzz/readers_*.txt
