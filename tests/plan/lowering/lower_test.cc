#include "plan/lowering/lower.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/compute_index.h"
#include "plan/lowering/validate.h"
#include "plan/plan_text.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/compute_times.h"
#include "plan/stage_graph.h"

namespace pipewright {

TEST(Lower, TwoRanks) {
  StagePlacement placement = ParsePlacement("loop", 2, 2);
  Plan plan = Lower(MakeSchedule("1f1b", 2, 2, 2, placement), ChainGraph(placement));
  EXPECT_EQ(WritePlan(plan),
            "0RECV_B0<1#0,0F0,0SEND_F0>1,0F1,0SEND_F1>1,0B0,0RECV_B1<1#0,0B1,0STEP\n"
            "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1B0,1SEND_B0>0,1F1,1B1,1SEND_B1>0,1STEP\n");
  Validate(plan, ChainGraph(placement));
  Validate(ReadPlan(WritePlan(plan), "p"));
}

TEST(Lower, SkipsAndFanOut) {
  StageGraph graph = ChainGraph({{0}, {1}, {2}, {0}});
  graph.edges = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3, false}, {2, 3}};
  Plan plan = Lower(MakeSchedule("1f1b", 3, 4, 2, graph.ranks_of), graph);
  EXPECT_EQ(
      WritePlan(plan),
      "3RECV_F0<1#0,3RECV_F1<1#1,3RECV_F0<2#0,3RECV_F1<2#1,0RECV_B0<2#0,0RECV_B0<1#0,0RECV_B1<2#1,"
      "0F0,0SEND_F0>1,0SEND_F0>2,0F1,0SEND_F1>1,0SEND_F1>2,3F0,3B0,3SEND_B0>2,3F1,3B1,3SEND_B1>2,"
      "0B0,0RECV_B1<1#0,0B1,0STEP,3STEP\n"
      "1RECV_F0<0#0,1RECV_F1<0#1,1RECV_B0<2#0,1F0,1SEND_F0>2,1SEND_F0>3,1F1,1SEND_F1>2,"
      "1SEND_F1>3,1B0,1RECV_B1<2#0,1SEND_B0>0,1B1,1SEND_B1>0,1STEP\n"
      "2RECV_F0<0#0,2RECV_F1<0#1,2RECV_F0<1#0,2RECV_F1<1#1,2RECV_B0<3#0,2F0,2SEND_F0>3,2F1,"
      "2SEND_F1>3,2B0,2RECV_B1<3#0,2SEND_B0>0,2SEND_B0>1,2B1,2SEND_B1>0,2SEND_B1>1,2STEP\n");
  Validate(plan, graph);
}

