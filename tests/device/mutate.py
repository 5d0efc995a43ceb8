"""Removes waits, events, stream guards and records from the runtime, one at a time, and lists which test notices.

python3 tests/device/mutate.py [--only TEXT] [--list] [BUILD]

Builds and tests with each line of MUTATIONS changed, and puts the line back. Fails if no test notices a change. Takes a
minute for each. A test that is not done after LIMIT seconds has noticed, too: without a wait, some hang. First it looks
for waits that have no mutation; --list does no more than that.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 60  # seconds

# Programs, and which of their tests.
NUMBERS = "device_tests LateNumbers.*"
MEMORY = "device_tests DeviceMemory.*"
CLOCK = "device_tests DeviceClock.*"
COPIES = "device_tests WeightCopies.*"
DISK = "device_tests OffloadedWeights.*"
SUMS = "device_tests GradientSums.*"
STAGES = "device_tests TorchStages.*"
LINK = "nccl_transport_tests NcclTransport.*"
LINKS = "nccl_transport_tests MeasureLinks.*"
PLANS = "nccl_transport_tests PlansOverNccl.*"
STEPS = "nccl_transport_tests Session.*"
BACK = "exec_tests Executor.KeepsNoMore*"


@dataclasses.dataclass
class Mutation:
    file: str
    line: str  # occurs once in the file
    instead: str
    tests: tuple  # the first one that notices ends the search


def mutations(file, *changes):
    return [Mutation(file, *change[:2], change[2:]) for change in changes]


MUTATIONS = [
    # Numbers that are read late.
    *mutations(
        "tensors/late_numbers.cc",
        ("  AfterCopies().synchronize();\n", "", NUMBERS),
        ("    copied_->record(guard.getStream(device_));\n", "    (void)guard;\n", NUMBERS),
        ("  copied_.reset();\n", "", NUMBERS),
        ("AfterCopies().query()", "true", NUMBERS),
        ("/*non_blocking=*/true", "false", NUMBERS),
        (".pinned_memory(true)", "", NUMBERS)),
    # Copies between host and device.
    *mutations(
        "tensors/device_memory.cc",
        ("tensor.pin_memory().to(device, /*non_blocking=*/true)", "tensor.to(device)", MEMORY),
        ("tensor.pin_memory()", "tensor", MEMORY),
        (".dtype(at::kByte).pinned_memory(true)", ".dtype(at::kByte)", COPIES)),
    # Times.
    *mutations(
        "runtime/stage/device_clock.cc",
        ("  events_[used_].record(guard.getStream(device_));\n", "  (void)guard;\n", CLOCK),
        (" && events_[reached_].query()", "", CLOCK),
        ("  launched.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));\n", "", STAGES),
        ("if (launched.query()) return {};", "return {};", STAGES),
        ("    return {.kind = Awaited::kDevice, .microbatch = Reached()};\n", "    return {};\n", STAGES),
        ("  if (!event.query()) event.synchronize();\n", "", CLOCK)),
    *mutations("runtime/measure/links.cc", ("clock.Await(transport, std::chrono::microseconds(0));", "(void)clock;", LINKS)),
    # The end of a step, and other moments in which the host waits for its device.
    *mutations(
        "runtime/stage/stage.cc",
        ("  if (!s.late.Ready()) s.AwaitDevice();\n", "", STAGES),
        ("  state_->AwaitDevice();\n  state_->late.Read();\n", "  state_->late.Read();\n", STAGES),
        ("      state_->AwaitDevice();\n      return MessageOnHost", "      return MessageOnHost", STAGES),
        ("    AwaitDevice();\n    late.Read();\n", "    late.Read();\n", STAGES)),
    *mutations(
        "runtime/session.cc",
        ("    if (links_ && job.merge_buffers) AwaitDevice();\n", "", STEPS)),
    *mutations(
        "runtime/exec/executor.cc",
        ("      return {.kind = Awaited::kDevice, .microbatch = left + body.Reached()};\n", "      return {};\n", BACK)),
    # Weights on disk.
    *mutations(
        "runtime/stage/weight_copies.cc",
        ("  slot.released.block(stream_);\n", "", COPIES),
        ("    c10::StreamGuard guard(stream_);\n", "", COPIES),
        ("/*non_blocking=*/true", "false", COPIES),
        ("  slot.copied.record(stream_);\n", "", COPIES),
        ("  slot.copied.block(CurrentStream(device_));\n", "", COPIES),
        ("slots_.at(buffer).copied.query()", "slots_.size() > buffer", COPIES),
        ("  slots_.at(buffer).released.record(CurrentStream(device_));\n", "  (void)buffer;\n", COPIES)),
    *mutations(
        "runtime/stage/offload.cc",
        ("    copies_->Release(copied->second);\n", "    (void)copied;\n", DISK),
        ("      if (!copies_->Copied(copied->second)) return;\n", "", DISK),
        ("  AdvanceUntil([&] { return !IsWaiting(stage); });\n", "", DISK),
        ("  AdvanceUntil([&] { return waiting_.empty(); });\n", "", DISK),
        ("return {.kind = Awaited::kDevice, .microbatch = copies_->count()}", "return {}", DISK)),
    # The device of each rank's thread.
    *mutations("runtime/rank_device.cc", ("at::accelerator::setDeviceIndex(device.index())", "{}", LINK)),
    # Sums of gradients over ranks.
    *mutations(
        "runtime/stage/gradient_sums.cc",
        ("    Follow(*computing_, *stream_);\n", "", SUMS),
        ("  return std::make_shared<c10::StreamGuard>(*stream_);\n", "  return nullptr;\n", SUMS),
        ("  if (computing_) Follow(*stream_, *computing_);\n", "", SUMS),
        ("      if (computing_) whole.record_stream(*computing_);", "", SUMS)),
    *mutations("runtime/exec/reduce.cc", ("      transport_.ComeAfter(one.token);\n", "", PLANS)),
    # Values over NCCL.
    *mutations(
        "runtime/links/nccl_transport.cc",
        ("      inner.status().WaitFor({.kind = Awaited::kDevice, .microbatch = done++});\n", "      ++done;\n", LINK),
        ("    After(Current(), link.stream);\n", "", LINK),
        ("done.query() ? Awaited{} : Awaited{.kind = Awaited::kDevice, .microbatch = number}",
         "number < 0 ? Awaited{.kind = Awaited::kDevice} : Awaited{}", LINK),
        ("      transfer->ready->record(Current());\n", "", LINK),
        ("    transfer->ready->block(transfer->link->stream);\n", "", LINK),
        ("    done.record(link.stream);\n", "", LINK),
        ("    transfer.moved->block(Current());\n", "", LINK),
        ("      if (!one->moved->query()) return false;\n", "", LINK),
        ("!link.second.stream.query()", "link.second.stream.id() < -1", LINK),
        ("transfer.moved->query();", "true;", LINK),
        ("  if (transfer.moved) transfer.moved->block(state_->Current());\n", "  (void)transfer;\n", LINK)),
]

WAITS = re.compile(
    r"(\.|->)(record|block|synchronize|query|pin_memory|ComeAfter)\(|record_stream\(|"
    r"\bStreamGuard\b(?!\.h)|non_blocking=\*/true|pinned_memory\(true\)|\bAwaited::kDevice\b|\bFollow\(\*|"
    r"\bAfter\(Current|\bclock\.Await\(|(?<!void )\bAwaitDevice\(\);|::setDeviceIndex")

# Lines that look like waits and have no mutation, and why.
OTHERS = {
    "runtime/stage/stage_state.h": {"{ clock.Await(*values); }": "passes it on"},
    "runtime/exec/status.cc": {"case Awaited::kDevice:": "its text"},
    "runtime/exec/transport.h": {"{ inner_.ComeAfter(send); }": "passes it on"},
    "runtime/watch/stall.cc": {"awaits.kind == Awaited::kDevice": "no wait"},
    "runtime/stage/stage.cc": {
        "void TorchStages::AwaitDevice() {": "passes it on",
        "  AwaitDevice();\n  auto order": "the copies that follow wait, too; only the watchdog would not hear of it",
        "if (state_->gradients.Copies(group, holder)) state_->AwaitDevice();": "as above",
        "if (CheckOf(s.settings) == FiniteCheck::kEach) s.AwaitDevice();": "as above"},
    "runtime/session.cc": {
        "void Session::AwaitDevice() {": "passes it on",
        "  }\n  AwaitDevice();\n": "as in stage.cc, once values are known to be bad"},
    "runtime/commands/infer.cc": {"session.AwaitDevice();": "as in stage.cc: tests/e2e/nccl_failures_test.py"},
    "runtime/commands/generate.cc": {"session_.AwaitDevice();": "as in stage.cc"},
    "runtime/measure/loss_costs.cc": {"session.AwaitDevice();": "only a measured time would be too short"},
    "runtime/stage/gradient_sums.cc": {
        "event.record(first);": "Follow", "event.block(second);": "Follow"},
    "runtime/links/nccl_transport.cc": {
        "event.record(first);": "After", "event.block(second);": "After"},
    "tensors/device_memory.cc": {
        "tensor.options().device(at::kCPU).pinned_memory(true)": "faster copies to the host, which waits for them"},
}


def unlisted():
    """Lists the waits that are in neither table, and the lines of these tables that are not in the sources."""
    wrong, known = [], set()  # known: (file, number of a line)

    def cover(file, text, table):
        source = (ROOT / file).read_text()
        if source.count(text) != 1:
            wrong.append(f"{file}: {text.strip()!r} of {table} occurs {source.count(text)} times")
        first = source.count("\n", 0, max(source.find(text), 0)) + 1
        known.update((file, first + n) for n in range(len(text.splitlines())))

    for mutation in MUTATIONS:
        cover(mutation.file, mutation.line, "MUTATIONS")
    for file, lines in OTHERS.items():
        for line in lines:
            cover(file, line, "OTHERS")
    for folder in ("runtime", "tensors"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            file = str(path.relative_to(ROOT))
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if WAITS.search(line.split("//")[0]) and (file, number) not in known:
                    wrong.append(f"{file}:{number}: a wait without a line in MUTATIONS or OTHERS: {line.strip()}")
    return wrong


def run(command, environment):
    """Returns True if the command succeeds in time."""
    process = subprocess.Popen(list(map(str, command)), env={**os.environ, **environment},
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
    program, names = test.split()
    return run([build / "tests" / program, f"--gtest_filter={names}"],
               {"LD_LIBRARY_PATH": str(build / "tests/fake_nccl")})


def built(build, tests):
    targets = sorted({test.split()[0] for test in tests})
    done = subprocess.run(["cmake", "--build", build, "--target", *targets], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout[-3000:])
    return done.returncode == 0


def try_one(mutation, build):
    """Returns the test that notices, or "" if none does."""
    path = ROOT / mutation.file
    text = path.read_text()
    try:
        path.write_text(text.replace(mutation.line, mutation.instead))
        if not built(build, mutation.tests):
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
    if problems := unlisted():
        sys.exit("\n".join(problems))
    if options.list:
        for m in chosen:
            print(f"{m.file}: {' '.join(m.line.split())}: {', '.join(m.tests)}")
        return
    tests = sorted({test for m in chosen for test in m.tests})
    if not built(build, tests):
        sys.exit("the sources do not build as they are")
    for test in tests:
        if not passes(test, build):
            sys.exit(f"{test} fails without any change\n{run.output[-3000:]}")
    wrong = 0
    for mutation in chosen:
        print(f"{mutation.file}: {' '.join(mutation.line.split())}", flush=True)
        found = try_one(mutation, build)
        wrong += not found or found.startswith("ERROR")
        print(f"    {found or 'NOT NOTICED'}", flush=True)
    built(build, tests)
    print(f"{len(chosen) - wrong} of {len(chosen)} are noticed")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
