#include "plan/partition/fast/fast.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/partition/exact/exact.h"
#include "plan/partition/exact/ideals.h"
#include "plan/partition/fast/lower_bound.h"
#include "plan/partition/fast/multilevel.h"
#include "plan/partition/fast/orders.h"
#include "plan/partition/fast/sequence_dp.h"
#include "plan/partition/fast/unequal_devices.h"
#include "plan/partition/fast/windows.h"
#include "plan/partition/refine/refine.h"

namespace pipewright {

// Shares of the effort. Each part gets at most its share of the initial effort and no more than is
// left. Parts that end sooner leave the rest to later ones.
constexpr double kLevelsShare = 0.4;  // a partition from coarser graphs
constexpr double kExactShare = 0.3;   // the exact search of a narrow graph
constexpr double kLastShare = 0.05;   // kept for the parts after orders and coarser graphs

// With more device states than this, sequences of devices are tried instead: the time to cut an
// order grows with the number of states.
constexpr int64_t kCutStates = 100;
constexpr int64_t kCutStatesWithHosts = 2'000;

// The range of ExactSets: a graph with more sets is not narrow.
constexpr int64_t kMinSets = 1'000, kMaxSets = 20'000;
// If no partition is known, these multiples of the lower bound are tried first as limits: a tighter
// limit makes the search faster.
constexpr double kLimits[] = {1.01, 1.1, 1.5, 3.0};
constexpr size_t kAtOnceUnits = 40;  // narrow graphs of at most this size skip coarser graphs

// The effort in ticks of about a nanosecond: 0.85 s for graphs of up to 20,000 units and pins
// (GraphSize), and 15 us more for each one beyond that.
constexpr int64_t kBaseTicks = 850'000'000, kBaseSize = 20'000, kTicksPerSize = 15'000;
constexpr int64_t kOrderTicks = 150;  // per unit and pin, to make an order
constexpr int kOrderMoves = 12;       // refinement steps per order, as a multiple of `pairs`

constexpr int kRuns = 20;      // partitions from coarser graphs, while effort is left
constexpr int kPlainRuns = 6;  // the first runs; later ones merge units at random

// Returns true if there are so many device states that sequences of devices are tried instead. The
// limit is higher with CPUs, which have no good place in a sequence.
static bool ManyKinds(const PartitionProblem& problem) {
  int kinds = 0;
  bool host = false;
  for (const DeviceClass& device : problem.devices) {
    if (device.count > 0 && !device.host) ++kinds;
    host = host || (device.count > 0 && device.host);
  }
  return kinds > 1 && DeviceStates(problem) > (host ? kCutStatesWithHosts : kCutStates);
}

int64_t ExactSets(const UnitGraph& graph, const FastOptions& options) {
  int64_t units = static_cast<int64_t>(graph.units.size()) + 1;
  return std::clamp(options.exact_words / units, kMinSets, kMaxSets);
}

bool IsNarrow(const UnitGraph& graph, const FastOptions& options, int64_t& ticks) {
  Ideals ideals;
  bool narrow = EnumerateIdeals(graph, ExactSets(graph, options), kInfinity, ideals);
  ticks -= static_cast<int64_t>(ideals.sets.size()) * SetTicks(graph);
  return narrow;
}

namespace {

struct Fast {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const FastOptions& options;
  const Resources& resources;
  double bound;
  int64_t& ticks;       // the remaining effort
  const int64_t whole;  // the initial effort
  PartitionState best;
  double load;                            // the load of `best`
  std::vector<std::vector<int>> found{};  // stages of units in every partition that was tried

  // Returns the ticks of a step of moving units and cutting orders; more with many stages.
  int StepTicks() const { return 7 + std::min(resources.devices, 64) / 32; }

  // Returns the steps until only a share of the ticks is left.
  int64_t StepsTo(double share) const {
    return std::max<int64_t>(ticks - Share(share), 0) / StepTicks();
  }

  int64_t Share(double share) const {
    return static_cast<int64_t>(share * static_cast<double>(whole));
  }

