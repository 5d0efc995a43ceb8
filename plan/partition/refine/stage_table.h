// The loads of all stages of a partition, kept while units move between them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "plan/partition/problem/partition_state.h"

namespace pipewright {

inline constexpr int64_t kLookSteps = 4;  // that one move of a unit counts for

// Loads of all stages of a partition that changes unit by unit.
class StageTable {
 public:
  StageTable(const PartitionProblem& problem, const UnitGraph& graph, StagedUnits units);

  const StagedUnits& units() const { return units_; }
  int stages() const { return static_cast<int>(units_.options.size()); }
  double load(int stage) const { return loads_[stage]; }
  double LargestLoad() const;
  double LargestTime() const;  // the largest load, whatever memory stages need
  // From now on a stage that is short of memory has a load of at least `least`, and as much again
  // where it needs twice what there is. Infinite, as at first: its load is infinite.
  void SoftenMemory(double least);
  // Returns the load that the stage would be for other devices.
  double LoadOn(int stage, const StageOption& option) const {
    return sums_[stage].Load(problem_, option, devices_after_[stage]);
  }
  int size(int stage) const { return sizes_[stage]; }

  // The first and last stage that the unit's neighbours allow.
  std::pair<int, int> Range(int unit) const { return ranges_[unit]; }
  // Looks at a unit that may move, and says how many steps that took. Then: the load that its stage
  // would have without it, and another one with it.
  int64_t LookAt(int unit);
  // A stage gains time and memory; the time is infinite where it cannot run the unit.
  struct Gain {
    double time, bytes;
  };
  Gain GainWithout() const { return GainOf(units_.stage_of[looked_], -1, without_); }
  Gain GainWith(int to) const;
  double LoadAfter(int stage, const Gain& gain) const {
    const StageCost& cost = costs_[stage];
    double load = cost.load + gain.time, bytes = cost.bytes + gain.bytes;
    if (bytes <= cost.most_bytes) return load;
    return std::max(load, short_load_) + short_load_ * (bytes / cost.most_bytes - 1);
  }
  double LoadWithout() const { return LoadAfter(units_.stage_of[looked_], GainWithout()); }
  double LoadWith(int to) const { return LoadAfter(to, GainWith(to)); }
  // Both, for one of them.
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
  // A net, where it is in the entries, and how many stages it has.
  struct NetPlace {
    double time = 0;
    int first = 0, size = 0, used = 0;
  };
  // A load as a sum of products, with what limits it.
  struct StageCost {
    double device_time = 0, host_time = 0, parameter_bytes = 0, cut_time = 0, cut_transfers = 0;
    double held = 0, most_bytes = kInfinity;
    bool host = false;
    double load = 0, bytes = 0;  // of the stage as it is, whether it may be or not
    int not_on_device = 0;
  };
  struct Entry {
    int stage, units;
  };

  Gain GainOf(int stage, int sign, const Cut& cut) const;
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
  StagedUnits units_;
  std::vector<StageSums> sums_;
  std::vector<double> loads_;
  std::vector<int> sizes_, devices_after_;
  std::vector<StageCost> costs_;
  std::vector<std::pair<int, int>> ranges_;  // of each unit
  // The stages of each net, with the number of its units in each.
  std::vector<NetPlace> places_;
  std::vector<Entry> entries_;
  std::vector<int> first_net_, nets_;  // of each unit, one after the other
  // If true, transfers and bytes of a cut count by themselves; else they count as time, or not.
  bool detailed_ = false;
  double short_load_ = kInfinity;  // of a stage that is short of memory, at least
  // These belong to the unit that was looked at: its stage's cut gains `without_`, that of any
  // other one `with_`, and those that share its values gain `shared_` on top.
  struct Shared {
    double time;
    int64_t look;  // that set it
  };
  int looked_ = 0;
  int64_t look_ = 0;
  Cut without_, with_;
  std::vector<Shared> shared_;  // of each stage
  std::vector<Cut> details_;    // of each stage, but time
};

}  // namespace pipewright
