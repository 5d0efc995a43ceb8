// Tests lists of ranks: peers, tags, channels and the places where sums begin.
#include "runtime/exec/rank_list.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "tests/error_text.h"
#include "tests/runtime/exec/fake_model.h"

namespace pipewright {
namespace {

// Two messages have the same tag only where ranks, direction and microbatch are the same, and the
// sender and the receiver of a message agree on it.
TEST(RankList, GivesEachMessageATagOfItsOwn) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const FakeCase c = RandomCase(seed, 4);
    // By edge, direction and microbatch: tags and ends as the sender and as the receiver see them.
    std::map<std::tuple<int, bool, int>, std::set<std::tuple<int, int, int>>> sent, received;
    std::set<int> tags;
    for (int rank = 0; rank < static_cast<int>(c.plan.ranks.size()); ++rank) {
      const RankList list = MakeRankList(c.plan, c.graph, c.groups, rank, 32763);
      EXPECT_EQ(list.entries.size(), c.plan.ranks[static_cast<size_t>(rank)].size());
      for (const RankEntry& e : list.entries) {
        EXPECT_EQ(e.text, ToText(e.action));
        if (!IsTransfer(e.action.kind) || e.peer_rank < 0) continue;
        const bool back = e.action.kind == ActionKind::kSendBackward ||
                          e.action.kind == ActionKind::kRecvBackward;
        const bool sends = IsSend(e.action.kind);
        (sends ? sent : received)[{e.edge, back, e.action.microbatch}].insert(
            {e.tag, sends ? rank : e.peer_rank, sends ? e.peer_rank : rank});
        tags.insert(e.tag);
        EXPECT_GE(e.tag, 0);
        EXPECT_LT(e.tag, list.first_group_tag);
        EXPECT_EQ(e.channel >= 0, sends);
        EXPECT_EQ(e.slot >= 0, !sends);
      }
    }
    EXPECT_EQ(sent, received) << "seed " << seed;
    EXPECT_EQ(tags.size(), sent.size()) << "seed " << seed;
  }
}

StageGraph Chain() { return ChainGraph({{0}, {1}}); }
Plan TwoRanks(const std::string& first, const std::string& second) {
  return ReadPlan(first + "\n" + second + "\n", "p.csv");
}

TEST(RankList, CountsReceiveBuffersAndFillsInNumbers) {
  const Plan plan = TwoRanks("0F0,0SEND_F0,0F1,0SEND_F1", "1RECV_F0#0,1RECV_F1#1,1F0,1F1");
  const RankList sender = MakeRankList(plan, Chain(), {}, 0, 100);
  EXPECT_EQ(sender.microbatches, 2);
  EXPECT_EQ(sender.first_group_tag, 4);  // one edge, two directions, two microbatches
  EXPECT_EQ(sender.buffers, std::vector<int>{2});
  EXPECT_EQ(sender.entries[1].tag, 0);
  EXPECT_EQ(sender.entries[3].tag, 1);
  EXPECT_EQ(sender.entries[3].peer_rank, 1);
  const RankList receiver = MakeRankList(plan, Chain(), {}, 1, 100);
  EXPECT_EQ(receiver.entries[1].slot, 1);
  EXPECT_EQ(receiver.entries[1].peer_rank, 0);
}

// With room for one tag per edge and direction, microbatches share it; with less there is an error.
TEST(RankList, SharesTagsWhenThereAreFew) {
  const Plan plan = TwoRanks("0F0,0SEND_F0,0F1,0SEND_F1", "1RECV_F0,1F0,1RECV_F1,1F1");
  const RankList list = MakeRankList(plan, Chain(), {}, 0, 2);
  EXPECT_EQ(list.entries[1].tag, list.entries[3].tag);
  EXPECT_EQ(list.first_group_tag, 2);
  try {
    MakeRankList(plan, Chain(), {}, 0, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "plan: more edges and shared weights than this MPI has message tags (1)");
  }
}

std::string ListError(const Plan& plan, const StageGraph& graph,
                      const std::vector<SharedGroup>& groups, int rank) {
  return ErrorOf([&] { MakeRankList(plan, graph, groups, rank, 100); });
}

