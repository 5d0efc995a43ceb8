#include "plan/partition/exact/exact.h"

#include <algorithm>
#include <chrono>

#include "plan/partition/exact/ideals.h"
#include "plan/partition/problem/stage_load.h"

namespace pipewright {

namespace {

using Clock = std::chrono::steady_clock;

struct Search {
  struct From {
    int set = -1, state = 0, option = 0;
  };
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const ExactOptions& options;
  const Resources& resources;
  const Ideals& ideals;
  std::vector<double> best{};  // [set * states + state] the least bottleneck of the set's stages
  std::vector<From> from{};
  // [state] the device time that its devices can take, and that further stages can take; infinite
  // with a CPU.
  std::vector<double> capacity{}, capacity_left{};
  std::vector<char> hosts{}, hosts_left{};
  double largest_capacity = 0;  // of one stage
  double cut_weight = 0;        // least device time that a transfer costs a device
  double latency_weight = 0;
  std::vector<char> possible{};  // by state, for the current set
  // The range of states in which the last stages may hold each set; empty if first > last.
  std::vector<int> first_live{}, last_live{};
  Bits forbidden{};
  std::vector<double> lead{};  // by set: the lead of the stages that begin it; empty: none
  bool proven = true;
  int64_t ticks = 0;  // taken

  void MeasureLeads();

  void MeasureDevices();
  bool FindPossible(int set);
  void Extend(int larger, int smaller, const StageLoad& stage);
  void Run(Clock::time_point start);
  PartitionResult Trace() const;
};

}  // namespace

static double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Returns the most device time that a CPU can take over under a load limit: a fractional knapsack.
static double HostCapacity(const UnitGraph& graph, double limit) {
  auto work = [&](int u) { return graph.units[u].device_ok ? graph.units[u].device_time : 0; };
  // Leaves out units that save nothing: one that also costs nothing would compare equal to all
  // others, which is not a strict weak order.
  std::vector<int> order;
  for (int u = 0; u < static_cast<int>(graph.units.size()); ++u)
    if (work(u) > 0) order.push_back(u);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return work(a) * graph.units[b].host_time > work(b) * graph.units[a].host_time;
  });
  double capacity = 0;
  for (int u : order) {
    double time = graph.units[u].host_time;
    capacity += time <= limit ? work(u) : work(u) * limit / time;
    limit -= std::min(limit, time);
  }
  return capacity;
}

void Search::MeasureDevices() {
  size_t states = resources.states, classes = problem.devices.size();
  capacity.assign(states, 0), capacity_left.assign(states, 0);
  hosts.assign(states, 0), hosts_left.assign(states, 0);
  cut_weight = latency_weight = kInfinity;
  double host = options.below == kInfinity ? kInfinity : HostCapacity(graph, options.below);
  std::vector<double> each;
  for (size_t c = 0; c < classes; ++c) {
    const DeviceClass& device = problem.devices[c];
    each.push_back(device.host ? host : options.below / options.repeat * device.speed);
    for (size_t s = 0; s < states; ++s) {
      int used = resources.in_use[s * classes + c];
      if (used > 0) capacity[s] += used * each[c];
      if (!device.host) continue;
      hosts[s] = hosts[s] || used > 0;
      hosts_left[s] = hosts_left[s] || (used < device.count && resources.most_left[s] > 0);
    }
    if (device.count == 0) continue;
    int replicas = device.host ? 1 : problem.max_replicas;
    largest_capacity = std::max(largest_capacity, each[c] * replicas * (1 + 1e-9));
    if (device.host) continue;
    cut_weight = std::min(cut_weight, device.speed / device.link);
    latency_weight = std::min(latency_weight, device.speed * problem.transfer_latency);
  }
  if (cut_weight == kInfinity) cut_weight = latency_weight = 0;
  for (size_t s = 0; s < states; ++s)
    capacity_left[s] = resources.MostLeft(problem, static_cast<int>(s), each);
}

// The first stage of a set has at least one of the units that have no predecessor in the set.
void Search::MeasureLeads() {
  if (options.lead.empty()) return;
  lead.assign(ideals.sets.size(), 0);
  for (size_t s = 1; s < ideals.sets.size(); ++s) {
    double least = kInfinity;
    ForEach(ideals.sets[s], [&](int unit) {
      if (options.lead[unit] >= least) return;
      for (int before : graph.previous[unit])
        if (Has(ideals.sets[s], before)) return;
      least = options.lead[unit];
    });
    lead[s] = least;
  }
}

