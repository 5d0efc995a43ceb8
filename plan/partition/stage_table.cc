#include <algorithm>
#include <tuple>

#include "plan/partition/refine.h"

namespace pipewright {

StageTable::StageTable(const PartitionProblem& problem, const UnitGraph& graph, StagedUnits units)
    : problem_(problem), graph_(graph), units_(std::move(units)) {
  size_t count = units_.options.size();
  sums_.resize(count), loads_.resize(count);
  sizes_.assign(count, 0), devices_after_.assign(count, 0);
  for (size_t s = count - 1; s > 0; --s)
    devices_after_[s - 1] = devices_after_[s] + units_.options[s].replicas;
  for (size_t u = 0; u < units_.stage_of.size(); ++u) {
    ++sizes_[units_.stage_of[u]];
    sums_[units_.stage_of[u]].AddUnit(graph.units[u], 1);
  }
  first_.push_back(0);
  for (const Net& net : graph.nets) first_.push_back(first_.back() + net.units.size());
  entries_.resize(first_.back());
  used_.assign(graph.nets.size(), 0);
  for (size_t n = 0; n < graph.nets.size(); ++n) {
    for (int u : graph.nets[n].units) Change(static_cast<int>(n), units_.stage_of[u], 1);
    if (used_[n] < 2) continue;
    for (int i = 0; i < used_[n]; ++i)
      sums_[entries_[first_[n] + i].first].AddCut(graph.nets[n], 1);
  }
  for (size_t s = 0; s < count; ++s) loads_[s] = LoadOf(static_cast<int>(s), sums_[s]);
}

double StageTable::LoadOf(int stage, const StageSums& sums) const {
  return sums.Load(problem_, units_.options[stage], devices_after_[stage]);
}

double StageTable::LargestLoad() const { return *std::max_element(loads_.begin(), loads_.end()); }

int StageTable::Count(int net, int stage) const {
  const auto* entry = &entries_[first_[net]];
  for (int i = 0; i < used_[net]; ++i)
    if (entry[i].first == stage) return entry[i].second;
  return 0;
}

void StageTable::Change(int net, int stage, int by) {
  auto* entry = &entries_[first_[net]];
  int& used = used_[net];
  for (int i = 0; i < used; ++i) {
    if (entry[i].first != stage) continue;
    entry[i].second += by;
    if (entry[i].second == 0) entry[i] = entry[--used];
    return;
  }
  entry[used++] = {stage, by};
}

std::pair<int, int> StageTable::Range(int unit) const {
  int low = 0, high = stages() - 1;
  for (int before : graph_.previous[unit]) low = std::max(low, units_.stage_of[before]);
  for (int after : graph_.next[unit]) high = std::min(high, units_.stage_of[after]);
  return {low, high};
}

std::pair<StageSums, StageSums> StageTable::SumsAfter(int unit, int to) const {
  int from = units_.stage_of[unit];
  StageSums left = sums_[from], right = sums_[to];
  left.AddUnit(graph_.units[unit], -1);
  right.AddUnit(graph_.units[unit], 1);
  for (int n : graph_.nets_of[unit]) {
    const Net& net = graph_.nets[n];
    int size = static_cast<int>(net.units.size()), here = Count(n, from), there = Count(n, to);
    if (here == size) left.AddCut(net, 1);
    if (here == 1) left.AddCut(net, -1);
    if (there == 0) right.AddCut(net, 1);
    if (there == size - 1) right.AddCut(net, -1);
  }
  return {left, right};
}

std::pair<double, double> StageTable::LoadsAfter(int unit, int to) const {
  auto [left, right] = SumsAfter(unit, to);
  return {LoadOf(units_.stage_of[unit], left), LoadOf(to, right)};
}

void StageTable::Move(int unit, int to) {
  int from = units_.stage_of[unit];
  std::tie(sums_[from], sums_[to]) = SumsAfter(unit, to);
  for (int n : graph_.nets_of[unit]) Change(n, from, -1), Change(n, to, 1);
  --sizes_[from], ++sizes_[to];
  units_.stage_of[unit] = to;
  loads_[from] = LoadOf(from, sums_[from]);
  loads_[to] = LoadOf(to, sums_[to]);
}

}  // namespace pipewright