  bool Optimal() const { return load <= bound * (1 + 1e-12); }

  bool Offer(const PartitionState& units) {
    if (units.options.empty()) return false;
    found.push_back(units.stage_of);
    double offered = StageTable(problem, graph, units).LargestLoad();
    if (offered >= load * (1 - 1e-12)) return false;
    best = units;
    load = offered;
    return true;
  }

  // Tries the best cuts of several orders, first those in which the stages of `options.start`
  // follow one another.
  void CutOrders() {
    std::vector<std::vector<int>> orders = CandidateOrders(graph);
    if (options.start) {
      std::vector<std::vector<int>> staged;
      for (size_t i = 0; i < orders.size() && i < 2; ++i)
        staged.push_back(OrderByStage(orders[i], *options.start));
      orders.insert(orders.begin(), staged.begin(), staged.end());
      if (!options.fresh) orders = staged;
    }
    for (const std::vector<int>& order : orders) {
      if (ticks < (load < kInfinity ? Share(kLastShare) : 0) && &order != &orders[0]) break;
      int64_t left = 0, moves = kOrderMoves * options.pairs, all = moves;
      SequenceCuts cuts = CutOrder(problem, graph, resources, order, load, options.pairs, left);
      const int64_t steps = -left;  // CutOrder subtracts those that it takes
      ticks -= kOrderTicks * GraphSize(graph) + steps * StepTicks();
      if (cuts.stages.empty()) continue;
      PartitionState units = StagesOfCuts(order, cuts);
      StageTable table(problem, graph, units);
      Refine(graph, table, {32, 4, &moves});
      ticks -= (all - moves) * StepTicks();
      if (!Offer(table.units())) Offer(units);
    }
  }

  // Returns the most work of a stage, as a multiple of a device's even share.
  double StageSize() const {
    double work = 0, speeds = 0;
    for (const Unit& unit : graph.units) work += unit.device_time;
    for (const DeviceClass& device : problem.devices)
      if (!device.host) speeds += device.count * device.speed;
    bool known = load < kInfinity && work > 0;
    return problem.max_replicas * (known ? std::max(load * speeds / work, 1.0) : 1);
  }

  // Makes partitions from coarser graphs. The first runs coarsen in different ways; later ones keep
  // the stages of the best partition apart, alone or with those of another one, and every other run
  // starts from scratch.
  void Levels(int first_run, int runs) {
    int n = static_cast<int>(graph.units.size());
    MultilevelOptions level;
    for (int run = first_run; run < runs && !Optimal(); ++run) {
      int64_t own = std::min(StepsTo(kLastShare), Share(kLevelsShare) / StepTicks());
      if (own == 0 && (run > 0 || !best.options.empty())) return;
      // If loads are far above an even share, because of replicas or expensive transfers, tries
      // stages of several sizes.
      double size = StageSize();
      bool resized = size > 2, fresh = run < (resized ? 4 : 3);
      if (run >= kPlainRuns) fresh = run % 2 == 0;
      level.rating = run % 3;
      level.seed = run < kPlainRuns ? 0 : static_cast<unsigned>(run);
      level.sequence = options.sequence;
      level.size = 1;
      if (resized)
        level.size =
            run < 4 ? std::min(size, problem.max_replicas * std::array{1., 4., 2., 8.}[run]) : size;
      const int64_t all = own;
      level.steps = &own;
      if (fresh || best.options.empty()) {
        Offer(MultilevelPartition(problem, graph, resources, level));
        ticks -= (all - own) * StepTicks();
        continue;
      }
      PartitionState start = best;
      std::vector<int> apart = best.stage_of;
      const std::vector<int>& other = found[found.size() - 1 - run % found.size()];
      int stages = static_cast<int>(best.options.size());
      if (run % 3 == 1)
        for (int u = 0; u < n; ++u) apart[u] += stages * other[u];
      level.start = &start, level.apart = &apart;
      Offer(MultilevelPartition(problem, graph, resources, level));
      ticks -= (all - own) * StepTicks();
      level.start = nullptr, level.apart = nullptr;
    }
  }

