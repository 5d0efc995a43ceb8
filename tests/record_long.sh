#!/bin/sh
# Writes the record of a long test run from ctest's output: tests/record_long.sh OUTPUT RECORD. Writes nothing if no test ran.
set -e
tests=$(grep -E '^ *[0-9]+/[0-9]+ Test|tests passed|tests failed|Total Test time|skipped' "$1")
echo "make test-long, $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD), $(nproc) cores; make sanitize and make sanitize-torch passed before
$tests" > "$2"
