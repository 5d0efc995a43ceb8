#include "plan/partition/order_cuts.h"

#include <algorithm>
#include <cmath>

namespace pipewright {

namespace {

// An order as a chain of blocks: units between two neighbouring positions become one.
struct Chain {
  // A net where it touches a block.
  struct Touch {
    const Net* net;
    int before;  // the block before that it touches; -1: none
    int first;   // where this is the last one: the first; else -1
  };
  std::vector<StageSums> blocks;
  std::vector<size_t> begin;  // touches of block b: begin[b] and on
  std::vector<Touch> touches;
};

}  // namespace

static Chain Blocks(const UnitGraph& graph, const std::vector<int>& order,
                    const std::vector<int>& positions) {
  Chain chain;
  size_t count = positions.size() - 1;
  std::vector<int> block_of(graph.units.size());
  chain.blocks.resize(count);
  for (size_t b = 0; b < count; ++b)
    for (int p = positions[b]; p < positions[b + 1]; ++p) {
      block_of[order[p]] = static_cast<int>(b);
      chain.blocks[b].AddUnit(graph.units[order[p]], 1);
    }
  std::vector<std::pair<int, Chain::Touch>> found;
  std::vector<int> blocks;
  for (const Net& net : graph.nets) {
    blocks.clear();
    for (int unit : net.units) blocks.push_back(block_of[unit]);
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    if (blocks.size() < 2) continue;
    for (size_t i = 0; i < blocks.size(); ++i)
      found.push_back(
          {blocks[i], {&net, i > 0 ? blocks[i - 1] : -1, i + 1 == blocks.size() ? blocks[0] : -1}});
  }
  chain.begin.assign(count + 1, 0);
  for (const auto& touch : found) ++chain.begin[touch.first + 1];
  for (size_t b = 0; b < count; ++b) chain.begin[b + 1] += chain.begin[b];
  chain.touches.resize(found.size());
  std::vector<size_t> fill(chain.begin.begin(), chain.begin.end() - 1);
  for (const auto& touch : found) chain.touches[fill[touch.first]++] = touch.second;
  return chain;
}

namespace {

// Where a cut can be: the devices behind it must hold the work there, those ahead of it the rest,
// both with the transfers between them, at loads under a limit.
struct CutRoom {
  double below;              // no load is as large
  std::vector<double> work;  // before each position, in device time
  std::vector<double> cut;   // at each position: device time that it costs each side at least
  const Resources& resources;

  CutRoom(const PartitionProblem& problem, const Chain& chain, const Resources& r, double b)
      : below(b), resources(r) {
    double cut_weight = kInfinity, latency_weight = kInfinity;
    for (const DeviceClass& device : problem.devices) {
      if (device.count == 0 || device.host) continue;
      cut_weight = std::min(cut_weight, device.speed / device.link);
      latency_weight = std::min(latency_weight, device.speed * problem.transfer_latency);
    }
    if (cut_weight == kInfinity) cut_weight = latency_weight = 0;
    size_t n = chain.blocks.size();
    work.assign(n + 1, 0), cut.assign(n + 1, 0);
    for (size_t b = 0; b < n; ++b) {
      work[b + 1] = work[b] + chain.blocks[b].device_time;
      for (size_t t = chain.begin[b]; t < chain.begin[b + 1]; ++t) {
        const Chain::Touch& touch = chain.touches[t];
        double time = touch.net->time * cut_weight + touch.net->transfers * latency_weight;
        if (touch.before < 0) cut[b + 1] += time;
        if (touch.first >= 0) cut[b + 1] -= time;
      }
    }
    for (size_t p = 1; p < n; ++p) cut[p] += cut[p - 1];
    cut[n] = 0;
  }

