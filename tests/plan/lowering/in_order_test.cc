// Every schedule runs over links without tags, and the check agrees with playing the queues.
#include "plan/lowering/in_order.h"

#include <gtest/gtest.h>

#include <map>

#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/schedules/table.h"
#include "plan/stage_graph.h"
#include "tests/error_text.h"
#include "tests/plan/lowering/in_order_player.h"
#include "tests/plan/random_plan.h"

namespace pipewright {

namespace {

using enum LinkQueues;

std::string Problem(const std::string& text, const StageGraph& graph, LinkQueues queues) {
  return InOrderProblem(ReadPlan(text, "p"), graph, queues).value_or("");
}

// The values of stage 0 go up, and those of stage 1 come back.
const StageGraph& Loop() {
  static const StageGraph graph = ChainGraph({{0}, {1}, {0}});
  return graph;
}

}  // namespace

TEST(InOrder, SwappedReceivesAreRefused) {
  const StageGraph chain = ChainGraph({{0}, {1}});
  const std::string sends = "0F0,0SEND_F0>1,0F1,0SEND_F1>1\n";
  EXPECT_EQ(Problem(sends + "1RECV_F0<0,1RECV_F1<0,1F0,1F1\n", chain, kChannels), "");
  EXPECT_EQ(Problem(sends + "1RECV_F1<0,1RECV_F0<0,1F0,1F1\n", chain, kChannels),
            "rank 1, action 1, 1RECV_F0<0: rule \"channel\": rank 0 sends it before what rank 1, "
            "action 0, 1RECV_F1<0 receives");
}

TEST(InOrder, AnEarlyReceiveHoldsUpItsQueue) {
  const std::string one = "1RECV_F0<0,1F0,1SEND_F0>2\n";
  const std::string early = "2RECV_F0<1,0F0,0SEND_F0>1,2F0\n" + one;
  EXPECT_EQ(Problem(early, Loop(), kChannels), "");
  for (LinkQueues queues : {kDirections, kPairs})
    EXPECT_EQ(Problem(early, Loop(), queues),
              "rank 0, action 0, 2RECV_F0<1: rule \"in order\": over links that keep the order of "
              "messages, the plan never ends: rank 0, action 0, 2RECV_F0<1 waits for rank 1, "
              "action 2, 1SEND_F0>2, behind rank 1, action 0, 1RECV_F0<0; rank 1, action 0, "
              "1RECV_F0<0 waits for rank 0, action 2, 0SEND_F0>1, behind rank 0, action 0, "
              "2RECV_F0<1");
  for (LinkQueues queues : {kDirections, kPairs, kChannels})
    EXPECT_EQ(Problem("0F0,0SEND_F0>1,2RECV_F0<1,2F0\n" + one, Loop(), queues), "");
}

TEST(InOrder, ComputesWaitForEachOther) {
  const StageGraph chain = ChainGraph({{0}, {1}});
  EXPECT_EQ(Problem("0F0,0SEND_F0>1,0RECV_B0<1,0B0,0F1,0SEND_F1>1,0RECV_B1<1,0B1\n"
                    "1RECV_F0<0,1RECV_F1<0,1F0,1F1,1B0,1SEND_B0>0,1B1,1SEND_B1>0\n",
                    chain, kChannels),
            "rank 0, action 3, 0B0: rule \"in order\": over links that keep the order of messages, "
            "the plan never ends: rank 0, action 3, 0B0 waits for rank 0, action 2, 0RECV_B0<1; "
            "rank 0, action 2, 0RECV_B0<1 waits for rank 1, action 4, 1B0, behind rank 1, action "
            "3, 1F1; rank 1, action 3, 1F1 waits for rank 1, action 1, 1RECV_F1<0; rank 1, action "
            "1, 1RECV_F1<0 waits for rank 0, action 4, 0F1, behind rank 0, action 3, 0B0");
}

TEST(InOrder, ExchangesOfGradientsWait) {
  const StageGraph replicas = ChainGraph({{0, 1}});
  EXPECT_EQ(Problem("0F0,0B0,0REDUCE_GRAD\n0F1,0B1,0REDUCE_GRAD\n", replicas, kChannels), "");
  EXPECT_EQ(Problem("0F0,0B0,0REDUCE_GRAD\n0F1,0B1\n", replicas, kChannels),
            "rank 0, action 2, 0REDUCE_GRAD: rule \"in order\": over links that keep the order of "
            "messages, the plan never ends: rank 0, action 2, 0REDUCE_GRAD waits for the gradients "
            "of rank 1");
}

namespace {

// Plans of all schedules, and how many of them run with which queues.
struct RunCounts {
  int plans = 0;
  std::map<LinkQueues, int> run;

