#!/bin/sh
# Makes the virtual environment .venv with the packages in requirements.txt.
# Usage: scripts/venv.sh PYTHON [pip's arguments]
set -eu

python=$1
shift
minor=$("$python" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)')
if [ "$minor" -lt 11 ]; then
  echo "$python is older than 3.11; name another: make PYTHON=python3.12" >&2
  exit 1
fi
# An environment that an interrupted run left behind has no pip.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
  "$python" -m venv .venv
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" -r requirements.txt
touch .venv/ready
