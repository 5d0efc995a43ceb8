// Executes a plan symbolically, with every send synchronous.
#pragma once
#include "plan/compute_index.h"
#include "plan/lowering/transfer_index.h"
#include "plan/plan.h"
#include "plan/stage_graph.h"

namespace pipewright {

// Runs every rank's list in order: a SEND ends when its receiver has reached the RECV, a compute
// begins when its data have been sent, an exchange of gradients (plan/lowering/reduce_order.h) ends
// when all its ranks have joined. Throws Error, rule "deadlock", naming who waits for whom, if a
// rank never reaches its end. Takes time linear in the actions.
void CheckRendezvous(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
                     const TransferIndex& transfers);

}  // namespace pipewright
