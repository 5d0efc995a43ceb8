#include "plan/partition/links.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "plan/partition/fast/orders.h"
#include "plan/partition/fast/sequence_dp.h"
#include "plan/partition/link_loads.h"
#include "plan/partition/pair_links_exact.h"
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

// Returns the number of nodes and of ends of values, to which the cost of an evaluation is
// proportional.
static int64_t Places(const PartitionProblem& problem) {
  size_t places = problem.nodes.size() + problem.values.size();
  for (const PartitionValue& value : problem.values) places += value.consumers.size();
  return static_cast<int64_t>(places) + 1;
}

namespace {

constexpr int64_t kLookTicks = 50;            // to look at a value between two stages, or a node
constexpr int64_t kWholeSearch = 10'000'000;  // evaluations, times nodes and values

// Improves one partition by small changes.
struct Search {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  PartitionResult best;
  int64_t looks = 0;                           // the budget, in looks at values or nodes
  std::vector<int> forbidden = {};             // no stage may hold exactly these nodes
  int64_t pairs = 200'000, steps = INT64_MAX;  // limits of CutOrder: for one order, for all
  std::unique_ptr<PairLoads> loads =
      {};  // the loads of `best`, if its stages have one replica each
  int64_t seen = 0;                            // steps of `loads` that are already counted

  void MeasureLoads() {
    bool alone = std::all_of(best.stages.begin(), best.stages.end(),
                             [](const PartitionStage& stage) { return stage.replicas == 1; });
    loads = alone ? std::make_unique<PairLoads>(problem, best) : nullptr;
    seen = 0;
  }

  // Returns true if a change to this objective, according to `loads`, need not be evaluated.
  bool Worse(double objective) {
    looks -= loads->steps() - seen + 4 + static_cast<int64_t>(best.stages.size()) / 8;
    seen = loads->steps();
    return objective >= best.objective * (1 - 1e-9);
  }

  bool Better(PartitionResult& changed) {
    looks -= 2 * Places(problem);
    for (const PartitionStage& stage : changed.stages)
      if (!forbidden.empty() && stage.nodes == forbidden) return false;
    EvaluatePartition(problem, changed);
    if (changed.objective >= best.objective * (1 - 1e-9)) return false;
    if (!CheckPartition(problem, changed).empty()) return false;
    best = changed;
    MeasureLoads();
    return true;
  }

  bool Alike(const PartitionStage& a, const PartitionStage& b) const {
    return a.device_class == b.device_class;
  }

  // Exchanges the devices of two stages of the same class, or moves a stage to an idle device.
  bool ExchangeDevices() {
    std::map<int, std::vector<int>> idle;  // by class
    for (size_t c = 0; c < problem.devices.size(); ++c)
      for (int d = 0; d < problem.devices[c].count; ++d) {
        const std::vector<int>& numbers = problem.devices[c].numbers;
        int number = numbers.empty() ? d : numbers[d];
        bool used = problem.devices[c].host;
        for (const PartitionStage& stage : best.stages)
          used = used || std::count(stage.numbers.begin(), stage.numbers.end(), number);
        if (!used) idle[static_cast<int>(c)].push_back(number);
      }
    for (size_t s = 0; s < best.stages.size(); ++s) {
      if (problem.devices[best.stages[s].device_class].host) continue;
      for (size_t i = 0; i < best.stages[s].numbers.size(); ++i) {
        for (int number : idle[best.stages[s].device_class]) {
          if (loads && Worse(loads->WithDevices(static_cast<int>(s), number, -1))) continue;
          PartitionResult changed = best;
          changed.stages[s].numbers[i] = number;
          if (Better(changed)) return true;
        }
        for (size_t t = s + 1; t < best.stages.size(); ++t) {
          if (!Alike(best.stages[s], best.stages[t])) continue;
          for (size_t j = 0; j < best.stages[t].numbers.size(); ++j) {
            if (looks < 0) return false;
            int number = best.stages[t].numbers[j];
            if (loads &&
                Worse(loads->WithDevices(static_cast<int>(s), number, static_cast<int>(t))))
              continue;
            PartitionResult changed = best;
            std::swap(changed.stages[s].numbers[i], changed.stages[t].numbers[j]);
            if (Better(changed)) return true;
          }
        }
      }
    }
    return false;
  }

