#include "plan/partition/longest_paths.h"

#include <algorithm>
#include <map>

#include "plan/schedules/table.h"

namespace pipewright {

bool SplitsBackward(const std::string& schedule) {
  const ScheduleKind* kind = FindSchedule(schedule);
  return !kind || kind->splits_backward;
}

namespace {

struct Path {
  double time = 0;        // one way, over the best link
  bool gradient = false;  // a gradient comes back, which the producer waits for
};

}  // namespace

static std::map<std::pair<int, int>, Path> PathsBetween(const PartitionProblem& problem,
                                                        const UnitGraph& graph) {
  std::vector<int> unit_of(problem.nodes.size(), 0);
  for (size_t u = 0; u < graph.units.size(); ++u)
    for (int node : graph.units[u].nodes) unit_of[node] = static_cast<int>(u);
  double link = 0;
  for (const DeviceClass& device : problem.devices)
    if (device.count > 0) link = std::max(link, device.link);
  std::map<std::pair<int, int>, Path> paths;
  for (const PartitionValue& value : problem.values) {
    if (value.producer < 0) continue;
    bool backward = problem.nodes[value.producer].backward;
    for (int consumer : value.consumers) {
      if (problem.nodes[consumer].backward != backward) continue;
      int from = unit_of[value.producer], to = unit_of[consumer];
      Path& path = backward ? paths[{to, from}] : paths[{from, to}];
      path.gradient = path.gradient || backward || value.transfers > 1;
      if (backward) continue;
      double time = value.time / std::max(value.transfers, 1) / link;
      path.time = std::max(path.time, time + problem.transfer_latency);
    }
  }
  return paths;
}

LongestPaths::LongestPaths(const PartitionProblem& problem, const UnitGraph& graph,
                           const StepOptions& step, double speed) {
  size_t count = graph.units.size();
  for (auto* list : {&to, &back, &own, &until_gradient, &to_alone, &back_alone, &round})
    list->assign(count, 0);
  entries.resize(count);
  std::vector<double> forward(count, 0), backward(count, 0);
  std::map<std::pair<int, int>, Path> paths = PathsBetween(problem, graph);
  double half = SplitsBackward(step.schedule) ? 0.5 : 1;
  for (int u = 0; u < static_cast<int>(count); ++u) {
    for (int node : graph.units[u].nodes) {
      const PartitionNode& n = problem.nodes[node];
      forward[u] += n.device_time * n.forward_share / speed;
      backward[u] += n.device_time * (1 - n.forward_share) * half / speed;
      own[u] += n.device_time / speed;
    }
    until_gradient[u] = forward[u] + backward[u];
    round[u] = until_gradient[u];
    for (int before : graph.previous[u]) {
      const Path& path = paths[{before, u}];
      double there = to[before] + forward[before], home = 0;
      to[u] = std::max(to[u], there);
      to_alone[u] = std::max(to_alone[u], there + path.time);
      if (path.gradient) {
        home = back[before] + backward[before];
        back[u] = std::max(back[u], home);
        home += path.time;
        back_alone[u] = std::max(back_alone[u], home);
        round[u] = std::max(round[u], round[before] + until_gradient[u]);
      }
      entries[u].push_back({before, path.time, there + path.time, home, path.gradient});
    }
  }
}

double FastestDevice(const PartitionProblem& problem) {
  double speed = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.count > 0 && device.host) return 0;
    if (device.count > 0) speed = std::max(speed, device.speed);
  }
  return speed;
}

}  // namespace pipewright
