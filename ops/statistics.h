// Handles running statistics of batch norm and instance norm in a graph.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <vector>

namespace pipewright {

// Indices of running mean and variance among the inputs of both norms.
constexpr size_t kRunningMean = 3, kRunningVariance = 4;

// Returns true if the node writes to its running statistics in training mode; the schemas do not
// declare this.
bool WritesStatistics(const torch::jit::Node* node);

// Returns true if the node is a batch norm outside of torch.nn that never trains: it writes to
// nothing, although its operator may (aliases.h).
bool IsNormInEvaluation(const torch::jit::Node* node);

// Returns the fraction of a buffer that one training run of the graph keeps: the product of 1 -
// momentum over the norms that use it as running mean or variance. `uses` are the values by which
// the graph reads the buffer. Returns nullopt if anything else uses the buffer, or if a momentum is
// not a constant.
std::optional<double> KeptPart(const std::vector<const torch::jit::Value*>& uses);

// Inserts before each of these norms a check that, in training mode, there is more than one value
// to compute the variance of. Python's torch.nn.functional has this check; C++ kernels lack it.
void CheckStatistics(torch::jit::Graph& graph);

}  // namespace pipewright
