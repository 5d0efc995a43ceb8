// Computes the costs of the stages of a partitioned profile, for the simulator and zb-auto.
#pragma once
#include <string>
#include <vector>

#include "formats/profile/profile.h"

namespace pipewright {

// Returns a costs file (docs/reference/costs.md), in microseconds and bytes. `stage_of` has the
// stage of each node, `optimizer_state` the bytes per byte of trained parameters. Loss and STEP,
// which only a job defines, cost nothing.
std::string CostsOfStages(const Profile& profile, const std::vector<int>& stage_of,
                          double optimizer_state);

}  // namespace pipewright
