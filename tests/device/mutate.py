"""Removes waits, events, stream guards and records from the runtime, one at a time, and lists which test notices.

python3 tests/device/mutate.py [--only TEXT] [--list] [BUILD]

Builds and tests with each line of MUTATIONS changed, and puts the line back. Fails if no test notices a change. Takes a
minute for each. A test that is not done after LIMIT seconds has noticed, too: without a wait, some hang.
"""
import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 180  # seconds

UNIT = ("device", "device.late")
LINK = ("link", "link.late")

MPI = "device_test.Devices.test_through_host_memory_and_beside_the_cpu"
WAITS = "device_test.Nccl.test_the_host_waits_once_a_step"
REPLICAS = "replica_test.Replicas.test_4_3_1"
EQUAL = "equality_test.Equality.test_tied_weights_on_1_2_3_and_5_ranks"
OFFLOAD = "offload_test.Offload.test_training_with_frozen_weights_on_disk"
DELAYS = "device_test.Nccl.test_delays_change_no_bit"
PROFILE = "device_test.Devices.test_profile_measures_on_devices"


@dataclasses.dataclass
class Mutation:
    file: str
    line: str  # occurs once in the file
    instead: str
    tests: tuple  # the first one that notices ends the search


MUTATIONS = [
    # Numbers that are read late.
    Mutation("tensors/late_numbers.cc", "  AfterCopies().synchronize();\n", "", UNIT),
    Mutation("tensors/late_numbers.cc", "    copied_->record(guard.getStream(device_));\n", "", UNIT),
    Mutation("tensors/late_numbers.cc", "  copied_.reset();\n", "", UNIT),
    Mutation("tensors/late_numbers.cc", "at::dtype(at::kDouble).pinned_memory(true)", "at::dtype(at::kDouble)", (WAITS,)),
    # Copies between host and device.
    Mutation("tensors/device_memory.cc", "tensor.pin_memory().to(device, /*non_blocking=*/true)", "tensor.to(device)",
             (WAITS,)),
    Mutation("tensors/device_memory.cc", ".dtype(at::kByte).pinned_memory(true)", ".dtype(at::kByte)", UNIT),
    # Times.
    Mutation("runtime/stage/device_clock.cc", "  events_[used_].record(guard.getStream(device_));\n", "", UNIT),
    Mutation("runtime/stage/device_clock.cc", "  if (!event.query()) event.synchronize();\n", "", UNIT),
    Mutation("runtime/measure/links.cc", "  guard.getStream(device).synchronize();\n", "", (PROFILE,)),
    # Weights on disk.
    Mutation("runtime/stage/weight_copies.cc", "  slot.device.record_stream(stream_);\n", "", UNIT),
    Mutation("runtime/stage/weight_copies.cc", "  slot.released.block(stream_);\n", "", UNIT),
    Mutation("runtime/stage/weight_copies.cc", "    c10::StreamGuard guard(stream_);\n", "", UNIT),
    Mutation("runtime/stage/weight_copies.cc", "  slot.copied.record(stream_);\n", "", UNIT),
    Mutation("runtime/stage/weight_copies.cc", "  slot.copied.block(CurrentStream(device_));\n", "", UNIT),
    Mutation("runtime/stage/weight_copies.cc", "  slots_.at(buffer).released.record(CurrentStream(device_));\n", "", UNIT),
    Mutation("runtime/stage/offload.cc", "    copies_->Release(copied->second);\n", "    ;\n", (OFFLOAD,)),
    Mutation("runtime/stage/offload.cc", "      if (!copies_->Copied(copied->second)) return;\n", "", (OFFLOAD, DELAYS)),
    Mutation("runtime/stage/offload.cc", "  AdvanceUntil([&] { return !IsWaiting(place.unit); });\n", "", (OFFLOAD, DELAYS)),
    # The device of each rank's thread.
    Mutation("runtime/rank_device.cc", "at::accelerator::setDeviceIndex(device.index())", "{}", (EQUAL,)),
    # Sums of gradients over ranks.
    Mutation("runtime/stage/gradient_sums.cc", "    Follow(*computing_, *stream_);\n", "", (REPLICAS,)),
    Mutation("runtime/stage/gradient_sums.cc", "  return std::make_shared<c10::StreamGuard>(*stream_);\n",
             "  return nullptr;\n", (REPLICAS, WAITS)),
    Mutation("runtime/stage/gradient_sums.cc", "  if (computing_) Follow(*stream_, *computing_);\n", "", (REPLICAS,)),
    Mutation("runtime/stage/gradient_sums.cc", "      if (computing_) whole.record_stream(*computing_);", "", (REPLICAS,)),
    Mutation("runtime/exec/reduce.cc", "      transport_.ComeAfter(one.token);\n", "", (REPLICAS, EQUAL)),
    # Values over NCCL.
    Mutation("runtime/links/nccl_transport.cc", "    After(Current(), link.stream);\n", "", LINK),
    Mutation("runtime/links/nccl_transport.cc", "      transfer->ready->record(Current());\n", "", LINK),
    Mutation("runtime/links/nccl_transport.cc", "    transfer->ready->block(transfer->link->stream);\n", "", LINK),
    Mutation("runtime/links/nccl_transport.cc", "    done.record(link.stream);\n", "", LINK),
    Mutation("runtime/links/nccl_transport.cc",
             "    if (!transfer.moved || transfer.link->sends) return;\n    transfer.moved->block(Current());\n",
             "    if (!transfer.moved || transfer.link->sends) return;\n", LINK),
    Mutation("runtime/links/nccl_transport.cc", "      if (!one->moved->query()) return false;\n", "", LINK),
    Mutation("runtime/links/nccl_transport.cc",
             "      if (!one->moved->query()) return false;\n      one->moved->block(Current());\n",
             "      if (!one->moved->query()) return false;\n", LINK),
    Mutation("runtime/links/nccl_transport.cc",
             "std::any_of(links.begin(), links.end(), moves)", "false", LINK),
    Mutation("runtime/links/nccl_transport.cc",
             "  if (transfer.moved) transfer.moved->block(state_->Current());\n", "", (*LINK, REPLICAS)),
]


