#include "tests/plan/partition/brute_force.h"

#include <algorithm>

#include "formats/graph_text.h"

namespace pipewright {

namespace {

struct Enumeration {
  const PartitionProblem& problem;
  const std::function<double(const PartitionResult&)>& cost;
  std::vector<int> order, stage_of;
  std::vector<std::vector<int>> previous;
  int most = 0;
  double best = kInfinity;
  std::vector<int> left;  // unused devices of each class

  void Devices(PartitionResult& result, size_t stage) {
    if (stage == result.stages.size()) {
      EvaluatePartition(problem, result);
      if (!CheckPartition(problem, result).empty()) return;
      best = std::min(best, cost ? cost(result) : result.objective);
      return;
    }
    for (size_t c = 0; c < problem.devices.size(); ++c)
      for (int r = 1; r <= (problem.devices[c].host ? 1 : problem.max_replicas); ++r) {
        if (r > left[c]) continue;
        left[c] -= r;
        result.stages[stage].device_class = static_cast<int>(c);
        result.stages[stage].replicas = r;
        Devices(result, stage + 1);
        left[c] += r;
      }
  }

  void Stages(size_t position) {
    if (position == order.size()) {
      PartitionResult result;
      result.stages.resize(*std::max_element(stage_of.begin(), stage_of.end()) + 1);
      for (size_t i = 0; i < stage_of.size(); ++i)
        result.stages[stage_of[i]].nodes.push_back(static_cast<int>(i));
      for (const PartitionStage& stage : result.stages)
        if (stage.nodes.empty()) return;
      Devices(result, 0);
      return;
    }
    int node = order[position], low = 0;
    for (int before : previous[node]) low = std::max(low, stage_of[before]);
    for (int s = low; s < most; ++s) {
      stage_of[node] = s;
      Stages(position + 1);
    }
  }
};

}  // namespace

double BruteForceOptimum(const PartitionProblem& problem,
                         const std::function<double(const PartitionResult&)>& cost) {
  Enumeration all{problem, cost, {}, {}, {}, 0, kInfinity, {}};
  int n = static_cast<int>(problem.nodes.size());
  std::vector<std::pair<int, int>> edges;
  all.previous.resize(n);
  for (const PartitionValue& value : problem.values)
    for (int consumer : value.consumers) {
      if (value.producer < 0) continue;
      edges.push_back({value.producer, consumer});
      // Backward nodes go to the stage of their group.
      if (!problem.nodes[value.producer].backward && !problem.nodes[consumer].backward)
        all.previous[consumer].push_back(value.producer);
    }
  all.order = TopologicalOrder(n, edges);
  all.stage_of.assign(n, 0);
  for (const DeviceClass& device : problem.devices) {
    all.most += device.count;
    all.left.push_back(device.count);
  }
  all.most = std::min(all.most, n);
  if (problem.stages >= 0) all.most = std::min(all.most, problem.stages);
  all.Stages(0);
  return all.best;
}

PartitionProblem RandomProblem(std::mt19937& random, int max_nodes, int features) {
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  PartitionProblem problem;
  int n = pick(1, max_nodes);
  for (int i = 0; i < n; ++i) {
    PartitionNode node;
    node.name = std::to_string(i);
    node.device_time = pick(0, 3) ? pick(1, 20) : 0;
    node.host_time = node.device_time * pick(1, 4);
    if (features & 2) node.device_ok = pick(0, 9) > 0;
    if (features & 4 && pick(0, 3) == 0) node.group = pick(0, 1);
    if (features & 1) node.static_bytes = pick(0, 10);
    if (features & 128) node.stash_bytes = pick(0, 5);
    if (features & 32) node.parameter_bytes = pick(0, 10);
    problem.nodes.push_back(node);
  }
  int density = pick(1, 5);
  for (int i = 0; i < n; ++i) {
    PartitionValue value;
    value.producer = i;
    value.time = pick(0, 8);
    value.transfers = pick(1, 2);
    if (features & 1) value.bytes = pick(0, 3);
    for (int j = i + 1; j < n; ++j)
      if (pick(0, 6) < density) value.consumers.push_back(j);
    if (features & 128) value.stash_bytes = pick(0, 3);
    if (!value.consumers.empty()) problem.values.push_back(value);
  }
  // Memory that some nodes share.
  if (features & 128 && n > 1) {
    PartitionValue held;
    held.transfers = 0;
    held.stash_bytes = pick(1, 4);
    for (int i = 0; i < n; ++i)
      if (pick(0, 2) == 0) held.consumers.push_back(i);
    if (!held.consumers.empty()) problem.values.push_back(held);
  }
  if (features & 256) {
    // A mirrored backward part; each backward node is in the group of its forward node.
    for (int i = 0; i < n; ++i) {
      if (problem.nodes[i].group < 0) problem.nodes[i].group = 100 + i;
      PartitionNode node = problem.nodes[i];
      node.name = std::to_string(n + i);
      node.backward = true;
      node.device_time *= 2;
      problem.nodes.push_back(node);
    }
    for (size_t v = 0, count = problem.values.size(); v < count; ++v)
      for (int consumer : problem.values[v].consumers)
        problem.values.push_back({n + consumer, {n + problem.values[v].producer}, 1.0, 1, 0});
  }
  DeviceClass device;
  device.count = pick(1, 3);
  if (features & 1) device.memory_bytes = pick(8, 40);
  problem.devices = {device};
  if (features & 8) {
    device.name = "big";
    device.count = pick(1, 2);
    device.speed = pick(1, 6) * 0.5;
    device.link = pick(1, 6) * 0.5;
    if (features & 1) device.memory_bytes = pick(8, 40);
    problem.devices.push_back(device);
  }
  if (features & 2) {
    DeviceClass cpu;
    cpu.name = "cpu";
    cpu.host = true;
    problem.devices.push_back(cpu);
  }
  if (features & 16) problem.transfer_latency = pick(0, 3);
  if (features & 32) {
    problem.max_replicas = pick(1, 3);
    problem.exchange_time = 0.25 * pick(0, 3);
  }
  if (features & 64) problem.stages = pick(1, 3);
  if (features & 128) {
    problem.in_flight = pick(0, 2) ? InFlight::k1F1B : InFlight::kGPipe;
    problem.microbatches = pick(1, 5);
  }
  return problem;
}

}  // namespace pipewright
