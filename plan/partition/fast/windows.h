// A partition improved a few neighbouring stages at a time.
#pragma once
#include "plan/partition/problem/stage_load.h"

namespace pipewright {

struct WindowOptions {
  int64_t sets = 20'000;                     // of one window
  const DeviceSequence* sequence = nullptr;  // as of ExactOptions
};

// Takes the slowest stage of `known` with its neighbours and looks for the best way to divide their
// units among as many stages, the other stages staying as they are; again, as long as that helps.
// `order` has the stages of `known` one after the other; where a window has too many units, only
// those near its cuts are free to move. What it took is taken from `ticks` (about a nanosecond
// each), of which there may be none left then. Deterministic.
PartitionResult ImproveWindows(const PartitionProblem& problem, const UnitGraph& graph,
                               std::vector<int> order, PartitionResult known,
                               const WindowOptions& options, int64_t& ticks);

}  // namespace pipewright
