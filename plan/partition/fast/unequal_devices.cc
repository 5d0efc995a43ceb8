#include "plan/partition/fast/unequal_devices.h"

#include <algorithm>
#include <random>
#include <tuple>

#include "plan/partition/exact/exact.h"
#include "plan/partition/fast/lower_bound.h"
#include "plan/partition/refine/stage_table.h"

namespace pipewright {

namespace {

// Shares of the remaining effort:
constexpr double kEqualShare = 0.45;     // the search on equal devices of average speed
constexpr double kFirstTurnShare = 0.5;  // the first search with devices in an order
constexpr double kOtherTurnShare = 0.2;  // each other search with devices in an order

constexpr int kTurns = 20;  // the most searches with devices in an order
// Limits of the exact search in SettleSmall.
constexpr int64_t kSmallSets = 20'000, kSmallBytes = 100 << 20;

// Assigns each stage a class with a load of at most `most`: a bipartite matching by augmenting
// paths.
struct Assignment {
  const PartitionProblem& problem;
  const std::vector<std::vector<double>>& loads;  // [stage][class]
  std::vector<int> class_of{};
  std::vector<std::vector<int>> holders{};  // by class

  // Searches breadth first from a stage without a class for a class with a free device.
  bool Place(int stage, double most) {
    size_t classes = problem.devices.size();
    std::vector<int> reached_by(classes, -1), queue = {stage};
    for (size_t at = 0; at < queue.size(); ++at)
      for (size_t c = 0; c < classes; ++c) {
        if (reached_by[c] >= 0 || loads[queue[at]][c] > most) continue;
        reached_by[c] = queue[at];
        if (static_cast<int>(holders[c].size()) == problem.devices[c].count) {
          queue.insert(queue.end(), holders[c].begin(), holders[c].end());
          continue;
        }
        for (int to = static_cast<int>(c); to >= 0;) {
          int mover = reached_by[to], from = class_of[mover];
          if (from >= 0) std::erase(holders[from], mover);
          holders[to].push_back(mover);
          class_of[mover] = to;
          to = mover == stage ? -1 : from;
        }
        return true;
      }
    return false;
  }

  bool PlaceAll(double most) {
    class_of.assign(loads.size(), -1);
    holders.assign(problem.devices.size(), {});
    for (size_t s = 0; s < loads.size(); ++s)
      if (!Place(static_cast<int>(s), most)) return false;
    return true;
  }
};

}  // namespace

bool AssignDevices(const PartitionProblem& problem, const UnitGraph& graph, double below,
                   PartitionState& units) {
  StageTable table(problem, graph, units);
  std::vector<std::vector<double>> loads(table.stages());
  std::vector<double> values;
  for (int s = 0; s < table.stages(); ++s)
    for (size_t c = 0; c < problem.devices.size(); ++c) {
      bool device = problem.devices[c].count > 0 && !problem.devices[c].host;
      loads[s].push_back(device ? table.LoadOn(s, {static_cast<int>(c), 1}) : kInfinity);
      if (loads[s].back() < below) values.push_back(loads[s].back());
    }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  Assignment assignment{problem, loads};
  size_t low = 0, high = values.size();  // the first value that suffices
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (assignment.PlaceAll(values[middle]))
      high = middle;
    else
      low = middle + 1;
  }
  if (low == values.size() || !assignment.PlaceAll(values[low])) return false;
  for (int s = 0; s < table.stages(); ++s) units.options[s] = {assignment.class_of[s], 1};
  return true;
}

DeviceSequence DevicesInTurn(const PartitionProblem& problem, const PartitionState& units) {
  DeviceSequence idle, taken;
  std::vector<int> used(problem.devices.size(), 0);
  auto number = [&](int c, int d) {
    const std::vector<int>& numbers = problem.devices[c].numbers;
    return numbers.empty() ? d : numbers[d];
  };
  for (const StageOption& option : units.options)
    for (int r = 0; r < option.replicas; ++r)
      taken.push_back(
          {option.device_class, number(option.device_class, used[option.device_class]++)});
  for (int c = 0; c < static_cast<int>(problem.devices.size()); ++c)
    for (int d = used[c]; d < problem.devices[c].count; ++d) idle.push_back({c, number(c, d)});
  std::stable_sort(idle.begin(), idle.end(), [&](const auto& a, const auto& b) {
    auto key = [&](int c) {
      const DeviceClass& device = problem.devices[c];
      return std::make_tuple(!device.host, device.speed, device.link, device.memory_bytes, c);
    };
    return key(a.first) < key(b.first);
  });
  idle.insert(idle.end(), taken.begin(), taken.end());
  return idle;
}

