// Throughput instances of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
// Operators", NeurIPS 2020: JSON as in msr-fiddle/dnn-partitioning.
#pragma once
#include "base/json.h"
#include "plan/partition/problem/problem.h"

namespace pipewright {

// Says whether a JSON document is such an instance.
bool IsTarnawski(const Json& json);

// maxFPGAs devices "gpu" of maxSizePerFPGA bytes and maxCPUs devices "cpu". A node without a
// colorClass is on its own. All edges of one source carry the same cost, its transfer time. Throws
// Error naming the entry that is malformed, a cycle, or an edge from a backward to a forward node.
PartitionProblem ReadTarnawski(const Json& json, const std::string& path);

}  // namespace pipewright
