// Numbers the receive buffers of a plan.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// Renumbers the buffers of every edge, direction and rank as Lower does. A buffer is in use from
// its RECV to the compute that uses its data; each edge gets as few as the order needs, and a RECV
// takes the one that has been free for the longest time.
void NumberSlots(Plan& plan);

}  // namespace pipewright
