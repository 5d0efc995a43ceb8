// Defines the contents of a message along an edge.
#pragma once
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"

namespace pipewright {

// One tensor of a backward message: the sum of the gradients that some consumers of a value
// contribute.
struct Contribution {
  int value = -1;
  std::vector<int> consumers;  // modules, ascending
};

struct EdgeContents {
  std::vector<int> forward;            // value ids, ascending
  std::vector<Contribution> backward;  // by value, then consumer
};

// Returns the contents by edge of graph.edges. A value's gradient is the sum over its consumers,
// last module first, which is the order of autograd in one process, however stages are formed. A
// stage sums its own contributions only if that keeps the order, that is if its consumers are the
// last and the value is not among `losses`, which are computed after them; otherwise each
// contribution is sent separately.
std::vector<EdgeContents> MakeEdgeContents(const Manifest& manifest, const Conf& conf,
                                           const StageGraph& graph,
                                           const std::vector<int>& losses);

}  // namespace pipewright
