#include "plan/plan_text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/read_file.h"
#include "tests/error_text.h"

namespace pipewright {

static std::string Golden(const std::string& name) {
  return ReadFile(TEST_DIR "/data/schedules/" + name);
}

TEST(PlanText, EveryByteReturns) {
  const std::string texts[] = {
      Golden("dualpipev_4rank_10mb.csv"),
      Golden("zb1p_2rank_2stagep_compute.csv"),
      "0F0,0SEND_F0>2,0RECV_B0<2#1,0B0@3,0REDUCE_GRAD,0STEP\n\n2RECV_F0<0#0,2F0,2B0,2SEND_B0>0\n",
      "0F0,,0F1,\r\n,,\r\n,1F0",
      "0F0",
      "00F01, 0F2,0F3 \n",
      "0UNSHARD,0F0,0RESHARD,0LOAD,0EVICT",
      "1F0,1B0 ,1W0,2I0\n2B0,2W1",
      "(0F1;1B0)OVERLAP_F_B@2\n",
      "\n",
      "\n\n0F0",
  };
  for (const std::string& text : texts) EXPECT_EQ(WritePlan(ReadPlan(text, "p.csv")), text);
}

TEST(PlanText, CellsBecomeActions) {
  Plan plan = ReadPlan("2SEND_F5>4#1@3,(2F5;1B3)OVERLAP_F_B,,4RECV_F5<2", "p.csv");
  ASSERT_EQ(plan.ranks.size(), 1u);
  ASSERT_EQ(plan.ranks[0].size(), 3u);
  EXPECT_EQ(plan.ranks[0][0], (Action{ActionKind::kSendForward, 2, 5, 4, 1, 3, -1, -1}));
  EXPECT_EQ(plan.ranks[0][1], (Action{ActionKind::kOverlap, 2, 5, -1, -1, -1, 1, 3}));
  EXPECT_EQ(plan.ranks[0][2], (Action{ActionKind::kRecvForward, 4, 5, 2, -1, -1, -1, -1}));
  EXPECT_EQ(plan.stages, 5);
  EXPECT_EQ(plan.microbatches, 6);
  EXPECT_FALSE(plan.forward_only);
}

TEST(PlanText, OlderZb1pReadsBAsInputGradient) {
  Plan plan = ReadPlan(Golden("zb1p_2rank_2stagep_compute.csv"), "zb1p.csv");
  EXPECT_EQ(ToText(plan.ranks[0][4]), "2I0");
  ASSERT_EQ(plan.notes.size(), 1u);
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions) EXPECT_NE(a.kind, ActionKind::kBackward);
  // A spelling that no longer fits its action is dropped.
  plan.layout.spellings = {{0, 0, "007F0"}};
  EXPECT_EQ(WritePlan(plan), Golden("zb1p_2rank_2stagep_compute.csv"));
}

TEST(PlanText, FindsEveryMalformedCell) {
  const std::string text = "0F0,0X1,0B0\n1F0,,1Q0,1B0,F\n";
  std::vector<Error> mistakes;
  ReadPlan(text, "plan.csv", &mistakes);
  std::vector<std::string> places;
  for (const Error& mistake : mistakes) {
    const std::string what = mistake.what();
    places.push_back(what.substr(0, what.find(": rule")));
  }
  EXPECT_EQ(places, (std::vector<std::string>{"plan.csv:1:5: rank 0, action 1",
                                              "plan.csv:2:6: rank 1, action 1",
                                              "plan.csv:2:14: rank 1, action 3"}));
  try {
    ReadPlan(text, "plan.csv");
    FAIL() << "the plan was read";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), mistakes[0].what());
  }
  std::vector<Error> none;
  EXPECT_EQ(ReadPlan("0F0,0B0\n", "plan.csv", &none).ranks.size(), 1u);
  EXPECT_TRUE(none.empty());
}

TEST(PlanText, ErrorsNameThePlace) {
  auto error = [](const std::string& text) -> std::string {
    const std::string what = ErrorOf([&] { ReadPlan(text, "p.csv"); });
    return what.substr(0, what.find('\n'));
  };
  EXPECT_EQ(
      error("0F0\n0F1,2RECVF5"),
      "p.csv:2:5: rank 1, action 1: rule \"text\": \"2RECVF5\" is not an action: unknown kind "
      "\"RECVF\" "
      "(did you mean \"RECV_F\"?)");
  const std::string first = "p.csv:1:1: rank 0, action 0: rule \"text\": ";
  EXPECT_EQ(error("F5"), first + "\"F5\" is not an action: it does not begin with a stage");
  EXPECT_EQ(error("2F"), first + "\"2F\" is not an action: the microbatch is missing");
  EXPECT_EQ(error("2STEP1"), first + "\"2STEP1\" is not an action: STEP has no microbatch");
  EXPECT_EQ(error("2F5>4"), first + "\"2F5>4\" is not an action: \">4\" is too much");
  EXPECT_EQ(error("2SEND_F5>"), first + "\"2SEND_F5>\" is not an action: a stage must follow >");
  EXPECT_EQ(error("(2F5;1F3)OVERLAP_F_B"),
            first +
                "\"(2F5;1F3)OVERLAP_F_B\" is not an action: a pair is a forward and a full "
                "backward");
  EXPECT_EQ(error("99999999999F1"), first + "\"99999999999F1\" has a number above 100000000");
  EXPECT_EQ(error(""), "p.csv: no ranks");
}

}  // namespace pipewright
