// Good plans made bad, one rule at a time: each is rejected, with the rule and the place. What is
// rejected as a deadlock hangs on the blocking player; what is accepted runs through on it.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "plan/lower.h"
#include "plan/plan_text.h"
#include "plan/stage_graph.h"
#include "plan/steps.h"
#include "plan/validate.h"
#include "tests/plan/blocking_player.h"
#include "tests/plan/random_plan.h"

namespace pipewright {
namespace {

using Cell = std::pair<int, int>;  // rank, position

// "" when the plan is accepted, else the message.
std::string Rejection(const Plan& plan, const StageGraph& graph) {
  try {
    Validate(plan, graph);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string RuleOf(const std::string& message) {
  size_t begin = message.find("rule \"");
  if (begin == std::string::npos) return message;
  begin += 6;
  return message.substr(begin, message.find('"', begin) - begin);
}

std::vector<Cell> Find(const Plan& plan, const std::function<bool(const Action&)>& wanted) {
  std::vector<Cell> cells;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p)
      if (wanted(plan.ranks[r][p])) cells.push_back({static_cast<int>(r), static_cast<int>(p)});
  return cells;
}

Action Cut(Plan& plan, Cell cell) {
  auto& actions = plan.ranks[cell.first];
  Action a = actions[cell.second];
  actions.erase(actions.begin() + cell.second);
  return a;
}

void Put(Plan& plan, int rank, size_t position, const Action& a) {
  auto& actions = plan.ranks[rank];
  actions.insert(actions.begin() + static_cast<long>(std::min(position, actions.size())), a);
}

bool IsKind(const Action& a, ActionKind kind) { return a.kind == kind; }

struct Mutation {
  const char* name;
  const char* rules;  // those that may be named, separated by |
  // Makes the plan bad; false where it does not apply.
  std::function<bool(Plan&, const StageGraph&, std::mt19937&)> apply;
};

bool WithRandom(Plan& plan, std::mt19937& random, const std::function<bool(const Action&)>& wanted,
                const std::function<void(Cell)>& act) {
  std::vector<Cell> cells = Find(plan, wanted);
  if (cells.empty()) return false;
  act(cells[random() % cells.size()]);
  return true;
}

std::function<bool(const Action&)> Kind(ActionKind kind) {
  return [kind](const Action& a) { return IsKind(a, kind); };
}

size_t PositionOf(const Plan& plan, int rank, const std::function<bool(const Action&)>& wanted) {
  for (size_t p = 0; p < plan.ranks[rank].size(); ++p)
    if (wanted(plan.ranks[rank][p])) return p;
  return plan.ranks[rank].size();
}

const std::vector<Mutation>& Mutations() {
  using K = ActionKind;
  static const std::vector<Mutation> all = {
      {"a compute is missing", "once|order|range",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsCompute(a.kind); },
             [&](Cell c) { Cut(plan, c); });
       }},
      {"a compute comes twice", "once|order",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsCompute(a.kind); },
             [&](Cell c) {
               Action a = plan.ranks[c.first][c.second];
               Put(plan, c.first, c.second + 1 + random() % 3, a);
             });
       }},
      {"a compute is on another rank", "rank",
       [](Plan& plan, const StageGraph& graph, std::mt19937& random) {
         if (graph.ranks < 2) return false;
         return WithRandom(plan, random, Kind(K::kForward), [&](Cell c) {
           Action a = Cut(plan, c);
           Put(plan, (c.first + 1) % graph.ranks, c.second, a);
         });
       }},
      {"a backward before its forward", "order",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random,
             [](const Action& a) { return IsKind(a, K::kBackward) || IsKind(a, K::kInputGrad); },
             [&](Cell c) {
               Action a = Cut(plan, c);
               Put(plan, c.first,
                   PositionOf(plan, c.first,
                              [&](const Action& b) {
                                return HasForward(b) && b.stage == a.stage &&
                                       b.microbatch == a.microbatch;
                              }),
                   a);
             });
       }},
      {"W before I", "order",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kWeightGrad), [&](Cell c) {
           Action a = Cut(plan, c);
           Put(plan, c.first,
               PositionOf(plan, c.first,
                          [&](const Action& b) {
                            return IsKind(b, K::kInputGrad) && b.stage == a.stage &&
                                   b.microbatch == a.microbatch;
                          }),
               a);
         });
       }},
      {"a full backward and a W", "once",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kInputGrad),
                           [&](Cell c) { plan.ranks[c.first][c.second].kind = K::kBackward; });
       }},
      {"an input gradient without W", "once",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kBackward),
                           [&](Cell c) { plan.ranks[c.first][c.second].kind = K::kInputGrad; });
       }},
      {"a microbatch that is none", "range",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return a.microbatch >= 0; },
             [&](Cell c) {
               plan.ranks[c.first][c.second].microbatch =
                   plan.steps * plan.microbatches + static_cast<int>(random() % 9);
             });
       }},
      {"a stage that is none", "range",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action&) { return true; },
             [&](Cell c) {
               plan.ranks[c.first][c.second].stage = plan.stages + static_cast<int>(random() % 9);
             });
       }},
      {"a send is missing", "transfer",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsSend(a.kind); },
             [&](Cell c) { Cut(plan, c); });
       }},
      {"a receive is missing", "transfer",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsRecv(a.kind); },
             [&](Cell c) { Cut(plan, c); });
       }},
      {"a transfer comes twice", "once|order|slot",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsTransfer(a.kind); },
             [&](Cell c) {
               Action a = plan.ranks[c.first][c.second];
               Put(plan, c.first, random() % (plan.ranks[c.first].size() + 1), a);
             });
       }},
      {"a send to a stage that takes nothing", "transfer|range|rank",
       [](Plan& plan, const StageGraph& graph, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsSend(a.kind); },
             [&](Cell c) {
               Action& a = plan.ranks[c.first][c.second];
               std::set<int> peers;
               for (const StageEdge& e : graph.edges) {
                 if (e.from == a.stage) peers.insert(e.to);
                 if (e.to == a.stage) peers.insert(e.from);
               }
               a.peer = 0;
               while (peers.count(a.peer)) ++a.peer;
             });
       }},
      {"a send on the rank of another stage", "rank|transfer",
       [](Plan& plan, const StageGraph& graph, std::mt19937& random) {
         if (graph.ranks < 2) return false;
         return WithRandom(
             plan, random, [](const Action& a) { return IsSend(a.kind); },
             [&](Cell c) {
               Action a = Cut(plan, c);
               Put(plan, (c.first + 1) % graph.ranks, plan.ranks[0].size(), a);
             });
       }},
      {"a send before what it sends", "order",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsSend(a.kind); },
             [&](Cell c) {
               Action a = Cut(plan, c);
               bool forward = IsKind(a, K::kSendForward);
               Put(plan, c.first,
                   PositionOf(plan, c.first,
                              [&](const Action& b) {
                                return forward ? HasForward(b) && b.stage == a.stage &&
                                                     b.microbatch == a.microbatch
                                               : HasBackward(b) && BackwardStage(b) == a.stage &&
                                                     BackwardMicrobatch(b) == a.microbatch;
                              }),
                   a);
             });
       }},
      {"a receive behind what uses it", "order",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsRecv(a.kind); },
             [&](Cell c) {
               Action a = Cut(plan, c);
               Put(plan, c.first, plan.ranks[c.first].size(), a);
             });
       }},
      {"two receives of a channel change places", "channel|order|slot",
       [](Plan& plan, const StageGraph& graph, std::mt19937& random) {
         std::vector<std::pair<Cell, Cell>> pairs;
         for (size_t r = 0; r < plan.ranks.size(); ++r) {
           std::map<int, Cell> last;
           for (size_t p = 0; p < plan.ranks[r].size(); ++p) {
             const Action& a = plan.ranks[r][p];
             if (!IsRecv(a.kind)) continue;
             int source = RankOf(graph, PeerOf(a), a.microbatch);
             Cell cell{static_cast<int>(r), static_cast<int>(p)};
             if (last.count(source)) pairs.push_back({last[source], cell});
             last[source] = cell;
           }
         }
         if (pairs.empty()) return false;
         auto [a, b] = pairs[random() % pairs.size()];
         std::swap(plan.ranks[a.first][a.second], plan.ranks[b.first][b.second]);
         return true;
       }},
      {"a buffer still in use", "slot",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random, [](const Action& a) { return IsRecv(a.kind) && a.slot > 0; },
             [&](Cell c) {
               // All of the edge in one buffer: two were needed.
               Action a = plan.ranks[c.first][c.second];
               for (Action& b : plan.ranks[c.first])
                 if (b.kind == a.kind && b.stage == a.stage && b.peer == a.peer) b.slot = 0;
             });
       }},
      {"a step is missing", "step",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         if (Find(plan, Kind(K::kStep)).size() < 2) return false;
         return WithRandom(plan, random, Kind(K::kStep), [&](Cell c) { Cut(plan, c); });
       }},
      {"a step before the last gradient", "order|step",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random,
             [](const Action& a) { return IsKind(a, K::kBackward) || IsKind(a, K::kWeightGrad); },
             [&](Cell c) {
               int stage = plan.ranks[c.first][c.second].stage;
               size_t at = PositionOf(plan, c.first, [&](const Action& b) {
                 return IsKind(b, K::kStep) && b.stage == stage;
               });
               Action step = Cut(plan, {c.first, static_cast<int>(at)});
               Put(plan, c.first, c.second, step);
             });
       }},
      {"gradients are not summed", "step",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kReduceGrad), [&](Cell c) { Cut(plan, c); });
       }},
      {"gradients are summed after the step", "step",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kReduceGrad), [&](Cell c) {
           Action a = Cut(plan, c);
           Put(plan, c.first, plan.ranks[c.first].size(), a);
         });
       }},
      {"a backward on other weights than its forward", "version",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(
             plan, random,
             [](const Action& a) { return IsKind(a, K::kBackward) || IsKind(a, K::kInputGrad); },
             [&](Cell c) { plan.ranks[c.first][c.second].version = 0; });
       }},
      {"weights that are not there yet", "version",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kForward),
                           [&](Cell c) { plan.ranks[c.first][c.second].version = 5; });
       }},
      {"weights that are not loaded", "load",
       [](Plan& plan, const StageGraph&, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kForward), [&](Cell c) {
           Action load = plan.ranks[c.first][c.second];
           load.kind = K::kLoad, load.microbatch = -1;
           Put(plan, c.first, c.second + 1, load);
         });
       }},
  };
  return all;
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

