#include "plan/partition/link_loads.h"

#include <algorithm>

namespace pipewright {

PairLoads::PairLoads(const PartitionProblem& problem, const PartitionResult& result)
    : problem_(problem) {
  stage_of_.assign(problem.nodes.size(), 0);
  for (size_t s = 0; s < result.stages.size(); ++s) {
    const PartitionStage& stage = result.stages[s];
    for (int node : stage.nodes) stage_of_[node] = static_cast<int>(s);
    class_of_.push_back(stage.device_class);
    number_of_.push_back(stage.numbers[0]);
    compute_.push_back(stage.compute);
  }
  values_of_.resize(problem.nodes.size());
  crossing_.resize(compute_.size());
  transfer_.assign(compute_.size(), 0);
  for (size_t v = 0; v < problem.values.size(); ++v) {
    const PartitionValue& value = problem.values[v];
    if (value.producer >= 0) values_of_[value.producer].push_back(static_cast<int>(v));
    for (int node : value.consumers) values_of_[node].push_back(static_cast<int>(v));
    Touch(static_cast<int>(v), stages_);
    touched_.push_back(stages_);
    if (stages_.size() < 2) continue;
    for (int s : stages_) crossing_[s].push_back(static_cast<int>(v));
    Add(value, stages_, 1);
  }
  transfer_now_ = transfer_;
  steps_ = 0;
  changed_.assign(problem.values.size(), 0);
}

void PairLoads::Touch(int value, std::vector<int>& stages) const {
  stages.clear();
  auto add = [&](int node) {
    if (std::find(stages.begin(), stages.end(), stage_of_[node]) == stages.end())
      stages.push_back(stage_of_[node]);
  };
  const PartitionValue& v = problem_.values[value];
  if (v.producer >= 0) add(v.producer);
  for (int node : v.consumers) add(node);
  std::sort(stages.begin(), stages.end());
}

double PairLoads::Link(int a, int b) const {
  int one = number_of_[a], other = number_of_[b];
  if (one == other) return kInfinity;
  return std::min(problem_.pair_links[one][other], problem_.pair_links[other][one]);
}

static const std::vector<int> kNone;

// Adds (sign 1) or subtracts (sign -1) the cost of the value to its stages.
void PairLoads::Add(const PartitionValue& value, const std::vector<int>& stages, int sign) {
  const int producer = value.producer >= 0 ? stage_of_[value.producer] : -1;
  steps_ += static_cast<int64_t>(stages.size());
  auto host = [&](int s) { return problem_.devices[class_of_[s]].host; };
  double fixed = value.transfers * problem_.transfer_latency, slowest = 0;
  for (int s : stages) {
    if (s == producer) continue;
    double link = kInfinity;
    if (producer >= 0 && !host(s) && !host(producer)) link = Link(producer, s);
    for (int other : producer < 0 && !host(s) ? stages : kNone)
      if (other != s && !host(other)) link = std::min(link, Link(other, s));
    double time = value.time / (link < kInfinity ? link : problem_.devices[class_of_[s]].link);
    slowest = std::max(slowest, time);
    transfer_[s] += sign * (time + fixed);
  }
  if (producer >= 0) transfer_[producer] += sign * (slowest + fixed);
}

double PairLoads::Largest() const {
  double largest = 0;
  for (size_t s = 0; s < compute_.size(); ++s)
    largest =
        std::max(largest, compute_[s] + (problem_.devices[class_of_[s]].host ? 0 : transfer_[s]));
  return largest;
}

double PairLoads::WithDevices(int s, int number, int t) {
  transfer_ = transfer_now_;
  auto add = [&](int sign) {
    for (int value : crossing_[s]) Add(problem_.values[value], touched_[value], sign);
    if (t < 0) return;
    for (int value : crossing_[t])
      if (!std::binary_search(touched_[value].begin(), touched_[value].end(), s))
        Add(problem_.values[value], touched_[value], sign);
  };
  add(-1);
  int before = number_of_[s];
  number_of_[s] = number;
  if (t >= 0) number_of_[t] = before;
  add(1);
  number_of_[s] = before;
  if (t >= 0) number_of_[t] = number;
  return Largest();
}

double PairLoads::WithNodes(const std::vector<int>& nodes, int from, int to) {
  transfer_ = transfer_now_;
  double compute_from = compute_[from], compute_to = compute_[to];
  auto time = [&](int node, int s) {
    const DeviceClass& device = problem_.devices[class_of_[s]];
    const PartitionNode& n = problem_.nodes[node];
    return device.host ? n.host_time : n.device_time / device.speed;
  };
  std::vector<int> moved;  // values
  for (int node : nodes) {
    compute_[from] -= time(node, from);
    compute_[to] += time(node, to);
    for (int value : values_of_[node]) {
      if (changed_[value]) continue;
      changed_[value] = 1;
      moved.push_back(value);
      if (touched_[value].size() > 1) Add(problem_.values[value], touched_[value], -1);
    }
  }
  for (int node : nodes) stage_of_[node] = to;
  for (int value : moved) {
    changed_[value] = 0;
    Touch(value, stages_);
    if (stages_.size() > 1) Add(problem_.values[value], stages_, 1);
  }
  double largest = Largest();
  for (int node : nodes) stage_of_[node] = from;
  compute_[from] = compute_from, compute_[to] = compute_to;
  return largest;
}

}  // namespace pipewright