  // Divides the slowest stage and a few adjacent ones again, while that helps.
  PartitionResult ImproveFewStages() {
    PartitionResult result = ResultOfStages(problem, graph, best);
    result.lower_bound = bound;
    if (!Optimal()) {
      std::vector<int> order(graph.units.size());
      std::iota(order.begin(), order.end(), 0);
      WindowOptions windows;
      windows.sequence = options.sequence;
      result = ImproveWindows(problem, graph, OrderByStage(order, best), result, windows, ticks);
    }
    result.proven = result.objective <= bound * (1 + 1e-12);
    return result;
  }
};

}  // namespace

// Searches exactly for a better partition than `known`, if there are few enough sets of units.
static PartitionResult Settle(const PartitionProblem& problem, const UnitGraph& graph,
                              const PartitionResult& known, const FastOptions& options,
                              int64_t& ticks) {
  ExactOptions exact;
  exact.below = known.objective;
  exact.fewer = options.fewer;
  exact.max_sets = ExactSets(graph, options);
  exact.ticks = &ticks;
  exact.sequence = options.sequence;
  // If no partition is known, memory binds. Limits close to the bound are tried first, since those
  // searches are fast.
  for (const double factor : kLimits) {
    if (known.feasible || known.lower_bound * factor >= options.below) break;
    exact.below = known.lower_bound * factor;
    PartitionResult found = SearchBetter(problem, graph, known, exact);
    if (found.feasible) return found;
  }
  exact.below = known.objective;
  return SearchBetter(problem, graph, known, exact);
}

int64_t FastTicks(const UnitGraph& graph) {
  return kBaseTicks + kTicksPerSize * std::max<int64_t>(GraphSize(graph) - kBaseSize, 0);
}

PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options) {
  if (!options.sequence && ManyKinds(problem))
    return PartitionForUnequalDevices(problem, graph, options);
  Resources resources = ResourcesOf(problem, options.sequence);
  PartitionResult result;
  result.objective = options.below;
  result.lower_bound = PartitionLowerBound(problem, graph, options.fewer);
  if (result.lower_bound == kInfinity) {
    result.proven = true;
    return result;
  }
  int64_t own = FastTicks(graph);
  int64_t& ticks = options.ticks ? *options.ticks : own;
  const double bound = result.lower_bound;
  Fast fast{problem, graph, options, resources, bound, ticks, ticks, {}, options.below};
  if (options.start) fast.Offer(*options.start);
  bool narrow = !options.wide && IsNarrow(graph, options, ticks);
  bool large = graph.units.size() > kAtOnceUnits || !narrow;
  // In a wide graph, cutting orders is expensive; if a good partition is known, few need be tried.
  int early = large && !narrow && options.fresh ? 1 : 0;
  fast.Levels(0, early);
  if (early > 0 && fast.StageSize() > 2) {
    early = 4;
    fast.Levels(1, early);
  }
  fast.CutOrders();
  fast.Offer(EqualCuts(problem, graph, problem.stages > 0 ? problem.stages : -1));
  if (narrow && !fast.Optimal()) {
    if (!fast.best.options.empty()) {
      result = ResultOfStages(problem, graph, fast.best);
      result.lower_bound = bound;
    }
    int64_t some = std::min(fast.Share(kExactShare), ticks), all = some;
    result = Settle(problem, graph, result, options, some);
    ticks -= all - some;
    if (result.proven) return result;
    if (result.feasible) fast.Offer(StagesOfResult(graph, result));
  }
  if (large && options.fresh) fast.Levels(early, kRuns);
  const int first = kPlainRuns + options.seed * kRuns;
  if (options.seed > 0) fast.Levels(first, first + kRuns);
  if (fast.best.options.empty()) return result;
  result = fast.ImproveFewStages();
  return narrow && !result.proven ? Settle(problem, graph, result, options, ticks) : result;
}

}  // namespace pipewright
