// Makes the orders that zb-auto starts from: lists of F and I for every rank, without W.
#pragma once
#include "plan/plan.h"
#include "plan/schedules/order_problem.h"

namespace pipewright {

// Returns the F and I of a schedule (B counts as I, a pair as F and I).
RankOrders ScriptOf(const Plan& schedule);

// Returns all computes of a schedule (B counts as I, then W; a pair as F, I and W).
RankOrders RankOrdersOf(const Plan& schedule);

// Returns warm[rank] forwards, then I and F alternately, for one stage per rank.
RankOrders WarmScript(const OrderProblem& problem, const std::vector<int>& warm);

// Returns each rank's first forwards, as if there were no latency and no other work: always of the
// latest stage that is ready, until memory is full. Leaves room for the first microbatch in the
// rank's later stages.
RankOrders StartUp(const OrderProblem& problem);

// Returns a warm-up and a steady state, for any placement without replicas. In the steady state a
// rank's time is divided into slots of F, I, W, and a period has as many slots as the rank has
// stages. Each stage gets the first free slot that its inputs allow if the rank starts its first I
// as early as it can. `slack` (in units of a stage's time) shifts that start from rank to rank; an
// input may be late by `tolerance` (same units). In the warm-up each rank runs forwards of the
// latest stage that is ready, until its memory is full.
// With the V map and F = I = W this is the order of ZB-V (Qi et al., arXiv:2405.15362).
RankOrders PatternScript(const OrderProblem& problem, double slack, double tolerance);

}  // namespace pipewright
