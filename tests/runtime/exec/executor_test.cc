#include "runtime/exec/executor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/plan_text.h"
#include "plan/receive_buffers.h"
#include "plan/schedules/schedule.h"
#include "plan/stage_graph.h"
#include "runtime/exec/status.h"
#include "runtime/transport/thread_transport.h"
#include "tests/runtime/exec/fake_model.h"

namespace pipewright {
namespace {

void RunCase(const FakeCase& c, const ThreadOptions& options = {}) {
  RunThreads(c.graph.ranks, [&](Transport& t) { RunAndCompare(c, t); }, options);
}

// Stage s on rank s mod ranks.
std::vector<std::vector<int>> Loop(int stages, int ranks) {
  std::vector<std::vector<int>> placement;
  for (int s = 0; s < stages; ++s) placement.push_back({s % ranks});
  return placement;
}

class ExecutorRanks : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string schedule_ = std::get<0>(GetParam());
  int ranks_ = std::get<1>(GetParam());
};

TEST_P(ExecutorRanks, ChainWithTiedEnds) {
  StageGraph graph = ChainGraph(Loop(ranks_, ranks_));
  if (ranks_ > 1) graph.shared = {{0, ranks_ - 1}};
  FakeCase c = ScheduleCase(schedule_, graph, 6);
  c.steps = 3;
  RunCase(c);
}

TEST_P(ExecutorRanks, SkipsAndFanOut) {
  FakeCase c = ScheduleCase(schedule_, SkipGraph(Loop(ranks_, ranks_)), 5);
  c.steps = 2;
  RunCase(c);
}

TEST_P(ExecutorRanks, FewerMicrobatchesThanRanks) {
  RunCase(ScheduleCase(schedule_, SkipGraph(Loop(ranks_, ranks_)), 1));
}

INSTANTIATE_TEST_SUITE_P(, ExecutorRanks,
                         testing::Combine(testing::Values("gpipe", "1f1b"),
                                          testing::Values(1, 2, 3, 5, 11)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Executor, SeveralStagesOnARank) {
  StageGraph graph = SkipGraph({{0}, {0}, {1}, {2}, {2}, {1}, {0}});
  graph.shared = {{0, 1}, {0, 3, 6}, {3, 4}};  // within a rank, over ranks, within another
  FakeCase c = ScheduleCase("gpipe", graph, 4);
  c.steps = 3;
  RunCase(c);
}

TEST(Executor, Replicas) {
  StageGraph graph = SkipGraph({{0, 1, 2}, {3, 4}, {5}});
  graph.shared = {{0, 2}};
  FakeCase c = ScheduleCase("gpipe", graph, 7);
  c.steps = 3;
  RunCase(c);
}

// For any graph, placement and order, the result is that of the reference.
TEST(Executor, RandomGraphsAndOrders) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FakeCase c = RandomCase(seed, 1 + seed % 5);
    c.options.check_messages = seed % 2;
    RunCase(c);
    if (HasFailure()) break;
  }
}

// Returns the number of receive buffers that the plan gives the edge from stage 0 to stage 1.
int Buffers(const Plan& plan) {
  int most = 0;
  for (const Action& a : plan.ranks[1])
    if (a.kind == ActionKind::kRecvForward) most = std::max(most, a.slot + 1);
  return most;
}

// A rank that only sends is held back only by the bound on messages.
TEST(Executor, ASenderStaysWithinTheReceiversBuffers) {
  constexpr int kMicrobatches = 200, kSteps = 3;
  for (bool numbered : {true, false})
    for (bool checked : {false, true}) {
      FakeCase c;
      c.graph = ChainGraph({{0}, {1}});
      std::string lists[2];
      for (int i = 0; i < kMicrobatches; ++i)
        for (int stage : {0, 1})
          lists[stage] += (i ? "," : "") + std::to_string(stage) + "F" + std::to_string(i);
      c.plan = Lower(ReadPlan(lists[0] + "\n" + lists[1] + "\n", "forward"), c.graph);
      c.options.check_messages = checked;
      const int buffers = Buffers(c.plan);
      if (!numbered)
        for (auto& actions : c.plan.ranks)
          for (Action& a : actions) a.slot = -1;
      std::atomic<StatusFile*> sender{nullptr};
      std::atomic<int> begun{0}, used{0}, lead{0};
      RunThreads(2, [&](Transport& t) {
        auto hook = [&](const std::string&, int stage, int) {
          if (stage == 0) {
            ++begun;
            return;
          }
          // The receiver computes only while the sender waits for it, or has finished.
          while (begun < kMicrobatches * kSteps && !sender.load()->Read().awaits.sends)
            std::this_thread::yield();
          lead = std::max(lead.load(), begun - ++used);
        };
        if (t.rank() == 0) sender = &t.status();
        t.AllGather("");
        FakeBody body(c, t.rank(), hook);
        Executor executor(c.plan, c.graph, c.groups, body, t, c.options);
        for (int step = 0; step < kSteps; ++step) executor.RunStep(step);
        t.AllGather("");  // the messages have been used
        EXPECT_EQ(t.Pending(), 0u);
        EXPECT_EQ(body.live_bundles(), 0);
      });
      // `buffers` posted, as many sent without a receive, and the one being computed.
      EXPECT_LE(lead, 2 * buffers + 1);
      EXPECT_GE(lead, buffers);
    }
}

