// The executor's cases once more, on MPI processes: run with any number of ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include "plan/plan_text.h"
#include "plan/stage_graph.h"
#include "tests/runtime/exec/fake_model.h"
#include "tests/runtime/exec/mpi_main.h"

namespace pipewright {
namespace {

std::vector<std::vector<int>> Loop(int stages, int ranks) {
  std::vector<std::vector<int>> placement;
  for (int s = 0; s < stages; ++s) placement.push_back({s % ranks});
  return placement;
}

TEST(MpiExecutor, ChainWithTiedEnds) {
  const int ranks = World().size();
  for (const char* schedule : {"gpipe", "1f1b"}) {
    StageGraph graph = ChainGraph(Loop(ranks, ranks));
    if (ranks > 1) graph.shared = {{0, ranks - 1}};
    FakeCase c = ScheduleCase(schedule, graph, 8);
    c.steps = 5;
    RunAndCompare(c, World());
  }
}

TEST(MpiExecutor, SkipsAndFanOut) {
  const int ranks = World().size();
  for (const char* schedule : {"gpipe", "1f1b"}) {
    FakeCase c = ScheduleCase(schedule, SkipGraph(Loop(ranks, ranks)), 5);
    c.steps = 3;
    RunAndCompare(c, World());
  }
}

// Longer than what MPI takes at once, than a piece, and just as long as pieces.
TEST(MpiExecutor, LongMessages) {
  const int ranks = World().size();
  for (size_t words : {1000, 20000, 1 << 19, (1 << 20) + 1}) {
    StageGraph graph = ChainGraph(Loop(ranks, ranks));
    FakeCase c = ScheduleCase("1f1b", graph, 4);
    c.message_words = words;
    c.steps = 2;
    RunAndCompare(c, World());
  }
}

// While the ranks compute: what arrives is moved by the other thread, or later.
TEST(MpiExecutor, TransfersBehindCompute) {
  const int ranks = World().size();
  FakeCase c = ScheduleCase("1f1b", ChainGraph(Loop(ranks, ranks)), 4);
  c.message_words = 100000;
  c.steps = 2;
  RunAndCompare(c, World(), [](const std::string& call, int, int) {
    if (call == "Forward" || call == "Backward") usleep(2000);
  });
}

TEST(MpiExecutor, RandomGraphsAndOrders) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FakeCase c = RandomCase(seed, World().size());
    c.options.check_messages = seed % 2;
    RunAndCompare(c, World());
  }
}

TEST(MpiTransport, GathersByRank) {
  const int rank = World().rank(), size = World().size();
  for (int round = 0; round < 20; ++round) {
    auto all = World().AllGather(std::string(rank, 'x') + std::to_string(round));
    ASSERT_EQ(static_cast<int>(all.size()), size);
    for (int r = 0; r < size; ++r) EXPECT_EQ(all[r], std::string(r, 'x') + std::to_string(round));
  }
}

TEST(MpiTransport, VotesAlike) {
  const int last = World().size() - 1;
  std::string text;
  try {
    Vote(World(), "loading", World().rank() == last ? "torn" : "");
  } catch (const AgreedError& e) {
    text = e.what();
  }
  EXPECT_EQ(text, "loading on rank " + std::to_string(last) + ": torn");
}

// Started by the launch tests.
TEST(MpiListener, DISABLED_FailsOnOneRank) { EXPECT_NE(World().rank(), World().size() - 1); }

// The last test: what the receiver does not ask for stays under way.
TEST(MpiTransportEnd, RefusesMessagesOfAnotherSize) {
  if (World().size() < 2 || World().rank() > 1) return;
  struct Case {
    size_t sent, expected;
    std::string text;
  };
  int tag = 0;
  for (const Case& c : std::vector<Case>{
           {8, 12, "a message of 8 bytes arrived where 12 bytes were expected"},
           {12, 8, "a message longer than the 8 bytes expected arrived"},
           {8, 200000, "a message of 8 bytes arrived where 200000 bytes were expected"},
           {4 << 20, 8 << 20,
            "a message of another length arrived where 8388608 bytes were expected"},
       }) {
    SCOPED_TRACE(std::to_string(c.sent) + " for " + std::to_string(c.expected));
    bool sender = World().rank() == 0;
    auto memory = std::make_shared<std::vector<char>>(sender ? c.sent : c.expected);
    Bundle bundle{{{memory->data(), memory->size()}}, memory};
    ++tag;
    if (sender) {
      World().Send(1, tag, bundle);
      continue;
    }
    std::string text;
    Token token = World().Recv(0, tag, bundle);
    for (int i = 0; i < 10000 && text.empty(); ++i) {
      try {
        World().Test(token);
      } catch (const Error& e) {
        text = e.what();
      }
      usleep(100);
    }
    EXPECT_EQ(text, c.text);
  }
}

}  // namespace
}  // namespace pipewright
