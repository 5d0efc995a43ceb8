// The backward passes of a plan in their other form.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// Cuts each B into I and W. The gradients that it sends leave between the two. A pair (OVERLAP)
// becomes an F, an I and a W.
Plan InHalves(const Plan& plan);

// Makes each I the whole B and leaves out each W.
Plan InWhole(const Plan& plan);

}  // namespace pipewright
