// Saves a module's buffers (and other untrained weights) before it runs and restores them.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>

#include "runtime/module/messages.h"
#include "runtime/module/module.h"

namespace pipewright {

// Restores the buffers at the end without a new version, so tensors that autograd saved stay valid.
class SavedBuffers {
 public:
  explicit SavedBuffers(const LoadedModule& module) : module_(module) {
    for (const at::Tensor& weight : module.weights)
      saved_.push_back(weight.requires_grad() ? at::Tensor() : weight.clone());
  }
  ~SavedBuffers() {
    at::AutoDispatchBelowADInplaceOrView guard;
    for (size_t i = 0; i < saved_.size(); ++i)
      if (saved_[i].defined()) module_.weights[i].copy_(saved_[i]);
  }
  // Restores the buffers and returns what they held.
  Tensors PutBack() {
    at::AutoDispatchBelowADInplaceOrView guard;
    Tensors now;
    for (size_t i = 0; i < saved_.size(); ++i) {
      if (!saved_[i].defined()) continue;
      now.push_back(module_.weights[i].clone());
      module_.weights[i].copy_(saved_[i]);
    }
    return now;
  }

 private:
  const LoadedModule& module_;
  Tensors saved_;
};

}  // namespace pipewright
