// Receive buffers of a plan.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// Numbers the buffers of every edge, direction and rank anew, as Lower does: the least number that
// the order needs, a buffer being taken from its RECV to the compute that uses its data, and the
// one that has been free for longest first.
void NumberSlots(Plan& plan);

}  // namespace pipewright
