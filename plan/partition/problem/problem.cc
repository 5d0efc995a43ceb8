#include "plan/partition/problem/problem.h"

#include <algorithm>
#include <map>
#include <set>

namespace pipewright {

int InFlightCount(const PartitionProblem& problem, int replicas, int devices_after) {
  if (problem.in_flight == InFlight::kOne) return 1;
  int share = (problem.microbatches + replicas - 1) / replicas;  // microbatches of one replica
  if (problem.in_flight == InFlight::kGPipe) return share;
  return std::min(share, (devices_after + 2 * replicas - 1) / replicas);
}

bool MemoryByPlace(const PartitionProblem& problem) {
  bool limited = false;
  for (const DeviceClass& device : problem.devices)
    limited = limited || (device.count > 0 && !device.host && device.memory_bytes < kInfinity);
  return limited && problem.in_flight == InFlight::k1F1B;
}

// Numbers the devices of the stages in order, except for stages that have device numbers.
static void NumberDevices(const PartitionProblem& problem, PartitionResult& result) {
  std::vector<int> used(problem.devices.size(), 0);
  for (PartitionStage& stage : result.stages) {
    stage.device = used[stage.device_class];
    used[stage.device_class] += stage.replicas;
    if (!problem.pair_links.empty() && !stage.numbers.empty()) continue;
    stage.numbers.clear();
    const std::vector<int>& numbers = problem.devices[stage.device_class].numbers;
    for (int r = stage.device; r < stage.device + stage.replicas; ++r)
      stage.numbers.push_back(numbers.empty() ? r : numbers[r]);
  }
}

// Returns the slowest link from a device of one stage to one of another.
static double PairLink(const PartitionProblem& problem, const PartitionStage& from,
                       const PartitionStage& to) {
  double link = kInfinity;
  for (int a : from.numbers)
    for (int b : to.numbers)
      if (a != b) link = std::min(link, problem.pair_links[a][b]);
  return link;
}

static void AddTransfers(const PartitionProblem& problem, const PartitionResult& result,
                         const PartitionValue& value, const std::set<int>& touched, int producer,
                         std::vector<double>& transfer) {
  auto is_host = [&](int s) { return problem.devices[result.stages[s].device_class].host; };
  double fixed = value.transfers * problem.transfer_latency, slowest = 0;
  for (int s : touched) {
    const DeviceClass& device = problem.devices[result.stages[s].device_class];
    double time = value.time / device.link;
    if (!problem.pair_links.empty()) {
      double link = kInfinity;
      for (int other : touched)
        if (other != s && !is_host(s) && !is_host(other) && (producer < 0 || other == producer))
          link =
              std::min(link, std::min(PairLink(problem, result.stages[other], result.stages[s]),
                                      PairLink(problem, result.stages[s], result.stages[other])));
      if (s == producer) continue;
      time = link < kInfinity ? value.time / link : value.time / device.link;
      slowest = std::max(slowest, time);
    }
    transfer[s] += time + fixed;
  }
  if (!problem.pair_links.empty() && producer >= 0) transfer[producer] += slowest + fixed;
}

std::vector<int> StageOfNode(const PartitionProblem& problem, const PartitionResult& result) {
  std::vector<int> stage_of(problem.nodes.size(), -1);
  for (size_t s = 0; s < result.stages.size(); ++s)
    for (int node : result.stages[s].nodes) stage_of[node] = static_cast<int>(s);
  return stage_of;
}

void EvaluatePartition(const PartitionProblem& problem, PartitionResult& result) {
  std::vector<int> stage_of = StageOfNode(problem, result);
  size_t count = result.stages.size();
  std::vector<double> transfer(count, 0), buffers(count, 0), stashes(count, 0);
  NumberDevices(problem, result);
  for (const PartitionValue& value : problem.values) {
    std::set<int> touched;
    for (int consumer : value.consumers) touched.insert(stage_of[consumer]);
    int producer = value.producer >= 0 ? stage_of[value.producer] : -1;
    if (producer >= 0) touched.insert(producer);
    for (int s : touched) stashes[s] += value.stash_bytes;
    if (touched.size() < 2) continue;
    AddTransfers(problem, result, value, touched, producer, transfer);
    for (int s : touched) buffers[s] += value.bytes;
  }
  result.objective = 0;
  int after = 0;
  for (size_t s = count; s-- > 0;) {
    PartitionStage& stage = result.stages[s];
    const DeviceClass& device = problem.devices[stage.device_class];
    double statics = 0, stash = stashes[s], parameters = 0, compute = 0;
    for (int node : stage.nodes) {
      const PartitionNode& n = problem.nodes[node];
      compute += device.host ? n.host_time : n.device_time / device.speed;
      statics += n.static_bytes;
      stash += n.stash_bytes;
      parameters += n.parameter_bytes;
    }
    double r = stage.replicas;
    stage.compute = compute / r;
    double link = problem.pair_links.empty() || device.host || stage.replicas < 2
                      ? device.link
                      : PairLink(problem, stage, stage);
    stage.exchange = 2 * (r - 1) / r * parameters * problem.exchange_time / link;
    stage.transfer = device.host ? 0 : transfer[s] / r + stage.exchange;
    stage.memory_bytes =
        statics + stash * InFlightCount(problem, stage.replicas, after) + buffers[s];
    after += stage.replicas;
    result.objective = std::max(result.objective, stage.Load());
  }
}

std::string CheckPartition(const PartitionProblem& problem, const PartitionResult& result) {
  std::vector<int> seen(problem.nodes.size(), 0), used(problem.devices.size(), 0);
  std::map<int, std::set<int>> stages_of_group;
  for (size_t s = 0; s < result.stages.size(); ++s) {
    const PartitionStage& stage = result.stages[s];
    const DeviceClass& device = problem.devices[stage.device_class];
    if (stage.nodes.empty()) return "stage " + std::to_string(s) + " is empty";
    used[stage.device_class] += stage.replicas;
    if (!device.host && stage.memory_bytes > device.memory_bytes * (1 + 1e-9))
      return "stage " + std::to_string(s) + " does not fit its device";
    for (int node : stage.nodes) {
      ++seen[node];
      const PartitionNode& n = problem.nodes[node];
      if (!n.device_ok && !device.host) return n.name + " needs a CPU";
      if (n.group >= 0) stages_of_group[n.group].insert(static_cast<int>(s));
    }
  }
  for (size_t c = 0; c < used.size(); ++c)
    if (used[c] > problem.devices[c].count) return "too many devices of class " + std::to_string(c);
  if (problem.stages >= 0 && static_cast<int>(result.stages.size()) != problem.stages)
    return "wrong number of stages";
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != 1)
      return problem.nodes[i].name + " is in " + std::to_string(seen[i]) + " stages";
  for (const auto& [group, stages] : stages_of_group)
    if (stages.size() > 1) return "group " + std::to_string(group) + " is split";
  std::vector<int> stage_of = StageOfNode(problem, result);
  for (const PartitionValue& value : problem.values) {
    if (value.producer < 0 || problem.nodes[value.producer].backward) continue;
    for (int consumer : value.consumers)
      if (!problem.nodes[consumer].backward && stage_of[consumer] < stage_of[value.producer])
        return problem.nodes[value.producer].name + " comes after its user " +
               problem.nodes[consumer].name;
  }
  return "";
}

}  // namespace pipewright
