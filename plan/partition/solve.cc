#include "plan/partition/solve.h"

#include <algorithm>

#include "plan/partition/pair_links.h"

namespace pipewright {

static PartitionResult Better(const PartitionResult& found, const PartitionResult& known) {
  return found.feasible && (!known.feasible || found.objective < known.objective) ? found : known;
}

// The exact search for something better than `known`, which then is proven or replaced.
static PartitionResult Improve(const PartitionProblem& problem, const UnitGraph& graph,
                               const PartitionResult& known, const ExactOptions& exact) {
  PartitionResult found = ExactPartition(problem, graph, exact);
  PartitionResult best = Better(found, known);
  best.sets = found.sets;
  best.lower_bound = known.lower_bound;
  if (found.proven) {
    best.proven = true;
    best.lower_bound = best.feasible ? best.objective : kInfinity;
  }
  return best;
}

// Devices that only their memory tells apart are then alike.
static PartitionProblem WithoutMemory(PartitionProblem problem) {
  std::vector<DeviceClass> kinds;
  for (DeviceClass& device : problem.devices) {
    device.memory_bytes = kInfinity;
    auto same = std::find_if(kinds.begin(), kinds.end(), [&](const DeviceClass& kind) {
      return kind.host == device.host && kind.speed == device.speed && kind.link == device.link &&
             kind.numbers.empty() == device.numbers.empty();
    });
    if (same == kinds.end()) {
      kinds.push_back(device);
      continue;
    }
    same->count += device.count;
    same->numbers.insert(same->numbers.end(), device.numbers.begin(), device.numbers.end());
    std::sort(same->numbers.begin(), same->numbers.end());
  }
  problem.devices = kinds;
  return problem;
}

PartitionResult SolvePartition(const PartitionProblem& problem, const SolveOptions& options) {
  if (!problem.pair_links.empty()) return SolvePairLinks(problem, options);
  UnitGraph graph = BuildUnits(problem, ExactMerge(problem));
  int units = static_cast<int>(graph.units.size());
  PartitionResult best;
  best.lower_bound = PartitionLowerBound(problem, graph);
  if (best.lower_bound == kInfinity || units < problem.stages) {
    best.lower_bound = kInfinity;
    best.proven = true;
    return best;
  }
  best = FastPartition(problem, graph, FastOptions{});
  if (best.proven || !options.exact) return best;
  ExactOptions exact;
  exact.below = best.objective;
  exact.max_seconds = options.max_seconds;
  exact.max_sets = options.max_sets;
  best = Improve(problem, graph, best, exact);
  if (best.proven) return best;

  // Too many sets. They may be few enough where every node without compute stays with its only
  // neighbour; the optimum without memory limits, for any number of stages, is then a bound.
  UnitGraph merged = BuildUnits(problem, Merge::kParameters);
  if (static_cast<int>(merged.units.size()) == units) return best;
  PartitionResult found = FastPartition(problem, merged, FastOptions{});
  exact.below = std::min(best.objective, found.objective);
  found = Better(Improve(problem, merged, found, exact), best);
  PartitionProblem unlimited = WithoutMemory(problem);
  unlimited.stages = -1;
  UnitGraph relaxed = BuildUnits(unlimited, Merge::kParameters);
  PartitionResult bound = FastPartition(unlimited, relaxed, FastOptions{});
  exact.below = bound.objective;
  bound = Improve(unlimited, relaxed, bound, exact);
  found.lower_bound = best.lower_bound;
  if (bound.proven) found.lower_bound = std::max(found.lower_bound, bound.objective);
  found.proven = found.feasible && found.objective <= found.lower_bound * (1 + 1e-12);
  return found;
}

// The best partition that `exact` does not forbid. Most often it is close to the best of all: that
// is where to look first.
static PartitionResult NextBest(const PartitionProblem& problem, const UnitGraph& graph,
                                double objective, ExactOptions exact) {
  PartitionResult next;
  for (double factor : {1.1, 2.0, 0.0}) {
    exact.below = factor > 0 ? objective * factor : kInfinity;
    next = ExactPartition(problem, graph, exact);
    if (next.feasible || !next.proven) break;
  }
  return next;
}

Explanation ExplainPartition(const PartitionProblem& problem, const PartitionResult& result,
                             const SolveOptions& options) {
  Explanation explanation;
  if (!result.feasible) return explanation;
  for (size_t s = 0; s < result.stages.size(); ++s)
    if (explanation.stage < 0 || result.stages[s].Load() > result.stages[explanation.stage].Load())
      explanation.stage = static_cast<int>(s);
  const PartitionStage& slowest = result.stages[explanation.stage];
  explanation.binds = slowest.compute >= slowest.transfer ? "compute" : "transfer";
  bool limited = false;
  for (const DeviceClass& device : problem.devices)
    limited = limited || (!device.host && device.memory_bytes < kInfinity);
  ExactOptions exact;
  exact.max_seconds = options.max_seconds;
  exact.max_sets = options.exact ? std::min<int64_t>(options.max_sets, 1'000'000) : 20'000;
  exact.max_visits = options.exact ? 200'000'000 : 4'000'000;
  if (limited) {
    SolveOptions quick = options;
    PartitionResult free = SolvePartition(WithoutMemory(problem), quick);
    if (free.feasible && free.objective < result.objective * (1 - 1e-9))
      explanation.binds = "memory";
  }
  // Nodes that cost nothing where they are may be what the next best cuts off.
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  if (!problem.pair_links.empty()) {
    PartitionResult next = NextBestPairLinks(problem, graph, slowest.nodes, exact);
    explanation.next_best = next.objective;
    explanation.next_best_proven = next.proven;
    return explanation;
  }
  exact.forbidden = slowest.nodes;
  PartitionResult next = NextBest(problem, graph, result.objective, exact);
  UnitGraph merged;
  if (!next.proven) merged = BuildUnits(problem, ExactMerge(problem));
  if (!next.proven && merged.units.size() < graph.units.size()) {
    next = Better(NextBest(problem, merged, result.objective, exact), next);
    next.proven = result.proven && next.objective <= result.objective * (1 + 1e-12);
  }
  explanation.next_best = next.objective;
  explanation.next_best_proven = next.proven;
  return explanation;
}

}  // namespace pipewright