// Finds the states that may hold the set: their devices can take its work, and the remaining ones
// the rest, both with the transfers between the two, at loads under `below`. Returns false if there
// are none.
bool Search::FindPossible(int set) {
  double work = ideals.work[set], rest = ideals.work.back() - work;
  double cut = ideals.cut_time[set] * cut_weight + ideals.cut_transfers[set] * latency_weight;
  bool any = false;
  possible.assign(resources.states, 0);
  for (int s = 0; s < resources.states; ++s) {
    double slack = 1e-9 * (work + rest);
    possible[s] = resources.most_left[s] >= 0 &&
                  work + (hosts[s] ? 0 : cut) <= capacity[s] + slack &&
                  rest + (hosts_left[s] ? 0 : cut) <= capacity_left[s] + slack;
    any = any || possible[s];
  }
  return any;
}

void Search::Extend(int larger, int smaller, const StageLoad& stage) {
  if (!forbidden.empty()) {
    bool equal = true;
    for (size_t w = 0; w < forbidden.size(); ++w)
      equal = equal && (ideals.sets[larger][w] & ~ideals.sets[smaller][w]) == forbidden[w];
    if (equal) return;
  }
  size_t states = resources.states;
  const double* after = &best[smaller * states];
  double* here = &best[larger * states];
  From* origin = &from[larger * states];
  bool varies = problem.in_flight == InFlight::k1F1B && stage.stash_bytes > 0;
  double before = lead.empty() ? 0 : lead[larger];
  ticks += 3 * static_cast<int64_t>(resources.options.size());
  for (size_t o = 0; o < resources.options.size(); ++o) {
    const std::vector<Resources::Step>& steps = resources.steps[o];  // ascending by `from`
    if (steps.empty() || steps.back().from < first_live[smaller] ||
        steps.front().from > last_live[smaller])
      continue;
    if (steps.size() == 1 &&  // as for devices in a sequence
        (after[steps[0].from] >= std::min(options.below, here[steps[0].to]) ||
         !possible[steps[0].to]))
      continue;
    const StageOption& option = resources.options[o];
    double load = options.repeat * stage.Load(option, 0) + before;
    if (load >= options.below) continue;
    auto step =
        std::lower_bound(steps.begin(), steps.end(), first_live[smaller],
                         [](const Resources::Step& a, int state) { return a.from < state; });
    ticks += 20;
    for (; step != steps.end() && step->from <= last_live[smaller]; ++step) {
      ++ticks;
      if (after[step->from] >= options.below || !possible[step->to]) continue;
      if (varies) load = options.repeat * stage.Load(option, step->devices_after) + before;
      double value = std::max(after[step->from], load);
      if (value >= here[step->to] || value >= options.below) continue;
      here[step->to] = value;
      origin[step->to] = {smaller, step->from, static_cast<int>(o)};
    }
  }
}

void Search::Run(Clock::time_point start) {
  size_t count = ideals.sets.size(), states = resources.states;
  best.assign(count * states, kInfinity);
  from.assign(count * states, From{});
  best[0] = 0;
  MeasureDevices();
  MeasureLeads();
  first_live.assign(count, 0);
  last_live.assign(count, -1);
  last_live[0] = 0;
  StageLoad stage(problem, graph);
  std::vector<int> seen(count, -1);
  struct Visit {
    int set, next;
    int unit;  // the unit that was added to the stage last; -1: none
  };
  std::vector<Visit> stack;
  int64_t visits = 0;
  const int64_t most_ticks = options.ticks ? *options.ticks : INT64_MAX;
  double most_bytes = 0;
  for (const DeviceClass& device : problem.devices)
    if (device.count > 0)
      most_bytes = std::max(most_bytes, device.host ? kInfinity : device.memory_bytes * (1 + 1e-9));
  for (size_t larger = 1; larger < count; ++larger) {
    ticks += 20 + 2 * static_cast<int64_t>(states);
    if (!FindPossible(static_cast<int>(larger))) continue;
    if (visits > options.max_visits || ticks > most_ticks ||
        (larger % 64 == 0 && Seconds(start) > options.max_seconds)) {
      proven = false;
      return;
    }
    // Visits each set inside this one once, from large to small; the stage is the difference.
    stack.push_back({static_cast<int>(larger), ideals.first[larger], -1});
    while (!stack.empty()) {
      Visit& visit = stack.back();
      if (visit.next == ideals.first[visit.set + 1]) {
        if (visit.unit >= 0) stage.Remove(visit.unit);
        stack.pop_back();
        continue;
      }
      Ideals::Smaller link = ideals.smaller[visit.next++];
      if (seen[link.set] == static_cast<int>(larger)) continue;
      if (ideals.work[larger] - ideals.work[link.set] > largest_capacity) continue;
      seen[link.set] = static_cast<int>(larger);
      stage.Add(link.unit);
      ++visits;
      ticks += 40 + 12 * static_cast<int64_t>(graph.nets_of[link.unit].size());
      if (stage.static_bytes + stage.stash_bytes > most_bytes) {  // a larger stage holds even more
        stage.Remove(link.unit);
        continue;
      }
      if (first_live[link.set] <= last_live[link.set])
        Extend(static_cast<int>(larger), link.set, stage);
      stack.push_back({link.set, ideals.first[link.set], link.unit});
    }
    // Keeps rounding errors from accumulating over sets.
    stage.Reset();
    for (size_t s = states; s-- > 0;)
      if (best[larger * states + s] < options.below) {
        first_live[larger] = static_cast<int>(s);
        if (last_live[larger] < 0) last_live[larger] = static_cast<int>(s);
      }
  }
}

