#include "plan/partition/order_cuts.h"

#include <algorithm>
#include <cmath>

namespace pipewright {

// Units between two neighbouring positions become one.
static UnitGraph Blocks(const UnitGraph& graph, const std::vector<int>& order,
                        const std::vector<int>& positions) {
  std::vector<int> block_of(graph.units.size());
  int blocks = static_cast<int>(positions.size()) - 1;
  for (int b = 0; b < blocks; ++b)
    for (int p = positions[b]; p < positions[b + 1]; ++p) block_of[order[p]] = b;
  return Coarsen(graph, block_of, blocks);
}

// The best cuts of a chain of blocks, from its end.
static OrderCuts CutBlocks(const PartitionProblem& problem, const UnitGraph& blocks,
                           const Resources& resources, double below) {
  int n = static_cast<int>(blocks.units.size());
  size_t states = resources.states;
  struct From {
    int end = -1, state = 0, option = 0;
  };
  std::vector<double> best((n + 1) * states, kInfinity);
  std::vector<From> from((n + 1) * states);
  std::vector<char> useful(n + 1, 0);
  best[n * states] = 0;
  useful[n] = 1;
  bool varies = problem.in_flight == InFlight::k1F1B;
  double limit = below * problem.max_replicas;
  StageLoad stage(problem, blocks);
  for (int begin = n - 1; begin >= 0; --begin) {
    double work = 0;
    int end = begin;
    double* here = &best[begin * states];
    while (end < n && work < limit) {
      const Unit& unit = blocks.units[end];
      double least = kInfinity;
      for (const DeviceClass& device : problem.devices)
        least = std::min(least, device.host ? unit.host_time : unit.device_time / device.speed);
      work += least;
      stage.Add(end++);
      if (!useful[end]) continue;
      const double* after = &best[end * states];
      for (size_t o = 0; o < resources.options.size(); ++o) {
        double load = stage.Load(resources.options[o], 0);
        if (load >= below) continue;
        for (const Resources::Step& step : resources.steps[o]) {
          if (after[step.from] >= below) continue;
          if (varies) load = stage.Load(resources.options[o], step.devices_after);
          double value = std::max(after[step.from], load);
          if (value >= here[step.to] || value >= below) continue;
          here[step.to] = value;
          from[begin * states + step.to] = {end, step.from, static_cast<int>(o)};
        }
      }
    }
    while (end > begin) stage.Remove(--end);
    stage.Reset();
    for (size_t s = 0; s < states; ++s)
      if (here[s] < below) useful[begin] = 1;
  }
  OrderCuts cuts;
  size_t state = 0;
  for (size_t s = 0; s < states; ++s)
    if (resources.final[s] && best[s] < cuts.objective) {
      cuts.objective = best[s];
      state = s;
    }
  if (cuts.objective == kInfinity) return cuts;
  for (int begin = 0; begin < n;) {
    const From& origin = from[begin * states + state];
    cuts.stages.push_back({begin, origin.end, resources.options[origin.option]});
    begin = origin.end;
    state = origin.state;
  }
  return cuts;
}

// Cost of a cut before each position.
static std::vector<double> CutCosts(const PartitionProblem& problem, const UnitGraph& graph,
                                    const std::vector<int>& order) {
  std::vector<double> cost(order.size() + 1, 0);
  std::vector<int> place(order.size());
  for (size_t p = 0; p < order.size(); ++p) place[order[p]] = static_cast<int>(p);
  for (const Net& net : graph.nets) {
    int first = static_cast<int>(order.size()), last = 0;
    for (int unit : net.units) {
      first = std::min(first, place[unit]);
      last = std::max(last, place[unit]);
    }
    double time = net.time + net.transfers * problem.transfer_latency;
    cost[first + 1] += time;
    cost[last + 1] -= time;
  }
  for (size_t p = 1; p < cost.size(); ++p) cost[p] += cost[p - 1];
  return cost;
}

// One position in each of `count` stretches of equal work: where a cut is cheapest.
static std::vector<int> CheapPositions(const UnitGraph& graph, const std::vector<int>& order,
                                       const std::vector<double>& cost, int count) {
  int n = static_cast<int>(order.size());
  double total = 0, each = 1e-9;
  for (const Unit& unit : graph.units) total += unit.device_time;
  each = total / n;  // so that stretches without work end as well
  std::vector<int> positions = {0};
  double work = 0;
  int best = -1, stretch = 0;
  for (int p = 1; p < n; ++p) {
    work += graph.units[order[p - 1]].device_time + each;
    int now = static_cast<int>(work / (2 * total + 1e-300) * count);
    if (now != stretch && best >= 0) {
      positions.push_back(best);
      best = -1;
    }
    stretch = now;
    if (best < 0 || cost[p] < cost[best]) best = p;
  }
  if (best >= 0) positions.push_back(best);
  positions.push_back(n);
  return positions;
}

OrderCuts CutOrder(const PartitionProblem& problem, const UnitGraph& graph,
                   const Resources& resources, const std::vector<int>& order, double below,
                   int64_t pairs) {
  int n = static_cast<int>(order.size());
  int64_t budget = std::max<int64_t>(pairs / std::max(resources.states / 8, 1), 10000);
  int devices = std::max(1, resources.devices / std::max(problem.max_replicas, 1));
  int most = static_cast<int>(std::sqrt(static_cast<double>(budget) * devices));
  std::vector<int> positions;
  std::vector<double> cost;
  if (n <= most) {
    for (int p = 0; p <= n; ++p) positions.push_back(p);
  } else {
    cost = CutCosts(problem, graph, order);
    positions = CheapPositions(graph, order, cost, most);
  }
  double work = 0, speeds = 0;
  for (const Unit& unit : graph.units) work += unit.device_time;
  for (const DeviceClass& device : problem.devices) speeds += device.count * device.speed;
  // Long stages need not be looked at where short ones do: first only those near an even share.
  auto solve = [&](double under) {
    UnitGraph blocks = Blocks(graph, order, positions);
    OrderCuts cuts;
    for (double most = 1.3 * work / speeds;
         cuts.stages.empty() && most > 0 && most < std::min(under, 4 * work); most *= 1.7)
      cuts = CutBlocks(problem, blocks, resources, most);
    if (cuts.stages.empty()) cuts = CutBlocks(problem, blocks, resources, under);
    for (Cut& cut : cuts.stages) cut.begin = positions[cut.begin], cut.end = positions[cut.end];
    return cuts;
  };
  OrderCuts best = solve(below);
  for (int round = 0; n > most && round < 3 && !best.stages.empty(); ++round) {
    // Half the positions spread out, the others around the cuts.
    positions = CheapPositions(graph, order, cost, most / 2);
    int around = std::max<int>(1, most / 4 / static_cast<int>(best.stages.size()));
    for (const Cut& cut : best.stages)
      for (int p = std::max(0, cut.begin - around); p <= std::min(n, cut.begin + around); ++p)
        positions.push_back(p);
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    OrderCuts finer = solve(best.objective);
    if (finer.stages.empty()) break;
    best = finer;
  }
  return best;
}

}  // namespace pipewright
