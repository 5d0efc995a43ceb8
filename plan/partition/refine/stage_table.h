// Maintains the loads of all stages while units move between them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "plan/partition/problem/partition_state.h"

namespace pipewright {

inline constexpr int64_t kLookSteps = 4;  // steps that LoadWith counts for

// Loads of all stages of a partition that changes unit by unit.
class StageTable {
 public:
  StageTable(const PartitionProblem& problem, const UnitGraph& graph, PartitionState units);

  const PartitionState& units() const { return units_; }
  int stages() const { return static_cast<int>(units_.options.size()); }
  double load(int stage) const { return loads_[stage]; }
  double LargestLoad() const;
  // Returns the load that the stage would have on other devices.
  double LoadOn(int stage, const StageOption& option) const {
    return sums_[stage].Load(problem_, option, devices_after_[stage]);
  }
  int size(int stage) const { return sizes_[stage]; }

  // Returns the first and last stage that the unit's neighbors allow.
  std::pair<int, int> Range(int unit) const { return ranges_[unit]; }
  // Prepares the functions below for moving a unit, and returns the steps that this took. They
  // return the load of its stage without it and of another stage with it; infinite if that stage
  // cannot run it, or exceeds its memory.
  int64_t LookAt(int unit);
  double LoadWithout() const {
    const int from = units_.stage_of[looked_];
    return LoadAfter(from, GainOf(from, -1, without_));
  }
  double LoadWith(int to) const { return LoadAfter(to, GainWith(to)); }
  // Returns both loads for one move.
  std::pair<double, double> LoadsAfter(int unit, int to) {
    LookAt(unit);
    return {LoadWithout(), LoadWith(to)};
  }
  void Move(int unit, int to);

 private:
  struct Cut {
    double time = 0, transfers = 0, bytes = 0;
    double stash = 0;  // for each microbatch in flight
  };
  // The range of a net in `entries_`, and its number of stages.
  struct NetPlace {
    double time = 0;
    int first = 0, size = 0, used = 0;
  };
  // The coefficients of a stage's load, and its limits.
  struct StageCost {
    double device_time = 0, host_time = 0, parameter_bytes = 0, cut_time = 0, cut_transfers = 0;
    double held = 0, most_bytes = kInfinity;
    bool host = false;
    double load = 0, bytes = 0;  // the current stage's, even if it exceeds its limits
    int not_on_device = 0;
  };
  struct Entry {
    int stage, units;
  };

  // The change of a stage's time and memory; the time is infinite if it cannot run the unit.
  struct Gain {
    double time, bytes;
  };
  Gain GainOf(int stage, int sign, const Cut& cut) const;
  Gain GainWith(int to) const;
  double LoadAfter(int stage, const Gain& gain) const {
    const StageCost& cost = costs_[stage];
    return cost.bytes + gain.bytes <= cost.most_bytes ? cost.load + gain.time : kInfinity;
  }
  int Count(const NetPlace& net, int stage) const;
  void Change(NetPlace& net, int stage, int by);
  void AddDetails(Cut& cut, int net, int times) const {
    cut.transfers += times * graph_.nets[net].transfers;
    cut.bytes += times * graph_.nets[net].bytes;
  }
  void SetCosts(int stage);
  double JoinCosts();
  void SetLoad(int stage);
  void FindRange(int unit);

  const PartitionProblem& problem_;
  const UnitGraph& graph_;
  PartitionState units_;
  std::vector<StageSums> sums_;
  std::vector<double> loads_;
  std::vector<int> sizes_, devices_after_;
  std::vector<StageCost> costs_;
  std::vector<std::pair<int, int>> ranges_;  // by unit
  // The stages of each net, with the number of its units in each.
  std::vector<NetPlace> places_;
  std::vector<Entry> entries_;
  std::vector<int> first_net_, nets_;  // the nets of all units, one unit after the other
  // If true, transfers and bytes of a cut are counted separately; else as time, or not at all.
  bool detailed_ = false;
  // Set by LookAt for the unit: if it moves, its stage's cut changes by `without_`, that of any
  // other stage by `with_`, and those of stages that share its values by `shared_` in addition.
  struct Shared {
    double time;
    int64_t look;  // value of `look_` when it was set
  };
  int looked_ = 0;
  int64_t look_ = 0;
  Cut without_, with_;
  std::vector<Shared> shared_;  // by stage
  std::vector<Cut> details_;    // by stage, without time
};

}  // namespace pipewright
