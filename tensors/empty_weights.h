// Models of torch::nn without memory.
#pragma once
#include <memory>

namespace pipewright {

// While one lives, parameters that this thread gives to modules are on the meta device: a model of
// any size takes no memory, and its initialization no time. A tensor becomes one as soon as it is
// registered; until then it is what it was made as. Buffers, and parameters registered with
// requires_grad off, stay real; with `include_buffers`, tensors are made on the meta device, and
// what else was made in the scope gets there at its end. Scopes may be nested, the inner one
// counts. After accelerate's init_empty_weights.
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
