// A rank dies, or stops, at an action of its list: every process ends, and one message says what
// the rank was doing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plan/plan_text.h"
#include "runtime/exec/status.h"
#include "tests/runtime/exec/fake_model.h"
#include "tests/runtime/exec/launch.h"

namespace pipewright {
namespace {

const char* kWays[] = {"kill", "segfault", "exit", "leave", "stop", "throw"};
constexpr int kStep = 1;

bool Long() { return std::getenv("PIPEWRIGHT_LONG"); }

// Returns what the message says for each kind of death.
std::string Verb(const std::string& how) {
  if (how == "segfault") return "died of signal 11 (Segmentation fault): ";
  if (how == "exit") return "called exit() in the middle of the run: ";
  if (how == "stop") return "has been stopped for 3 s, and is ended: ";
  return "died";
}

void DieAt(const FakeCase& c, int rank, int entry, const std::string& how) {
  const Action& action = c.plan.ranks[rank][entry];
  const std::string text = ToText(action);
  SCOPED_TRACE(how + " of rank " + std::to_string(rank) + " at entry " + std::to_string(entry) +
               ", " + text);
  std::string folder = testing::TempDir() + "pipewright-death-" + std::to_string(getpid());
  std::string fault = "die=" + std::to_string(rank) + ":" + std::to_string(kStep) + ":" +
                      std::to_string(entry) + ":" + how;
  Ended ended = Launch(
      3, MPI_PROGRAM " \"every kind\"",
      "PIPEWRIGHT_STATUS=" + folder + " PIPEWRIGHT_FAULTS=" + fault + " PIPEWRIGHT_STALL_LIMIT=3");
  EXPECT_NE(ended.code, 0) << ended.output;
  EXPECT_TRUE(Soon(ended.seconds - (how == "stop" ? 3 : 0), 10)) << ended.seconds;
  EXPECT_EQ(ended.left, std::vector<int>{});

  RankStatus victim = ReadStatus(StatusPath(folder, rank));
  EXPECT_EQ(victim.step, kStep);
  EXPECT_EQ(victim.entry, entry);
  EXPECT_EQ(victim.action, text);
  EXPECT_EQ(victim.stage, action.stage);
  EXPECT_EQ(victim.microbatch, action.microbatch);

  std::string place = "stage " + std::to_string(action.stage);
  if (action.microbatch >= 0) place += ", microbatch " + std::to_string(action.microbatch);
  place += ", action " + text;
  std::string message = how == "throw"
                            ? "program: rank " + std::to_string(rank) + ", " + place + ": injected fault"
                            : "program: " + DescribeRank(victim) + " " + Verb(how);
  EXPECT_EQ(ended.Count(message), 1) << message << "\n" << ended.output;
  if (how != "throw") {
    EXPECT_EQ(ended.Count("step " + std::to_string(kStep + 1) + ", " + place + " (entry " +
                          std::to_string(entry) + ")"),
              1)
        << ended.output;
  }
  EXPECT_EQ(ended.Count("program: "), 1) << ended.output;
  std::filesystem::remove_all(folder);
}

TEST(Death, AtEveryAction) {
  FakeCase c = EveryKindCase();
  int count = 0;
  for (int rank = 0; rank < c.graph.ranks; ++rank)
    for (size_t entry = 0; entry < c.plan.ranks[rank].size(); ++entry)
      for (const char* how : kWays)
        // A short run tries each kind a few times, and each rank.
        if (Long() || ++count % 31 == 5) DieAt(c, rank, static_cast<int>(entry), how);
}

// Checks that the plan above has every kind of action.
TEST(Death, ThePlanHasEveryKindOfAction) {
  FakeCase c = EveryKindCase();
  std::vector<bool> seen(static_cast<size_t>(ActionKind::kReshard) + 1);
  for (const auto& actions : c.plan.ranks)
    for (const Action& action : actions) seen[static_cast<size_t>(action.kind)] = true;
  for (size_t kind = 0; kind < seen.size(); ++kind) EXPECT_TRUE(seen[kind]) << kind;
}

TEST(Death, NoMessageMayBeLost) {
  Ended ended = Launch(3, MPI_PROGRAM " \"every kind\"",
                       "PIPEWRIGHT_FAULTS=drop=1:5 PIPEWRIGHT_STALL_LIMIT=3 "
                       "PIPEWRIGHT_STALL_REPORT=1");
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_TRUE(Soon(ended.seconds - 3, 10)) << ended.seconds;
  EXPECT_EQ(ended.left, std::vector<int>{});
  // The first report and the final one are as late as the machine is busy.
  EXPECT_GE(ended.Count("no rank has come further for "), 2) << ended.output;
  EXPECT_GE(ended.Count(" s: every rank waits for another\n"), 2) << ended.output;
  EXPECT_GE(ended.Count(", of rank 1\n"), 1) << ended.output;
}

TEST(Death, FaultsThatLoseNothingChangeNothing) {
  for (const char* faults :
       {"delay=0.003,seed=1", "reorder=0.5,seed=2", "delay=0.001,reorder=0.3,seed=3"}) {
    Ended ended =
        Launch(3, MPI_PROGRAM " \"every kind\"", std::string("PIPEWRIGHT_FAULTS=") + faults);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(ended.output, "");
    EXPECT_EQ(ended.left, std::vector<int>{});
  }
}

}  // namespace
}  // namespace pipewright
