#include "plan/simulate/measure.h"

#include <algorithm>

#include "plan/actions.h"
#include "plan/simulate/memory.h"
#include "plan/simulate/rank_account.h"

namespace pipewright {

// Follows one rank, action by action.
static void MeasureMemory(const Plan& plan, int rank, const Costs& costs,
                          const std::vector<char>& recompute, RankFigures& figures) {
  const RankAccount bytes = BytesOfRank(plan, rank, costs, recompute);
  figures.held_bytes = figures.peak_bytes = bytes.start;
  RankMemory activations(0, plan.forward_only);
  for (size_t p = 0; p < bytes.actions.size(); ++p) {
    if (bytes.actions[p].most > figures.peak_bytes) {
      figures.peak_bytes = bytes.actions[p].most;
      figures.peak_position = p;
    }
    activations.Do(plan.ranks[rank][p], [](int) { return StageMemory{1, 1, 0}; });
  }
  figures.peak_activations = static_cast<int64_t>(activations.peak());
}

Figures Measure(const Plan& plan, const Costs& costs, const ActionTrace& trace,
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

std::vector<EventId> CriticalPath(const ActionTrace& trace) {
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
