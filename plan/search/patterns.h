// Where zb-auto starts from: lists of F and I for every rank, W left out.
#pragma once
#include "plan/plan.h"
#include "plan/schedules/order_problem.h"

namespace pipewright {

// The F and I of a schedule (B counts as I, a pair as F and I).
RankOrders ScriptOf(const Plan& schedule);

// A schedule as it is: a B counts as I and W in a row, a pair as F, I and W.
RankOrders OrderOf(const Plan& schedule);

// For one stage a rank: warm[rank] forwards first, then I and F in turns.
RankOrders WarmScript(const OrderProblem& problem, const std::vector<int>& warm);

// Each rank's first forwards if there were nothing else to do and no latency: the latest stage that
// can, until its memory is full, but room is kept for the first microbatch's later stages.
RankOrders StartUp(const OrderProblem& problem);

// A steady state and what leads there, for any map of stages to ranks without replicas.
// Steady state: a rank's time is cut into slots of F, I, W; every stage has one slot in each period
// of as many slots as the rank has stages, the first free one that its inputs allow when the rank
// starts its first I as early as it can. `slack` (in units of a stage's time) moves that start from
// rank to rank, `tolerance` (same units) forgives an input that comes so much too late. Start: each
// rank runs forwards, of the latest stage that can, until its memory is full.
// With the V map and F = I = W this is the order of ZB-V (Qi et al., arXiv:2405.15362).
RankOrders PatternScript(const OrderProblem& problem, double slack, double tolerance);

}  // namespace pipewright
