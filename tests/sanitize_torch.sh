#!/bin/sh
# Whole runs with the address and undefined-behavior sanitizers: tests/sanitize_torch.sh BUILD SANITIZED PYTHON
# BUILD compiles the packages; SANITIZED (of the preset asan-torch) has the runtime. LibTorch itself
# has no sanitizers; memory that it keeps until the end is not reported.
set -eu
export PIPEWRIGHT_BUILD="$1" PIPEWRIGHT_RUN="$2/pipewright-run"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
"$2/tests/runtime_tests" --gtest_brief=1
for name in forward gradient schedule replica recompute optimizer losses validation asynchronous \
            checkpoint offload torchscript lists; do
  test="$(dirname "$0")/e2e/${name}_test.py"
  echo "$name"
  "$3" -B "$test" || [ $? = 77 ]  # 77: no Python with torch
done
