// The states between which PipeDream's optimizer chooses: sets of nodes closed under predecessors.
#pragma once
#include <vector>

#include "formats/graph_text.h"
#include "plan/partition/problem/unit_set.h"

namespace pipewright {

struct PipeDreamStates {
  std::vector<int> inputs;  // nodes left out: sources described as Input*
  std::vector<int> unused;  // nodes left out: __getitem__ that nothing uses
  std::vector<Bits> nodes;  // of each state, by position in the graph; in topological order
  std::vector<double> compute_s, activation_bytes, parameter_bytes;  // sums over its nodes
  std::vector<double> output_bytes;  // what upstream takes for the size of the cut after the state
};

// Upstream walks over augmented antichains. On sets of nodes: the states are the closure of {the
// first source} under "add a successor of a member with all its ancestors", in the order of a depth
// first topological sort. The cut of a state is overstated as upstream overstates it: outputs that
// are used only inside the state still count where a maximal node does not depend on their user.
PipeDreamStates EnumeratePipeDreamStates(const ModelGraph& graph, int max_states);

}  // namespace pipewright
