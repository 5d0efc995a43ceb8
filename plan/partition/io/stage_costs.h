// Computes the costs of the stages of a partitioned profile, for the simulator and zb-auto.
#pragma once
#include <string>
#include <vector>

#include "formats/optimizer_job.h"
#include "formats/profile/profile.h"

namespace pipewright {

// Returns bytes of optimizer state a byte of trained parameters.
double OptimizerState(const OptimizerJob& job);

// Returns a costs file (docs/reference/costs.md), in microseconds and bytes. `stage_of` has the
// stage of each node; `optimizer_state`, bytes a byte of trained parameters. What only a job says,
// loss and STEP, costs nothing.
std::string CostsOfStages(const Profile& profile, const std::vector<int>& stage_of,
                          double optimizer_state);

}  // namespace pipewright