  // Whether a stage can begin at the position in any state.
  bool Find(int position, std::vector<char>& possible) const {
    double before = work[position], after = work.back() - before, cost = cut[position];
    double slack = 1e-9 * (work.back() + cost);
    bool any = false;
    auto holds = [&](double speed, double needed) {
      double room = speed > 0 ? below * speed : 0;
      return speed == kInfinity || needed + cost <= room + slack;
    };
    for (int s = 0; s < resources.states; ++s) {
      possible[s] = holds(resources.speed[s], after) && holds(resources.speed_left[s], before);
      any = any || possible[s];
    }
    return any;
  }
};

}  // namespace

// The best cuts of a chain of blocks, from its end.
static OrderCuts CutBlocks(const PartitionProblem& problem, const Chain& chain,
                           const Resources& resources, double below, int64_t& steps) {
  int n = static_cast<int>(chain.blocks.size());
  size_t states = resources.states;
  struct From {
    int end = -1, state = 0, option = 0;
  };
  std::vector<double> best((n + 1) * states, kInfinity);
  std::vector<From> from((n + 1) * states);
  // Of each position: the states in which a stage may begin there; first > last: none.
  std::vector<int> first_live(n + 1, 0), last_live(n + 1, -1);
  best[n * states] = 0;
  last_live[n] = 0;
  CutRoom room(problem, chain, resources, below);
  std::vector<char> possible(states);
  bool varies = problem.in_flight == InFlight::k1F1B;
  double limit = below * problem.max_replicas;
  std::vector<double> least(n, kInfinity);  // time of each block on its best device
  for (int b = 0; b < n; ++b)
    for (const DeviceClass& device : problem.devices)
      least[b] = std::min(least[b], device.host ? chain.blocks[b].host_time
                                                : chain.blocks[b].device_time / device.speed);
  int64_t taken = n * static_cast<int64_t>(states) / 8;
  for (int begin = n - 1; begin >= 0; --begin) {
    if (!room.Find(begin, possible)) continue;
    double work = 0;
    double* here = &best[begin * states];
    StageSums stage;
    for (int end = begin; end < n && work < limit;) {
      const StageSums& block = chain.blocks[end];
      work += least[end];
      stage.Add(block);
      taken += 1 + static_cast<int64_t>(chain.begin[end + 1] - chain.begin[end]);
      for (size_t t = chain.begin[end]; t < chain.begin[end + 1]; ++t) {
        const Chain::Touch& touch = chain.touches[t];
        if (touch.before < begin) stage.AddCut(*touch.net, 1);
        if (touch.before < begin && touch.before >= 0) stage.entering_time += touch.net->time;
        if (touch.first >= begin) stage.AddCut(*touch.net, -1);
      }
      ++end;
      if (first_live[end] > last_live[end]) continue;
      const double* after = &best[end * states];
      for (size_t o = 0; o < resources.options.size(); ++o) {
        if (resources.steps[o].empty()) continue;
        const Resources::Step& lowest = resources.steps[o].front();
        if (lowest.from > last_live[end] || resources.steps[o].back().from < first_live[end])
          continue;
        if (resources.steps[o].size() == 1 &&  // as of devices in a sequence
            (after[lowest.from] >= std::min(below, here[lowest.to]) || !possible[lowest.to]))
          continue;
        double load = stage.Load(problem, resources.options[o], 0);
        if (load >= below) continue;
        auto after_all = resources.steps[o].end();
        auto step =  // ascending by `from`
            std::lower_bound(resources.steps[o].begin(), after_all, first_live[end],
                             [](const Resources::Step& a, int state) { return a.from < state; });
        taken += last_live[end] - first_live[end];
        for (; step != after_all && step->from <= last_live[end]; ++step) {
          if (after[step->from] >= below || !possible[step->to]) continue;
          if (varies) load = stage.Load(problem, resources.options[o], step->devices_after);
          double value = std::max(after[step->from], load);
          if (value >= here[step->to] || value >= below) continue;
          here[step->to] = value;
          from[begin * states + step->to] = {end, step->from, static_cast<int>(o)};
        }
      }
    }
    for (size_t s = states; s-- > 0;)
      if (here[s] < below) {
        first_live[begin] = static_cast<int>(s);
        if (last_live[begin] < 0) last_live[begin] = static_cast<int>(s);
      }
  }
  steps -= taken;
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
                   int64_t pairs, int64_t& steps) {
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
    Chain blocks = Blocks(graph, order, positions);
    OrderCuts cuts;
    double slack = 0.02, share = work / speeds;
    for (double most = share * (1 + slack);
         cuts.stages.empty() && under > 2 * share && most > 0 && most < 4 * work;
         slack *= 1.7, most *= 1 + slack)
      cuts = CutBlocks(problem, blocks, resources, std::min(most, under), steps);
    if (cuts.stages.empty()) cuts = CutBlocks(problem, blocks, resources, under, steps);
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