PartitionResult Search::Trace() const {
  PartitionResult result;
  result.proven = proven;
  result.sets = static_cast<int64_t>(ideals.sets.size());
  size_t set = ideals.sets.size() - 1, states = resources.states, state = 0;
  double least = kInfinity, bound = kInfinity;
  for (size_t s = 0; s < states; ++s) {
    double value = best[set * states + s];
    if (resources.final[s] || options.fewer) bound = std::min(bound, value);
    if (!resources.final[s] || value >= least) continue;
    least = value;
    state = s;
  }
  if (proven) result.lower_bound = bound;
  if (least == kInfinity) return result;
  result.feasible = true;
  while (set != 0) {
    const From& origin = from[set * states + state];
    const StageOption& option = resources.options[origin.option];
    PartitionStage stage;
    stage.device_class = option.device_class;
    stage.replicas = option.replicas;
    ForEach(ideals.sets[set], [&](int unit) {
      if (Has(ideals.sets[origin.set], unit)) return;
      const auto& nodes = graph.units[unit].nodes;
      stage.nodes.insert(stage.nodes.end(), nodes.begin(), nodes.end());
    });
    std::sort(stage.nodes.begin(), stage.nodes.end());
    result.stages.push_back(stage);
    set = origin.set;
    state = origin.state;
  }
  EvaluatePartition(problem, result);
  if (proven && lead.empty()) result.lower_bound = std::min(result.objective, bound);
  return result;
}

PartitionResult ExactPartition(const PartitionProblem& problem, const UnitGraph& graph,
                               const ExactOptions& options) {
  Clock::time_point start = Clock::now();
  if (!options.sequence && DeviceStates(problem) > kMostDeviceStates) return PartitionResult();
  Resources resources = ResourcesOf(problem, options.sequence);
  Ideals ideals;
  int64_t bytes = static_cast<int64_t>(graph.units.size() / 4 + 300) + resources.states * 20;
  int64_t limit = std::min(options.max_sets, options.max_bytes / bytes);
  if (options.ticks)
    limit = std::min(limit, std::max<int64_t>(*options.ticks, 0) / SetTicks(graph));
  if (!EnumerateIdeals(graph, limit, options.max_seconds, ideals)) {
    PartitionResult result;
    result.sets = static_cast<int64_t>(ideals.sets.size());
    if (options.ticks) *options.ticks -= result.sets * SetTicks(graph);
    return result;
  }
  Search search{problem, graph, options, resources, ideals};
  search.ticks = static_cast<int64_t>(ideals.sets.size()) * SetTicks(graph);
  if (!options.forbidden.empty()) {
    search.forbidden = MakeBits(static_cast<int>(graph.units.size()));
    for (size_t u = 0; u < graph.units.size(); ++u)
      if (std::binary_search(options.forbidden.begin(), options.forbidden.end(),
                             graph.units[u].nodes[0]))
        Insert(search.forbidden, static_cast<int>(u));
  }
  search.Run(start);
  if (options.ticks) *options.ticks -= search.ticks;
  return search.Trace();
}

PartitionResult SearchBetter(const PartitionProblem& problem, const UnitGraph& graph,
                             const PartitionResult& known, const ExactOptions& options) {
  PartitionResult found = ExactPartition(problem, graph, options);
  bool better = found.feasible && (!known.feasible || found.objective < known.objective);
  PartitionResult best = better ? found : known;
  best.sets = found.sets;
  best.lower_bound = known.lower_bound;
  best.proven = false;
  if (!found.proven || options.sequence) return best;
  double value = best.feasible ? best.objective : kInfinity;
  best.lower_bound = std::max(known.lower_bound, std::min(found.lower_bound, value));
  best.proven = value <= best.lower_bound * (1 + 1e-12);
  if (best.proven) best.lower_bound = value;
  return best;
}

}  // namespace pipewright
