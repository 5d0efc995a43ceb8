// Runs the executor's cases on MPI processes, with any number of ranks.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "plan/plan_text.h"
#include "plan/stage_graph.h"
#include "runtime/transport/mpi_transport.h"
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

// Longer than what MPI takes at once, longer than a piece, and exactly as long as pieces.
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

// While the ranks compute, the other thread moves what arrives, or it is moved later.
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

// Two regions: one in memory that the sender can write to, if there is any, and one elsewhere.
struct Received {
  Bundle bundle;
  Token token;
};
Bundle TwoRegions(std::shared_ptr<void> first, size_t bytes) {
  auto owner = std::make_shared<std::pair<std::shared_ptr<void>, std::vector<char>>>(
      std::move(first), std::vector<char>(5000));
  return {{{owner->first.get(), bytes}, {owner->second.data(), 5000}}, owner};
}
std::shared_ptr<void> Plain(size_t bytes) { return {std::malloc(bytes), std::free}; }

// Receives that are posted before and after their sends, of all sizes, from both neighbors.
TEST(MpiTransport, ReceivesEarlyAndLate) {
  const int rank = World().rank(), size = World().size();
  if (size == 1) return;
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::mt19937 shared(5), own(rank);  // `shared` is the same on all ranks
  auto fill = [](int from, int i, size_t at) { return static_cast<char>(from * 31 + i * 7 + at); };
  for (int i = 0; i < 150; ++i) {
    const size_t bytes = size_t{1} << (shared() % 23);
    const int tag = static_cast<int>(shared() % 2);
    auto send = [&] {
      Bundle bundle = TwoRegions(Plain(bytes), bytes);
      for (const Region& region : bundle.regions)
        for (size_t at = 0; at < region.bytes; at += 97)
          static_cast<char*>(region.data)[at] = fill(rank, i, at);
      return World().Send(next, tag, bundle);
    };
    auto receive = [&] {
      std::shared_ptr<void> memory = own() % 4 ? World().Memory(bytes) : nullptr;
      Bundle bundle = TwoRegions(memory ? memory : Plain(bytes), bytes);
      return Received{bundle, World().Recv(before, tag, bundle)};
    };
    const bool early = own() % 2;
    if (own() % 4 == 0) usleep(own() % 2000);
    Received received;
    if (early) received = receive();
    Token sent = send();
    if (!early) received = receive();
    World().WaitFor(received.token, {Awaited::kTensor});
    for (const Region& region : received.bundle.regions)
      for (size_t at = 0; at < region.bytes; at += 97)
        ASSERT_EQ(static_cast<char*>(region.data)[at], fill(before, i, at))
            << bytes << " at " << at;
    World().WaitFor(sent, {Awaited::kTensor});
  }
}

// Even short messages, which MPI would send ahead and keep at the receiver.
TEST(MpiTransport, ASendCompletesOnceItsReceiveIsPosted) {
  if (World().size() < 2) return;
  for (size_t bytes : {size_t{1}, size_t{3000}, size_t{100000}, size_t{9} << 20}) {
    if (World().rank() == 0) {
      Token sent = World().Send(1, 0, TwoRegions(Plain(bytes), bytes));
      for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(World().Test(sent)) << bytes;
        usleep(100);
      }
      World().AllGather("sent");
      World().WaitFor(sent, {Awaited::kTensor});
      EXPECT_TRUE(World().Test(sent));
    } else {
      World().AllGather("sent");
      if (World().rank() == 1)
        World().WaitFor(World().Recv(0, 0, TwoRegions(Plain(bytes), bytes)), {Awaited::kTensor});
    }
  }
  Bundle of_device = TwoRegions(Plain(1), 1);
  of_device.regions[1].on_device = true;
  EXPECT_THROW(World().Send(1, 0, of_device), Error);
  EXPECT_THROW(World().Recv(1, 0, of_device), Error);
}

// A sender that finds where its value is wanted is done with it.
TEST(MpiTransport, SendsAtOnceWhatIsRequested) {
  if (World().size() < 2) return;
  constexpr size_t kBytes = 3 << 20;
  const bool wanted = MpiOptionsFromEnvironment().inbox;
  std::shared_ptr<void> memory = World().Memory(kBytes);
  rlimit addresses = {};
  getrlimit(RLIMIT_AS, &addresses);
  if (!wanted || addresses.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(memory != nullptr, wanted);
  }
  bool all = true;  // all ranks continue, or none
  for (const std::string& has : World().AllGather(memory ? "1" : "0")) all = all && has == "1";
  if (!all) return;
  Bundle bundle{{{memory.get(), kBytes}}, memory};
  if (World().rank() == 0) {
    World().AllGather("posted");
    std::memset(memory.get(), 7, kBytes);
    Token sent = World().Send(1, 0, bundle);
    // A synchronous send ends when it is matched; the value may change from then on.
    std::memset(memory.get(), 8, kBytes);
    World().AllGather("sent");
    World().WaitFor(sent, {Awaited::kTensor});
  } else {
    Token token;
    if (World().rank() == 1) token = World().Recv(0, 0, bundle);
    World().AllGather("posted");
    World().AllGather("sent");
    if (World().rank() != 1) return;
    World().WaitFor(token, {Awaited::kTensor});
    const char* data = static_cast<char*>(memory.get());
    for (size_t at = 0; at < kBytes; at += 64) ASSERT_EQ(data[at], 7) << at;
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

TEST(MpiTransport, VotesEquallyOnAllRanks) {
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

// The last test, because a message that its receiver does not request stays pending.
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
           {0, 100000, "a message of 0 bytes arrived where 100000 bytes were expected"},
           {90000, 100000, "a message of 90000 bytes arrived where 100000 bytes were expected"},
       }) {
    SCOPED_TRACE(std::to_string(c.sent) + " for " + std::to_string(c.expected));
    bool sender = World().rank() == 0;
    const size_t bytes = sender ? c.sent : c.expected;
    std::shared_ptr<void> memory = World().Memory(bytes);
    if (!memory) memory = Plain(bytes);
    Bundle bundle{{{memory.get(), bytes}}, memory};
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
