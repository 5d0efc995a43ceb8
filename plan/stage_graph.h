// Builds and checks the graph of stages: their edges, and the ranks they run on.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Returns a chain in which stage s feeds stage s + 1; `ranks_of` has the replicas of each stage.
// The number of ranks is the largest one + 1.
StageGraph ChainGraph(std::vector<std::vector<int>> ranks_of);

// Builds the graph from a plan's own text: the placement from its compute actions, the edges from
// its transfers and, where it has none, a chain; which stages share weights from its header. Throws
// Error when a stage has no forward at all.
StageGraph GraphOf(const Plan& plan);

// Throws Error when ranks, edges or groups are out of range, unsorted or repeated.
void CheckGraph(const StageGraph& graph);

// Lists the edges of each stage as indices into graph.edges, ascending.
struct EdgeIndex {
  std::vector<std::vector<int>> in, out;
};
EdgeIndex IndexEdges(const StageGraph& graph);

}  // namespace pipewright
