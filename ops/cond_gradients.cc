#include "ops/cond_gradients.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/runtime/operator.h>

namespace pipewright {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

// Autograd makes a gradient of zeros from an undefined one before it calls `backward`.
struct Operand : torch::autograd::Function<Operand> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& operand) {
    return operand.view_as(operand);
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return gradients;
  }
};

// Passes undefined gradients to the operands, whose nodes run for that reason.
struct Results : torch::autograd::Function<Results> {
  static variable_list forward(AutogradContext* context, at::TensorList results,
                               at::TensorList operands) {
    context->saved_data["operands"] = static_cast<int64_t>(operands.size());
    variable_list copies;
    for (const at::Tensor& result : results) copies.push_back(result.clone());
    return copies;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list all = gradients;
    all.resize(all.size() + static_cast<size_t>(context->saved_data["operands"].toInt()));
    return all;
  }
};

bool HasGradient(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

void TakeOperand(Stack& stack) {
  at::Tensor operand = torch::jit::pop(stack).toTensor();
  const bool tracked = at::GradMode::is_enabled() && operand.requires_grad();
  stack.emplace_back(tracked ? Operand::apply(operand) : operand);
}

void GiveResults(Stack& stack) {
  variable_list operands;
  for (const at::Tensor& operand : torch::jit::pop(stack).toTensorVector())
    if (operand.requires_grad()) operands.push_back(operand);
  variable_list results = torch::jit::pop(stack).toTensorVector(), tracked;
  if (at::GradMode::is_enabled() && !operands.empty()) {
    for (const at::Tensor& result : results)
      if (HasGradient(result)) tracked.push_back(result);
    if (!tracked.empty())
      tracked = Results::apply(at::TensorList(tracked), at::TensorList(operands));
    auto next = tracked.begin();
    for (at::Tensor& result : results)
      if (HasGradient(result)) result = *next++;
  }
  stack.emplace_back(std::move(results));
}

void Register(const char* schema, void (*operation)(Stack&)) {
  torch::jit::registerOperator(torch::jit::Operator(schema, torch::jit::Operation(operation),
                                                    c10::AliasAnalysisKind::FROM_SCHEMA));
}

}  // namespace

bool RegisterCondGradients() {
  Register("pipewright::cond_operand(Tensor(a) operand) -> Tensor(a)", TakeOperand);
  Register("pipewright::cond_results(Tensor(a)[] results, Tensor[] operands) -> Tensor(a)[]",
           GiveResults);
  return true;
}

}  // namespace pipewright
