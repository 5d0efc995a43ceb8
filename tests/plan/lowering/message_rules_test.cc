// Tests the checks of messages (transfer_index.h), of their order (rendezvous.h) and of steps
// (step_legality.h) on plans written by hand.
#include <gtest/gtest.h>

#include "plan/lowering/rendezvous.h"
#include "plan/lowering/step_legality.h"
#include "plan/lowering/transfer_index.h"
#include "plan/plan_text.h"
#include "tests/error_text.h"

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

TEST(TransferIndex, LocalDataHaveNoTransfers) {
  const StageGraph graph = ChainGraph({{0}, {0}});
  const TransferIndex index = Index(ReadPlan("0F0,1F0,1B0,0B0\n", "p"), graph);
  for (const auto* table :
       {&index.send_forward, &index.recv_forward, &index.send_backward, &index.recv_backward})
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

struct Rule {
  std::string plan;
  std::string error;  // "" if the plan is accepted
};

TEST(TransferIndex, NamesTheRuleThatIsBroken) {
  const std::string zero = "0F0,0SEND_F0>1,0RECV_B0<1,0B0\n";
  const std::string one = "1RECV_F0<0,1F0,1B0,1SEND_B0>0\n";
  for (const Rule& rule : std::vector<Rule>{
           {zero + one, ""},
           {"0F0,0RECV_B0<1,0B0\n" + one,
            "rank 0, action 0, 0F0: rule \"transfer\": 0SEND_F0>1 is missing on this rank"},
           {zero + "1F0,1B0,1SEND_B0>0\n",
            "rank 1, action 0, 1F0: rule \"transfer\": 1RECV_F0<0 is missing on this rank"},
           {zero + "1RECV_F0<0,1F0,1B0\n",
            "rank 1, action 2, 1B0: rule \"transfer\": 1SEND_B0>0 is missing on this rank"},
           {"0F0,0SEND_F0>1,0B0\n" + one,
            "rank 0, action 2, 0B0: rule \"transfer\": 0RECV_B0<1 is missing on this rank"},
           {"0F0,0SEND_F0>1,0SEND_B0>1,0RECV_B0<1,0B0\n" + one,
            "rank 0, action 2, 0SEND_B0>1: rule \"transfer\": no gradient goes between stage 0 and "
            "stage 1"},
           {zero + "1RECV_F0<0,1F0,1SEND_F0>0,1B0,1SEND_B0>0\n",
            "rank 1, action 2, 1SEND_F0>0: rule \"transfer\": no value goes between stage 1 and "
            "stage 0"},
           {"0F0,0SEND_F0>1,0RECV_B0<1\n1RECV_F0<0,1F0\n",
            "rank 0, action 2, 0RECV_B0<1: rule \"transfer\": no gradient goes between stage 0 and "
            "stage 1"},
           {"0SEND_F0>1,0F0,0RECV_B0<1,0B0\n" + one,
            "rank 0, action 0, 0SEND_F0>1: rule \"order\": it comes before rank 0, action 1, 0F0, "
            "which makes its data"},
           {zero + "1RECV_F0<0,1F0,1SEND_B0>0,1B0\n",
            "rank 1, action 2, 1SEND_B0>0: rule \"order\": it comes before rank 1, action 3, 1B0, "
            "which makes its data"},
           {"0F0,0SEND_F0>1,0B0,0RECV_B0<1\n" + one,
            "rank 0, action 3, 0RECV_B0<1: rule \"order\": it comes after rank 0, action 2, 0B0, "
            "which uses its data"},
           {"0F0,0SEND_F0>1,0SEND_F0>1,0RECV_B0<1,0B0\n" + one,
            "rank 0, action 2, 0SEND_F0>1: rule \"once\": it is already at rank 0, action 1, "
            "0SEND_F0>1"},
           {"0F0,0SEND_F0>1,1RECV_F0<0,0RECV_B0<1,0B0\n" + one,
            "rank 0, action 2, 1RECV_F0<0: rule \"rank\": stage 1 runs microbatch 0 on rank 1"},
       })
    EXPECT_EQ(IndexError(rule.plan), rule.error) << rule.plan;
}

TEST(TransferIndex, StagesOfOneRankNeedNoMessages) {
  const StageGraph graph = ChainGraph({{0}, {0}});
  auto error = [&](const std::string& text) {
    return ErrorOf([&] { Index(ReadPlan(text, "p"), graph); });
  };
  EXPECT_EQ(
      error("0F0,0SEND_F0>1,1F0,1B0,0B0\n"),
      "rank 0, action 1, 0SEND_F0>1: rule \"transfer\": stage 1 is on the same rank and takes "
      "its data without one");
  EXPECT_EQ(error("1F0,0F0,1B0,0B0\n"),
            "rank 0, action 0, 1F0: rule \"order\": it needs 0F0, which comes later on the same "
            "rank");
  EXPECT_EQ(error("0F0,1F0,0B0,1B0\n"),
            "rank 0, action 2, 0B0: rule \"order\": it needs 1B0, which comes later on the same "
            "rank");
}

TEST(TransferIndex, BuffersAreFreeWhenTheyAreFilled) {
  const std::string zero = "0F0,0SEND_F0>1,0F1,0SEND_F1>1\n";
  const std::string one = "1RECV_F0<0,1F0,1B0,1SEND_B0>0,1RECV_F1<0,1F1,1B1,1SEND_B1>0\n";
  for (const Rule& rule : std::vector<Rule>{
           {zero + "1RECV_F0<0#0,1F0,1RECV_F1<0#0,1F1\n", ""},
           {zero + "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1F1\n", ""},
           {zero + "1RECV_F0<0#0,1RECV_F1<0#0,1F0,1F1\n",
            "rank 1, action 1, 1RECV_F1<0#0: rule \"slot\": buffer 0 holds data until "
            "rank 1, action 2, 1F0"},
           {zero + "1RECV_F0<0#0,1RECV_F1<0#2,1F0,1F1\n",
            "rank 1, action 1, 1RECV_F1<0#2: rule \"range\": there are never more buffers of an "
            "edge than microbatches (2)"},
           {zero + "1RECV_F1<0,1RECV_F0<0,1F0,1F1\n",
            "rank 1, action 1, 1RECV_F0<0: rule \"channel\": rank 0 sends it before what "
            "rank 1, action 0, 1RECV_F1<0 receives"},
           {"0F0,0SEND_F0>1,0F1,0SEND_F1>1,0RECV_B0<1#0,0RECV_B1<1#1,0B0,0B1\n" + one, ""},
           {"0F0,0SEND_F0>1,0F1,0SEND_F1>1,0RECV_B0<1#1,0RECV_B1<1#1,0B0,0B1\n" + one,
            "rank 0, action 5, 0RECV_B1<1#1: rule \"slot\": buffer 1 holds data until "
            "rank 0, action 6, 0B0"},
           {"0F0,0SEND_F0>1,0F1,0SEND_F1>1,0RECV_B1<1,0RECV_B0<1,0B0,0B1\n" + one,
            "rank 0, action 5, 0RECV_B0<1: rule \"channel\": rank 1 sends it before what "
            "rank 0, action 4, 0RECV_B1<1 receives"},
       })
    EXPECT_EQ(IndexError(rule.plan), rule.error) << rule.plan;
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

TEST(Rendezvous, RanksMeetInExchangesOfGradients) {
  const StageGraph graph = ChainGraph({{0, 1}});
  auto error = [&](const std::string& text) {
    const Plan plan = ReadPlan(text, "p");
    const TransferIndex transfers = Index(plan, graph);
    return ErrorOf([&] { CheckRendezvous(plan, graph, IndexEdges(graph), transfers); });
  };
  EXPECT_EQ(error("0F0,0B0,0REDUCE_GRAD\n0F1,0B1,0REDUCE_GRAD\n"), "");
  EXPECT_EQ(error("0F0,0B0,0REDUCE_GRAD\n0F1,0B1\n"),
            "rank 0, action 2, 0REDUCE_GRAD: rule \"deadlock\": the plan never ends: "
            "rank 0, action 2, 0REDUCE_GRAD waits for the gradients of rank 1");
}

TEST(StepLegality, StepsFollowTheirGradients) {
  const std::string zero = "0F0,0F1,0B0,0B1", one = "1F0,1B0,1F1,1B1,1STEP\n";
  for (const Rule& rule : std::vector<Rule>{
           {zero + ",0STEP\n" + one, ""},
           {"0F0,0F1,0B0,0STEP,0B1\n" + one,
            "rank 0, action 4, 0B1: rule \"order\": it comes after the STEP that uses its "
            "gradient"},
           {zero + "\n" + one,
            "rank 0, end of its 4 actions, 0STEP: rule \"step\": it has 0 STEP for 1 step"},
           {"0F0,0B0,0STEP,0STEP\n1F0,1B0,1STEP\n",
            "rank 0, action 3, 0STEP: rule \"once\": the stage has one already"},
           {zero + ",1STEP\n" + one,
            "rank 0, action 4, 1STEP: rule \"rank\": this rank does not run stage 1"},
           {zero + ",1REDUCE_GRAD,0STEP\n" + one,
            "rank 0, action 4, 1REDUCE_GRAD: rule \"rank\": this rank does not run stage 1"},
           {"0F0,0F1,0STEP\n1F0,1F1\n",
            "rank 0, action 2, 0STEP: rule \"once\": no rank runs a backward, whose gradients it "
            "uses"},
           {"0F0,0F1,0B0,0B1,0STEP,0F2\n" + one,
            "rank 0, action 5, 0F2: rule \"step\": it runs after 1 steps of its stage and belongs "
            "to step 0"},
       })
    EXPECT_EQ(StepError(rule.plan), rule.error) << rule.plan;
}

// Every stage that shares a weight or has replicas sums its gradients before it steps.
TEST(StepLegality, GradientsAreSummedFirst) {
  const StageGraph replicas = ChainGraph({{0, 1}});
  StageGraph shared = ChainGraph({{0}, {1}});
  shared.shared = {{0, 1}};
  const std::string replica = "0F1,0B1,0REDUCE_GRAD,0STEP\n", one = "1F0,1B0,1REDUCE_GRAD,1STEP\n";
  struct Summed : Rule {
    const StageGraph* graph;
  };
  for (const Summed& rule : std::vector<Summed>{
           {{"0F0,0B0,0REDUCE_GRAD,0STEP\n" + replica, ""}, &replicas},
           {{"0F0,0B0,0STEP,0REDUCE_GRAD\n" + replica,
             "rank 0, action 2, 0STEP: rule \"step\": the stage's REDUCE_GRAD does not come before "
             "it"},
            &replicas},
           {{"0F0,0B0,0STEP\n" + replica,
             "rank 0, action 2, 0STEP: rule \"step\": the stage's REDUCE_GRAD does not come before "
             "it"},
            &replicas},
           {{"0F0,0B0,0REDUCE_GRAD\n" + replica,
             "rank 0, end of its 3 actions, 0STEP: rule \"step\": it has 0 STEP for 1 step"},
            &replicas},
           {{"0F0,0REDUCE_GRAD,0B0,0STEP\n" + replica,
             "rank 0, action 2, 0B0: rule \"order\": it comes after the REDUCE_GRAD that uses its "
             "gradient"},
            &replicas},
           {{"0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD,0STEP\n" + replica,
             "rank 0, action 3, 0REDUCE_GRAD: rule \"once\": the stage has one already"},
            &replicas},
           {{"0F0,0B0,0REDUCE_GRAD,0STEP\n" + one, ""}, &shared},
           {{"0F0,0B0,0REDUCE_GRAD,0STEP\n1F0,1B0,1STEP\n",
             "rank 1, action 2, 1STEP: rule \"step\": the stage's REDUCE_GRAD does not come before "
             "it"},
            &shared},
       })
    EXPECT_EQ(StepError(rule.plan, *rule.graph), rule.error) << rule.plan;
}

// The sum is made at the last REDUCE_GRAD of the rank.
TEST(Messages, StepsOfAWeightOnOneRankFollowAllItsSums) {
  StageGraph graph = ChainGraph({{0}, {1}, {0}});
  graph.shared = {{0, 2}};
  const std::string one = "1F0,1B0,1STEP\n", backward = "0F0,2F0,2B0,2REDUCE_GRAD,";
  EXPECT_EQ(StepError(backward + "0B0,0REDUCE_GRAD,2STEP,0STEP\n" + one, graph), "");
  EXPECT_EQ(
      StepError(backward + "2STEP,0B0,0REDUCE_GRAD,0STEP\n" + one, graph),
      "rank 0, action 4, 2STEP: rule \"step\": REDUCE_GRAD of stage 0, which shares a weight, "
      "does not come before it");
}

TEST(StepLegality, BackwardsUseTheWeightsOfTheirForwards) {
  const StageGraph graph = ChainGraph({{0}});
  EXPECT_EQ(StepError("0F0@0,0I0@0,0W0@0,0STEP\n", graph), "");
  EXPECT_EQ(StepError("0F0@1,0B0@1,0STEP\n", graph),
            "rank 0, action 0, 0F0@1: rule \"version\": the stage has made 0 steps, version 1 does "
            "not exist yet");
  EXPECT_EQ(StepError("0F0@0,0B0@1,0STEP\n", graph),
            "rank 0, action 1, 0B0@1: rule \"version\": its forward used version 0");
  EXPECT_EQ(StepError("0F0@0,0I0@0,0W0,0STEP\n", graph),
            "rank 0, action 2, 0W0: rule \"version\": its forward used version 0");
  EXPECT_EQ(StepError("0F0,0B0@0,0STEP\n", graph),
            "rank 0, action 1, 0B0@0: rule \"version\": its forward used version -1");
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
  // The second backward has the weights loaded, so that the first needs them too.
  EXPECT_EQ(StepError("0LOAD,0F0,0F1,0EVICT,0B0,0LOAD,0B1,0EVICT\n", graph),
            "rank 0, action 4, 0B0: rule \"load\": the weights of stage 0 are not loaded here");
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
