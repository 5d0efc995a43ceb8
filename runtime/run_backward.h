// Backward through an autograd graph on the calling thread, by itself: the nodes that the engine
// would run, in its order, on the same operands, without what the engine does to share work among
// threads and devices. A module of few short operations spends less on it than on the engine.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace pipewright {

// The gradient of each of `leaves`, undefined where none arrives. `gradients` of the roots are
// consumed. The graph is freed as it runs, and serves no second time. The engine runs it after all
// where it leads to other leaves too or a leaf is named twice, where nodes have hooks, and on other
// devices than the CPU.
std::vector<at::Tensor> RunBackward(const torch::autograd::edge_list& roots,
                                    std::vector<at::Tensor> gradients,
                                    const torch::autograd::edge_list& leaves);

// Where the gradient of each tensor arrives in its graph.
torch::autograd::edge_list EdgesOf(const std::vector<at::Tensor>& tensors);

}  // namespace pipewright
