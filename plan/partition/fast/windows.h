// Improves a partition a few adjacent stages at a time.
#pragma once
#include "plan/partition/problem/stage_load.h"

namespace pipewright {

struct WindowOptions {
  int64_t sets = 20'000;                     // the limit for one window
  const DeviceSequence* sequence = nullptr;  // as in ExactOptions
};

// Takes the slowest stage of `known` with its neighbors and finds the best way to divide their
// units among as many stages, with the other stages unchanged. Repeats that while it helps. `order`
// has the stages of `known` one after the other. If a window has too many units, only those near
// its cuts may move. Subtracts its cost from `ticks` (about a nanosecond each), and may use up all
// of them. Deterministic.
PartitionResult ImproveWindows(const PartitionProblem& problem, const UnitGraph& graph,
                               std::vector<int> order, PartitionResult known,
                               const WindowOptions& options, int64_t& ticks);

}  // namespace pipewright
