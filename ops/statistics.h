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

// Returns whether the node is a batch norm that is no operation of torch.nn's and never trains: it
// writes to nothing, though its operator may (aliases.h).
bool IsNormInEvaluation(const torch::jit::Node* node);

// Returns how much a buffer keeps of itself in one training run of the graph: 1 - momentum, for
// each norm whose running mean or variance it is. `uses`: the values by which the graph reads the
// buffer. nullopt: something else is done with it too, or the momentum is not a constant.
std::optional<double> KeptPart(const std::vector<const torch::jit::Value*>& uses);

// Inserts before each of these norms a check that, in training mode, there is more than one value
// to compute the variance of. Python's torch.nn.functional has this check; C++ kernels lack it.
void CheckStatistics(torch::jit::Graph& graph);

}  // namespace pipewright
