// Splits the backward passes of a plan into I and W, or joins them again.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// Splits each B into I and W, and moves the SENDs of its gradients between the two. A pair
// (OVERLAP) becomes an F, an I and a W.
Plan InHalves(const Plan& plan);

// Turns each I into a whole B and removes each W.
Plan InWhole(const Plan& plan);

}  // namespace pipewright
