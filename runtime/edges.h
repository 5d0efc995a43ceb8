// What a message along an edge holds.
#pragma once
#include <vector>

#include "plan/conf.h"
#include "plan/manifest.h"

namespace pipewright {

// One tensor of a backward message: the sum of what some consumers of a value give to its gradient.
struct Contribution {
  int value = -1;
  std::vector<int> consumers;  // modules, ascending
};

struct EdgeContents {
  std::vector<int> forward;            // value ids, ascending
  std::vector<Contribution> backward;  // by value, then consumer
};

// By edge of graph.edges. A value's gradient is the sum over its consumers, the last module first,
// as autograd in one process adds them, whatever the stages are. A stage adds up its own share only
// where that keeps the order, which is when its consumers are the last; else each travels for
// itself.
std::vector<EdgeContents> MakeEdgeContents(const Manifest& manifest, const Conf& conf,
                                           const StageGraph& graph);

}  // namespace pipewright
