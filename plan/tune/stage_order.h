// The order in which a plan's stages compute and add gradients, on which bits depend.
#pragma once
#include <optional>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Lists what one replica of a stage does in a step, as far as bits depend on it: forwards write
// buffers.
struct ReplicaOrder {
  std::vector<int> forwards;   // microbatches
  std::vector<int> additions;  // microbatches whose gradients are added to those of weights
  bool operator==(const ReplicaOrder&) const = default;
};
using StageOrder = std::vector<ReplicaOrder>;  // the replica of the first microbatch first

// Returns the order of every stage of the plan; none if they differ, so that bits depend on the
// cut.
std::optional<StageOrder> OrderOfStages(const Plan& plan);

}  // namespace pipewright
