// Orders the ranks that sum gradients with each other.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// One exchange of gradients: the stages whose weights it sums and all the ranks that hold them.
// There is one for each group in graph.shared, in their order; then one for each stage with
// replicas, for the weights that it does not share.
struct ReduceExchange {
  std::vector<int> stages;  // ascending
  std::vector<int> ranks;   // ascending
};
std::vector<ReduceExchange> ReduceExchanges(const StageGraph& graph);

// Returns [rank] -> the stages whose REDUCE_GRAD it runs, in order. A stage reduces if it has
// replicas or shares weights with another stage.
std::vector<std::vector<int>> ReduceOrder(const StageGraph& graph);

}  // namespace pipewright