// Returns (edge, backward, slot) of every RECV of a rank.
std::set<std::tuple<int, bool, int>> SlotsOf(const Plan& plan, const StageGraph& graph, int rank) {
  std::set<std::tuple<int, bool, int>> slots;
  for (const Action& a : plan.ranks[rank]) {
    if (!IsRecv(a.kind)) continue;
    const bool backward = a.kind == ActionKind::kRecvBackward;
    const int from = backward ? a.stage : PeerOf(a), to = backward ? PeerOf(a) : a.stage;
    for (size_t e = 0; e < graph.edges.size(); ++e)
      if (graph.edges[e].from == from && graph.edges[e].to == to)
        slots.emplace(static_cast<int>(e), backward, a.slot);
  }
  return slots;
}

// Memory is requested by the plan's slot numbers, and no number is used for two messages at once:
// see FakeBody::Allocate. A plan without numbers gets them.
TEST(Executor, ReceivesUseTheSlotsOfThePlan) {
  for (const std::string schedule : {"gpipe", "1f1b", "zb1p"})
    for (bool numbered : {true, false}) {
      FakeCase c = ScheduleCase(schedule, SkipGraph({{0, 1}, {2}, {0, 2}, {1}}), 9);
      c.steps = 3;
      Plan expected = c.plan;
      if (!numbered) {
        NumberSlots(expected);
        for (auto& actions : c.plan.ranks)
          for (Action& a : actions) a.slot = -1;
      }
      RunThreads(c.graph.ranks, [&](Transport& t) {
        FakeBody body(c, t.rank());
        Executor executor(c.plan, c.graph, c.groups, body, t, c.options);
        for (int step = 0; step < c.steps; ++step) executor.RunStep(step);
        std::set<std::tuple<int, bool, int>> used;
        for (const auto& [slot, message] : body.slots()) used.insert(slot);
        EXPECT_EQ(used, SlotsOf(expected, c.graph, t.rank())) << schedule << ", rank " << t.rank();
        t.AllGather("");
      });
    }
}

TEST(Executor, EverySchedule) {
  for (const std::string& name : ScheduleNames()) {
    SCOPED_TRACE(name);
    int stages = DefaultStages(name, 4);
    StageGraph graph = ChainGraph(ParsePlacement(DefaultPlacement(name), 4, stages));
    graph.shared = {{0, stages - 1}};
    FakeCase c = ScheduleCase(name, graph, 8);
    c.steps = 2;
    RunCase(c);
  }
}

TEST(Executor, SeveralStepsInAPlan) {
  StageGraph graph = SkipGraph({{0}, {1, 2}, {0}, {2}});
  graph.shared = {{0, 3}, {1, 2}};
  FakeCase c = ScheduleCase("gpipe", graph, 3, 3);
  ASSERT_EQ(c.plan.steps, 3);
  c.steps = 2;
  RunCase(c);
}

TEST(Executor, ForwardOnly) {
  FakeCase c;
  c.graph = ChainGraph({{0}, {1}});
  c.plan = ReadPlan("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n", "plan");
  c.steps = 4;
  RunCase(c);
}

TEST(Executor, ForwardAndBackwardAsOne) {
  FakeCase c;
  c.graph = ChainGraph({{0}, {1}});
  c.plan = ReadPlan(
      "0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0SEND_F1,0RECV_B1,0B1,0STEP\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1STEP\n",
      "plan");
  c.steps = 2;
  RunCase(c);
}

