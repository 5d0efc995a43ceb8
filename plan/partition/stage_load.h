// The load of one stage, kept up to date while units enter and leave it.
#pragma once
#include <vector>

#include "plan/partition/units.h"

namespace pipewright {

// One way to run a stage: a device class and a number of replicas.
struct StageOption {
  int device_class = 0, replicas = 1;
};

struct StageLoad {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  std::vector<int> inside;  // of each net: units of the stage
  double device_time = 0, host_time = 0;
  double static_bytes = 0, stash_bytes = 0, parameter_bytes = 0;
  double cut_time = 0, cut_transfers = 0, cut_bytes = 0;
  int not_on_device = 0;  // units that need a CPU

  StageLoad(const PartitionProblem& p, const UnitGraph& g) : problem(p), graph(g) {
    inside.assign(g.nets.size(), 0);
  }

  void Add(int u) { Change(u, 1); }
  void Remove(int u) { Change(u, -1); }

  // Sums of an empty stage, after all units have left it: rounding must not build up.
  void Reset() {
    device_time = host_time = static_bytes = stash_bytes = parameter_bytes = 0;
    cut_time = cut_transfers = cut_bytes = 0;
  }

  // Infinite where the option cannot run the stage with `devices_after` devices behind it.
  double Load(const StageOption& option, int devices_after) const {
    const DeviceClass& device = problem.devices[option.device_class];
    double r = option.replicas;
    if (device.host) return host_time / r;
    if (not_on_device) return kInfinity;
    if (device.memory_bytes < kInfinity) {
      int held = InFlightCount(problem, option.replicas, devices_after);
      double bytes = static_bytes + stash_bytes * held + cut_bytes;
      // Sums in another order differ by rounding; a stage that fits exactly must not be lost to it.
      if (bytes > device.memory_bytes * (1 + 1e-12)) return kInfinity;
    }
    return (device_time / device.speed + cut_time / device.link +
            cut_transfers * problem.transfer_latency) /
               r +
           2 * (r - 1) / r * parameter_bytes * problem.exchange_time / device.link;
  }

 private:
  void Change(int u, int sign) {
    const Unit& unit = graph.units[u];
    device_time += sign * unit.device_time;
    host_time += sign * unit.host_time;
    static_bytes += sign * unit.static_bytes;
    stash_bytes += sign * unit.stash_bytes;
    parameter_bytes += sign * unit.parameter_bytes;
    not_on_device += unit.device_ok ? 0 : sign;
    for (int n : graph.nets_of[u]) {
      const Net& net = graph.nets[n];
      int size = static_cast<int>(net.units.size());
      bool was = inside[n] > 0 && inside[n] < size;
      inside[n] += sign;
      bool is = inside[n] > 0 && inside[n] < size;
      if (was == is) continue;
      int change = is ? 1 : -1;
      cut_time += change * net.time;
      cut_transfers += change * net.transfers;
      cut_bytes += change * net.bytes;
    }
  }
};

// Every way to run a stage, and how the devices used so far are numbered: in mixed radix, one digit
// a device class and, where the number of stages does not follow from the devices, one for it.
struct Resources {
  struct Step {
    int from, to;  // states before (devices behind the stage) and after
    int devices_after;
  };
  std::vector<StageOption> options;
  std::vector<std::vector<Step>> steps;  // of each option
  std::vector<int> used;                 // devices in use, of each state
  std::vector<int> complement;           // the state of the devices that a state leaves
  std::vector<char> final;               // whether a partition may end in the state
  int states = 1, devices = 0;

  explicit Resources(const PartitionProblem& problem);
};

}  // namespace pipewright
