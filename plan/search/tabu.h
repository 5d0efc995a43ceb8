// Tabu search over orders, with the moves of a job shop on the critical path of the worst rank.
#pragma once
#include "plan/schedules/order_problem.h"

namespace pipewright {

// A move takes an action out of a block of the critical path of the worst rank, to before the
// block's first or after its last action. Each time makes the move with the best estimate from the
// heads and tails of the moved actions (Balas and Vazacopoulos, "Guided local search with shifting
// bottleneck for job shop scheduling", Management Science 44, 1998), but none that undoes a recent
// move. Microbatches of a stage stay in order; the W of a stage are interchangeable. Makes at most
// `moves` moves and stops at a span of `enough`. Leaves the best order in `order` and returns its
// times. Deterministic.
OrderTimes Tabu(const OrderProblem& problem, RankOrders& order, long moves, unsigned seed,
                double enough = 0);

}  // namespace pipewright
