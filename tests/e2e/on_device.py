"""The library of the test device (tests/device), for tests that run ranks on it. Import this before support."""
import os
import pathlib
import sys

BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
LIBRARY = BUILD / "tests/libsim.so"
if not LIBRARY.exists():
    print("SKIPPED: no test device (sanitizers do not support it)")
    sys.exit(77)
# A CUDA LibTorch has loaded NVIDIA's library, so that the search by name would find that one.
FAKE_NCCL = str(BUILD / "tests/fake_nccl/libnccl.so.2")


def use_for_all_runs():
    """Makes support.run_ranks use devices, with values over the fake NCCL."""
    os.environ["PIPEWRIGHT_TEST_DEVICE"] = str(LIBRARY)
    os.environ.setdefault("PIPEWRIGHT_TEST_LINKS", "nccl")
