// LibTorch has neither a default device nor a hook for the registration of parameters. Instead,
// while a scope exists, every operator call of the thread passes through a fallback for a dispatch
// key that comes before all others. A tensor that requires a gradient counts as registered.
#include "tensors/empty_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <vector>

#include "tensors/state_dict.h"

namespace pipewright {

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local EmptyWeights::State* current = nullptr;

}  // namespace

struct EmptyWeights::State {
  c10::impl::IncludeDispatchKeyGuard include{kKey};
  bool buffers = false;
  State* outer = nullptr;
  // Tensors created in the scope that may still become parameters.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;

  // Makes the registered parameters among the last `window` tensors meta; with `all`, all of them.
  void Sweep(size_t window, bool all) {
    const size_t first = made.size() > window ? made.size() - window : 0;
    size_t kept = first;
    for (size_t i = first; i < made.size(); ++i) {
      auto impl = made[i].lock();
      if (!impl) continue;
      const at::Tensor tensor = at::Tensor::wrap_tensor_impl(std::move(impl));
      if (tensor.is_meta()) continue;
      if (all || (tensor.requires_grad() && tensor.is_leaf()))
        Empty({{}, tensor, {}});
      else
        made[kept++] = std::move(made[i]);
    }
    made.erase(made.begin() + static_cast<long>(kept), made.end());
  }
};

static void InScope(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kKey);
  EmptyWeights::State* scope = current;
  const c10::FunctionSchema& schema = op.schema();
  const size_t arguments = schema.arguments().size();
  if (scope) {
    scope->Sweep(16, false);
    // at::tensor writes to the memory of an aten::empty, so that must stay real.
    int device = -1;
    bool makes = scope->buffers && schema.name() != "aten::empty";
    for (size_t i = 0; i < arguments; ++i) {
      makes = makes && !(*stack)[stack->size() - arguments + i].isTensor();
      if (schema.arguments()[i].name() == "device") device = static_cast<int>(i);
    }
    if (makes && device >= 0)
      (*stack)[stack->size() - arguments + static_cast<size_t>(device)] = at::Device(at::kMeta);
  }
  op.callBoxed(stack);
  if (!scope) return;
  const size_t returns = schema.returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().is_meta()) continue;
    // In-place operations return known tensors.
    const c10::TensorImpl* impl = value.toTensor().unsafeGetTensorImpl();
    bool known = false;
    for (size_t k = scope->made.size(); k-- > 0 && !known && scope->made.size() - k <= 16;)
      known = scope->made[k]._unsafe_get_target() == impl;
    if (!known) scope->made.emplace_back(value.toTensor().getIntrusivePtr());
  }
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&InScope>());
}

EmptyWeights::EmptyWeights(bool include_buffers) : state_(std::make_unique<State>()) {
  state_->buffers = include_buffers;
  state_->outer = current;
  current = state_.get();
}

EmptyWeights::~EmptyWeights() {
  c10::impl::ExcludeDispatchKeyGuard off(kKey);
  state_->Sweep(state_->made.size(), false);
  if (state_->buffers) state_->Sweep(state_->made.size(), true);
  current = state_->outer;
}

}  // namespace pipewright