// On the sending rank, a step ends before its message is used: only the receive orders the ranks.
TEST(Executor, StepsOverlap) {
  FakeCase c;
  c.graph = ChainGraph({{0}, {1}});
  c.graph.edges[0].gradient = false;
  c.plan = ReadPlan("0F0,0SEND_F0,0B0,0STEP\n1RECV_F0,1F0,1B0,1STEP\n", "plan");
  c.steps = 20;
  std::atomic<bool> first_done = false;
  RunThreads(2, [&](Transport& t) {
    RunAndCompare(c, t, [&](const std::string& call, int stage, int) {
      if (stage == 1 && call == "Forward")
        while (!first_done) usleep(100);
      static thread_local int steps = 0;
      if (stage == 0 && call == "Step" && ++steps == 1) first_done = true;
    });
  });
}

// --- failures ---

std::string Failure(
    const FakeCase& c, const FakeBody::Hook& hook,
    const std::function<void(FakeBody&)>& prepare = [](FakeBody&) {}) {
  std::string what;
  std::atomic<int> ended = 0;
  try {
    RunThreads(c.graph.ranks, [&](Transport& t) {
      FakeBody body(c, t.rank(), hook);
      prepare(body);
      struct Count {
        std::atomic<int>& ended;
        ~Count() { ++ended; }
      } count{ended};
      Executor executor(c.plan, c.graph, c.groups, body, t, c.options);
      for (int i = 0; i < c.steps; ++i) executor.RunStep(i);
    });
  } catch (const std::exception& e) {
    what = e.what();
  }
  EXPECT_EQ(ended, c.graph.ranks);
  return what;
}

TEST(ExecutorFailure, NamesRankStageMicrobatchAndAction) {
  FakeCase c = ScheduleCase("1f1b", ChainGraph({{0}, {1}, {2}}), 4);
  EXPECT_EQ(Failure(c,
                    [](const std::string& call, int stage, int microbatch) {
                      if (call == "Backward" && stage == 1 && microbatch == 2)
                        throw std::runtime_error("out of luck");
                    }),
            "rank 1, stage 1, microbatch 2, action 1B2: out of luck");
  EXPECT_EQ(Failure(c,
                    [](const std::string& call, int stage, int) {
                      if (call == "Step" && stage == 2) throw Error("no more");
                    }),
            "rank 2, stage 2, action 2STEP: no more");
}

// A body fails at its n-th call, for every n, on each rank: every rank ends, and the message is
// from the one that failed.
TEST(ExecutorFailure, AtEveryCallOfEveryRank) {
  StageGraph graph = SkipGraph({{0}, {1}, {2}, {0}});
  graph.shared = {{0, 2}};
  FakeCase c = ScheduleCase("gpipe", graph, 2);
  c.steps = 2;
  for (int rank = 0; rank < 3; ++rank) {
    for (int n = 0;; ++n) {
      std::atomic<int> calls = 0;
      std::string what = Failure(c, nullptr, [&](FakeBody&) {});
      ASSERT_EQ(what, "");
      bool failed = false;
      try {
        RunThreads(3, [&](Transport& t) {
          auto hook = [&](const std::string&, int, int) {
            if (t.rank() == rank && calls++ == n) throw Error("broken", "on purpose");
          };
          FakeBody body(c, t.rank(), hook);
          Executor executor(c.plan, c.graph, c.groups, body, t, c.options);
          for (int i = 0; i < c.steps; ++i) executor.RunStep(i);
        });
      } catch (const Error& e) {
        failed = true;
        std::string text = e.what();
        EXPECT_EQ(text.rfind("rank " + std::to_string(rank) + ", stage ", 0), 0u) << text;
        EXPECT_NE(text.find("broken: on purpose"), std::string::npos) << text;
      }
      if (!failed) {
        EXPECT_GT(n, 20);
        break;
      }
    }
  }
}

TEST(ExecutorFailure, ANumberOfBytesThatDiffers) {
  for (bool check : {false, true}) {
    FakeCase c;
    c.graph = ChainGraph({{0}, {1}});
    c.plan = ReadPlan("0F0,0SEND_F0\n1RECV_F0,1F0\n", "plan");
    c.message_words = 4;
    c.options.check_messages = check;
    std::string what = Failure(c, nullptr, [](FakeBody& body) { body.words_off_by_one = 1; });
    EXPECT_EQ(what.rfind("rank 1, stage 1, microbatch 0, action 1F0: values from stage 0 to stage "
                         "1, microbatch 0: ",
                         0),
              0u)
        << what;
    EXPECT_NE(what.find("32 bytes"), std::string::npos) << what;
    EXPECT_NE(what.find("40 bytes"), std::string::npos) << what;
  }
}