namespace {

// Returns when each compute of a plan ends, by rank (F, I, W take 1, B 2, a pair 3), if a message
// passes once it is posted and its sender has reached it. Empty: the plan hangs, or some sender
// reached a message no later than its receiver, so that the data would arrive late.
std::vector<std::vector<int>> BlockingEnds(const Plan& plan, const StageGraph& graph) {
  std::vector<std::vector<int>> ends(plan.ranks.size());
  std::vector<size_t> at(plan.ranks.size());
  std::vector<int> clock(plan.ranks.size());
  bool waited = false;
  using Message = std::tuple<bool, int, int, int>;  // backward, from, to, microbatch
  std::map<Message, int> posted, sent;
  std::map<std::tuple<bool, int, int>, int> done;
  auto go = [&](size_t r) {
    const Action& a = plan.ranks[r][at[r]];
    int peer = IsTransfer(a.kind) ? PeerOf(a) : -1;
    if (IsRecv(a.kind)) {
      posted[{a.kind == ActionKind::kRecvBackward, peer, a.stage, a.microbatch}] = clock[r];
    } else if (IsSend(a.kind)) {
      Message m{a.kind == ActionKind::kSendBackward, a.stage, peer, a.microbatch};
      if (!posted.count(m)) return false;
      waited |= posted[m] >= clock[r];
      sent[m] = clock[r] = std::max(clock[r], posted[m]);
    } else if (IsCompute(a.kind)) {
      int start = clock[r];
      auto there = [&](bool backward, int from, int to, int i) {
        bool here = RankOf(graph, from, i) == static_cast<int>(r);
        auto own = done.find({backward, from, i});
        auto other = sent.find({backward, from, to, i});
        if (here ? own == done.end() : other == sent.end()) return false;
        start = std::max(start, here ? own->second : other->second);
        return true;
      };
      for (const StageEdge& e : graph.edges) {
        if (HasForward(a) && e.to == a.stage && !there(false, e.from, e.to, a.microbatch))
          return false;
        if (HasBackward(a) && e.gradient && e.from == BackwardStage(a) &&
            !there(true, e.to, e.from, BackwardMicrobatch(a)))
          return false;
      }
      clock[r] = start + (a.kind == ActionKind::kOverlap    ? 3
                          : a.kind == ActionKind::kBackward ? 2
                                                            : 1);
      if (HasForward(a)) done[{false, a.stage, a.microbatch}] = clock[r];
      if (HasBackward(a)) done[{true, BackwardStage(a), BackwardMicrobatch(a)}] = clock[r];
      ends[r].push_back(clock[r]);
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < at.size(); ++r)
      while (at[r] < plan.ranks[r].size() && go(r)) ++at[r], moved = true;
  }
  for (size_t r = 0; r < at.size(); ++r)
    if (at[r] < plan.ranks[r].size() || waited) return {};
  return ends;
}

// Calls try_it(actions) with the RECVs of one edge of a rank at all places that keep their order,
// each before its compute, with at most `most` of them waiting for their computes at once.
template <typename Try>
void EveryPlace(const std::vector<Action>& actions, const Action& like, size_t most, Try try_it) {
  std::vector<Action> others, recvs;
  for (const Action& a : actions)
    (a.kind == like.kind && a.stage == like.stage && PeerOf(a) == PeerOf(like) ? recvs : others)
        .push_back(a);
  bool backward = like.kind == ActionKind::kRecvBackward;
  std::vector<size_t> uses, place(recvs.size(), 0);
  for (const Action& recv : recvs)
    for (size_t i = 0; i < others.size(); ++i) {
      const Action& a = others[i];
      if (backward ? HasBackward(a) && BackwardStage(a) == like.stage &&
                         BackwardMicrobatch(a) == recv.microbatch
                   : HasForward(a) && a.stage == like.stage && a.microbatch == recv.microbatch)
        uses.push_back(i);
    }
  ASSERT_EQ(uses.size(), recvs.size());
  std::function<void(size_t)> set = [&](size_t n) {
    if (n == recvs.size()) {
      std::vector<Action> list;
      size_t next = 0;
      for (size_t i = 0; i <= others.size(); ++i) {
        for (; next < recvs.size() && place[next] == i; ++next) list.push_back(recvs[next]);
        if (i < others.size()) list.push_back(others[i]);
      }
      return try_it(list);
    }
    for (place[n] = n ? place[n - 1] : 0; place[n] <= uses[n]; ++place[n]) {
      size_t held = 1;
      for (size_t i = 0; i < n; ++i) held += uses[i] >= place[n];
      if (held <= most) set(n + 1);
    }
  };
  set(0);
}

}  // namespace

// No message is late; with one buffer fewer on any edge, one would be, wherever its receives were.
TEST(Lower, TheLeastSlots) {
  int edges = 0, several = 0;
  auto check = [&](const std::string& name, const StageGraph& graph, int microbatches) {
    Plan schedule = MakeSchedule(name, graph.ranks, graph.stages, microbatches, graph.ranks_of);
    Plan plan = Lower(schedule, graph);
    std::vector<std::vector<int>> ends = BlockingEnds(plan, graph), unit;
    for (const auto& list : UnitEnds(schedule, graph))
      unit.emplace_back(list.begin(), list.end());
    ASSERT_EQ(ends, unit) << name << "\n" << WritePlan(plan);
    for (size_t r = 0; r < plan.ranks.size(); ++r) {
      std::map<std::tuple<ActionKind, int, int>, std::pair<Action, int>> slots;
      for (const Action& a : plan.ranks[r]) {
        if (!IsRecv(a.kind)) continue;
        auto& [like, most] = slots[{a.kind, a.stage, PeerOf(a)}];
        like = a, most = std::max(most, a.slot + 1);
      }
      for (const auto& [edge, found] : slots) {
        ++edges;
        if (found.second == 1) continue;
        ++several;
        Plan other = plan;
        EveryPlace(plan.ranks[r], found.first, static_cast<size_t>(found.second) - 1,
                   [&](const std::vector<Action>& actions) {
                     other.ranks[r] = actions;
                     EXPECT_NE(BlockingEnds(other, graph), unit) << name << ": one slot less does\n"
                                                                 << WritePlan(other);
                   });
      }
    }
  };
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2", "bfs", "zb1p"})
    for (int m : {1, 2, 4}) {
      check(name, ChainGraph({{0}, {1}}), m);
      check(name, ChainGraph({{0}, {1}, {0}}), m);
      check(name, ChainGraph({{0, 1}, {2}}), m);
      StageGraph skip = ChainGraph({{0}, {1}, {2}});
      skip.edges = {{0, 1}, {0, 2}, {1, 2, false}};
      check(name, skip, m);
    }
  check("dualpipev", ChainGraph({{0}, {1}, {1}, {0}}), 4);
  EXPECT_GT(edges, 100);
  EXPECT_GT(several, 20);
}

