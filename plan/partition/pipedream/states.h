// Enumerates the states that PipeDream's optimizer cuts between: sets of nodes closed under
// predecessors.
#pragma once
#include <vector>

#include "formats/graph_text.h"
#include "plan/partition/problem/unit_set.h"

namespace pipewright {

struct PipeDreamStates {
  std::vector<int> inputs;  // nodes left out: sources described as Input*
  std::vector<int> unused;  // nodes left out: unused __getitem__
  std::vector<Bits> nodes;  // by state, in topological order: a bit for each position in the graph
  std::vector<double> compute_s, activation_bytes, parameter_bytes;  // sums over its nodes
  std::vector<double> output_bytes;  // upstream's size of the cut after the state
};

// Returns the states as upstream finds them with augmented antichains: the closure of {the first
// source} under "add a successor of a member with all its ancestors", in the order of a depth-first
// topological sort. Overstates the cut of a state as upstream does: outputs that are used only
// inside the state still count if some maximal node does not depend on their user. Throws Error for
// more than `max_states`.
PipeDreamStates EnumeratePipeDreamStates(const ModelGraph& graph, int max_states);

}  // namespace pipewright