def run(command, environment=(), folder=ROOT):
    """Returns True if the command succeeds in time."""
    process = subprocess.Popen(list(map(str, command)), env={**os.environ, **dict(environment)}, cwd=folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return False
    run.output = output
    return process.returncode == 0


def passes(test, build):
    if test in (*UNIT, *LINK):
        program, _, late = test.partition(".")
        delays = {"SIM_DELAY_US": "500", "FAKE_NCCL_DELAY_US": "500"} if late else {}
        return run([build / "tests" / ("device_tests" if program == "device" else "nccl_transport_tests")],
                   {"LD_LIBRARY_PATH": str(build / "tests/fake_nccl"), **delays})
    return run([sys.executable, "-B", "-m", "unittest", "-f", test],
               {"PIPEWRIGHT_BUILD": str(build), "PIPEWRIGHT_TEST_DEVICE": str(build / "tests/libsim.so"),
                "PIPEWRIGHT_TEST_LINKS": "nccl", "OMP_NUM_THREADS": "1"}, ROOT / "tests/e2e")


def built(build):
    targets = ["pipewright-run", "pipewright", "device_tests", "nccl_transport_tests"]
    done = subprocess.run(["cmake", "--build", build, "--target", *targets], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout[-3000:])
    return done.returncode == 0


def try_one(mutation, build):
    """Returns the test that notices, or "" if none does."""
    path = ROOT / mutation.file
    text = path.read_text()
    if text.count(mutation.line) != 1:
        return f"ERROR: the line occurs {text.count(mutation.line)} times"
    try:
        path.write_text(text.replace(mutation.line, mutation.instead))
        if not built(build):
            return "ERROR: it does not build"
        return next((test for test in mutation.tests if not passes(test, build)), "")
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--only", default="", help="mutations whose file or line has this text")
    parser.add_argument("--list", action="store_true", help="show the mutations and try none")
    options = parser.parse_args()
    build = options.build.resolve()
    chosen = [m for m in MUTATIONS if options.only in m.file + " " + m.line]
    wrong = 0
    if not options.list:
        if not built(build):
            sys.exit("the sources do not build as they are")
        for test in sorted({test for m in chosen for test in m.tests}):
            if not passes(test, build):
                sys.exit(f"{test} fails without any change\n{run.output[-3000:]}")
    for mutation in chosen:
        print(f"{mutation.file}: {' '.join(mutation.line.split())}", flush=True)
        if options.list:
            continue
        found = try_one(mutation, build)
        wrong += not found or found.startswith("ERROR")
        print(f"    {found or 'NOT NOTICED'}", flush=True)
    if not options.list:
        built(build)
        print(f"{len(chosen) - wrong} of {len(chosen)} are noticed")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
