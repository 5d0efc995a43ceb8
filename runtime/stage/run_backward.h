// Runs backward through an autograd graph on the calling thread: the nodes that the engine would
// run, in its order, on the same operands, without the engine's machinery for threads and streams:
// forward must have run on this thread's current streams. Modules of few short operations save time
// by this.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace pipewright {

// Returns the gradient of each of `leaves`, undefined if none arrives. Consumes the `gradients` of
// the roots. Frees the graph as it runs, so it can run only once. Falls back to the engine if the
// graph leads to other leaves too, if a leaf is listed twice, and if nodes have hooks.
std::vector<at::Tensor> RunBackward(const torch::autograd::edge_list& roots,
                                    std::vector<at::Tensor> gradients,
                                    const torch::autograd::edge_list& leaves);

// Returns the edge at which each tensor's gradient arrives in its graph.
torch::autograd::edge_list EdgesOf(const std::vector<at::Tensor>& tensors);

}  // namespace pipewright
