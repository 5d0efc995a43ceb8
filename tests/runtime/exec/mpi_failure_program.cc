// The program that the failure tests start: a run that ends as its argument says.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "plan/stage_graph.h"
#include "runtime/transport/mpi_transport.h"
#include "runtime/transport/thread_transport.h"
#include "tests/runtime/exec/fake_model.h"

using namespace pipewright;

// Returns the bytes of memory that are the process's own or shared with other ranks.
static int64_t Resident() {
  std::ifstream in("/proc/self/status");
  int64_t total = 0;
  for (std::string line; std::getline(in, line);)
    if (line.rfind("RssAnon:", 0) == 0 || line.rfind("RssShmem:", 0) == 0)
      total += std::atoll(line.c_str() + line.find(':') + 1) << 10;
  return total;
}

// Runs many steps, after which no buffer, request or memory may be left over.
static void Soak(Transport& transport, int steps) {
  const int ranks = transport.size();
  std::vector<std::vector<int>> placement;
  for (int rank = 0; rank < ranks; ++rank) placement.push_back({rank});
  StageGraph graph = SkipGraph(placement);
  graph.shared = {{0, ranks - 1}};
  FakeCase c = ScheduleCase("1f1b", graph, 8);
  c.message_words = 3000;
  c.options.check_messages = true;
  FakeBody body(c, transport.rank());
  body.memory = [&](size_t bytes) { return transport.Memory(bytes); };
  int64_t before = 0;
  {
    Executor executor(c.plan, c.graph, c.groups, body, transport, c.options);
    for (int i = 0; i < steps; ++i) {
      executor.RunStep(i);
      if (i == steps / 4) before = Resident();
    }
    transport.AllGather("");
  }
  for (int i = 0; i < 1000000 && transport.Pending() > 0; ++i) usleep(100);
  std::string wrong;
  if (transport.Pending() > 0) wrong = std::to_string(transport.Pending()) + " requests are left";
  if (body.live_bundles() > 0) wrong = std::to_string(body.live_bundles()) + " buffers are left";
  if (Resident() - before > (4 << 20))
    wrong = std::to_string((Resident() - before) >> 10) + " KiB more than before";
  Vote(transport, "after " + std::to_string(steps) + " steps", wrong);
}

static int Run(const std::string& mode, Transport& transport) {
  if (mode == "vote") Vote(transport, "loading", transport.rank() == 2 ? "torn" : "");
  if (mode == "usage" && transport.rank() == 1) throw UsageError("no such option");
  if (mode == "all throw") throw Error("no such file");
  if (mode.rfind("soak ", 0) == 0) {
    Soak(transport, std::atoi(mode.c_str() + 5));
    return kSuccess;
  }
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
  body.memory = [&](size_t bytes) { return transport.Memory(bytes); };
  Executor executor(c.plan, c.graph, c.groups, body, transport);
  for (int i = 0; i < 3; ++i) executor.RunStep(i);
  if (mode == "vote late") Vote(transport, "saving", transport.rank() == 0 ? "disk full" : "");
  // A receive without a sender, and an error that all ranks have.
  if (mode == "vote with transfers") {
    transport.Recv((transport.rank() + 1) % 3, 1, body.Allocate(0, 0, false, 0, false));
    transport.Send((transport.rank() + 1) % 3, 2, body.Allocate(0, 0, false, 0, false));
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
