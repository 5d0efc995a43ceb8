// Simulated annealing over orders: small changes, judged by the spans of all ranks.
#pragma once
#include "plan/zb_order.h"

namespace pipewright {

// Moves an action of the second half of a rank's list, where the pipeline drains, a few places and
// times what starts later. A change is kept when the sum over the ranks of what their spans exceed
// a goal falls, or now and then when it rises (Kirkpatrick, Gelatt and Vecchi, "Optimization by
// simulated annealing", Science 220, 1983). The goal is `enough` once it is near, or lies a little
// below the best span. Times about `effort` actions and stops at a span of `enough`. Leaves the
// best order in `order` and returns its times. Deterministic.
OrderTimes Anneal(const OrderProblem& problem, Order& order, long effort, unsigned seed,
                  double enough = 0);

}  // namespace pipewright
