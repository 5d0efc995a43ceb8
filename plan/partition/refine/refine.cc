#include "plan/partition/refine/refine.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>

namespace pipewright {

namespace {

struct Candidate {
  double gain;
  int unit, to;
  bool operator<(const Candidate& other) const {
    return gain != other.gain ? gain < other.gain : unit > other.unit;
  }
};

struct Pass {
  const UnitGraph& graph;
  StageTable& table;
  const RefineOptions& options;
  double scale;  // loads are divided by it, so that powers stay small
  std::vector<char> moved;
  std::vector<int> near;  // units whose best move may have changed
  std::vector<double> powers;  // the powers of the stages' loads
  std::priority_queue<Candidate> queue;

  double Power(double load) const {
    double x = load / scale, out = 1;
    for (int p = options.power; p > 0; p >>= 1, x *= x)
      if (p & 1) out *= x;
    return out;
  }

  // Returns the best move of a unit; `to` < 0: none.
  Candidate Best(int unit) {
    Candidate best{-kInfinity, unit, -1};
    int from = table.units().stage_of[unit];
    auto [low, high] = table.Range(unit);
    if (low == high || table.size(from) < 2) return best;
    int least = low;
    for (int to = low + 1; to <= high; ++to)
      if (table.load(to) < table.load(least)) least = to;
    *options.steps -= (high - low) / 8;
    *options.steps -= table.LookAt(unit);
    double left = table.LoadWithout();
    if (left == kInfinity) return best;
    double gained = powers[from] - Power(left);
    const std::array<int, 5> stages = {low, from - 1, from + 1, high, least};
    for (auto stage = stages.begin(); stage != stages.end(); ++stage) {
      int to = *stage;
      if (to < low || to > high || to == from || std::find(stages.begin(), stage, to) != stage)
        continue;
      *options.steps -= kLookSteps;
      double right = table.LoadWith(to);
      if (right == kInfinity) continue;
      double gain = gained + powers[to] - Power(right);
      if (gain > best.gain) best.gain = gain, best.to = to;
    }
    return best;
  }

  void Push(int unit) {
    Candidate candidate = Best(unit);
    if (candidate.to >= 0) queue.push(candidate);
  }

  double Sum() const { return std::accumulate(powers.begin(), powers.end(), 0.0); }

  void Move(int unit, int to) {
    int from = table.units().stage_of[unit];
    table.Move(unit, to);
    powers[from] = Power(table.load(from)), powers[to] = Power(table.load(to));
  }

  bool Run() {
    int n = static_cast<int>(graph.units.size());
    scale = table.LargestLoad();
    if (!(scale > 0) || scale == kInfinity) return false;
    moved.assign(n, 0);
    for (int s = 0; s < table.stages(); ++s) powers.push_back(Power(table.load(s)));
    for (int u = 0; u < n; ++u) Push(u);
    double start = Sum(), now = start, best = start;
    std::vector<std::pair<int, int>> undo;  // units and where they were
    size_t kept = 0, max_idle_moves = static_cast<size_t>(20 + n / 20);
    while (!queue.empty() && *options.steps > 0 && undo.size() < kept + max_idle_moves) {
      Candidate top = queue.top();
      queue.pop();
      if (moved[top.unit]) continue;
      Candidate fresh = Best(top.unit);
      if (fresh.to < 0) continue;
      if (fresh.gain < top.gain - 1e-12 * start && !queue.empty() && fresh < queue.top()) {
        queue.push(fresh);
        continue;
      }
      undo.push_back({top.unit, table.units().stage_of[top.unit]});
      moved[top.unit] = 1;
      Move(top.unit, fresh.to);
      now -= fresh.gain;
      if (now < best - 1e-12 * start) {
        now = Sum();  // a sum of differences may have lost all digits
        if (now < best - 1e-12 * start) best = now, kept = undo.size();
      }
      near.clear();
      for (int net : graph.nets_of[top.unit])
        if (graph.nets[net].units.size() <= 32)
          near.insert(near.end(), graph.nets[net].units.begin(), graph.nets[net].units.end());
      for (const auto* list : {&graph.previous[top.unit], &graph.next[top.unit]})
        if (list->size() <= 32) near.insert(near.end(), list->begin(), list->end());
      std::sort(near.begin(), near.end());
      near.erase(std::unique(near.begin(), near.end()), near.end());
      for (int v : near)
        if (!moved[v]) Push(v);
    }
    while (undo.size() > kept) {
      Move(undo.back().first, undo.back().second);
      undo.pop_back();
    }
    return kept > 0;
  }
};

}  // namespace

bool Refine(const UnitGraph& graph, StageTable& table, const RefineOptions& options) {
  if (table.stages() < 2) return false;
  bool better = false;
  int64_t& steps = *options.steps;
  for (int pass = 0; pass < options.passes; ++pass) {
    if (steps <= 0 || !Pass{graph, table, options, 1, {}, {}, {}, {}}.Run()) break;
    better = true;
  }
  return better;
}

}  // namespace pipewright
