// Tests the checks of messages (transfer_index.h), of their order (rendezvous.h) and of steps
// (step_legality.h) on plans written by hand.
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/lowering/rendezvous.h"
#include "plan/lowering/step_legality.h"
#include "plan/lowering/transfer_index.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

// Returns stage s on rank s; the graph does not depend on the plan and its mistakes.
const StageGraph& Chain() {
  static const StageGraph graph = ChainGraph({{0}, {1}});
  return graph;
}

TransferIndex Index(const Plan& plan, const StageGraph& graph = Chain()) {
  return IndexTransfers(plan, graph, IndexEdges(graph), IndexCompute(plan, graph));
}

template <class F>
std::string ErrorOf(F check) {
  try {
    check();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string IndexError(const std::string& text) {
  return ErrorOf([&] { Index(ReadPlan(text, "p")); });
}

std::string HangError(const std::string& text) {
  const Plan plan = ReadPlan(text, "p");
  const TransferIndex transfers = Index(plan);
  return ErrorOf([&] { CheckRendezvous(plan, Chain(), IndexEdges(Chain()), transfers); });
}

std::string StepError(const std::string& text, const StageGraph& graph = Chain()) {
  return ErrorOf([&] { CheckSteps(ReadPlan(text, "p"), graph); });
}

}  // namespace

TEST(TransferIndex, HasThePositionsOfEachMessage) {
  const TransferIndex index = Index(
      ReadPlan("0F0,0SEND_F0>1,0RECV_B0<1,0B0,0F1,0SEND_F1>1,0RECV_B1<1,0B1\n"
               "1RECV_F0<0,1RECV_F1<0,1F0,1B0,1SEND_B0>0,1F1,1B1,1SEND_B1>0\n",
               "p"));
  EXPECT_EQ(index.total, 2);
  EXPECT_EQ(index.send_forward, (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(index.recv_forward, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(index.send_backward, (std::vector<int32_t>{4, 7}));
  EXPECT_EQ(index.recv_backward, (std::vector<int32_t>{2, 6}));
}

TEST(TransferIndex, LocalDataHaveNone) {
  const StageGraph graph = ChainGraph({{0}, {0}});
  const TransferIndex index = Index(ReadPlan("0F0,1F0,1B0,0B0\n", "p"), graph);
  for (const auto* table : {&index.send_forward, &index.recv_forward, &index.send_backward})
    EXPECT_EQ(*table, std::vector<int32_t>{-1});
  const TransferIndex forward = Index(ReadPlan("0F0,1F0\n", "p"), graph);
  EXPECT_TRUE(forward.send_backward.empty() && forward.recv_backward.empty());
}

TEST(TransferIndex, EdgesAreFoundFromEitherEnd) {
  StageGraph graph = ChainGraph({{0}, {1}, {2}});
  graph.edges = {{0, 1}, {0, 2, false}, {1, 2}};
  const EdgeIndex edges = IndexEdges(graph);
  auto edge = [&](const char* text) { return EdgeOf(graph, edges, ParseAction(text, "a")); };
  EXPECT_EQ(edge("0SEND_F0>1"), 0);
  EXPECT_EQ(edge("1RECV_F0<0"), 0);
  EXPECT_EQ(edge("0RECV_B0<1"), 0);
  EXPECT_EQ(edge("0SEND_F0>2"), 1);
  EXPECT_EQ(edge("2SEND_B0>0"), -1);  // the edge has no gradient
  EXPECT_EQ(edge("2SEND_B0>1"), 2);
  EXPECT_EQ(edge("1SEND_F0>0"), -1);  // backward along an edge
}

TEST(TransferIndex, NamesTheRuleThatIsBroken) {
  const std::string one = "1RECV_F0<0,1F0,1B0,1SEND_B0>0\n";
  EXPECT_EQ(IndexError("0F0,0SEND_F0>1,0RECV_B0<1,0B0\n" + one), "");
  EXPECT_EQ(IndexError("0F0,0RECV_B0<1,0B0\n" + one),
            "rank 0, action 0, 0F0: rule \"transfer\": 0SEND_F0>1 is missing on this rank");
  EXPECT_EQ(IndexError("0F0,0SEND_F0>1,0B0\n" + one),
            "rank 0, action 2, 0B0: rule \"transfer\": 0RECV_B0<1 is missing on this rank");
  EXPECT_EQ(IndexError("0SEND_F0>1,0F0,0RECV_B0<1,0B0\n" + one),
            "rank 0, action 0, 0SEND_F0>1: rule \"order\": it comes before rank 0, action 1, 0F0, "
            "which makes its data");
  EXPECT_EQ(IndexError("0F0,0SEND_F0>1,0SEND_F0>1,0RECV_B0<1,0B0\n" + one),
            "rank 0, action 2, 0SEND_F0>1: rule \"once\": it is already at rank 0, action 1, "
            "0SEND_F0>1");
  EXPECT_EQ(IndexError("0F0,0SEND_F0>1,1RECV_F0<0,0RECV_B0<1,0B0\n" + one),
            "rank 0, action 2, 1RECV_F0<0: rule \"rank\": stage 1 runs microbatch 0 on rank 1");
}

TEST(TransferIndex, BuffersAreFreeWhenTheyAreFilled) {
  const std::string zero = "0F0,0SEND_F0>1,0F1,0SEND_F1>1\n";
  EXPECT_EQ(IndexError(zero + "1RECV_F0<0#0,1F0,1RECV_F1<0#0,1F1\n"), "");
  EXPECT_EQ(IndexError(zero + "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1F1\n"), "");
  EXPECT_EQ(IndexError(zero + "1RECV_F0<0#0,1RECV_F1<0#0,1F0,1F1\n"),
            "rank 1, action 1, 1RECV_F1<0#0: rule \"slot\": buffer 0 holds data until "
            "rank 1, action 2, 1F0");
  EXPECT_EQ(IndexError(zero + "1RECV_F1<0,1RECV_F0<0,1F0,1F1\n"),
            "rank 1, action 1, 1RECV_F0<0: rule \"channel\": rank 0 sends it before what "
            "rank 1, action 0, 1RECV_F1<0 receives");
}

TEST(Rendezvous, SendsMeetTheirReceives) {
  const std::string zero = "0F0,0SEND_F0>1,0F1,0SEND_F1>1,0RECV_B0<1,0B0,0RECV_B1<1,0B1\n";
  EXPECT_EQ(HangError(zero + "1RECV_F0<0,1RECV_F1<0,1F0,1F1,1B0,1SEND_B0>0,1B1,1SEND_B1>0\n"), "");
  // Each rank sends before it receives.
  EXPECT_EQ(HangError(zero + "1RECV_F0<0,1F0,1B0,1SEND_B0>0,1RECV_F1<0,1F1,1B1,1SEND_B1>0\n"),
            "rank 0, action 3, 0SEND_F1>1: rule \"deadlock\": the plan never ends: "
            "rank 0, action 3, 0SEND_F1>1 waits for rank 1, action 4, 1RECV_F1<0; "
            "rank 1, action 3, 1SEND_B0>0 waits for rank 0, action 4, 0RECV_B0<1");
}

TEST(StepLegality, StepsFollowTheirGradients) {
  const std::string one = "1F0,1B0,1F1,1B1,1STEP\n";
  EXPECT_EQ(StepError("0F0,0F1,0B0,0B1,0STEP\n" + one), "");
  EXPECT_EQ(StepError("0F0,0F1,0B0,0STEP,0B1\n" + one),
            "rank 0, action 4, 0B1: rule \"order\": it comes after the STEP that uses its gradient");
  EXPECT_EQ(StepError("0F0,0F1,0B0,0B1\n" + one),
            "rank 0, end of its 4 actions, 0STEP: rule \"step\": it has 0 STEP for 1 step");
  EXPECT_EQ(StepError("0F0,0F1,0B0,0B1,1STEP\n" + one),
            "rank 0, action 4, 1STEP: rule \"rank\": this rank does not run stage 1");
}

TEST(StepLegality, ReplicasSumTheirGradientsFirst) {
  const StageGraph graph = ChainGraph({{0, 1}});
  const std::string one = "0F1,0B1,0REDUCE_GRAD,0STEP\n";
  EXPECT_EQ(StepError("0F0,0B0,0REDUCE_GRAD,0STEP\n" + one, graph), "");
  EXPECT_EQ(StepError("0F0,0B0,0STEP,0REDUCE_GRAD\n" + one, graph),
            "rank 0, action 2, 0STEP: rule \"step\": the stage's REDUCE_GRAD does not come before "
            "it");
  EXPECT_EQ(StepError("0F0,0REDUCE_GRAD,0B0,0STEP\n" + one, graph),
            "rank 0, action 2, 0B0: rule \"order\": it comes after the REDUCE_GRAD that uses its "
            "gradient");
}

TEST(StepLegality, OffloadedStagesAreLoadedWhileTheyRun) {
  const StageGraph graph = ChainGraph({{0}});
  EXPECT_EQ(StepError("0LOAD,0F0,0F1,0EVICT\n", graph), "");
  EXPECT_EQ(StepError("0LOAD,0F0,0EVICT,0F1\n", graph),
            "rank 0, action 3, 0F1: rule \"load\": the weights of stage 0 are not loaded here");
  EXPECT_EQ(StepError("0LOAD,0F0,0LOAD\n", graph),
            "rank 0, action 2, 0LOAD: rule \"load\": the stage is loaded");
  EXPECT_EQ(StepError("0F0,0EVICT\n", graph),
            "rank 0, action 1, 0EVICT: rule \"load\": the stage is not loaded");
}

TEST(StepLegality, StepsOfASchedule) {
  Plan schedule = ReadPlan("0F0,0F1,0I0,0F2,0I1,0W0,0W1,0F3,0B2,0B3\n", "p");
  schedule.microbatches = 2, schedule.steps = 2;
  EXPECT_EQ(StepEnds(schedule, 0), (std::vector<int>{7, 10}));
  const StageGraph graph = ChainGraph({{0}});
  EXPECT_EQ(ErrorOf([&] { CheckScheduleSteps(schedule, graph); }),
            "rank 0, action 3, 0F2: rule \"step\": it runs after 0 steps of its stage and belongs "
            "to step 1");
  schedule = ReadPlan("0F0,0F1,0B0,0I1,0W1,0F2,0F3,0B2,0B3\n", "p");
  schedule.microbatches = 2, schedule.steps = 2;
  EXPECT_EQ(ErrorOf([&] { CheckScheduleSteps(schedule, graph); }), "");
}

}  // namespace pipewright
