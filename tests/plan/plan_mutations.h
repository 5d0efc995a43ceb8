// Changes a valid plan so that it breaks one rule at a time.
#pragma once
#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "plan/actions.h"
#include "plan/plan.h"

namespace pipewright {

using Cell = std::pair<int, int>;  // rank, position

inline std::vector<Cell> Find(const Plan& plan, const std::function<bool(const Action&)>& wanted) {
  std::vector<Cell> cells;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p)
      if (wanted(plan.ranks[r][p])) cells.push_back({static_cast<int>(r), static_cast<int>(p)});
  return cells;
}

inline Action Cut(Plan& plan, Cell cell) {
  auto& actions = plan.ranks[cell.first];
  Action a = actions[cell.second];
  actions.erase(actions.begin() + cell.second);
  return a;
}

inline void Put(Plan& plan, int rank, size_t position, const Action& a) {
  auto& actions = plan.ranks[rank];
  actions.insert(actions.begin() + static_cast<long>(std::min(position, actions.size())), a);
}

inline bool IsKind(const Action& a, ActionKind kind) { return a.kind == kind; }

struct Mutation {
  const char* name;
  const char* rules;  // rules that the message may name, separated by |
  // Makes the plan invalid; returns false if the change does not apply.
  std::function<bool(Plan&, const StageGraph&, std::mt19937&)> apply;
};

inline bool WithRandom(Plan& plan, std::mt19937& random,
                       const std::function<bool(const Action&)>& wanted,
                       const std::function<void(Cell)>& act) {
  std::vector<Cell> cells = Find(plan, wanted);
  if (cells.empty()) return false;
  act(cells[random() % cells.size()]);
  return true;
}

inline std::function<bool(const Action&)> Kind(ActionKind kind) {
  return [kind](const Action& a) { return IsKind(a, kind); };
}

inline size_t PositionOf(const Plan& plan, int rank,
                         const std::function<bool(const Action&)>& wanted) {
  for (size_t p = 0; p < plan.ranks[rank].size(); ++p)
    if (wanted(plan.ranks[rank][p])) return p;
  return plan.ranks[rank].size();
}

inline const std::vector<Mutation>& Mutations() {
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
               // Puts all messages of the edge into one buffer, although two are needed.
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
      {"a step on a rank without the stage", "rank|step|once",
       [](Plan& plan, const StageGraph& graph, std::mt19937& random) {
         return WithRandom(plan, random, Kind(K::kStep), [&](Cell c) {
           Action a = plan.ranks[c.first][c.second];
           for (int r = 0; r < graph.ranks; ++r)
             if (std::count(graph.ranks_of[a.stage].begin(), graph.ranks_of[a.stage].end(), r) == 0)
               return Put(plan, r, plan.ranks[r].size(), a);
         });
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

}  // namespace pipewright
