#include "plan/simulate/measure.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/actions.h"
#include "plan/simulate/memory.h"

namespace pipewright {

namespace {

// Counts the messages of a rank between their RECV and the compute that uses them. From then on
// they count as part of that compute.
class Received {
 public:
  Received(const Costs& costs, int rank) : costs_(costs), rank_(rank) {}

  void Take(const Action& recv, RankMemory& memory) {
    const bool back = recv.kind == ActionKind::kRecvBackward;
    const int from = back ? recv.stage : PeerOf(recv), to = back ? PeerOf(recv) : recv.stage;
    const EdgeCosts edge = EdgeCostsOf(costs_, from, to, rank_);
    const double bytes = back ? edge.back : edge.bytes;
    bytes_[{recv.stage, recv.microbatch, back}] += bytes;
    memory.Hold(bytes);
  }
  void Use(const Action& a, RankMemory& memory) {
    if (HasForward(a)) Give({a.stage, a.microbatch, false}, memory);
    if (HasBackward(a)) Give({BackwardStage(a), BackwardMicrobatch(a), true}, memory);
  }

 private:
  const Costs& costs_;
  const int rank_;
  std::map<std::tuple<int, int, bool>, double> bytes_;  // by stage, microbatch and direction

  void Give(const std::tuple<int, int, bool>& key, RankMemory& memory) {
    auto found = bytes_.find(key);
    if (found == bytes_.end()) return;
    memory.Hold(-found->second);
    bytes_.erase(found);
  }
};

}  // namespace

// Follows one rank, action by action.
static void MeasureMemory(const Plan& plan, int rank, const Costs& costs,
                          const std::vector<char>& recompute, RankFigures& figures) {
  std::vector<char> held(plan.stages, 0), loaded(plan.stages, 0), summed(plan.stages, 0);
  for (const Action& a : plan.ranks[rank]) {
    if (a.stage < 0) continue;
    if (a.kind == ActionKind::kLoad) loaded[a.stage] = 1;
    if (IsCompute(a.kind) || a.kind == ActionKind::kStep || a.kind == ActionKind::kReduceGrad)
      held[a.stage] = 1;  // a replica may have no microbatch
  }
  auto weights = [&](int stage) { return CostsOf(costs, stage, rank).weights; };
  auto memory = [&](int stage) {
    return MemoryOf(CostsOf(costs, stage, rank), !recompute.empty() && recompute[stage]);
  };
  for (int s = 0; s < plan.stages; ++s)  // loaded stages are not in memory from the start
    if (held[s] && !loaded[s]) figures.held_bytes += weights(s);
  RankMemory bytes(figures.held_bytes, plan.forward_only), activations(0, plan.forward_only);
  Received received(costs, rank);
  for (size_t p = 0; p < plan.ranks[rank].size(); ++p) {
    const Action& a = plan.ranks[rank][p];
    double before = bytes.peak();
    bytes.Load(a, weights);
    if (IsRecv(a.kind)) received.Take(a, bytes);
    if (IsCompute(a.kind)) received.Use(a, bytes);
    const int stage = IsCompute(a.kind) ? BackwardStage(a) : a.stage;
    bytes.Do(a, memory, !summed[stage]);
    if (a.kind == ActionKind::kStep) {
      bytes.Reach(CostsOf(costs, stage, rank).peak.step);
      if (summed[stage]) bytes.Hold(-CostsOf(costs, stage, rank).gradients);
      summed[stage] = 0;
    } else if ((HasBackward(a) && a.kind != ActionKind::kInputGrad) ||
               a.kind == ActionKind::kWeightGrad) {
      if (!summed[stage]) bytes.Hold(CostsOf(costs, stage, rank).gradients);
      summed[stage] = 1;
    }
    if (bytes.peak() > before) figures.peak_position = p;
    activations.Do(a, [](int) { return StageMemory{1, 1, 0}; });
  }
  figures.peak_bytes = bytes.peak();
  figures.peak_activations = static_cast<int64_t>(activations.peak());
}

Figures Measure(const Plan& plan, const Costs& costs, const Trace& trace,
                const SimulateOptions& options) {
  std::vector<char> recompute = options.recompute.empty() ? RecomputeOf(plan) : options.recompute;
  Figures figures;
  figures.ranks.resize(plan.ranks.size());
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    RankFigures& rank = figures.ranks[r];
    const auto& events = trace.ranks[r];
    double first_forward = -1;
    for (const TimedAction& event : events) {
      rank.busy += event.end - event.start;
      rank.last = std::max(rank.last, event.end);
      if (first_forward < 0 && HasForward(plan.ranks[r][event.action])) first_forward = event.start;
    }
    if (!events.empty()) rank.first = events.front().start;
    if (first_forward >= 0) rank.span = rank.last - first_forward;
    figures.makespan = std::max(figures.makespan, rank.last);
    figures.span = std::max(figures.span, rank.span);
    MeasureMemory(plan, static_cast<int>(r), costs, recompute, rank);
  }
  for (RankFigures& rank : figures.ranks)
    rank.idle = std::max(0.0, figures.makespan - rank.busy);
  return figures;
}

std::vector<EventId> CriticalPath(const Trace& trace) {
  EventId last{-1, -1};
  double end = 0;
  for (size_t r = 0; r < trace.ranks.size(); ++r)
    if (!trace.ranks[r].empty() && (last.rank < 0 || trace.ranks[r].back().end > end)) {
      end = trace.ranks[r].back().end;
      last = {static_cast<int>(r), static_cast<int>(trace.ranks[r].size()) - 1};
    }
  std::vector<EventId> path;
  while (last.event >= 0) {
    path.push_back(last);
    const TimedAction& event = trace.ranks[last.rank][last.event];
    last = {event.cause_rank, event.cause};
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace pipewright
