// Figures of a trace: what each rank did with its time and its memory.
#include <algorithm>

#include "plan/actions.h"
#include "plan/simulate.h"

namespace pipewright {

namespace {

// Memory of one rank, action by action.
class Memory {
 public:
  Memory(const Plan& plan, int rank, const Costs& costs, const std::vector<char>& recompute)
      : rank_(rank), forward_only_(plan.forward_only), costs_(costs), recompute_(recompute) {
    std::vector<char> held(plan.stages, 0), loaded(plan.stages, 0);
    for (const Action& a : plan.ranks[rank]) {
      if (a.stage < 0) continue;
      if (a.kind == ActionKind::kLoad) loaded[a.stage] = 1;
      if (IsCompute(a.kind) || a.kind == ActionKind::kStep || a.kind == ActionKind::kReduceGrad)
        held[a.stage] = 1;  // a replica may be without a microbatch
    }
    for (int s = 0; s < plan.stages; ++s)  // a stage that is loaded is not there from the start
      if (held[s] && !loaded[s]) bytes_ += CostsOf(costs, s, rank).weights;
    peak_bytes = bytes_;
  }

  void Do(const Action& a, size_t position) {
    double before = peak_bytes;
    Do(a);
    if (peak_bytes > before) peak_position = position;
  }

  int64_t peak_activations = 0;
  double peak_bytes = 0;
  size_t peak_position = 0;

 private:
  int rank_;
  bool forward_only_;
  const Costs& costs_;
  const std::vector<char>& recompute_;
  int64_t activations_ = 0;
  double bytes_ = 0;

  void Do(const Action& a) {
    if (a.kind == ActionKind::kLoad) Add(CostsOf(costs_, a.stage, rank_).weights);
    if (a.kind == ActionKind::kEvict) Add(-CostsOf(costs_, a.stage, rank_).weights);
    if (HasForward(a)) {
      peak_activations = std::max(peak_activations, ++activations_);
      Add(Stored(a.stage));
      if (forward_only_) Add(-Stored(a.stage)), --activations_;  // nobody comes back for it
    }
    if (HasBackward(a)) {
      int stage = BackwardStage(a);
      const StageCosts& costs = CostsOf(costs_, stage, rank_);
      Add(costs.activation - Stored(stage));  // recomputed just before
      Add(a.kind == ActionKind::kInputGrad ? costs.kept_for_W - costs.activation
                                           : -costs.activation);
      --activations_;
    }
    if (a.kind == ActionKind::kWeightGrad) Add(-CostsOf(costs_, a.stage, rank_).kept_for_W);
  }

  void Add(double bytes) { peak_bytes = std::max(peak_bytes, bytes_ += bytes); }

  double Stored(int stage) const {
    const StageCosts& costs = CostsOf(costs_, stage, rank_);
    bool again = !recompute_.empty() && recompute_[stage] && costs.recompute >= 0;
    return again ? costs.checkpoint : costs.activation;
  }
};

}  // namespace

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
    Memory memory(plan, static_cast<int>(r), costs, recompute);
    for (size_t p = 0; p < plan.ranks[r].size(); ++p) memory.Do(plan.ranks[r][p], p);
    rank.peak_activations = memory.peak_activations;
    rank.peak_bytes = memory.peak_bytes;
    rank.peak_position = memory.peak_position;
  }
  for (RankFigures& rank : figures.ranks) rank.idle = figures.makespan - rank.busy;
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
