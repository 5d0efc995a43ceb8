// Where each stage runs each microbatch: the backbone of lowering, validation and simulation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

struct ComputePlace {
  int32_t rank = -1, position = -1;  // -1: nowhere
};

// The compute actions of a plan by stage and microbatch. `total` = steps * microbatches.
struct ComputeIndex {
  int stages = 0, total = 0;
  std::vector<ComputePlace> forward;      // F, or the first half of a pair
  std::vector<ComputePlace> backward;     // B, I, or the second half of a pair; empty: forward only
  std::vector<ComputePlace> weight_grad;  // W; empty when there is none

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * total + microbatch;
  }
};

// Each action once a microbatch, on the rank that `graph` says; B, or I and W; the forward of a
// stage before its backward, I before W, on their rank. Throws Error naming rank, action and rule.
ComputeIndex IndexCompute(const Plan& plan, const StageGraph& graph);

}  // namespace pipewright
