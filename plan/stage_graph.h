// Builds and checks the graph of stages: their edges, and the ranks they run on.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Returns a chain in which stage s feeds stage s + 1; `ranks_of` has the replicas of each stage.
// The number of ranks is the largest one + 1.
StageGraph ChainGraph(std::vector<std::vector<int>> ranks_of);

// Builds the graph from the plan itself: the placement from its compute actions, the edges from its
// transfers (a chain if it has none), and the groups of shared weights from its header. Throws
// Error if a stage has no forward.
StageGraph GraphOf(const Plan& plan);

// Throws Error if ranks, edges or groups are out of range, unsorted or repeated.
void CheckGraph(const StageGraph& graph);

// Lists the edges of each stage as indices into graph.edges, ascending.
struct EdgeIndex {
  std::vector<std::vector<int>> in, out;
};
EdgeIndex IndexEdges(const StageGraph& graph);

}  // namespace pipewright
