// Finds the shortest step by searching all partitions.
#pragma once
#include <cstdint>

#include "plan/partition/step_objective.h"

namespace pipewright {

// Returns true if the assumptions of SearchSteps hold: devices are of one class, one per stage, and
// the last stages run as they would in a plan of their own, as with GPipe and 1F1B.
bool IsSearchable(const PartitionProblem& problem, const StepOptions& step);

// If IsSearchable, replaces `best` by a partition with a shorter step and raises its lower bound. A
// branch-and-bound search builds partitions from their last stages and skips those whose last
// stages alone take too long. Simulates at most about `actions`; if it finishes, the lower bound is
// the objective.
void SearchSteps(const PartitionProblem& problem, const StepOptions& step, int64_t actions,
                 PartitionResult& best);

}  // namespace pipewright