TEST(RankList, NamesTheActionThatDoesNotFit) {
  EXPECT_EQ(ListError(TwoRanks("0F0,1F0", ""), Chain(), {}, 0),
            "rank 0, action 1, 1F0: stage 1 is not on this rank");
  EXPECT_EQ(ListError(TwoRanks("0F0,5F0", ""), Chain(), {}, 0),
            "rank 0, action 1, 5F0: there are only 2 stages");
  StageGraph ends = Chain();
  ends.edges[0].gradient = false;
  EXPECT_EQ(ListError(TwoRanks("0F0", "1SEND_B0"), ends, {}, 1),
            "rank 1, action 0, 1SEND_B0: no value between these stages carries a gradient");
  ends.edges.clear();
  EXPECT_EQ(ListError(TwoRanks("0F0", "1RECV_F0"), ends, {}, 1),
            "rank 1, action 0, 1RECV_F0: no value goes between stages 0 and 1");
}

// Stages 0 and 1 of rank 0 share a weight with stage 2, and stage 0 shares another one: both sums
// begin at the last of adjacent REDUCE_GRADs, in each of two steps. A group of one needs no sum.
TEST(RankList, BeginsSumsAtTheLastReduction) {
  const StageGraph graph = ChainGraph({{0}, {0}, {1}});
  const std::vector<SharedGroup> groups = {
      {{0, 0, 0}, {1, 0, 1}, {2, 1, 2}}, {{0, 0, 0}, {2, 1, 1}}, {{1, 0, 0}}};
  const std::string step = "0REDUCE_GRAD,1REDUCE_GRAD,0STEP,1STEP";
  const RankList list =
      MakeRankList(TwoRanks(step + "," + step, "2REDUCE_GRAD"), graph, groups, 0, 100);
  const std::vector<int> both = {0, 1}, none;
  for (size_t i = 0; i < list.entries.size(); ++i)
    EXPECT_EQ(list.entries[i].groups, i % 4 == 1 ? both : none) << i;
  EXPECT_EQ(ListError(TwoRanks("0REDUCE_GRAD,0STEP,1REDUCE_GRAD,1STEP", ""), graph, groups, 0),
            "rank 0, action 1, 0STEP: STEP needs a REDUCE_GRAD before it: the stage shares a "
            "weight or has replicas");
}

// A rank exchanges the first microbatch that is not cold after it has done everything once.
TEST(RankList, ARankIsWarmOnceItHasRunEverything) {
  auto firsts_after = [](const Plan& plan, int microbatch) {
    for (const std::vector<Action>& actions : plan.ranks) {
      std::set<std::pair<ActionKind, int>> seen;
      bool exchanged = false;
      for (const Action& a : actions) {
        if (IsTransfer(a.kind))
          exchanged = exchanged || a.microbatch >= microbatch;
        else if (seen.emplace(a.kind, a.stage).second && exchanged)
          return true;
      }
    }
    return false;
  };
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
    StageGraph graph = ChainGraph({{0}, {1}, {2}});
    if (std::string(schedule) == "interleaved") graph = ChainGraph({{0}, {1}, {0}, {1}});
    // Updates come last.
    const Plan plan = ScheduleCase(schedule, graph, 6).plan;
    EXPECT_EQ(ColdMicrobatches(plan), 6) << schedule;
    EXPECT_TRUE(firsts_after(plan, 5)) << schedule;
  }
  const Plan forward =
      TwoRanks("0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2", "1RECV_F0,1RECV_F1,1F0,1RECV_F2,1F1,1F2");
  EXPECT_EQ(ColdMicrobatches(forward), 2);
  // With steps that overlap, the first update comes soon.
  const Plan plan = Unroll(AsynchronousOneForwardOneBackward(3, 2), 12);
  Plan lowered = Lower(plan, ChainGraph({{0}, {1}, {2}}));
  const int cold = ColdMicrobatches(lowered);
  EXPECT_GT(cold, 2);
  EXPECT_LT(cold, 8);
  EXPECT_FALSE(firsts_after(lowered, cold));
  EXPECT_TRUE(firsts_after(lowered, cold - 1));
}

}  // namespace
}  // namespace pipewright