TEST(ExecutorFailure, PlansThatDoNotFit) {
  auto failure = [](const std::string& plan, std::vector<std::vector<int>> ranks_of,
                    std::vector<SharedGroup> groups = {}) {
    FakeCase c;
    c.graph = ChainGraph(std::move(ranks_of));
    c.groups = std::move(groups);
    c.plan = ReadPlan(plan, "plan");
    return Failure(c, nullptr);
  };
  EXPECT_EQ(failure("0F0,1F0,0SEND_F0>5\n", {{0}, {0}}),
            "rank 0, action 2, 0SEND_F0>5: no value goes between stages 0 and 5");
  EXPECT_EQ(failure("0F0,1F0\n0STEP\n", {{0}, {0}, {1}}),
            "rank 1, action 0, 0STEP: stage 0 is not on this rank");
  EXPECT_EQ(failure("1F0\n", {{0}, {0}}),
            "rank 0, stage 1, microbatch 0, action 1F0: values from stage 0 to stage 1, microbatch "
            "0: neither made nor received before they are used");
  EXPECT_EQ(failure("0F0,1F0,1B0,0B0,0REDUCE_GRAD,0STEP,1STEP\n", {{0}, {0}}, {{{0, 0}, {1, 0}}}),
            "rank 0, action 5, 0STEP: STEP needs a REDUCE_GRAD before it: the stage shares a "
            "weight or has replicas");
  EXPECT_EQ(
      failure("0F0@2\n", {{0}}),
      "rank 0, stage 0, microbatch 0, action 0F0@2: stages keep one version of their weights");
  EXPECT_EQ(failure("0F0,0LOAD\n", {{0}}),
            "rank 0, stage 0, action 0LOAD: this stage keeps all its weights: nothing to load");
}

// --- the status file ---

TEST(StatusFile, ShowsWhatARankIsAt) {
  std::string folder = testing::TempDir() + "pipewright-status-" + std::to_string(getpid());
  FakeCase c = ScheduleCase("1f1b", ChainGraph({{0}, {1}, {2}}), 3);
  ThreadOptions options;
  options.status_folder = folder;
  c.first_step = 40;
  c.steps = 2;
  int checked = 0;
  RunThreads(
      3,
      [&](Transport& t) {
        RunAndCompare(c, t, [&](const std::string& call, int stage, int microbatch) {
          if (call != "Backward" || stage != 1) return;
          RankStatus status = ReadStatus(StatusPath(folder, 1));
          EXPECT_EQ(status.action, "1B" + std::to_string(microbatch));
          EXPECT_EQ(ToText(c.plan.ranks[1][status.entry]), status.action);
          EXPECT_EQ(status.step, 40 + checked++ / 3);
          EXPECT_EQ(status.stage, 1);
          EXPECT_EQ(status.microbatch, microbatch);
          EXPECT_EQ(status.awaits, Awaited{});
          EXPECT_EQ(status.pid, getpid());
        });
      },
      options);
  EXPECT_EQ(checked, 6);
  RankStatus end = ReadStatus(StatusPath(folder, 2));
  EXPECT_EQ(end.action, "");
  EXPECT_EQ(end.step, 42);
  EXPECT_EQ(DescribePlace(end), "after step 42");
  EXPECT_EQ(end.state, RankState::kFinished);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(ReadStatus(StatusPath(folder, 2)), Error);
}

TEST(StatusFile, NamesTheRankThatIsWaitedFor) {
  std::string folder = testing::TempDir() + "pipewright-waiting-" + std::to_string(getpid());
  FakeCase c = ScheduleCase("gpipe", ChainGraph({{0}, {1}}), 1);
  ThreadOptions options;
  options.status_folder = folder;
  RunThreads(
      2,
      [&](Transport& t) {
        RunAndCompare(c, t, [&](const std::string& call, int stage, int) {
          if (call != "Forward" || stage != 0) return;
          RankStatus status;
          for (int i = 0; i < 5000 && status.awaits.kind == Awaited::kNothing; ++i) {
            usleep(1000);
            status = ReadStatus(StatusPath(folder, 1));
          }
          EXPECT_EQ(status.awaits, (Awaited{Awaited::kValues, 0, 0, 1, 0, 0}));
          EXPECT_EQ(
              DescribePlace(status),
              "step 1, stage 1, microbatch 0, action 1F0 (entry 1), waiting for the values of "
              "stage 0 for stage 1, microbatch 0, of rank 0");
        });
      },
      options);
  std::filesystem::remove_all(folder);
}

// The transport would take all messages on devices.
class TakesAll : public WrappedTransport {
 public:
  using WrappedTransport::WrappedTransport;
  bool TakesDevices(int) const override { return true; }
};

