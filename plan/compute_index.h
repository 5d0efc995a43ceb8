// Finds where each stage runs each microbatch, for lowering, validation and simulation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

struct ComputePlace {
  int32_t rank = -1, position = -1;  // -1: not in the plan
};

// Indexes the compute actions of a plan by stage and microbatch. `total` = steps * microbatches.
struct ComputeIndex {
  int stages = 0, total = 0;
  std::vector<ComputePlace> forward;      // F, or the first half of a pair
  std::vector<ComputePlace> backward;     // B, I, or the second half of a pair; empty: forward only
  std::vector<ComputePlace> weight_grad;  // W; empty when there is none

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * total + microbatch;
  }
};

// Checks that every stage has F, and B or I and W, once per microbatch, on the rank that `graph`
// assigns, with F before B or I, and I before W. Throws Error naming rank, action and rule.
ComputeIndex IndexCompute(const Plan& plan, const StageGraph& graph);

}  // namespace pipewright
