// Splits a backward pass in two halves: I computes the gradients of the inputs, W those of the
// weights. Together they run every kernel of the whole pass once, with the same operands in the
// same order, so the gradients have the same bits.
//
// An autograd node on a path to an input that also has a branch only to weights runs in both
// halves, each time for one side: a matrix product's node multiplies once in I and once in W, and a
// fused one (convolution) gets an output mask. From I to W such a node keeps its saved tensors and
// its output gradient; all other nodes are released as soon as I has run them.
//
// Some kernels always compute all their gradients (RNN layers, attention, PReLU, writes to views),
// and for the small gradients of a normalization W would need another pass over the data that I has
// just read. These run only in I, and the gradients of their weights are kept for W.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <string>
#include <vector>

namespace pipewright {

struct RecordedRun;

// The start of W: nodes that still lead to weights, and the gradients that arrive there.
struct WeightTail {
  torch::autograd::edge_list edges;
  std::vector<at::Tensor> gradients;
  std::shared_ptr<RecordedRun> run;  // for a recorded body, instead
};

// Runs I. `roots` are outputs that require a gradient, `gradients` theirs, and `inputs` leaves.
// Returns the gradient of each input, undefined if none arrives. Afterwards the graph behind
// `roots` can only be used by W.
std::vector<at::Tensor> InputGradients(const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& gradients,
                                       const std::vector<at::Tensor>& inputs, WeightTail& tail);

// Runs W. Returns the gradient of each weight (a leaf), undefined if none arrives.
std::vector<at::Tensor> WeightGradients(WeightTail tail, const std::vector<at::Tensor>& weights);

// Returns true if the kernel behind a node ("MkldnnRnnLayerBackward0") computes all its gradients
// in I.
bool RunsInIAlone(const std::string& node);

}  // namespace pipewright