// Returns the problem with one class for all devices, of average speed and the least memory of any.
static PartitionProblem WithEqualDevices(const PartitionProblem& problem) {
  PartitionProblem equal = problem;
  DeviceClass all;
  double speed = 0, link = 0;
  all.count = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.host) continue;
    all.count += device.count;
    speed += device.count * device.speed;
    link += device.count * device.link;
    if (device.count > 0) all.memory_bytes = std::min(all.memory_bytes, device.memory_bytes);
  }
  if (all.count > 0) all.speed = speed / all.count, all.link = link / all.count;
  equal.devices = {all};
  return equal;
}

// Solves small problems by an exact search over all device states.
static void SettleSmall(const PartitionProblem& problem, const UnitGraph& graph,
                        const FastOptions& options, int64_t& ticks, PartitionResult& best) {
  if (DeviceStates(problem) > kMostDeviceStates) return;
  ExactOptions exact;
  exact.below = best.objective;
  exact.fewer = options.fewer;
  exact.max_sets = kSmallSets;
  exact.max_bytes = kSmallBytes;
  exact.ticks = &ticks;
  if (ticks > 0 && !options.wide) best = SearchBetter(problem, graph, best, exact);
}

PartitionResult PartitionForUnequalDevices(const PartitionProblem& problem, const UnitGraph& graph,
                                           const FastOptions& options) {
  PartitionResult best;
  best.objective = options.below;
  best.lower_bound = PartitionLowerBound(problem, graph, options.fewer);
  best.proven = best.lower_bound == kInfinity;
  if (best.proven) return best;
  int64_t whole = FastTicks(graph);
  int64_t& ticks = options.ticks ? *options.ticks : whole;
  // Runs a search with a share of the remaining ticks.
  auto search = [&](const PartitionProblem& on, FastOptions part, double of_left) {
    auto own = static_cast<int64_t>(of_left * static_cast<double>(ticks)), all = own;
    part.ticks = &own;
    PartitionResult found = FastPartition(on, graph, part);
    ticks -= all - own;
    return found;
  };
  FastOptions turn = options;
  turn.wide = options.wide || !IsNarrow(graph, options, ticks);
  PartitionState start;
  if (options.start && !options.fresh) {
    start = *options.start;
  } else if (problem.max_replicas == 1) {
    FastOptions first = turn;
    first.below = kInfinity;  // `below` is not for these devices
    PartitionResult equal = search(WithEqualDevices(problem), first, kEqualShare);
    if (equal.feasible) start = StagesOfResult(graph, equal);
    if (!start.options.empty() && !AssignDevices(problem, graph, kInfinity, start)) start = {};
  }
  turn.pairs /= 4;  // with many kinds of devices, trying a stage takes longer
  const int64_t reserve = ticks / 10;
  std::minstd_rand random(static_cast<unsigned>(options.seed) + 1);
  bool settled = false;  // assignments no longer help; from then on devices are exchanged
  for (int turns = 0; turns < kTurns && ticks > reserve; ++turns) {
    DeviceSequence sequence = DevicesInTurn(problem, start);
    if (settled) {  // exchanges a device of a stage (those are at the end) for any other
      const size_t one = sequence.size() - 1 - random() % start.options.size();
      std::swap(sequence[one], sequence[random() % sequence.size()]);
    }
    if (problem.stages > 0 && problem.max_replicas == 1)
      sequence.erase(
          sequence.begin(),
          sequence.end() - std::min<int>(problem.stages, static_cast<int>(sequence.size())));
    turn.sequence = &sequence;
    turn.start = start.options.empty() ? nullptr : &start;
    turn.below = best.objective;
    turn.fresh = options.fresh && turns == 0;
    turn.seed = turn.fresh ? 0 : options.seed * kTurns + turns + 1;
    PartitionResult found = search(problem, turn, turns == 0 ? kFirstTurnShare : kOtherTurnShare);
    if (found.feasible && found.objective < best.objective * (1 - 1e-9)) best = found;
    if (!best.feasible || best.proven || problem.max_replicas > 1) break;
    start = StagesOfResult(graph, best);
    if (AssignDevices(problem, graph, best.objective * (1 - 1e-9), start)) continue;
    if (!settled) SettleSmall(problem, graph, turn, ticks, best);
    if (best.proven) break;
    start = StagesOfResult(graph, best);
    settled = true;
  }
  if (!best.proven && !settled) SettleSmall(problem, graph, turn, ticks, best);
  return best;
}

}  // namespace pipewright