  void Add(const Plan& plan, const StageGraph& graph) {
    ++plans;
    for (LinkQueues queues : {kDirections, kPairs, kChannels}) {
      const std::optional<std::string> problem = InOrderProblem(plan, graph, queues);
      run[queues] += !problem;
      if (queues == kChannels && problem) ADD_FAILURE() << *problem << "\n" << WritePlan(plan);
    }
  }
  void Print(const std::string& name, const char* what) {
    std::printf(
        "%-12s %s: %3d plans; one queue for each direction %3d, pair and direction %3d, "
        "channel %3d\n",
        name.c_str(), what, plans, run[kDirections], run[kPairs], run[kChannels]);
  }
};

}  // namespace

// With one stage per rank, values go up and gradients go down. With more, values go both ways
// between two ranks, so that a receive that is posted early can hold up the send that it needs.
TEST(InOrder, EveryScheduleRunsOverChannels) {
  std::map<std::string, RunCounts> one_way, both_ways;
  for (const ScheduleKind& kind : Schedules())
    for (int ranks = 1; kind.make && ranks <= 6; ++ranks)
      for (int per_rank = 1; per_rank <= 4; ++per_rank)
        for (int microbatches = 1; microbatches <= 14; ++microbatches)
          for (bool forward_only : {false, true}) {
            const int stages = ranks * per_rank;
            Plan schedule;
            StagePlacement placement;
            try {
              placement = ParsePlacement(kind.placement, ranks, stages);
              schedule = MakeSchedule(kind.name, ranks, stages, microbatches, placement,
                                      {.forward_only = forward_only});
            } catch (const Error&) {
              continue;  // the schedule refuses the numbers
            }
            const StageGraph graph = ChainGraph(placement);
            const bool chain = per_rank == 1 && placement[0].size() == 1;
            (chain ? one_way : both_ways)[kind.name].Add(Lower(schedule, graph), graph);
          }
  EXPECT_EQ(one_way.size() + both_ways.size(), 23u);
  for (auto& [name, counts] : one_way) {
    counts.Print(name, "one stage per rank");
    EXPECT_EQ(counts.run[kPairs], counts.plans) << name;
  }
  for (auto& [name, counts] : both_ways) {
    counts.Print(name, "several           ");
    EXPECT_LT(counts.run[kPairs], counts.plans) << name << " now runs with fewer queues";
  }
  EXPECT_LT(one_way["1f1b"].run[kDirections], one_way["1f1b"].plans) << "now a queue may do";
}

TEST(InOrder, AsynchronousSchedulesRunOverChannels) {
  RunCounts counts;
  for (int ranks = 2; ranks <= 6; ++ranks)
    for (int microbatches : {1, 2, 5, 8}) {
      const StageGraph graph = ChainGraph(ParsePlacement("loop", ranks, ranks));
      Plan plan = Lower(Unroll(AsynchronousOneForwardOneBackward(ranks, microbatches), 8), graph);
      SetVersions(plan);
      counts.Add(plan, graph);
    }
  counts.Print("pipedream", "one stage per rank");
}

namespace {

// Changes the order of neighboring actions at random, within what the rules of messages allow.
void Disturb(Plan& plan, const StageGraph& graph, std::mt19937& random) {
  for (int n = Pick(random, 1, 12); n > 0; --n) {
    Plan changed = plan;
    auto& actions = changed.ranks[random() % changed.ranks.size()];
    const int size = static_cast<int>(actions.size());
    if (size < 2) continue;
    // Moves one action by any distance: a receive far up, or a compute past many others.
    const int from = Pick(random, 0, size - 1), to = Pick(random, 0, size - 1);
    auto at = actions.begin();
    if (from < to)
      std::rotate(at + from, at + from + 1, at + to + 1);
    else
      std::rotate(at + to, at + from, at + from + 1);
    for (auto& rank : changed.ranks)
      for (Action& a : rank) a.slot = -1;
    const std::string problem = InOrderProblem(changed, graph).value_or("");
    if (problem.empty() || problem.find("rule \"in order\"") != std::string::npos)
      plan = std::move(changed);
  }
}

}  // namespace

TEST(InOrder, AgreesWithPlayingTheQueues) {
  std::mt19937 random(20261128);
  std::map<LinkQueues, std::pair<int, int>> counts;  // run, never end
  for (int n = 0; n < 3000; ++n) {
    std::optional<RandomCase> c =
        MakeRandomCase(random, ScheduleNames()[random() % ScheduleNames().size()]);
    if (!c || c->microbatches > 8) continue;
    c->graph.microbatches = c->microbatches;
    Plan plan = Lower(c->schedule, c->graph);
    if (n % 4) Disturb(plan, c->graph, random);
    const std::string text = c->name + "\n" + WritePlan(plan);
    std::map<LinkQueues, bool> runs;
    for (LinkQueues queues : {kDirections, kPairs, kChannels}) {
      const std::optional<std::string> problem = InOrderProblem(plan, c->graph, queues);
      runs[queues] = !problem;
      ++(problem ? counts[queues].second : counts[queues].first);
      ASSERT_EQ(InOrderPlayer(plan, c->graph, queues).RunsThrough(), !problem)
          << problem.value_or("") << "\n"
          << text;
    }
    // Larger queues only add to what waits.
    EXPECT_TRUE(!runs[kDirections] || runs[kPairs]) << text;
    EXPECT_TRUE(runs[kChannels] || !ErrorOf([&] { Validate(plan, c->graph); }).empty()) << text;
  }
  for (const auto& [queues, count] : counts) {
    std::printf("%d: %d run, %d never end\n", static_cast<int>(queues), count.first, count.second);
    EXPECT_GT(count.first, 100);
    EXPECT_GT(count.second, 100);
  }
}

}  // namespace pipewright