  // Moves a unit out of the slowest stage, or into it.
  bool MoveUnit() {
    std::vector<int> stage_of(problem.nodes.size(), 0);
    int slowest = 0, count = static_cast<int>(best.stages.size());
    for (int s = 0; s < count; ++s) {
      for (int node : best.stages[s].nodes) stage_of[node] = s;
      if (best.stages[s].Load() > best.stages[slowest].Load()) slowest = s;
    }
    auto at = [&](int unit) { return stage_of[graph.units[unit].nodes[0]]; };
    for (size_t u = 0; u < graph.units.size(); ++u) {
      const std::vector<int>& nodes = graph.units[u].nodes;
      int from = at(static_cast<int>(u)), low = 0, high = count - 1;
      for (int before : graph.previous[u]) low = std::max(low, at(before));
      for (int after : graph.next[u]) high = std::min(high, at(after));
      if (best.stages[from].nodes.size() == nodes.size()) continue;
      for (int to = low; to <= high; ++to) {
        if (to == from || (from != slowest && to != slowest)) continue;
        if (looks < 0) return false;
        if (loads && Worse(loads->WithNodes(nodes, from, to))) continue;
        PartitionResult changed = best;
        auto& source = changed.stages[from].nodes;
        auto& target = changed.stages[to].nodes;
        std::erase_if(
            source, [&](int node) { return std::binary_search(nodes.begin(), nodes.end(), node); });
        target.insert(target.end(), nodes.begin(), nodes.end());
        std::sort(target.begin(), target.end());
        if (Better(changed)) return true;
      }
    }
    return false;
  }

  void Run() {
    if (!loads) MeasureLoads();
    while (looks > 0 && (ExchangeDevices() || MoveUnit())) continue;
  }
};

}  // namespace

// Returns all bandwidths, ascending.
static std::vector<double> Links(const PartitionProblem& problem) {
  std::vector<double> links;
  for (size_t a = 0; a < problem.pair_links.size(); ++a)
    for (size_t b = 0; b < problem.pair_links.size(); ++b)
      if (a != b) links.push_back(problem.pair_links[a][b]);
  std::sort(links.begin(), links.end());
  return links;
}

static double Link(const PartitionProblem& problem, int a, int b) {
  return std::min(problem.pair_links[a][b], problem.pair_links[b][a]);
}

// Returns the devices except CPUs in two orders: by number, and by fastest link (greedily to the
// nearest device, from the best start).
static std::vector<DeviceSequence> DeviceSequences(const PartitionProblem& problem) {
  DeviceSequence all;
  for (size_t c = 0; c < problem.devices.size(); ++c)
    for (int d = 0; d < problem.devices[c].count && !problem.devices[c].host; ++d) {
      const std::vector<int>& numbers = problem.devices[c].numbers;
      all.push_back({static_cast<int>(c), numbers.empty() ? d : numbers[d]});
    }
  std::sort(all.begin(), all.end(), [](auto a, auto b) { return a.second < b.second; });
  std::vector<DeviceSequence> sequences = {all, {}};
  double least = kInfinity;
  for (size_t start = 0; start < all.size(); ++start) {
    DeviceSequence sequence, left = all;
    std::swap(left[0], left[start]);
    double time = 0;
    for (size_t next = 0; !left.empty();) {
      if (!sequence.empty()) time += 1 / Link(problem, sequence.back().second, left[next].second);
      sequence.push_back(left[next]);
      left.erase(left.begin() + static_cast<int>(next));
      next = 0;
      for (size_t i = 1; i < left.size(); ++i)
        if (Link(problem, sequence.back().second, left[i].second) >
            Link(problem, sequence.back().second, left[next].second))
          next = i;
    }
    if (time < least) least = time, sequences[1] = sequence;
  }
  return sequences;
}

// Returns the idle devices, then the devices of the partition's stages in order.
static DeviceSequence DevicesInTurn(const DeviceSequence& all, const PartitionResult& result) {
  DeviceSequence idle, sequence;
  for (const PartitionStage& stage : result.stages)
    for (int number : stage.numbers) sequence.push_back({stage.device_class, number});
  for (const auto& device : all)
    if (std::find(sequence.begin(), sequence.end(), device) == sequence.end())
      idle.push_back(device);
  idle.insert(idle.end(), sequence.begin(), sequence.end());
  return idle;
}

