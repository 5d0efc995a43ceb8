#include "plan/partition/exact.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "plan/partition/bits.h"
#include "plan/partition/stage_load.h"

namespace pipewright {

namespace {

using Clock = std::chrono::steady_clock;

// All up-sets of a unit graph (sets that hold, with a unit, everything after it), smallest first.
struct UpSets {
  struct Smaller {
    int set, unit;  // the set without `unit`
  };
  std::vector<Bits> sets;
  std::vector<int> first;  // of each set, in `smaller`; one more at the end
  std::vector<Smaller> smaller;
  bool complete = false;
};

}  // namespace

static double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// By size, so that every set comes after those inside it.
static UpSets EnumerateUpSets(const UnitGraph& graph, const ExactOptions& options, int states,
                              Clock::time_point start) {
  int n = static_cast<int>(graph.units.size());
  UpSets up;
  up.sets.push_back(MakeBits(n));
  int64_t bytes_a_set = static_cast<int64_t>(up.sets[0].size() * 16 + 200 + states * 16);
  int64_t limit = std::min(options.max_sets, options.max_bytes / bytes_a_set);
  std::vector<std::pair<int, UpSets::Smaller>> links;  // (larger set, how it became)
  for (size_t begin = 0, end = 1; begin < end; begin = end, end = up.sets.size()) {
    std::unordered_map<Bits, int, BitsHash> level;
    for (size_t s = begin; s < end; ++s) {
      Bits set = up.sets[s];
      for (int u = n - 1; u >= 0; --u) {
        if (Has(set, u)) continue;
        bool ready = std::all_of(graph.next[u].begin(), graph.next[u].end(),
                                 [&](int after) { return Has(set, after); });
        if (!ready) continue;
        Insert(set, u);
        auto [found, added] = level.emplace(set, static_cast<int>(up.sets.size()));
        if (added) up.sets.push_back(set);
        links.push_back({found->second, {static_cast<int>(s), u}});
        Erase(set, u);
      }
      if (static_cast<int64_t>(up.sets.size()) > limit) return up;
      if (static_cast<int64_t>(links.size()) > 8 * limit) return up;
      if (s % 256 == 0 && Seconds(start) > options.max_seconds) return up;
    }
  }
  up.first.assign(up.sets.size() + 1, 0);
  for (const auto& link : links) ++up.first[link.first + 1];
  for (size_t s = 0; s < up.sets.size(); ++s) up.first[s + 1] += up.first[s];
  up.smaller.resize(links.size());
  std::vector<int> fill(up.first.begin(), up.first.end() - 1);
  for (const auto& link : links) up.smaller[fill[link.first]++] = link.second;
  up.complete = true;
  return up;
}

namespace {

struct Search {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const ExactOptions& options;
  const Resources& resources;
  const UpSets& up;
  std::vector<double> best;  // [set * states + state]
  struct From {
    int set = -1;
    int state = 0, option = 0;
  };
  std::vector<From> from;
  std::vector<double> unit_work;  // the least time that a unit takes, on any device
  std::vector<double> set_work;
  Bits forbidden;
  bool ban = false;
  bool proven = true;

