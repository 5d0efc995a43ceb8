// Searches the order of F, I and W for one map of stages to ranks and one set of recomputed stages.
#pragma once
#include "plan/schedules/order_problem.h"

namespace pipewright {

// Tries the named schedules and others of their kind, continues from the best, and stops at a span
// of `bound`. Times about `effort` actions; 240 million take a few seconds. The result is not `ok`
// if nothing was found that fits in memory. Deterministic.
TimedOrder FindOrder(const OrderProblem& problem, long effort, double bound);

}  // namespace pipewright
