// Finds where each message of a plan is sent and received.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/compute_index.h"
#include "plan/plan.h"
#include "plan/stage_graph.h"

namespace pipewright {

struct TransferIndex {
  int total = 0;  // microbatches of all steps
  // [edge * total + microbatch] -> position on the rank that sends or receives; -1: local, or none.
  std::vector<int32_t> send_forward, recv_forward, send_backward, recv_backward;

  size_t At(int edge, int microbatch) const {
    return static_cast<size_t>(edge) * total + microbatch;
  }
};

// Returns the index in graph.edges of the edge that a transfer belongs to; -1 if there is none.
int EdgeOf(const StageGraph& graph, const EdgeIndex& edges, const Action& transfer);

// Checks the rules transfer, rank, once, order, channel and slot; see plan/lowering/validate.h.
TransferIndex IndexTransfers(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
                             const ComputeIndex& computes);

}  // namespace pipewright
