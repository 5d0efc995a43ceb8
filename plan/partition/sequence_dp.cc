#include "plan/partition/sequence_dp.h"

#include <algorithm>
#include <cmath>

namespace pipewright {

namespace {

// An order as a chain of blocks: units between two neighbouring positions become one.
struct Chain {
  // A net where it touches a block.
  struct Touch {
    double time, transfers, bytes;
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
          {blocks[i],
           {net.time, net.transfers, net.bytes, i > 0 ? blocks[i - 1] : -1,
            i + 1 == blocks.size() ? blocks[0] : -1}});
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
        double time = touch.time * cut_weight + touch.transfers * latency_weight;
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
  double limit = below * problem.max_replicas, most_bytes = 0;
  for (const DeviceClass& device : problem.devices)
    if (device.count > 0)
      most_bytes =
          std::max(most_bytes, device.host ? kInfinity : device.memory_bytes * (1 + 1e-12));
  const bool limited = most_bytes < kInfinity;
  const bool varies = MemoryByPlace(problem);
  std::vector<double> least(n, kInfinity);  // time of each block on its best device
  for (int b = 0; b < n; ++b)
    for (const DeviceClass& device : problem.devices)
      least[b] = std::min(least[b], device.host ? chain.blocks[b].host_time
                                                : chain.blocks[b].device_time / device.speed);
  // Options of one step, as of devices in a sequence, by where they begin; and the others.
  struct Single {
    int from, to, option;
  };
  std::vector<Single> singles;
  std::vector<size_t> others, first_single(states + 1, 0);
  std::vector<int> devices_after(resources.options.size(), 0);
  for (size_t o = 0; o < resources.options.size(); ++o) {
    if (resources.steps[o].size() > 1) others.push_back(o);
    if (resources.steps[o].size() != 1) continue;
    const Resources::Step& step = resources.steps[o][0];
    singles.push_back({step.from, step.to, static_cast<int>(o)});
    devices_after[o] = step.devices_after;
    ++first_single[step.from + 1];
  }
  std::stable_sort(singles.begin(), singles.end(),
                   [](const Single& a, const Single& b) { return a.from < b.from; });
  for (size_t s = 0; s < states; ++s) first_single[s + 1] += first_single[s];
  int64_t taken = n * static_cast<int64_t>(states) / 8;
  for (int begin = n - 1; begin >= 0; --begin) {
    if (!room.Find(begin, possible)) continue;
    double work = 0;
    double* here = &best[begin * states];
    // Only what is less counts.
    for (size_t s = 0; s < states; ++s) here[s] = possible[s] ? below : -1;
    StageSums stage;
    for (int end = begin; end < n && work < limit;) {
      const StageSums& block = chain.blocks[end];
      work += least[end];
      stage.Add(block);
      if (stage.static_bytes + stage.stash_bytes > most_bytes) break;
      taken += 1 + static_cast<int64_t>(chain.begin[end + 1] - chain.begin[end]) / 2;
      for (size_t t = chain.begin[end]; t < chain.begin[end + 1]; ++t) {
        const Chain::Touch& touch = chain.touches[t];
        if (touch.before < begin) stage.AddCut(touch, 1);
        if (touch.before < begin && touch.before >= 0) stage.entering_time += touch.time;
        if (touch.first >= begin) stage.AddCut(touch, -1);
      }
      ++end;
      if (first_live[end] > last_live[end]) continue;
      const double* after = &best[end * states];
      for (size_t i = first_single[first_live[end]]; i < first_single[last_live[end] + 1]; ++i) {
        auto [after_state, state, o] = singles[i];
        ++taken;
        if (after[after_state] >= here[state]) continue;
        double load = stage.Load(problem, resources.options[o], devices_after[o]);
        double value = std::max(after[after_state], load);
        if (value >= here[state]) continue;
        here[state] = value;
        from[begin * states + state] = {end, after_state, o};
      }
      for (size_t o : others) {
        const Resources::Step& lowest = resources.steps[o].front();
        if (lowest.from > last_live[end] || resources.steps[o].back().from < first_live[end])
          continue;
        double load = stage.Load(problem, resources.options[o], 0);
        if (load >= below) continue;
        auto after_all = resources.steps[o].end();
        auto step =  // ascending by `from`
            std::lower_bound(resources.steps[o].begin(), after_all, first_live[end],
                             [](const Resources::Step& a, int state) { return a.from < state; });
        taken += (last_live[end] - first_live[end]) / (varies ? 1 : 8) + (limited ? 4 : 0);
        for (; step != after_all && step->from <= last_live[end]; ++step) {
          if (after[step->from] >= here[step->to]) continue;
          if (varies) load = stage.Load(problem, resources.options[o], step->devices_after);
          double value = std::max(after[step->from], load);
          if (value >= here[step->to]) continue;
          here[step->to] = value;
          from[begin * states + step->to] = {end, step->from, static_cast<int>(o)};
        }
      }
    }
    for (size_t s = states; s-- > 0;)
      if (here[s] < 0 || here[s] >= below) {
        here[s] = kInfinity;
      } else {
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
  double work = 0, speeds = 0;
  for (const Unit& unit : graph.units) work += unit.device_time;
  for (const DeviceClass& device : problem.devices) speeds += device.count * device.speed;
  const double share = work / speeds;
  // Positions that may be cuts where stages hold so many even shares of the work.
  auto most_positions = [&](double shares) {
    shares = std::clamp(shares, 1.0, static_cast<double>(devices));
    return static_cast<int>(std::sqrt(static_cast<double>(budget) * devices / shares));
  };
  std::vector<double> cost;
  // The cheapest positions spread out, half of them where others are around cuts that are known.
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
  bool coarse = false;  // whether positions were left out
  // Where no limit is known: first only stages near an even share, then longer ones.
  auto solve = [&](double under, const std::vector<Cut>& known) {
    OrderCuts cuts;
    auto attempt = [&](double limit) {
      std::vector<int> positions = choose(limit, known);
      coarse = static_cast<int>(positions.size()) <= n;
      cuts = CutBlocks(problem, Blocks(graph, order, positions), resources, limit, steps);
      for (Cut& cut : cuts.stages) cut.begin = positions[cut.begin], cut.end = positions[cut.end];
    };
    double slack = 0.02;
    for (double most = share * (1 + slack);
         under == kInfinity && cuts.stages.empty() && most > 0 && most < 4 * work;
         slack *= 1.7, most *= 1 + slack)
      attempt(most);
    if (cuts.stages.empty()) attempt(under);
    return cuts;
  };
  OrderCuts best = solve(below, {});
  for (int round = 0; coarse && round < 3 && !best.stages.empty(); ++round) {
    OrderCuts finer = solve(best.objective, best.stages);
    if (finer.stages.empty()) break;
    best = finer;
  }
  return best;
}

}  // namespace pipewright
