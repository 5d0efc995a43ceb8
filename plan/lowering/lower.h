// Turns an order of compute actions into a plan that ranks can run.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// Adds to a schedule (its compute actions; anything else in it is dropped):
//  - transfers for every edge of `graph` between different ranks, forward and, if the edge carries
//    gradients, backward. A SEND comes right after the compute that makes its data, in the order of
//    the peers. A RECV, which only posts, comes as early as its slot is free, in the order of the
//    channel's sends. Slots are numbered per edge, direction and rank; one is in use from its RECV
//    to the compute that uses the data. There are as few as allow every RECV to be reached before
//    the time of its SEND in the order below, so that no data wait for a slot;
//  - at the end of each step, on every rank, REDUCE_GRAD of its stages that have replicas or share
//    weights, then STEP of each stage. Exchanges are numbered: one for each group in graph.shared,
//    then one for each replicated stage (plan/lowering/reduce_order.h). A rank joins an exchange at
//    its last REDUCE_GRAD of a stage in it, in the order of the numbers: later exchanges wait for
//    earlier ones of the rank. Stages come in the order of their first exchange.
// Every message is sent in one global order, that of the computes by time at unit costs, so the
// plan is free of deadlock even if every SEND blocks until its RECV is reached.
// Throws Error if the schedule does not fit the graph or its order deadlocks.
Plan Lower(const Plan& schedule, const StageGraph& graph);

}  // namespace pipewright
