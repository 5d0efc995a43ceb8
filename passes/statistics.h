// Running statistics of batch norm and instance norm, in a graph.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <vector>

namespace pipewright {

// Where both norms take their running mean and variance among their inputs.
constexpr size_t kRunningMean = 3, kRunningVariance = 4;

// Whether the node is one that writes, in training, to the running statistics that it is given:
// their schemas do not say so.
bool WritesStatistics(const torch::jit::Node* node);

// What a buffer keeps of itself in one training run of the graph: 1 - momentum, for each norm whose
// running mean or variance it is. `uses`: the values by which the graph reads the buffer. nullopt:
// something else is done with it too, or the momentum is not a constant.
std::optional<double> KeptPart(const std::vector<const torch::jit::Value*>& uses);

// Puts before each of these norms a check that, in training, there is more than one value to take
// the variance of. As in Python's torch.nn.functional, which C++ kernels lack.
void CheckStatistics(torch::jit::Graph& graph);

}  // namespace pipewright
