// Creates models of torch::nn without memory.
#pragma once
#include <memory>

namespace pipewright {

// While it exists, parameters that this thread registers in modules are on the meta device: a model
// of any size takes no memory and needs no time to initialize. A tensor becomes meta when it is
// registered and is real until then. Buffers, and parameters registered with requires_grad off,
// stay real. With `include_buffers`, tensors are created on the meta device, and other tensors
// created in the scope move there at its end. Scopes may be nested; the innermost one applies.
// Modeled on accelerate's init_empty_weights.
class EmptyWeights {
 public:
  explicit EmptyWeights(bool include_buffers = false);
  ~EmptyWeights();
  EmptyWeights(const EmptyWeights&) = delete;
  EmptyWeights& operator=(const EmptyWeights&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
