#include "plan/compute_index.h"

#include <set>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

// Returns the places of all `wanted` actions.
template <typename Wanted>
std::vector<std::string> Places(const Plan& plan, Wanted wanted) {
  std::vector<std::string> places;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p)
      if (wanted(plan.ranks[r][p]))
        places.push_back(PlaceText(static_cast<int>(r), p, plan.ranks[r][p]));
  return places;
}

bool SpeaksOf(const Action& a, int stage, int microbatch) {
  bool forward = a.stage == stage && a.microbatch == microbatch &&
                 (IsCompute(a.kind) || IsTransfer(a.kind));
  return forward || (HasBackward(a) && BackwardStage(a) == stage &&
                     BackwardMicrobatch(a) == microbatch);
}

// Finds, without a table, the first stage and microbatch with too few actions.
Error TooFew(const Plan& plan, const StageGraph& graph) {
  std::set<std::pair<int, int>> seen;
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions)
      if (HasForward(a)) seen.insert({a.stage, a.microbatch});
  int stage = 0, microbatch = 0;
  for (auto [s, m] : seen) {
    if (s != stage || m != microbatch) break;
    if (++microbatch == plan.steps * plan.microbatches) ++stage, microbatch = 0;
  }
  const int total = plan.steps * plan.microbatches;
  const std::string missing = std::to_string(stage) + "F" + std::to_string(microbatch);
  auto own = Places(plan, [&](const Action& a) { return SpeaksOf(a, stage, microbatch); });
  auto backward = Places(plan, [&](const Action& a) {
    return HasBackward(a) && BackwardStage(a) == stage && BackwardMicrobatch(a) == microbatch;
  });
  if (backward.size() > 1)
    return Error(backward[0], "rule \"once\": no rank runs " + missing +
                                  ", and two actions run the backward: " + backward[0] + " and " +
                                  backward[1]);
  if (!own.empty()) return Error(own[0], "rule \"once\": no rank runs its forward, " + missing);
  // If only one action has the last microbatch, that action is the mistake.
  auto last = Places(plan, [&](const Action& a) {
    return a.microbatch == total - 1 || a.overlap_microbatch == total - 1;
  });
  if (last.size() == 1)
    return Error(last[0], "rule \"once\": only because of this action the plan has " +
                              Counted(total, "microbatch") + ", and no rank runs " + missing);
  int rank = graph.ranks_of[stage].empty() ? 0 : RankOf(graph, stage, microbatch);
  return Error("rank " + std::to_string(rank) + ", end of its " +
                   std::to_string(plan.ranks[rank].size()) + " actions",
               "rule \"once\": no rank runs its forward, " + missing);
}

struct Indexer {
  const Plan& plan;
  const StageGraph& graph;
  ComputeIndex& index;

  void Put(std::vector<ComputePlace>& table, const char* what, int stage, int microbatch,
           ComputePlace place) {
    auto where = [&](const ComputePlace& at) {
      return PlaceText(at.rank, at.position, plan.ranks[at.rank][at.position]);
    };
    if (stage < 0 || stage >= index.stages || microbatch < 0 || microbatch >= index.total)
      throw Error(where(place), "rule \"range\": the plan has " + std::to_string(index.stages) +
                                    " stages and " + std::to_string(index.total) +
                                    " microbatches");
    if (table.empty()) table.resize(static_cast<size_t>(index.stages) * index.total);
    int rank = RankOf(graph, stage, microbatch);
    if (rank != place.rank)
      throw Error(where(place), "rule \"rank\": stage " + std::to_string(stage) +
                                    " runs microbatch " + std::to_string(microbatch) +
                                    " on rank " + std::to_string(rank));
    ComputePlace& entry = table[index.At(stage, microbatch)];
    if (entry.rank >= 0)
      throw Error(where(place), "rule \"once\": the " + std::string(what) + " of stage " +
                                    std::to_string(stage) + " on microbatch " +
                                    std::to_string(microbatch) + " is already at " + where(entry));
    entry = place;
  }

