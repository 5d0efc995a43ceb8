// Ranks join exchanges of gradients in the order of the numbers, and wait there for each other.
#include "plan/lowering/exchange_joins.h"

#include <gtest/gtest.h>

#include "plan/plan_text.h"
#include "plan/stage_graph.h"

namespace pipewright {

TEST(ExchangeJoins, ARankWaitsUntilAllHaveJoined) {
  // Exchange 0 is that of stage 0, on ranks 0 and 1; exchange 1 that of stage 1, on ranks 1 and 2.
  const StageGraph graph = ChainGraph({{0, 1}, {1, 2}});
  const Plan plan = ReadPlan(
      "0REDUCE_GRAD\n"
      "0REDUCE_GRAD,1REDUCE_GRAD\n"
      "1REDUCE_GRAD\n",
      "p");
  ExchangeJoins joins(plan, graph);
  std::vector<int> freed;
  EXPECT_EQ(joins.MissingAt(2, 0), 1);
  EXPECT_EQ(joins.Missing(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(joins.Join(2, 0, freed), 1);
  joins.Wait(1, 7);
  EXPECT_EQ(joins.Missing(1), std::vector<int>{1});
  EXPECT_EQ(joins.Join(1, 0, freed), 0);
  joins.Wait(0, 8);
  EXPECT_EQ(joins.Join(1, 0, freed), 0) << "joining again changes nothing";
  EXPECT_TRUE(freed.empty());
  EXPECT_EQ(joins.Join(0, 0, freed), -1);
  EXPECT_EQ(freed, std::vector<int>{8});
  EXPECT_EQ(joins.Join(1, 0, freed), -1);
  EXPECT_EQ(joins.Join(1, 1, freed), -1);
  EXPECT_EQ(freed, (std::vector<int>{8, 7}));
  EXPECT_EQ(joins.MissingAt(2, 0), -1);
}

// Each step has its own: the second REDUCE_GRAD of a stage belongs to the second step.
TEST(ExchangeJoins, EveryStepHasItsOwn) {
  const StageGraph graph = ChainGraph({{0, 1}});
  const Plan plan = ReadPlan("0REDUCE_GRAD,0REDUCE_GRAD\n0REDUCE_GRAD,0REDUCE_GRAD\n", "p");
  ExchangeJoins joins(plan, graph);
  std::vector<int> freed;
  EXPECT_EQ(joins.Join(0, 0, freed), 0);
  EXPECT_EQ(joins.Join(1, 0, freed), -1);
  EXPECT_EQ(joins.Join(1, 1, freed), 0);
  EXPECT_EQ(joins.Missing(0), std::vector<int>{0});
  EXPECT_EQ(joins.Join(0, 0, freed), -1);
  EXPECT_EQ(joins.Join(0, 1, freed), -1);
}

}  // namespace pipewright
