// Differentiates one module by itself: its inputs are detached and its outputs are leaves for its
// consumers, so the grouping of modules into stages changes no bits.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "runtime/module/messages.h"
#include "runtime/module/module.h"
#include "runtime/stage/split_backward.h"

namespace pipewright {

struct RecordedBody;

// State that a module keeps from forward to backward.
struct Kept {
  Tensors inputs;                      // leaves; undefined if no gradient is wanted
  Tensors outputs;                     // undefined if no gradient can arrive
  std::shared_ptr<RecordedBody> body;  // being observed; may be null
  std::shared_ptr<RecordedRun> run;    // set if recorded lists ran instead of autograd
};

// Gradients of a module, `inputs` like Kept::inputs and `weights` like LoadedModule::weights;
// undefined if none is wanted or none arrives.
struct ModuleGradients {
  Tensors inputs, weights;
};

// Runs the module. `wanted` selects the inputs that need a gradient; if it is empty, gradient mode
// is off and nothing is kept. Outputs are detached; those that require a gradient are kept.
std::vector<c10::IValue> ForwardIsland(const LoadedModule& module, std::vector<c10::IValue> inputs,
                                       const std::vector<bool>& wanted, Kept* kept);

// Does the same with autograd's body, which then also runs backward.
std::vector<c10::IValue> ForwardByAutograd(const LoadedModule& module,
                                           std::vector<c10::IValue> inputs,
                                           const std::vector<bool>& wanted, Kept* kept);

// `gradients` are those of the outputs, undefined if absent. All three functions consume their
// arguments.
ModuleGradients BackwardIsland(const LoadedModule& module, Kept kept, Tensors gradients);  // B
Tensors InputGradientsOf(const LoadedModule& module, Kept kept, Tensors gradients,
                         WeightTail& tail);                              // I
Tensors WeightGradientsOf(const LoadedModule& module, WeightTail tail);  // W

// Gradient contributions to one value, keyed by contributing module; the loss comes after all
// modules. Without any, the gradient is undefined, and modules before are not trained through it,
// as in one process.
using GradientTerms = std::vector<std::pair<int, at::Tensor>>;

// Adds the last consumer's first, in the order of autograd.
at::Tensor SumInOrder(GradientTerms gradient_terms);

// Stores the first gradient of a parameter, converted to `type`, and adds later ones.
void Accumulate(at::Tensor& sum, const at::Tensor& gradient, at::ScalarType type);

}  // namespace pipewright