// Notes which messages may lie on a device, where they are received and where they are sent.
class NotesPlaces : public FakeBody {
 public:
  using FakeBody::FakeBody;
  Bundle Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) override {
    (on_device ? received : received_on_host).insert(microbatch);
    return FakeBody::Allocate(edge, microbatch, backward, slot, on_device);
  }
  Bundle OnHost(Bundle message) override {
    ++sent_on_host;
    return message;
  }
  std::set<int> received, received_on_host;
  int sent_on_host = 0;
};

TEST(Executor, AColdRunBeginsOnTheHost) {
  FakeCase c = ScheduleCase("1f1b", ChainGraph({{0}, {1}}), 4);
  c.plan = ReadPlan(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3\n"
      "1RECV_F0,1RECV_F1,1F0,1F1,1RECV_F2,1RECV_F3,1F2,1F3\n",
      "plan");
  RunThreads(2, [&](Transport& inner) {
    TakesAll transport(inner);
    NotesPlaces body(c, inner.rank());
    Executor executor(c.plan, c.graph, c.groups, body, transport);
    EXPECT_FALSE(executor.ColdOnHostOnly());
    executor.RunStep(0, true, /*cold=*/true);
    EXPECT_EQ(body.sent_on_host, inner.rank() == 0 ? 2 : 0);
    EXPECT_EQ(body.received_on_host, inner.rank() == 0 ? std::set<int>{} : (std::set{0, 1}));
    executor.RunStep(1, true);
    EXPECT_EQ(body.sent_on_host, inner.rank() == 0 ? 2 : 0);
    EXPECT_EQ(body.received, inner.rank() == 0 ? std::set<int>{} : (std::set{0, 1, 2, 3}));
  });
  // Updates come last: everything before them is cold.
  const FakeCase trains = ScheduleCase("1f1b", ChainGraph({{0}, {1}}), 4);
  RunThreads(2, [&](Transport& inner) {
    TakesAll transport(inner);
    NotesPlaces body(trains, inner.rank());
    Executor executor(trains.plan, trains.graph, trains.groups, body, transport);
    EXPECT_TRUE(executor.ColdOnHostOnly());
    executor.RunStep(0, true, /*cold=*/true);
    EXPECT_EQ(body.sent_on_host, 4);
    EXPECT_TRUE(body.received.empty());
  });
}

// A message leaves some time after its receive has been posted, as over NCCL.
class LeavesLate : public WrappedTransport {
 public:
  explicit LeavesLate(Transport& inner) : WrappedTransport(inner) {}
  Token Send(int peer, int tag, Bundle bundle) override {
    Token token = WrappedTransport::Send(peer, tag, std::move(bundle));
    leaving_.push_back({token, 0});
    most = std::max(most, leaving_.size());
    return token;
  }
  bool HasLeft(const Token& send) override {
    const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                    [&](const auto& one) { return one.first == send; });
    if (found == leaving_.end()) return true;
    if (!Test(send) || ++found->second <= 20) return false;
    leaving_.erase(found);
    return true;
  }
  size_t most = 0;

 private:
  std::vector<std::pair<Token, int>> leaving_;  // and how often the rank has looked
};

TEST(Executor, KeepsNoMoreMessagesThanTheReceiverHasBuffers) {
  for (int buffers : {1, 2, 3}) {
    std::string first, second;
    for (int m = 0; m < 12; ++m) {
      const std::string n = std::to_string(m);
      first += ",0F" + n + ",0SEND_F" + n;
      second += ",1RECV_F" + n + "#" + std::to_string(m % buffers) + ",1F" + n;
    }
    FakeCase c = ScheduleCase("1f1b", ChainGraph({{0}, {1}}), 12);
    c.plan = ReadPlan(first.substr(1) + "\n" + second.substr(1) + "\n", "plan");
    RunThreads(2, [&](Transport& inner) {
      LeavesLate transport(inner);
      FakeBody body(c, inner.rank());
      Executor executor(c.plan, c.graph, c.groups, body, transport);
      executor.RunStep(0);
      executor.RunStep(1);
      const size_t most = inner.rank() == 0 ? static_cast<size_t>(buffers) : 0;
      EXPECT_EQ(transport.most, most);
    });
  }
}

TEST(Executor, SchedulesRunIfMessagesLeaveLate) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
    RunThreads(3, [&](Transport& inner) {
      FakeCase c = ScheduleCase(schedule, SkipGraph(Loop(3, 3)), 6);
      c.steps = 2;
      LeavesLate transport(inner);
      RunAndCompare(c, transport);
    });
}

}  // namespace
}  // namespace pipewright
