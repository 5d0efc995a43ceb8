#include "plan/partition/fast/sequence_dp.h"

#include <algorithm>
#include <cmath>

#include "plan/partition/fast/block_cuts.h"

namespace pipewright {

// Returns the cost of a cut before each position.
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

// Returns the position of the cheapest cut in each of `count` stretches of equal work.
static std::vector<int> CheapPositions(const UnitGraph& graph, const std::vector<int>& order,
                                       const std::vector<double>& cost, int count) {
  int n = static_cast<int>(order.size());
  double total = 0, each = 1e-9;
  for (const Unit& unit : graph.units) total += unit.device_time;
  each = total / n;  // lets stretches without work end too
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

// If no limit is known, first tries 2 % above an even share of the work. Each later limit is higher
// by a slack that grows by a factor of 1.7.
constexpr double kFirstSlack = 0.02, kSlackGrowth = 1.7;
// The least budget of pairs of positions: many device states reduce `pairs` to no less than this.
constexpr int64_t kLeastPairs = 10'000;
constexpr int kFinerRounds = 3;  // rounds that add positions around the best cuts

SequenceCuts CutOrder(const PartitionProblem& problem, const UnitGraph& graph,
                      const Resources& resources, const std::vector<int>& order, double below,
                      int64_t pairs, int64_t& steps) {
  int n = static_cast<int>(order.size());
  int64_t budget = std::max<int64_t>(pairs / std::max(resources.states / 8, 1), kLeastPairs);
  int devices = std::max(1, resources.devices / std::max(problem.max_replicas, 1));
  double work = 0, speeds = 0;
  for (const Unit& unit : graph.units) work += unit.device_time;
  for (const DeviceClass& device : problem.devices) speeds += device.count * device.speed;
  const double share = work / speeds;
  // Returns the number of positions that can be tried if stages hold `shares` even shares of the
  // work.
  auto most_positions = [&](double shares) {
    shares = std::clamp(shares, 1.0, static_cast<double>(devices));
    return static_cast<int>(std::sqrt(static_cast<double>(budget) * devices / shares));
  };
  std::vector<double> cost;
  // Returns the cheapest positions, spread out; if cuts are known, half of them are around those.
  auto choose = [&](double under, const std::vector<Cut>& known) {
    int most = share > 0 ? most_positions(under / share / 2) : most_positions(1);
    std::vector<int> positions;
    if (n <= most) {
      for (int p = 0; p <= n; ++p) positions.push_back(p);
      return positions;
    }
    if (cost.empty()) cost = CutCosts(problem, graph, order);
    positions = CheapPositions(graph, order, cost, known.empty() ? most : most / 2);
    if (known.empty()) return positions;
    int around = std::max<int>(1, most / 4 / static_cast<int>(known.size()));
    for (const Cut& cut : known)
      for (int p = std::max(0, cut.begin - around); p <= std::min(n, cut.begin + around); ++p)
        positions.push_back(p);
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    return positions;
  };
  bool coarse = false;  // positions were left out
  // If no limit is known, stages near an even share are tried first, then longer ones.
  auto solve = [&](double under, const std::vector<Cut>& known) {
    SequenceCuts cuts;
    auto attempt = [&](double limit) {
      std::vector<int> positions = choose(limit, known);
      coarse = static_cast<int>(positions.size()) <= n;
      cuts = CutBlocks(problem, ChainOf(graph, order, positions), resources, limit, steps);
      for (Cut& cut : cuts.stages) cut.begin = positions[cut.begin], cut.end = positions[cut.end];
    };
    double slack = kFirstSlack;
    for (double most = share * (1 + slack);
         under == kInfinity && cuts.stages.empty() && most > 0 && most < 4 * work;
         slack *= kSlackGrowth, most *= 1 + slack)
      attempt(most);
    if (cuts.stages.empty()) attempt(under);
    return cuts;
  };
  SequenceCuts best = solve(below, {});
  for (int round = 0; coarse && round < kFinerRounds && !best.stages.empty(); ++round) {
    SequenceCuts finer = solve(best.objective, best.stages);
    if (finer.stages.empty()) break;
    best = finer;
  }
  return best;
}

PartitionState StagesOfCuts(const std::vector<int>& order, const SequenceCuts& cuts) {
  PartitionState units;
  units.stage_of.resize(order.size());
  for (const Cut& cut : cuts.stages) {
    for (int p = cut.begin; p < cut.end; ++p)
      units.stage_of[order[p]] = static_cast<int>(units.options.size());
    units.options.push_back(cut.option);
  }
  return units;
}

}  // namespace pipewright
