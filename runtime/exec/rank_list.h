// One rank's list, with everything looked up that does not change from step to step.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/stage_graph.h"
#include "runtime/exec/executor.h"

namespace pipewright {

struct RankEntry {
  Action action;
  std::string text;  // as the plan writes it
  // Transfers: the edge, and the rank at its other end; -1 where that is this rank (nothing moves).
  int edge = -1, peer_rank = -1, tag = -1;
  // REDUCE_GRAD: the shared groups whose exchange begins here.
  std::vector<int> groups;
};

struct RankList {
  std::vector<RankEntry> entries;
  EdgeIndex edges;       // every edge
  EdgeIndex gradients;   // edges that carry gradients
  int microbatches = 0;  // largest index of the plan's list + 1
  int first_group_tag = 0;
};

// Tags: one for each edge, direction and microbatch, so that a message is never taken for another
// even when both sides post in different orders; then one for each group. With more messages than
// tags, microbatches share tags and the order of posting decides.
//
// An exchange of a shared group begins at the rank's last REDUCE_GRAD (within a step) of a stage
// that holds it; where several REDUCE_GRAD stand together, at the last of these.
//
// Throws Error("rank R, action N, TEXT", ...) for what does not fit the graph.
RankList MakeRankList(const Plan& plan, const StageGraph& graph,
                      const std::vector<SharedGroup>& groups, int rank, int max_tag);

}  // namespace pipewright
