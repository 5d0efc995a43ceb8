// One module differentiated by itself: its inputs are detached, its outputs handed on, so that
// regrouping modules into stages changes no bit.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "runtime/messages.h"
#include "runtime/module.h"
#include "runtime/split_backward.h"

namespace pipewright {

struct RecordedBody;

// What a module keeps from forward to backward.
struct Kept {
  Tensors inputs;                      // leaves, undefined where no gradient is wanted
  Tensors outputs;                     // undefined where no gradient can arrive
  std::shared_ptr<RecordedBody> body;  // watched, or null
  std::shared_ptr<RecordedRun> run;    // where the lists ran instead of autograd
};

// Gradients of a module: `inputs` as Kept::inputs, `weights` as LoadedModule::weights; undefined
// where none is wanted or none arrives.
struct ModuleGradients {
  Tensors inputs, weights;
};

// Runs the module. `wanted`: which inputs want a gradient (empty: nothing is kept, no gradient mode
// at all). Outputs are detached; those that require a gradient are kept.
std::vector<c10::IValue> ForwardIsland(const LoadedModule& module, std::vector<c10::IValue> inputs,
                                       const std::vector<bool>& wanted, Kept* kept);

// The same by autograd's body; its backward is, too.
std::vector<c10::IValue> ForwardByAutograd(const LoadedModule& module,
                                           std::vector<c10::IValue> inputs,
                                           const std::vector<bool>& wanted, Kept* kept);

// `gradients` of the outputs, undefined where there is none. All three consume what they are given.
ModuleGradients BackwardIsland(const LoadedModule& module, Kept kept, Tensors gradients);  // B
Tensors InputGradientsOf(const LoadedModule& module, Kept kept, Tensors gradients,
                         WeightTail& tail);                              // I
Tensors WeightGradientsOf(const LoadedModule& module, WeightTail tail);  // W

// Who gave a gradient to a value, and what: by module; the loss comes after all of them. Nobody:
// the gradient is undefined, and what lies before is not trained by it, as in one process.
using Gifts = std::vector<std::pair<int, at::Tensor>>;

// The last consumer's first, as autograd meets them.
at::Tensor SumInOrder(Gifts gifts);

// Keeps the first gradient of a parameter, as `type`, and adds the others.
void Accumulate(at::Tensor& sum, const at::Tensor& gradient, at::ScalarType type);

}  // namespace pipewright
