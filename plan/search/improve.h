// Improves an order by small changes.
#pragma once
#include "plan/schedules/order_problem.h"

namespace pipewright {

// Swaps adjacent actions on the critical path of the worst rank's span while that helps; then,
// unless `seed` is 0, perturbs the best order and tries again. Times at most `trials` orders, and
// stops at a span of `enough`. Leaves the best order in `order` and returns its times.
// Deterministic.
OrderTimes Improve(const OrderProblem& problem, RankOrders& order, int trials, int seed,
                   double enough = 0);

}  // namespace pipewright