  void Run(Clock::time_point start);
  bool Relevant(int set) const;
  void Extend(int larger, int smaller, const StageLoad& stage);
  PartitionResult Trace() const;
};

}  // namespace

// Whether some number of devices may hold the set, and the others the rest, at loads under `below`.
bool Search::Relevant(int set) const {
  double work = set_work[set], rest = set_work.back() - work;
  for (int s = 0; s < resources.states; ++s)
    if (work <= resources.used[s] * options.below &&
        rest <= (resources.devices - resources.used[s]) * options.below * (1 + 1e-9))
      return true;
  return false;
}

void Search::Extend(int larger, int smaller, const StageLoad& stage) {
  if (ban) {
    bool equal = true;
    for (size_t w = 0; w < forbidden.size(); ++w)
      equal = equal && (up.sets[larger][w] & ~up.sets[smaller][w]) == forbidden[w];
    if (equal) return;
  }
  size_t states = resources.states;
  const double* below = &best[smaller * states];
  double* here = &best[larger * states];
  From* origin = &from[larger * states];
  bool in_flight_varies = problem.in_flight == InFlight::k1F1B && stage.stash_bytes > 0;
  for (size_t o = 0; o < resources.options.size(); ++o) {
    const StageOption& option = resources.options[o];
    double load = stage.Load(option, 0);
    if (load >= options.below) continue;
    for (const Resources::Step& step : resources.steps[o]) {
      if (below[step.from] >= options.below) continue;
      if (in_flight_varies) load = stage.Load(option, step.devices_after);
      double value = std::max(below[step.from], load);
      if (value >= here[step.to] || value >= options.below) continue;
      here[step.to] = value;
      origin[step.to] = {smaller, step.from, static_cast<int>(o)};
    }
  }
}

void Search::Run(Clock::time_point start) {
  size_t count = up.sets.size(), states = resources.states;
  best.assign(count * states, kInfinity);
  from.assign(count * states, From{});
  best[0] = 0;
  for (const Unit& unit : graph.units) {
    double least = kInfinity;
    for (const DeviceClass& device : problem.devices)
      least = std::min(least, device.host ? unit.host_time : unit.device_time / device.speed);
    unit_work.push_back(least);
  }
  set_work.assign(count, 0);
  for (size_t s = 0; s < count; ++s)
    ForEach(up.sets[s], [&](int u) { set_work[s] += unit_work[u]; });
  std::vector<char> useful(count, 0);  // whether a stage may begin there
  useful[0] = 1;
  double limit = options.below * problem.max_replicas;

  StageLoad stage(problem, graph);
  double stage_work = 0;
  std::vector<int> seen(count, -1);
  struct Visit {
    int set, next;
    int unit;  // added to the stage to come here
  };
  std::vector<Visit> stack;
  for (size_t larger = 1; larger < count; ++larger) {
    if (larger + 1 < count && !Relevant(static_cast<int>(larger))) continue;
    if (larger % 64 == 0 && Seconds(start) > options.max_seconds) {
      proven = false;
      return;
    }
    stack.push_back({static_cast<int>(larger), up.first[larger], -1});
    while (!stack.empty()) {
      Visit& visit = stack.back();
      if (visit.next == up.first[visit.set + 1]) {
        if (visit.unit >= 0) {
          stage.Remove(visit.unit);
          stage_work -= unit_work[visit.unit];
        }
        stack.pop_back();
        continue;
      }
      UpSets::Smaller link = up.smaller[visit.next++];
      if (seen[link.set] == static_cast<int>(larger)) continue;
      if (stage_work + unit_work[link.unit] > limit) continue;
      seen[link.set] = static_cast<int>(larger);
      stage.Add(link.unit);
      stage_work += unit_work[link.unit];
      if (useful[link.set]) Extend(static_cast<int>(larger), link.set, stage);
      stack.push_back({link.set, up.first[link.set], link.unit});
    }
    // Rounding must not build up from set to set.
    stage.Reset();
    stage_work = 0;
    for (size_t s = 0; s < states; ++s)
      if (best[larger * states + s] < options.below) useful[larger] = 1;
  }
}

PartitionResult Search::Trace() const {
  PartitionResult result;
  result.proven = proven;
  result.sets = static_cast<int64_t>(up.sets.size());
  size_t set = up.sets.size() - 1, states = resources.states, state = 0;
  double least = kInfinity;
  for (size_t s = 0; s < states; ++s)
    if (resources.final[s] && best[set * states + s] < least) {
      least = best[set * states + s];
      state = s;
    }
  if (least == kInfinity) return result;
  result.feasible = true;
  while (set != 0) {
    const From& origin = from[set * states + state];
    const StageOption& option = resources.options[origin.option];
    PartitionStage stage;
    stage.device_class = option.device_class;
    stage.replicas = option.replicas;
    ForEach(up.sets[set], [&](int unit) {
      if (Has(up.sets[origin.set], unit)) return;
      const auto& nodes = graph.units[unit].nodes;
      stage.nodes.insert(stage.nodes.end(), nodes.begin(), nodes.end());
    });
    std::sort(stage.nodes.begin(), stage.nodes.end());
    result.stages.push_back(stage);
    set = origin.set;
    state = origin.state;
  }
  EvaluatePartition(problem, result);
  result.lower_bound = proven ? result.objective : 0;
  return result;
}

PartitionResult ExactPartition(const PartitionProblem& problem, const ExactOptions& options) {
  Clock::time_point start = Clock::now();
  UnitGraph graph = BuildUnits(problem, options.merge_parameters);
  Resources resources(problem);
  UpSets up = EnumerateUpSets(graph, options, resources.states, start);
  if (!up.complete) {
    PartitionResult result;
    result.sets = static_cast<int64_t>(up.sets.size());
    return result;
  }
  Search search{problem, graph, options, resources, up, {}, {}, {}, {}, {}};
  if (!options.forbidden.empty()) {
    search.ban = true;
    search.forbidden = MakeBits(static_cast<int>(graph.units.size()));
    for (size_t u = 0; u < graph.units.size(); ++u)
      if (std::binary_search(options.forbidden.begin(), options.forbidden.end(),
                             graph.units[u].nodes[0]))
        Insert(search.forbidden, static_cast<int>(u));
  }
  search.Run(start);
  return search.Trace();
}

}  // namespace pipewright
