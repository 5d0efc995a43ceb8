#include "plan/stage_graph.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "plan/actions.h"

namespace pipewright {

StageGraph ChainGraph(std::vector<std::vector<int>> ranks_of) {
  StageGraph graph;
  graph.stages = static_cast<int>(ranks_of.size());
  for (const auto& ranks : ranks_of)
    for (int rank : ranks) graph.ranks = std::max(graph.ranks, rank + 1);
  for (int s = 0; s + 1 < graph.stages; ++s) graph.edges.push_back({s, s + 1});
  graph.ranks_of = std::move(ranks_of);
  return graph;
}

// Finds the first action that names the stage, or else the one whose number implies it.
static std::string FirstOf(const Plan& plan, int stage) {
  std::string place;
  for (bool exactly : {true, false})
    for (size_t r = 0; r < plan.ranks.size(); ++r)
      for (size_t p = 0; p < plan.ranks[r].size(); ++p) {
        const Action& a = plan.ranks[r][p];
        int peer = IsTransfer(a.kind) ? PeerOf(a) : -1;
        bool named = a.stage == stage || a.overlap_stage == stage || peer == stage;
        bool above = std::max({a.stage, a.overlap_stage, peer}) > stage;
        if (exactly ? named : above) return PlaceText(static_cast<int>(r), p, a);
      }
  return "stage " + std::to_string(stage);
}

// Microbatch i of a stage with r replicas runs on replica i mod r, so the first r give all
// replicas.
static std::vector<std::vector<int>> PlacementOf(const Plan& plan) {
  size_t forwards = 0;
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions) forwards += HasForward(a);
  auto missing = [&](int stage) {
    return Error(FirstOf(plan, stage), "rule \"once\": no rank runs the forward of stage " +
                                           std::to_string(stage) + ", " + std::to_string(stage) +
                                           "F0");
  };
  if (plan.stages == 0) throw Error("plan", "rule \"once\": no rank computes anything");
  if (static_cast<size_t>(plan.stages) > forwards) {
    std::set<int> seen;
    for (const auto& actions : plan.ranks)
      for (const Action& a : actions)
        if (HasForward(a)) seen.insert(a.stage);
    int stage = 0;
    for (int s : seen) stage += s == stage;
    throw missing(stage);
  }
  std::vector<std::set<int>> ranks(plan.stages);
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Action& a : plan.ranks[r]) {
      if (HasForward(a)) ranks[a.stage].insert(static_cast<int>(r));
    }
  std::vector<std::vector<int>> ranks_of(plan.stages);
  for (int s = 0; s < plan.stages; ++s) {
    if (ranks[s].empty()) throw missing(s);
    ranks_of[s].assign(ranks[s].begin(), ranks[s].end());
  }
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Action& a : plan.ranks[r])
      if (HasForward(a) && a.microbatch >= 0 &&
          static_cast<size_t>(a.microbatch) < ranks[a.stage].size())
        ranks_of[a.stage][a.microbatch] = static_cast<int>(r);
  // A plan that breaks the rule may name a rank twice; then the ascending order is used.
  for (int s = 0; s < plan.stages; ++s)
    if (std::set<int>(ranks_of[s].begin(), ranks_of[s].end()) != ranks[s])
      ranks_of[s].assign(ranks[s].begin(), ranks[s].end());
  // Replicas that get no microbatch only sum gradients and step.
  std::vector<char> full(plan.stages);
  for (int s = 0; s < plan.stages; ++s)
    full[s] = ranks[s].size() == static_cast<size_t>(plan.microbatches);
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Action& a : plan.ranks[r])
      if ((a.kind == ActionKind::kReduceGrad || a.kind == ActionKind::kStep) && full[a.stage] &&
          ranks[a.stage].insert(static_cast<int>(r)).second)
        ranks_of[a.stage].push_back(static_cast<int>(r));
  return ranks_of;
}

