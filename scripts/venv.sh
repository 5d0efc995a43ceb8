#!/bin/sh
# Makes the virtual environment .venv with what requirements.txt lists.
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

# A CUDA build of LibTorch can only be compiled against with the CUDA toolkit beside it.
if .venv/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is None)' &&
  ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  cat >&2 <<'TEXT'
The torch just installed is a CUDA build, and there is no CUDA toolkit (nvcc) on this machine to build
against it. Choose the CPU build with the index URL from PyTorch's install page:
  rm -rf .venv && make PIP_ARGS="--index-url URL --extra-index-url YOUR_USUAL_INDEX"
or install the CUDA toolkit.
TEXT
  exit 1
fi
touch .venv/ready
