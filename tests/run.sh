#!/bin/sh
# Runs the tests of a build folder, then checks what was skipped: tests/run.sh BUILD JOBS [options]
build=$1
jobs=$2
shift 2
. "$(dirname "$0")/../scripts/mpi_env.sh"
ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error
status=$?
python3 "$(dirname "$0")/check_skips.py" "$build" "$@" || status=1
exit $status