// Finds the best cuts of each order on the devices in sequence. These count values that skip a
// stage as if they came from the device before; the resulting partition is then evaluated exactly.
static bool CutOnDevices(Search& search, const std::vector<std::vector<int>>& orders,
                         DeviceSequence sequence) {
  const PartitionProblem& problem = search.problem;
  if (problem.stages > 0 && problem.max_replicas == 1)
    sequence.erase(
        sequence.begin(),
        sequence.end() - std::min<int>(problem.stages, static_cast<int>(sequence.size())));
  Resources resources(problem, sequence);
  bool better = false;
  for (const std::vector<int>& order : orders) {
    if (search.steps <= 0) break;
    SequenceCuts cuts = CutOrder(problem, search.graph, resources, order,
                                 1.5 * search.best.objective, search.pairs, search.steps);
    if (cuts.stages.empty()) continue;
    PartitionResult result = ResultOfStages(problem, search.graph, StagesOfCuts(order, cuts));
    for (size_t s = 0; s < cuts.stages.size(); ++s) {
      const StageOption& option = cuts.stages[s].option;
      result.stages[s].numbers.clear();
      for (int r = 0; r < option.replicas; ++r)
        result.stages[s].numbers.push_back(sequence[option.first + r].second);
    }
    better = search.Better(result) || better;
  }
  return better;
}

// Alternates cuts, exchanges and moves while that helps, starting from equal cuts and from the cuts
// on each sequence of devices.
static void ImproveOnDevices(Search& search) {
  std::vector<DeviceSequence> sequences = DeviceSequences(search.problem);
  std::vector<std::vector<int>> orders = CandidateOrders(search.graph);
  if (search.graph.units.size() > 500) orders.resize(std::min<size_t>(orders.size(), 2));
  int devices = static_cast<int>(sequences[0].size());
  int stages = search.problem.stages > 0 ? search.problem.stages : devices;
  PartitionState equal = EqualCuts(search.problem, search.graph, stages);
  if (!equal.options.empty()) {
    PartitionResult result = ResultOfStages(search.problem, search.graph, equal);
    search.Better(result);
  }
  for (const DeviceSequence& sequence : sequences) CutOnDevices(search, orders, sequence);
  search.Run();
  for (int round = 0; round < 8; ++round) {
    orders[0] = OrderByStage(orders[0], StagesOfResult(search.graph, search.best));
    if (!CutOnDevices(search, orders, DevicesInTurn(sequences[0], search.best))) break;
    search.Run();
  }
}

// Merges device classes that differ only in their best link, and keeps the best one.
static PartitionProblem WithoutLinkKinds(PartitionProblem problem) {
  std::vector<DeviceClass> kinds;
  if (problem.max_replicas > 1) return problem;  // replicas must be of one class
  for (DeviceClass& device : problem.devices) {
    if (device.count == 0) continue;
    if (device.host) return problem;  // transfers to CPUs use the device's own link
    if (device.numbers.empty()) {
      device.numbers.resize(device.count);
      std::iota(device.numbers.begin(), device.numbers.end(), 0);
    }
    auto same = std::find_if(kinds.begin(), kinds.end(), [&](const DeviceClass& kind) {
      return kind.speed == device.speed && kind.memory_bytes == device.memory_bytes;
    });
    if (same == kinds.end()) {
      kinds.push_back(device);
      continue;
    }
    same->count += device.count;
    same->link = std::max(same->link, device.link);
    same->numbers.insert(same->numbers.end(), device.numbers.begin(), device.numbers.end());
    std::sort(same->numbers.begin(), same->numbers.end());
  }
  problem.devices = kinds;
  return problem;
}