TEST(Lower, EverySmallPipelineIsValidAndReturnsFromItsText) {
  for (const char* name : {"gpipe", "1f1b"})
    for (int p = 1; p < 5; ++p)
      for (int s = p; s < 9; ++s)
        for (int m = 1; m < 9; ++m)
          for (const char* v : {"loop", "v"}) {
            StagePlacement placement = ParsePlacement(v, p, s);
            StageGraph graph = ChainGraph(placement);
            Plan plan = Lower(MakeSchedule(name, p, s, m, placement), graph);
            Validate(plan, graph);
            EXPECT_EQ(WritePlan(ReadPlan(WritePlan(plan), "p")), WritePlan(plan));
            Validate(ReadPlan(WritePlan(plan), "p"));
            Validate(Lower(MakeSchedule(name, p, s, m, placement, {.forward_only = true}), graph),
                     graph);
          }
}

TEST(Lower, ReplicasAndSharedWeights) {
  StageGraph graph = ChainGraph({{0, 1, 2, 3}, {4, 5, 6}, {7}, {0}});
  graph.shared = {{0, 3}, {1, 2}};
  for (int m = 1; m < 30; ++m) {
    Plan plan = Lower(MakeSchedule("1f1b", 8, 4, m, graph.ranks_of), graph);
    if (m == 1) {
      EXPECT_EQ(WritePlan(plan),
                "#shared 0,3\n#shared 1,2\n"
                "3RECV_F0<2#0,0RECV_B0<1#0,0F0,0SEND_F0>1,3F0,3B0,3SEND_B0>2,0B0,0REDUCE_GRAD,"
                "3REDUCE_GRAD,0STEP,3STEP\n"
                "0REDUCE_GRAD,0STEP\n0REDUCE_GRAD,0STEP\n0REDUCE_GRAD,0STEP\n"
                "1RECV_F0<0#0,1RECV_B0<2#0,1F0,1SEND_F0>2,1B0,1SEND_B0>0,1REDUCE_GRAD,1STEP\n"
                "1REDUCE_GRAD,1STEP\n1REDUCE_GRAD,1STEP\n"
                "2RECV_F0<1#0,2RECV_B0<3#0,2F0,2SEND_F0>3,2B0,2SEND_B0>1,2REDUCE_GRAD,2STEP\n");
    }
    Validate(plan, graph);
  }
}

TEST(Lower, StepsThatMingleAreRefused) {
  for (auto [text, wrong] :
       {std::pair{"0F0,0F1,0B0,0STEP,0B1,0STEP", "rank 0, action 1, 0F1: rule \"step\""},
        {"0F0,0B0,0F1@0,0STEP,0B1@1,0STEP", "rule \"version\""},
        {"0F0,0B0,0STEP,0F1,0B1,0STEP", ""}}) {
    Plan plan = ReadPlan(text, "p");
    std::string said;
    try {
      ValidateSchedule(plan, GraphOf(plan));
    } catch (const Error& e) {
      said = e.what();
    }
    EXPECT_NE(said.find(wrong), std::string::npos) << text << said;
    EXPECT_EQ(said.empty(), *wrong == '\0') << text << said;
  }
}

}  // namespace pipewright
