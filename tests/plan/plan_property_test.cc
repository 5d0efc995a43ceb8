// Every plan that can be generated is valid and runs to the end with blocking sends.
#include <gtest/gtest.h>

#include <map>

#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/stage_graph.h"
#include "tests/plan/random_plan.h"
#include "tests/plan/schedules/blocking_player.h"

namespace pipewright {

static std::string Describe(const RandomCase& c, const Plan& plan) {
  std::string placement;
  for (const auto& ranks : c.graph.ranks_of) {
    placement += placement.empty() ? "" : ",";
    for (size_t k = 0; k < ranks.size(); ++k)
      placement += (k ? "+" : "") + std::to_string(ranks[k]);
  }
  return c.name + " ranks " + std::to_string(c.ranks) + " microbatches " +
         std::to_string(c.microbatches) + " placement " + placement + "\n" + WritePlan(plan);
}

TEST(PlanProperty, GeneratedPlansAreValidAndRunThrough) {
  std::mt19937 random(20260721);
  const std::vector<std::string>& names = ScheduleNames();
  std::map<std::string, std::pair<int, int>> counts;  // accepted, refused
  const int wanted = 20000;
  int accepted = 0;
  for (int n = 0; n < wanted; ++n) {
    const std::string& name = names[n % names.size()];
    std::optional<RandomCase> c = MakeRandomCase(random, name);
    ++(c ? counts[name].first : counts[name].second);
    if (!c) continue;
    ++accepted;
    Plan plan = Lower(c->schedule, c->graph);
    try {
      Validate(plan, c->graph);
    } catch (const Error& e) {
      FAIL() << e.what() << "\n" << Describe(*c, plan);
    }
    if (n % 4 == 0) {
      BlockingPlayer player(plan, c->graph);
      ASSERT_TRUE(player.RunsThrough()) << player.Stuck() << Describe(*c, plan);
      std::string text = WritePlan(plan);
      ASSERT_EQ(WritePlan(ReadPlan(text, "plan")), text);
      ASSERT_EQ(WritePlan(ComputeOnly(plan)), WritePlan(ComputeOnly(c->schedule)));
    }
    if (n % 16 == 0 && !c->forward_only) {
      Plan steps = Lower(Unroll(Synchronous(c->schedule), 3), c->graph);
      try {
        Validate(steps, c->graph);
      } catch (const Error& e) {
        FAIL() << e.what() << "\n" << Describe(*c, steps);
      }
      c->graph.microbatches = c->microbatches;
      ASSERT_TRUE(BlockingPlayer(steps, c->graph).RunsThrough()) << Describe(*c, steps);
    }
  }
  for (const auto& [name, count] : counts) {
    std::printf("%-12s %5d accepted %5d refused\n", name.c_str(), count.first, count.second);
    EXPECT_GT(count.first, count.second) << name;
  }
  EXPECT_GE(accepted, wanted / 2);
}

TEST(PlanProperty, ATextSaysWhichChainItIs) {
  std::mt19937 random(7);
  for (int n = 0; n < 500; ++n) {
    std::optional<RandomCase> c = MakeRandomCase(random, n % 2 ? "1f1b" : "interleaved");
    if (!c) continue;
    StageGraph chain = ChainGraph(c->graph.ranks_of);
    chain.ranks = c->ranks;
    Plan plan = Lower(c->schedule, chain);
    Plan read = ReadPlan(WritePlan(plan), "plan");
    ASSERT_NO_THROW(Validate(read)) << Describe(*c, plan);
    StageGraph found = GraphOf(read);
    if (c->microbatches < 3) continue;  // not every replica and edge is seen
    EXPECT_EQ(found.ranks_of, chain.ranks_of) << Describe(*c, plan);
    ASSERT_EQ(found.edges.size(), chain.edges.size()) << Describe(*c, plan);
  }
}

TEST(PlanProperty, AsynchronousVersions) {
  for (int p = 1; p <= 5; ++p)
    for (int m : {1, 2, 5})
      for (int delay : {-1, 1}) {
        StagePlacement placement = ParsePlacement("loop", p, p);
        // PipeDream-2BW: no more microbatches in flight than a step has.
        if (delay == 1 && m < p) continue;
        StageGraph graph = ChainGraph(placement);
        Plan plan = Lower(Unroll(AsynchronousOneForwardOneBackward(p, m), 6), graph);
        EXPECT_EQ(p == 1, [&] {
          try {
            Validate(plan, graph);
          } catch (const Error& e) {
            return std::string(e.what()).find("rule \"step\"") == std::string::npos;
          }
          return true;
        }());
        SetVersions(plan, delay);
        ASSERT_NO_THROW(Validate(plan, graph)) << WritePlan(plan);
        ASSERT_TRUE(BlockingPlayer(plan, graph).RunsThrough());
        Plan read = ReadPlan(WritePlan(plan), "plan");
        EXPECT_EQ(read.steps, 6);
        EXPECT_EQ(WritePlan(read), WritePlan(plan));
        ASSERT_NO_THROW(Validate(read));
      }
}

}  // namespace pipewright
