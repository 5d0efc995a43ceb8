#include "plan/partition/refine/stage_table.h"

#include <algorithm>

namespace pipewright {

StageTable::StageTable(const PartitionProblem& problem, const UnitGraph& graph,
                       PartitionState units)
    : problem_(problem), graph_(graph), units_(std::move(units)) {
  size_t count = units_.options.size();
  sums_.resize(count), loads_.resize(count), costs_.resize(count);
  sizes_.assign(count, 0), devices_after_.assign(count, 0);
  shared_.assign(count, {0, 0}), details_.resize(count);
  for (size_t s = count - 1; s > 0; --s)
    devices_after_[s - 1] = devices_after_[s] + units_.options[s].replicas;
  for (size_t u = 0; u < units_.stage_of.size(); ++u) {
    ++sizes_[units_.stage_of[u]];
    sums_[units_.stage_of[u]].AddUnit(graph.units[u], 1);
  }
  for (int s = 0; s < static_cast<int>(count); ++s) SetCosts(s);
  const double of_transfer = JoinCosts();
  int places = 0;
  places_.reserve(graph.nets.size());
  for (const Net& net : graph.nets) {
    int size = static_cast<int>(net.units.size());
    places_.push_back({net.time + net.transfers * of_transfer, places, size, 0});
    places += size;
  }
  entries_.resize(places);
  for (size_t n = 0; n < graph.nets.size(); ++n) {
    NetPlace& place = places_[n];
    for (int u : graph.nets[n].units) Change(place, units_.stage_of[u], 1);
    for (int i = 0; i < place.used; ++i)
      sums_[entries_[place.first + i].stage].stash_bytes += graph.nets[n].stash_bytes;
    if (place.used < 2) continue;
    for (int i = 0; i < place.used; ++i)
      sums_[entries_[place.first + i].stage].AddCut(graph.nets[n], 1);
  }
  first_net_.reserve(graph.units.size() + 1), nets_.reserve(places);
  for (const auto& nets : graph.nets_of) {
    first_net_.push_back(static_cast<int>(nets_.size()));
    nets_.insert(nets_.end(), nets.begin(), nets.end());
  }
  first_net_.push_back(static_cast<int>(nets_.size()));
  ranges_.resize(graph.units.size());
  for (int u = 0; u < static_cast<int>(graph.units.size()); ++u) FindRange(u);
  for (int s = 0; s < static_cast<int>(count); ++s) SetLoad(s);
}

// Sets the coefficients that StageSums::Load would use.
void StageTable::SetCosts(int stage) {
  StageCost& cost = costs_[stage];
  const StageOption& option = units_.options[stage];
  const DeviceClass& device = problem_.devices[option.device_class];
  double r = option.replicas;
  cost.host = device.host;
  if (cost.host) {
    cost.host_time = 1 / r;
    return;
  }
  cost.device_time = 1 / device.speed / r;
  cost.cut_time = 1 / (option.first >= 0 ? option.link_out : device.link) / r;
  cost.cut_transfers = problem_.transfer_latency / r;
  cost.parameter_bytes = 2 * (r - 1) / r * problem_.exchange_time /
                         (option.first >= 0 ? option.link_within : device.link);
  cost.held = InFlightCount(problem_, option.replicas, devices_after_[stage]);
  cost.most_bytes = device.memory_bytes * (1 + 1e-12);
}

// Returns the cost of a transfer as time of a cut, if it is the same everywhere.
double StageTable::JoinCosts() {
  bool alike = true, limited = false;
  double ratio = -1;  // unknown
  for (const StageCost& cost : costs_) {
    if (cost.host) continue;
    limited = limited || cost.most_bytes < kInfinity;
    double here = cost.cut_transfers / cost.cut_time;
    if (ratio < 0) ratio = here;
    alike = alike && here == ratio;
  }
  detailed_ = limited || !alike;
  return detailed_ || ratio < 0 ? 0 : ratio;
}

void StageTable::SetLoad(int stage) {
  const StageSums& sums = sums_[stage];
  StageCost& cost = costs_[stage];
  double load = loads_[stage] = LoadOn(stage, units_.options[stage]);
  if (load == kInfinity)
    load = cost.device_time * sums.device_time + cost.parameter_bytes * sums.parameter_bytes +
           cost.cut_time * sums.cut_time + cost.cut_transfers * sums.cut_transfers;
  cost.load = load;
  cost.bytes = sums.static_bytes + sums.stash_bytes * cost.held + sums.cut_bytes;
  cost.not_on_device = sums.not_on_device;
}

double StageTable::LargestLoad() const { return *std::max_element(loads_.begin(), loads_.end()); }

int StageTable::Count(const NetPlace& net, int stage) const {
  const Entry* entry = &entries_[net.first];
  for (int i = 0; i < net.used; ++i)
    if (entry[i].stage == stage) return entry[i].units;
  return 0;
}

void StageTable::Change(NetPlace& net, int stage, int by) {
  Entry* entry = &entries_[net.first];
  for (int i = 0; i < net.used; ++i) {
    if (entry[i].stage != stage) continue;
    entry[i].units += by;
    if (entry[i].units == 0) entry[i] = entry[--net.used];
    return;
  }
  entry[net.used++] = {stage, by};
}

void StageTable::FindRange(int unit) {
  int low = 0, high = stages() - 1;
  for (int before : graph_.previous[unit]) low = std::max(low, units_.stage_of[before]);
  for (int after : graph_.next[unit]) high = std::min(high, units_.stage_of[after]);
  ranges_[unit] = {low, high};
}

int64_t StageTable::LookAt(int unit) {
  looked_ = unit;
  ++look_;
  double without = 0, with = 0;
  without_ = with_ = Cut();
  int from = units_.stage_of[unit];
  for (int i = first_net_[unit]; i < first_net_[unit + 1]; ++i) {
    const int n = nets_[i];
    const NetPlace& net = places_[n];
    with += net.time;
    if (detailed_) AddDetails(with_, n, 1), with_.stash += graph_.nets[n].stash_bytes;
    if (net.used == 1) {  // the net is not cut yet
      without += net.time;
      if (detailed_) AddDetails(without_, n, 1);
      continue;
    }
    const Entry* entry = &entries_[net.first];
    for (int e = 0; e < net.used; ++e) {
      auto [stage, units] = entry[e];
      if (stage == from) {
        if (units > 1) continue;
        without -= net.time;
        if (detailed_) AddDetails(without_, n, -1), without_.stash -= graph_.nets[n].stash_bytes;
        continue;
      }
      Shared& shared = shared_[stage];
      if (shared.look != look_) {
        shared = {0, look_};
        if (detailed_) details_[stage] = Cut();
      }
      int times = units == net.size - 1 ? -2 : -1;
      shared.time += times * net.time;
      if (!detailed_) continue;
      AddDetails(details_[stage], n, times);
      details_[stage].stash -= graph_.nets[n].stash_bytes;
    }
  }
  without_.time = without, with_.time = with;
  return 10 + 6 * (first_net_[unit + 1] - first_net_[unit]);
}

StageTable::Gain StageTable::GainOf(int stage, int sign, const Cut& cut) const {
  const StageCost& cost = costs_[stage];
  const Unit& unit = graph_.units[looked_];
  if (cost.host) return {sign * cost.host_time * unit.host_time, 0};
  if (cost.not_on_device + (unit.device_ok ? 0 : sign) > 0) return {kInfinity, 0};
  double own = cost.device_time * unit.device_time + cost.parameter_bytes * unit.parameter_bytes;
  return {sign * own + cost.cut_time * cut.time + cost.cut_transfers * cut.transfers,
          sign * (unit.static_bytes + unit.stash_bytes * cost.held) + cut.bytes +
              cut.stash * cost.held};
}

StageTable::Gain StageTable::GainWith(int to) const {
  Cut cut = with_;
  if (shared_[to].look == look_) {
    cut.time += shared_[to].time;
    cut.transfers += details_[to].transfers, cut.bytes += details_[to].bytes;
    cut.stash += details_[to].stash;
  }
  return GainOf(to, 1, cut);
}

void StageTable::Move(int unit, int to) {
  int from = units_.stage_of[unit];
  StageSums &left = sums_[from], &right = sums_[to];
  left.AddUnit(graph_.units[unit], -1);
  right.AddUnit(graph_.units[unit], 1);
  for (int n : graph_.nets_of[unit]) {
    const Net& net = graph_.nets[n];
    NetPlace& place = places_[n];
    int here = Count(place, from), there = Count(place, to);
    if (here == place.size) left.AddCut(net, 1);
    if (here == 1) left.AddCut(net, -1), left.stash_bytes -= net.stash_bytes;
    if (there == 0) right.AddCut(net, 1), right.stash_bytes += net.stash_bytes;
    if (there == place.size - 1) right.AddCut(net, -1);
    Change(place, from, -1), Change(place, to, 1);
  }
  --sizes_[from], ++sizes_[to];
  units_.stage_of[unit] = to;
  SetLoad(from);
  SetLoad(to);
  for (int after : graph_.next[unit]) {
    if (to >= ranges_[after].first)
      ranges_[after].first = to;
    else if (ranges_[after].first == from)
      FindRange(after);
  }
  for (int before : graph_.previous[unit]) {
    if (to <= ranges_[before].second)
      ranges_[before].second = to;
    else if (ranges_[before].second == from)
      FindRange(before);
  }
}

}  // namespace pipewright
