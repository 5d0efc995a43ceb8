#include "plan/partition/problem/partition_state.h"

#include <algorithm>

namespace pipewright {

PartitionState StagesOfResult(const UnitGraph& graph, const PartitionResult& result) {
  PartitionState units;
  std::vector<std::pair<int, int>> stage_of_node;
  for (size_t s = 0; s < result.stages.size(); ++s) {
    units.options.push_back({result.stages[s].device_class, result.stages[s].replicas});
    for (int node : result.stages[s].nodes) stage_of_node.push_back({node, static_cast<int>(s)});
  }
  std::sort(stage_of_node.begin(), stage_of_node.end());
  for (const Unit& unit : graph.units) {
    auto found = std::lower_bound(stage_of_node.begin(), stage_of_node.end(),
                                  std::make_pair(unit.nodes[0], 0));
    units.stage_of.push_back(found->second);
  }
  return units;
}

PartitionState EqualCuts(const PartitionProblem& problem, const UnitGraph& graph, int stages) {
  std::vector<std::pair<int, int>> devices;  // number and class
  for (size_t c = 0; c < problem.devices.size(); ++c) {
    const DeviceClass& device = problem.devices[c];
    for (int d = 0; d < device.count && !device.host; ++d)
      devices.push_back({device.numbers.empty() ? d : device.numbers[d], static_cast<int>(c)});
  }
  std::sort(devices.begin(), devices.end());
  size_t count = graph.units.size();
  size_t wanted =
      stages >= 0 ? static_cast<size_t>(std::max(stages, 1)) : std::min(devices.size(), count);
  if (wanted == 0 || devices.size() < wanted || count < wanted) return {};
  PartitionState units;
  size_t total = 0, nodes = 0;
  for (const Unit& unit : graph.units) total += unit.nodes.size();
  for (size_t s = 0; s < wanted; ++s) units.options.push_back({devices[s].second, 1});
  for (size_t u = 0; u < count; ++u) {
    // Leaves no stage without a unit.
    size_t last = units.stage_of.empty() ? 0 : static_cast<size_t>(units.stage_of.back());
    size_t stage = std::max(nodes * wanted / total, wanted > count - u ? wanted - (count - u) : 0);
    stage = units.stage_of.empty() ? 0 : std::clamp(stage, last, last + 1);
    units.stage_of.push_back(static_cast<int>(stage));
    nodes += graph.units[u].nodes.size();
  }
  return units;
}

PartitionResult ResultOfStages(const PartitionProblem& problem, const UnitGraph& graph,
                               const PartitionState& units) {
  PartitionResult result;
  result.stages.resize(units.options.size());
  for (size_t u = 0; u < units.stage_of.size(); ++u) {
    auto& nodes = result.stages[units.stage_of[u]].nodes;
    nodes.insert(nodes.end(), graph.units[u].nodes.begin(), graph.units[u].nodes.end());
  }
  for (size_t s = 0; s < units.options.size(); ++s) {
    std::sort(result.stages[s].nodes.begin(), result.stages[s].nodes.end());
    result.stages[s].device_class = units.options[s].device_class;
    result.stages[s].replicas = units.options[s].replicas;
  }
  result.feasible = true;
  EvaluatePartition(problem, result);
  return result;
}

std::vector<int> OrderByStage(std::vector<int> order, const PartitionState& units) {
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return units.stage_of[a] < units.stage_of[b]; });
  return order;
}

}  // namespace pipewright
