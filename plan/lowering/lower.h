// Turns an order of compute actions into a plan that ranks can run.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// Adds to a schedule (its compute actions; anything else in it is dropped):
//  - transfers for every edge of `graph` between different ranks, forward and, where the edge
//    carries gradients, backward. A SEND stands right behind the compute that makes the data, in
//    the order of the peers; a RECV, which only posts, as early as its slot is free, in the order
//    of the channel's sends. Slots are numbered per edge, direction and rank, a slot
//    being taken from its RECV to the compute that uses it: the least number with which each
//    RECV is reached before the time of its SEND in the order below, so that data travel at once;
//  - at the end of each step, on every rank, REDUCE_GRAD of its stages that have replicas or share
//    weights, then STEP of each stage. Exchanges are numbered: one for each group in graph.shared,
//    then one for each replicated stage (plan/lowering/reduce_order.h). A rank joins an exchange at its last
//    REDUCE_GRAD of a stage in it, in the order of the numbers: later exchanges wait for earlier
//    ones of the rank. Stages come in the order of their first exchange.
// Every message is sent in one global order, that of the computes by time at unit costs, so the
// plan is free of deadlock even when every SEND blocks until its RECV is reached.
// Throws Error when the schedule does not fit the graph or its order can never finish.
Plan Lower(const Plan& schedule, const StageGraph& graph);

}  // namespace pipewright
