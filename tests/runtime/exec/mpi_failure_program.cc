// What the failure tests start: a run on 3 ranks that ends as its argument says.
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "plan/stage_graph.h"
#include "runtime/exec/mpi_transport.h"
#include "runtime/exec/thread_transport.h"
#include "tests/runtime/exec/fake_model.h"

using namespace pipewright;

static int Run(const std::string& mode, Transport& transport) {
  if (mode == "vote") Vote(transport, "loading", transport.rank() == 2 ? "torn" : "");
  if (mode == "usage" && transport.rank() == 1) throw UsageError("no such option");
  if (mode == "all throw") throw Error("no such file");
  if (mode == "every kind") {  // dies as PIPEWRIGHT_FAULTS says
    RunAndCompare(EveryKindCase(), transport);
    return kSuccess;
  }
  FakeCase c = ScheduleCase("1f1b", ChainGraph({{0}, {1}, {2}}), 4);
  c.message_words = 20000;
  FakeBody body(c, transport.rank(), [&](const std::string& call, int stage, int microbatch) {
    if (call != "Backward" || stage != 1 || microbatch != 2) return;
    if (mode == "throw") throw Error("out of luck");
    if (mode == "exit") std::exit(0);
    if (mode == "kill") raise(SIGKILL);
    if (mode == "segfault") raise(SIGSEGV);
  });
  Executor executor(c.plan, c.graph, c.groups, body, transport);
  for (int i = 0; i < 3; ++i) executor.RunStep();
  if (mode == "vote late") Vote(transport, "saving", transport.rank() == 0 ? "disk full" : "");
  // A receive that nobody answers, and an error that all know of.
  if (mode == "vote with transfers") {
    transport.Recv((transport.rank() + 1) % 3, 1, body.Allocate(0, 0, false));
    transport.Send((transport.rank() + 1) % 3, 2, body.Allocate(0, 0, false));
    Vote(transport, "saving", "disk full");
  }
  return kSuccess;
}

int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "";
  try {
    return RunMpi(&argc, &argv, "program", [&](Transport& t) { return Run(mode, t); });
  } catch (const std::exception& e) {
    fprintf(stderr, "program: %s\n", e.what());
    return kFailure;
  }
}
