// Tabu search over orders, with the moves of a job shop on the critical path of the worst rank.
#pragma once
#include "plan/schedules/order_problem.h"

namespace pipewright {

// Moves an action out of a block of the path that decides the worst rank's span, to before the
// block's first or behind its last action: of all such moves the one that looks best, judged from
// what comes before and after the actions moved (Balas and Vazacopoulos, "Guided local search with
// shifting bottleneck for job shop scheduling", Management Science 44, 1998), though not one that
// undoes a recent move. Microbatches of a stage stay in order; W of a stage are alike. Makes at
// most `moves` moves and stops at a span of `enough`. Leaves the best order in `order` and returns
// its times. Deterministic.
OrderTimes Tabu(const OrderProblem& problem, RankOrders& order, long moves, unsigned seed,
                double enough = 0);

}  // namespace pipewright
