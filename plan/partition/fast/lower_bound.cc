#include "plan/partition/fast/lower_bound.h"

#include <algorithm>

namespace pipewright {

double PartitionLowerBound(const PartitionProblem& problem, const UnitGraph& graph, bool fewer) {
  double work = 0, slowest = 0, bytes = 0, room = 0;
  bool host = false;
  double link = 0, all_work = 0;
  int devices = 0;
  std::vector<double> speeds;
  for (const DeviceClass& device : problem.devices) {
    if (device.count == 0) continue;
    speeds.insert(speeds.end(), device.count, device.speed);
    devices += device.count;
    host = host || device.host;
    room += device.count * (device.host ? kInfinity : device.memory_bytes);
    link = std::max(link, device.link);
  }
  if (devices == 0) return kInfinity;
  for (const Unit& unit : graph.units) {
    double least = kInfinity, replicated = kInfinity;
    for (const DeviceClass& device : problem.devices) {
      if (device.count == 0 || (!device.host && !unit.device_ok)) continue;
      if (!device.host && unit.static_bytes + unit.stash_bytes > device.memory_bytes * (1 + 1e-12))
        continue;
      double time = device.host ? unit.host_time : unit.device_time / device.speed;
      least = std::min(least, time);
      int most = device.host ? 1 : std::min(problem.max_replicas, device.count);
      replicated = std::min(replicated, time / most);
    }
    if (least == kInfinity) return kInfinity;
    work += least;
    all_work += unit.device_time;
    slowest = std::max(slowest, replicated);
    bytes += unit.static_bytes + unit.stash_bytes;
  }
  if (problem.max_replicas == 1 && bytes > room * (1 + 1e-12)) return kInfinity;

  // In a connected graph, each of several stages cuts at least one net.
  double cheapest = kInfinity;
  std::vector<char> seen(graph.units.size(), 0);
  std::vector<int> stack = {0};
  std::vector<char> net_seen(graph.nets.size(), 0);
  size_t reached = 1;
  seen[0] = 1;
  while (!stack.empty()) {
    int u = stack.back();
    stack.pop_back();
    for (int net : graph.nets_of[u]) {
      if (net_seen[net]) continue;
      net_seen[net] = 1;
      const Net& e = graph.nets[net];
      const double cost = e.time / link + e.transfers * problem.transfer_latency;
      if (cost == 0) continue;
      cheapest = std::min(cheapest, cost);
      for (int v : e.units)
        if (!seen[v]) seen[v] = 1, ++reached, stack.push_back(v);
    }
  }
  if (host || reached < graph.units.size() || cheapest == kInfinity) cheapest = 0;
  // The fastest devices share the work by their speeds; transfers count least on the slowest.
  std::sort(speeds.rbegin(), speeds.rend());
  double bound = kInfinity, together = 0;
  for (int used = 1; used <= devices; ++used) {
    together += speeds[used - 1];
    int stages = (used + problem.max_replicas - 1) / problem.max_replicas;
    if (problem.stages >= 0) {
      if (used > problem.stages * problem.max_replicas) continue;
      if (!fewer && used < problem.stages) continue;
      if (!fewer) stages = problem.stages;
    }
    double transfers = stages > 1 ? stages * cheapest : 0, least = (work + transfers) / used;
    if (!host) least = std::max(least, (all_work + transfers * speeds.back()) / together);
    bound = std::min(bound, least);
  }
  return std::max(bound, slowest);
}

}  // namespace pipewright
