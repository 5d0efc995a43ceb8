#include "ops/zero_gradients.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/runtime/operator.h>

namespace pipewright {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

struct WithZeroGradients : torch::autograd::Function<WithZeroGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value,
                            at::TensorList unused) {
    // One element each, so that the tensors themselves need not be kept.
    c10::List<at::Tensor> zeros;
    for (const at::Tensor& tensor : unused)
      zeros.push_back(at::zeros({}, tensor.options()).expand(tensor.sizes()));
    context->saved_data["zeros"] = zeros;
    return value.clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list all = {gradients[0]};
    for (const at::Tensor& zeros : context->saved_data["zeros"].toTensorVector())
      all.push_back(zeros.contiguous());
    return all;
  }
};

void Run(Stack& stack) {
  std::vector<at::Tensor> unused;
  for (const at::Tensor& tensor : torch::jit::pop(stack).toTensorVector())
    if (tensor.requires_grad()) unused.push_back(tensor);
  at::Tensor value = torch::jit::pop(stack).toTensor();
  const bool differentiable = at::isFloatingType(value.scalar_type()) ||
                              at::isComplexType(value.scalar_type());
  stack.emplace_back(unused.empty() || !differentiable
                         ? value.clone()
                         : WithZeroGradients::apply(value, at::TensorList(unused)));
}

}  // namespace

bool RegisterZeroGradients() {
  torch::jit::registerOperator(torch::jit::Operator(
      "pipewright::with_zero_gradients(Tensor value, Tensor[] unused) -> Tensor",
      torch::jit::Operation(Run), c10::AliasAnalysisKind::FROM_SCHEMA));
  return true;
}

}  // namespace pipewright
