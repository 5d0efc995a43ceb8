// Computes the load of a stage: the time and the memory that it costs a device.
#pragma once
#include <vector>

#include "plan/partition/problem/units.h"

namespace pipewright {

// One way to run a stage: a device class and a number of replicas.
struct StageOption {
  int device_class = 0, replicas = 1;
  // If devices are given as a sequence, `first` is the position of the stage's first one, and the
  // links are those from earlier stages, to later ones, and between its replicas. Otherwise it is
  // -1: the stage has any devices of the class, with the class's link.
  int first = -1;
  double link_in = 1, link_out = 1, link_within = 1;
};

// Sums over the units of a stage and the nets that it cuts. `stash_bytes` also includes uncut nets
// of the stage.
struct StageSums {
  double device_time = 0, host_time = 0;
  double static_bytes = 0, stash_bytes = 0, parameter_bytes = 0;
  double cut_time = 0, cut_transfers = 0, cut_bytes = 0;
  double entering_time = 0;  // part of cut_time from earlier stages; only CutOrder sets it
  int not_on_device = 0;     // units that need a CPU

  void AddUnit(const Unit& unit, int sign) {
    device_time += sign * unit.device_time;
    host_time += sign * unit.host_time;
    static_bytes += sign * unit.static_bytes;
    stash_bytes += sign * unit.stash_bytes;
    parameter_bytes += sign * unit.parameter_bytes;
    not_on_device += unit.device_ok ? 0 : sign;
  }

  void Add(const StageSums& other) {
    device_time += other.device_time;
    host_time += other.host_time;
    static_bytes += other.static_bytes;
    stash_bytes += other.stash_bytes;
    parameter_bytes += other.parameter_bytes;
    not_on_device += other.not_on_device;
  }

  // `Value`: a net, or a type with the same costs.
  template <typename Value>
  void AddCut(const Value& net, int sign) {
    cut_time += sign * net.time;
    cut_transfers += sign * net.transfers;
    cut_bytes += sign * net.bytes;
  }

  // Returns the load; infinite if the option cannot run the stage with `devices_after` devices
  // after it.
  double Load(const PartitionProblem& problem, const StageOption& option, int devices_after) const {
    const DeviceClass& device = problem.devices[option.device_class];
    double r = option.replicas;
    if (device.host) return host_time / r;
    if (not_on_device) return kInfinity;
    if (device.memory_bytes < kInfinity) {
      int held = InFlightCount(problem, option.replicas, devices_after);
      double bytes = static_bytes + stash_bytes * held + cut_bytes;
      // Allows for rounding, which depends on the order of the sums: a stage may fit exactly.
      if (bytes > device.memory_bytes * (1 + 1e-12)) return kInfinity;
    }
    double cut = cut_time / device.link, within = device.link;
    if (option.first >= 0) {
      cut = entering_time / option.link_in + (cut_time - entering_time) / option.link_out;
      within = option.link_within;
    }
    return (device_time / device.speed + cut + cut_transfers * problem.transfer_latency) / r +
           2 * (r - 1) / r * parameter_bytes * problem.exchange_time / within;
  }
};

// Maintains the load of one stage while units enter and leave it.
struct StageLoad : StageSums {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  std::vector<int> inside;  // by net: number of its units in the stage

  StageLoad(const PartitionProblem& p, const UnitGraph& g) : problem(p), graph(g) {
    inside.assign(g.nets.size(), 0);
  }

  void Add(int u) { Change(u, 1); }
  void Remove(int u) { Change(u, -1); }

  // Resets the sums after all units have left, so that rounding errors do not accumulate.
  void Reset() { static_cast<StageSums&>(*this) = StageSums(); }

  double Load(const StageOption& option, int devices_after) const {
    return StageSums::Load(problem, option, devices_after);
  }

 private:
  void Change(int u, int sign) {
    AddUnit(graph.units[u], sign);
    for (int n : graph.nets_of[u]) {
      const Net& net = graph.nets[n];
      int size = static_cast<int>(net.units.size());
      bool was = inside[n] > 0 && inside[n] < size, touched = inside[n] > 0;
      inside[n] += sign;
      if (touched != (inside[n] > 0)) stash_bytes += sign * net.stash_bytes;
      bool is = inside[n] > 0 && inside[n] < size;
      if (was != is) AddCut(net, is ? 1 : -1);
    }
  }
};

// The class and number of each device, in the order in which stages take them.
using DeviceSequence = std::vector<std::pair<int, int>>;

// Returns the number of device states: combinations of numbers of used devices by class; at most
// INT_MAX.
int DeviceStates(const PartitionProblem& problem);
inline constexpr int kMostDeviceStates = 100'000;

// All options for a stage, and the states of used devices. A state is a number in mixed radix with
// one digit per device class and, if the number of stages does not follow from the devices, one for
// that. In a sequence, the devices at the end are used first.
struct Resources {
  struct Step {
    int from, to;  // states before (devices of later stages) and after
    int devices_after;
  };
  std::vector<StageOption> options;
  std::vector<std::vector<Step>> steps;  // by option
  std::vector<int> used;                 // devices in use, of each state
  std::vector<int> in_use;               // by state and class
  // [state] the most devices that further stages may use; negative: there are too many stages.
  std::vector<int> most_left;
  // [state] the total speed of the devices in use, and the most that further stages can use;
  // infinite with a CPU.
  std::vector<double> speed, speed_left;
  std::vector<char> final;  // [state] a partition may end in it
  int states = 1, devices = 0;

  explicit Resources(const PartitionProblem& problem);
  // Takes the devices of a sequence, in order. If links differ by pair, each option has the links
  // to the adjacent devices. A pipeline may leave out devices at the start.
  Resources(const PartitionProblem& problem, const DeviceSequence& sequence);

  // Returns the largest sum of `of_class`, which has a number for each class, over the devices that
  // further stages may use in a state; for a sequence, an upper bound.
  double MostLeft(const PartitionProblem& problem, int state,
                  const std::vector<double>& of_class) const;

 private:
  void AddOption(const StageOption& option);
};

// Returns the resources of the sequence, if there is one, else of the problem.
inline Resources ResourcesOf(const PartitionProblem& problem, const DeviceSequence* sequence) {
  return sequence ? Resources(problem, *sequence) : Resources(problem);
}

}  // namespace pipewright