  void CheckOrder(const std::vector<ComputePlace>& first, const std::vector<ComputePlace>& second,
                  size_t i, const char* what) {
    if (second.empty() || second[i].rank < 0) return;
    const ComputePlace& place = second[i];
    const Action& action = plan.ranks[place.rank][place.position];
    if (first[i].position >= place.position)
      throw Error(PlaceText(place.rank, place.position, action),
                  "rule \"order\": its " + std::string(what) + ", " +
                      ToText(plan.ranks[first[i].rank][first[i].position]) +
                      ", comes after it, as action " + std::to_string(first[i].position));
  }
};

}  // namespace

ComputeIndex IndexCompute(const Plan& plan, const StageGraph& graph) {
  ComputeIndex index;
  index.stages = plan.stages;
  index.total = plan.steps * plan.microbatches;
  if (plan.stages != graph.stages)
    throw Error("plan", "it has " + std::to_string(plan.stages) + " stages, the graph " +
                            std::to_string(graph.stages));
  if (plan.ranks.size() != static_cast<size_t>(graph.ranks))
    throw Error("plan", "it has " + std::to_string(plan.ranks.size()) + " ranks, the graph " +
                            std::to_string(graph.ranks));
  size_t computes = 0;
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions) computes += HasForward(a);
  if (computes < static_cast<size_t>(index.stages) * index.total) throw TooFew(plan, graph);

  Indexer indexer{plan, graph, index};
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p) {
      const Action& a = plan.ranks[r][p];
      ComputePlace place{static_cast<int32_t>(r), static_cast<int32_t>(p)};
      if (HasForward(a)) indexer.Put(index.forward, "forward", a.stage, a.microbatch, place);
      if (HasBackward(a))
        indexer.Put(index.backward, "backward", BackwardStage(a), BackwardMicrobatch(a), place);
      if (a.kind == ActionKind::kWeightGrad)
        indexer.Put(index.weight_grad, "weight gradient", a.stage, a.microbatch, place);
    }
  // Entries are distinct, so the table is full once there are as many forwards as entries.
  for (size_t i = 0; !index.backward.empty() && i < index.backward.size(); ++i) {
    auto where = [&](const ComputePlace& at) {
      return PlaceText(at.rank, at.position, plan.ranks[at.rank][at.position]);
    };
    // "3B1"
    auto entry = [&](const char* kind) {
      return std::to_string(i / static_cast<size_t>(index.total)) + kind +
             std::to_string(i % static_cast<size_t>(index.total));
    };
    const ComputePlace& b = index.backward[i];
    if (b.rank < 0) {
      const bool halves = !index.weight_grad.empty() && index.weight_grad[i].rank >= 0;
      throw Error(where(index.forward[i]),
                  "rule \"once\": no rank runs its backward, " + entry(halves ? "I" : "B"));
    }
    bool split = plan.ranks[b.rank][b.position].kind == ActionKind::kInputGrad;
    bool weight = !index.weight_grad.empty() && index.weight_grad[i].rank >= 0;
    if (split != weight)
      throw Error(where(b), split ? "rule \"once\": it is an input gradient (I), and no rank runs "
                                    "its weight gradient, " +
                                        entry("W")
                                  : "rule \"once\": it is a full backward (B), but there is also " +
                                        entry("W"));
    indexer.CheckOrder(index.forward, index.backward, i, "forward");
    indexer.CheckOrder(index.backward, index.weight_grad, i, "input gradient");
  }
  if (index.backward.empty())
    for (const ComputePlace& w : index.weight_grad)
      if (w.rank >= 0)
        throw Error(PlaceText(w.rank, w.position, plan.ranks[w.rank][w.position]),
                    "rule \"once\": the plan has weight gradients (W) and no input gradients (I)");
  return index;
}

}  // namespace pipewright
