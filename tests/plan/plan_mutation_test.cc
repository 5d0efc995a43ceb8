// Makes valid plans invalid, one rule at a time: each is rejected, with the rule and the place.
// Plans rejected as deadlocks hang on the blocking player; accepted plans run to the end on it.
#include <gtest/gtest.h>

#include <map>

#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/stage_graph.h"
#include "tests/error_text.h"
#include "tests/plan/plan_mutations.h"
#include "tests/plan/random_plan.h"
#include "tests/plan/schedules/blocking_player.h"

namespace pipewright {
namespace {

// Returns "" if the plan is accepted, else the message.
std::string Rejection(const Plan& plan, const StageGraph& graph) {
  return ErrorOf([&] { Validate(plan, graph); });
}

std::string RuleOf(const std::string& message) {
  size_t begin = message.find("rule \"");
  if (begin == std::string::npos) return message;
  begin += 6;
  return message.substr(begin, message.find('"', begin) - begin);
}

TEST(PlanMutation, EveryKindIsRejected) {
  std::mt19937 random(11);
  std::map<std::string, int> applied;
  for (int n = 0; n < 1200; ++n) {
    std::optional<RandomCase> c =
        MakeRandomCase(random, ScheduleNames()[random() % ScheduleNames().size()]);
    if (!c || c->forward_only) continue;
    Plan good = Lower(c->schedule, c->graph);
    for (const Mutation& mutation : Mutations()) {
      Plan bad = good;
      if (!mutation.apply(bad, c->graph, random) || bad.ranks == good.ranks) continue;
      std::string message = Rejection(bad, c->graph);
      ASSERT_NE(message, "") << mutation.name << "\n" << WritePlan(good) << "\n" << WritePlan(bad);
      std::string rules = std::string("|") + mutation.rules + "|";
      ASSERT_NE(rules.find("|" + RuleOf(message) + "|"), std::string::npos)
          << mutation.name << ": " << message << "\n"
          << WritePlan(bad);
      ++applied[mutation.name];
    }
  }
  for (const Mutation& mutation : Mutations())
    EXPECT_GT(applied[mutation.name], 20) << mutation.name;
  EXPECT_GE(applied.size(), 13u);
}

// Moves entries at random: the blocking player agrees with every verdict.
TEST(PlanMutation, DeadlocksHangAndAcceptedPlansRunThrough) {
  std::mt19937 random(5);
  int deadlocks = 0, accepted = 0;
  for (int n = 0; n < 20000 && deadlocks < 500; ++n) {
    std::optional<RandomCase> c = MakeRandomCase(random, ScheduleNames()[random() % 8]);
    if (!c || c->ranks < 2) continue;
    Plan plan = Lower(c->schedule, c->graph);
    for (int moves = Pick(random, 1, 4); moves-- > 0;) {
      int rank = Pick(random, 0, c->ranks - 1);
      int size = static_cast<int>(plan.ranks[rank].size());
      if (size < 2) continue;
      int from = Pick(random, 0, size - 1);
      int to = std::clamp(from + Pick(random, -8, 8), 0, size - 1);
      Action a = Cut(plan, {rank, from});
      Put(plan, rank, static_cast<size_t>(to), a);
    }
    std::string message = Rejection(plan, c->graph);
    if (message != "" && RuleOf(message) != "deadlock") continue;
    ++(message == "" ? accepted : deadlocks);
    ASSERT_EQ(BlockingPlayer(plan, c->graph).RunsThrough(), message == "") << message << "\n"
                                                                           << WritePlan(plan);
  }
  EXPECT_GE(deadlocks, 200);
  EXPECT_GE(accepted, 1000);
}

TEST(PlanMutation, RejectionsNamePlaceAndRule) {
  auto rejection = [](const std::string& text) -> std::string {
    return ErrorOf([&] { Validate(ReadPlan(text, "p.csv")); });
  };
  EXPECT_EQ(rejection("0F0,0SEND_F0>1\n1RECV_F0<0,1F0\n"), "");
  EXPECT_EQ(rejection("0F0\n1RECV_F0<0,1F0\n"),
            "rank 0, action 0, 0F0: rule \"transfer\": 0SEND_F0>1 is missing on this rank");
  EXPECT_EQ(rejection("0F0,0SEND_F0>1\n1F0,1RECV_F0<0\n"),
            "rank 1, action 1, 1RECV_F0<0: rule \"order\": it comes after rank 1, action 0, 1F0, "
            "which uses its data");
  EXPECT_EQ(rejection("0F0,0F0,0SEND_F0>1\n1RECV_F0<0,1F0\n"),
            "rank 0, action 1, 0F0: rule \"once\": the forward of stage 0 on microbatch 0 is "
            "already at rank 0, action 0, 0F0");
  EXPECT_EQ(rejection("0F0,0SEND_F0>1,0RECV_B0<1,0B0\n1RECV_F0<0,1F0,1B0,1SEND_B0>0\n"), "");
  EXPECT_EQ(rejection("0F0,0SEND_F0>0,0SEND_F0>1\n1RECV_F0<0,1F0\n"),
            "rank 0, action 1, 0SEND_F0>0: rule \"transfer\": no value goes between stage 0 and "
            "stage 0");
  EXPECT_EQ(rejection("0F0,0SEND_F0>1,0RECV_B0<1,0B0,0STEP\n"
                      "1RECV_F0<0,1F0,1B0,1SEND_B0>0,1STEP\n2F0,2B0,1STEP,2STEP\n"),
            "rank 1, action 1, 1F0: rule \"transfer\": 1SEND_F0>2 is missing on this rank");
  EXPECT_EQ(rejection("0F0,0F1,0B0,0B1,0STEP,1STEP\n1F0,1F1,1B0,1B1,1STEP\n"),
            "rank 0, action 0, 0F0: rule \"transfer\": 0SEND_F0>1 is missing on this rank");
  EXPECT_EQ(rejection(",\n\n"), "plan: rule \"once\": no rank computes anything");
  // A stage without a forward: the message names an action that refers to it, or a later stage.
  EXPECT_EQ(rejection("0F0,0B0\n1B0\n"),
            "rank 1, action 0, 1B0: rule \"once\": no rank runs the forward of stage 1, 1F0");
  EXPECT_EQ(
      rejection("0F0,0SEND_F0>2\n2RECV_F0<0,2F0\n"),
      "rank 0, action 1, 0SEND_F0>2: rule \"once\": no rank runs the forward of stage 1, 1F0");
  // A deleted entry is named.
  EXPECT_EQ(rejection("0F0,0F1,0B0\n"),
            "rank 0, action 1, 0F1: rule \"once\": no rank runs its backward, 0B1");
  EXPECT_EQ(rejection("0F0,0I0,0F1,0W0,0W1\n"),
            "rank 0, action 2, 0F1: rule \"once\": no rank runs its backward, 0I1");
  EXPECT_EQ(rejection("0F0,0I0,0F1,0I1,0W1\n"),
            "rank 0, action 1, 0I0: rule \"once\": it is an input gradient (I), and no rank runs "
            "its weight gradient, 0W0");
  EXPECT_EQ(rejection("0F0,0B0,0B1,0B1\n"),
            "rank 0, action 2, 0B1: rule \"once\": no rank runs 0F1, and two actions run the "
            "backward: rank 0, action 2, 0B1 and rank 0, action 3, 0B1");
  EXPECT_EQ(rejection("0F0,0W0,0I0\n"),
            "rank 0, action 1, 0W0: rule \"order\": its input gradient, 0I0, comes after it, as "
            "action 2");
  EXPECT_EQ(rejection("#shared 0,2\n0F0,0B0,0REDUCE_GRAD,0STEP\n"),
            "#shared: rule \"range\": a group lists stages below 1 in ascending order, each once; "
            "2 is not one");
  // More or fewer steps than the plan declares.
  auto steps = [&](const std::string& text) {
    std::string what = rejection(text);
    return what.substr(0, what.find('\n'));
  };
  EXPECT_EQ(steps("#steps 2\n0F0,0B0,0STEP,0F1,0B1,0STEP,0STEP\n"),
            "p.csv: rank 0, action 6, 0STEP: rule \"step\": #steps 2, but its actions make 1 of 2 "
            "microbatches");
  EXPECT_EQ(steps("#steps 3\n0F0,0B0,0STEP,0F1,0B1,0STEP\n"),
            "p.csv: rank 0, end of its 6 actions, 0STEP: rule \"step\": #steps 3, but its actions "
            "make 2 of 1 microbatches");
  EXPECT_EQ(steps("#steps 2\n0F0,0B0,0F1,0B1,0F2,0B2\n"),
            "p.csv: rank 0, action 4, 0F2: rule \"step\": #steps 2, but its actions make 1 of 3 "
            "microbatches");
  EXPECT_EQ(rejection("0F0,0SEND_F0>1,0RECV_B0<1,0B0,0STEP\n1RECV_F0<0,1F0,1B0,1SEND_B0>0\n"),
            "rank 1, end of its 4 actions, 1STEP: rule \"step\": it has 0 STEP for 1 step");
  // Each sends before it posts: this works with buffers, but never with synchronous sends.
  EXPECT_EQ(rejection("0F0,0SEND_F0>1,2RECV_F0<1,2F0\n1RECV_F0<0,1F0,1SEND_F0>2\n"), "");
  EXPECT_EQ(
      rejection("0F0,0F1,0SEND_F0>1,0SEND_F1>1,0RECV_B0<1,0B0,0RECV_B1<1,0B1\n"
                "1RECV_F0<0,1F0,1B0,1SEND_B0>0,1RECV_F1<0,1F1,1B1,1SEND_B1>0\n"),
      "rank 0, action 3, 0SEND_F1>1: rule \"deadlock\": the plan never ends: rank 0, action 3, "
      "0SEND_F1>1 waits for rank 1, action 4, 1RECV_F1<0; rank 1, action 3, 1SEND_B0>0 waits "
      "for rank 0, action 4, 0RECV_B0<1");
}

}  // namespace
}  // namespace pipewright
