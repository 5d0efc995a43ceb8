#include "plan/partition/solve.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "plan/partition/fast/lower_bound.h"
#include "plan/partition/fast/unequal_devices.h"
#include "plan/partition/link_loads.h"
#include "plan/partition/links.h"
#include "plan/partition/refine/stage_table.h"

namespace pipewright {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

// Above this number of device states, an exact search tries only a limited number of stages.
constexpr int kManyDeviceStates = 10'000;

// With many device states, an exact search visits at most this many pairs of sets times states,
// which takes about a minute.
constexpr int64_t kVisits = 20'000'000'000;
// The same limit for the explanation of a result, which should take only seconds.
constexpr int64_t kExplainVisits = 5'000'000'000;
constexpr int64_t kExplainSets = 1'000'000;
// Limits on pairs of sets for the explanation, in exact and in fast mode.
constexpr int64_t kExplainPairs = 200'000'000, kFastExplainPairs = 4'000'000;
// The limits under which the next best partition is searched, as multiples of the best objective.
constexpr double kNextLimits[] = {1.1, 2.0, kInfinity};

// Limits the exact search that ends fast mode.
constexpr int64_t kFewSets = 20'000;

static PartitionResult Better(const PartitionResult& found, const PartitionResult& known) {
  return found.feasible && (!known.feasible || found.objective < known.objective) ? found : known;
}

// Returns the problem without memory limits, with classes merged that differ only in memory.
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

static FastOptions WithEffort(double share) {
  FastOptions fast;
  if (share < 1) {
    fast.pairs = static_cast<int64_t>(static_cast<double>(fast.pairs) * (0.1 + share / 2));
  }
  return fast;
}

// Returns the problem without devices that no stage needs: as many others as there can be stages
// are at least as good.
static PartitionProblem WithoutIdleDevices(PartitionProblem problem) {
  int nodes = static_cast<int>(problem.nodes.size());
  int most = std::max(problem.stages >= 0 ? std::min(problem.stages, nodes) : nodes, 1);
  std::vector<int> better(problem.devices.size(), 0);
  for (size_t c = 0; c < problem.devices.size(); ++c)
    for (size_t o = 0; o < problem.devices.size() && problem.max_replicas == 1; ++o) {
      const DeviceClass &one = problem.devices[c], &other = problem.devices[o];
      bool as_good = !other.host && other.speed >= one.speed && other.link >= one.link &&
                     other.memory_bytes >= one.memory_bytes;
      bool same = as_good && other.speed == one.speed && other.link == one.link &&
                  other.memory_bytes == one.memory_bytes;
      if (as_good && (!same || o < c)) better[c] = std::min(better[c] + other.count, most);
    }
  for (size_t c = 0; c < problem.devices.size(); ++c) {
    DeviceClass& device = problem.devices[c];
    if (device.host) continue;
    int64_t useful = static_cast<int64_t>(most) * problem.max_replicas - better[c];
    device.count = static_cast<int>(std::min<int64_t>(device.count, useful));
    if (!device.numbers.empty()) device.numbers.resize(device.count);
  }
  return problem;
}

// Throws Error unless every device has links to and from every other.
static void CheckPairLinks(const PartitionProblem& problem) {
  size_t needed = 2;
  for (const DeviceClass& device : problem.devices) {
    if (device.host || device.count == 0) continue;
    int last = device.numbers.empty() ? device.count - 1 : device.numbers.back();
    needed = std::max(needed, static_cast<size_t>(last) + 1);
  }
  bool square = problem.pair_links.size() >= needed;
  for (const auto& row : problem.pair_links) square = square && row.size() >= needed;
  if (!square)
    throw Error("partition",
                "pair_links has " + std::to_string(problem.pair_links.size()) +
                    " rows, but needs a row and a column for every device: " +
                    std::to_string(needed) + " rows of " + std::to_string(needed) + " numbers",
                "leave pair_links empty if each device has its own link");
}

// Solves a problem whose devices have one link each, not one for each pair.
static PartitionResult Solve(const PartitionProblem& problem, const SolveOptions& options) {
  UnitGraph graph = BuildUnits(problem, Merge::kLossless), apart;
  FastOptions fast = WithEffort(options.effort);
  auto ticks = static_cast<int64_t>(options.effort * static_cast<double>(FastTicks(graph)));
  fast.ticks = &ticks;
  PartitionState start;
  if (options.start) {
    start = StagesOfResult(graph, *options.start);
    fast.start = &start, fast.fresh = false;
  }
  ExactOptions exact;
  // With a fixed number of stages, units that could be merged without loss may have to be stages of
  // their own. The optimum with merged units is then proven only if fewer stages are no better.
  bool counted = problem.stages >= 0;
  if (counted) apart = BuildUnits(problem, Merge::kNone);
  fast.fewer = exact.fewer = counted && graph.units.size() < apart.units.size();
  PartitionResult best;
  best.lower_bound = PartitionLowerBound(problem, graph, fast.fewer);
  int devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  if (best.lower_bound == kInfinity ||
      (counted && std::min(static_cast<int>(apart.units.size()), devices) < problem.stages)) {
    best.lower_bound = kInfinity;
    best.proven = true;
    return best;
  }
  best = FastPartition(problem, graph, fast);
  auto search = [&](const UnitGraph& units) {
    exact.below = best.objective;
    best = SearchBetter(problem, units, best, exact);
  };
  exact.max_seconds = options.max_seconds;
  exact.max_sets = options.max_sets;
  // With many kinds of devices, the cost of each pair of sets is the number of device states.
  if (DeviceStates(problem) > kManyDeviceStates) exact.max_visits = kVisits / DeviceStates(problem);
  if (!best.proven && options.exact) search(graph);
  if (!best.proven && fast.fewer) {
    exact.fewer = false;
    if (!options.exact) exact.max_sets = kFewSets, exact.ticks = &ticks;
    search(apart);
  }
  if (best.proven || !options.exact) return best;

  // There are too many sets. There may be few enough if every node without compute stays with its
  // only neighbor. The optimum of that without memory limits, for as many stages or fewer, is a
  // lower bound.
  UnitGraph merged = BuildUnits(problem, Merge::kParameters);
  if (merged.units.size() == graph.units.size()) return best;
  PartitionResult found = FastPartition(problem, merged, FastOptions{});
  fast.ticks = nullptr;
  exact.below = std::min(best.objective, found.objective);
  found = Better(SearchBetter(problem, merged, found, exact), best);
  PartitionProblem unlimited = WithoutMemory(problem);
  UnitGraph relaxed = BuildUnits(unlimited, Merge::kParameters);
  fast.fewer = exact.fewer = counted;
  PartitionResult bound = FastPartition(unlimited, relaxed, fast);
  exact.below = bound.objective;
  bound = SearchBetter(unlimited, relaxed, bound, exact);
  found.lower_bound = std::max(best.lower_bound, bound.lower_bound);
  found.proven = found.objective <= found.lower_bound * (1 + 1e-12);
  return found;
}

// Continues from the best partition until `seconds` after `begin`, and merges other units each
// time.
static void ImproveUntil(const PartitionProblem& problem, const UnitGraph& graph,
                         Clock::time_point begin, double seconds, PartitionResult& best) {
  FastOptions again;
  again.wide = true;
  again.fresh = false;
  for (again.seed = 1; !best.proven && best.feasible; ++again.seed) {
    const double left = seconds - std::chrono::duration<double>(Clock::now() - begin).count();
    if (left <= 0) return;
    auto ticks = static_cast<int64_t>(std::min(left * 1e9, 1e18));
    ticks = std::min(ticks, FastTicks(graph));
    PartitionState start = StagesOfResult(graph, best);
    again.ticks = &ticks;
    again.start = &start;
    again.below = best.objective * (1 + 1e-9);
    PartitionResult found = FastPartition(problem, graph, again);
    if (!found.feasible || found.objective >= best.objective * (1 - 1e-9)) continue;
    found.lower_bound = std::max(found.lower_bound, best.lower_bound);
    found.proven = found.objective <= found.lower_bound * (1 + 1e-12);
    found.sets = best.sets;
    best = found;
  }
}

PartitionResult SolvePartition(const PartitionProblem& given, const SolveOptions& options) {
  const Clock::time_point begin = Clock::now();
  if (!given.pair_links.empty()) {
    CheckPairLinks(given);
    SolveOptions once = options;  // SolvePairLinks solves many problems; each would take this time
    once.improve_seconds = 0;
    return SolvePairLinks(given, once);
  }
  const PartitionProblem problem = WithoutIdleDevices(given);
  PartitionResult best = Solve(problem, options);
  if (options.improve_seconds > 0 && best.feasible && !best.proven)
    ImproveUntil(problem, BuildUnits(problem, Merge::kNone), begin, options.improve_seconds, best);
  return best;
}

// Returns the best partition that `exact` does not forbid. It is usually close to the optimum, so
// the search begins there.
static PartitionResult NextBest(const PartitionProblem& problem, const UnitGraph& graph,
                                double objective, ExactOptions exact) {
  PartitionResult next;
  for (const double factor : kNextLimits) {
    exact.below = factor < kInfinity ? objective * factor : kInfinity;
    next = ExactPartition(problem, graph, exact);
    if (next.feasible || !next.proven) break;
  }
  return next;
}

static void FindNextBest(const PartitionProblem& problem, const UnitGraph& graph,
                         const PartitionResult& result, const std::vector<int>& forbidden,
                         ExactOptions exact, Explanation& explanation) {
  exact.forbidden = forbidden;
  DeviceSequence sequence;
  if (DeviceStates(problem) > kMostDeviceStates) {
    sequence = DevicesInTurn(problem, StagesOfResult(graph, result));
    exact.sequence = &sequence;
  }
  PartitionResult next = NextBest(problem, graph, result.objective, exact);
  if (exact.sequence) next.proven = false;
  UnitGraph merged;
  if (!next.proven) merged = BuildUnits(problem, ExactMerge(problem));
  if (!next.proven && merged.units.size() < graph.units.size()) {
    next = Better(NextBest(problem, merged, result.objective, exact), next);
    next.proven = result.proven && next.objective <= result.objective * (1 + 1e-12);
  }
  explanation.next_best = next.objective;
  explanation.next_best_proven = next.proven;
}

// Returns the least objective with one unit moved into the stage or out of it, for use if no search
// finds a next best partition.
static double NextBestByOneUnit(const PartitionProblem& problem, const UnitGraph& graph,
                                const PartitionResult& result, int stage) {
  StageTable table(problem, graph, StagesOfResult(graph, result));
  bool pairs = !problem.pair_links.empty();
  if (pairs && problem.max_replicas > 1) return kInfinity;
  std::optional<PairLoads> loads;
  if (pairs) loads.emplace(problem, result);
  double others = 0, best = kInfinity, second = 0;  // others, second: the largest other loads
  int slowest = -1;
  for (int s = 0; s < table.stages(); ++s) {
    if (s == stage) continue;
    second = std::max(second, std::min(table.load(s), others));
    if (table.load(s) > others) others = table.load(s), slowest = s;
  }
  for (int u = 0; u < static_cast<int>(graph.units.size()); ++u) {
    int from = table.units().stage_of[u];
    auto [low, high] = table.Range(u);
    if (table.size(from) == 1 || (from != stage && (stage < low || stage > high))) continue;
    for (int to = from == stage ? low : stage; to <= (from == stage ? high : stage); ++to) {
      if (to == from) continue;
      auto [one, two] = table.LoadsAfter(u, to);
      bool fits = one < kInfinity && two < kInfinity;
      double rest = slowest == from || slowest == to ? second : others;
      double value = pairs && fits ? loads->WithNodes(graph.units[u].nodes, from, to)
                                   : std::max({one, two, rest});
      best = std::min(best, value);
    }
  }
  return best;
}

Explanation ExplainPartition(const PartitionProblem& given, const PartitionResult& result,
                             const SolveOptions& options) {
  const PartitionProblem problem = given.pair_links.empty() ? WithoutIdleDevices(given) : given;
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
  exact.max_sets = options.exact ? std::min(options.max_sets, kExplainSets) : kFewSets;
  exact.max_visits = options.exact ? kExplainPairs : kFastExplainPairs;
  if (DeviceStates(problem) > kManyDeviceStates)
    exact.max_visits = std::min(exact.max_visits, kExplainVisits / DeviceStates(problem));
  if (limited) {
    SolveOptions quick = options;
    quick.improve_seconds = 0;
    PartitionResult free = SolvePartition(WithoutMemory(problem), quick);
    if (free.feasible && free.objective < result.objective * (1 - 1e-9))
      explanation.binds = "memory";
  }
  // Nodes without cost are not merged, because the next best partition may cut them off.
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  if (!problem.pair_links.empty()) {
    PartitionResult next = NextBestPairLinks(problem, graph, slowest.nodes, exact);
    explanation.next_best = next.objective;
    explanation.next_best_proven = next.proven;
  } else {
    FindNextBest(problem, graph, result, slowest.nodes, exact, explanation);
  }
  if (!explanation.next_best_proven)
    explanation.next_best = std::min(explanation.next_best,
                                     NextBestByOneUnit(problem, graph, result, explanation.stage));
  return explanation;
}

}  // namespace pipewright