static PartitionResult SolveAlike(const PartitionProblem& problem, const SolveOptions& options) {
  PartitionProblem relaxed = problem;
  relaxed.pair_links.clear();
  std::vector<double> links = Links(problem);
  UnitGraph graph = BuildUnits(problem, ExactMerge(problem));
  const int64_t places = Places(problem);
  const bool large = graph.units.size() > 500;
  SolveOptions quick = options;
  quick.exact = options.exact && graph.units.size() <= 200;
  const bool hasty = !options.exact;
  SolveOptions first = options;  // in fast mode the effort is shared among several searches
  if (hasty) first.effort *= 0.4, quick.effort *= 0.1;
  const int64_t ticks = FastTicks(graph);
  const int64_t looks = hasty ? ticks / 16 / kLookTicks : 30'000'000;
  PartitionResult best, bound = SolvePartition(relaxed, first);
  if (!bound.feasible) return bound;
  // Fewer stages may avoid the slow links. For large graphs few numbers of stages are tried.
  int devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  std::vector<int> counts = {-1};
  // Fast mode does so for all graphs that take long.
  const bool small = options.exact ? !large : graph.units.size() <= 40;
  if (problem.stages < 0 && small)
    for (int k = 1; k <= std::min(devices, 8); ++k) counts.push_back(k);
  std::vector<double> equal_links = {kInfinity, links[0]};
  if (small && links[links.size() / 2] > links[0])
    equal_links.insert(equal_links.begin() + 1, links[links.size() / 2]);
  if (hasty && graph.units.size() > 20'000) equal_links.resize(1);
  for (int stages : counts)
    for (double link : equal_links) {
      PartitionProblem equal = relaxed;
      if (stages > 0) equal.stages = stages;
      for (DeviceClass& device : equal.devices) device.link = std::min(device.link, link);
      bool known = stages < 0 && link == kInfinity;
      quick.start = hasty && large && bound.feasible ? &bound : nullptr;
      PartitionResult result = known ? bound : SolvePartition(equal, quick);
      if (!result.feasible) continue;
      for (PartitionStage& stage : result.stages) stage.numbers.clear();
      EvaluatePartition(problem, result);
      Search search{problem, graph, result, looks};
      search.Run();
      if (!best.feasible || search.best.objective < best.objective) best = search.best;
      if (best.objective <= bound.lower_bound * (1 + 1e-12)) break;
    }
  if (!best.feasible) return bound;
  if (best.objective > bound.lower_bound * (1 + 1e-12)) {
    Search search{problem, graph, best, looks};
    if (hasty) search.steps = ticks / 16 / 8;
    ImproveOnDevices(search);
    best = search.best;
  }
  best.lower_bound = bound.lower_bound;
  best.proven = best.objective <= best.lower_bound * (1 + 1e-12);
  if (!best.proven && SearchPairLinks(problem, graph, {}, kWholeSearch / places, best)) {
    best.proven = true;
    best.lower_bound = best.objective;
  }
  best.sets = bound.sets;
  return best;
}

PartitionResult SolvePairLinks(const PartitionProblem& problem, const SolveOptions& options) {
  PartitionProblem alike = WithoutLinkKinds(problem);
  PartitionResult result = SolveAlike(alike, options);
  if (!result.feasible || alike.devices.size() == problem.devices.size()) return result;
  for (PartitionStage& stage : result.stages)
    for (size_t c = 0; c < problem.devices.size(); ++c) {
      const std::vector<int>& numbers = problem.devices[c].numbers;
      if (std::binary_search(numbers.begin(), numbers.end(), stage.numbers[0]))
        stage.device_class = static_cast<int>(c);
    }
  EvaluatePartition(problem, result);
  return result;
}

PartitionResult NextBestPairLinks(const PartitionProblem& unlike, const UnitGraph& graph,
                                  const std::vector<int>& forbidden, ExactOptions exact) {
  const PartitionProblem problem = WithoutLinkKinds(unlike);
  PartitionProblem equal = problem;
  equal.pair_links.clear();
  std::vector<double> links = Links(problem);
  const int64_t places = Places(problem);
  exact.forbidden = forbidden;
  PartitionResult best;
  bool bounded = false;
  for (double link : {kInfinity, links[links.size() / 2], links[0]}) {
    for (DeviceClass& device : equal.devices) device.link = std::min(device.link, link);
    PartitionResult result = ExactPartition(equal, graph, exact);
    if (link == kInfinity) {
      bounded = result.proven;
      best.lower_bound = result.feasible ? result.objective : kInfinity;
      best.proven = bounded && !result.feasible;
    }
    if (!result.feasible) continue;
    for (PartitionStage& stage : result.stages) stage.numbers.clear();
    EvaluatePartition(problem, result);
    Search search{problem, graph, result, 10'000'000 / places, forbidden};
    search.Run();
    if (best.feasible && search.best.objective >= best.objective) continue;
    search.best.lower_bound = best.lower_bound;
    best = search.best;
    best.proven = bounded && best.objective <= best.lower_bound * (1 + 1e-12);
  }
  if (best.feasible && !best.proven)
    best.proven = SearchPairLinks(problem, graph, forbidden, kWholeSearch / places, best);
  return best;
}

}  // namespace pipewright
