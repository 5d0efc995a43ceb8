// A backward pass in two halves: I, the gradients of the inputs, and W, those of the weights.
// Together they run every kernel that the whole pass runs, once, with the same operands in the same
// order: the gradients have the same bits.
//
// A node of the autograd graph on the way to an input, and with a branch that leads to weights
// alone, runs in both halves, each time asked for one side only: a matrix product's node multiplies
// once in I and once in W, and a fused one (convolution) gets an output mask. From I to W such a
// node keeps what it saved in the forward pass and its output gradient; all others are released as
// soon as I has run them.
//
// Some kernels compute all their gradients whatever they are asked for (RNN layers, attention,
// PReLU), and a normalisation's small ones take W a second pass over all that I has just summed.
// They run in I alone, and what their weights get is kept for W.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <string>
#include <vector>

namespace pipewright {

struct RecordedRun;

// Where W begins: nodes that still lead to weights, and the gradients that arrive there.
struct WeightTail {
  torch::autograd::edge_list edges;
  std::vector<at::Tensor> gradients;
  std::shared_ptr<RecordedRun> run;  // of a recorded body, instead
};

// I. `roots` are outputs that require a gradient, `gradients` theirs, `inputs` leaves. Returns the
// gradient of each input; undefined where none arrives. The graph behind `roots` serves W only from
// then on.
std::vector<at::Tensor> InputGradients(const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& gradients,
                                       const std::vector<at::Tensor>& inputs, WeightTail& tail);

// W. The gradient of each weight (a leaf); undefined where none arrives.
std::vector<at::Tensor> WeightGradients(WeightTail tail, const std::vector<at::Tensor>& weights);

// Whether the kernel behind a node ("MkldnnRnnLayerBackward0") gives all its gradients in I.
bool RunsInIAlone(const std::string& node);

}  // namespace pipewright
