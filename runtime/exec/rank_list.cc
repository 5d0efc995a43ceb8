#include "runtime/exec/rank_list.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/plan_text.h"
#include "plan/receive_buffers.h"

namespace pipewright {

namespace {

bool Holds(const StageGraph& graph, int stage, int rank) {
  const auto& ranks = graph.ranks_of[stage];
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

int FindEdge(const StageGraph& graph, int from, int to) {
  for (size_t e = 0; e < graph.edges.size(); ++e)
    if (graph.edges[e].from == from && graph.edges[e].to == to) return static_cast<int>(e);
  return -1;
}

void CheckCompute(const StageGraph& graph, int rank, int stage, int microbatch,
                  const std::string& place) {
  if (stage < 0 || stage >= graph.stages)
    throw Error(place, "there are only " + std::to_string(graph.stages) + " stages");
  bool here = microbatch < 0 ? Holds(graph, stage, rank) : RankOf(graph, stage, microbatch) == rank;
  if (!here)
    throw Error(place, "stage " + std::to_string(stage) + " is not on this rank" +
                           (Holds(graph, stage, rank) ? " for this microbatch" : ""));
}

void FillTransfer(const StageGraph& graph, int rank, int tags_per_edge, RankEntry& entry,
                  const std::string& place) {
  const Action& a = entry.action;
  bool backward = a.kind == ActionKind::kSendBackward || a.kind == ActionKind::kRecvBackward;
  int peer = PeerOf(a);
  bool downstream = a.kind == ActionKind::kSendForward || a.kind == ActionKind::kRecvBackward;
  entry.edge = downstream ? FindEdge(graph, a.stage, peer) : FindEdge(graph, peer, a.stage);
  if (entry.edge < 0)
    throw Error(place, "no value goes between stages " + std::to_string(std::min(peer, a.stage)) +
                           " and " + std::to_string(std::max(peer, a.stage)));
  if (backward && !graph.edges[entry.edge].gradient)
    throw Error(place, "no value between these stages carries a gradient");
  int other = RankOf(graph, peer, a.microbatch);
  entry.peer_rank = other == rank ? -1 : other;
  entry.tag = (entry.edge * 2 + backward) * tags_per_edge + a.microbatch % tags_per_edge;
}

// Returns true if the plan leaves out the number of a receive buffer.
bool LacksSlots(const std::vector<Action>& actions) {
  return std::any_of(actions.begin(), actions.end(),
                     [](const Action& a) { return IsRecv(a.kind) && a.slot < 0; });
}

// Looks up the buffer of each receive, groups the sends into channels, and counts the receive
// buffers of each.
void PlaceBuffers(const Plan& plan, const StageGraph& graph, int rank, RankList& list) {
  using Key = std::tuple<int, int, int, bool>;  // receiver's rank and stage, sender's stage, backward
  std::map<Key, int> buffers, channels;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Action& a : plan.ranks[r]) {
      if (!IsRecv(a.kind) || RankOf(graph, PeerOf(a), a.microbatch) != rank) continue;
      int& most = buffers[{static_cast<int>(r), a.stage, PeerOf(a),
                           a.kind == ActionKind::kRecvBackward}];
      most = std::max(most, a.slot + 1);
    }
  for (size_t i = 0; i < list.entries.size(); ++i)
    list.entries[i].slot = plan.ranks[static_cast<size_t>(rank)][i].slot;
  for (RankEntry& entry : list.entries) {
    const Action& a = entry.action;
    if (!IsSend(a.kind) || entry.peer_rank < 0) continue;
    const Key key{entry.peer_rank, PeerOf(a), a.stage, a.kind == ActionKind::kSendBackward};
    auto [at, fresh] = channels.emplace(key, static_cast<int>(list.buffers.size()));
    if (fresh) list.buffers.push_back(std::max(buffers[key], 1));
    entry.channel = at->second;
  }
}

// Determines where each group's exchange begins and checks that no stage steps before.
void PlaceGroups(const std::vector<SharedGroup>& groups, int rank, RankList& list) {
  auto& entries = list.entries;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::set<int> stages;
    for (const SharedHolder& holder : groups[g])
      if (holder.rank == rank) stages.insert(holder.stage);
    if (stages.empty() || groups[g].size() < 2) continue;
    std::set<int> left = stages, stepped;
    for (size_t i = 0; i < entries.size(); ++i) {
      const Action& a = entries[i].action;
      if (!stages.count(a.stage)) continue;
      if (a.kind == ActionKind::kReduceGrad) {
        if (!stepped.empty()) left = stages, stepped.clear();  // belongs to the next step
        if (!left.erase(a.stage) || !left.empty()) continue;
        size_t last = i;
        while (last + 1 < entries.size() &&
               entries[last + 1].action.kind == ActionKind::kReduceGrad)
          ++last;
        entries[last].groups.push_back(static_cast<int>(g));
      } else if (a.kind == ActionKind::kStep) {
        if (!left.empty() || !stepped.insert(a.stage).second)
          throw Error(
              PlaceText(rank, i, a),
              "STEP needs a REDUCE_GRAD before it: the stage shares a weight or has replicas");
      }
    }
  }
}

}  // namespace