// Moves at random: whatever the verdict, the blocking player agrees.
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
    try {
      Validate(ReadPlan(text, "p.csv"));
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(rejection("0F0,0SEND_F0>1\n1RECV_F0<0,1F0\n"), "accepted");
  EXPECT_EQ(rejection("0F0\n1RECV_F0<0,1F0\n"),
            "rank 0, action 0, 0F0: rule \"transfer\": 0SEND_F0>1 is missing on this rank");
  EXPECT_EQ(rejection("0F0,0SEND_F0>1\n1F0,1RECV_F0<0\n"),
            "rank 1, action 1, 1RECV_F0<0: rule \"order\": it stands behind rank 1, action 0, 1F0, "
            "which uses its data");
  EXPECT_EQ(rejection("0F0,0F0,0SEND_F0>1\n1RECV_F0<0,1F0\n"),
            "rank 0, action 1, 0F0: rule \"once\": the forward of stage 0 on microbatch 0 stands "
            "already at rank 0, action 0, 0F0");
  EXPECT_EQ(rejection("0F0,0SEND_F0>1,0RECV_B0<1,0B0\n1RECV_F0<0,1F0,1B0,1SEND_B0>0\n"),
            "accepted");
  // Each sends before it posts: fine with buffers, never with synchronous sends.
  EXPECT_EQ(rejection("0F0,0SEND_F0>1,2RECV_F0<1,2F0\n1RECV_F0<0,1F0,1SEND_F0>2\n"), "accepted");
  EXPECT_EQ(
      rejection("0F0,0F1,0SEND_F0>1,0SEND_F1>1,0RECV_B0<1,0B0,0RECV_B1<1,0B1\n"
                "1RECV_F0<0,1F0,1B0,1SEND_B0>0,1RECV_F1<0,1F1,1B1,1SEND_B1>0\n"),
      "rank 0, action 3, 0SEND_F1>1: rule \"deadlock\": the plan never ends: rank 0, action 3, "
      "0SEND_F1>1 waits for rank 1, action 4, 1RECV_F1<0; rank 1, action 3, 1SEND_B0>0 waits "
      "for rank 0, action 4, 0RECV_B0<1");
}

}  // namespace
}  // namespace pipewright
