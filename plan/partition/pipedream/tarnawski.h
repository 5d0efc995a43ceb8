// Reads throughput instances of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
// Graph Operators", NeurIPS 2020: JSON as in msr-fiddle/dnn-partitioning.
#pragma once
#include "base/json.h"
#include "plan/partition/problem/problem.h"

namespace pipewright {

// Returns true if a JSON document is such an instance.
bool IsTarnawski(const Json& json);

// Returns a problem with maxFPGAs devices "gpu" of maxSizePerFPGA bytes and maxCPUs devices "cpu".
// A node without a colorClass is in no group. All edges of one source have the same cost, its
// transfer time. Throws Error naming the malformed entry, the cycle, or an edge from a backward to
// a forward node.
PartitionProblem ReadTarnawski(const Json& json, const std::string& path);

}  // namespace pipewright
