// A partition made better by moving units between its stages.
#pragma once
#include <cstdint>

#include "plan/partition/staged_units.h"

namespace pipewright {

// Loads of all stages of a partition that changes unit by unit.
class StageTable {
 public:
  StageTable(const PartitionProblem& problem, const UnitGraph& graph, StagedUnits units);

  const StagedUnits& units() const { return units_; }
  int stages() const { return static_cast<int>(units_.options.size()); }
  double load(int stage) const { return loads_[stage]; }
  double LargestLoad() const;
  // What the stage would cost other devices.
  double LoadOn(int stage, const StageOption& option) const {
    return sums_[stage].Load(problem_, option, devices_after_[stage]);
  }
  int size(int stage) const { return sizes_[stage]; }

  // The first and last stage that the unit's neighbours allow.
  std::pair<int, int> Range(int unit) const;
  // Loads that the unit's stage and `to` would have with the unit in `to`.
  std::pair<double, double> LoadsAfter(int unit, int to) const;
  void Move(int unit, int to);

 private:
  // Sums of the unit's stage and of `to` with the unit in `to`.
  std::pair<StageSums, StageSums> SumsAfter(int unit, int to) const;
  int Count(int net, int stage) const;
  void Change(int net, int stage, int by);
  double LoadOf(int stage, const StageSums& sums) const;

  const PartitionProblem& problem_;
  const UnitGraph& graph_;
  StagedUnits units_;
  std::vector<StageSums> sums_;
  std::vector<double> loads_;
  std::vector<int> sizes_, devices_after_;
  // The stages of each net, with the number of its units in each: entries first_[n] and on.
  std::vector<size_t> first_;
  std::vector<int> used_;
  std::vector<std::pair<int, int>> entries_;
};

struct RefineOptions {
  int power = 2;   // loads count with this power: 2 saves transfers, more evens out the loads
  int passes = 4;  // at most; the next one follows only where one has helped
  int64_t* steps;  // that may still be taken; counted down
};

// Passes in which each unit moves at most once, always the one whose move lowers the sum of the
// loads' powers most or raises it least; the best moment of a pass is kept (Fiduccia, Mattheyses,
// DAC 1982). Returns whether anything is better. Deterministic.
bool Refine(const UnitGraph& graph, StageTable& table, const RefineOptions& options);

// Lowers the largest load: for lower and lower targets, a tabu search moves units out of the
// slowest stage, or exchanges them for others, so that less is over the target. What a move adds to
// the loads of all stages counts `sum_weight` times as much: there is no other room than theirs.
// What it took is taken from `steps`. Returns whether the largest load is lower. Deterministic.
bool BalanceLoads(const UnitGraph& graph, StageTable& table, double sum_weight, int64_t& steps);

}  // namespace pipewright
