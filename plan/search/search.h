// The best order of F, I and W for one map of stages to ranks and one set of recomputed stages.
#pragma once
#include "plan/schedules/order_problem.h"

namespace pipewright {

// Tries the named schedules and others of their kind, searches on from the best ones, and stops at
// a span of `bound`. About `effort` actions may be timed, 240 million in a few seconds. Not `ok`
// where it finds nothing that fits into the memory. Deterministic.
TimedOrder FindOrder(const OrderProblem& problem, long effort, double bound);

}  // namespace pipewright