StageGraph GraphOf(const Plan& plan) {
  StageGraph graph;
  graph.stages = plan.stages;
  graph.ranks = static_cast<int>(plan.ranks.size());
  graph.microbatches = plan.microbatches;
  graph.shared = plan.shared;
  graph.ranks_of = PlacementOf(plan);
  std::set<std::pair<int, int>> forward, backward;
  for (const auto& actions : plan.ranks) {
    std::set<std::tuple<ActionKind, int, int>> seen;  // a rank repeats few transfers many times
    for (const Action& a : actions) {
      if (!IsTransfer(a.kind)) continue;
      int peer = PeerOf(a);
      bool up = a.kind == ActionKind::kSendForward || a.kind == ActionKind::kRecvBackward;
      if (peer < 0 || peer >= plan.stages || (up ? peer <= a.stage : peer >= a.stage)) continue;
      if (!seen.insert({a.kind, a.stage, peer}).second) continue;
      if (a.kind == ActionKind::kSendForward) forward.insert({a.stage, peer});
      if (a.kind == ActionKind::kRecvForward) forward.insert({peer, a.stage});
      if (a.kind == ActionKind::kSendBackward) backward.insert({peer, a.stage});
      if (a.kind == ActionKind::kRecvBackward) backward.insert({a.stage, peer});
    }
  }
  std::set<std::pair<int, int>> all = forward;
  all.insert(backward.begin(), backward.end());
  // Adjacent stages on one rank need no transfer, and a plan without any transfer is a chain. If a
  // stage has no transfer at all, those with the adjacent stages are missing.
  std::vector<char> has_in(plan.stages), has_out(plan.stages);
  for (auto [from, to] : all) has_out[from] = has_in[to] = true;
  for (int s = 0; s + 1 < plan.stages; ++s) {
    bool local = graph.ranks_of[s] == graph.ranks_of[s + 1];
    if (all.count({s, s + 1}) || (has_out[s] && has_in[s + 1] && !local)) continue;
    all.insert({s, s + 1}), backward.insert({s, s + 1});
  }
  bool any_backward = !plan.forward_only;
  for (auto [from, to] : all)
    graph.edges.push_back({from, to, any_backward && backward.count({from, to}) > 0});
  return graph;
}

void CheckGraph(const StageGraph& graph) {
  if (graph.ranks_of.size() != static_cast<size_t>(graph.stages))
    throw Error("stage graph", "ranks are given for " + std::to_string(graph.ranks_of.size()) +
                                   " of " + std::to_string(graph.stages) + " stages");
  for (int s = 0; s < graph.stages; ++s) {
    std::string where = "stage " + std::to_string(s);
    std::set<int> seen;
    if (graph.ranks_of[s].empty()) throw Error(where, "no rank runs it");
    for (int r : graph.ranks_of[s]) {
      if (r < 0 || r >= graph.ranks)
        throw Error(where,
                    "rank " + std::to_string(r) + " is not one of " + std::to_string(graph.ranks));
      if (!seen.insert(r).second)
        throw Error(where, "rank " + std::to_string(r) + " is given twice");
    }
  }
  for (size_t i = 0; i < graph.edges.size(); ++i) {
    const StageEdge& e = graph.edges[i];
    std::string where = "edge " + std::to_string(e.from) + " to " + std::to_string(e.to);
    if (e.from < 0 || e.to >= graph.stages || e.from >= e.to)
      throw Error(where, "stages go from a lower to a higher number, 0 to " +
                             std::to_string(graph.stages - 1));
    if (i && std::pair(graph.edges[i - 1].from, graph.edges[i - 1].to) >= std::pair(e.from, e.to))
      throw Error(where, "edges are sorted and appear once");
  }
  for (const auto& group : graph.shared)
    for (size_t i = 0; i < group.size(); ++i)
      if (group[i] < 0 || group[i] >= graph.stages || (i && group[i] <= group[i - 1]))
        throw Error("#shared", "rule \"range\": a group lists stages below " +
                                   std::to_string(graph.stages) +
                                   " in ascending order, each once; " + std::to_string(group[i]) +
                                   " is not one");
}

EdgeIndex IndexEdges(const StageGraph& graph) {
  EdgeIndex index;
  index.in.resize(graph.stages);
  index.out.resize(graph.stages);
  for (size_t i = 0; i < graph.edges.size(); ++i) {
    index.out[graph.edges[i].from].push_back(static_cast<int>(i));
    index.in[graph.edges[i].to].push_back(static_cast<int>(i));
  }
  return index;
}

}  // namespace pipewright
