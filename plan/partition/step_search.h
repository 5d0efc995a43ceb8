// The shortest step by looking at all partitions.
#pragma once
#include <cstdint>

#include "plan/partition/step_objective.h"

namespace pipewright {

// Says whether what SearchSteps takes for granted holds: devices are of one class, one a stage, and
// the last stages of a plan are as a plan of their own, as with GPipe and 1F1B.
bool IsSearchable(const PartitionProblem& problem, const StepOptions& step);

// Where IsSearchable: replaces `best` by a partition with a shorter step, and raises its lower bound,
// by looking at all partitions from their last stages on; those whose last stages alone take too
// long are left out. The search simulates about `actions` at most; where it ends within them, the
// lower bound is the objective.
void SearchSteps(const PartitionProblem& problem, const StepOptions& step, int64_t actions,
                 PartitionResult& best);

}  // namespace pipewright