int ColdMicrobatches(const Plan& plan) {
  int cold = 0;
  for (const std::vector<Action>& actions : plan.ranks) {
    std::set<std::pair<ActionKind, int>> seen;  // with the stage
    int before = 0;                             // microbatches with a message so far
    for (const Action& a : actions) {
      if (IsTransfer(a.kind)) {
        before = std::max(before, a.microbatch + 1);
        continue;
      }
      bool first = seen.emplace(a.kind, a.stage).second;
      if (a.kind == ActionKind::kOverlap)
        first = seen.emplace(ActionKind::kBackward, a.overlap_stage).second || first;
      if (first) cold = std::max(cold, before);
    }
  }
  return cold;
}

RankList MakeRankList(const Plan& plan, const StageGraph& graph,
                      const std::vector<SharedGroup>& groups, int rank, int max_tag) {
  RankList list;
  list.edges = list.gradients = IndexEdges(graph);
  for (auto* side : {&list.gradients.in, &list.gradients.out})
    for (std::vector<int>& edges : *side)
      std::erase_if(edges, [&](int e) { return !graph.edges[e].gradient; });

  // Every rank must choose the same tags, so this looks at the whole plan.
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions)
      list.microbatches = std::max({list.microbatches, a.microbatch + 1, a.overlap_microbatch + 1});
  list.cold_microbatches = ColdMicrobatches(plan);
  int64_t channels = 2 * static_cast<int64_t>(graph.edges.size());
  // `max_tag` already excludes the reserved tags of the transport.
  int64_t room = int64_t{max_tag} - static_cast<int64_t>(groups.size());
  int64_t per_edge = std::max(list.microbatches, 1);
  if (channels > 0) per_edge = std::min(per_edge, room / channels);
  if (per_edge < 1 || room < 0)
    throw Error("plan", "more edges and shared weights than this MPI has message tags (" +
                            std::to_string(max_tag) + ")");
  list.first_group_tag = static_cast<int>(channels * per_edge);

  const std::vector<Action>& actions = plan.ranks.at(rank);
  list.entries.reserve(actions.size());
  for (size_t i = 0; i < actions.size(); ++i) {
    RankEntry entry;
    entry.action = actions[i];
    entry.text = ToText(actions[i]);
    std::string place = PlaceText(rank, i, actions[i]);
    CheckCompute(graph, rank, actions[i].stage, actions[i].microbatch, place);
    if (actions[i].kind == ActionKind::kOverlap)
      CheckCompute(graph, rank, actions[i].overlap_stage, actions[i].overlap_microbatch, place);
    if (IsTransfer(actions[i].kind))
      FillTransfer(graph, rank, static_cast<int>(per_edge), entry, place);
    list.entries.push_back(std::move(entry));
  }
  if (std::any_of(plan.ranks.begin(), plan.ranks.end(), LacksSlots)) {
    Plan numbered = plan;
    NumberSlots(numbered);
    PlaceBuffers(numbered, graph, rank, list);
  } else {
    PlaceBuffers(plan, graph, rank, list);
  }
  PlaceGroups(groups, rank, list);
  return list;
}

}  // namespace pipewright
